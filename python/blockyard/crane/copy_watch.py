"""How long a rank's flights take between each two tiers, for a histogram."""

from collections.abc import Iterable, Mapping
from typing import Final

from blockyard.crane.copiers import Pair
from blockyard.crane.lanes import Flight
from blockyard.shared.plan import Plan
from blockyard.shared.timings import Clock, Copied, CopyTimes, checked_clock

__all__ = ["CopyWatch"]


class CopyWatch:
    """Notes when flights are submitted, and counts them when they are reported.

    Copies within one tier are a block or two, and are left out.

    Args:
        pairs: The two tiers of each lane.
        block_bytes: Bytes of a block on this rank.
        clock: Seconds. Nothing is decided by it.

    Raises:
        Misuse: The clock does not return seconds.
    """

    def __init__(self, pairs: Iterable[Pair], block_bytes: int, clock: Clock) -> None:
        self._clock: Final = checked_clock(clock)
        self._block_bytes: Final = block_bytes
        self._copied = {pair: CopyTimes() for pair in pairs if pair[0] != pair[1]}
        self._since: dict[int, tuple[Pair, float]] = {}

    def submitted(self, plans: Iterable[Plan]) -> None:
        """Notes when these plans were submitted."""
        now = self._clock()
        for plan in plans:
            pair = plan.source_tier, plan.destination_tier
            if pair in self._copied:
                self._since[plan.flight] = pair, now

    def reported(self, flight: Flight) -> None:
        """Counts a flight that has ended: its time, where all of it came whole."""
        pair, since = self._since.pop(flight.number, (None, 0.0))
        if pair is not None:
            seconds = self._clock() - since if flight.good == flight.blocks else None
            self._copied[pair].add(seconds, flight.good * self._block_bytes)

    def read(self) -> Mapping[Pair, Copied]:
        """Returns what was counted; any thread may ask."""
        return {pair: times.read() for pair, times in self._copied.items()}
