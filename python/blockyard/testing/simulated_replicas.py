"""The yards of a simulation: one, or several that take the same calls and are compared."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from random import Random
from typing import Any, Final, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from blockyard._core import BlockyardError, Unavailable
from blockyard.scheduling.engine import Ack, Output, Start, Step, Stop
from blockyard.scheduling.options import SchedulerOptions
from blockyard.scheduling.request import Result
from blockyard.scheduling.scheduler import Scheduler
from blockyard.shared.layout import TIERS
from blockyard.shared.plan import Plan
from blockyard.shared.timings import Clock
from blockyard.testing.checked_cache import CheckedCache
from blockyard.testing.checked_reservations import CheckedReservations
from blockyard.testing.setup import HEADROOMS, VICTIMS, Setup
from blockyard.testing.simulated_engine import Broken, check
from blockyard.testing.simulated_rank import config_of
from blockyard.yard.asking import Lookup
from blockyard.yard.cache import KVCache

__all__ = ["Replicas", "SimulatedReplica"]

_T = TypeVar("_T")
_LATE: Final = 16
"""Ticks that what hung may take when it goes on."""


class SimulatedReplica(NamedTuple):
    """One yard and its scheduler."""

    cache: CheckedCache
    scheduler: Scheduler
    reservations: CheckedReservations


class Replicas:
    """All yards; the first one's answers are used, and the others' must be equal.

    Args:
        setup: Sizes, policies and how many replicas.
        seen: Where the first one counts; the others' counts would be the same.
        fenced: Returns the slots that no request may be given now.
        clock: The seconds of the simulation.
        lookup: Returns what asks shared stores, or takes offers over, for a cache.
    """

    def __init__(
        self,
        setup: Setup,
        seen: Counter[str],
        fenced: Callable[[], set[int]],
        clock: Clock,
        lookup: Callable[[KVCache], Lookup | None] = lambda _: None,
    ) -> None:
        self._replicas = [
            _replica(setup, Counter() if number else seen, fenced, clock, lookup=lookup)
            for number in range(max(setup.replicas, 1) - setup.watched)
        ]
        self._honest = tuple(self._replicas)
        if setup.watched:
            self._replicas.append(_replica(setup, Counter(), fenced, _jumping(), watched=True))
        self._late = 0
        first = self._replicas[0]
        self.cache = first.cache
        self.scheduler = first.scheduler
        self.reservations = first.reservations

    def __iter__(self) -> Iterator[SimulatedReplica]:
        """Yields every replica."""
        return iter(self._replicas)

    def each(self, call: Callable[[SimulatedReplica], _T]) -> list[_T]:
        """Makes the same call to every replica, and raises the first error when all are done."""
        answers: list[Any] = []
        for replica in self._replicas:
            try:
                answers.append(call(replica))
            except BlockyardError as error:
                answers.append(error)
        for answer in answers:
            if isinstance(answer, BlockyardError):
                raise answer
        return answers

    def deliver(
        self, channel: Literal["before", "behind", "inside"], outputs: list[Output], acks: list[Ack]
    ) -> None:
        """Gives every scheduler the engine's outputs and acks, in the order of the channel."""
        if channel == "before":
            self.each(lambda replica: replica.scheduler.on_acks(acks))
        for output in outputs:
            brought = output
            if channel == "inside":
                brought = Output(
                    output.step,
                    output.seats,
                    output.tokens,
                    output.counts,
                    output.ended,
                    tuple(acks),
                )
            self.each(lambda replica, one=brought: replica.scheduler.on_output(one))  # type: ignore[misc]
        if channel == "behind" or (channel == "inside" and not outputs):
            self.each(lambda replica: replica.scheduler.on_acks(acks))

    def schedule(self) -> tuple[Step, NDArray[np.int32]]:
        """Returns the next step and its block tables."""
        steps = self.each(lambda replica: replica.scheduler.schedule())
        step = steps[0]
        tables = self.cache.block_tables(step.leases)
        for replica, other in zip(self._replicas[1:], steps[1:], strict=True):
            same = np.array_equal(tables, replica.cache.block_tables(other.leases))
            check(same and _plain(step) == _plain(other), f"replicas differ in step {step.number}")
        return step, tables

    def dispatch(self) -> list[Plan]:
        """Returns the plans that may be sent out."""
        plans = self.each(lambda replica: replica.cache.dispatch())
        for other in plans[1:]:
            check(plans[0] == other, "replicas differ in their plans")
        return plans[0]

    def results(self) -> Iterator[Result]:
        """Yields the requests that have ended since the last call."""
        for results in zip(*self.each(lambda replica: replica.scheduler.results()), strict=True):
            result = results[0]
            for other in results[1:]:
                check(_fields(result) == _fields(other), f"replicas differ in {result}")
            yield result

    def stats(self) -> dict[str, int]:
        """Returns all counters of the first replica."""
        return self.cache.stats() | self.scheduler.stats() | self.reservations.stats()

    def audit(self) -> None:
        """Checks the laws of every yard."""
        for violation in self.each(lambda replica: replica.cache.audit()):
            check(violation is None, f"the audit: {violation}")
        self.each(lambda replica: replica.cache.check_kept())

    def check_stalls(self, lost: Iterable[Stop], *, hung: bool) -> None:
        """Checks that nothing is said of this loop but what a fault has done to it (O10).

        Args:
            lost: Stops whose ack was lost: their seats wait for a reconcile.
            hung: Whether a copy hangs or an outcome is lost: a flight waits for a reset.
        """
        self._late = _LATE if hung else self._late - 1
        late = self._late > 0
        faults = tuple(f"Seat {stop.seat} waits " for stop in lost) + ("Flight ",) * late
        for replica in self._honest:
            for said in replica.scheduler.stalled():
                check(said.startswith(faults), f"O10: {said}")

    def compare(self) -> None:
        """Checks that counters and digests are the same everywhere."""
        asked = self.each(lambda replica: replica.reservations.stats())
        if len(self._replicas) == 1:
            return
        stats = [one | replica.scheduler.stats() for one, replica in zip(asked, self, strict=True)]
        check(all(one == stats[0] for one in stats), "replicas differ in their counters")
        digests = {replica.cache.digest() for replica in self._replicas}
        check(len(digests) == 1, "replicas differ in their digest")
        for replica in self._replicas[len(self._honest) :]:
            _ask(replica)
            check(replica.cache.digest() in digests, "O6: a replica that was asked has changed")
            _listen(replica)
            check(replica.cache.digest() in digests, "O4: a replica that is heard has changed")

    def fill(self) -> None:
        """Begins a sequence in all the room there is: a dead engine may write none of it (T29).

        `CheckedCache.begin` makes the check. Nothing that this publishes outlives a reset.
        """
        for replica in self._replicas:
            spare = replica.cache.room().available
            if spare > 0:
                tokens = range(10**6, 10**6 + spare * replica.cache.block_size)
                replica.cache.finish(replica.cache.begin(tokens, load=0))

    def check_dead(self) -> None:
        """Checks that there is no step for an engine that is dead (T29)."""
        for replica in self._replicas:
            try:
                replica.scheduler.schedule()
            except Unavailable:
                continue
            raise Broken("T29: a step for an engine that is dead")

    def check_at_rest(self, slots: Mapping[str, int]) -> None:
        """Checks that nothing is held, promised or in flight, and that each tier has its size."""
        for replica in self._replicas:
            _check_at_rest(replica, slots)


