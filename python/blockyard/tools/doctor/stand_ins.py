"""Substitutes for vLLM's configurations, without vLLM."""

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, Final

from blockyard.connectors.command_line import Flags
from blockyard.connectors.vllm.replicas import here_of
from blockyard.connectors.vllm.vllm_api import INTERFACE
from blockyard.tools.doctor.model import Layers, Model

__all__ = ["BLOCK", "CHUNKED", "configuration", "groups_of", "kv_cache"]

BLOCK: Final = 16
"""Tokens of vLLM's block; every attention backend takes multiples of it alone."""


CHUNKED: Final = "VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE"
"""The variable with which vLLM keeps chunks in groups of their own."""


def groups_of(flags: Flags, model: Model, environ: Mapping[str, str]) -> tuple[Layers, ...]:
    """Returns the groups that vLLM makes of a model's layers with these flags.

    Args:
        flags: vLLM's.
        model: The model.
        environ: Environment variables.
    """
    chunked = any(one.kind == "ChunkedLocalAttentionSpec" for one in model.groups)
    is_off = flags.values.get("disable_hybrid_kv_cache_manager") or (
        chunked and environ.get(CHUNKED, "0") in {"", "0"}
    )
    if is_off and len(model.kinds) == 1:
        return (Layers(model.kinds[0], model.layers),)
    return model.groups


def configuration(flags: Flags, model: Model | None, *, has_groups: bool = True) -> Any:
    """Returns a substitute for vLLM's `VllmConfig` with these flags.

    It has the fields that the connector reads; other fields have vLLM's defaults.

    Args:
        flags: vLLM's.
        model: Of the model; without it that one takes the place that no check refuses.
        has_groups: Whether vLLM's hybrid manager is on.
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
    text = SimpleNamespace(layer_types=None, sliding_window=None, attention_chunk_size=None)
    if model is not None:
        text.layer_types = model.types
        text.sliding_window = model.config.get("sliding_window")
        text.attention_chunk_size = model.config.get("attention_chunk_size")
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
            prefix_cache_retention_interval=flags.values.get("prefix_cache_retention_interval", 0),
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
            hf_text_config=text,
            is_hybrid=model is not None and "MambaSpec" in model.kinds,
        ),
        scheduler_config=part("SchedulerConfig", disable_hybrid_kv_cache_manager=not has_groups),
        load_config=part("LoadConfig", load_format=flags.text("load_format", "auto")),
        attention_config=part("AttentionConfig", **flags.mapping("attention_config")),
        speculative_config=_drafts(flags.mapping("speculative_config")),
        kv_events_config=None,
    )


def _drafts(given: Mapping[str, Any]) -> Any:
    """Returns a substitute for vLLM's `SpeculativeConfig`; None where nothing drafts."""
    if not given:
        return None
    method = str(given.get("method"))
    ahead = method.startswith("eagle") or method.endswith("mtp")
    drops = ahead and not given.get("disable_eagle_block_drop")
    return SimpleNamespace(
        model=given.get("model"), draft_model_config=None, use_eagle_block_drop=lambda: drops
    )


def kv_cache(flags: Flags, model: Model | None, groups: Iterable[Layers] = ()) -> Any:
    """Returns a substitute for vLLM's `KVCacheConfig`, likewise.

    Args:
        flags: vLLM's.
        model: The model; None where it is not known.
        groups: vLLM's groups of its layers. The bytes of states are not known here: they have those
            of attention.
    """
    listed = list(groups) or [Layers("FullAttentionSpec", 1)]
    latent = any(one.kind == "MLAAttentionSpec" for one in listed)
    block = flags.number("block_size", 64 if latent else BLOCK)
    caches = flags.values.get("enable_prefix_caching") is not False
    made = [
        SimpleNamespace(
            layer_names=[f"layer {at} of {number}" for at in range(one.number)],
            kv_cache_spec=type(one.kind, (SimpleNamespace,), {})(
                block_size=block,
                page_size_bytes=block * (1 if model is None else model.token_bytes),
                dtype=f"torch.{'bfloat16' if model is None else model.dtype}",
                sliding_window=one.tokens,
                attention_chunk_size=one.tokens,
                mamba_cache_mode="align" if caches else "none",
            ),
        )
        for number, one in enumerate(listed)
    ]
    return SimpleNamespace(
        # The GPU's blocks follow from its memory; what is checked of them is that there are some.
        num_blocks=2,
        kv_cache_groups=made,
        kv_tp_replicas=max(flags.number("tensor_parallel_size"), 1) if latent else 1,
        hash_block_size=flags.number("prefix_match_unit", block),
    )
