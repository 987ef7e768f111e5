"""`Crane`: one rank's memory and its copies. It takes plans, polls them and reports."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from blockyard._core import Misuse, Unsupported
from blockyard.crane.copiers import (
    BlockKeys,
    Copier,
    Joining,
    KeyedCopier,
    Landed,
    Receipt,
    Slots,
    Turning,
)
from blockyard.crane.copiers.select import select_copier
from blockyard.crane.tiers import Tier
from blockyard.shared.layout import Hello, KVLayout
from blockyard.shared.log import Limited
from blockyard.shared.plan import Cause, Outcome, Plan
from blockyard.shared.stall import Clock, Fact, Rule, StallWatch, lasting, those
from blockyard.shared.stats import Stat
from blockyard.shared.thresholds import Thresholds
from blockyard.shared.validate import integer

__all__ = ["Crane"]

_log = Limited("blockyard")


class Crane:
    """Moves the bytes of one rank. It knows slots and bytes, but no block, lease or policy.

    Only `reset` and `close` wait. Use it from one thread at a time, and make it after fork or
    spawn, in the process that uses it. It owns its tiers and its copier, and closes them.

    Below the device, each block of a `replicated` plane is written by one rank only: the one whose
    number is the destination slot modulo the ranks. Every rank reads all of them.

    Args:
        layout: What a block is; the tiers have the same.
        rank: Which rank this is, from 0.
        device: The device's memory.
        host: The host's memory; None for none.
        copier: The copier; None for the one that fits the tiers: a `CudaCopier` where the device
            is a GPU, else a `ThreadCopier`.
        thresholds: The configuration's, for a `CudaCopier` that is made here.
        fingerprint: Of the configuration that this process was started with; without one the
            layout's own.
        clock: Seconds, for `stalled` and its log alone.

    Raises:
        Misuse: A tier has another name or layout, or the layout has no such rank.
    """

    SCHEMA = (
        Stat("crane_flights", "flights", "plans that this rank's crane has taken"),
        Stat("crane_in_flight", "flights", "of these, not yet reported"),
        Stat("crane_failed", "flights", "of these, not every block came whole"),
        Stat("crane_blocks", "blocks", "blocks that landed intact on this rank"),
        Stat("crane_bytes", "bytes", "memory of this rank's tiers"),
    )
    """Name, unit and meaning of each number in `stats`."""

    def __init__(
        self,
        layout: KVLayout,
        *,
        rank: int = 0,
        device: Tier,
        host: Tier | None = None,
        copier: Copier | None = None,
        thresholds: Thresholds | None = None,
        fingerprint: str = "",
        clock: Clock = time.monotonic,
    ) -> None:
        rank = integer("rank", rank, least=0)
        if rank >= layout.ranks:
            raise Misuse(f"rank = {rank}: the layout has ranks 0 to {layout.ranks - 1}")
        self._tiers = {"device": device} | ({"host": host} if host is not None else {})
        for name, tier in self._tiers.items():
            if tier.name != name:
                raise Misuse(f"{name} = a tier named {tier.name!r}: make it with name={name!r}")
            if tier.layout != layout:
                raise Misuse(f"the {name} tier has another layout: {_differs(tier.layout, layout)}")
        self._layout = layout
        self._rank = rank
        self._fingerprint = fingerprint or layout.fingerprint
        self._copier: Copier = select_copier(device, host, thresholds) if copier is None else copier
        self._turn: Callable[[], AbstractContextManager[object]] = nullcontext
        if isinstance(self._copier, Turning):
            self._turn = self._copier.turn
        shared = [layout.ranks > 1 and plane.replicated for plane in layout.planes]
        self._common = [index for index, common in enumerate(shared) if common]
        self._private = [index for index, common in enumerate(shared) if not common]
        self._flights: dict[int, _Flight] = {}
        self._waiting: deque[_Copy] = deque()
        self._moving: list[tuple[_Copy, Receipt]] = []
        self._reported: list[Outcome] = []
        self._counts = dict.fromkeys(("flights", "failed", "blocks"), 0)
        self._closed = False
        self._polls = 0
        self._watch = StallWatch(__name__, clock)

    def hello(self) -> Hello:
        """Returns what it reports at the handshake."""
        host = self._tiers.get("host")
        blocks = (self._tiers["device"].blocks, 0 if host is None else host.blocks)
        return Hello(self._rank, self._fingerprint, *blocks, self._layout.fingerprint)

    @property
    def copier(self) -> Copier:
        """The copier that moves its bytes."""
        return self._copier

    @property
    def closed(self) -> bool:
        """Whether it is closed and takes no more plans."""
        return self._closed

    @property
    def in_flight(self) -> int:
        """Flights taken and not yet reported."""
        return len(self._flights) + len(self._reported)

    def submit(self, plans: Plan | Iterable[Plan]) -> None:
        """Takes plans; their copies begin as soon as the copier takes them, oldest first.

        Args:
            plans: One plan, or several.

        Raises:
            Misuse: A flight is in flight already, a tier or slot is not there, a plan carries keys
                and the copier takes none, or the crane is closed. Nothing of this call is taken.
        """
        if self._closed:
            raise Misuse("the crane is closed: it takes no plan")
        self._watch.step(self.standing)
        taken: dict[int, _Flight] = {}
        copies: list[_Copy] = []
        for plan in [plans] if isinstance(plans, Plan) else plans:
            if plan.flight in self._flights or plan.flight in taken:
                raise Misuse(f"flight = {plan.flight}: it is in flight already; submit it once")
            taken[plan.flight] = flight = _Flight(plan.flight, len(plan))
            copies += self._copies(plan, flight)
        self._flights |= taken
        self._waiting += copies
        self._counts["flights"] += len(taken)
        self._report(flight for flight in taken.values() if not flight.copies)
        with self._turn():
            self._start()

    def poll(self) -> list[Outcome]:
        """Returns what has ended since the last call, each flight once."""
        self._polls += 1
        moving, self._moving = self._moving, []
        with self._turn() if moving or self._waiting else nullcontext():
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
        with self._turn():
            self._start()
        held = [copy for copy in self._waiting if copy.destination.name == "device"]
        if isinstance(self._copier, Joining):
            return self._copier.join(stream, layer=layer) and not held
        held += [copy for copy, _ in self._moving if copy.destination.name == "device"]
        return not held

    def reset(self) -> None:
        """Ends all flights after a reset of the rank; the next poll reports them as dead.

        It waits until the copier writes no more, so that nothing lands late in a slot that has
        another block by then.
        """
        self._copier.reset()
        self._waiting.clear()
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
        return {stat.name: numbers[stat.name.removeprefix("crane_")] for stat in self.SCHEMA}

    def close(self) -> None:
        """Ends the copier, then frees the tiers. `poll` still reports what was in flight."""
        if self._closed:
            return
        self._closed = True
        self._copier.close()
        while self._waiting:
            self._land(self._waiting.popleft(), Landed(0, Cause.DEAD))
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

    def _copies(self, plan: Plan, flight: "_Flight") -> list["_Copy"]:
        """Returns what the copier has to do for a plan."""
        if plan.group:
            raise Unsupported(f"group = {plan.group}: there is one group of layers, 0")
        sources, destinations = plan.sources, plan.destinations
        source = self._tier(plan.flight, plan.source_tier, sources)
        destination = self._tier(plan.flight, plan.destination_tier, destinations)
        keys, parents = plan.keys, plan.parents
        if keys is not None and not isinstance(self._copier, KeyedCopier):
            raise Misuse(
                f"flight {plan.flight} carries keys, and {type(self._copier).__name__} takes none: "
                "give the Crane a copier with start_keyed, or the yard no keyed tiers"
            )
        copies = [_Copy(flight, source, destination, sources, destinations, None, keys, parents)]
        if plan.destination_tier != "device" and self._common:
            mine = np.flatnonzero(destinations % self._layout.ranks == self._rank)
            copies = [
                _Copy(
                    flight,
                    _PlaneSubset(source, self._common),
                    _PlaneSubset(destination, self._common),
                    sources[mine],
                    destinations[mine],
                    mine,
                    None if keys is None else keys[mine],
                    None if parents is None else parents[mine],
                )
            ]
            if self._private:
                here, there = (_PlaneSubset(tier, self._private) for tier in (source, destination))
                copies.append(
                    _Copy(flight, here, there, sources, destinations, None, keys, parents)
                )
        copies = [copy for copy in copies if len(copy.sources)]
        flight.copies = len(copies)
        return copies

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
        """Starts waiting copies, until the copier takes no more."""
        while self._waiting:
            copy = self._waiting[0]
            try:
                receipt = copy.start(self._copier)
            except Exception as error:  # noqa: BLE001 - it fails the flight, never the crane
                _log.warning("a copy of %d blocks was refused: %r", len(copy.sources), error)
                self._land(self._waiting.popleft(), Landed(0, Cause.FAILED))
                continue
            if receipt is None:
                return
            self._moving.append((self._waiting.popleft(), receipt))

    def _land(self, copy: "_Copy", landed: Landed) -> None:
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

    def _report(self, flights: Iterable["_Flight"]) -> None:
        for flight in flights:
            del self._flights[flight.number]
            self._reported.append(Outcome(flight.number, self._rank, flight.good, flight.cause))
            self._counts["failed"] += flight.cause is not None
            self._counts["blocks"] += flight.good


@dataclass(slots=True, eq=False)
class _Flight:
    """A plan in flight, on this rank."""

    number: int
    blocks: int
    copies: int = 0
    """Copies that have not landed."""
    good: int = field(init=False)
    cause: Cause | None = None

    def __post_init__(self) -> None:
        self.good = self.blocks


@dataclass(slots=True, eq=False, frozen=True)
class _Copy:
    """One copy that the copier is asked for."""

    flight: _Flight
    source: Tier
    destination: Tier
    sources: Slots
    destinations: Slots
    which: NDArray[np.intp] | None = None
    """Which blocks of the plan it copies; None for all."""
    keys: BlockKeys | None = None
    parents: BlockKeys | None = None

    def start(self, copier: Copier) -> Receipt | None:
        """Asks a copier for it, with the keys of its blocks where the plan carries them."""
        what = self.source, self.destination, self.sources, self.destinations
        if self.keys is None:
            return copier.start(*what)
        keyed = cast("KeyedCopier", copier)
        return keyed.start_keyed(*what, keys=self.keys, parents=self.parents)


class _PlaneSubset:
    """A tier with some of its planes only."""

    def __init__(self, tier: Tier, planes: list[int]) -> None:
        self.name = tier.name
        self.layout = replace(
            tier.layout, planes=tuple(tier.layout.planes[index] for index in planes)
        )
        self.blocks = tier.blocks
        self.nbytes = tier.blocks * self.layout.block_bytes
        self._whole = tier
        self._planes = planes

    @property
    def planes(self) -> tuple[Any, ...]:
        """Some of the tier's planes."""
        return tuple(self._whole.planes[index] for index in self._planes)

    def close(self) -> None:
        """Does nothing: the whole tier is closed by the crane."""


def _differs(layout: KVLayout, other: KVLayout) -> str:
    mine, theirs = layout.to_mapping(), other.to_mapping()
    name = next(name for name in mine if mine[name] != theirs[name])
    return f"its {name} = {mine[name]!r}, the crane's {theirs[name]!r}"
