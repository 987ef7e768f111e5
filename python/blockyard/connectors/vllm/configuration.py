"""What the KV of an engine depends on: vLLM's configuration as it runs, and its weights."""

import dataclasses
import os
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

from blockyard._core import Unavailable
from blockyard.connectors.effective import digest, names, of_file, plain
from blockyard.connectors.vllm import environment, options
from blockyard.connectors.vllm.groups import Layered
from blockyard.shared.weights import content, folder_of

__all__ = ["Depends", "depends"]

_IN: Final = names(*options.IN)
_OUT: Final = names(*options.OUT)
_VARIABLES: Final = names(*environment.IN)["environment"]
_PARTS: Final = {
    "model_config": "ModelConfig",
    "draft_model_config": "ModelConfig",
    "multimodal_config": "MultiModalConfig",
    "cache_config": "CacheConfig",
    "parallel_config": "ParallelConfig",
    "draft_parallel_config": "ParallelConfig",
    "device_config": "DeviceConfig",
    "load_config": "LoadConfig",
    "draft_load_config": "LoadConfig",
    "attention_config": "AttentionConfig",
    "mamba_config": "MambaConfig",
    "kernel_config": "KernelConfig",
    "lora_config": "LoRAConfig",
    "speculative_config": "SpeculativeConfig",
    "diffusion_config": "DiffusionConfig",
    "ec_transfer_config": "ECTransferConfig",
}
"""Fields that are parts with options of their own."""
_BY_CONTENT: Final = frozenset({"hf_config_path", "mm_encoder_fp8_scale_path"})
_FROM_FILES: Final = frozenset(
    (
        *("auto", "hf", "safetensors", "fastsafetensors", "instanttensor", "mistral", "pt"),
        *("npcache", "sharded_state", "runai_streamer", "runai_streamer_sharded", "dummy"),
    )
)
"""Load formats whose weights are the files of the model."""
_HEX: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class Depends(NamedTuple):
    """What all KV of an engine depends on."""

    namespace: dict[str, dict[str, object]]
    unseen: str | None
    """Why the weights, or a drafter's, cannot be identified; None if they can."""


def depends(vllm: Any, kv: Any, layered: Layered, version: str) -> Depends:
    """Returns what all KV depends on, beside its tokens.

    Args:
        vllm: A `VllmConfig`.
        kv: A `KVCacheConfig`.
        layered: Its groups of layers.
        version: vLLM's.
    """
    model, cache = vllm.model_config, vllm.cache_config
    found, unseen = _weights(model, vllm.load_config)
    configuration = getattr(model, "hf_config", None)
    named = {
        # Whoever lists the folders of a disk wants to read what it is.
        "architectures": getattr(configuration, "architectures", None),
        "model": None if found else str(model.model),
        "revision": None if found else plain(model.revision),
        "vLLM": version,
        "options": digest(_part("VllmConfig", vllm, str(model.model))),
        "spec": digest(_spec(kv)),
        "environment": digest(_variables()),
    }
    weights = {
        "quantization": model.quantization,
        "load": str(vllm.load_config.load_format),
        "content": found,
        "commit": None if found else getattr(configuration, "_commit_hash", None),
        # A commit of a hub says it, wherever its files are now.
        "pinned": _commit(model) if found is None and unseen is None else None,
    }
    drafter, undrafted = _drafter(getattr(vllm, "speculative_config", None), vllm)
    namespace: dict[str, dict[str, object]] = {
        "model": named,
        "weights": weights,
        "dtype": {"model": str(model.dtype), "kv": cache.cache_dtype},
        "layout": {
            **_of_layers(layered),
            "order": getattr(kv, "kv_cache_layout", None),
            "hash": cache.prefix_caching_hash_algo,
            # vLLM's hashes begin with it, where it is set.
            "seed": os.environ.get("PYTHONHASHSEED"),
            "drafts": drafter,
        },
        "parallel": {
            "tensor": vllm.parallel_config.tensor_parallel_size,
            "stages": vllm.parallel_config.pipeline_parallel_size,
        },
    }
    return Depends(namespace, unseen or undrafted)


