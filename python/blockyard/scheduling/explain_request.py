"""Explains why a request waits, or what it is doing."""

from dataclasses import replace
from typing import TYPE_CHECKING

from blockyard._core import Keys, Lease, Parked
from blockyard.scheduling.admission import Admission
from blockyard.scheduling.request import Request, RequestState
from blockyard.scheduling.seats import Seat
from blockyard.scheduling.shared import Shared
from blockyard.scheduling.stall import Stalls
from blockyard.scheduling.unread import named

if TYPE_CHECKING:
    from blockyard.yard.explain import Explanation

__all__ = ["Explainer"]


class Explainer:
    """Answers questions, and changes nothing.

    Args:
        shared: State that all parts of the scheduler share.
        admission: Which request waits for which.
        stalls: The stalled conditions of the loop.
    """

    def __init__(self, shared: Shared, admission: Admission, stalls: Stalls) -> None:
        self._cache = shared.cache
        self._queue = shared.queue
        self._seats = shared.seats
        self._batch = shared.batch
        self._lookups = shared.lookups
        self._moving = shared.moving
        self._admission = admission
        self._stalls = stalls

    def explain(self, entry: Request) -> "Explanation":
        """Explains what a request is doing, or why it waits, and which holders have the device."""
        seat = None if entry.seat is None else self._seats.at(entry.seat)
        below = self._cache.explain(self._held(entry))
        lines = self._of_waiting(entry) if seat is None else self._of_seat(seat)
        named_below = self._stalls.with_names("\n".join(below.lines)).split("\n")
        said = (f"Request {entry.id!r} is {entry.state}.", *lines, *named_below)
        return replace(below, lines=(*said, *self._stalls.stall_messages().values()))

    @property
    def _headroom(self) -> int:
        return self._cache.room().headroom

    def _held(self, entry: Request) -> Lease | Parked | Keys:
        parked = None if entry.parked is None else entry.parked.handle
        move = self._moving.get(entry)
        if move is not None and move.lease is not None:
            return move.lease
        return entry.lease or parked or entry.keyed(self._cache)

    def _of_waiting(self, entry: Request) -> list[str]:
        if (move := self._moving.get(entry)) is not None:
            of_it = f"{move.written} of its {move.blocks or 0} full blocks are in a store"
            return [f"{of_it}; it ends when all are, or {move.patience:g} s after `evacuate`."]
        if (leader := entry.leader) is not None:
            return [f"It is forked of request {leader.id!r} when that has its prompt computed."]
        if entry.held:
            return ["It is held, as its tokens are not read: `resume_decoding` goes on with it."]
        if entry.waiting.too_large:
            most, limit = entry.new.max_blocks(self._cache.block_size), self._cache.limit()
            return [
                (
                    f"It may need {most} blocks, and the device has {limit} since it was made "
                    "smaller: it waits until the device is larger. To give it up, abort it."
                )
            ]
        before = self._queue.count_before(entry)
        overtaken = entry.waiting.overtaken
        lines = [f"{before} requests are before it; it was overtaken {overtaken} times."]
        if self._batch.dead is not None:
            lines.append(f"The engine failed: {self._batch.dead}.")
        if self._seats.full:
            lines.append(f"All {len(self._seats)} seats are taken.")
        if entry.parked is not None:
            on_device, blocks = entry.parked.handle.on_device, entry.parked.handle.blocks
            lines.append(f"{on_device} of the {blocks} blocks kept for it are on the device.")
        lines += self._of_priority(entry)
        lines += self._of_prefix(entry)
        if keepers := self._stalls.unread.keepers():
            lines.append(
                f"{len(self._batch.held)} seats, and blocks, are kept by held requests, whose "
                f"tokens are not read: {named(keepers)}."
            )
        if self._headroom:
            lines.append(f"{self._headroom} blocks are kept for those that run.")
        return lines

    def _of_prefix(self, entry: Request) -> list[str]:
        """For which part of its prompt it waits."""
        lines = []
        if (other := self._admission.waits_for(entry)) is not None:
            lines.append(f"It waits for request {other.id!r}, which computes the same prompt.")
        if self._lookups.waits(entry):
            lines.append(self._lookups.explain(entry))
        return lines

    @staticmethod
    def _of_priority(entry: Request) -> list[str]:
        """Who was preempted for whom, where that decides."""
        lines, higher, count = [], entry.waiting.displaced_by, len(entry.waiting.displaced)
        if higher is not None:
            lines.append(
                f"It was preempted for request {higher.id!r}, which has a higher priority."
            )
        if count:
            lines.append(f"Requests of a lower priority that were preempted for it: {count}.")
        return lines

    def _of_seat(self, seat: Seat) -> list[str]:
        at = seat.number
        if seat.request.state is RequestState.LOADING:
            return [f"Seat {at} is kept for it, until its blocks have come up."]
        lines = [
            (
                f"In seat {at}, epoch {seat.epoch}: {self._seats.computed[at]} of "
                f"{self._seats.known[at]} tokens are computed; {self._seats.steps_run[at]} steps "
                "ran it."
            )
        ]
        if seat.request.held:
            lines.append(
                "It is held, as its tokens are not read: `resume_decoding` goes on with it."
            )
        if seat.stop is not None:
            since = f"step {seat.stopped_at}" if seat.stopped_at else "the next step"
            lines.append(f"It waits for the ack of the stop of {since}.")
            if (higher := seat.request.waiting.displaced_by) is not None:
                lines.append(f"It gives way to request {higher.id!r}, which has a higher priority.")
        elif self._batch.oldest is not None and self._batch.pending_write(seat) is None:
            lines.append("It is in no step in flight.")
        return lines
