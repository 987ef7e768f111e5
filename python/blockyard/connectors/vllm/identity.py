"""Whose KV it is: the namespace of an engine, and the keys of its requests.

vLLM's block hashes cover the tokens, the media and their positions, and prompt embeddings. They are
hashed once more here, under a root that says what else the KV depends on: each part with its kind
and its length, so that no adapter's name reads as a salt.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from blockyard._core import Unavailable, Unsupported
from blockyard.shared.weights import content, files_of, stated
from blockyard.yard.config import Config

__all__ = ["HASH_BYTES", "Adapter", "Root", "Start", "fingerprint_of", "namespace_of"]

HASH_BYTES: Final = 32
"""Bytes of a collision-free block hash: vLLM's `sha256` and `sha256_cbor`."""
_BLOCK: Final = hashlib.sha256().block_size
Start: TypeAlias = Any
"""The hash's state before the blocks of a request."""


_ZERO: Final = 10**18 // 2
"""Nanoseconds: the years before 1986 are no times of change."""
Seen: TypeAlias = tuple[str, int, int, int, int]
"""As `files_of` has one."""


class _Seen(NamedTuple):
    """An adapter as it was when it was loaded."""

    version: int
    """How often it was loaded again."""
    files: list[Seen]
    content: str


class Adapter(Protocol):
    """What of vLLM's `LoRARequest` its KV depends on."""

    lora_name: str
    lora_int_id: int
    lora_path: str
    load_inplace: bool


def namespace_of(
    said: Mapping[str, Mapping[str, object]], more: Mapping[str, str]
) -> dict[str, str]:
    """Returns what all KV of an engine depends on, as `Config` has it.

    Args:
        said: vLLM's model, weights, dtype, layout and parallel ranks.
        more: What the operator adds; of `weights` that is a path, their content.

    Raises:
        Unavailable: There are no weights at that path, or they cannot be read.
    """
    fields = {name: dict(parts) for name, parts in said.items()}
    for name, text in more.items():
        fields.setdefault(name, {})["operator"] = stated(name, text)
    return {name: json.dumps(parts, sort_keys=True, default=str) for name, parts in fields.items()}


def fingerprint_of(config: Config) -> str:
    """Returns what the workers and the scheduler's half must have alike.

    A model may write into its configuration as it is loaded, and the scheduler has its own copy.
    """
    named = dict(config.namespace or ())
    named.pop("model", None)
    return replace(config, namespace=named).fingerprint


class Root:
    """What comes before the block hashes of an engine's requests.

    Args:
        namespace: As in `Config`.
    """

    def __init__(self, namespace: Iterable[tuple[str, str]]) -> None:
        self._parts = [part.encode() for pair in sorted(namespace) for part in pair]
        self._started = time.time_ns()
        self._states: dict[tuple[bytes, ...], Start] = {}
        self._seen: dict[tuple[str, ...], _Seen] = {}
        """Of each adapter its files as they were when they were read."""

    def start(self, adapter: Adapter | None, salt: str | None) -> Start | None:
        """Returns what a new request's keys start with; it is the request's for its whole life.

        Args:
            adapter: Its LoRA adapter.
            salt: Its cache salt.

        Returns:
            None where nobody can say which weights its adapter has: its files are not to be seen,
            or were changed since it was seen first, or since the engine started where adapters may
            come at run time. Whether vLLM has read them again is not told here.
        """
        parts = [b"blockyard vLLM 3", *self._parts]
        if adapter is not None:
            seen = self._read(adapter)
            if seen is None:
                return None
            # Not its name, path or number: vLLM's hashes have those that count.
            parts += [b"lora", _bytes(seen.content), _bytes(str(seen.version))]
        if salt is not None:
            parts += [b"salt", _bytes(salt)]
        asked = tuple(parts)
        state = self._states.get(asked)
        if state is None:
            said = b"".join(len(part).to_bytes(8, "little") + part for part in asked)
            # A whole block of the hash, so that it is not hashed again for every key.
            state = hashlib.sha256(hashlib.sha256(said).digest().ljust(_BLOCK, b"\0"))
            if len(self._states) >= 4096:  # noqa: PLR2004 - salts are the users' to make
                self._states.clear()
            self._states[asked] = state
        return state

    def _read(self, adapter: Adapter) -> "_Seen | None":
        """Returns an adapter's identity when it was loaded; None if unknown."""
        name = adapter.lora_name, adapter.lora_path, str(adapter.lora_int_id)
        files, seen = files_of(adapter.lora_path), self._seen.get(name)
        if files is None or self._is_newer(files):
            return None
        if seen is None or adapter.load_inplace:
            try:
                found = content(adapter.lora_path)
            except Unavailable:
                return None
            if found is None or files != files_of(adapter.lora_path):
                return None
            version = (0 if seen is None else seen.version) + bool(adapter.load_inplace)
            seen = _Seen(version, files, found)
            self._seen[name] = seen
        return seen if files == seen.files else None

    def _is_newer(self, files: list[Seen]) -> bool:
        """Whether files may be others than those that vLLM has loaded."""
        loads = os.environ.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "0").lower() in {"1", "true"}
        return loads and any(
            # A time of zero, as reproducible layers have, says nothing.
            (changed if changed > _ZERO else touched) >= self._started
            for _, _, changed, touched, _ in files
        )

    def keys(self, hashes: Iterable[bytes], start: Start) -> bytes:
        """Returns the keys of blocks, 32 bytes each.

        Args:
            hashes: vLLM's block hashes.
            start: Of their request.

        Raises:
            Unsupported: A hash is too short to identify its tokens.
        """
        keys = []
        for one in hashes:
            if len(one) != HASH_BYTES:
                raise Unsupported(
                    f"a block hash has {len(one)} bytes: start vLLM with "
                    "--prefix-caching-hash-algo sha256"
                )
            hasher = start.copy()
            hasher.update(one)
            keys.append(hasher.digest())
        return b"".join(keys)


def _bytes(text: str) -> bytes:
    """Half a character of UTF-16 is text, too: JSON lets a client send it."""
    return text.encode("utf-8", "surrogatepass")