def _of_layers(layered: Layered) -> dict[str, object]:
    """Returns the kind of each group, its layers, and the bytes of a page in each."""
    if layered.groups is None and len(layered.layouts[0].planes) == 1:
        (plane,) = layered.layouts[0].planes
        return {"kind": layered.kinds[0], "layers": plane.pieces, "page": plane.piece_bytes}
    groups = layered.groups or (None,)
    return {
        "kind": [
            kind if group is None else f"{kind}: {group}"
            for kind, group in zip(layered.kinds, groups, strict=True)
        ],
        "layers": [[plane.pieces for plane in one.planes] for one in layered.layouts],
        "page": [[plane.piece_bytes for plane in one.planes] for one in layered.layouts],
    }


def _weights(model: Any, load: Any) -> tuple[str | None, str | None]:
    """Returns the content of a model's weights, and why it is not known."""
    name, form = str(model.model), str(load.load_format)
    remote = getattr(model, "model_weights", "")
    if form not in _FROM_FILES:
        return None, f"load_format = {form!r} takes weights from where they are not to be seen"
    if remote:
        return None, f"they come from {remote}, and are no files here"
    where = folder_of(name, model.revision, getattr(load, "download_dir", None))
    try:
        found = None if where is None else content(where)
    except Unavailable as error:
        return None, str(error)
    if found is not None:
        return found, None
    if not Path(name).exists() and _commit(model):
        # Of a hub, and its weights are downloaded to elsewhere.
        return None, None
    return None, f"there are no files of weights at {name!r}, nor in the cache of a hub"


def _commit(model: Any) -> str | None:
    """Returns the commit that a model of a hub was asked for by."""
    revision = str(getattr(model.revision, "resolved", None) or model.revision)
    return revision if _HEX.fullmatch(revision) else None


def _drafter(drafts: Any, vllm: Any) -> tuple[str | None, str | None]:
    """Returns the identity of a drafter's weights, or why there is none."""
    if drafts is None:
        return None, None
    model = getattr(drafts, "draft_model_config", None)
    name = getattr(model or drafts, "model", None)
    if name == vllm.model_config.model:
        return None, None
    if model is None:
        # It has no weights, as n-grams.
        return str(name), None
    load = getattr(drafts, "draft_load_config", None) or vllm.load_config
    found, unseen = _weights(model, load)
    told = found or f"{name} {_commit(model)}"
    return told, unseen and f"of the drafter {str(name)!r}: {unseen}"


def _part(kind: str, part: Any, folder: str) -> dict[str, object]:
    """Returns the options of a part of the configuration that KV depends on."""
    if dataclasses.is_dataclass(part):
        fields = [one.name for one in dataclasses.fields(part)]
    else:
        fields = sorted(_IN.get(kind, ()))
    out = _OUT.get(kind, frozenset())
    found: dict[str, object] = {}
    for name in fields:
        if name in out or name.startswith("_") or not hasattr(part, name):
            continue
        value = getattr(part, name)
        if name in _PARTS and value is not None:
            inside = str(getattr(value, "model", folder))
            found[name] = _part(_PARTS[name], value, inside)
        elif kind == "SpeculativeConfig" and name == "model":
            # By content, elsewhere.
            continue
        else:
            found[name] = of_file(value) if name in _BY_CONTENT else plain(value, folder)
    return found


def _spec(kv: Any) -> list[object]:
    specs = (group.kv_cache_spec for group in kv.kv_cache_groups)
    return [plain(one) if dataclasses.is_dataclass(one) else type(one).__name__ for one in specs]


def _variables() -> dict[str, str]:
    """Returns the variables that are set and that KV may depend on."""
    # No others that begin so: vLLM sets some itself, another value in each process.
    return {name: os.environ[name] for name in sorted(_VARIABLES) if name in os.environ}
