"""Whose KV it is: the namespace of an engine, and the keys of its requests.

vLLM's block hashes cover the tokens, the media and their positions, and prompt embeddings. They are
hashed once more here, under a root that says what else the KV depends on: each part with its kind
and its length, so that no adapter's name reads as a salt.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

from blockyard._core import Unsupported

__all__ = ["HASH_BYTES", "Adapter", "Root", "namespace_of"]

HASH_BYTES: Final = 32
"""Bytes of a block hash that can stand for its tokens: vLLM's `sha256` and `sha256_cbor`."""
_BLOCK: Final = hashlib.sha256().block_size


class Adapter(Protocol):
    """What of vLLM's `LoRARequest` its KV depends on."""

    lora_name: str
    lora_int_id: int
    lora_path: str


def namespace_of(
    said: Mapping[str, Mapping[str, object]], more: Mapping[str, str]
) -> dict[str, str]:
    """Returns what all KV of an engine depends on, as `Config` has it.

    Args:
        said: What vLLM says of its model, weights, dtype, layout and parallel ranks.
        more: What the operator adds.
    """
    fields = {name: dict(parts) for name, parts in said.items()}
    for name, text in more.items():
        fields.setdefault(name, {})["operator"] = text
    return {name: json.dumps(parts, sort_keys=True, default=str) for name, parts in fields.items()}


class Root:
    """What comes before the block hashes of an engine's requests.

    Args:
        namespace: As in `Config`.
    """

    def __init__(self, namespace: Iterable[tuple[str, str]]) -> None:
        self._parts = [part.encode() for pair in sorted(namespace) for part in pair]
        self._states: dict[tuple[bytes, ...], Any] = {}
        self._versions: dict[tuple[str, int], int] = {}

    def reloaded(self, adapter: Adapter) -> None:
        """Says that an adapter has other weights under its old name from now on."""
        name = adapter.lora_name, adapter.lora_int_id
        self._versions[name] = self._versions.get(name, 0) + 1

    def keys(self, hashes: Iterable[bytes], adapter: Adapter | None, salt: str | None) -> bytes:
        """Returns the keys of blocks, 32 bytes each.

        Args:
            hashes: vLLM's block hashes.
            adapter: The request's LoRA adapter.
            salt: Its cache salt.

        Raises:
            Unsupported: A hash is too short to stand for its tokens.
        """
        state = self._state(adapter, salt)
        keys = []
        for one in hashes:
            if len(one) != HASH_BYTES:
                raise Unsupported(
                    f"a block hash has {len(one)} bytes: start vLLM with "
                    "--prefix-caching-hash-algo sha256"
                )
            hasher = state.copy()
            hasher.update(one)
            keys.append(hasher.digest())
        return b"".join(keys)

    def _state(self, adapter: Adapter | None, salt: str | None) -> Any:
        parts = [b"blockyard vLLM 1", *self._parts]
        if adapter is not None:
            version = self._versions.get((adapter.lora_name, adapter.lora_int_id), 0)
            told = adapter.lora_name, adapter.lora_path, str(adapter.lora_int_id), str(version)
            parts += [b"lora", *(one.encode() for one in told)]
        if salt is not None:
            parts += [b"salt", salt.encode()]
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
