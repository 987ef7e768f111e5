"""A flight that is too long for the driver's queue: its parts are queued one after the other."""

from collections.abc import Callable, Sequence

from blockyard.crane.copiers import Landed
from blockyard.crane.copiers.stream import CopyStream, Part
from blockyard.shared.plan import Cause

__all__ = ["Parts"]


class Parts:
    """The receipt for all of them.

    Args:
        lane: Where they are to be queued, behind one another; nothing else comes between.
        parts: All, in their order.
        go_on: Queues more of them where there is room.
    """

    def __init__(
        self, lane: CopyStream, parts: Sequence[Part], go_on: Callable[[CopyStream], object]
    ) -> None:
        self._lane = lane
        self._go_on = go_on
        self._left = list(parts)
        self._good = 0
        self._cause: Cause | None = None
        for number, part in enumerate(parts, lane.last + 1):
            # Flights the other way that meet one of them wait for it, though it is not queued yet.
            lane.mark(part, number)
        lane.later.extend(parts)

    def poll(self) -> Landed | None:
        """How they have ended, when all have; the leading good blocks count."""
        self._go_on(self._lane)
        while self._left:
            landed = self._left[0].poll()
            if landed is None:
                return None
            self._left.pop(0)
            if landed.cause is Cause.LOST:
                self._good, self._cause = 0, Cause.LOST
            elif self._cause is None:
                self._good += landed.good
                self._cause = landed.cause
        return Landed(self._good, self._cause)
