"""Memory full of known bytes, a store in memory, and the copies between them."""

import time
from typing import Any

import numpy as np

import blockyard as by
from blockyard.crane.copiers.store_copier import StoreCopier
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.crane.tiers.remote import RemoteTier
from cranes import SMALL
from disks import OURS, keys, slots
from memory_stores import MemoryStore

BLOCKS = 12


class Rig:
    """Memory full of known bytes, and what copies between it and stores."""

    def __init__(
        self,
        *stores: MemoryStore,
        layout: by.KVLayout = SMALL,
        clock: Any = time.monotonic,
        patience: float = 30.0,
        memory: MemoryTier | None = None,
        **more: Any,
    ) -> None:
        self.store = (stores or (MemoryStore(),))[0]
        given: dict[str, Any] = {"identity": OURS, "ending": 0.5} | more
        self.tier = RemoteTier(layout, 1000, stores or [self.store], **given)
        self.copier = StoreCopier(self.tier, patience=patience, clock=clock)
        self.memory = MemoryTier(layout, BLOCKS) if memory is None else memory
        noise = np.random.default_rng(3 + self.tier.rank)
        for plane in self.memory.planes:
            plane[...] = noise.integers(0, 256, plane.shape, np.uint8)
        self.was = [np.array(plane) for plane in self.memory.planes]

    def down(self, *numbers: int) -> Any:
        named, some = keys(*(1 + number for number in numbers)), slots(*numbers)
        ends = self.memory, self.tier, some, some
        return self.copier.start_keyed(*ends, keys=named, parents=named * 0)

    def up(self, *numbers: int, to: Any) -> Any:
        named = keys(*(1 + number for number in numbers))
        ends = self.tier, self.memory, slots(*numbers), slots(*to)
        return self.copier.start_keyed(*ends, keys=named, parents=None)

    def holds(self, slot: int, number: int) -> bool:
        """Whether a slot has what a block was put with."""
        pairs = zip(self.memory.planes, self.was, strict=True)
        return all((plane[slot] == was[number]).all() for plane, was in pairs)

    def forget(self, *numbers: int) -> Any:
        return self.copier.delete(keys(*(1 + number for number in numbers)))

    def stats(self) -> dict[str, int]:
        stats = self.tier.stats()
        return {name.removeprefix("remote_"): number for name, number in stats.items()}

    def close(self) -> None:
        self.store.go.set()
        self.copier.close()
        self.tier.close()
