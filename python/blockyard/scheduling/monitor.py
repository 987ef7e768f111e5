"""What a scheduler is asked from outside: whether it lives, and how long its requests wait."""

from typing import NamedTuple

from blockyard.scheduling.lifecycle import Lifecycle
from blockyard.scheduling.queue import WaitingQueue
from blockyard.scheduling.stall import Rule, Stalls
from blockyard.shared.timings import Reading, StepTimes
from blockyard.yard.cache import KVCache

__all__ = ["Monitor", "Waited"]


class Waited(NamedTuple):
    """How long requests have waited, in seconds."""

    begun: dict[str, Reading]
    """Those that began, by what kept them last: since they were added, or lost their work."""
    resumed: Reading
    """Those that resumed: since they were parked."""


class Monitor:
    """Questions for an exporter. Any thread may ask, and none changes anything.

    Args:
        cache: The cache that the scheduler drives.
        queue: What waits.
        lifecycle: Whether the engine lives.
        stalls: What stands still.
        times: How long its parts of a step take; None where it does not measure.
    """

    def __init__(
        self,
        cache: KVCache,
        queue: WaitingQueue,
        lifecycle: Lifecycle,
        stalls: Stalls,
        times: StepTimes | None,
    ) -> None:
        self.cache = cache
        self._queue = queue
        self._lifecycle = lifecycle
        self._stalls = stalls
        self._times = times

    @property
    def failed(self) -> str | None:
        """Why the engine is dead; None while it lives."""
        return self._lifecycle.dead

    def stall_messages(self) -> dict[Rule, str]:
        """Returns what stands still, by its rule, the surest first."""
        return self._stalls.stall_messages()

    def steps(self) -> dict[str, Reading]:
        """Returns how long each part of a step took, the cache's too, in seconds."""
        own = self._times.read() if self._times is not None else {}
        return own | self.cache.step_times()

    def waited(self) -> Waited | None:
        """Returns how long requests have waited; None where it does not measure."""
        waits = self._queue.waits
        if waits is None:
            return None
        begun = {why: times.read() for why, times in waits.begun.items()}
        return Waited(begun, waits.resumed.read())
