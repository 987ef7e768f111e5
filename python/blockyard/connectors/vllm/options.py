"""Every option of vLLM 0.33, and whether KV depends on it.

An option is in the identity unless it is marked here as out: one that a later vLLM has, too. What
is out changes which requests run when, where bytes lie, what is drawn from logits or what is said;
or it changes no more than the order in which the same numbers are added, as another batch does.
"""

from typing import Final

from blockyard.connectors.effective import Mark

__all__ = ["IN", "OUT"]

IN: Final = (
    Mark(
        "the model as vLLM runs it, after all overrides",
        {
            "VllmConfig": "model_config additional_config diffusion_config",
            "ModelConfig": "hf_config hf_text_config hf_overrides model_class_overrides "
            "model_impl runner convert disable_sliding_window trust_remote_code code_revision",
            "DiffusionConfig": "canvas_length max_denoising_steps",
            "EngineArgs": "gdn_prefill_backend kda_prefill_backend kda_decode_backend",
        },
    ),
    Mark(
        "a configuration of its own: by the content at this path",
        {
            "ModelConfig": "hf_config_path",
        },
    ),
    Mark(
        "models choose by it: LongRoPE its factors, Llama 4 its temperature",
        {
            "ModelConfig": "max_model_len",
        },
    ),
    Mark(
        "in which precision weights are held and multiplied",
        {
            "ModelConfig": "dtype quantization quantization_config allow_deprecated_quantization",
            "QuantizationConfigArgs": "linear moe ignore targets",
            "QuantSpec": "weight activation",
            "LoadConfig": "load_format model_loader_extra_config",
            "VllmConfig": "load_config",
        },
    ),
    Mark(
        "what the encoder makes of a picture: vLLM's hash has the picture alone",
        {
            "ModelConfig": "multimodal_config",
            "MultiModalConfig": "language_model_only limit_per_prompt media_io_kwargs "
            "mm_processor_kwargs mm_device_do_normalize mm_encoder_only mm_encoder_attn_backend "
            "mm_encoder_attn_dtype video_pruning_rate video_pruning_method "
            "allow_missing_mm_embeddings",
            "BaseDummyOptions": "count",
            "AudioDummyOptions": "count length",
            "ImageDummyOptions": "count width height",
            "VideoDummyOptions": "count num_frames width height",
            "VllmConfig": "ec_transfer_config",
            "ECTransferConfig": "ec_connector ec_connector_module_path mm_encoder_output_widths",
            "EngineArgs": "mm_processor_device limit_mm_per_prompt",
        },
    ),
    Mark(
        "scales of the encoder: by the content of this file",
        {
            "MultiModalConfig": "mm_encoder_fp8_scale_path",
        },
    ),
    Mark(
        "of which type, form and order KV is",
        {
            "VllmConfig": "cache_config mamba_config device_config",
            "CacheConfig": "block_size kv_cache_layout cache_dtype is_attention_free "
            "sliding_window kv_cache_dtype_skip_layers kv_sharing_fast_prefill swa_bounded_replay "
            "mamba_page_size_padded skip_page_size_padded mamba_block_size mamba_cache_dtype "
            "mamba_ssm_cache_dtype mamba_cache_mode enable_mamba_shared_prefix_checkpoint "
            "replayssm_buffer_len use_replayssm use_kda_recoverssm",
            "MambaConfig": "backend enable_stochastic_rounding stochastic_rounding_philox_rounds "
            "ssu_algorithm",
            "DeviceConfig": "device_type",
            "EngineArgs": "mamba_backend mamba_ssu_algorithm "
            "enable_mamba_cache_stochastic_rounding mamba_cache_philox_rounds",
        },
    ),
    Mark(
        "how blocks are hashed",
        {
            "CacheConfig": "prefix_caching_hash_algo prefix_match_unit",
        },
    ),
    Mark(
        "kernels of another precision, or of another form of KV",
        {
            "VllmConfig": "attention_config kernel_config",
            "AttentionConfig": "backend minimax_m3_msa_decode_backend backend_per_kind "
            "flash_attn_version use_trtllm_attention disable_flashinfer_q_quantization "
            "mla_prefill_backend use_prefill_query_quantization trtllm_ragged_backend "
            "indexer_kv_dtype indexer_sparse_logits minimax_m3_indexer_cp use_non_causal "
            "sparse_mla_force_mqa",
            "KernelConfig": "monokernel moe_backend sparse_indexer_topk_backend linear_backend "
            "linear_backend_per_quant",
        },
    ),
    Mark(
        "which heads and layers a rank has, and what runs there",
        {
            "VllmConfig": "parallel_config",
            "ParallelConfig": "pipeline_parallel_size tensor_parallel_size "
            "prefill_context_parallel_size decode_context_parallel_size "
            "dcp_kv_cache_interleave_size cp_kv_cache_interleave_size worker_cls "
            "worker_extension_cls",
        },
    ),
    Mark(
        "how adapters are applied",
        {
            "VllmConfig": "lora_config",
            "LoRAConfig": "lora_dtype target_modules enable_tower_connector_lora "
            "enable_mixed_moe_lora_format enable_moe_shared_loras",
            "EngineArgs": "enable_lora lora_target_modules",
        },
    ),
    Mark(
        "a drafter's own layers, whose KV lies beside the model's: its weights by content",
        {
            "VllmConfig": "speculative_config",
            "SpeculativeConfig": "method model draft_model_config draft_load_config quantization "
            "attention_backend moe_backend kv_cache_dtype draft_parallel_config "
            "index_share_for_mtp_iteration draft_lm_head_quantization parallel_drafting "
            "use_heterogeneous_vocab disable_eagle_block_drop",
            "EngineArgs": "spec_method spec_model",
        },
    ),
)
"""What KV depends on. The weights, the code beside them and vLLM's version are in as well."""

