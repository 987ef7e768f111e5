"""How a request stops and ends: stops, acks, preemption, failure and reset."""

from collections.abc import Container, Hashable, Iterable

import numpy as np

from blockyard._core import HeldBlocks, Lease, Misuse, Ticket, Unavailable
from blockyard.scheduling.cached_tokens import CachedTokens
from blockyard.scheduling.engine import Ack, Stop
from blockyard.scheduling.new_request import NewRequest, checked
from blockyard.scheduling.output_checks import check_acks
from blockyard.scheduling.request import Lost, Move, Ran, Request, RequestState, Result
from blockyard.scheduling.request_checks import whole
from blockyard.scheduling.seats import Seat
from blockyard.scheduling.shared import Shared
from blockyard.shared.hints import NO_HINTS, Hints
from blockyard.shared.owner import Owner
from blockyard.shared.validate import bounded, one_of

__all__ = ["Lifecycle"]


class Lifecycle:
    """The requests of a scheduler, from the queue to their one result.

    Args:
        shared: State that all parts of the scheduler share.
    """

    def __init__(self, shared: Shared) -> None:
        self._cache = shared.cache
        self._seats = shared.seats
        self._queue = shared.queue
        self._batch = shared.batch
        self._parking = shared.parking
        self._headroom = shared.headroom
        self._counters = shared.counters
        self._moving = shared.moving
        self._requests: dict[Hashable, Request] = {}
        self._stops: list[Stop] = []
        self._results: dict[Request, Result] = {}
        """Results that `results` has not returned yet: each request in it has ended."""
        self._told: tuple[object, dict[Request, Result]] = None, {}
        """The last call that got results, and these."""
        self.pinned = 0
        """Device blocks of the seats that a dead engine had, each once."""

    def check_alive(self) -> None:
        """Refuses a step.

        Raises:
            Unavailable: The engine has failed and was not reset.
            Misuse: The headroom policy has done wrong since the last step.
        """
        self._headroom.check()
        if self._batch.dead is not None:
            raise Unavailable(
                f"the engine failed ({self._batch.dead}): reset it, then call `reset`"
            )

    # -- requests ------------------------------------------------------------------------------

    def check_new(self, new: NewRequest) -> None:
        """Refuses ids and tickets of requests that are there.

        Raises:
            Misuse: One is another request's, or it is no `NewRequest`.
        """
        for sample in checked(new).samples:
            if sample in self._requests:
                raise Misuse(f"request {sample!r} is there already: give each an id of its own")
        ticket = new.ticket
        if ticket is not None and any(one.waiting.ticket is ticket for one in self._queue.promised):
            raise Misuse(f"ticket {ticket.id} of request {new.id!r} is another request's")

    def __len__(self) -> int:
        """Requests that have not ended."""
        return len(self._requests)

    @property
    def ids(self) -> tuple[Hashable, ...]:
        """The ids of all that have not ended."""
        return tuple(self._requests)

    def add(self, entries: list[Request]) -> None:
        """Registers the samples of a request, and puts the first, which leads, in the queue."""
        self._requests |= {entry.id: entry for entry in entries}
        self._queue.push(entries[0])

    def find(self, request: Hashable) -> Request | None:
        """The request of that id; None when it has ended or never was.

        Raises:
            Misuse: The id cannot be hashed.
        """
        try:
            return self._requests.get(request)
        except TypeError as error:
            raise Misuse(f"request {request!r:.60}: must be an id that can be hashed") from error

    def get(self, request: Hashable) -> Request:
        """The request of that id.

        Raises:
            Misuse: There is no such request.
        """
        entry = self.find(request)
        if entry is None:
            raise Misuse(f"there is no request {request!r}, or it has ended")
        return entry

    def end(self, entry: Request, state: RequestState, reason: str) -> None:
        """Ends a request: no other place does (INV-11)."""
        cached = entry.cached_tokens or CachedTokens()
        self._counters.moved += state is RequestState.MOVED
        held = self._hold(entry) if entry.new.hold and state is RequestState.FINISHED else None
        result = Result(entry.id, state, entry.outputs.as_array(), reason, cached, held)
        # From here on it has ended, whatever interrupts the rest.
        self._results[entry] = result
        self._forget(entry)
        entry.leave()
        if (heir := entry.promote_sibling()) is not None:
            self._queue_up(heir)
        if entry.recorded is not None:
            self._record(entry, heir)

    def _hold(self, entry: Request) -> HeldBlocks | None:
        """Holds what a request has sealed, before its lease ends."""
        if entry.lease is None or entry.lease.state == "spent":
            return None  # a reset has ended it
        try:
            return self._cache.hold(entry.lease)
        except Unavailable:
            return None

    def _forget(self, entry: Request) -> None:
        """Drops a request that has a result."""
        entry.end(self._results[entry].state)
        if self._requests.get(entry.id) is entry:
            del self._requests[entry.id]
        if self._queue.waits is not None:
            self._queue.waits.ended(entry)

    def _record(self, entry: Request, heir: Request | None) -> None:
        """Records a request that has begun; if it has not, the next sample represents it."""
        recorder = self._cache.recorder
        if recorder is None or entry.recorded is None:
            return
        if entry.epoch:
            prompt, answer = len(entry.new.prompt), len(entry.outputs)
            recorder.ended(entry.recorded, entry.keys.prompt, prompt, answer)
        elif heir is not None:
            heir.stand_for(entry)

    def take_results(self, owner: Owner) -> list[Result]:
        """Returns the results since the last call, and those of that one if it was interrupted."""
        call, told = self._told
        if owner.interrupted and any(cut is call for cut in owner.interrupted):
            self._results = told | self._results
        if not self._results:
            # As in most steps; the last call's results have reached its caller.
            if told:
                self._told = None, {}
            return []
        for entry in self._results:
            self._forget(entry)
        self._told = owner.held[None], self._results
        self._results = {}
        return list(self._told[1].values())

    def abort(self, entry: Request) -> None:
        """Aborts a request: now, or at its ack where the engine has it."""
        self._leave(entry, RequestState.ABORTED, "aborted")

    def give_up(self, entry: Request, reason: str) -> None:
        """Fails a request, likewise."""
        self._leave(entry, RequestState.FAILED, reason)

    def _leave(self, entry: Request, state: RequestState, reason: str) -> None:
        seat = None if entry.seat is None else self._seats.at(entry.seat)
        if (move := self._moving.get(entry)) is not None and seat is None:
            # So does what is on its way to a store (T27).
            self.let_go(entry, move)
            self.end(entry, state, reason)
        elif seat is None:
            # It waits: no other part has it (T23).
            if entry.leader is None:
                self._queue.withdraw(entry)
            entry.give_back(self._cache)
            self.end(entry, state, reason)
        elif entry.state is RequestState.LOADING:
            # The engine has not seen it, and its loads are abandoned (T27).
            self._batch.drop_loading(seat)
            self.release(seat)
            self.end(entry, state, reason)
        else:
            # The ack ends it (T24, T25).
            seat.pending_end = state, reason
            if seat.stop is None:
                self.stop(seat)
        self._moving.pop(entry, None)

    def set_held(self, entry: Request, *, held: bool) -> None:
        """Computes no more tokens of a request for now, or goes on with it."""
        if entry.held is held:
            return
        entry.set_held(held=held)
        seat = None if entry.seat is None else self._seats.at(entry.seat)
        if seat is not None:
            (self._batch.pause_decoding if held else self._batch.resume_decoding)(seat)
            self._headroom.lower()
        elif entry.leader is None and entry not in self._moving:
            self._queue_up(entry)

    def _queue_up(self, entry: Request) -> None:
        """Puts a request in the queue. Other samples of its prompt wait for none that is held."""
        self._queue.push(entry)
        if entry.held and (heir := entry.promote_sibling()) is not None:
            self._queue_up(heir)

    # -- requests that move to another engine --------------------------------------------------

    def move(self, entry: Request) -> None:
        """Takes a request of `Shared.moving` out of the batch or the queue: now, or at its ack.

        Other samples wait for it no more, so that its end, in `results`, is one write: an interrupt
        there leaves none of them behind.
        """
        seat = None if entry.seat is None else self._seats.at(entry.seat)
        if seat is None and entry.leader is None:
            self._queue.withdraw(entry)
        if entry.epoch and (heir := entry.promote_sibling()) is not None:
            self._queue_up(heir)
        if seat is None:
            entry.move()
        elif entry.state is RequestState.LOADING:
            self._batch.drop_loading(seat)
            self._move_on(seat)
        elif seat.stop is None:
            self.stop(seat)

    def _move_on(self, seat: Seat) -> None:
        """Frees the seat of a request that moves; its blocks stay."""
        entry = seat.request
        self._moving[entry].take(seat.lease, int(self._seats.last_step[seat.number]))
        if seat.ticket is not None:
            self._cache.release(seat.ticket)
        self._vacate(seat)
        entry.move()

    def cut(self, entry: Request, reason: str) -> None:
        """Ends a request that moves, and whose ack has not come: only its seat waits for that."""
        seat = None if entry.seat is None else self._seats.at(entry.seat)
        if seat is not None and not seat.ended:
            self._seats.mark_ended(seat)
        self.end(entry, RequestState.MOVED, reason)

    def let_go(self, entry: Request, move: Move) -> None:
        """Returns the blocks of a request that moves, or those that are left of them."""
        lease, oldest = move.lease, self._batch.oldest
        if lease is not None and lease.state != "spent":
            after = move.last_write
            if oldest is None or oldest.number > after:
                self._cache.finish(lease, **entry.hints.keywords)
            else:
                self._batch.hold_back(self._cache.exclusive_blocks(lease), after)
                self._cache.finish(lease, **entry.hints.keywords, after=after)
        if entry.parked is None or entry.parked.handle.state != "spent":
            entry.give_back(self._cache)

    def leaving(self) -> int:
        """Device blocks that come back when requests have moved."""
        blocks = 0
        for entry, move in self._moving.items():
            if move.lease is not None and move.lease.state != "spent":
                blocks += self._cache.exclusive_blocks(move.lease)
            elif entry.parked is not None:
                blocks += self._parking.coming([entry.parked.handle])
        return blocks

    # -- stops and acks ------------------------------------------------------------------------

    def stop(self, seat: Seat) -> None:
        """Computes nothing new in a seat; its blocks stay until the ack (T7, T24, T35)."""
        self._stops.append(self._seats.stop(seat))
        seat.request.stop()
        self._batch.drop(seat)
        self._headroom.lower()

    def fail_seat(self, seat: Seat, reason: str) -> None:
        """Stops a seat whose request fails at the ack."""
        seat.pending_end = RequestState.FAILED, reason
        self.stop(seat)

    def take_stops(self, step: int) -> list[Stop]:
        """Returns the stops that a step carries, and notes that step where it is the first."""
        stops, self._stops = self._stops, []
        for stop in stops:
            seat = self._seats.at(stop.seat)
            if seat is not None and not seat.stopped_at:
                seat.stopped_at = step
        return stops

    def on_acks(self, acks: Iterable[Ack]) -> None:
        """Takes acks; one that is late, repeated, or of no stop is only counted."""
        for ack in check_acks(acks):
            seat = self._seats.at(ack.seat)
            if (
                self._batch.dead is not None
                or seat is None
                or seat.stop is None
                or not seat.stopped_at
                or tuple(seat.stop) != tuple(ack)
            ):
                self._counters.acks_ignored += 1
                continue
            self._acked(seat)

    def ack_in_order(self, step: int) -> None:
        """Takes the output of a step as the ack of all stops up to it."""
        for seat in self._seats.stopping_seats():
            if 0 < seat.stopped_at <= step:
                self._acked(seat)

    def _acked(self, seat: Seat) -> None:
        """Ends, parks or recomputes: only here are its tokens final (T9, T11, T26)."""
        if seat.ended:
            self.release(seat)
        elif seat.pending_end is not None:
            self.release(seat)
            self.end(seat.request, *seat.pending_end)
        elif seat.request in self._moving:
            self._move_on(seat)
        else:
            self._preempted(seat)

    def reconcile(self, active: Iterable[int], step: int) -> None:
        """Acks stopping seats that the engine has no more, and repeats other stops (T29)."""
        step = whole("step", step, 0)
        if step > self._batch.number:
            raise Misuse(f"step = {step}: only {self._batch.number} were scheduled")
        given = bounded("active", active, "the numbers of seats")
        numbers = {whole("a seat of active", seat, 0) for seat in given}
        for seat in self._seats.stopping_seats() if self._batch.dead is None else ():
            if seat.stop is None or not 0 < seat.stopped_at <= step:
                continue
            if seat.number not in numbers:
                self._acked(seat)
            elif seat.stop not in self._stops:
                self._stops.append(seat.stop)

    # -- preemption ----------------------------------------------------------------------------

    def _preempted(self, seat: Seat) -> None:
        """Parks a victim where that pays and the host has room; else recomputes (T10, T11, T15)."""
        computed = int(self._seats.computed[seat.number])
        after = self._batch.pending_write(seat)
        parked = self._parking.park(seat.lease, computed, after=after, ticket=seat.ticket)
        if parked is None:
            self._counters.lost += computed
            self.recompute(seat)
        else:
            self._counters.lost += computed - parked.computed
            self._vacate(seat)
            seat.request.park(parked, last_write=after or 0)
            self._queue_up(seat.request)

    def resume_incomplete(self, seat: Seat) -> None:
        """Parks a resume whose loads failed again, or recomputes it (T19, T20)."""
        parked = self._parking.resume_incomplete(seat.lease, seat.request.waiting.resumes)
        if parked is None:
            self.recompute(seat)
        else:
            self._vacate(seat)
            seat.request.park(parked)
            self._queue_up(seat.request)

    def recompute(self, seat: Seat) -> None:
        """Puts the request of a seat back in the queue, with the tokens that it has now."""
        self.release(seat, NO_HINTS)
        if self._parking.must_park and seat.request.outputs:
            self.end(seat.request, RequestState.FAILED, "kv_lost: this engine cannot recompute it")
            return
        seat.request.recompute()
        self._queue_up(seat.request)

    def release(self, seat: Seat, hints: Hints | None = None) -> None:
        """Returns the blocks of a seat once the steps in flight that may write them are done.

        Args:
            seat: The seat.
            hints: What is known of the blocks' future; None for what its request says.
        """
        after = self._batch.pending_write(seat)
        if after is not None:
            self._batch.hold_back(self._cache.exclusive_blocks(seat.lease), after)
        hints = seat.request.hints if hints is None else hints
        self._cache.finish(seat.lease, **hints.keywords, after=after)
        if seat.ticket is not None:
            self._cache.release(seat.ticket)
        self._vacate(seat)

    def _vacate(self, seat: Seat) -> None:
        if seat.stop is not None and seat.stop in self._stops:
            self._stops.remove(seat.stop)
        self._seats.free(seat)
        self._headroom.lower()

    # -- failure and reset ---------------------------------------------------------------------

    def fail(self, reason: str, *, broken: bool) -> None:
        """Ends the requests that a dead engine has; their blocks stay until `reset` (T29).

        Args:
            reason: The reason in their results.
            broken: Whether an interrupt has left something half done: `reset` ends none then.
        """
        if self._batch.dead is not None:
            return
        self._batch.die(reason)
        if broken:
            return
        self._drop_loading()
        for seat in self._seats.bound():
            if not seat.ended:
                self._seats.mark_ended(seat)
                if seat.request in self._moving:
                    self.end(seat.request, RequestState.MOVED, f"moved: {reason}")
                    continue
                self.end(seat.request, RequestState.FAILED, reason)
        for entry, move in self._moving.items():
            if not entry.terminal:
                self.let_go(entry, move)
                self.end(entry, RequestState.MOVED, f"moved: {reason}")
        self.pinned = self._blocks_of_seats()
        self._cache.set_headroom(0)

    def _blocks_of_seats(self) -> int:
        """Device blocks of all seats, each once. They stay as they are while the engine is dead."""
        if self._cache.closed:
            return 0
        held: set[int] = set()
        size = self._cache.block_size
        for seat in self._seats.bound():
            # Not of its block table: to ask for that changes what is told of it next.
            blocks = seat.lease.blocks
            first = np.arange(blocks) * size
            # Nothing is read there, so that one that loads counts, too.
            slots = self._cache.slot_mapping([seat.lease] * blocks, first, loading="joined") // size
            held.update(slots.tolist())
        return len(held)

    def reset(self, requests: Ran, memory: Lost) -> None:
        """Recomputes or aborts running requests, as the engine has lost their KV (T33).

        It repairs any state that an interrupt has left, from three facts: which requests have not
        ended, which seats are bound, and which handles are spent.
        """
        one_of("requests", requests, ("recompute", "abort"))
        # These plans would copy lost blocks, and write them to a lower tier under old keys.
        self._cache.abort(self._cache.dispatch())
        self._cache.clear(memory=memory)
        self.pinned = 0
        self._batch.clear()
        self._stops.clear()
        for entry in self._results:
            self._forget(entry)
        there = set(self._requests.values())
        for group in {entry.group for entry in there if entry.group is not None}:
            group.settle(there)
        ended: dict[Request, tuple[RequestState, str] | None] = {}
        for seat in self._seats.bound():
            self._give_back(seat.lease, seat.ticket)
            ended[seat.request] = seat.pending_end
        for entry, move in self._moving.items():
            self.let_go(entry, move)
        for entry in list(self._requests.values()):
            end = ended.get(entry) or entry.over or self._ends_by_reset(entry, ended, requests)
            self._give_back(entry.lease)
            self._seats.unbind(entry)
            if end is None and entry.settle() and self._parking.must_park and entry.outputs:
                end = RequestState.FAILED, "kv_lost: this engine cannot recompute it"
            if end is not None:
                self.end(entry, *end)
        self._seats.clear()
        self._queue.clear()
        self._moving.clear()
        for entry in list(self._requests.values()):
            if entry.leader is None:
                self._queue_up(entry)
        self._headroom.lower()
        self._batch.done(self._batch.number)

    def _ends_by_reset(
        self, entry: Request, ran: Container[Request], requests: Ran
    ) -> tuple[RequestState, str] | None:
        """How a reset ends a request that needs more tokens; None where that goes on."""
        if entry in self._moving:
            return RequestState.MOVED, "moved: the engine was reset"
        return (RequestState.ABORTED, "aborted") if entry in ran and requests == "abort" else None

    def _give_back(self, lease: Lease | None, ticket: Ticket | None = None) -> None:
        if lease is not None and lease.state != "spent":
            self._cache.finish(lease)
        if ticket is not None and ticket.state == "open":
            self._cache.release(ticket)

    def update_weights(self) -> None:
        """Stops all that runs, so that it is recomputed (T33)."""
        self._cache.update_weights()
        for seat in self._seats.bound():
            if seat.stop is None and seat.request.state is not RequestState.LOADING:
                self.stop(seat)
        self._drop_loading()

    def _drop_loading(self) -> None:
        for seat in self._batch.take_loading():
            self.recompute(seat)
