"""The numbers of a scheduler: sizes, counters, and how long requests wait."""

from typing import Final, NamedTuple

from blockyard.scheduling.admission import Admission
from blockyard.scheduling.counters import COUNTERS
from blockyard.scheduling.lifecycle import Lifecycle
from blockyard.scheduling.request import RequestState
from blockyard.scheduling.shared import Shared
from blockyard.scheduling.stall import Rule, Stalls
from blockyard.shared.stats import Stat
from blockyard.shared.timings import Reading, StepTimes

__all__ = ["Census", "Monitor", "SchedulerStats", "Waited"]

_SEATED: Final = {
    RequestState.LOADING: "their blocks are being copied to the device",
    RequestState.PREFILL: "parts of their prompt are not computed yet",
    RequestState.DECODE: "they sample a token in each step",
    RequestState.STOPPING: "the engine has not acknowledged their stop",
}
_REASONS: Final = {
    "room": "blocks",
    "seat": "a seat, or for their turn in the queue",
    "prefix": "another request that is computing or loading their prefix",
    "parked": "blocks to resume, after parking (preempted, KV kept)",
    "held": "their client to read output, after `pause_decoding`",
}
_LEFT: Final = "requests that the engine has stopped, and whose blocks go to a store: `evacuate`"


class Census:
    """Counts the requests that have not ended. Any thread may ask, and nothing is changed.

    It takes time for each seat and for each request that waits for another one's prefix, not for
    each that waits.

    Args:
        shared: State that all parts of the scheduler share.
        lifecycle: All that has not ended.
        admission: Whether a request was refused room.
    """

    SCHEMA: Final = (
        Stat(
            "waiting",
            "requests",
            "gauge",
            "waiting_requests",
            "requests without a seat (a row of the batch): new, parked, or to be recomputed",
        ),
        *(
            Stat(f"waiting_{why}", "requests", "gauge", f"waiting_requests{{reason={why}}}", text)
            for why, text in (
                (why, f"requests that wait for {what}") for why, what in _REASONS.items()
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
        Stat(
            "parked",
            "requests",
            "gauge",
            "requests{state=parked}",
            "parked requests (preempted, KV kept)",
        ),
        Stat(
            "recompute",
            "requests",
            "gauge",
            "requests{state=recompute}",
            "preempted requests that wait for a seat and will be recomputed",
        ),
        Stat("moving", "requests", "gauge", "requests{state=moving}", _LEFT),
    )
    """Name, unit, kind, metric and meaning of each number."""

    def __init__(self, shared: Shared, lifecycle: Lifecycle, admission: Admission) -> None:
        self._queue = shared.queue
        self._seats = shared.seats
        self._moving = shared.moving
        self._lifecycle = lifecycle
        self._admission = admission

    def read(self) -> dict[str, int]:
        """Returns the numbers of `SCHEMA`."""
        seated = dict.fromkeys(_SEATED, 0)
        for seat in self._seats.bound():
            # One that has ended is no request any more. Where another thread asks, one may have its
            # seat a moment before its state.
            if seat.request.state in seated:
                seated[seat.request.state] += 1
        moving = sum(entry.state is RequestState.MOVING for entry in list(self._moving))
        waiting = max(len(self._lifecycle) - sum(seated.values()) - moving, 0)
        parked, recompute = len(self._queue.parked), len(self._queue.recomputed)
        return {
            "waiting": waiting,
            **{f"waiting_{why}": count for why, count in self._reasons(waiting).items()},
            "new": max(waiting - parked - recompute, 0),
            **{f"in_{state}": count for state, count in seated.items()},
            "parked": parked,
            "recompute": recompute,
            "moving": moving,
        }

    def _reasons(self, waiting: int) -> dict[str, int]:
        """How many wait for what; each counts once.

        Those that were neither parked, held nor put aside wait for one thing: a seat where none is
        free, else room where the first of them was refused some, else their turn, which is counted
        as a seat. Samples that are forked of another one wait for its prompt.
        """
        counts = self._queue.count()
        queued = counts.waiting - counts.parked - counts.aside - counts.held - counts.too_large
        refused = self._admission.refused is not None and not self._seats.full
        found = dict.fromkeys(_REASONS, 0)
        found["parked"], found["held"] = counts.parked, counts.held
        found["room" if refused else "seat"] = max(queued, 0)
        found["room"] += counts.too_large
        found["prefix"] = max(waiting - sum(found.values()), 0)
        return found


class SchedulerStats:
    """Reads the sizes of a scheduler's parts, and its counters.

    Args:
        shared: State that all parts of the scheduler share.
        lifecycle: All that has not ended.
        admission: Whether a request was refused room.
    """

    SCHEMA: Final = (
        *Census.SCHEMA,
        Stat("seats", "seats", "gauge", "seats", "seats (rows of the batch) in use"),
        Stat(
            "stopping",
            "seats",
            "gauge",
            "stopping_seats",
            "seats whose stop the engine has not acknowledged",
        ),
        Stat(
            "headroom",
            "blocks",
            "gauge",
            "headroom_blocks",
            "blocks reserved for the growth of the running batch",
        ),
        Stat(
            "pinned_until_reset",
            "blocks",
            "gauge",
            "pinned_until_reset_blocks",
            "device blocks that a failed engine may still write, held until `reset`",
        ),
        *COUNTERS,
    )

    def __init__(self, shared: Shared, lifecycle: Lifecycle, admission: Admission) -> None:
        self._cache = shared.cache
        self._census = Census(shared, lifecycle, admission)
        self._seats = shared.seats
        self._batch = shared.batch
        self._lifecycle = lifecycle
        self._counters = shared.counters

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
        if self._batch.dead is None:
            return 0
        return self._lifecycle.pinned + self._batch.held_back


class Waited(NamedTuple):
    """How long requests have waited, in seconds."""

    begun: dict[str, Reading]
    """Requests that began, by their last reason to wait: since they were added or lost their KV."""
    resumed: Reading
    """Requests that resumed: since they were parked."""


class Monitor:
    """Questions for an exporter. Any thread may ask, and none changes anything.

    Args:
        shared: State that all parts of the scheduler share.
        stalls: The stalled conditions.
        times: How long its parts of a step take; None where it does not measure.
    """

    def __init__(self, shared: Shared, stalls: Stalls, times: StepTimes | None) -> None:
        self.cache = shared.cache
        self._queue = shared.queue
        self._batch = shared.batch
        self._stalls = stalls
        self._times = times

    @property
    def failed(self) -> str | None:
        """Why the engine is dead; None while it lives."""
        return self._batch.dead

    def stall_messages(self) -> dict[Rule, str]:
        """Returns the stalled conditions by rule, the most certain first."""
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
