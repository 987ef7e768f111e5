"""A copy that is too long for the driver's queue: its parts are queued one after the other."""

from collections.abc import Callable, Sequence

from blockyard.crane.copiers import Landed
from blockyard.crane.copiers.stream import CopyStream, Part
from blockyard.shared.plan import Cause

__all__ = ["Parts"]


class Parts:
    """The receipt for all parts of a copy.

    Args:
        stream: Where they are queued, with nothing else between them.
        parts: All of them, in order.
        go_on: Is called to queue more of them, where there is room.
    """

    def __init__(
        self, stream: CopyStream, parts: Sequence[Part], go_on: Callable[[CopyStream], object]
    ) -> None:
        self._stream = stream
        self._go_on = go_on
        self._parts = parts
        self._ended = self._good = 0
        """Parts that have ended, and the leading good blocks of them."""
        self._cause: Cause | None = None
        for number, part in enumerate(parts, stream.last + 1):
            # A copy the other way with a common slot waits for it, though it is not queued yet.
            stream.mark(part, number)
        stream.later.extend(parts)

    def poll(self) -> Landed | None:
        """Returns how they have ended, once all have; the leading good blocks count."""
        self._go_on(self._stream)
        while self._ended < len(self._parts):
            landed = self._parts[self._ended].poll()
            if landed is None:
                return None
            good, cause = self._good, self._cause
            if landed.cause is Cause.LOST:
                good, cause = 0, Cause.LOST
            elif cause is None:
                good, cause = good + landed.good, landed.cause
            # At once, so that each counts once whatever interrupts.
            self._good, self._cause, self._ended = good, cause, self._ended + 1
        return Landed(self._good, self._cause)
