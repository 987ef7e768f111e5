"""Whose KV it is: what the bytes of a page depend on, beside SGLang's key of it."""

import json
import os
import re
from collections.abc import Mapping
from typing import Any, Final

from blockyard._core import Misuse, Unavailable, Unsupported
from blockyard.connectors.effective import digest, names, of_file, plain
from blockyard.connectors.sglang import server_args
from blockyard.connectors.sglang.sglang_api import INTERFACE
from blockyard.shared.weights import content, folder_of, stated

__all__ = ["adapters_of", "identity_of", "shared_identity", "weights_of"]

_OUT: Final = names(*server_args.OUT)["ServerArgs"]
_BY_CONTENT: Final = frozenset(
    (
        *("quantization_param_path", "decrypted_config_file", "decrypted_draft_config_file"),
        *("kt_weight_path", "modelopt_checkpoint_restore_path", "uno_lora_path"),
    )
)
_FROM_FILES: Final = frozenset(
    (
        *("auto", "pt", "safetensors", "fastsafetensors", "npcache", "sharded_state", "gguf"),
        *("bitsandbytes", "layered", "mistral", "runai_streamer", "dummy"),
    )
)
"""Load formats whose weights are the files of the model."""
_COMMIT: Final = re.compile(r"[0-9a-f]{40,64}")


def identity_of(
    config: Any, server: Mapping[str, Any], more: Mapping[str, str], version: str = ""
) -> dict[str, str]:
    """Returns what all pages of an engine depend on, beside how they lie in memory.

    Args:
        config: SGLang's `HiCacheStorageConfig`.
        server: The server's options, by name.
        more: What the operator adds; of `weights` that is a path, their content.
        version: SGLang's.

    Raises:
        Misuse: The model or its weights cannot be identified.
        Unavailable: A file of the weights cannot be read.
        Unsupported: An adapter's weights cannot be identified.
    """
    path = server.get("model_path")
    name = config.model_name or path
    if not name and not more.get("model"):
        raise Misuse(
            'SGLang names no model: give "namespace": {"model": …} in '
            "--hicache-storage-backend-extra-config"
        )
    found, drafter, commit = weights_of(server, more)
    fields: dict[str, dict[str, object]] = {
        "engine": {
            "engine": "SGLang",
            "version": version,
            "keys": "SHA-256 of namespace and tokens",
        },
        "model": {} if found else {"name": name, "path": path},
        "weights": {
            "content": found,
            "commit": None if found else commit,
            "quantization": server.get("quantization"),
            "load": server.get("load_format"),
            "adapters": adapters_of(server),
            # Where it is not seen, the operator has said which it is.
            "drafter": drafter or _drafts(server),
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
        "configuration": {"options": digest(_options(server)), "environment": digest(_variables())},
    }
    for kind, text in more.items():
        fields.setdefault(kind, {})["operator"] = stated(kind, text)
    return {kind: json.dumps(parts, sort_keys=True, default=str) for kind, parts in fields.items()}


def shared_identity(identity: Mapping[str, str]) -> dict[str, str]:
    """Returns what pages depend on that replicas share: not which of them has computed it.

    Args:
        identity: As of `identity_of`.
    """
    parallel = json.loads(identity["parallel"])
    parallel.pop("data", None)
    return {**identity, "parallel": json.dumps(parallel, sort_keys=True)}


def weights_of(
    server: Mapping[str, Any], more: Mapping[str, str]
) -> tuple[str | None, str | None, str | None]:
    """Returns identities of the weights and of a drafter's, and their commit.

    Args:
        server: As in `identity_of`, and so is `more`.
        more: Likewise.

    Raises:
        Misuse: Nothing does.
        Unavailable: A file of the weights cannot be read.
    """
    revision = server.get("revision")
    commit = revision if revision and _COMMIT.fullmatch(revision) else None
    try:
        found, drafter = _weights(server.get("model_path"), server), _drafter(server)
    except Unavailable:
        if not more.get("weights"):
            raise
        found, drafter = None, None
    known = (found or commit) and (drafter or not _drafts(server))
    if not (known or more.get("weights")):
        raise Misuse(
            "the weights cannot be identified, and the disk may have pages of others: give "
            '"namespace": {"weights": "v1"} in --hicache-storage-backend-extra-config, with a new '
            "text for each version; or --revision with a commit, or a folder as --model-path"
        )
    return found, drafter, commit


def _weights(path: str | None, server: Mapping[str, Any]) -> str | None:
    """Returns the content of the model's weights; None where they are not to be seen."""
    if not path or (server.get("load_format") or "auto") not in _FROM_FILES:
        return None
    where = folder_of(path, server.get("revision"), server.get("download_dir"))
    return None if where is None else content(where)


def _drafts(server: Mapping[str, Any]) -> str | None:
    """Returns the path of a drafter with weights of its own; None where there is none."""
    path = server.get("speculative_draft_model_path")
    return None if not path or path == server.get("model_path") else str(path)


def _drafter(server: Mapping[str, Any]) -> str | None:
    """Returns the identity of a drafter's weights; None if they cannot be read."""
    path, revision = _drafts(server), server.get("speculative_draft_model_revision")
    if path is None:
        return None
    form = server.get("speculative_draft_load_format") or server.get("load_format") or "auto"
    where = folder_of(path, revision, server.get("download_dir"))
    found = None if where is None or form not in _FROM_FILES else content(where)
    commit = revision if revision and _COMMIT.fullmatch(revision) else None
    return found or (commit and f"{path} {commit}")


def _options(server: Mapping[str, Any]) -> dict[str, object]:
    """Returns the options that KV depends on, but for those that count by themselves."""
    folder = str(server.get("model_path") or "")
    apart = _OUT | {"lora_paths", "speculative_draft_model_path"}
    return {
        name: of_file(value) if name in _BY_CONTENT else plain(value, folder)
        for name, value in server.items()
        if name not in apart and not name.startswith("_")
    }


def _variables() -> dict[str, str]:
    """Returns the set environment variables of SGLang on which KV may depend."""
    known = dir(INTERFACE.get("envs"))
    return {
        name: os.environ[name]
        for name in sorted(known)
        if name in os.environ and not server_args.ENVIRONMENT_OUT.fullmatch(name)
    }


def adapters_of(server: Mapping[str, Any]) -> list[list[str]] | None:
    """Returns the adapters of the start by content: SGLang's keys have their names and paths.

    One that is loaded later has a key of its own each time.

    Args:
        server: As in `identity_of`.

    Raises:
        Unsupported: The files of one are not to be seen.
    """
    if not server.get("enable_lora"):
        return None
    found = []
    for one in server.get("lora_paths") or ():
        name, path = str(one.lora_name), str(one.lora_path)
        where = folder_of(path)
        weights = None if where is None else content(where)
        if weights is None:
            raise Unsupported(
                f"adapter {name!r} at {path!r}: its files cannot be read, so another adapter "
                "of this name would read its pages; give --lora-paths a folder"
            )
        found.append([name, weights])
    return sorted(found)
