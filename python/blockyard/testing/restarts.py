"""Restarts within a simulation: what outlives a process, and a naive record of what must."""

import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from blockyard.crane.persistent import PersistentTiers
from blockyard.shared.plan import Plan
from blockyard.shared.restored import Restored
from blockyard.testing.engine import check
from blockyard.testing.setup import Setup
from blockyard.testing.simulated_disk import Records, SimulatedDisk, is_anonymous
from blockyard.yard.cache import KVCache
from blockyard.yard.config import Config

__all__ = ["Remains"]


class _Block(NamedTuple):
    """A block that was sent to a slot of the disk."""

    slot: int
    key: bytes
    parent: bytes
    stamp: int


class Remains:
    """The disks of all ranks, and what is known of them by plans and outcomes alone.

    A restart must find each block that all ranks have reported as written, unless another was sent
    to its slot since, or all was cleared. It may find what was under way, and nothing else.

    Args:
        setup: Whether the disk outlives the process.
        config: The sizes of the cranes' tiers.
        folder: Where planes are that ranks share.
        seen: Where it counts.
    """

    def __init__(self, setup: Setup, config: Config, folder: Path, seen: Counter[str]) -> None:
        self._seen = seen
        layout, common = config.layout, Records()
        lasts = setup.disk_lasts and setup.cranes == "here" and config.disk_blocks
        assert layout is not None  # noqa: S101 - `config_of` makes one
        self.disks = [
            SimulatedDisk(layout, config.disk_blocks, rank, folder, common, seen)
            for rank in range(config.ranks if lasts else 0)
        ]
        """One for each rank; none where they do not outlive the process."""
        self._ranks: list[PersistentTiers] = []
        self._run = self._count = 0
        self._forgets = False
        self._sent: set[_Block] = set()
        """What was sent since the last clear, and may be found."""
        self._written: dict[int, _Block] = {}
        """What must be found, by slot."""
        self._air: dict[int, list[_Block]] = {}
        self._order: list[int] = []

    @property
    def slots(self) -> int:
        """The slots of each disk; 0 where there is none."""
        return self.disks[0].blocks if self.disks else 0

    def disk(self, rank: int) -> SimulatedDisk | None:
        """Returns the disk of a rank; None where there is none."""
        return self.disks[rank] if self.disks else None

    def launched(self, plan: Plan) -> None:
        """Notes a plan that the cranes are given."""
        keys, parents = plan.keys, plan.parents
        if not self.disks or keys is None or parents is None:
            return
        blocks = []
        for slot, key, parent in zip(plan.destinations.tolist(), keys, parents, strict=True):
            stamp = (self._run << 32) + self._count
            blocks.append(_Block(slot, key.tobytes(), parent.tobytes(), stamp))
            self._count += 1
            self._written.pop(slot, None)
        self._air[plan.flight] = blocks
        if not self._forgets:
            self._sent.update(block for block in blocks if not is_anonymous(block.key))

    def ended(self, flight: int, good: int) -> None:
        """Notes that all ranks have reported a flight, with so many good blocks."""
        for block in self._air.pop(flight, [])[:good]:
            if block in self._sent:
                self._written[block.slot] = block

    def clear(self, *, forget: bool = False) -> None:
        """Clears the disks, after the plans of before.

        Args:
            forget: As in `PersistentTiers.clear`.
        """
        for rank in self._ranks:
            rank.clear(forget=forget)
        self._sent.clear()
        self._written.clear()
        self._forgets |= forget

    def end(self, cache: KVCache, how: str, seed: int) -> None:
        """Ends the process, before its cranes are closed.

        Args:
            cache: The yard.
            how: "closed", so that the eviction order is kept, or "killed".
            seed: Decides what is there of the copies that are under way.
        """
        self._order = []
        if self.disks and how == "closed":
            order = cache.eviction_order("disk")
            self._order = order.tolist()
            for rank in self._ranks:
                rank.keep_order(order)
        for number, disk in enumerate(self.disks):
            disk.end(random.Random(f"{seed} {number}"))  # noqa: S311 - not for cryptography

    def begin(self, ranks: list[PersistentTiers], caches: Iterable[KVCache]) -> None:
        """Begins a process on the remains, and checks what its yards are given (INV-26 to 31).

        Args:
            ranks: The tiers of each that outlive it.
            caches: The yards.
        """
        self._ranks = ranks
        self._air.clear()
        self._count, self._forgets = 0, False
        self._run += 1
        if not self.disks:
            return
        found = Restored.agreed([one for rank in ranks if (one := rank.restored()) is not None])
        for rank in ranks:
            rank.count_as(found.run)
        blocks = [
            _Block(slot, key.tobytes(), parent.tobytes(), stamp)
            for slot, key, parent, stamp in zip(
                found.slots.tolist(), found.keys, found.parents, found.stamps.tolist(), strict=True
            )
        ]
        self._check_found(blocks)
        order = self._expected(blocks)
        for cache in caches:
            cache.restore("disk", found.slots, found.keys, found.parents)
            idle = cache.stats()["disk_idle"]
            check(idle == len(blocks), f"of {len(blocks)} restored blocks the yard has {idle}")
            evicted = cache.eviction_order("disk").tolist()
            check(evicted == order, f"restored blocks leave in the order {evicted}, not {order}")

    def _check_found(self, blocks: list[_Block]) -> None:
        """Checks that all is found that must be, and nothing that may not be."""
        for block in blocks:
            must = self._written.get(block.slot, block)
            check(block in self._sent, f"INV-28, INV-31: a restart finds {_named(block)}")
            alike = all(disk.stamps_in(block.slot) == {block.stamp} for disk in self.disks)
            check(alike, f"INV-28: not all ranks have {_named(block)}")
            check(block == must, f"slot {block.slot} has {_named(must)}, found is {_named(block)}")
        keys = {block.key for block in blocks}
        lost = [_named(block) for block in self._written.values() if block.key not in keys]
        check(not lost, f"INV-27: a restart does not find {lost}, which were reported as written")
        self._seen["restored"] += len(blocks)
        self._seen["restored, not reported"] += len(set(blocks) - set(self._written.values()))

    def _expected(self, blocks: list[_Block]) -> list[int]:
        """Returns the slots in the order in which their blocks must be evicted.

        It is that of a clean close, and behind it that of the writes; but a block stands right
        behind the last of those that follow it in a sequence.
        """
        places = dict(zip(self._order, range(len(self._order)), strict=True))
        rows = sorted(blocks, key=lambda one: (places.get(one.slot, len(places)), one.stamp))
        parents = {block.key: block.parent for block in blocks}
        last, depth = dict[bytes, int](), dict[bytes, int]()
        for at, block in enumerate(rows):
            above, walked = block.key, 0
            while above in parents:
                last[above] = at
                above, walked = parents[above], walked + 1
            depth[block.key] = walked
        rows.sort(key=lambda block: (last[block.key], -depth[block.key]))
        return [block.slot for block in rows]


def _named(block: _Block) -> str:
    return f"block {block.key.hex()[-8:]} of stamp {block.stamp:#x} in slot {block.slot}"
