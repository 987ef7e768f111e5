"""Records that a tier is to void: what it does when the yard forgets blocks."""

from collections import Counter
from collections.abc import Container, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Final, Protocol, runtime_checkable

import numpy as np

from blockyard._core import Misuse, Unavailable
from blockyard.crane.copiers import BlockKeys, Landed, Receipt
from blockyard.crane.lanes import Copy, Flight
from blockyard.crane.tiers import Stamping, Tier
from blockyard.shared.plan import Cause, Plan

__all__ = ["Voiding", "Voids", "is_void"]

_AT_ONCE: Final = 256
"""Deletes that the stores are asked for at once: one that is down holds up none in the others."""
_LOOKS: Final = 4
"""Those of them that one step looks at."""


@runtime_checkable
class Voiding(Protocol):
    """A tier that can void records of blocks, so that no restart finds these again."""

    def next_stamp(self) -> int:
        """Returns a stamp that is greater than those of all blocks it was given so far."""

    def void(self, keys: BlockKeys, spared: BlockKeys, before: int) -> Receipt:
        """Voids the records of keys, and of all that stands on them, that have a smaller stamp.

        So it does with what stands on a block without a record, as that may have been one of them.

        Args:
            keys: Keys of blocks, or roots of sequences, shape (rows, 32).
            spared: Keys whose records stay, likewise.
            before: The stamp.

        Returns:
            A receipt, whose end says that this is durable, or has failed.
        """

    def void_last(self, keys: BlockKeys, spared: BlockKeys, before: int) -> None:
        """Does the same by its `close`, which comes next. No copy is under way any more."""


def is_void(plan: Plan) -> bool:
    """Whether a plan copies nothing, and its tier voids the records of its keys."""
    same = plan.source_tier == plan.destination_tier != "device"
    return same and plan.keys is not None


@dataclass(slots=True)
class _Void:
    plan: Plan
    tier: Tier
    before: int
    """The stamp of the first block that its tier was given after it."""
    receipt: Receipt | None = None
    """None until it has begun."""


@dataclass(slots=True)
class _Queue:
    """The plans of one tier, in the order in which they were taken."""

    most: int
    """That have begun and have not ended."""
    waiting: dict[Flight, _Void] = field(default_factory=dict)
    begun: dict[Flight, _Void] = field(default_factory=dict)
    looked: int = 0
    """Of those that have begun, where the next look begins."""

    def all(self) -> Iterable[tuple[Flight, _Void]]:
        return chain(self.begun.items(), self.waiting.items())

    def next_looks(self) -> list[tuple[Flight, _Void]]:
        """Returns some that have begun, and others the next time."""
        first = self.looked if self.looked < len(self.begun) else 0
        self.looked = first + _LOOKS
        return list(islice(self.begun.items(), first, self.looked))


