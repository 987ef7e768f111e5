"""A tier that stores the key of each slot's block, and a copier that writes and compares them."""

import numpy as np

from blockyard.crane.copiers import BlockKeys, Landed, Receipt, Slots
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.crane.tiers import Tier
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.shared.layout import KVLayout
from blockyard.shared.plan import Cause


class KeyedTier(MemoryTier):
    """Host memory with a record per slot: whose block it has, and behind whose it stands."""

    def __init__(self, layout: KVLayout, blocks: int) -> None:
        super().__init__(layout, blocks, name="host")
        self.keys: BlockKeys = np.zeros((blocks, 32), np.uint8)
        self.parents: BlockKeys = np.zeros((blocks, 32), np.uint8)

    def slot_of(self, key: bytes) -> int:
        """The only slot that has this key."""
        (slot,) = np.flatnonzero((self.keys == np.frombuffer(key, np.uint8)).all(axis=1))
        return int(slot)

    def swap(self, one: int, other: int) -> None:
        """Each slot has the other's bytes and record, as after a write to a wrong place."""
        for array in (*self.planes, self.keys, self.parents):
            array[[one, other]] = array[[other, one]]


class KeyedThreads:
    """Copies at once, and between a `KeyedTier` and another tier only what has the plan's key."""

    def __init__(self) -> None:
        self._inner = ThreadCopier(workers=0)
        self.refused = 0

    def start(
        self, source: Tier, destination: Tier, sources: Slots, destinations: Slots
    ) -> Receipt | None:
        for tier in (source, destination):
            assert not isinstance(tier, KeyedTier), f"the {tier.name} must know keys"
        return self._inner.start(source, destination, sources, destinations)

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
        good = len(sources)
        if isinstance(source, KeyedTier):
            same = (source.keys[sources] == keys).all(axis=1)
            good = good if same.all() else int(same.argmin())
        receipt = self._inner.start(source, destination, sources[:good], destinations[:good])
        if isinstance(destination, KeyedTier):
            assert parents is not None
            destination.keys[destinations] = keys
            destination.parents[destinations] = parents
        if good < len(sources):
            self.refused += 1
            return _Refused(good)
        return receipt

    def reset(self) -> None:
        self._inner.reset()

    def close(self) -> None:
        self._inner.close()


class _Refused:
    """The receipt of a copy that has met a block with another key."""

    def __init__(self, good: int) -> None:
        self._good = good

    def poll(self) -> Landed | None:
        return Landed(self._good, Cause.CORRUPT)
