"""What stands for vLLM's configurations, where there is no vLLM."""

from types import SimpleNamespace
from typing import Any, Final

from blockyard.connectors.command_line import Flags
from blockyard.connectors.vllm.engine import INTERFACE
from blockyard.connectors.vllm.replicas import here_of
from blockyard.tools.doctor.model import Model

__all__ = ["BLOCK", "configuration", "kv_cache"]

BLOCK: Final = 16
"""Tokens of vLLM's block; every attention backend takes multiples of it alone."""


def configuration(flags: Flags, model: Model | None) -> Any:
    """Returns what stands for vLLM's `VllmConfig`, as these flags make it.

    It has the fields that the connector reads; what flags do not say has vLLM's defaults.

    Args:
        flags: vLLM's.
        model: Of the model; without it that one takes the place that no check refuses.
    """

    def part(kind: str, **more: Any) -> Any:
        names = INTERFACE.names[f"vllm.config.{kind}"]["fields"].split()
        return SimpleNamespace(**{name: flags.values.get(name) for name in names} | more)

    said = flags.mapping("kv_transfer_config")
    counts = {
        name: max(flags.number(name), 1)
        for name in INTERFACE.names["vllm.config.ParallelConfig"]["fields"].split()
        if name.endswith("_size") or name == "nnodes"
    }
    total = counts["pipeline_parallel_size"]
    hidden = SimpleNamespace(architectures=None, _commit_hash=None)
    if model is not None:
        total = int(model.config["num_hidden_layers"])
        hidden.architectures = model.config.get("architectures")
    every = counts["data_parallel_size"]
    counts |= {"data_parallel_size_local": here_of(flags, every), "data_parallel_index": 0}
    return part(
        "VllmConfig",
        kv_transfer_config=SimpleNamespace(
            kv_connector=said.get("kv_connector"),
            kv_role=said.get("kv_role"),
            kv_load_failure_policy=said.get("kv_load_failure_policy", "fail"),
            kv_connector_extra_config=said.get("kv_connector_extra_config") or {},
            engine_id="doctor",
        ),
        cache_config=part(
            "CacheConfig",
            prefix_caching_hash_algo=flags.text("prefix_caching_hash_algo", "sha256"),
            cache_dtype=flags.text("kv_cache_dtype", "auto"),
        ),
        parallel_config=part("ParallelConfig", **counts, rank=0),
        model_config=part(
            "ModelConfig",
            model=flags.text("model"),
            model_weights="",
            dtype=flags.text("dtype", "auto"),
            max_model_len=max(model.longest, 1) if model is not None else 1,
            get_total_num_hidden_layers=lambda: total,
            hf_config=hidden,
        ),
        load_config=part("LoadConfig", load_format=flags.text("load_format", "auto")),
        attention_config=part("AttentionConfig", **flags.mapping("attention_config")),
        speculative_config=None,
        kv_events_config=None,
    )


def kv_cache(flags: Flags, model: Model | None) -> Any:
    """Returns what stands for vLLM's `KVCacheConfig`, likewise."""
    kinds = ("FullAttentionSpec",) if model is None else model.kinds
    latent = "MLAAttentionSpec" in kinds
    block = flags.number("block_size", 64 if latent else BLOCK)
    groups = [
        SimpleNamespace(
            layer_names=[f"layer {at}" for at in range(1 if model is None else model.layers)],
            kv_cache_spec=type(kind, (SimpleNamespace,), {})(
                block_size=block,
                page_size_bytes=block * (1 if model is None else model.token_bytes),
                dtype=f"torch.{'bfloat16' if model is None else model.dtype}",
            ),
        )
        for kind in kinds
    ]
    return SimpleNamespace(
        # The GPU's blocks follow from its memory; what is checked of them is that there are some.
        num_blocks=2,
        kv_cache_groups=groups,
        kv_tp_replicas=max(flags.number("tensor_parallel_size"), 1) if latent else 1,
        hash_block_size=block,
    )