OUT: Final = (
    Mark(
        "a name or a place: what is there counts by its content, and a name where it is not seen",
        {
            "ModelConfig": "model model_weights revision hf_token config_format",
            "LoadConfig": "download_dir ignore_patterns",
            "SpeculativeConfig": "revision code_revision",
        },
    ),
    Mark(
        "it follows from what is in",
        {
            "VllmConfig": "quant_config",
            "ModelConfig": "is_submodel_config word_embeddings_untied_by_checkpoint",
            "ModelArchitectureConfig": "architectures model_type text_model_type hidden_size "
            "total_num_hidden_layers total_num_attention_heads head_size vocab_size "
            "total_num_kv_heads num_experts num_experts_per_token quantization_config "
            "is_deepseek_mla is_mm_prefix_lm rswa_window derived_max_model_len_and_key "
            "per_layer_overrides",
            "CacheConfig": "user_specified_block_size effective_attention_block_size "
            "hash_block_size cache_hit_alignment_tokens",
            "DeviceConfig": "device",
            "ParallelConfig": "is_moe_model",
            "SpeculativeConfig": "target_model_config target_parallel_config",
        },
    ),
    Mark(
        "tokens, logits and answers: keys are of tokens, and KV comes before logits",
        {
            "VllmConfig": "structured_outputs_config reasoning_config watermark_config",
            "ModelConfig": "tokenizer tokenizer_mode tokenizer_revision skip_tokenizer_init seed "
            "return_sampling_mask max_logprobs logprobs_mode use_fp64_gumbel enable_trace_replay "
            "generation_config override_generation_config logits_processors io_processor_plugin "
            "pooler_config served_model_name enable_prompt_embeds allowed_local_media_path "
            "allowed_media_domains renderer_num_workers",
            "MultiModalConfig": "interleave_mm_strings enable_mm_embeds mm_hasher_algorithm",
            "PoolerConfig": "task pooling_type seq_pooling_type tok_pooling_type use_activation "
            "enable_flash_late_interaction dimensions enable_chunked_processing max_embed_len "
            "logit_mean logit_sigma step_tag_id returned_token_ids",
            "ReasoningConfig": "reasoning_parser reasoning_start_str reasoning_end_str",
            "StructuredOutputsConfig": "backend disable_any_whitespace "
            "disable_additional_properties reasoning_parser reasoning_parser_plugin "
            "enable_in_reasoning",
            "WatermarkConfig": "key algorithm alpha context_width deduplicate_contexts "
            "deduplicate_contexts_max_history prf allow_target_only_watermarking",
            "SpeechToTextConfig": "sample_rate max_audio_clip_s overlap_chunk_second "
            "min_energy_split_window_size",
            "SpeechToTextParams": "audio stt_config model_config language hotwords task_type "
            "request_prompt to_language",
            "LoRAConfig": "default_mm_loras max_lora_cls_labels",
            "SpeculativeConfig": "enforce_eager num_speculative_tokens draft_tensor_parallel_size "
            "tensor_parallel_size max_model_len disable_padded_drafter_batch "
            "disable_lookahead_block_hashes use_local_argmax_reduction prompt_lookup_max "
            "prompt_lookup_min num_speculative_tokens_per_batch_size "
            "suffix_decoding_max_tree_depth suffix_decoding_max_cached_requests "
            "suffix_decoding_max_spec_factor suffix_decoding_min_token_prob "
            "rejection_sample_method synthetic_acceptance_rates synthetic_acceptance_length "
            "enable_adaptive_verification draft_sample_method dspark_draft_topk xpress_topc "
            "fly_window_size fly_entropy_threshold fly_entropy_top_k",
            "EngineArgs": "spec_tokens tokens_only",
        },
    ),
    Mark(
        "media: how they are fetched, bounded, cached and carried; vLLM's hash is of the media",
        {
            "MultiModalConfig": "mm_processor_cache_gb mm_processor_cache_type "
            "mm_shm_cache_max_object_size_mb skip_mm_profiling mm_tensor_ipc mm_ipc_gpu_memory_gb "
            "mm_encoder_fp8_scale_save_path mm_encoder_fp8_scale_save_margin mm_encoder_tp_mode",
            "VllmConfig": "ec_manager_config",
            "EncoderCacheManagerConfig": "encoder_cache_manager_cls manager_config",
            "ECTransferConfig": "engine_id ec_buffer_device ec_buffer_size ec_role ec_ip ec_port "
            "ec_connector_extra_config",
        },
    ),
    Mark(
        "which requests run when, and how much memory there is",
        {
            "VllmConfig": "scheduler_config aux_output_config",
            "ModelConfig": "spec_target_max_model_len disable_cascade_attn",
            "AuxOutputConfig": "enable_return_routed_experts max_bytes",
            "SchedulerConfig": "runner_type max_num_batched_tokens max_num_scheduled_tokens "
            "max_num_seqs max_num_active_seqs long_prefill_token_threshold "
            "long_prefill_token_threshold_adaptive max_num_queued_reqs max_num_queued_tokens "
            "enable_chunked_prefill is_multimodal_model max_num_encoder_input_tokens "
            "encoder_cache_size policy disable_chunked_mm_input scheduler_cls "
            "disable_hybrid_kv_cache_manager scheduler_reserve_full_isl watermark "
            "prefill_schedule_interval async_scheduling stream_interval",
            "CacheConfig": "gpu_memory_utilization num_gpu_blocks_override enable_prefix_caching "
            "prefix_cache_retention_interval num_gpu_blocks num_cpu_blocks "
            "simple_cpu_offload_num_blocks kv_cache_size_tokens kv_cache_max_concurrency "
            "kv_cache_memory_bytes kv_offloading_size kv_offloading_backend",
            "LoRAConfig": "max_lora_rank max_loras fully_sharded_loras max_cpu_loras "
            "specialize_active_lora",
            "EngineArgs": "scheduling_policy",
        },
    ),
    Mark(
        "where weights lie, and how they come there",
        {
            "VllmConfig": "offload_config engram_config weight_transfer_config",
            "ModelConfig": "enable_sleep_mode sleep_preserve_parameter_names sleep_mode_backend "
            "sleep_mode_offload_cudagraph enable_nccl_comm_suspend enable_cumem_allocator",
            "LoadConfig": "safetensors_load_strategy safetensors_prefetch_num_threads "
            "safetensors_prefetch_block_size device use_tqdm_on_load pt_load_map_location",
            "OffloadConfig": "offload_backend uva prefetch",
            "PrefetchOffloadConfig": "offload_group_size offload_num_in_group "
            "offload_prefetch_step offload_params",
            "UVAOffloadConfig": "cpu_offload_gb cpu_offload_params",
            "EngramConfig": "cpu_offload embedding_across_dp dp_shared_memory use_thp",
            "WeightTransferConfig": "backend",
        },
    ),
    Mark(
        "the same numbers, added in another order at most: compiled, captured, fused or split",
        {
            "VllmConfig": "compilation_config optimization_level performance_mode",
            "ModelConfig": "enforce_eager",
            "AttentionConfig": "flash_attn_max_num_splits_for_cuda_graph "
            "tokenspeed_mla_min_split_kv tq_max_kv_splits_for_cuda_graph "
            "indexer_tp_shard_min_rows hisparse_config sparse_mla_prefill_workspace_factor "
            "flex_attn_block_m flex_attn_block_n flex_attn_q_block_size flex_attn_kv_block_size",
            "HiSparseConfig": "device_buffer_size eager_host_mirror",
            "KernelConfig": "ir_op_priority enable_flashinfer_autotune "
            "enable_rocm_segmented_attn_autotune enable_cutedsl_warmup enable_jit_warmup",
            "IrOpPriorityConfig": "rms_norm fused_add_rms_norm gelu_and_mul_sparse",
            "Range": "start end",
            "CompilationConfig": "mode debug_dump_path cache_dir compile_cache_save_format "
            "backend custom_ops ir_enable_torch_wrap splitting_ops compile_mm_encoder "
            "cudagraph_mm_encoder encoder_cudagraph_token_budgets "
            "encoder_cudagraph_max_vision_items_per_batch encoder_cudagraph_max_frames_per_batch "
            "cudagraph_decoder_replay decoder_replay_cudagraph_capture_sizes "
            "decoder_replay_trim_threshold compile_sizes compile_ranges_endpoints "
            "inductor_compile_config inductor_passes cudagraph_mode cudagraph_num_of_warmups "
            "cudagraph_capture_sizes cudagraph_copy_inputs cudagraph_specialize_lora "
            "use_inductor_graph_partition pass_config max_cudagraph_capture_size "
            "dynamic_shapes_config local_cache_dir fast_moe_cold_start enabled_custom_ops "
            "disabled_custom_ops traced_files compilation_time encoder_compilation_time "
            "static_forward_context static_all_moe_layers",
            "DynamicShapesConfig": "type evaluate_guards assume_32_bit_indexing",
            "PassConfig": "fuse_norm_quant fuse_act_quant fuse_attn_quant eliminate_noops "
            "fuse_allreduce_rms enable_qk_norm_rope_fusion fuse_rope_kvcache_cat_mla "
            "fuse_act_padding fuse_mla_dual_rms_norm fuse_rope_kvcache fuse_qk_norm_rope_kvcache "
            "rope_kvcache_fusion_max_token_num fi_allreduce_fusion_max_size_mb",
        },
    ),
    Mark(
        "processes, machines and how they speak with each other",
        {
            "VllmConfig": "kv_transfer_config kv_events_config instance_id shutdown_timeout "
            "watchdog_config",
            "KVTransferConfig": "kv_connector engine_id kv_buffer_device kv_role kv_port "
            "kv_connector_extra_config kv_connector_module_path enable_permute_local_kv "
            "kv_load_failure_policy",
            "KVEventsConfig": "enable_kv_cache_events publisher endpoint replay_endpoint "
            "buffer_steps hwm max_queue_size topic",
            "WatchdogConfig": "timeout check_interval dump_dir",
            "FaultToleranceConfig": "engine_recovery_timeout_sec",
            "EPLBConfig": "window_size step_interval num_redundant_experts log_balancedness "
            "log_balancedness_interval use_async policy communicator enable_migration_batching",
            "ParallelConfig": "data_parallel_size data_parallel_size_local data_parallel_rank "
            "data_parallel_rank_local data_parallel_master_ip data_parallel_rpc_port "
            "dp_sync_interval data_parallel_master_port data_parallel_backend "
            "data_parallel_external_lb data_parallel_hybrid_lb enable_hc_sp "
            "enable_expert_parallel enable_batch_sharded_sampling enable_ep_weight_filter "
            "enable_eplb eplb_config expert_placement_strategy all2all_backend "
            "max_parallel_loading_workers disable_custom_all_reduce enable_shm_tensor_arena "
            "enable_elastic_ep elastic_ep_max_dp_size enable_dbo ubatch_size "
            "dbo_decode_token_threshold dbo_prefill_token_threshold "
            "disable_nccl_for_dp_synchronization ray_workers_use_nsight ray_runtime_env "
            "placement_group distributed_executor_backend master_addr master_port node_rank "
            "nnodes numa_bind numa_bind_nodes numa_bind_cpus assigned_physical_gpu_ids "
            "distributed_timeout_seconds cpu_distributed_timeout_seconds world_size rank "
            "dcp_comm_backend dcp_q_replicate data_parallel_index enable_fault_tolerance "
            "fault_tolerance_config",
            "EngineArgs": "device_ids data_parallel_start_rank data_parallel_address "
            "data_parallel_multi_port_external_lb",
        },
    ),
    Mark(
        "what is logged, counted, traced, checked, or built",
        {
            "VllmConfig": "observability_config logging_config profiler_config",
            "LoggingConfig": "log_level formatter configure_logging pylogging_config_file",
            "ObservabilityConfig": "show_hidden_metrics_for_version otlp_traces_endpoint "
            "collect_detailed_traces per_request_spec_decode_metrics kv_cache_metrics "
            "kv_cache_metrics_sample custom_histogram_buckets cudagraph_metrics "
            "enable_layerwise_nvtx_tracing enable_mfu_metrics enable_mm_processor_stats "
            "enable_logging_iteration_details jit_monitor_mode jit_monitor_verbose",
            "ProfilerConfig": "profiler torch_profiler_dir torch_profiler_activities "
            "proton_profiler_dir proton_context proton_data proton_backend proton_mode "
            "proton_hook proton_output_format proton_graph_attribution torch_profiler_with_stack "
            "torch_profiler_with_flops torch_profiler_use_gzip "
            "torch_profiler_dump_cuda_time_total torch_profiler_record_shapes "
            "torch_profiler_with_memory capture_torch_profiler detailed_trace_annotation "
            "ignore_frontend delay_iterations max_iterations warmup_iterations active_iterations "
            "wait_iterations",
            "EngineArgs": "disable_log_stats aggregate_engine_logging log_config_file "
            "fail_on_environ_validation",
        },
    ),
)
"""What KV does not depend on."""
