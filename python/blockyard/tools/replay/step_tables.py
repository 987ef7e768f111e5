"""What the attention kernel of a step reads: the batch's block tables, and the slot mapping."""

import numpy as np
from numpy.typing import NDArray

from blockyard._core import Lease
from blockyard.scheduling.engine import Step
from blockyard.yard.cache import KVCache

__all__ = ["Tables"]


class Tables:
    """A dense row for each sequence in the engine; a step writes new cells only.

    Args:
        cache: Has the blocks.
        rows: The most sequences.
        columns: The most blocks of a sequence.
        tokens: The tokens of a step, for the slot mapping, which grows where that is too few.
    """

    def __init__(self, cache: KVCache, *, rows: int, columns: int, tokens: int) -> None:
        self._cache = cache
        self._cells = np.zeros((rows, columns), np.int32)
        self._mapping = np.zeros(tokens, np.int64)
        self._leases: list[Lease] = []
        self._seats: list[int] = []
        self._rows: dict[int, int] = {}

    def bind(self, seat: int, lease: Lease) -> None:
        """Adds a row for a sequence."""
        self._rows[seat] = len(self._seats)
        self._seats.append(seat)
        self._leases.append(lease)

    def leave(self, seat: int) -> None:
        """Drops a row; the last row takes its place, so that other cells stay where they are."""
        row, last = self._rows.pop(seat), len(self._seats) - 1
        seat, lease = self._seats.pop(), self._leases.pop()
        if row != last:
            self._rows[seat], self._seats[row], self._leases[row] = row, seat, lease
            self._cells[row] = self._cells[last]

    def update(self, step: Step) -> None:
        """Writes the cells and the mapping that a step needs."""
        self._cache.block_tables(self._leases, out=self._cells, cells="changed")
        tokens = int(step.counts.sum())
        if tokens > len(self._mapping):
            self._mapping = np.zeros(2 * tokens, np.int64)
        self._cache.slot_mapping(step.leases, step.positions, step.counts, out=self._mapping)

    def slots(self, seat: int, first: int, end: int | None) -> NDArray[np.int32]:
        """Returns the device slots of blocks [first, end) as of the last `update`."""
        return self._cells[self._rows[seat], first:end].copy()
