"""What of the blocks that an engine has free still holds the KV of requests that have ended."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from blockyard._core import Keys, Misuse
from blockyard.connectors.orders import Ids
from blockyard.shared.validate import integer, shown

__all__ = ["FreedBlocks"]

_KEY: Final = 32
_FEW: Final = 32
"""Ids up to which NumPy's calls would cost more than a look at each."""


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
        self._keys = np.zeros((blocks, _KEY), np.uint8)
        self._above = np.zeros((blocks, _KEY), np.uint8)
        """The key of the block before each in its sequence; zeros for the first."""

    def add(self, keys: Keys, ids: Ids) -> None:
        """Takes the full blocks of a request that has ended, from its first on.

        Raises:
            Misuse: An id is out of range, here as in all calls.
        """
        count = min(len(keys), len(ids))
        if not count:
            return
        self._mark(ids[:count], known=True)
        at = np.array(ids[:count], np.int64)
        own = np.frombuffer(bytes(keys), np.uint8).reshape(-1, _KEY)[:count]
        self._keys[at] = own
        self._above[at[0]] = 0
        self._above[at[1:]] = own[:-1]

    def forget(self, ids: Ids) -> None:
        """Takes note that these are given to others."""
        self._mark(ids, known=False)

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

    def take(self, ids: Ids) -> Iterator[tuple[bytes, NDArray[np.integer[Any]], int]]:
        """Returns what is known of blocks that are evicted next, and forgets it.

        Args:
            ids: Free blocks of the engine, the next victim first.

        Yields:
            The keys of a row of blocks, 32 bytes each, with that of the block before them; the ids;
            and the place of the first id among the keys, 1, or 0 where the first key is its own.
        """
        self.check(ids)
        known = self._known
        # The end of a sequence is evicted before its start.
        found = [one for one in ids if known[one]][::-1]
        if not found:
            return
        self._mark(found, known=False)
        at = np.array(found, np.int64)
        follows = (self._above[at[1:]] == self._keys[at[:-1]]).all(axis=1)
        for row in np.split(at, np.flatnonzero(~follows) + 1):
            above = self._above[row[0]]
            first = int(above.any())
            yield above.tobytes() * first + self._keys[row].tobytes(), row, first

    def check(self, *each: Ids) -> None:
        """Refuses what are no ids of the engine.

        Raises:
            Misuse: One is no integer, or out of range.
        """
        blocks = len(self._known)
        for ids in each:
            if len(ids) > _FEW:
                given = np.asarray(ids)
                if given.dtype.kind in "iu" and given.min() >= 0 and given.max() < blocks:
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

    def _mark(self, ids: Ids, *, known: bool) -> None:
        self.check(ids)
        marks = self._known
        for one in ids:
            marks[one] = known
