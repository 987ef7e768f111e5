"""What a scheduler is asked from outside: whether it lives, why requests wait, and how long."""

from typing import Final, Literal, NamedTuple, TypeAlias

from blockyard.scheduling.lifecycle import Lifecycle
from blockyard.scheduling.queue import WaitingQueue
from blockyard.scheduling.seats import Seats
from blockyard.scheduling.stall import Stalls
from blockyard.shared.stall import Rule
from blockyard.shared.timings import Reading, StepTimes
from blockyard.yard.cache import KVCache

__all__ = ["REASONS", "Monitor", "Reason", "Waited"]

Reason: TypeAlias = Literal["room", "seat", "prefix", "parked", "held"]
"""Why a request waits: blocks, a seat or a turn, another request that computes or loads its prefix,
blocks for one that is parked, or a reader."""
REASONS: Final[tuple[Reason, ...]] = ("room", "seat", "prefix", "parked", "held")
"""All of them."""


class Waited(NamedTuple):
    """How long requests have waited, in seconds."""

    begun: Reading
    """Those that began: since they were added, or lost their work."""
    resumed: Reading
    """Those that resumed: since they were parked."""


class Monitor:
    """Questions for an exporter. Any thread may ask, and none changes anything.

    Args:
        cache: The cache that the scheduler drives.
        queue: What waits.
        seats: What runs or stops.
        lifecycle: Whether the engine lives.
        stalls: What stands still.
        times: How long its parts of a step take; None where it does not measure.
    """

    def __init__(
        self,
        cache: KVCache,
        queue: WaitingQueue,
        seats: Seats,
        lifecycle: Lifecycle,
        stalls: Stalls,
        times: StepTimes | None,
    ) -> None:
        self.cache = cache
        self._queue = queue
        self._seats = seats
        self._lifecycle = lifecycle
        self._stalls = stalls
        self._times = times

    @property
    def failed(self) -> str | None:
        """Why the engine is dead; None while it lives."""
        return self._lifecycle.dead

    def spoken(self) -> dict[Rule, str]:
        """Returns what stands still, by its rule, the surest first."""
        return self._stalls.spoken()

    def waiting(self) -> dict[Reason, int]:
        """Returns how many requests wait, by the reason.

        The requests that were neither parked, held nor put aside wait for one thing: a seat where
        none is free, else room where the first of them was refused some, else their turn, which is
        counted as a seat.
        """
        found = dict.fromkeys(REASONS, 0)
        counts = self._queue.count()
        found["parked"], found["prefix"] = counts.parked, counts.aside
        found["held"] = counts.held
        rest = counts.waiting - counts.parked - counts.aside - counts.held
        found["room" if self._stalls.refuses and not self._seats.full else "seat"] = max(rest, 0)
        return found

    def steps(self) -> dict[str, Reading]:
        """Returns how long each part of a step took, the cache's too, in seconds."""
        own = self._times.read() if self._times is not None else {}
        return own | self.cache.step_times()

    def waited(self) -> Waited | None:
        """Returns how long requests have waited; None where it does not measure."""
        waits = self._queue.waits
        return None if waits is None else Waited(waits.begun.read(), waits.resumed.read())
