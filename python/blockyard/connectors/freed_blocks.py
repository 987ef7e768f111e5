"""What of the blocks that an engine has free still holds the KV of requests that have ended."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np

from blockyard._core import Keys, Misuse
from blockyard.connectors.orders import Ids
from blockyard.shared.validate import integer, shown

__all__ = ["FreedBlocks"]

_KEY: Final = 32
_WORDS: Final = _KEY // 8
_INT: Final = {int}
_NONE: Final = bytes(_KEY)
"""In place of the key before the first block."""


class FreedBlocks:
    """The blocks of ended requests, by the engine's ids, until the engine writes them again.

    An engine evicts some of them next. It names those, and gets their keys for a stow. It takes 65
    bytes for each of the engine's blocks.

    Args:
        blocks: The blocks that the engine gives out.
    """

    def __init__(self, blocks: int) -> None:
        # One by one, in Python: a step has few ids, and NumPy's calls would cost more.
        self._known = bytearray(blocks)
        # Both keys of a block are beside each other, as they are read together.
        pairs = np.zeros((blocks, 2, _KEY), np.uint8)
        self._words = pairs.reshape(blocks, -1).view(np.uint64)
        self._above, self._keys = pairs[:, 0], pairs[:, 1]
        """The key of the block before each in its sequence, zeros for the first; and its own."""

    def add(self, keys: Keys, ids: Ids) -> None:
        """Takes the full blocks of a request that has ended, from its first on.

        Raises:
            Misuse: An id is out of range.
        """
        count = min(len(keys), len(ids))
        if not count:
            return
        self.check(ids[:count])
        for one in ids[:count]:
            self._known[one] = True
        at = np.array(ids[:count], np.int64)
        own = np.frombuffer(bytes(keys), np.uint8).reshape(-1, _KEY)[:count]
        self._keys[at] = own
        self._above[at[0]] = 0
        self._above[at[1:]] = own[:-1]

    def forget(self, ids: Ids) -> None:
        """Takes note that these, which were checked, are given to others."""
        known = self._known
        for one in ids:
            known[one] = False

    def forget_keys(self, keys: bytes) -> None:
        """Forgets blocks of these keys, 32 bytes each, and all that stands on any of them."""
        named = {keys[at : at + _KEY] for at in range(0, len(keys), _KEY)}
        there = [at for at, known in enumerate(self._known) if known]
        before = -1
        while there and len(named) > before:
            before = len(named)
            for at in there:
                own = self._keys[at].tobytes()
                if own in named or self._above[at].tobytes() in named:
                    named.add(own)
                    self._known[at] = False

    def clear(self) -> None:
        """Forgets all."""
        self._known = bytearray(len(self._known))

    def take(self, ids: Ids) -> Iterator[tuple[bytes, list[int], int]]:
        """Returns what is known of blocks that are evicted next, and forgets it.

        Args:
            ids: Free blocks of the engine, which were checked, the next victim first.

        Yields:
            The keys of a row of blocks, 32 bytes each, with that of the block before them; the ids;
            and the place of the first id among the keys, 1, or 0 where the first key is its own.
        """
        known = self._known
        # The end of a sequence is evicted before its start.
        found = [one for one in ids if known[one]][::-1]
        if not found:
            return
        self.forget(found)
        at = np.array(found, np.int64)
        words = self._words.take(at, 0)
        above, own = words[:, :_WORDS], words[:, _WORDS:]
        follows = (above[1:] == own[:-1]).all(axis=1)
        starts = [0, *(np.flatnonzero(~follows) + 1).tolist(), len(found)]
        for start, end in pairwise(starts):
            before, keys = above[start].tobytes(), own[start:end].tobytes()
            first = int(before != _NONE)
            yield before * first + keys, found[start:end], first

    def check(self, *each: Ids) -> None:
        """Refuses what are no ids of the engine.

        Raises:
            Misuse: One is no integer, or out of range.
        """
        blocks = len(self._known)
        for ids in each:
            if not len(ids):
                continue
            # Calls of C for all at once: each step of a decode comes by.
            if isinstance(ids, np.ndarray):
                if ids.dtype.kind in "iu" and ids.min() >= 0 and ids.max() < blocks:
                    continue
            elif {*map(type, ids)} == _INT and min(ids) >= 0 and max(ids) < blocks:
                continue
            for one in ids:
                integer("ids", one, least=0, most=blocks - 1)

    def row(self, keys: Keys, ids: Ids, first: int) -> tuple[Keys, Ids, int] | None:
        """What may be stowed of a request, with the ids copied; None for nothing.

        Args:
            keys: The keys of its full blocks.
            ids: The ids of those from block `first` on, or more.
            first: The block that the first id is for.

        Raises:
            Misuse: A number is out of range, or an id comes twice.
        """
        first = integer("first", first, least=0, most=len(keys))
        self.check(ids)
        own = ids[: len(keys) - first]
        if len(own) > 1 and len(set(own)) < len(own):
            raise Misuse(f"ids = {shown(ids)}: one comes twice, and an id has one block")
        return (keys, np.array(own), first) if len(own) else None
