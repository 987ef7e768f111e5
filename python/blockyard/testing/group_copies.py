"""The memory below a simulated engine with groups of layers, and copies that come late or fail."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from blockyard.crane.voids import is_void
from blockyard.shared.plan import Cause, Outcome, Plan
from blockyard.yard.cache import KVCache

__all__ = ["Content", "GroupCopies"]

Content = tuple[Any, ...]
"""What a block holds: the epoch of the weights, its group, and all tokens up to its end."""
_JUNK: Final = ("junk",)
_BAD: Final = ("bad",)
"""Content that a checksum notices."""


@dataclass(slots=True, eq=False)
class _Copy:
    """A plan that was submitted, and how it went."""

    plan: Plan
    is_made: bool = False
    good: int = 0
    cause: Cause | None = None
    is_lost: bool = False
    """Whether its outcome is late, for longer than its deadline."""

    def touches(self, ids: set[int]) -> bool:
        """Whether it reads or writes any of these blocks of the engine."""
        plan = self.plan
        if plan.destination_tier == "device":
            return not ids.isdisjoint(plan.destinations.tolist())
        return plan.source_tier == "device" and not ids.isdisjoint(plan.sources.tolist())


class GroupCopies:
    """A worker over the tiers of all groups. Each copy is made at a random time, in any order.

    Args:
        blocks: The engine's blocks.
        slots: For each group the slots of each tier below.
        draw: Randomness.
        seen: What has happened.
    """

    def __init__(
        self, blocks: int, slots: list[dict[str, int]], draw: Random, seen: Counter[str]
    ) -> None:
        self._draw, self._seen = draw, seen
        self.slots = slots
        self.device: list[Content] = [_JUNK] * (blocks + 1)
        self._below: dict[tuple[int, str], list[Content]] = {
            (group, tier): [_JUNK] * count
            for group, tiers in enumerate(slots)
            for tier, count in tiers.items()
        }
        self._records: list[dict[int, tuple[bytes, bytes, Content]]] = [{} for _ in slots]
        """By group, what each slot of the disk has: its key, its parent's, and the content."""
        self.floors = [0] * len(slots)
        """By group, the first epoch that counts on its disk."""
        self._dead: list[set[int]] = [set() for _ in slots]
        self._lost: set[int] = set()
        """Which of three disks have died."""
        self._copies: list[_Copy] = []
        self.taken = 0
        """Plans that it has taken."""
        self.loads_fail = False
        self.can_fail = True

    def __len__(self) -> int:
        return len(self._copies)

    def submit(self, plans: Iterable[Plan]) -> None:
        """Takes plans."""
        for plan in plans:
            self.taken += 1
            self._copies.append(_Copy(plan))
            way = f"{plan.source_tier} to {plan.destination_tier}"
            self._seen[f"{way}{' of a rider' if plan.group else ''}"] += len(plan)
            if is_void(plan):
                self._void(plan)
            elif plan.destination_tier == "disk":
                for slot in plan.destinations.tolist():
                    self._records[plan.group].pop(slot, None)

    def keep_fence(self, ids: Iterable[int]) -> None:
        """Makes what reads or writes these blocks of the engine, before they are written."""
        written = set(ids)
        for copy in self._copies:
            if not copy.is_made and copy.touches(written):
                self._seen["fence"] += 1
                self._make(copy)

    def go_on(self) -> None:
        """Makes some copies, whichever."""
        for copy in self._draw.sample(self._copies, min(len(self._copies), 2)):
            self._make(copy)

    def outcomes(self, *, every: bool = False) -> list[Outcome]:
        """Returns what some copies report, or all; some outcomes come twice."""
        told = []
        for copy in list(self._copies):
            if not every and (copy.is_lost or self._draw.random() < 0.5):  # noqa: PLR2004
                continue
            if not every and self.can_fail and self._draw.random() < 0.04:  # noqa: PLR2004
                copy.is_lost = True
                continue
            self._make(copy)
            self._copies.remove(copy)
            told.append(Outcome.of(copy.plan, 0, copy.good, copy.cause))
        told += [one for one in told if self._draw.random() < 0.1]  # noqa: PLR2004
        return told

    def find_lost(self) -> None:
        """Lets outcomes come after all that were later than their deadline."""
        for copy in self._copies:
            if copy.is_lost and self._draw.random() < 0.5:  # noqa: PLR2004
                copy.is_lost = False

    def _make(self, copy: _Copy) -> None:
        if copy.is_made:
            return
        plan = copy.plan
        count, group = len(plan), plan.group
        up = plan.destination_tier == "device"
        fails = self.can_fail and self._draw.random() < 0.08  # noqa: PLR2004
        ends = self._draw.randrange(count) if count and (fails or (up and self.loads_fail)) else -1
        copy.is_made, copy.good = True, count
        if is_void(plan):
            return
        source, target = self._of(group, plan.source_tier), self._of(group, plan.destination_tier)
        keys, parents = plan.keys, plan.parents
        for at, (a, b) in enumerate(
            zip(plan.sources.tolist(), plan.destinations.tolist(), strict=True)
        ):
            if copy.good == count:
                if at == ends or self._is_dead(group, plan, a, b):
                    copy.good, copy.cause = at, Cause.FAILED
                elif plan.source_tier != "device" and source[a] == _BAD:
                    copy.good, copy.cause = at, Cause.CORRUPT
            target[b] = source[a] if copy.good == count else ("half",)
            if copy.good == count and plan.destination_tier == "disk" and keys is not None:
                assert parents is not None  # noqa: S101 - both or none
                record = bytes(keys[at]), bytes(parents[at]), source[a]
                self._records[group][b] = record

    def _void(self, plan: Plan) -> None:
        """Voids the records of some keys, behind all copies of before, and what stands on them."""
        for copy in self._copies:
            if copy.plan.group == plan.group:
                self._make(copy)
        stays, records = bytes([255] * 32), self._records[plan.group]
        parents = plan.keys if plan.parents is None else plan.parents
        rows = list(zip(map(bytes, plan.keys), map(bytes, parents), strict=True))  # type: ignore[arg-type]
        gone = {key for key, parent in rows if parent != stays}
        spared = {key for key, parent in rows if parent == stays}
        while found := [
            slot
            for slot, (key, parent, _) in records.items()
            if key not in spared and gone & {key, parent}
        ]:
            gone |= {records.pop(slot)[0] for slot in found}

    def _of(self, group: int, tier: str) -> list[Content]:
        return self.device if tier == "device" else self._below[group, tier]

    def _is_dead(self, group: int, plan: Plan, a: int, b: int) -> bool:
        dead = self._dead[group]
        return (plan.source_tier == "disk" and a in dead) or (
            plan.destination_tier == "disk" and b in dead
        )

    # -- events ------------------------------------------------------------------------------

    def rot(self) -> None:
        """Spoils a block below."""
        memory = self._below[self._draw.choice(list(self._below))]
        at = self._draw.randrange(len(memory))
        if memory[at][0] not in {"junk", "half"}:
            memory[at] = _BAD
            self._seen["rotten block"] += 1

    def die(self) -> frozenset[tuple[int, int]]:
        """Loses one of three disks, but never the last; returns the slots of all that are lost."""
        first, step = self._draw.randrange(3), 3
        if len(self._lost | {first}) == step:
            return frozenset((one, step) for one in self._lost)
        self._lost.add(first)
        for group, tiers in enumerate(self.slots):
            gone = range(first, tiers.get("disk", 0), step)
            self._dead[group].update(gone)
            for slot in gone:
                self._below[group, "disk"][slot] = ("dead",)
                self._records[group].pop(slot, None)
        return frozenset((one, step) for one in self._lost)

    def reset(self) -> None:
        """Ends all copies: none is made any more."""
        self._copies.clear()
        self.device = [_JUNK] * len(self.device)

    def restart(self, caches: Iterable[KVCache]) -> None:
        """Loses the engine's blocks and the hosts; new caches find some of the disks' records."""
        self.reset()
        found: list[dict[bytes, int]] = []
        self._lost.clear()
        for group, cache in enumerate(caches):
            self._dead[group].clear()
            for (one, tier), memory in self._below.items():
                if one == group and tier == "host":
                    memory[:] = [_JUNK] * len(memory)
            records = self._records[group]
            by_key: dict[bytes, int] = {}
            for slot, (key, _, content) in list(records.items()):
                old = content[0] != "bad" and content[0] < self.floors[group]
                old |= key.startswith(bytes(24))  # a partial block, which has no key of its own
                if old or key in by_key or self._draw.random() < 0.2:  # noqa: PLR2004
                    del records[slot]
                else:
                    by_key[key] = slot
            slots = list(by_key.values())
            if slots:
                keys = b"".join(records[slot][0] for slot in slots)
                parents = b"".join(records[slot][1] for slot in slots)
                cache.restore("disk", slots, keys, parents)
            self._seen["restored" + " rider" * bool(group)] += len(slots)
            found.append(by_key)
            alone = [key for key in by_key if key not in found[0]]
            self._seen["restored without its spine"] += len(alone)
