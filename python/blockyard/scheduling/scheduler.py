"""Continuous batching over a `KVCache`: who runs in the next step, who waits, who is stopped."""

from collections.abc import Hashable, Iterable
from typing import Final, Literal
from weakref import WeakKeyDictionary, ref

import numpy as np
from numpy.typing import NDArray

from blockyard._core import Keys, Lease, Misuse, Parked, Ticket, TooLarge, Unavailable
from blockyard.scheduling.admission import Admission, Admitted
from blockyard.scheduling.batch import Batch, Grown, InFlightStep
from blockyard.scheduling.engine import Ack, Engine, Output, Start, Step, Stop
from blockyard.scheduling.options import SchedulerOptions
from blockyard.scheduling.preemption import Preemptor
from blockyard.scheduling.queue import WaitingQueue
from blockyard.scheduling.request import Request, RequestState, Result
from blockyard.scheduling.seats import Seat, Seats
from blockyard.scheduling.step_output import accepted, check, check_acks, plain, sampled
from blockyard.scheduling.validate import bounded, prompt_of, whole
from blockyard.shared.stats import Stat
from blockyard.yard.cache import KVCache
from blockyard.yard.explain import Explanation
from blockyard.yard.parking import Parking

__all__ = ["Scheduler"]

_drivers: "Final[WeakKeyDictionary[KVCache, ref[Scheduler]]]" = WeakKeyDictionary()
"""The scheduler of each cache: there is one at a time."""

_AHEAD: Final = 2
"""Steps for which parked sequences make room before somebody is short of it."""


