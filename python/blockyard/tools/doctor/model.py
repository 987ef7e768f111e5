"""What vLLM will make of a model's KV, as far as its configuration alone says it."""

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from blockyard.shared.layout import WIDTHS
from blockyard.shared.validate import shown
from blockyard.shared.weights import folder_of
from blockyard.tools.doctor.flags import Flags

__all__ = ["Model", "engine", "look"]

_WIDTHS: Final = {
    **WIDTHS,
    "auto": 2,
    "half": 2,
    "float": 4,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
}
"""Bytes of a value, by what `--kv-cache-dtype` or `--dtype` says."""
_STATES: Final = (
    *("mamba", "ssm", "rwkv", "jamba", "bamba", "zamba", "falcon_h1", "granitemoehybrid"),
    *("lfm2", "minimax_text", "nemotron_h", "plamo2", "qwen3_next", "qwen3_5", "kimi_linear"),
)
"""Types of models whose layers keep states beside KV, or in its place."""
_UNTOLD: Final = ("index_topk", "compress_ratios", "block_configs", "per_layer_config")
"""Fields of models whose layers keep KV in ways that a configuration alone does not tell."""


class Model(NamedTuple):
    """The KV of a model."""

    kinds: tuple[str, ...]
    """The class of the spec of each group of layers."""
    layers: int
    token_bytes: int
    """Bytes of a token in a layer, on one rank."""
    longest: int
    """Tokens of the longest request; 0 where it is not known."""
    dtype: str
    config: Mapping[str, Any]


def look(flags: Flags) -> Model | str:
    """Reads the configuration of the model; returns why that cannot be, as text."""
    name = flags.text("model", "")
    if not name:
        return "no model was named"
    where = folder_of(
        flags.text("hf_config_path", name),
        flags.values.get("revision"),
        flags.values.get("download_dir"),
    )
    if where is None:
        return f"{name} is not here, nor in the cache of a hub"
    try:
        config = json.loads((where / "config.json").read_text("utf-8"))
        overrides = flags.values.get("hf_overrides")
        if isinstance(overrides, Mapping):
            config |= overrides
        return _model(config, flags)
    except (OSError, RecursionError) as error:
        return f"{where}/config.json cannot be read: {error}"
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError) as error:
        return f"{where}/config.json does not say what its KV is: {type(error).__name__}: {error}"


