"""Lanes: the copies of a rank from one tier to another. A slow one holds up no other."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from blockyard._core import Misuse
from blockyard._typing import NDArray
from blockyard.crane.copiers import BlockKeys, Copier, KeyedCopier, Pair, Receipt, Slots
from blockyard.crane.tiers import Mapped, Tier, is_mapped
from blockyard.shared.plan import Cause, Outcome, Plan
from blockyard.shared.validate import bounded, shown

__all__ = ["Copy", "Flight", "Lane", "dead", "plans_of"]


@dataclass(slots=True, eq=False)
class Flight:
    """A plan in flight, on this rank."""

    number: int
    blocks: int
    order: int
    """How many were submitted before it."""
    tiers: frozenset[str] = frozenset()
    """The names of the two that it copies between, or of the one whose records it voids."""
    copies: int = 0
    """Copies that have not landed."""
    good: int = field(init=False)
    cause: Cause | None = None

    def __post_init__(self) -> None:
        """All blocks count as intact until a copy reports otherwise."""
        self.good = self.blocks


@dataclass(slots=True, eq=False, frozen=True)
class Copy:
    """One copy that a copier is asked for."""

    flight: Flight
    lane: "Lane"
    source: Tier
    destination: Tier
    sources: Slots
    destinations: Slots
    which: NDArray[np.intp] | None = None
    """Which blocks of the plan it copies; None for all."""
    keys: BlockKeys | None = None
    parents: BlockKeys | None = None


class Lane:
    """The copies from one tier to another: what waits for their copier, the oldest first.

    Copies of one lane begin in the order in which they were submitted. Those of two lanes are in no
    order: a yard never has two flights where one writes a slot of the other.

    Args:
        source: Where the bytes are.
        destination: Where they go.
        copier: What copies them; other lanes may have the same.
        rank: The rank. Below the device it writes its share of the slots of replicated planes.
    """

    def __init__(self, source: Tier, destination: Tier, copier: Copier, rank: int) -> None:
        self.pair: Pair = source.name, destination.name
        self.copier = copier
        self.waiting: deque[Copy] = deque()
        self._rank = rank
        self._ranks = source.layout.ranks
        self._parts: list[tuple[Tier, Tier, bool]] = [(source, destination, False)]
        """Tiers, or some of their planes; and whether only this rank's share of slots is copied."""
        below = self._ranks > 1 and destination.name != "device"
        if below and is_mapped(source) and is_mapped(destination):
            planes = source.layout.planes
            shared = [index for index, plane in enumerate(planes) if plane.replicated]
            own = [index for index, plane in enumerate(planes) if not plane.replicated]
            if shared:
                self._parts = [
                    (_PlaneSubset(source, some), _PlaneSubset(destination, some), some is shared)
                    for some in (shared, own)
                    if some
                ]

    @property
    def up(self) -> bool:
        """Whether it ends on the device."""
        return self.pair[1] == "device"

    @property
    def down(self) -> bool:
        """Whether it leaves the device."""
        return self.pair[0] == "device" and not self.up

    def copies(
        self,
        flight: Flight,
        sources: Slots,
        destinations: Slots,
        keys: BlockKeys | None = None,
        parents: BlockKeys | None = None,
    ) -> list[Copy]:
        """Returns what the copier has to do for a flight, which counts it.

        Args:
            flight: The flight.
            sources: Slots, shape (blocks,).
            destinations: Slots, shape (blocks,).
            keys: The keys of its blocks, shape (blocks, 32), where its plan carries them.
            parents: Those of their parents, likewise.
        """
        copies = []
        for source, destination, share in self._parts:
            ends: tuple[Slots, Slots] = sources, destinations
            names: tuple[BlockKeys | None, ...] = keys, parents
            which = None
            if share:
                which = np.flatnonzero(destinations % self._ranks == self._rank)
                ends = sources[which], destinations[which]
                names = tuple(None if rows is None else rows[which] for rows in names)
            if len(ends[0]):
                copies.append(Copy(flight, self, source, destination, *ends, which, *names))
        flight.copies = len(copies)
        return copies

    def begin(self, copy: Copy) -> Receipt | None:
        """Asks the copier for a copy that waits no more; None if it takes no more now.

        Raises:
            Exception: The copier has refused it.
        """
        what = copy.source, copy.destination, copy.sources, copy.destinations
        if copy.keys is None:
            return self.copier.start(*what)
        keyed = cast("KeyedCopier", self.copier)
        return keyed.start_keyed(*what, keys=copy.keys, parents=copy.parents)


class _PlaneSubset:
    """A tier with some of its planes only."""

    def __init__(self, tier: Mapped, planes: list[int]) -> None:
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


def dead(outcome: Outcome) -> Outcome:
    """Returns an outcome as it is when nothing writes any more, where its device was lost."""
    return outcome._replace(cause=Cause.DEAD) if outcome.cause is Cause.LOST else outcome


def plans_of(given: object) -> list[Plan]:
    """One plan or several, as a list.

    Args:
        given: What was given.

    Raises:
        Misuse: It is something else.
    """
    if isinstance(given, Plan):
        return [given]
    if not isinstance(given, Iterable):
        raise Misuse(f"plans = {shown(given)}: give plans, as `dispatch` returns them")
    all_ = bounded("plans", given)
    plans = [plan for plan in all_ if isinstance(plan, Plan)]
    if len(plans) < len(all_):
        wrong = next(plan for plan in all_ if not isinstance(plan, Plan))
        raise Misuse(f"plans have {shown(wrong)}: give plans, as `dispatch` returns them")
    return plans