def _jumping() -> Clock:
    """A clock of which no two answers go together."""
    chance = Random(7)  # noqa: S311 - it is no secret
    return lambda: chance.uniform(-1e6, 1e6)


def _ask(replica: SimulatedReplica) -> None:
    """Asks what an exporter asks."""
    monitor = replica.scheduler.monitor
    stats = replica.scheduler.stats()
    waits = {why: stats[f"waiting_{why}"] for why in ("room", "seat", "prefix", "parked", "held")}
    check(
        sum(waits.values()) == stats["waiting"] and min(waits.values()) >= 0,
        f"O6: {stats['waiting']} requests wait, for these reasons: {waits}",
    )
    found, whole = sum(stats[f"cached_{tier}"] for tier in TIERS), replica.cache.stats()["cached"]
    check(found <= whole, f"O6: {found} tokens were found on the tiers, {whole} in all")
    parts = monitor.steps()
    ran = sum(parts["schedule"].counts)
    check(ran <= stats["steps"], f"O6: {ran} steps were measured, of {stats['steps']}")
    waited = monitor.waited()
    check(waited is not None, "O6: a measured replica is silent")


def _listen(replica: SimulatedReplica) -> None:
    """Takes what has happened, now and then: the audit compares it with what there is."""
    if replica.scheduler.stats()["steps"] % 7 == 0:
        replica.cache.take_events()
        told = replica.cache.event_stats()
        check(told["removed"] <= told["stored"], f"O1: more is gone than has come: {told}")


