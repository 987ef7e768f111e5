"""Starts admitted requests: at once, or when their loads have ended."""

from blockyard.scheduling.admission import Admission, Admitted
from blockyard.scheduling.cached_tokens import found_by
from blockyard.scheduling.engine import Start
from blockyard.scheduling.lifecycle import Lifecycle
from blockyard.scheduling.request import RequestState
from blockyard.scheduling.seats import Seat
from blockyard.scheduling.shared import Shared

__all__ = ["Starts"]


class Starts:
    """Starts the requests that were admitted, at once or when their loads have ended.

    Args:
        shared: State that all parts of the scheduler share.
        admission: The other waiting requests.
        lifecycle: How they go back, and end.
    """

    def __init__(self, shared: Shared, admission: Admission, lifecycle: Lifecycle) -> None:
        self._cache = shared.cache
        self._seats = shared.seats
        self._batch = shared.batch
        self._admission = admission
        self._lifecycle = lifecycle
        self._counters = shared.counters
        self._lookups = shared.lookups

    def landed(self) -> list[Start]:
        """Starts requests whose loads have ended, from the good blocks (T3, T4)."""
        starts = []
        for seat in self._batch.landed():
            self._lookups.settle(seat.request)
            if seat.lease.state == "incomplete" and seat.lease.resumed:
                self._lifecycle.resume_incomplete(seat)
                continue
            # Slots of a copy with unknown outcome are quarantined: take others, or recompute.
            if len(self._cache.grow([seat.lease], 0)):
                self._admission.load_failed(seat.request)
                self._lifecycle.recompute(seat)
            else:
                starts.append(self._start(seat))
        return starts

    def begun(self, admitted: Admitted | None) -> list[Start]:
        """Starts admitted requests, but for those that load first."""
        if admitted is None:
            return []
        self._counters.admitted += len(admitted.seats)
        self._counters.no_room += bool(admitted.refused) or admitted.still
        self._counters.soon += len(admitted.soon)
        for entry, why in admitted.failed:
            self._lifecycle.end(entry, RequestState.FAILED, why)
        if admitted.refused and len(self._seats) == len(self._batch.held):
            self._admission.take_back(but=admitted.refused[0])
        starts = []
        for seat in admitted.seats:
            if not seat.request.waiting.resumes:
                self._counters.found(found_by(seat.lease, self._cache.block_size))
            if seat.lease.state == "loading":
                seat.request.load()
                self._batch.add_loading(seat)
            else:
                self._lookups.settle(seat.request)
                starts.append(self._start(seat))
        return starts

    def _start(self, seat: Seat) -> Start:
        if seat.request.cached_tokens is None:
            seat.request.cached_tokens = found_by(seat.lease, self._cache.block_size)
        start = self._batch.start(seat)
        seat.request.start(start.cached)
        return start
