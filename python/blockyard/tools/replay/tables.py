"""What the attention kernel of a step reads: block tables of the batch, and the slot mapping."""

import numpy as np
from numpy.typing import NDArray

from blockyard._core import Lease
from blockyard.scheduling.engine import Step
from blockyard.yard.cache import KVCache

__all__ = ["Tables"]


class Tables:
    """A row for each sequence that the engine has, dense, of which only new cells are written.

    Args:
        cache: Whose blocks.
        rows: Most sequences.
        columns: Most blocks of one.
        tokens: Tokens of a step, for the slot mapping; it grows where that is too few.
    """

    def __init__(self, cache: KVCache, *, rows: int, columns: int, tokens: int) -> None:
        self._cache = cache
        self._cells = np.zeros((rows, columns), np.int32)
        self._mapping = np.zeros(tokens, np.int64)
        self._leases: list[Lease] = []
        self._seats: list[int] = []
        self._rows: dict[int, int] = {}

    def bind(self, seat: int, lease: Lease) -> None:
        """A sequence comes."""
        self._rows[seat] = len(self._seats)
        self._seats.append(seat)
        self._leases.append(lease)

    def leave(self, seat: int) -> None:
        """It goes. The last row moves into its place, so that the others' cells stay."""
        row, last = self._rows.pop(seat), len(self._seats) - 1
        seat, lease = self._seats.pop(), self._leases.pop()
        if row != last:
            self._rows[seat], self._seats[row], self._leases[row] = row, seat, lease
            self._cells[row] = self._cells[last]

    def update(self, step: Step) -> None:
        """Writes what this step needs."""
        self._cache.block_tables(self._leases, out=self._cells, cells="changed")
        tokens = int(step.counts.sum())
        if tokens > len(self._mapping):
            self._mapping = np.zeros(2 * tokens, np.int64)
        self._cache.slot_mapping(step.leases, step.positions, step.counts, out=self._mapping)

    def slots(self, seat: int, first: int, end: int | None) -> NDArray[np.int32]:
        """Device slots of a sequence's blocks [first, end), as of the last `update`."""
        return self._cells[self._rows[seat], first:end].copy()
