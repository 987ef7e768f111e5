"""Continuous batching over a `KVCache`: which requests run in the next step, wait, or stop."""

from collections.abc import Hashable, Iterable
from time import monotonic
from typing import TYPE_CHECKING, Final

from blockyard._core import Lease
from blockyard.scheduling.admission import Admission
from blockyard.scheduling.cached_tokens import CachedTokens
from blockyard.scheduling.displacement import Displacement
from blockyard.scheduling.engine import Ack, Engine, Output, Step
from blockyard.scheduling.evacuation import PATIENCE, Evacuation
from blockyard.scheduling.explain_request import Explainer
from blockyard.scheduling.forks import Forks
from blockyard.scheduling.lifecycle import Lifecycle
from blockyard.scheduling.new_request import NewRequest
from blockyard.scheduling.options import SchedulerOptions
from blockyard.scheduling.output_processor import OutputProcessor
from blockyard.scheduling.preemption import Preemptor, Pressure
from blockyard.scheduling.queue import Waits
from blockyard.scheduling.request import Lost, Ran, RequestState, Result, arrived
from blockyard.scheduling.scheduler_stats import Monitor, SchedulerStats
from blockyard.scheduling.scheduler_thread import SchedulerThread, driven, made_sound
from blockyard.scheduling.shared import Shared
from blockyard.scheduling.stall import Stalls
from blockyard.scheduling.starts import Starts
from blockyard.shared.hints import Hints
from blockyard.shared.owner import Owner, owned
from blockyard.shared.single import Single
from blockyard.shared.timings import Clock, StepTimes, timed
from blockyard.shared.validate import seconds
from blockyard.yard.asking import Lookup
from blockyard.yard.cache import KVCache
from blockyard.yard.parking import Parking

if TYPE_CHECKING:
    from blockyard.yard.explain import Explanation

__all__ = ["Scheduler"]


