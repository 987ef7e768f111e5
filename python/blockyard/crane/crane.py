"""`Crane`: one rank's memory and its copies. It takes plans, polls them and reports."""

import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from itertools import count
from types import MappingProxyType, TracebackType
from typing import Self

from blockyard._core import Misuse, Unsupported
from blockyard.crane.copiers import (
    Copier,
    Fencing,
    Joining,
    KeyedCopier,
    Landed,
    Pair,
    Receipt,
    Slots,
    Turning,
)
from blockyard.crane.copiers.select import select_copiers
from blockyard.crane.copy_watch import CopyWatch
from blockyard.crane.lanes import Copy, Flight, Lane, plans_of
from blockyard.crane.lasting import LastingTiers
from blockyard.crane.tiers import Tier
from blockyard.shared.layout import TIERS, Hello, KVLayout
from blockyard.shared.log import Limited
from blockyard.shared.plan import Cause, Outcome, Plan
from blockyard.shared.single import Single
from blockyard.shared.stall import Clock, Fact, Rule, StallWatch, lasting, those
from blockyard.shared.stats import Stat
from blockyard.shared.thresholds import Thresholds
from blockyard.shared.timings import CraneNumbers
from blockyard.shared.validate import integer

__all__ = ["Crane"]

_log = Limited("blockyard")


