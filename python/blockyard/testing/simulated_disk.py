"""A simulated disk: slots and records of one rank, which outlive its process."""

import random
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from blockyard._typing import override
from blockyard.crane.copiers import BlockKeys, Landed, Receipt, Slots
from blockyard.crane.tiers import Tier, planes_of
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.shared.layout import KVLayout
from blockyard.shared.plan import Cause, Plan
from blockyard.shared.restored import Restored
from blockyard.testing.simulated_cranes import QueueCopier

__all__ = ["Records", "SimulatedDisk", "SimulatedDiskCopier", "is_anonymous"]


class Record(NamedTuple):
    """What a disk knows of the block in a slot."""

    key: bytes
    parent: bytes
    stamp: int
    sum: int
    persistent: bool
    """Whether a restart may find it."""


Records: TypeAlias = dict[int, Record]
"""By slot; a slot without one is void."""


def is_anonymous(key: bytes) -> bool:
    """Whether it stands for the key of a block that was parked before it had one."""
    return not any(key[:24])


class SimulatedDisk(MemoryTier):
    """A disk as `DiskTier` is one: each block has a record, and all of it outlives the process.

    Args:
        layout: What a block is.
        blocks: Slots.
        rank: Whose it is.
        folder: Where planes are that ranks share.
        common: The records of those planes, the same for all ranks.
        seen: Where it counts.
    """

    def __init__(
        self,
        layout: KVLayout,
        blocks: int,
        rank: int,
        folder: Path,
        common: Records,
        seen: Counter[str],
    ) -> None:
        super().__init__(layout, blocks, name="disk", shared=folder / "disk")
        self._rank = rank
        self._seen = seen
        shared = [layout.ranks > 1 and plane.replicated for plane in layout.planes]
        kinds: tuple[tuple[Records, bool], ...] = ({}, False), (common, True)
        self._parts = [
            (records, planes)
            for records, kind in kinds
            if (planes := [at for at, one in enumerate(shared) if one is kind])
        ]
        self._common = common
        self._stamps: dict[int, int] = {}
        self._floor = self._count = 0
        self._forgets = False
        self._order: tuple[int, list[int]] = 0, []
        self.run = 0
        """The number of the process that has it."""
        self.writes: list[Write] = []
        """The copies to it that have not ended."""

    @override
    def close(self) -> None:
        """Does nothing: it outlives its crane."""

    # -- what its crane does with it ---------------------------------------------------------

    @property
    def folders(self) -> tuple[str, ...]:
        """It has none."""
        return ()

    def count_as(self, run: int) -> None:
        """Counts as a later process."""
        self.run = max(self.run, run)

    def clear(self, *, patience: float = 1.0) -> bool:
        """Lets no restart find what was submitted so far."""
        del patience
        self._floor = (self.run << 32) + self._count
        return True

    def forget(self) -> None:
        """Lets no restart find what is submitted from here on."""
        self._forgets = True

    def keep_order(self, slots: NDArray[np.uint32]) -> None:
        """Notes the eviction order for the next process."""
        self._order = self.run, slots.tolist()

    def stats(self) -> dict[str, int]:
        """Returns that nothing is wrong with it."""
        return dict.fromkeys(("disk_hung", "disk_dead", "disk_clearing", "disk_in_flight"), 0)

    def resting(self) -> list[tuple[Path, Literal["writes", "reads"]]]:
        """Returns nothing."""
        return []

    def dead(self) -> frozenset[tuple[int, int]]:
        """Returns nothing: it never dies."""
        return frozenset()

    def submitted(self, plan: Plan) -> None:
        """Gives the blocks of a plan their stamps, in the order of the plans."""
        first = (self.run << 32) + self._count
        self._count += len(plan)
        self._stamps |= zip(
            plan.destinations.tolist(), range(first, first + len(plan)), strict=True
        )

    # -- a restart ---------------------------------------------------------------------------

    def end(self, chance: random.Random) -> None:
        """Ends its process: a block under way is there afterwards, or torn, or not at all.

        Args:
            chance: Decides it for each block.
        """
        likely: list[str] = chance.choice([["whole"], ["not begun"], list(_FATES)])
        for write in self.writes:
            for row in range(len(write)):
                fate = chance.choice(likely)
                write.ended_by_force(row, fate)
                self._seen[f"restart {fate}"] += 1
        self.writes.clear()

    def restored(self) -> Restored:
        """Opens it for the next process, and returns what it has for that one."""
        run, self._order = self._order[0], (0, self._order[1])
        places = dict(zip(self._order[1], range(self.blocks), strict=False))
        places = places if run == self.run else {}
        self.run += 1
        self._count, self._forgets = 0, False
        ranks, mine = self.layout.ranks, self._rank
        records, share = self._parts[0][0], (0, 1)
        if records is self._common:
            share = mine, ranks
            records = {slot: one for slot, one in records.items() if slot % ranks == mine}
        elif len(self._parts) > 1:
            records = {
                slot: one
                for slot, one in records.items()
                if slot % ranks != mine or self._common.get(slot, _NONE).stamp == one.stamp
            }
        rows = [
            (places.get(slot, self.blocks), one.stamp, slot)
            for slot, one in records.items()
            if one.persistent and one.stamp >= self._floor
        ]
        slots = [slot for *_, slot in sorted(rows)]
        return Restored(
            np.array(slots, np.uint32),
            _rows([records[slot].key for slot in slots]),
            _rows([records[slot].parent for slot in slots]),
            np.array([records[slot].stamp for slot in slots], np.uint64),
            self.run,
            share,
        )

    # -- records -----------------------------------------------------------------------------

    def parts(self, layout: KVLayout) -> Iterator[tuple[Records, list[int]]]:
        """Yields the records that a copy of some planes has to do with, and all of their planes."""
        names = {plane.name for plane in layout.planes}
        for records, planes in self._parts:
            if self.layout.planes[planes[0]].name in names:
                yield records, planes

    def sum(self, slot: int, planes: list[int]) -> int:
        """Returns the checksum of what a slot has in some planes."""
        sum_ = 0
        for plane in planes:
            sum_ = zlib.crc32(self.planes[plane][slot].tobytes(), sum_)
        return sum_

    def stamps_in(self, slot: int) -> set[int]:
        """Returns the stamps of what is in a slot, -1 where that is void."""
        return {records.get(slot, _NONE).stamp for records, _ in self._parts}

    def has(self, slot: int, key: bytes) -> bool:
        """Whether a slot has the whole block of a key."""
        found = [records.get(slot, _NONE) for records, _ in self._parts]
        whole = all(
            record.key == key and record.sum == self.sum(slot, planes)
            for record, (_, planes) in zip(found, self._parts, strict=True)
        )
        if 0 <= found[0].stamp < self.run << 32:
            self._seen["restored, served" if whole else "restored, torn"] += 1
        return whole

    def write(self, slot: int, key: bytes, parent: bytes, layout: KVLayout) -> None:
        """Writes the record of the block whose bytes are in a slot."""
        persistent = not is_anonymous(key) and not self._forgets
        for records, planes in self.parts(layout):
            sum_ = self.sum(slot, planes)
            records[slot] = Record(key, parent, self._stamps[slot], sum_, persistent)


