"""Whose KV it is: what the bytes of a page depend on, beside SGLang's key of it."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from blockyard._core import Misuse, Unsupported
from blockyard.engines.files import stamp

__all__ = ["identity_of"]

_COMMIT: Final = re.compile(r"[0-9a-f]{40,64}")


def identity_of(config: Any, server: Mapping[str, Any], more: Mapping[str, str]) -> dict[str, str]:
    """Returns what all pages of an engine depend on, beside how they lie in memory.

    Args:
        config: SGLang's `HiCacheStorageConfig`.
        server: What is known of the server's options, by their names.
        more: What the operator adds.

    Raises:
        Misuse: Nothing tells this model, or its weights, from another one's.
        Unsupported: Nothing tells an adapter's weights from later ones.
    """
    path, revision = server.get("model_path"), server.get("revision")
    name = config.model_name or path
    commit = revision if revision and _COMMIT.fullmatch(revision) else None
    files = stamp(path) if path else None
    if not name and not more.get("model"):
        raise Misuse(
            'SGLang names no model: give "namespace": {"model": …} in '
            "--hicache-storage-backend-extra-config"
        )
    if not (files or commit or more.get("weights")):
        raise Misuse(
            "nothing tells these weights from others, and a disk outlives them: give "
            '"namespace": {"weights": "v1"} in --hicache-storage-backend-extra-config, another '
            "text with each new version; or --revision with a commit, or a folder as --model-path"
        )
    fields: dict[str, dict[str, object]] = {
        "engine": {"engine": "SGLang", "keys": "SHA-256 of namespace and tokens"},
        "model": {
            "name": name,
            "path": path,
            "override": server.get("json_model_override_args"),
        },
        "weights": {
            "files": files,
            "commit": commit,
            "quantization": server.get("quantization"),
            "scales": server.get("quantization_param_path"),
            "load": server.get("load_format"),
            "adapters": _adapters(server),
        },
        "dtype": {"model": server.get("dtype"), "kv": server.get("kv_cache_dtype")},
        # Of a drafter the keys may be of pairs of tokens.
        "drafts": {"algorithm": server.get("speculative_algorithm")},
        "parallel": {
            "tensor": config.tp_size,
            "stage": [config.pp_rank, config.pp_size],
            # A folder has one owner.
            "data": config.dp_rank,
        },
    }
    for kind, text in more.items():
        fields.setdefault(kind, {})["operator"] = text
    return {kind: json.dumps(parts, sort_keys=True, default=str) for kind, parts in fields.items()}


def _adapters(server: Mapping[str, Any]) -> list[list[str]] | None:
    """Returns what tells the adapters of the start: SGLang's keys have their names and paths.

    One that is loaded later has a key of its own each time.
    """
    if not server.get("enable_lora"):
        return None
    found = []
    for one in server.get("lora_paths") or ():
        name, path = str(one.lora_name), str(one.lora_path)
        files = stamp(path)
        if files is None:
            raise Unsupported(
                f"adapter {name!r} at {path!r}: its files are not to be seen, and others may come "
                "under its name while the disk stays; give --lora-paths a folder"
            )
        found.append([name, path, files])
    return sorted(found)