class Scheduler(Single):
    """Waiting and running requests. Steps drive it; it does no I/O, and never waits.

    `schedule` returns the rows to run and the seats to stop; `on_output` and `on_acks` take the
    engine's answers. Several steps may be in flight.

    A scheduler is for one thread, that of its first verb: calls of others are refused, and so is a
    verb within a verb. Any thread may call `state`, `sampled`, `lease`, `stats` and `stalled`, and
    an `AsyncEngine` in front of it.

    Args:
        cache: The cache, in which only this scheduler begins and finishes sequences.
        options: Sizes, limits and policies; all have defaults.
        clock: Seconds. Only `stalled`, its log, `metrics` and the patience of `lookup` and of
            `evacuate` read it.
        lookup: What asks shared stores, such as a `StoreLookup`, or takes offers over, as a
            `DecodeSide`: about each request that waits, once. What they have is adopted. None asks
            nobody.
        metrics: Whether to measure how long the parts of a step, the cache's too, and waits take.

    Raises:
        Misuse: Another scheduler that has not ended drives the cache, or the cache cannot do what
            the options ask.

    Example:
        >>> from blockyard.scheduling.new_request import NewRequest
        >>> from blockyard.scheduling.options import SchedulerOptions
        >>> cache = KVCache(device=64)
        >>> scheduler = Scheduler(cache, SchedulerOptions(max_num_seqs=8))
        >>> scheduler.add(NewRequest("one", range(40), max_tokens=2))
        ('one',)
        >>> len(scheduler.schedule())
        1
    """

    SCHEMA: Final = (*SchedulerStats.SCHEMA, *Parking.SCHEMA)
    """Name, unit, kind, metric and meaning of each number in `stats`."""

    def __init__(
        self,
        cache: KVCache,
        options: SchedulerOptions | None = None,
        *,
        clock: Clock = monotonic,
        metrics: bool = False,
        lookup: Lookup | None = None,
    ) -> None:
        options = SchedulerOptions.given(options)
        SchedulerThread.check_free(cache)
        self._cache = cache
        waits = Waits(clock) if metrics else None
        self._shared = shared = Shared.of(cache, options, clock, waits, lookup)
        self._queue, self._batch = shared.queue, shared.batch
        self._counters, self._headroom = shared.counters, shared.headroom
        self._admission = admission = Admission(shared)
        self._lifecycle = lifecycle = Lifecycle(shared)
        self._evacuation = Evacuation(shared, lifecycle)
        self._outputs = OutputProcessor(shared, lifecycle, Forks(shared))
        preemptor = Preemptor(shared, lifecycle)
        self._pressure = Pressure(shared, admission, preemptor)
        self._displacement = Displacement(shared, admission, preemptor)
        self._starts = Starts(shared, admission, lifecycle)
        self._stalls = stalls = Stalls(shared, admission, preemptor.unread)
        self._explainer = Explainer(shared, admission, stalls)
        self._stats = SchedulerStats(shared, lifecycle, admission)
        self._times = times = StepTimes(clock, "schedule", "output") if metrics else None
        if metrics:
            cache.measure(clock)
        self.monitor = Monitor(shared, stalls, times)
        """Numbers for an exporter, from any thread."""
        self._added, self._owner = 0, Owner()
        self._thread = SchedulerThread(shared, lifecycle)

    @owned
    def release_thread(self) -> None:
        """Releases it to another thread: the next one that calls a verb.

        Raises:
            Misuse: Another thread has it.
        """
        self._thread.release_thread()

    # -- requests ------------------------------------------------------------------------------

    @driven
    def add(self, request: NewRequest) -> tuple[Hashable, ...]:
        """Adds a request to the waiting queue.

        Args:
            request: The request.

        Returns:
            The ids of its samples: its own, or with n above 1 (id, 0), (id, 1), and so on.

        Raises:
            Misuse: The id is taken, the ticket is spent, of the host, another request's or of
                another cache, or another scheduler drives the cache now.
            TooLarge: The device can never hold it.
            Unavailable: `evacuate_all` is under way.
        """
        self._evacuation.check_open()
        self._lifecycle.check_new(request)
        entries = arrived(self._cache, request, self._added, self._batch.number)
        self._added += len(entries)
        self._lifecycle.add(entries)
        return request.samples

    @driven
    def abort(self, request: Hashable) -> None:
        """Ends a request in any state; its result comes when its blocks are safe.

        Raises:
            Misuse: There is no such request.
        """
        self._lifecycle.abort(self._lifecycle.get(request))
        self._shared.lookups.leave(request)

    @driven
    def evacuate(self, request: Hashable, *, patience: float = PATIENCE) -> None:
        """Ends a request in any state, so that another engine goes on with it (T37).

        Its result, as MOVED, comes from `results` when all of its full blocks are in a store, at
        `patience` at the latest, and has all its tokens: add the prompt and these tokens to another
        engine, under the same id. Nothing waits: `results` writes what can be written now.

        Args:
            request: Its id; if it has several samples, the id of one.
            patience: Seconds. Another call for the same request gives it another limit.

        Raises:
            Misuse: There is no such request, or `patience` is no such number.
        """
        limit = seconds("patience", patience)
        self._evacuation.begin(self._lifecycle.get(request), limit)

    @driven
    def evacuate_all(self, *, patience: float = PATIENCE) -> tuple[Hashable, ...]:
        """Moves all requests, as before this process is stopped; `add` takes none meanwhile (T37).

        Requests that never ran end at once: `results` has them next, even if it is `idle` by then.
        Go on with steps until `idle`.

        Args:
            patience: Seconds, as in `evacuate`.

        Returns:
            The ids of the requests, each of which has a result then.

        Raises:
            Misuse: `patience` is no such number.
        """
        limit, moving = seconds("patience", patience), self.requests
        self._evacuation.begin_all(map(self._lifecycle.get, moving), limit)
        return moving

    @driven
    def hint(self, request: Hashable, hints: Hints) -> None:
        """Replaces the hints of a request.

        Use it when the answer reveals them: it calls a tool, so the session goes on in a few
        seconds. Call it before the output that ends the request, which releases its blocks.

        Args:
            request: Its id.
            hints: As in `NewRequest`.

        Raises:
            Misuse: There is no such request, or a value is out of range.
        """
        hints = Hints.given(hints)
        self._lifecycle.get(request).hints = hints

    @driven
    def pause_decoding(self, request: Hashable) -> None:
        """Pauses the decoding of a request, because its tokens are not read.

        Its prompt is computed, and steps in flight count. When others need its seat or blocks it is
        parked, or computed again after `resume_decoding`; where neither can be it fails
        (`max_held_steps`).

        Raises:
            Misuse: There is no such request.
        """
        self._lifecycle.set_held(self._lifecycle.get(request), held=True)

    @driven
    def resume_decoding(self, request: Hashable) -> None:
        """Goes on with a request that is held.

        Raises:
            Misuse: There is no such request.
        """
        self._lifecycle.set_held(self._lifecycle.get(request), held=False)

    @driven
    def results(self) -> list[Result]:
        """Returns how requests have ended since the last call: exactly one result for each.

        It also goes on with requests that move to another engine.
        """
        if self._shared.moving and self._thread.is_whole(self._owner):
            self._evacuation.turn()
        results = self._lifecycle.take_results(self._owner)
        self._evacuation.told()
        self._shared.lookups.ended(results)
        return results

    # -- one step ------------------------------------------------------------------------------

    @driven
    @timed("schedule")
    def schedule(self) -> Step:
        """Returns the next step; it may have stops and no rows.

        Raises:
            Unavailable: The engine has failed and was not reset.
            Misuse: 1,024 steps are unanswered.
        """
        self._stalls.step()
        self._thread.check_open()
        self._lifecycle.check_alive()
        self._stalls.check_answered()
        self._counters.steps += 1
        if self._queue and self._displacement.enabled:
            self._displacement.displace()
        grown = self._batch.grow()
        if grown.skipped:
            grown = self._pressure.make_room(grown)
        # Only now: a request that starts in this step is no victim in it.
        starts = self._starts.landed()
        self._cache.set_headroom(self._headroom.wanted())
        if not grown.skipped:
            starts += self._starts.begun(self._admission.admit())
            if self._queue.parked or self._queue.apart or self._batch.held:
                self._pressure.move_ahead()
        elif self._queue.promised:
            starts += self._starts.begun(self._admission.admit_promised())
        self._admission.prefetch()
        self._shared.lookups.purge()
        stops = self._lifecycle.take_stops(self._batch.number + 1)
        return self._batch.launch(grown, starts, stops)

    # -- answers of the engine -----------------------------------------------------------------

    @driven
    @timed("output")
    def on_output(self, output: Output) -> None:
        """Takes the output of the oldest step in flight, and the acks that came with it.

        Raises:
            Misuse: It is not of the oldest step in flight, of rows that were not in it, or without
                one that was; nothing is taken.
        """
        self._thread.check_open()
        self._outputs.apply(output)

    @driven
    def on_acks(self, acks: Iterable[Ack]) -> None:
        """Takes acks; one that is late, repeated, or of no stop is only counted.

        Raises:
            Misuse: One is no `Ack`; none is taken.
        """
        self._lifecycle.on_acks(acks)

    def check(self, engine: Engine) -> None:
        """Refuses an engine whose `stops` differ from the options.

        Raises:
            Misuse: Its `stops` are others, or none.
        """
        self._shared.options.check(engine)

    @driven
    def reconcile(self, active: Iterable[int], step: int) -> None:
        """Makes good for lost acks, from the seats that the engine has as of its step `step`.

        A stopping seat that is not in `active` counts as acked. One that is gets its stop again,
        with the same epoch (T29).

        Args:
            active: The seats that the engine has.
            step: The number of the newest step that it has seen.

        Raises:
            Misuse: The step was not scheduled yet.
        """
        self._lifecycle.reconcile(active, step)

    @driven
    def fail(self, reason: str = "the engine is dead") -> None:
        """Ends the requests that a dead engine has, as FAILED (T29).

        The engine may still write their blocks: these stay pinned until `reset`, and
        `stats()["pinned_until_reset"]` counts them; none is quarantined. Waiting requests keep
        waiting, and loading ones go back to the queue: the engine never had them.

        Args:
            reason: The reason in their results.
        """
        self._lifecycle.fail(reason, broken=bool(self._owner.interrupted))
        self._shared.lookups.purge()

    @driven
    def reset(self, *, requests: Ran = "recompute", memory: Lost = "lost") -> None:
        """Goes on with an engine that was reset: it computes nothing more, and its KV is gone.

        Args:
            requests: Whether to "recompute" or "abort" running requests (T33). An interrupted verb
                is made good, too.
            memory: "lost", or "disk kept" if only a disk kept its blocks, as in `KVCache.clear`.

        Raises:
            Misuse: One is no such word, or "disk kept" without a keyed tier.
        """
        there = self.requests
        self._lifecycle.reset(requests, memory)
        self._shared.lookups.leave(*(one for one in there if self.state(one) is None))
        self._admission.forget()
        self._evacuation.reset()
        made_sound(self._owner)

    @driven
    def update_weights(self) -> None:
        """Forgets all KV computed so far: running requests are stopped and recomputed (T33).

        Shared stores are asked about no request any more: what they have is of the old weights.
        """
        self._shared.lookups.stop()
        self._lifecycle.update_weights()

    # -- questions -----------------------------------------------------------------------------

    @property
    def requests(self) -> tuple[Hashable, ...]:
        """The ids of the requests that have not ended, in the order in which they were added."""
        return self._lifecycle.ids

    def state(self, request: Hashable) -> RequestState | None:
        """Returns where a request is; None when it has ended or never was."""
        entry = self._lifecycle.find(request)
        return None if entry is None else entry.state

    def sampled(self, request: Hashable, first: int = 0) -> list[int]:
        """Returns the tokens that a request has sampled, from number `first` on.

        It is empty when the request has ended: its result has them all.
        """
        entry = self._lifecycle.find(request)
        return [] if entry is None else entry.outputs.since(first)

    def cached_tokens(self, request: Hashable) -> CachedTokens | None:
        """Returns how many prompt tokens were found, by tier, when a request first began.

        It is None before, and when the request has ended: its result has them.
        """
        entry = self._lifecycle.find(request)
        return None if entry is None else entry.cached_tokens

    def lease(self, request: Hashable) -> Lease | None:
        """Returns the lease of a request; None while it waits, and when it has ended."""
        entry = self._lifecycle.find(request)
        return None if entry is None else entry.lease

    @owned
    def explain(self, request: Hashable) -> "Explanation":
        """Explains what a request is doing, or why it waits, and which holders have the device.

        Raises:
            Misuse: There is no such request.
        """
        return self._explainer.explain(self._lifecycle.get(request))

    def stalled(self) -> tuple[str, ...]:
        """Returns one message per stalled condition, most certain first; any thread may call it."""
        return tuple(self._stalls.stall_messages().values())

    @property
    def steps_in_flight(self) -> int:
        """Steps that were not answered yet."""
        return self._batch.steps_in_flight

    @property
    def cache(self) -> KVCache:
        """The cache in which it begins and finishes sequences."""
        return self._cache

    @property
    def running(self) -> int:
        """Sequences that run or load and are not held: `headroom` is kept for them."""
        return self._shared.seats.growing

    @property
    def growth(self) -> int:
        """Blocks that these may still need, by their `max_tokens`, and were not promised."""
        return self._headroom.growth

    @property
    def headroom(self) -> int:
        """Blocks that are kept for the growth of the running batch."""
        return self._cache.room().headroom

    @property
    def asks_stores(self) -> bool:
        """Whether a request waits for the answer of a store: `schedule` takes it."""
        return self._shared.lookups.is_out

    @property
    def takes_requests(self) -> bool:
        """Whether `add` takes requests: not from `evacuate_all` until all have their results."""
        return not self._evacuation.closed

    @property
    def moves(self) -> bool:
        """Whether a request moves to another engine: `results` goes on with it."""
        return bool(self._shared.moving)

    @property
    def idle(self) -> bool:
        """Whether there is nothing more to do; a step without rows may be in flight."""
        return self._thread.idle

    def stats(self) -> dict[str, int]:
        """Returns counters and sizes; `SCHEMA` has units and meanings. Any thread may ask."""
        return self._stats.read() | self._shared.parking.stats()