class Write:
    """A copy to a disk, and its receipt: a slot is void from its begin, and whole at its end."""

    def __init__(
        self, disk: SimulatedDisk, receipt: Receipt, copy: tuple[Tier, Tier, Slots, Slots]
    ) -> None:
        self._disk = disk
        self._receipt = receipt
        self._source, self._destination, sources, destinations = copy
        self._sources: list[int] = sources.tolist()
        self._slots: list[int] = destinations.tolist()
        self._names: list[tuple[bytes, bytes]] = []
        self._landed: Landed | None = None
        self._before = [
            (
                records,
                planes,
                {slot: one for slot in self._slots if (one := records.pop(slot, None))},
            )
            for records, planes in disk.parts(self._destination.layout)
        ]

    def named(self, keys: BlockKeys, parents: BlockKeys) -> None:
        """Takes the keys of the blocks, and those of their parents."""
        self._names = [
            (key.tobytes(), parent.tobytes()) for key, parent in zip(keys, parents, strict=True)
        ]

    def __len__(self) -> int:
        return len(self._slots)

    def poll(self) -> Landed | None:
        """Writes the records of what is good as soon as the copy has ended."""
        if self._landed is None:
            self._landed = landed = self._receipt.poll()
            if landed is not None:
                self._disk.writes.remove(self)
                for row in range(landed.good):
                    self._disk.write(self._slots[row], *self._names[row], self._destination.layout)
        return self._landed

    def ended_by_force(self, row: int, fate: str) -> None:
        """Leaves a block as the end of the process has met it: one of `_FATES`."""
        slot = self._slots[row]
        if fate == "not begun":
            for records, planes, before in self._before:
                if slot in before and before[slot].sum == self._disk.sum(slot, planes):
                    records[slot] = before[slot]
        if fate not in {"whole", "torn"}:
            return
        written = planes_of(self._destination)
        for to, from_ in zip(written, planes_of(self._source), strict=True):
            to[slot] = from_[self._sources[row]]
        self._disk.write(slot, *self._names[row], self._destination.layout)
        if fate == "torn":
            written[-1][slot] = ~written[-1][slot]