class Scheduler:
    """Waiting and running requests. Driven by steps; it does no I/O and waits for nothing.

    `schedule` says what to run and what to stop, `on_output` and `on_acks` take what the engine
    answers. Steps may be in flight. For one thread.

    Args:
        cache: Its blocks; the scheduler is the only one that begins and finishes in it.
        options: Sizes, limits and policies; all have defaults.

    Raises:
        Misuse: Another scheduler that has not ended drives the cache, or the cache cannot do what
            the options ask.
    """

    SCHEMA: Final = (
        Stat("waiting", "requests", "requests that wait for their turn"),
        Stat("seats", "seats", "seats that are not free"),
        Stat("stopping", "seats", "of these, seats that wait for their ack"),
        Stat("headroom", "blocks", "blocks kept promised for the growth of those that run"),
        Stat(
            "pinned_until_reset",
            "blocks",
            "device blocks that a failed engine may still write: held until `reset`",
        ),
        Stat("steps", "steps", "steps scheduled"),
        Stat("admitted", "requests", "requests admitted, once more after each preemption"),
        Stat("preempted", "requests", "requests preempted"),
        Stat("parked", "requests", "requests that are parked"),
        Stat("lost", "tokens", "tokens of KV that preemption gave up: found, or computed again"),
        Stat("skipped", "rows", "rows that found no room to grow and skipped a step"),
        Stat("no_room", "steps", "steps at which somebody in line found no room"),
        Stat("soon", "requests", "begins put off, as another computes or loads the same prefix"),
        Stat("acks_ignored", "acks", "acks that were late, came twice, or are nobody's"),
        Stat("outputs_ignored", "rows", "rows of output of requests that are not there any more"),
        *Parking.SCHEMA,
    )

    def __init__(
        self,
        cache: KVCache,
        options: SchedulerOptions | None = None,
    ) -> None:
        options = SchedulerOptions() if options is None else options
        if not isinstance(options, SchedulerOptions):
            raise Misuse(f"options = {options!r:.60}: must be SchedulerOptions(...)")
        if cache.closed:
            raise Misuse("this cache is closed: make another one")
        other = driver() if (driver := _drivers.get(cache)) else None
        if other is not None and not other.idle:
            raise Misuse(
                f"another scheduler drives this cache, with {len(other._requests)} requests: "  # noqa: SLF001 - of its own kind
                "use that one, or end its requests before you make another"
            )
        self._cache = cache
        self._reserve = options.headroom_policy()
        self._in_order = options.in_order
        self._drafts = options.num_speculative_tokens
        self._requests: dict[Hashable, Request] = {}
        self._queue = WaitingQueue()
        self._seats = Seats(options.max_num_seqs)
        self._batch = Batch(
            cache, self._seats, options.max_num_batched_tokens, options.num_speculative_tokens
        )
        self._parking = Parking(
            cache,
            cache.config,
            mode=options.preempt_mode,
            max_stalled_steps=options.max_stalled_steps,
        )
        self._admission = Admission(
            cache,
            self._seats,
            self._queue,
            self._reserve,
            self._parking,
            options.max_overtakes,
            options.prefetch_depth,
        )
        self._preemptor = Preemptor(
            cache,
            self._seats,
            self._batch,
            self._queue,
            self._parking,
            options.victim_policy,
            options.preempt_cooldown,
        )
        self._stops: list[Stop] = []
        self._results: list[Result] = []
        self._order = 0
        self._dead: str | None = None
        self._behind = False
        self._counts = dict.fromkeys(
            (
                "steps",
                "admitted",
                "preempted",
                "lost",
                "skipped",
                "no_room",
                "soon",
                "acks_ignored",
                "outputs_ignored",
            ),
            0,
        )
        self._replaced = False
        if other is not None:
            other._replaced = True  # noqa: SLF001 - likewise
        _drivers[cache] = ref(self)

    # -- what the caller says ----------------------------------------------------------------

    def add(
        self,
        request: Hashable,
        prompt: object,
        *,
        max_tokens: int,
        priority: int = 0,
        salt: str | bytes | None = None,
        lora: str | bytes | None = None,
        ticket: Ticket | None = None,
    ) -> None:
        """Puts a request in line.

        Args:
            request: Its id, unlike that of any other that has not ended.
            prompt: Token ids; a copy is taken.
            max_tokens: Most tokens to sample, 1 or more.
            priority: The larger comes first, and is the last to be preempted.
            salt: As in `KVCache.keys`.
            lora: As in `KVCache.keys`.
            ticket: Room promised to it, of `KVCache.promise`; it is given back if it never begins.

        Raises:
            Misuse: The id is taken, the prompt is empty, a value is out of range, the ticket is
                spent, of the host or of another cache, or another scheduler drives the cache now.
            TooLarge: The device can never hold it.
        """
        self._check_driver()
        if self._find(request) is not None:
            raise Misuse(f"request {request!r} is there already: give each an id of its own")
        max_tokens, priority = whole("max_tokens", max_tokens), whole("priority", priority, None)
        if ticket is not None:
            self._check_ticket(request, ticket)
        tokens = prompt_of(prompt)
        # What is wrong with them is said now, not in a step.
        try:
            self._cache.keys(tokens[:1], salt=salt, lora=lora)
        except UnicodeError as error:
            raise Misuse(f"salt = {salt!r:.60}, lora = {lora!r:.60}: {error}") from error
        blocks = -(-(len(tokens) + max_tokens - 1) // self._cache.block_size)
        capacity = self._cache.limit()
        if blocks > capacity:
            raise TooLarge(
                f"request {request!r} may need {blocks} blocks and the device has {capacity}: "
                "shorten it, or sample fewer tokens"
            )
        came = self._batch.number
        entry = Request(
            request, tokens, max_tokens, priority, self._order, came, salt, lora, ticket
        )
        self._order += 1
        self._requests[request] = entry
        self._queue.push(entry)

    def _check_driver(self) -> None:
        """What changes the cache is for the one scheduler that drives it."""
        if self._replaced:
            raise Misuse("another scheduler has taken this cache over: use that one")

    def _check_open(self) -> None:
        self._check_driver()
        if self._cache.closed:
            raise Misuse("this cache is closed: make another one, and a scheduler on it")

    def _check_ticket(self, request: Hashable, ticket: object) -> None:
        if not isinstance(ticket, Ticket):
            raise Misuse(
                f"ticket = {ticket!r:.60} of request {request!r}: give what `KVCache.promise` or "
                "`Tickets.commit` gave"
            )
        if ticket.tier != "device" or ticket.state != "open":
            what = "of the host" if ticket.tier != "device" else "spent"
            raise Misuse(f"ticket {ticket.id} of request {request!r} is {what}: promise again")
        if ticket.cache is not self._cache:
            raise Misuse(
                f"ticket {ticket.id} of request {request!r} was made by another cache: promise "
                "the room with the cache of this scheduler"
            )
        if any(other.ticket is ticket for other in self._queue.promised):
            raise Misuse(f"ticket {ticket.id} of request {request!r} is another request's")

    def check(self, engine: Engine) -> None:
        """Refuses an engine that was made for another scheduler: both must stop alike.

        Raises:
            Misuse: It stops otherwise.
        """
        said = getattr(engine, "stops", None)
        if said != ("in-order" if self._in_order else "acked"):
            raise Misuse(f"the engine's stops are {said!r}: make the scheduler with stops={said!r}")

    def abort(self, request: Hashable) -> None:
        """Ends a request, whatever it is doing; its result comes when its blocks are safe.

        Raises:
            Misuse: There is no such request.
        """
        self._check_driver()
        entry = self._there(request)
        seat = None if entry.seat is None else self._seats.at(entry.seat)
        if seat is None:
            # T23.
            self._end(entry, RequestState.ABORTED, "aborted")
            self._queue.take(entry)
            self._admission.give_back(entry)
        elif entry.state is RequestState.LOADING:
            # T27: the engine has not heard of it, and its loads are abandoned.
            self._batch.loading.remove(seat)
            self._release(seat)
            self._end(entry, RequestState.ABORTED, "aborted")
        else:
            # T24, T25.
            seat.end = RequestState.ABORTED, "aborted"
            if seat.stop is None:
                self._stop(seat)

    # -- one step ----------------------------------------------------------------------------

    def schedule(self) -> Step:
        """What to run next. It may be empty but for its stops.

        Raises:
            Unavailable: The engine has failed and was not reset.
        """
        self._check_open()
        if self._dead is not None:
            raise Unavailable(f"the engine failed ({self._dead}): reset it, then call `reset`")
        self._counts["steps"] += 1
        grown = self._batch.grow()
        if grown.short:
            grown = self._make_room(grown)
        # Behind it: who starts in this very step is no victim in it.
        starts = self._landed()
        self._cache.set_headroom(self._wanted_headroom())
        if not grown.short:
            starts += self._begun(self._admission.admit())
            if self._queue.parked:
                self._move_ahead()
        elif self._queue.promised:
            starts += self._begun(self._admission.admit_promised())
        self._admission.bring_up()
        stops, self._stops = self._stops, []
        step = self._batch.launch(grown, starts, stops)
        for stop in stops:
            seat = self._seats.at(stop.seat)
            if seat is not None and not seat.stopped_at:
                seat.stopped_at = step.number
        return step

    def _move_ahead(self) -> None:
        """Parked sequences make room for the first in line, and for who runs and wants it soon.

        Behind admission: who comes back in this step does not move in it.
        """
        waits = self._admission.lacking()
        if waits is not None:
            self._preemptor.move(waits[1], behind=waits[0])
            if not len(self._seats):
                self._preemptor.leave(behind=waits[0])
        # What is moved now has landed when they want it.
        self._preemptor.move(self._batch.wanting(_AHEAD) - self._admission.spare())

    def _make_room(self, grown: Grown) -> Grown:
        """T36: who found no room skips the step; T7: victims, where what comes is too little."""
        if self._preemptor.stuck(grown) and self._preemptor.dedup():
            # Nobody had grown.
            grown = self._batch.grow()
            if not grown.short:
                return grown
        self._counts["skipped"] += len(grown.short)
        capacity = self._cache.limit()
        for seat in grown.short:
            if seat.lease.tokens >= capacity * self._cache.block_size:
                # The device was made smaller than it is long.
                why = f"its {seat.lease.tokens} tokens fill all {capacity} blocks of the device"
                seat.end = RequestState.FAILED, why
                self._stop(seat)
        victims = self._preemptor.victims(grown, self._admission.growth())
        if not victims and self._preemptor.stuck(grown):
            victims = self._unstick()
        for seat in victims:
            self._counts["preempted"] += 1
            seat.request.preempted += 1
            self._reserve.preempted()
            self._stop(seat)
        return grown.going()

    def _unstick(self) -> list[Seat]:
        """INV-25: nobody goes on, and nobody frees anything alone."""
        if self._preemptor.leave() or self._admission.take_back():
            return []
        victim = self._preemptor.last_resort()
        if victim is not None:
            return [victim]
        lost = self._preemptor.lost()
        if lost is not None:
            why = "kv_lost: there is no room for all who run, and none on the host to park it"
            lost.end = RequestState.FAILED, why
            self._stop(lost)
        return []

    def _landed(self) -> list[Start]:
        """T3, T4: whose loads have landed computes on from what is good."""
        starts = []
        for seat in self._batch.landed():
            if seat.lease.state == "short" and seat.lease.resumed:
                self._came_short(seat)
                continue
            # Slots of a copy with unknown outcome are quarantined: take others, or recompute.
            if len(self._cache.grow([seat.lease], 0)):
                seat.request.unloaded += 1
                self._again(seat)
            else:
                starts.append(self._start(seat))
        return starts

    def _came_short(self, seat: Seat) -> None:
        """T19, T20: a resume whose loads failed is parked again; else it goes on as it can."""
        parked = self._parking.came_short(seat.lease, seat.request.resumes)
        if parked is not None:
            self._vacate(seat)
            self._parked(seat.request, parked)
        else:
            self._again(seat)

    def _start(self, seat: Seat) -> Start:
        start = self._batch.start(seat)
        entry = seat.request
        entry.resumes = entry.unloaded = 0
        # T16, T18: it decodes on where only its newest token is not computed.
        whole = bool(entry.outputs) and start.cached == len(start.tokens) - 1
        entry.state = RequestState.DECODE if whole else RequestState.PREFILL
        return start

    def _begun(self, admitted: Admitted) -> list[Start]:
        self._counts["admitted"] += len(admitted.seats)
        self._counts["no_room"] += bool(admitted.refused)
        self._counts["soon"] += len(admitted.soon)
        for entry, why in admitted.failed:
            self._end(entry, RequestState.FAILED, why)
        if admitted.refused and not len(self._seats):
            self._admission.take_back(but=admitted.refused[0])
        starts = []
        for seat in admitted.seats:
            if seat.lease.state == "loading":
                seat.request.state = RequestState.LOADING
                self._batch.loading.append(seat)
            else:
                starts.append(self._start(seat))
        return starts

    def _wanted_headroom(self) -> int:
        """What the batch may still grow by is kept promised, so that no begin can take it."""
        return max(self._reserve.headroom(self.running), 0) if self.running else 0

    def _lower_headroom(self) -> None:
        """R1-5: fewer run than before, and keep no more than they may, at once."""
        self._cache.set_headroom(min(self.headroom, self._wanted_headroom()))

    # -- what the engine says ----------------------------------------------------------------

    def on_output(self, output: Output) -> None:
        """Takes the output of the oldest step in flight, and the acks that came with it.

        Raises:
            Misuse: It is not of the oldest step in flight, of rows that were not in it, or without
                one that was; nothing is taken.
        """
        self._check_open()
        check(output)
        if self._dead is not None:
            self._counts["outputs_ignored"] += len(output.seats)
            self._counts["acks_ignored"] += len(output.acks)
            return
        flights = self._batch.in_flight
        if not flights or output.step != flights[0].number:
            wanted = flights[0].number if flights else "none"
            raise Misuse(f"output of step {output.step}: the oldest in flight is {wanted}")
        waits = self._drafts or (self._in_order and self._seats.stopping)
        if not waits and plain(output, flights[0], self._seats):
            self._decoded(output, flights.popleft())
            return
        rows = sampled(output, flights[0], self._seats)
        in_flight = flights.popleft()
        alive = [self._seats.lives(seat) for seat in in_flight.seats]
        computed = accepted(output, in_flight)
        if not all(alive):
            self._counts["outputs_ignored"] += alive.count(False)
        self._seats.computed[in_flight.numbers[alive]] += computed[alive]
        self._tokens(output, rows, in_flight.lasts)
        self._seal(
            in_flight,
            [
                seat
                for seat, lives in zip(in_flight.seats, alive, strict=True)
                if lives and not seat.request.terminal
            ],
        )
        self._done(output.step)
        self._ended(output, rows)
        if self._in_order:
            self._acked_in_order(output.step)
        self.on_acks(output.acks)

    def _decoded(self, output: Output, in_flight: InFlightStep) -> None:
        """A plain step: one token for everybody."""
        seats = self._seats
        seats.computed[in_flight.numbers] += 1
        seats.known[in_flight.numbers] += 1
        self._cache.append(in_flight.leases, output.tokens)
        for seat, token in zip(in_flight.seats, output.tokens.tolist(), strict=True):
            seat.request.outputs.append(token)
        self._seal_full(in_flight.leases, seats.computed[in_flight.numbers])
        self._done(output.step)
        self._reserve.stepped()

    def _seal_full(self, leases: list[Lease], computed: NDArray[np.int64]) -> None:
        """Of rows that computed one token each, those whose block that made full.

        Where a seal had to stop, table 2.1, all are sealed in every step until none is behind.
        """
        size = self._cache.block_size
        if not self._behind:
            full = np.flatnonzero(computed % size == 0)
            if not len(full):
                return
            if self._cache.seal([leases[at] for at in full], computed[full]) == len(full):
                return
        self._cache.seal(leases, computed)
        sealed = [lease.sealed for lease in leases]
        self._behind = bool((np.array(sealed) < computed // size).any())

    def _seal(self, in_flight: InFlightStep, rows: list[Seat]) -> None:
        """What is computed is published; the positions of drafts not accepted go back first."""
        if not rows:
            return
        seats = self._seats
        if self._drafts:
            drafted = set(in_flight.numbers[: in_flight.decodes].tolist())
            drafts = [seat for seat in rows if seat.number in drafted]
            numbers = np.fromiter((seat.number for seat in drafts), np.int64, len(drafts))
            seats.scheduled[numbers] = seats.computed[numbers]
            self._cache.trim([seat.lease for seat in drafts], seats.computed[numbers])
        numbers = np.fromiter((seat.number for seat in rows), np.int64, len(rows))
        self._cache.seal([seat.lease for seat in rows], seats.computed[numbers])
        self._reserve.stepped()

    def _done(self, step: int) -> None:
        """What was held back for this step comes back."""
        self._cache.commit([], done=step)
        self._preemptor.done(step)

    def _tokens(self, output: Output, rows: list[Seat | None], lasts: frozenset[int]) -> None:
        """T8 too: tokens of who is stopping count, as long as its ack has not come."""
        tokens, counts = output.tokens, output.counts
        if counts is None and None not in rows:
            leases = [seat.lease for seat in rows if seat is not None]
            if leases:
                self._cache.append(leases, tokens)
            self._seats.known[output.seats] += 1
            for seat, token in zip(rows, tokens.tolist(), strict=True):
                if seat is not None:
                    seat.request.outputs.append(token)
        else:
            each = np.ones(len(rows)) if counts is None else counts
            ends = np.cumsum(each.astype(np.int64))
            starts = np.concatenate(([0], ends))
            for seat, end, start in zip(rows, ends.tolist(), starts.tolist(), strict=False):
                if seat is None:
                    continue
                own = tokens[start:end]
                self._cache.append(seat.lease, own)
                self._seats.known[seat.number] += len(own)
                seat.request.outputs.extend(own.tolist())
        for seat in rows:
            if seat is not None and seat.number in lasts and seat.stop is None:
                seat.request.state = RequestState.DECODE
                seat.request.chain = b""
                self._batch.decodes(seat)

    def _ended(self, output: Output, rows: list[Seat | None]) -> None:
        """T28, T35: an end token, or the length asked for."""
        said = output.ended
        for at, seat in enumerate(rows):
            if seat is None:
                continue
            entry = seat.request
            by_engine = said is not None and bool(said[at])
            if not by_engine and len(entry.outputs) < entry.max_tokens:
                continue
            self._batch.leave(seat)
            reason = "stop" if len(entry.outputs) < entry.max_tokens else "length"
            self._end(entry, RequestState.FINISHED, reason)
            if by_engine and seat.stop is None:
                self._release(seat)
                continue
            seat.gone = True
            self._seats.left += 1
            if seat.stop is None:
                self._stop(seat)

    # -- stops, acks, and ends ---------------------------------------------------------------

    def _stop(self, seat: Seat) -> None:
        """T7, T24, T35: no new work; blocks and seat stay until the ack."""
        seat.stop = self._seats.stop(seat)
        if not seat.request.terminal:
            seat.request.state = RequestState.STOPPING
        self._stops.append(seat.stop)
        self._batch.leave(seat)
        self._lower_headroom()

    def on_acks(self, acks: Iterable[Ack]) -> None:
        """Takes acks; one that is late, came twice, or is nobody's is counted, and that is all.

        Raises:
            Misuse: One is no `Ack`; none is taken.
        """
        self._check_driver()
        for ack in check_acks(acks):
            seat = self._seats.at(ack.seat)
            if (
                self._dead is not None
                or seat is None
                or seat.stop is None
                or not seat.stopped_at
                or tuple(seat.stop) != tuple(ack)
            ):
                self._counts["acks_ignored"] += 1
                continue
            self._acked(seat)

    def _acked_in_order(self, step: int) -> None:
        for seat in self._seats.bound():
            if seat.stop is not None and 0 < seat.stopped_at <= step:
                self._acked(seat)

    def _acked(self, seat: Seat) -> None:
        """T9, T11, T26: N is frozen, here and nowhere else."""
        if seat.gone:
            self._release(seat)
        elif seat.end is not None:
            self._release(seat)
            self._end(seat.request, *seat.end)
        else:
            self._preempted(seat)

    def _preempted(self, seat: Seat) -> None:
        """T10, T11, T15: parked where that pays and the host can promise it; else computed anew."""
        computed, after = int(self._seats.computed[seat.number]), self._after(seat)
        parked = self._parking.park(seat.lease, computed, after=after, ticket=seat.ticket)
        if parked is None:
            self._counts["lost"] += computed
            self._again(seat)
        else:
            self._counts["lost"] += computed - parked.computed
            self._vacate(seat)
            seat.request.settled = after or 0
            self._parked(seat.request, parked)

    def _parked(self, entry: Request, parked: Parked) -> None:
        """It waits in line, and what it had computed is kept."""
        entry.parked = parked
        entry.refused = 0
        entry.state = RequestState.PARKED
        self._queue.push(entry)

    def _again(self, seat: Seat) -> None:
        """Its request goes back in line, with N as it is now."""
        self._release(seat)
        if self._parking.must_park and seat.request.outputs:
            self._end(
                seat.request, RequestState.FAILED, "kv_lost: this engine cannot compute it again"
            )
            return
        seat.request.again()
        self._queue.push(seat.request)

    def _after(self, seat: Seat) -> int | None:
        """The step in flight that may still write its blocks."""
        flights = self._batch.in_flight
        return seat.last if flights and flights[0].number <= seat.last else None

    def _release(self, seat: Seat) -> None:
        """Its blocks go back when the steps in flight that may write them are done."""
        after = self._after(seat)
        if after is not None:
            self._preemptor.returns(self._preemptor.frees(seat), after)
        self._cache.finish(seat.lease, after=after)
        if seat.ticket is not None:
            self._cache.release(seat.ticket)
        self._vacate(seat)

    def _vacate(self, seat: Seat) -> None:
        if seat.stop is not None and seat.stop in self._stops:
            self._stops.remove(seat.stop)
        self._seats.free(seat)
        seat.request.seat = seat.request.lease = None
        self._lower_headroom()

    def _end(self, entry: Request, state: RequestState, reason: str) -> None:
        """The one place where a request ends."""
        entry.state = state
        del self._requests[entry.id]
        self._results.append(Result(entry.id, state, np.array(entry.outputs, np.uint32), reason))

    # -- when acks do not come -----------------------------------------------------------------

    def reconcile(self, active: Iterable[int], step: int) -> None:
        """T29: the engine says which seats it has, as of its step `step`.

        A stopping seat that is not there any more counts as acked; one that still is gets its stop
        again, of the same epoch.

        Raises:
            Misuse: The step was not scheduled yet.
        """
        self._check_driver()
        step = whole("step", step, 0)
        if step > self._batch.number:
            raise Misuse(f"step = {step}: only {self._batch.number} were scheduled")
        try:
            given = bounded("active", active)
        except TypeError as error:
            raise Misuse(f"active = {active!r:.60}: give the numbers of the seats") from error
        there = {whole("a seat of active", seat, 0) for seat in given}
        for seat in self._seats.bound() if self._dead is None else ():
            if seat.stop is None or not 0 < seat.stopped_at <= step:
                continue
            if seat.number not in there:
                self._acked(seat)
            elif seat.stop not in self._stops:
                self._stops.append(seat.stop)

    def fail(self, reason: str = "the engine is dead") -> None:
        """T29: the engine is dead. The requests that it had end as FAILED.

        It may still write their blocks: these stay pinned until `reset`, and
        `stats()["pinned_until_reset"]` counts them; no copy is quarantined for it. A request in
        line stays there, and one that was loading goes back: the engine never had it.

        Args:
            reason: Of their results.
        """
        self._check_driver()
        if self._dead is not None:
            return
        self._dead = reason
        self._leave_loading()
        for seat in self._seats.bound():
            if not seat.gone:
                seat.gone = True
                self._end(seat.request, RequestState.FAILED, reason)
        self._cache.set_headroom(0)

    def reset(self, *, requests: Literal["recompute", "abort"] = "recompute") -> None:
        """T33: the engine was reset: nothing is computed any more, and its KV is gone.

        Args:
            requests: "recompute" those that ran, or "abort" them.

        Raises:
            Misuse: Another word.
        """
        self._check_driver()
        if requests not in ("recompute", "abort"):
            raise Misuse(f"requests = {requests!r}: must be one of 'recompute', 'abort'")
        self._cache.clear()
        self._dead = None
        self._batch.clear()
        for seat in self._seats.bound():
            if seat.gone:
                self._release(seat)
            elif seat.end is not None or requests == "abort":
                self._release(seat)
                self._end(seat.request, *(seat.end or (RequestState.ABORTED, "aborted")))
            else:
                self._again(seat)
        self._done(self._batch.number)

    def update_weights(self) -> None:
        """T33: nothing computed so far is used again; who runs is stopped, and computes anew."""
        self._check_driver()
        self._cache.clear()
        for seat in self._seats.bound():
            if seat.stop is None and seat.request.state is not RequestState.LOADING:
                self._stop(seat)
        self._leave_loading()

    def _leave_loading(self) -> None:
        for seat in self._batch.loading:
            self._again(seat)
        self._batch.loading.clear()

    # -- questions ---------------------------------------------------------------------------

    def results(self) -> list[Result]:
        """How requests have ended since the last call: exactly one for each."""
        results, self._results = self._results, []
        return results

    def state(self, request: Hashable) -> RequestState | None:
        """Where a request is; None when it has ended or never was."""
        entry = self._find(request)
        return None if entry is None else entry.state

    def _find(self, request: Hashable) -> Request | None:
        try:
            return self._requests.get(request)
        except TypeError as error:
            raise Misuse(f"request {request!r:.60}: an id can be hashed") from error

    def _there(self, request: Hashable) -> Request:
        entry = self._find(request)
        if entry is None:
            raise Misuse(f"there is no request {request!r}, or it has ended")
        return entry

    def lease(self, request: Hashable) -> Lease | None:
        """What a request holds; None while it waits, and when it has ended."""
        entry = self._find(request)
        return None if entry is None else entry.lease

    def explain(self, request: Hashable) -> Explanation:
        """What a request is doing, or why it waits, and who holds the device.

        Raises:
            Misuse: There is no such request.
        """
        entry = self._there(request)
        seat = None if entry.seat is None else self._seats.at(entry.seat)
        below = self._cache.explain(self._held(entry))
        lines = self._of_line(entry) if seat is None else self._of_seat(seat)
        return Explanation(
            (f"Request {request!r} is {entry.state}.", *lines, *below.lines), below.holders
        )

    def _held(self, entry: Request) -> Lease | Parked | Keys:
        return entry.lease or entry.parked or entry.keyed(self._cache)

    def _of_line(self, entry: Request) -> list[str]:
        before = self._queue.before(entry)
        lines = [f"{before} requests stand before it; it was overtaken {entry.overtaken} times."]
        if self._dead is not None:
            lines.append(f"The engine failed: {self._dead}.")
        if self._seats.full:
            lines.append(f"All {len(self._seats)} seats are taken.")
        if entry.parked is not None:
            on_device, blocks = entry.parked.on_device, entry.parked.blocks
            lines.append(f"{on_device} of the {blocks} blocks kept for it are on the device.")
        if (other := self._admission.waits_for(entry)) is not None:
            lines.append(f"It waits for request {other.id!r}, which computes the same prompt.")
        if self.headroom:
            lines.append(f"{self.headroom} blocks are kept for those that run.")
        return lines

    def _of_seat(self, seat: Seat) -> list[str]:
        at = seat.number
        if seat.request.state is RequestState.LOADING:
            return [f"Seat {at} is kept for it, until its blocks have come up."]
        lines = [
            (
                f"In seat {at}, epoch {seat.epoch}: {self._seats.computed[at]} of "
                f"{self._seats.known[at]} tokens are computed; {self._seats.ran[at]} steps ran it."
            )
        ]
        if seat.stop is not None:
            since = f"step {seat.stopped_at}" if seat.stopped_at else "the next step"
            lines.append(f"It waits for the ack of the stop of {since}.")
        elif (in_flight := self._batch.in_flight) and seat.last < in_flight[0].number:
            lines.append("It is in no step in flight.")
        return lines

    @property
    def running(self) -> int:
        """Sequences that run or are loading, for which `headroom` is kept; 0 after `fail`."""
        return 0 if self._dead is not None else len(self._seats) - self._seats.stopping

    @property
    def headroom(self) -> int:
        """Blocks that are kept promised for the growth of those that run."""
        return self._cache.room().headroom

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do any more; a step in flight may be empty."""
        in_flight = any(step.seats for step in self._batch.in_flight)
        return not self._requests and not len(self._seats) and not in_flight

    def _pinned_until_reset(self) -> int:
        """Blocks of the seats of a dead engine, each once, and those that its steps hold back."""
        if self._dead is None:
            return 0
        held = {
            slot
            for seat in self._seats.bound()
            for slot in self._cache.block_tables(seat.lease).ravel().tolist()[: seat.lease.blocks]
        }
        return len(held) + self._preemptor.returning

    def stats(self) -> dict[str, int]:
        """Counters and sizes; `SCHEMA` has units and meanings."""
        seats = self._seats
        sizes = {
            "waiting": len(self._queue),
            "seats": len(seats),
            "stopping": seats.stopping,
            "parked": len(self._queue.parked),
            "headroom": self.headroom,
            "pinned_until_reset": self._pinned_until_reset(),
        }
        return sizes | self._counts | self._parking.stats()
