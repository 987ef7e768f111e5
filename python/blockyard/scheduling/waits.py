"""How long requests wait, for a histogram: since they were queued until they have a seat."""

from typing import Final

from blockyard.scheduling.request import Request
from blockyard.shared.timings import WAITS, Clock, Histogram

__all__ = ["BEGUN", "Waits"]

BEGUN: Final = ("room", "seat", "prefix")
"""What keeps a request from its begin: blocks; a seat or its turn; another request that computes or
loads its prefix."""


class Waits:
    """Notes when requests are queued, and counts their waits when they begin.

    Args:
        clock: Seconds. Nothing is decided by it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock: Final = clock
        self.begun: Final = {why: Histogram(WAITS) for why in BEGUN}
        """Those that had no work kept, since they were added or had to be recomputed, by what kept
        them last."""
        self.resumed: Final = Histogram(WAITS)
        """Those that were parked, since then."""

    def queued(self, entry: Request) -> None:
        """Notes when a request has come; one that was held and is pushed again waits still."""
        if entry.queued_at is None:
            entry.queued_at = self._clock()

    def seated(self, entry: Request) -> None:
        """Counts the wait of a request that has a lease now."""
        if entry.queued_at is not None:
            # It has begun to come back as often since it was parked: 0 for what begins anew.
            times = self.resumed if entry.resumes else self.begun[entry.waited_for]
            times.add(self._clock() - entry.queued_at)
            entry.queued_at = None
        entry.waited_for = "seat"
