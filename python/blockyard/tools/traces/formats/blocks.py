"""Numbers for blocks: equal numbers have equal tokens, in the block and in all before it."""

from collections.abc import Hashable, Sequence
from hashlib import blake2b
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from blockyard.tools.traces.memory_check import Room

__all__ = ["Numbering"]

_EACH: Final = 200
"""Bytes that a known block takes. A table that is full is copied into one of twice the size."""


class Numbering:
    """Numbers blocks in the order in which they first appear, by a hash of all tokens so far.

    Only the numbers get into a trace, and no text can be found from them. What grows is this table:
    with the distinct blocks, not with the file.

    Args:
        block_size: Tokens per block.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._known: dict[Hashable, int] = {}
        self._room = Room(
            _EACH,
            f"distinct blocks of {block_size} tokens; give a larger --block-size, or --requests "
            "for fewer requests",
        )

    def __len__(self) -> int:
        """Returns the number of distinct blocks."""
        return len(self._known)

    def of_tokens(self, tokens: Sequence[int] | NDArray[Any], salt: str = "") -> list[int]:
        """Returns a number for each block of a prompt; the last may be of fewer tokens.

        Raises:
            TraceError: There is no memory for more blocks.
        """
        raw = np.asarray(tokens, "<i8").tobytes()
        step = 8 * self.block_size
        key = blake2b(salt.encode(), digest_size=16).digest() if salt else b""
        keys = []
        for at in range(0, len(raw), step):
            # Keyed by the block before, so equal keys have equal prefixes.
            key = blake2b(raw[at : at + step], key=key, digest_size=16).digest()
            keys.append(key)
        return self.of_keys(keys)

    def of_keys(self, keys: Sequence[Hashable]) -> list[int]:
        """Returns a number for each key.

        Raises:
            TraceError: There is no memory for more blocks.
        """
        known = self._known
        numbers = [known.setdefault(key, len(known)) for key in keys]
        self._room.grown(len(known))
        return numbers
