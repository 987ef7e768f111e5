"""`Crane`: one rank's memory and its copies. It takes plans, polls them and reports."""

import time
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Self

from blockyard._core import Misuse
from blockyard.crane.copiers import Copier, Fencing, Joining, Pair
from blockyard.crane.copiers.select import select_copiers
from blockyard.crane.lanes import plans_of
from blockyard.crane.persistent import PersistentTiers
from blockyard.crane.tiers import Tier
from blockyard.crane.traffic import Traffic
from blockyard.shared.layout import TIERS, Hello, KVLayout
from blockyard.shared.log import unclosed
from blockyard.shared.owner import Owner, owned
from blockyard.shared.plan import MOST_GROUP, MOST_YARD, Outcome, Plan, Unreported
from blockyard.shared.single import Single
from blockyard.shared.stats import Stat
from blockyard.shared.timings import Clock, CraneNumbers
from blockyard.shared.validate import integer, shown

if TYPE_CHECKING:
    from blockyard.crane.tiers.remote import RemoteTier
    from blockyard.shared.copy_tuning import CopyTuning

__all__ = ["Crane"]


class Crane(Single):
    """Moves the bytes of one rank. It handles slots and bytes, not blocks, leases or policies.

    Only `reset` and `close` wait. `submit`, `poll`, `join`, `fence`, `reset` and `close` are for
    one thread at a time: a call that comes during another one is refused. Make it after fork or
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
        remote: Shared stores, below all others; None for none.
        copier: One for all lanes, or some by the names of their two tiers, as in
            `{("host", "disk"): ...}`. The other lanes have what fits their tiers: a `CudaCopier`
            between a GPU and pinned memory, else a `ThreadCopier` each.
        copy_tuning: The configuration's, for a `CudaCopier` that is made here.
        fingerprint: Of the configuration that this process was started with; without one the
            layout's own.
        group: The group of layers that its memory has, as `Config.group`.

    Raises:
        Misuse: A tier has another name or layout, or the layout has no such rank.
    """

    SCHEMA = (
        Stat(
            "crane_flights",
            "flights",
            "counter",
            "crane_flights",
            "copy plans that this rank has accepted",
        ),
        Stat(
            "crane_in_flight",
            "flights",
            "gauge",
            "crane_flights_in_flight",
            "copy plans that this rank has accepted and not reported yet",
        ),
        Stat(
            "crane_failed",
            "flights",
            "counter",
            "crane_flights_failed",
            "copy plans with blocks that were not copied correctly on this rank",
        ),
        Stat(
            "crane_blocks",
            "blocks",
            "counter",
            "crane_blocks",
            "blocks that were copied correctly on this rank",
        ),
        Stat("crane_bytes", "bytes", "gauge", "crane_memory_bytes", "memory of this rank's tiers"),
    )
    """What each number in `stats` is; a disk adds those of `DiskTier.SCHEMA`, and stores those of
    `RemoteTier.SCHEMA`."""

    def __init__(  # noqa: PLR0913 - keywords
        self,
        layout: KVLayout,
        *,
        rank: int = 0,
        device: Tier,
        host: Tier | None = None,
        disk: Tier | None = None,
        remote: "RemoteTier | None" = None,
        copier: Copier | Mapping[Pair, Copier] | None = None,
        copy_tuning: "CopyTuning | None" = None,
        fingerprint: str = "",
        group: int = 0,
    ) -> None:
        rank = integer("rank", rank, least=0)
        if rank >= layout.ranks:
            raise Misuse(f"rank = {rank}: the layout has ranks 0 to {layout.ranks - 1}")
        given = zip(TIERS, (device, host, disk, remote), strict=True)
        self._tiers: dict[str, Tier] = {name: tier for name, tier in given if tier is not None}
        for name, tier in self._tiers.items():
            if tier.name != name:
                raise Misuse(f"{name} = a tier named {tier.name!r}: make it with name={name!r}")
            if tier.layout != layout:
                raise Misuse(f"the {name} tier has another layout: {_differs(tier.layout, layout)}")
        self._layout = layout
        self._rank = rank
        self._fingerprint = fingerprint or layout.fingerprint
        copiers = select_copiers(self._tiers, copier, copy_tuning)
        self.called = f"the Crane of rank {rank}"
        """What a warning calls it where it was dropped and not closed."""
        group = integer("group", group, least=0, most=MOST_GROUP)
        self.traffic = Traffic(rank, self._tiers, copiers, layout.block_bytes, group=group)
        """What its verbs do, for a `LocalCache`, whose verbs exclude those of its crane."""
        self._owner = Owner()
        self.persistent = PersistentTiers(self._tiers.values(), self._owner)
        """Its disk, where that outlives this process."""
        self._remote = remote
        self._made = time.time_ns()

    @owned
    def hello(self, yard: int | None = None) -> Hello:
        """Shakes hands with a yard, and returns what it reports to it.

        What it has of another yard ends, as in `reset`. Where `yard` is given, plans of others are
        not carried out, and reported as dead, also in a process that has not met these.

        Args:
            yard: `Config.yard`, the number of the yard; asked again with the same, nothing ends.
                None for a yard made later: its first plan has the number.

        Raises:
            Misuse: The number is out of range, or of a yard that another one has followed.
        """
        self.traffic.hello(None if yard is None else integer("yard", yard, most=MOST_YARD))
        blocks = dict.fromkeys(TIERS, 0) | {name: one.blocks for name, one in self._tiers.items()}
        own = {"yard": yard or 0, "group": self.traffic.group}
        layout = self._layout.fingerprint
        return Hello(self._rank, self._fingerprint, layout=layout, **blocks, **own)

    @property
    def rank(self) -> int:
        """Which rank it is, from 0."""
        return self._rank

    @property
    def copiers(self) -> Mapping[Pair, Copier]:
        """The copier of each lane, by the names of its two tiers."""
        return MappingProxyType({pair: lane.copier for pair, lane in self.traffic.lanes.items()})

    @property
    def device(self) -> Tier:
        """The device's memory."""
        return self._tiers["device"]

    @property
    def host(self) -> Tier:
        """The host's memory, where it has some."""
        return self._tiers["host"]

    @property
    def remote(self) -> "RemoteTier | None":
        """Its shared stores; None where it has none."""
        return self._remote

    def undeleted(self) -> dict[str, int]:
        """For each shared store, by URL, returns how many values it has yet to delete.

        These are values of forgotten blocks, on this rank. 0 says that the store has answered all
        deletes that this crane was given.
        """
        remote = self._remote
        waiting = self.traffic.unvoided("remote")
        return {url: left + waiting for url, left in remote.undeleted.items()} if remote else {}

    @property
    def waiting(self) -> dict[Pair, int]:
        """How many copies wait for their copier to take them, in each lane that has such."""
        lanes = self.traffic.lanes.items()
        return {pair: len(lane.waiting) for pair, lane in lanes if lane.waiting}

    @property
    def closed(self) -> bool:
        """Whether it is closed and takes no more plans."""
        return self.traffic.closed

    @property
    def in_flight(self) -> int:
        """Flights taken and not yet reported."""
        return self.traffic.in_flight

    @owned
    def submit(self, plans: Plan | Iterable[Plan]) -> None:
        """Takes plans; their copies begin as soon as a copier takes them, in a lane oldest first.

        Where `hello` was given no number, the first plan of another yard is a handshake with that.

        Args:
            plans: One plan, or several of one yard.

        Raises:
            Misuse: One is no plan, of another group of layers, or in flight already, a tier or slot
                is not there, they are of several yards, or the crane is closed, or in another call.
                Nothing of this call is taken.
        """
        self.traffic.submit(plans_of(plans))

    @owned
    def poll(self) -> list[Outcome]:
        """Returns what has ended since the last call, each flight once.

        After an interrupt, `reconcile` returns the lost outcomes again.
        """
        outcomes = self.traffic.poll()
        self.traffic.told(outcomes)
        return outcomes

    @owned
    def deliver(self, take: Callable[[list[Outcome]], object]) -> None:
        """Gives what `poll` returns to a function, and once more where that does not end.

        Args:
            take: Takes the outcomes, perhaps twice.

        Raises:
            Misuse: Another call is under way.
        """
        outcomes = self.traffic.poll()
        take(outcomes)
        self.traffic.told(outcomes)

    @owned
    def reconcile(self, asked: Unreported) -> list[Outcome]:
        """Returns the state of flights whose outcomes may be lost, for `commit`.

        Of a flight that has ended here it is the outcome, once more. One that moves or waits is
        left out: a poll will have it. One that never came, or ended long ago, is dead: its copies
        write nothing any more, and its plan, should it come late, is not carried out. So ask in one
        order with the plans.

        Args:
            asked: `KVCache.unreported` of this rank.

        Raises:
            Misuse: It is something else, or of another group of layers, or another call is under
                way.
        """
        if not isinstance(asked, Unreported):
            raise Misuse(f"asked = {shown(asked)}: give what KVCache.unreported has returned")
        integer("asked.yard", asked.yard, least=0, most=MOST_YARD)
        flights: object = asked.flights
        if not isinstance(flights, list) or any(type(flight) is not int for flight in flights):
            raise Misuse(f"asked.flights = {shown(flights)}: must be the numbers of flights")
        if asked.group != self.traffic.group:
            raise Misuse(
                f"asked.group = {shown(asked.group)}, and this crane has group "
                f"{self.traffic.group}: ask the crane of its own group"
            )
        return self.traffic.reconcile(asked)

    @owned
    def join(self, stream: object = None, *, layer: int | None = None) -> bool:
        """Makes the engine's stream wait for the submitted copies up, where that can be.

        The stream continues after a failed copy; only the report has the failure.

        Args:
            stream: The stream that waits; None for the device tier's.
            layer: As in `CudaCopier.join`.

        Returns:
            Whether the stream waits for all of them. If not, because the copier has no streams, is
            full, or was held up by a capture, wait until the flights are reported.
        """
        lanes = [lane for lane in self.traffic.lanes.values() if lane.up]
        clear = self.traffic.go_on(lanes, Joining)
        # Each is asked, so that the stream waits for all that it can wait for.
        copiers = {id(lane.copier): lane.copier for lane in lanes}.values()
        joined = [one.join(stream, layer=layer) for one in copiers if isinstance(one, Joining)]
        return all(joined) and clear

    @owned
    def fence(self, stream: object = None) -> bool:
        """Makes the engine's stream wait for the submitted copies down, where that can be.

        An engine that gives out its blocks itself calls it before it writes what they read.

        Args:
            stream: As in `join`.

        Returns:
            As `join`.
        """
        lanes = [lane for lane in self.traffic.lanes.values() if lane.down]
        clear = self.traffic.go_on(lanes, Fencing)
        copiers = {id(lane.copier): lane.copier for lane in lanes}.values()
        fenced = [one.fence(stream) for one in copiers if isinstance(one, Fencing)]
        return all(fenced) and clear

    @owned
    def reset(self) -> None:
        """Ends all flights after a reset of the rank; the next poll reports them as dead.

        It waits until no copier writes any more, so that nothing lands late in a slot that has
        another block by then.
        """
        self.traffic.reset()

    def stats(self) -> dict[str, int]:
        """Returns counters and sizes; `SCHEMA` has units and meanings."""
        memory = sum(tier.nbytes for tier in self._tiers.values())
        numbers = self.traffic.counts | {"in_flight": self.in_flight, "bytes": memory}
        found = {stat.name: numbers[stat.name.removeprefix("crane_")] for stat in self.SCHEMA}
        stores = {} if self._remote is None else self._remote.stats()
        return found | self.persistent.stats() | stores

    def measure(self, clock: Clock = time.monotonic) -> None:
        """Counts from now on how long flights take between each two tiers, for `numbers`.

        Args:
            clock: As in `KVCache.measure`.
        """
        self.traffic.measure(clock)

    def numbers(self) -> CraneNumbers:
        """Returns this rank's numbers for the exporting process. They can be pickled."""
        return CraneNumbers(self._rank, self.stats(), self.traffic.times(), self._made)

    @owned
    def close(self) -> None:
        """Ends the copiers, then frees the tiers. `poll` still reports what was in flight.

        After an interrupt, call it again: it closes the rest.
        """
        self.traffic.close()

    def __del__(self) -> None:
        """Ends what it has where it was not closed; it waits for no thread, as it may be in one."""
        traffic: Traffic | None = getattr(self, "traffic", None)
        if traffic is not None and traffic.drop():
            unclosed(self.called, "call close(), or use it in a `with`", self)

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


def _differs(layout: KVLayout, other: KVLayout) -> str:
    mine, theirs = layout.to_mapping(), other.to_mapping()
    name = next(name for name in mine if mine[name] != theirs[name])
    return f"its {name} = {mine[name]!r}, the crane's {theirs[name]!r}"