def _model(config: dict[str, Any], flags: Flags) -> Model | str:
    text = {**config, **(config.get("text_config") or {})}
    untold = [name for name in _UNTOLD if text.get(name)]
    if untold:
        return (
            f"{untold[0]} in its configuration: what KV its layers keep is seen when it is loaded"
        )
    layers, tensor = int(text["num_hidden_layers"]), flags.number("tensor_parallel_size")
    stages = max(flags.number("pipeline_parallel_size"), 1)
    own, cache = flags.text("dtype", "auto"), flags.text("kv_cache_dtype", "auto")
    kept = cache if cache != "auto" else own
    if kept not in _WIDTHS:
        return f"--kv-cache-dtype {shown(cache)}: how its values are packed is not known here"
    latent = text.get("kv_lora_rank")
    if latent:
        values = int(latent) + int(text["qk_rope_head_dim"])
    else:
        heads = int(text.get("num_key_value_heads") or text["num_attention_heads"])
        size = text.get("head_dim") or int(text["hidden_size"]) // int(text["num_attention_heads"])
        values = 2 * max(heads // max(tensor, 1), 1) * int(size)
    longest = flags.values.get("max_model_len", text.get("max_position_embeddings"))
    return Model(
        kinds=_kinds(text, latent=bool(latent)),
        # A stage that does not divide has as many as the others, or one more.
        layers=layers // stages,
        token_bytes=values * _WIDTHS[kept],
        longest=longest if isinstance(longest, int) else 0,
        dtype=str(text.get("dtype") or text.get("torch_dtype") or "bfloat16"),
        config=text,
    )


def _kinds(text: Mapping[str, Any], *, latent: bool) -> tuple[str, ...]:
    """The specs of its groups, where vLLM keeps no windows: it does not beside a connector."""
    full = "MLAAttentionSpec" if latent else "FullAttentionSpec"
    types = text.get("layer_types") or text.get("layers_block_type") or ()
    kind = str(text.get("model_type", "")).casefold()
    named = [str(one).casefold() for one in types]
    states = [one for one in named if not any(word in one for word in ("attention", "moe", "mlp"))]
    states += [one for one in named if "linear" in one]
    if states or kind.startswith(_STATES) or text.get("hybrid_override_pattern"):
        whole = any(one in {"full_attention", "attention"} for one in named)
        return (full, "MambaSpec") if whole or not named else ("MambaSpec",)
    windows = [one for one in named if "sliding" in one or "chunked" in one]
    window = text.get("sliding_window") and text.get("use_sliding_window") is not False
    if (named and len(windows) == len(named)) or (window and not named and _everywhere(text)):
        return ("SlidingWindowSpec",)
    return (full,)


def _everywhere(text: Mapping[str, Any]) -> bool:
    """Whether all layers have the window, where the configuration lists no layers."""
    partly = (
        "max_window_layers",
        "sliding_window_pattern",
        "attn_config",
        "interleaved_sliding_window",
    )
    return not any(text.get(name) for name in partly) and text.get("model_type") == "mistral"


def engine(flags: Flags, model: Model | None) -> tuple[Any, Any]:
    """Returns what stands for vLLM's `VllmConfig` and `KVCacheConfig`, as these flags make them.

    They have the fields that the connector reads; what flags do not say has vLLM's defaults.

    Args:
        flags: vLLM's.
        model: Of the model; without it that one takes the place that no check refuses.
    """
    given = flags.values
    transfer = given.get("kv_transfer_config")
    said = dict(transfer) if isinstance(transfer, Mapping) else {}
    kinds = ("FullAttentionSpec",) if model is None else model.kinds
    stages = max(flags.number("pipeline_parallel_size"), 1)
    layers = 1 if model is None else model.layers
    total = stages if model is None else int(model.config["num_hidden_layers"])
    size = flags.number("block_size", 64 if "MLAAttentionSpec" in kinds else 16)
    hidden = SimpleNamespace(
        architectures=None if model is None else model.config.get("architectures"),
        _commit_hash=None,
    )
    vllm = SimpleNamespace(
        kv_transfer_config=SimpleNamespace(
            kv_connector=said.get("kv_connector"),
            kv_role=said.get("kv_role"),
            kv_load_failure_policy=said.get("kv_load_failure_policy", "fail"),
            kv_connector_extra_config=said.get("kv_connector_extra_config") or {},
            engine_id="doctor",
        ),
        cache_config=SimpleNamespace(
            prefix_caching_hash_algo=flags.text("prefix_caching_hash_algo", "sha256"),
            cache_dtype=flags.text("kv_cache_dtype", "auto"),
        ),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=flags.number("tensor_parallel_size"),
            pipeline_parallel_size=stages,
            decode_context_parallel_size=flags.number("decode_context_parallel_size"),
            prefill_context_parallel_size=flags.number("prefill_context_parallel_size"),
            nnodes=flags.number("nnodes"),
            data_parallel_size=flags.number("data_parallel_size"),
            data_parallel_size_local=flags.number(
                "data_parallel_size_local", flags.number("data_parallel_size")
            ),
            data_parallel_index=0,
            data_parallel_rank_local=0 if flags.number("data_parallel_size") > 1 else None,
            worker_extension_cls=given.get("worker_extension_cls", ""),
            rank=0,
        ),
        model_config=SimpleNamespace(
            model=flags.text("model", ""),
            revision=given.get("revision"),
            quantization=given.get("quantization"),
            dtype=flags.text("dtype", "auto"),
            max_model_len=max(model.longest, 1) if model is not None else 1,
            enable_sleep_mode=given.get("enable_sleep_mode", False),
            get_total_num_hidden_layers=lambda: total,
            hf_config=hidden,
        ),
        load_config=SimpleNamespace(
            load_format=flags.text("load_format", "auto"), download_dir=given.get("download_dir")
        ),
        attention_config=SimpleNamespace(
            hisparse_config=(given.get("attention_config") or {}).get("hisparse_config")
            if isinstance(given.get("attention_config"), Mapping)
            else None
        ),
        speculative_config=None,
        weight_transfer_config=given.get("weight_transfer_config"),
        kv_events_config=None,
    )
    groups = [
        SimpleNamespace(
            layer_names=[f"layer {at}" for at in range(layers)],
            kv_cache_spec=type(kind, (SimpleNamespace,), {})(
                block_size=size,
                page_size_bytes=size * (1 if model is None else model.token_bytes),
                dtype=f"torch.{'bfloat16' if model is None else model.dtype}",
            ),
        )
        for kind in kinds
    ]
    # The GPU's blocks follow from its memory; what is checked of them is that there are some.
    kv = SimpleNamespace(
        num_blocks=2,
        kv_cache_groups=groups,
        kv_tp_replicas=flags.number("tensor_parallel_size") if "MLAAttentionSpec" in kinds else 1,
        hash_block_size=size,
    )
    return vllm, kv
