"""How much a scheduler has of everything, and what it has counted."""

from typing import Final

from blockyard.scheduling.batch import Batch
from blockyard.scheduling.census import Census
from blockyard.scheduling.counters import COUNTERS, Counters
from blockyard.scheduling.lifecycle import Lifecycle
from blockyard.scheduling.queue import WaitingQueue
from blockyard.scheduling.seats import Seats
from blockyard.scheduling.stall import Stalls
from blockyard.shared.stats import Stat
from blockyard.yard.cache import KVCache

__all__ = ["SchedulerStats"]


class SchedulerStats:
    """Reads the sizes of a scheduler's parts, and its counters.

    Args:
        cache: The cache that holds the blocks.
        queue: What waits.
        seats: What runs or stops.
        batch: The steps in flight.
        lifecycle: Whether the engine lives.
        stalls: Whether a request was refused room.
        counters: What was counted.
    """

    SCHEMA: Final = (
        *Census.SCHEMA,
        Stat("seats", "seats", "gauge", "seats", "seats that are not free"),
        Stat(
            "stopping",
            "seats",
            "gauge",
            "stopping_seats",
            "seats that wait for the ack of their stop",
        ),
        Stat(
            "headroom",
            "blocks",
            "gauge",
            "headroom_blocks",
            "blocks kept for the growth of the running batch",
        ),
        Stat(
            "pinned_until_reset",
            "blocks",
            "gauge",
            "pinned_until_reset_blocks",
            "device blocks that a failed engine may still write: held until `reset`",
        ),
        *COUNTERS,
    )

    def __init__(
        self,
        cache: KVCache,
        queue: WaitingQueue,
        seats: Seats,
        batch: Batch,
        lifecycle: Lifecycle,
        stalls: Stalls,
        counters: Counters,
    ) -> None:
        self._cache = cache
        self._census = Census(queue, seats, lifecycle, stalls)
        self._seats = seats
        self._batch = batch
        self._lifecycle = lifecycle
        self._counters = counters

    def read(self) -> dict[str, int]:
        """Sizes and counters; `SCHEMA` has units and meanings."""
        sizes = {
            "seats": len(self._seats),
            "stopping": self._seats.stopping,
            "headroom": self._cache.room().headroom,
            "pinned_until_reset": self._pinned_until_reset(),
        }
        return self._census.read() | sizes | self._counters.stats()

    def _pinned_until_reset(self) -> int:
        """Blocks of a dead engine's seats, and those that its steps hold back."""
        if self._lifecycle.dead is None:
            return 0
        return self._lifecycle.pinned + self._batch.held_back
