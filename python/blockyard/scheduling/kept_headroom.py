"""The headroom of the running batch: the policy's wish, and the blocks kept for it."""

from collections.abc import Sequence
from typing import Final

from blockyard.scheduling.batch import Batch
from blockyard.scheduling.headroom import Asked, HeadroomPolicy
from blockyard.scheduling.seats import Seat
from blockyard.yard.cache import KVCache

__all__ = ["KeptHeadroom"]

_COUNTED: Final = 16
"""Steps after which it is counted again how much the rows can grow."""


class KeptHeadroom(Asked):
    """Asks the policy for the running batch, and lowers the headroom when a row leaves.

    Args:
        cache: The cache that keeps it.
        batch: The running rows, and how much they can grow.
        policy: The policy.
    """

    def __init__(self, cache: KVCache, batch: Batch, policy: HeadroomPolicy) -> None:
        super().__init__(policy)
        self._cache = cache
        self._batch = batch
        self._seats = batch.seats
        self._size = cache.block_size
        self._growth = 0
        self._counted = -1
        """The `flips` of the seats when `_growth` was counted."""

    @property
    def growth(self) -> int:
        """Blocks that all that runs may still need, and was not promised."""
        return self._seats.growth(self._size)

    def wanted(self) -> int:
        """Blocks that the policy wants kept for the growth of the running batch."""
        running = self._seats.growing
        if not running:
            return 0
        blocks = self.headroom(running)
        if not self.capped or not blocks:
            return blocks
        # Between two counts rows have grown a little: more is kept than they need, never less.
        if self._seats.flips != self._counted or not self._batch.number % _COUNTED:
            self._growth, self._counted = self.growth, self._seats.flips
        return min(blocks, self._growth)

    def freed_by(self, rows: Sequence[Seat]) -> int:
        """Blocks that would be kept no more if some rows had left."""
        running = self._seats.growing - len(rows)
        blocks = self.headroom(running) if running else 0
        if self.capped:
            blocks = min(blocks, self._seats.growth(self._size, rows))
        return max(self._cache.room().headroom - blocks, 0)

    def lower(self) -> None:
        """Lowers the headroom at once, as fewer sequences run than before (R1-5)."""
        kept = self._cache.room().headroom
        self._cache.set_headroom(min(kept, self.wanted()))