class _Read:
    """A copy from a disk, and its receipt: it ends before what was not asked for."""

    def __init__(
        self, disk: SimulatedDisk, receipt: Receipt, slots: Slots, keys: BlockKeys
    ) -> None:
        self._disk = disk
        self._receipt = receipt
        self._asked = [
            (slot, key.tobytes()) for slot, key in zip(slots.tolist(), keys, strict=True)
        ]
        self._landed: Landed | None = None

    def poll(self) -> Landed | None:
        """Compares keys and checksums as soon as the copy has ended."""
        if self._landed is None:
            self._landed = landed = self._receipt.poll()
            if landed is not None:
                whole = [self._disk.has(*one) for one in self._asked[: landed.good]]
                if not all(whole):
                    self._landed = Landed(whole.index(False), Cause.CORRUPT)
        return self._landed


class SimulatedDiskCopier(QueueCopier):
    """The copier of a disk that outlives its process: `KeyedCopier`.

    Args:
        disk: The disk.
        polls: As in `QueueCopier`.
        copies: As in `QueueCopier`.
    """

    def __init__(self, disk: SimulatedDisk, **named: Any) -> None:  # noqa: ANN401 - as the parent
        super().__init__(("to disk", "from disk"), **named)
        self._disk = disk

    def start_keyed(
        self,
        source: Tier,
        destination: Tier,
        sources: Slots,
        destinations: Slots,
        *,
        keys: BlockKeys,
        parents: BlockKeys | None,
    ) -> Receipt | None:
        """Takes the next action of the direction, as `start`."""
        receipt = self.start(source, destination, sources, destinations)
        if receipt is None:
            return None
        if parents is None:
            return _Read(self._disk, receipt, sources, keys)
        write = Write(self._disk, receipt, (source, destination, sources, destinations))
        write.named(keys, parents)
        self._disk.writes.append(write)
        return write

    @override
    def reset(self) -> None:
        """Ends all copies: what they were to write is void."""
        super().reset()
        self._disk.writes.clear()


_FATES = ("not begun", "void", "torn", "whole")
_NONE = Record(b"", b"", -1, -1, persistent=False)


def _rows(keys: list[bytes]) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(keys), np.uint8).reshape(-1, 32)
