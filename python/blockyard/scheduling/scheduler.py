"""Continuous batching over a `KVCache`: which requests run in the next step, wait, or stop."""

from collections.abc import Hashable, Iterable
from time import monotonic
from typing import Final, Literal
from weakref import WeakKeyDictionary, ref

from blockyard._core import Lease, Misuse, Ticket, TooLarge, Unavailable
from blockyard.scheduling.admission import Admission, Admitted
from blockyard.scheduling.batch import Batch, Grown
from blockyard.scheduling.counters import Counters
from blockyard.scheduling.engine import Ack, Engine, Output, Start, Step
from blockyard.scheduling.explain import Explainer
from blockyard.scheduling.lifecycle import Lifecycle
from blockyard.scheduling.options import SchedulerOptions
from blockyard.scheduling.output_processor import OutputProcessor
from blockyard.scheduling.preemption import Preemptor
from blockyard.scheduling.queue import WaitingQueue
from blockyard.scheduling.request import Request, RequestState, Result
from blockyard.scheduling.seats import Seat, Seats
from blockyard.scheduling.stall import Stalls
from blockyard.scheduling.stats import SchedulerStats
from blockyard.scheduling.validate import prompt_of, ticket_of, whole
from blockyard.shared.stall import Clock
from blockyard.yard.cache import KVCache
from blockyard.yard.explain import Explanation
from blockyard.yard.parking import Parking

__all__ = ["Scheduler"]

_drivers: "Final[WeakKeyDictionary[KVCache, ref[Scheduler]]]" = WeakKeyDictionary()
"""The scheduler of each cache: there is one at a time."""

_AHEAD: Final = 2
"""Steps for which parked requests make room before a running one lacks it."""