class Voids:
    """The plans of a rank by which its tiers void records.

    One begins when all plans that were taken before it, and read or fill its tier, have ended: what
    a copy brings there late is voided, too, and what one reads there is read first. A disk voids
    for one plan after the other; stores delete for many at once.
    """

    def __init__(self) -> None:
        self._queues: dict[str, _Queue] = {}
        """By the name of the tier."""
        self._barred: Counter[bytes] = Counter()
        """Keys that shared stores are to delete, and by how many of these."""

    def __bool__(self) -> bool:
        return any(queue.begun or queue.waiting for queue in self._queues.values())

    def __contains__(self, flight: Flight) -> bool:
        return any(flight in one.begun or flight in one.waiting for one in self._queues.values())

    def take(self, flight: Flight, plan: Plan, tier: Tier) -> None:
        """Takes a plan: what its tier is given from now on stays."""
        flight.copies = 1
        void = _Void(plan, tier, _next_stamp(tier))
        if tier.name not in self._queues:
            # A disk knows by the stamps of its records what was there before.
            most = 1 if isinstance(tier, Stamping) else _AT_ONCE
            self._queues[tier.name] = _Queue(most)
        self._queues[tier.name].waiting[flight] = void
        self._barred.update(_barred(void))

    def bars(self, copy: Copy) -> bool:
        """Whether a copy puts a block into a store that is to delete it: the delete would take it.

        A store may even keep the old value, and say that it has put the new one. What was planned
        before the delete is let through: the delete waits for it.
        """
        if not self._barred or copy.keys is None or isinstance(copy.destination, Stamping):
            return False
        keys = {key for key in map(bytes, np.asarray(copy.keys)) if self._barred[key]}
        queue = self._queues.get(copy.destination.name) if keys else None
        return queue is not None and any(
            flight.order < copy.flight.order and not keys.isdisjoint(_barred(void))
            for flight, void in queue.all()
        )

    def ended(self, flights: Iterable[Flight]) -> list[tuple[Flight, Landed]]:
        """Begins what waits for no flight, and returns what has ended; `remove` it then.

        It looks at some of each tier and not at all, as a store that is down may have thousands,
        and a step is not to pay for them.

        Args:
            flights: All that have not ended.
        """
        ended = []
        for name, queue in self._queues.items():
            flight = next(iter(queue.waiting), None)
            if flight is not None and self._may_begin(name, flight, flights):
                # It has begun before it leaves, as an interrupt may come between.
                queue.begun[flight] = queue.waiting[flight]
                del queue.waiting[flight]
            for flight, void in queue.next_looks():
                landed = self._advance(void)
                if landed is not None:
                    # All or none of it is durable.
                    good = 0 if landed.cause else flight.blocks
                    ended.append((flight, Landed(good, landed.cause)))
        return ended

    def _may_begin(self, name: str, flight: Flight, flights: Iterable[Flight]) -> bool:
        queue = self._queues[name]
        if len(queue.begun) >= queue.most:
            return False
        return not any(
            one.order < flight.order and name in one.tiers and one not in queue.begun
            for one in flights
        )

    def _advance(self, void: _Void) -> Landed | None:
        if void.receipt is None:
            if not isinstance(void.tier, Voiding):
                # What is in memory alone has no records.
                return Landed(0)
            try:
                void.receipt = void.tier.void(*_rows(void.plan), void.before)
            except (Misuse, Unavailable):
                return Landed(0, Cause.FAILED)
        return void.receipt.poll()

    def waiting(self, tier: str) -> int:
        """Returns the keys that a tier is to void, and was not told of yet."""
        voids = self._queues[tier].all() if tier in self._queues else ()
        return sum(len(_rows(void.plan)[0]) for _, void in voids if void.receipt is None)

    def remove(self, flight: Flight) -> None:
        """Lets go of a plan, whose flight has ended."""
        for queue in self._queues.values():
            # After an interrupt it is in both.
            waiting, begun = queue.waiting.pop(flight, None), queue.begun.pop(flight, None)
            void = begun or waiting
            for key in _barred(void) if void is not None else ():
                self._barred[key] -= 1
                if not self._barred[key]:
                    del self._barred[key]

    def keep(self, flights: Container[Flight]) -> None:
        """Lets go of all but the plans of these flights."""
        for queue in self._queues.values():
            queue.waiting = {one: void for one, void in queue.waiting.items() if one in flights}
            queue.begun = {one: void for one, void in queue.begun.items() if one in flights}
        self._barred = Counter(key for void in self._all() for key in _barred(void))

    def clear(self) -> None:
        """Lets go of all."""
        self._queues.clear()
        self._barred.clear()

    def close(self) -> None:
        """Has the tiers void, as their last act, what was not voided yet: nothing else moves."""
        for void in self._all():
            # A delete in stores goes on by itself, and is not to be counted twice.
            goes_on = getattr(void.receipt, "patient", False)
            if isinstance(void.tier, Voiding) and not goes_on:
                with suppress(Misuse, Unavailable):
                    void.tier.void_last(*_rows(void.plan), void.before)

    def _all(self) -> list[_Void]:
        return [void for queue in self._queues.values() for _, void in queue.all()]


def _barred(void: _Void) -> list[bytes]:
    """The keys of which a tier cannot tell by a stamp which of their bytes came first."""
    if isinstance(void.tier, Stamping) or not isinstance(void.tier, Voiding):
        return []
    return [bytes(key) for key in np.asarray(void.plan.keys)]


def _next_stamp(tier: Tier) -> int:
    return tier.next_stamp() if isinstance(tier, Voiding) else 0


def _rows(plan: Plan) -> tuple[BlockKeys, BlockKeys]:
    """Returns the keys whose records go, and those whose records stay."""
    keys = np.asarray(plan.keys)
    if plan.parents is None:
        return keys, keys[:0]
    stays = (plan.parents == np.uint8(0xFF)).all(axis=1)
    return keys[~stays], keys[stays]