def _replica(  # noqa: PLR0913 - keywords
    setup: Setup,
    seen: Counter[str],
    fenced: Callable[[], set[int]],
    clock: Clock,
    *,
    watched: bool = False,
    lookup: Callable[[KVCache], Lookup | None] = lambda _: None,
) -> SimulatedReplica:
    cache = CheckedCache(config_of(setup))
    cache.watch(seen, fenced)
    if watched:
        # So few that some are lost.
        cache.listen(ring=24)
    scheduler = Scheduler(
        cache,
        SchedulerOptions(
            max_num_seqs=setup.max_num_seqs,
            max_num_batched_tokens=setup.max_num_batched_tokens,
            headroom=HEADROOMS[setup.headroom](),
            victim_policy=VICTIMS[setup.victims](),
            stops=setup.stops,
            preempt_mode=setup.preempt_mode if setup.host or setup.disk else None,
            max_stalled_steps=setup.max_stalled_steps,
            max_held_steps=setup.max_held_steps,
            priority_preemption=setup.priority_preemption,
            preempt_cooldown=setup.preempt_cooldown,
            max_overtakes=setup.max_overtakes,
            num_speculative_tokens=setup.drafts,
            lookup_patience=setup.tick_ms / 1000 * 4,
        ),
        clock=clock,
        metrics=watched,
        lookup=lookup(cache),
    )
    return SimulatedReplica(cache, scheduler, CheckedReservations(cache, seen))


def _check_at_rest(replica: SimulatedReplica, slots: Mapping[str, int]) -> None:
    check(replica.scheduler.idle, f"the scheduler is not idle: {replica.scheduler.stats()}")
    for name in ("waiting", "seats", "stopping"):
        check(not replica.scheduler.stats()[name], f"{name}: {replica.scheduler.stats()}")
    stats = replica.cache.stats()
    left = [name for name in ("leases", "parked", "tickets", "flights", "leaked") if stats[name]]
    for tier in TIERS:
        kinds = ("claimed", "pinned", "quarantined", "promised")
        left += [f"{tier}_{kind}" for kind in kinds if stats[f"{tier}_{kind}"]]
    check(not left, f"left behind: { {name: stats[name] for name in left} }")
    check(not stats["rejected"], f"{stats['rejected']} handles were given back twice")
    for tier in TIERS:
        size = slots[tier] - (tier == "device")
        # A slot beyond the size retires once nothing idle is below its block.
        more = stats[f"{tier}_capacity"] - size
        most = max(0, stats[f"{tier}_idle"] - 1)
        check(0 <= more <= most, f"2.7: {more} slots too many in {tier}")


def _plain(step: Step) -> tuple[Any, ...]:
    """Returns a step as values that can be compared: its leases are handles of one yard."""

    def started(start: Start) -> tuple[Any, ...]:
        return (start.request, start.seat, start.epoch, start.tokens.tolist(), start.cached)

    return (
        step.number,
        step.stops,
        [started(start) for start in step.starts],
        step.chunks,
        step.decode.tolist(),
        step.positions.tolist(),
        step.counts.tolist(),
        [(lease.id, lease.tokens, lease.blocks, lease.sealed) for lease in step.leases],
    )


def _fields(result: Result) -> tuple[Any, ...]:
    return (*result[:2], result.tokens.tolist(), result.reason, result.cached_tokens)