class Scheduler:
    """Waiting and running requests. Steps drive it; it does no I/O, and never waits.

    `schedule` says what to run and what to stop; `on_output` and `on_acks` take what the engine
    answers. Several steps may be in flight. A scheduler is for one thread.

    Args:
        cache: The cache, in which only this scheduler begins and finishes sequences.
        options: Sizes, limits and policies; all have defaults.
        clock: Seconds. It decides nothing: `stalled` and its log alone read it.

    Raises:
        Misuse: Another scheduler that has not ended drives the cache, or the cache cannot do what
            the options ask.

    Example:
        >>> from blockyard.scheduling.options import SchedulerOptions
        >>> cache = KVCache(device=64)
        >>> scheduler = Scheduler(cache, SchedulerOptions(max_num_seqs=8))
        >>> scheduler.add("one", range(40), max_tokens=2)
        >>> len(scheduler.schedule())
        1
    """

    SCHEMA: Final = (*SchedulerStats.SCHEMA, *Parking.SCHEMA)

    def __init__(
        self, cache: KVCache, options: SchedulerOptions | None = None, *, clock: Clock = monotonic
    ) -> None:
        options = SchedulerOptions() if options is None else options
        if not isinstance(options, SchedulerOptions):
            raise Misuse(f"options = {options!r:.60}: must be SchedulerOptions(...)")
        if cache.closed:
            raise Misuse("this cache is closed: make another one")
        other = driver() if (driver := _drivers.get(cache)) else None
        if other is not None and not other.idle:
            raise Misuse(
                f"another scheduler drives this cache, with {len(other._lifecycle)} requests: "  # noqa: SLF001 - of its own kind
                "use that one, or end its requests before you make another"
            )
        self._cache = cache
        self._options = options
        self._headroom = headroom = options.headroom_policy()
        self._counters = counters = Counters()
        self._queue = queue = WaitingQueue()
        self._seats = seats = Seats(options.max_num_seqs)
        self._batch = batch = Batch(cache, seats, options)
        self._parking = parking = Parking(
            cache,
            cache.config,
            mode=options.preempt_mode,
            max_stalled_steps=options.max_stalled_steps,
        )
        self._admission = Admission(cache, seats, queue, headroom, parking, options)
        self._preemptor = Preemptor(cache, seats, batch, queue, parking, options)
        self._lifecycle: Lifecycle = Lifecycle(
            cache, seats, queue, batch, parking, headroom, counters
        )
        self._outputs = OutputProcessor(
            cache, seats, batch, self._lifecycle, headroom, options, counters
        )
        lifecycle = self._lifecycle
        self._stalls = stalls = Stalls(
            cache, queue, seats, batch, self._admission, lifecycle, clock
        )
        self._explainer = Explainer(cache, queue, seats, batch, self._admission, lifecycle, stalls)
        self._stats = SchedulerStats(cache, queue, seats, batch, lifecycle, counters)
        self._added = 0
        self._replaced = False
        if other is not None:
            other._replaced = True  # noqa: SLF001 - likewise
        _drivers[cache] = ref(self)

    def _check_driver(self) -> None:
        """Refuses a verb that changes the cache once another scheduler drives it."""
        if self._replaced:
            raise Misuse("another scheduler has taken this cache over: use that one")

    def _check_open(self) -> None:
        self._check_driver()
        if self._cache.closed:
            raise Misuse("this cache is closed: make another one, and a scheduler on it")

    # -- requests ------------------------------------------------------------------------------

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
        """Adds a request to the waiting queue.

        Args:
            request: Its id, unlike that of any other request that has not ended.
            prompt: Token ids; a copy is taken.
            max_tokens: Most tokens to sample, 1 or more.
            priority: The larger comes first, and is the last to be preempted.
            salt: As in `KVCache.keys`.
            lora: As in `KVCache.keys`.
            ticket: Room promised to it by `KVCache.promise`; it is given back if the request never
                begins.

        Raises:
            Misuse: The id is taken, the prompt is empty, a value is out of range, the ticket is
                spent, of the host or of another cache, or another scheduler drives the cache now.
            TooLarge: The device can never hold it.
        """
        self._check_driver()
        if self._lifecycle.find(request) is not None:
            raise Misuse(f"request {request!r} is there already: give each an id of its own")
        max_tokens, priority = whole("max_tokens", max_tokens), whole("priority", priority, None)
        if ticket is not None:
            ticket = ticket_of(request, ticket, self._cache)
            if any(other.ticket is ticket for other in self._queue.promised):
                raise Misuse(f"ticket {ticket.id} of request {request!r} is another request's")
        tokens = prompt_of(prompt)
        # A salt that cannot be encoded is refused here, and not in a step.
        try:
            self._cache.keys(tokens[:1], salt=salt, lora=lora)
        except UnicodeError as error:
            raise Misuse(f"salt = {salt!r:.60}, lora = {lora!r:.60}: {error}") from error
        arrival = self._batch.number
        entry = Request(
            request, tokens, max_tokens, priority, self._added, arrival, salt, lora, ticket
        )
        blocks, capacity = entry.max_blocks(self._cache.block_size), self._cache.limit()
        if blocks > capacity:
            raise TooLarge(
                f"request {request!r} may need {blocks} blocks and the device has {capacity}: "
                "shorten it, or sample fewer tokens"
            )
        self._added += 1
        self._lifecycle.add(entry)

    def abort(self, request: Hashable) -> None:
        """Ends a request, whatever it is doing; its result comes when its blocks are safe.

        Raises:
            Misuse: There is no such request.
        """
        self._check_driver()
        self._lifecycle.abort(self._lifecycle.get(request))

    def results(self) -> list[Result]:
        """Returns how requests have ended since the last call: exactly one result for each."""
        return self._lifecycle.take_results()

    # -- one step ------------------------------------------------------------------------------

    def schedule(self) -> Step:
        """Returns what to run next; a step may have stops and no rows.

        Raises:
            Unavailable: The engine has failed and was not reset.
            Misuse: 1,024 steps are unanswered.
        """
        self._stalls.step()
        self._check_open()
        if self._lifecycle.dead is not None:
            raise Unavailable(
                f"the engine failed ({self._lifecycle.dead}): reset it, then call `reset`"
            )
        self._stalls.check_answered()
        self._counters.steps += 1
        grown = self._batch.grow()
        if grown.skipped:
            grown = self._make_room(grown)
        # Only now: a request that starts in this step is no victim in it.
        starts = self._landed()
        self._cache.set_headroom(self._lifecycle.wanted_headroom())
        if not grown.skipped:
            starts += self._begun(self._admission.admit())
            if self._queue.parked:
                self._move_ahead()
        elif self._queue.promised:
            starts += self._begun(self._admission.admit_promised())
        self._admission.prefetch()
        stops = self._lifecycle.take_stops(self._batch.number + 1)
        return self._batch.launch(grown, starts, stops)

    def _move_ahead(self) -> None:
        """Makes room of parked blocks for the first waiting request, and for rows that grow soon.

        It comes after admission: a request that comes back in this step does not move in it.
        """
        refused = self._admission.first_refused()
        if refused is not None:
            first, lacks = refused
            self._preemptor.relieve(lacks, behind=first)
            if not len(self._seats):
                self._preemptor.relieve_all(behind=first)
        # What moves now has landed when the rows need the room.
        self._preemptor.relieve(self._batch.blocks_wanted(_AHEAD) - self._admission.spare())

    def _make_room(self, grown: Grown) -> Grown:
        """Lets rows without room skip the step, and stops victims where too little comes.

        T7, T36.
        """
        if self._preemptor.stuck(grown) and self._preemptor.dedup():
            # No row had grown, so none grows twice.
            grown = self._batch.grow()
            if not grown.skipped:
                return grown
        self._counters.skipped += len(grown.skipped)
        capacity = self._cache.limit()
        for seat in grown.skipped:
            if seat.lease.tokens >= capacity * self._cache.block_size:
                # The device was made smaller than it is long.
                why = f"its {seat.lease.tokens} tokens fill all {capacity} blocks of the device"
                self._lifecycle.fail_seat(seat, why)
        victims = self._preemptor.victims(grown, self._admission.growth())
        if not victims and self._preemptor.stuck(grown):
            victims = self._unstick()
        for seat in victims:
            self._counters.preempted += 1
            seat.request.preempted += 1
            self._headroom.preempted()
            self._lifecycle.stop(seat)
        return grown.without_stopped()

    def _unstick(self) -> list[Seat]:
        """Victims where no row goes on, and none frees anything alone (INV-25)."""
        if self._preemptor.relieve_all() or self._admission.take_back():
            return []
        victim = self._preemptor.last_resort()
        if victim is not None:
            return [victim]
        lost = self._preemptor.lost()
        if lost is not None:
            why = "kv_lost: there is no room for all that run, and none on the host to park it"
            self._lifecycle.fail_seat(lost, why)
        return []

    def _landed(self) -> list[Start]:
        """Starts requests whose loads have ended, from what is good of them (T3, T4)."""
        starts = []
        for seat in self._batch.landed():
            if seat.lease.state == "short" and seat.lease.resumed:
                self._lifecycle.came_short(seat)
                continue
            # Slots of a copy with unknown outcome are quarantined: take others, or recompute.
            if len(self._cache.grow([seat.lease], 0)):
                seat.request.failed_loads += 1
                self._lifecycle.recompute(seat)
            else:
                starts.append(self._start(seat))
        return starts

    def _begun(self, admitted: Admitted) -> list[Start]:
        """Starts admitted requests, but for those that load first."""
        self._counters.admitted += len(admitted.seats)
        self._counters.no_room += bool(admitted.refused)
        self._counters.soon += len(admitted.soon)
        for entry, why in admitted.failed:
            self._lifecycle.end(entry, RequestState.FAILED, why)
        if admitted.refused and not len(self._seats):
            self._admission.take_back(but=admitted.refused[0])
        starts = []
        for seat in admitted.seats:
            if seat.lease.state == "loading":
                seat.request.state = RequestState.LOADING
                self._batch.add_loading(seat)
            else:
                starts.append(self._start(seat))
        return starts

    def _start(self, seat: Seat) -> Start:
        start = self._batch.start(seat)
        seat.request.start(start.cached)
        return start

    # -- what the engine answers ---------------------------------------------------------------

    def on_output(self, output: Output) -> None:
        """Takes the output of the oldest step in flight, and the acks that came with it.

        Raises:
            Misuse: It is not of the oldest step in flight, of rows that were not in it, or without
                one that was; nothing is taken.
        """
        self._check_open()
        self._outputs.apply(output)

    def on_acks(self, acks: Iterable[Ack]) -> None:
        """Takes acks; one that is late, repeated, or of no stop is only counted.

        Raises:
            Misuse: One is no `Ack`; none is taken.
        """
        self._check_driver()
        self._lifecycle.on_acks(acks)

    def check(self, engine: Engine) -> None:
        """Refuses an engine that stops otherwise than the options say.

        Raises:
            Misuse: Its `stops` are others.
        """
        stops = getattr(engine, "stops", None)
        if stops != self._options.stops:
            raise Misuse(
                f"the engine's stops are {stops!r}: make the scheduler with stops={stops!r}"
            )

    def reconcile(self, active: Iterable[int], step: int) -> None:
        """Makes good for lost acks: the engine says which seats it has as of its step `step`.

        A stopping seat that the engine has no more counts as acked. One that it still has gets its
        stop again, of the same epoch (T29).

        Raises:
            Misuse: The step was not scheduled yet.
        """
        self._check_driver()
        self._lifecycle.reconcile(active, step)

    def fail(self, reason: str = "the engine is dead") -> None:
        """Ends the requests that a dead engine has, as FAILED (T29).

        The engine may still write their blocks: these stay pinned until `reset`, and
        `stats()["pinned_until_reset"]` counts them; no copy is quarantined for it. A waiting
        request waits on, and one that was loading goes back to the queue: the engine never had it.

        Args:
            reason: The reason in their results.
        """
        self._check_driver()
        self._lifecycle.fail(reason)

    def reset(self, *, requests: Literal["recompute", "abort"] = "recompute") -> None:
        """Goes on with an engine that was reset: it computes nothing more, and its KV is gone.

        Args:
            requests: "recompute" or "abort" the requests that ran (T33).

        Raises:
            Misuse: It is neither word.
        """
        self._check_driver()
        self._lifecycle.reset(requests)

    def update_weights(self) -> None:
        """Forgets all that was computed so far: what runs is stopped and recomputed (T33)."""
        self._check_driver()
        self._lifecycle.update_weights()

    # -- questions -----------------------------------------------------------------------------

    def state(self, request: Hashable) -> RequestState | None:
        """Returns where a request is; None when it has ended or never was."""
        entry = self._lifecycle.find(request)
        return None if entry is None else entry.state

    def lease(self, request: Hashable) -> Lease | None:
        """Returns what a request holds; None while it waits, and when it has ended."""
        entry = self._lifecycle.find(request)
        return None if entry is None else entry.lease

    def explain(self, request: Hashable) -> Explanation:
        """Says what a request is doing, or why it waits, and what holds the device.

        Raises:
            Misuse: There is no such request.
        """
        return self._explainer.explain(self._lifecycle.get(request))

    def stalled(self) -> tuple[str, ...]:
        """Says what stands still and which call is missing, surest first; any thread may ask."""
        return self._stalls.stalled()

    @property
    def running(self) -> int:
        """Sequences that run or load, for which `headroom` is kept; 0 after `fail`."""
        return self._lifecycle.running

    @property
    def headroom(self) -> int:
        """Blocks that are kept for the growth of the running batch."""
        return self._cache.room().headroom

    @property
    def idle(self) -> bool:
        """Whether there is nothing more to do; a step without rows may be in flight."""
        return not len(self._lifecycle) and not len(self._seats) and not self._batch.computing

    def stats(self) -> dict[str, int]:
        """Returns counters and sizes; `SCHEMA` has units and meanings. Any thread may ask."""
        return self._stats.read() | self._parking.stats()
