"""How many requests are in each state, and what those wait for that wait."""

from typing import Final

from blockyard.scheduling.lifecycle import Lifecycle
from blockyard.scheduling.queue import WaitingQueue
from blockyard.scheduling.request import RequestState
from blockyard.scheduling.seats import Seats
from blockyard.scheduling.stall import Stalls
from blockyard.shared.stats import Stat

__all__ = ["Census"]

_SEATED: Final = {
    RequestState.LOADING: "their blocks come up from below",
    RequestState.PREFILL: "parts of their prompt are not computed yet",
    RequestState.DECODE: "they sample a token in each step",
    RequestState.STOPPING: "the engine's ack to their stop has not come",
}
_REASONS: Final = {
    "room": "blocks",
    "seat": "a seat, or their turn",
    "prefix": "another request that computes or loads their prefix",
    "parked": "blocks, with their work kept",
    "held": "a reader: `hold` was called",
}


class Census:
    """Counts the requests that have not ended. Any thread may ask, and nothing is changed.

    It takes time for each seat and for each request that waits for another one's prefix, not for
    each that waits.

    Args:
        queue: What waits.
        seats: What runs or stops.
        lifecycle: All that has not ended.
        stalls: Whether a request was refused room.
    """

    SCHEMA: Final = (
        Stat(
            "waiting",
            "requests",
            "gauge",
            "waiting_requests",
            "requests that have no seat: new, parked, or to be recomputed",
        ),
        *(
            Stat(f"waiting_{why}", "requests", "gauge", f"waiting_requests{{reason={why}}}", text)
            for why, text in (
                (why, f"of these, requests that wait for {what}") for why, what in _REASONS.items()
            )
        ),
        Stat("new", "requests", "gauge", "requests{state=waiting}", "requests that never ran"),
        *(
            Stat(
                f"in_{state}",
                "requests",
                "gauge",
                f"requests{{state={state}}}",
                f"requests with a seat: {what}",
            )
            for state, what in _SEATED.items()
        ),
        Stat("parked", "requests", "gauge", "requests{state=parked}", "requests that are parked"),
        Stat(
            "recompute",
            "requests",
            "gauge",
            "requests{state=recompute}",
            "preempted requests without a seat, whose work is computed again",
        ),
    )
    """Name, unit, kind, metric and meaning of each number."""

    def __init__(
        self, queue: WaitingQueue, seats: Seats, lifecycle: Lifecycle, stalls: Stalls
    ) -> None:
        self._queue = queue
        self._seats = seats
        self._lifecycle = lifecycle
        self._stalls = stalls

    def read(self) -> dict[str, int]:
        """Returns the numbers of `SCHEMA`."""
        seated = dict.fromkeys(_SEATED, 0)
        for seat in self._seats.bound():
            # One that has ended is no request any more. Where another thread asks, one may have its
            # seat a moment before its state.
            if seat.request.state in seated:
                seated[seat.request.state] += 1
        waiting = max(len(self._lifecycle) - sum(seated.values()), 0)
        parked, recompute = len(self._queue.parked), len(self._queue.recomputed)
        return {
            "waiting": waiting,
            **{f"waiting_{why}": count for why, count in self._reasons(waiting).items()},
            "new": max(waiting - parked - recompute, 0),
            **{f"in_{state}": count for state, count in seated.items()},
            "parked": parked,
            "recompute": recompute,
        }

    def _reasons(self, waiting: int) -> dict[str, int]:
        """How many wait for what; each counts once.

        Those that were neither parked, held nor put aside wait for one thing: a seat where none is
        free, else room where the first of them was refused some, else their turn, which is counted
        as a seat. Samples that are forked of another one wait for its prompt.
        """
        counts = self._queue.count()
        queued = counts.waiting - counts.parked - counts.aside - counts.held - counts.too_large
        refused = self._stalls.refuses and not self._seats.full
        found = dict.fromkeys(_REASONS, 0)
        found["parked"], found["held"] = counts.parked, counts.held
        found["room" if refused else "seat"] = max(queued, 0)
        found["room"] += counts.too_large
        found["prefix"] = max(waiting - sum(found.values()), 0)
        return found