class Crane(Single):
    """Moves the bytes of one rank. It knows slots and bytes, but no block, lease or policy.

    Only `reset` and `close` wait. Use it from one thread at a time, and make it after fork or
    spawn, in the process that uses it. It owns its tiers and copiers, and closes them.

    Copies from one tier to another are a lane, and begin in the order in which they were submitted.
    They wait for another lane only in a copier that both have, and none that is chosen here makes a
    fast tier wait for a slow one.

    Below the device, each block of a `replicated` plane is written by one rank only: the one whose
    number is the destination slot modulo the ranks. Every rank reads all of them.

    Args:
        layout: What a block is; the tiers have the same.
        rank: Which rank this is, from 0.
        device: The device's memory.
        host: The host's memory; None for none.
        disk: The tier below the host, or below the device where there is no host; None for none.
        copier: One for all lanes, or some by the names of their two tiers, as in
            `{("host", "disk"): ...}`. The other lanes have what fits their tiers: a `CudaCopier`
            between a GPU and pinned memory, else a `ThreadCopier` each.
        thresholds: The configuration's, for a `CudaCopier` that is made here.
        fingerprint: Of the configuration that this process was started with; without one the
            layout's own.
        clock: Seconds, for `stalled` and its log alone.

    Raises:
        Misuse: A tier has another name or layout, or the layout has no such rank.
    """

    SCHEMA = (
        Stat(
            "crane_flights",
            "flights",
            "counter",
            "crane_flights",
            "plans that this rank's crane has taken",
        ),
        Stat(
            "crane_in_flight",
            "flights",
            "gauge",
            "crane_flights_in_flight",
            "plans that this rank's crane has taken and not reported yet",
        ),
        Stat(
            "crane_failed",
            "flights",
            "counter",
            "crane_flights_failed",
            "plans of which not every block came whole on this rank",
        ),
        Stat(
            "crane_blocks",
            "blocks",
            "counter",
            "crane_blocks",
            "blocks that landed intact on this rank",
        ),
        Stat("crane_bytes", "bytes", "gauge", "crane_memory_bytes", "memory of this rank's tiers"),
    )
    """What each number in `stats` is; a disk adds those of `DiskTier.SCHEMA`."""

    def __init__(  # noqa: PLR0913 - a tier each, and what they are for
        self,
        layout: KVLayout,
        *,
        rank: int = 0,
        device: Tier,
        host: Tier | None = None,
        disk: Tier | None = None,
        copier: Copier | Mapping[Pair, Copier] | None = None,
        thresholds: Thresholds | None = None,
        fingerprint: str = "",
        clock: Clock = time.monotonic,
    ) -> None:
        rank = integer("rank", rank, least=0)
        if rank >= layout.ranks:
            raise Misuse(f"rank = {rank}: the layout has ranks 0 to {layout.ranks - 1}")
        given = zip(TIERS, (device, host, disk), strict=True)
        self._tiers: dict[str, Tier] = {name: tier for name, tier in given if tier is not None}
        for name, tier in self._tiers.items():
            if tier.name != name:
                raise Misuse(f"{name} = a tier named {tier.name!r}: make it with name={name!r}")
            if tier.layout != layout:
                raise Misuse(f"the {name} tier has another layout: {_differs(tier.layout, layout)}")
        self._layout = layout
        self._rank = rank
        self._fingerprint = fingerprint or layout.fingerprint
        copiers = select_copiers(self._tiers, copier, thresholds)
        self._lanes = {
            pair: Lane(self._tiers[pair[0]], self._tiers[pair[1]], one, rank)
            for pair, one in copiers.items()
        }
        self._copiers = list({id(one): one for one in copiers.values()}.values())
        self.lasting = LastingTiers(self._tiers.values())
        """Its disk, where that outlives this process."""
        self._turning = [one for one in self._copiers if isinstance(one, Turning)]
        self._flights: dict[int, Flight] = {}
        self._order = count()
        self._moving: list[tuple[Copy, Receipt]] = []
        self._reported: list[Outcome] = []
        self._counts = dict.fromkeys(("flights", "failed", "blocks"), 0)
        self._closed = False
        self._polls, self._made = 0, time.time_ns()
        self._watch = StallWatch(__name__, clock)
        self._watched: CopyWatch | None = None

    def hello(self) -> Hello:
        """Returns what it reports at the handshake."""
        blocks = dict.fromkeys(TIERS, 0) | {name: one.blocks for name, one in self._tiers.items()}
        return Hello(self._rank, self._fingerprint, layout=self._layout.fingerprint, **blocks)

    @property
    def copiers(self) -> Mapping[Pair, Copier]:
        """The copier of each lane, by the names of its two tiers."""
        return MappingProxyType({pair: lane.copier for pair, lane in self._lanes.items()})

    @property
    def device(self) -> Tier:
        """The device's memory."""
        return self._tiers["device"]

    @property
    def waiting(self) -> dict[Pair, int]:
        """How many copies wait for their copier to take them, in each lane that has such."""
        return {pair: len(lane.waiting) for pair, lane in self._lanes.items() if lane.waiting}

    @property
    def closed(self) -> bool:
        """Whether it is closed and takes no more plans."""
        return self._closed

    @property
    def in_flight(self) -> int:
        """Flights taken and not yet reported."""
        return len(self._flights) + len(self._reported)

    def submit(self, plans: Plan | Iterable[Plan]) -> None:
        """Takes plans; their copies begin as soon as a copier takes them, in a lane oldest first.

        Args:
            plans: One plan, or several.

        Raises:
            Misuse: One is no plan, or in flight already, a tier or slot is not there, or the crane
                is closed. Nothing of this call is taken.
        """
        if self._closed:
            raise Misuse("the crane is closed: it takes no plan")
        self._watch.step(self.standing)
        taken: dict[int, Flight] = {}
        copies: list[Copy] = []
        plans = plans_of(plans)
        for plan in plans:
            if plan.flight in self._flights or plan.flight in taken:
                raise Misuse(f"flight = {plan.flight}: it is in flight already; submit it once")
            taken[plan.flight] = flight = Flight(plan.flight, len(plan), next(self._order))
            copies += self._copies(plan, flight)
        if self._watched is not None:
            self._watched.submitted(plans)
        self._flights |= taken
        for copy in copies:
            copy.lane.waiting.append(copy)
        self._counts["flights"] += len(taken)
        self._report(flight for flight in taken.values() if not flight.copies)
        with self._turn():
            self._start()

    def poll(self) -> list[Outcome]:
        """Returns what has ended since the last call, each flight once."""
        self._polls += 1
        moving, self._moving = self._moving, []
        busy = moving or any(lane.waiting for lane in self._lanes.values())
        with self._turn() if busy else nullcontext():
            for copy, receipt in moving:
                landed = receipt.poll()
                if landed is None:
                    self._moving.append((copy, receipt))
                else:
                    self._land(copy, landed)
            self._start()
        reported, self._reported = self._reported, []
        return reported

    def join(self, stream: object = None, *, layer: int | None = None) -> bool:
        """Makes the engine's stream wait for the submitted copies up, where that can be.

        The stream also goes on after a copy that failed: its report says so.

        Args:
            stream: The stream that waits; None for the device tier's.
            layer: As in `CudaCopier.join`.

        Returns:
            Whether the stream waits for all of them. If not, because the copier has no streams, is
            full, or was held up by a capture, wait until the flights are reported.
        """
        lanes = [lane for lane in self._lanes.values() if lane.up]
        clear = self._started(lanes, Joining)
        # Each is asked, so that the stream waits for all that it can wait for.
        copiers = {id(lane.copier): lane.copier for lane in lanes}.values()
        joined = [one.join(stream, layer=layer) for one in copiers if isinstance(one, Joining)]
        return all(joined) and clear

    def fence(self, stream: object = None) -> bool:
        """Makes the engine's stream wait for the submitted copies down, where that can be.

        An engine that gives out its blocks itself calls it before it writes what they read.

        Args:
            stream: As in `join`.

        Returns:
            As `join`.
        """
        lanes = [lane for lane in self._lanes.values() if lane.down]
        clear = self._started(lanes, Fencing)
        copiers = {id(lane.copier): lane.copier for lane in lanes}.values()
        fenced = [one.fence(stream) for one in copiers if isinstance(one, Fencing)]
        return all(fenced) and clear

    def _started(self, lanes: list[Lane], kind: type) -> bool:
        """Starts what waits; returns whether all under way in these lanes has such a copier."""
        with self._turn():
            self._start()
        alone = any(
            copy.lane in lanes and not isinstance(copy.lane.copier, kind)
            for copy, _ in self._moving
        )
        return not alone and not any(lane.waiting for lane in lanes)

    def reset(self) -> None:
        """Ends all flights after a reset of the rank; the next poll reports them as dead.

        It waits until no copier writes any more, so that nothing lands late in a slot that has
        another block by then.
        """
        for copier in self._copiers:
            copier.reset()
        for lane in self._lanes.values():
            lane.waiting.clear()
        self._moving.clear()
        for flight in self._flights.values():
            flight.good, flight.cause = 0, Cause.DEAD
        self._report(list(self._flights.values()))

    def standing(self) -> list[Fact]:
        """Returns what is a stall where it stays as it is: flights, and no poll. Any thread may."""
        flights, rank = self.in_flight, self._rank
        if not flights:
            return []

        def say(steps: int, seconds: float) -> str:
            return (
                f"{those(flights, 'flight', 'wait')} on rank {rank}, and nobody has polled it for "
                f"{lasting(steps, seconds)}: call commit(crane.poll()) once per turn (cache.step() "
                "does)"
            )

        return [Fact(Rule.NOT_POLLED, self._polls, say)]

    def stalled(self) -> tuple[str, ...]:
        """Says that nobody polls, where that is so: a step is a call of `submit` here.

        The answer is empty where all is well. Any thread may ask.
        """
        return self._watch.stalled(self.standing)

    def stats(self) -> dict[str, int]:
        """Returns counters and sizes; `SCHEMA` has units and meanings."""
        memory = sum(tier.nbytes for tier in self._tiers.values())
        numbers = self._counts | {"in_flight": self.in_flight, "bytes": memory}
        found = {stat.name: numbers[stat.name.removeprefix("crane_")] for stat in self.SCHEMA}
        return found | self.lasting.stats()

    def measure(self, clock: Clock = time.monotonic) -> None:
        """Counts from now on how long flights take between each two tiers, for `numbers`.

        Args:
            clock: As in `KVCache.measure`.
        """
        if self._watched is None:
            self._watched = CopyWatch(self._lanes, self._layout.block_bytes, clock)

    def numbers(self) -> CraneNumbers:
        """Returns what the process that exports is told of this rank: it can be pickled."""
        copies = {} if self._watched is None else dict(self._watched.read())
        return CraneNumbers(self._rank, self.stats(), copies, self._made)

    def close(self) -> None:
        """Ends the copiers, then frees the tiers. `poll` still reports what was in flight."""
        if self._closed:
            return
        self._closed = True
        for copier in self._copiers:
            copier.close()
        for lane in self._lanes.values():
            while lane.waiting:
                self._land(lane.waiting.popleft(), Landed(0, Cause.DEAD))
        for tier in self._tiers.values():
            tier.close()

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """Closes the crane on exit."""
        self.close()

    def _turn(self) -> AbstractContextManager[object]:
        """Lets calls of the copiers, until its end, share what they ask of a driver."""
        if not self._turning:
            return nullcontext()
        with ExitStack() as turns:
            for copier in self._turning:
                turns.enter_context(copier.turn())
            return turns.pop_all()

    def _copies(self, plan: Plan, flight: Flight) -> list[Copy]:
        """Returns what copiers have to do for a plan."""
        if plan.group:
            raise Unsupported(f"group = {plan.group}: there is one group of layers, 0")
        sources, destinations = plan.sources, plan.destinations
        source = self._tier(plan.flight, plan.source_tier, sources)
        destination = self._tier(plan.flight, plan.destination_tier, destinations)
        lane = self._lanes.get((source.name, destination.name))
        if lane is None:
            raise Unsupported(f"no copies from {source.name} to {destination.name} here")
        keys, parents = plan.keys, plan.parents
        if keys is not None and not isinstance(lane.copier, KeyedCopier):
            raise Misuse(
                f"flight {plan.flight} carries keys, and {type(lane.copier).__name__} takes none: "
                "give the Crane a copier with start_keyed, or the yard no keyed tiers"
            )
        return lane.copies(flight, sources, destinations, keys, parents)

    def _tier(self, flight: int, name: str, slots: Slots) -> Tier:
        """Returns the tier of that name, if it has these slots."""
        tier = self._tiers.get(name)
        if tier is None:
            raise Misuse(f"flight {flight}: there is no {name} tier on rank {self._rank}")
        if len(slots) and slots.max() >= tier.blocks:
            raise Misuse(
                f"flight {flight}: {name} slot {slots.max()}, but the {name} tier of rank "
                f"{self._rank} has slots 0 to {tier.blocks - 1}; the yard must open with the "
                "sizes that the cranes have agreed on"
            )
        return tier

    def _start(self) -> None:
        """Starts waiting copies, the oldest first, until no lane's copier takes more."""
        lanes = [lane for lane in self._lanes.values() if lane.waiting]
        while lanes:
            lane = min(lanes, key=lambda one: one.waiting[0].flight.order)
            if not self._begin(lane) or not lane.waiting:
                lanes.remove(lane)

    def _begin(self, lane: Lane) -> bool:
        """Starts the oldest copy of a lane; returns whether it waits no more."""
        try:
            receipt = lane.begin()
        except Exception as error:  # noqa: BLE001 - it fails the flight, never the crane
            copy = lane.waiting.popleft()
            _log.warning("a copy of %d blocks was refused: %r", len(copy.sources), error)
            self._land(copy, Landed(0, Cause.FAILED))
            return True
        if receipt is not None:
            self._moving.append((lane.waiting.popleft(), receipt))
        return receipt is not None

    def _land(self, copy: Copy, landed: Landed) -> None:
        flight = copy.flight
        good = landed.good
        if copy.which is not None:
            good = int(copy.which[good]) if good < len(copy.which) else flight.blocks
        if Cause.LOST in {landed.cause, flight.cause}:
            flight.good, flight.cause = 0, Cause.LOST
        elif good < flight.good:
            flight.good, flight.cause = good, landed.cause or Cause.FAILED
            if self._closed and flight.cause is Cause.FAILED:
                flight.cause = Cause.DEAD
        elif good == flight.good < flight.blocks and landed.cause is Cause.CORRUPT:
            flight.cause = Cause.CORRUPT
        flight.copies -= 1
        if not flight.copies:
            self._report([flight])

    def _report(self, flights: Iterable[Flight]) -> None:
        for flight in flights:
            del self._flights[flight.number]
            self._reported.append(Outcome(flight.number, self._rank, flight.good, flight.cause))
            self._counts["failed"] += flight.cause is not None
            self._counts["blocks"] += flight.good
            if self._watched is not None:
                self._watched.reported(flight)


def _differs(layout: KVLayout, other: KVLayout) -> str:
    mine, theirs = layout.to_mapping(), other.to_mapping()
    name = next(name for name in mine if mine[name] != theirs[name])
    return f"its {name} = {mine[name]!r}, the crane's {theirs[name]!r}"
