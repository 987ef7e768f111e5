"""Blocks that one side offers and another takes, for `handover.py` and `handover_nixl.py`."""

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import blockyard as by
from blockyard._core import Offers, OfferServer, Peer
from blockyard.crane.copiers.lane_flights import Place, memory_places
from blockyard.crane.tiers.memory import MemoryTier

PART = 8
"""Blocks of a flight, as of a plan."""
PAUSE = 1e-3
"""Seconds between two looks at the flights, fewer than between two steps of an engine."""


def places(tier: MemoryTier) -> list[Place]:
    return [place for plane in memory_places(tier, "the other side") for place in plane]


class Handed:
    """A prefill side that offers blocks, and the memory of the other side."""

    def __init__(self, layers: int, nbytes: int) -> None:
        layout = by.KVLayout.llama(layers=layers, kv_heads=8, head_dim=128)
        self.blocks, self.block_bytes = nbytes // layout.block_bytes, layout.block_bytes
        # Slot 0 is the yard's.
        self.source = MemoryTier(layout, self.blocks + 1, name="device")
        self.target = MemoryTier(layout, self.blocks + 1, name="device")
        (plane,) = self.source.planes
        plane[...] = np.random.default_rng(1).integers(0, 256, plane.shape, np.uint8)
        self.cache = by.KVCache(device=self.blocks + 1)
        keys = self.cache.keys(np.arange(16 * self.blocks))
        lease = self.cache.begin(keys)
        self.cache.seal(lease, 16 * self.blocks)
        held = self.cache.hold(keys)
        assert held is not None
        self.held = held
        self.keys, self.slots = held.keys, held.slots
        self.parts = [slice(at, at + PART) for at in range(0, self.blocks, PART)]

    def opens(self, kind: Callable[..., Peer], memory: bytes | None = None, **more: Any) -> None:
        """Offers the blocks, and has a peer take them."""
        self.offers, name = Offers(), os.urandom(16)
        self.offers.offer(name, self.held, time.monotonic())
        fields = {"model": "a measurement"}
        self.server = OfferServer(
            self.offers,
            "127.0.0.1:0",
            boot=self.cache.boot,
            name="prefill",
            fields=fields,
            planes=[places(self.source)],
            blocks=self.blocks + 1,
            memory=memory,
        )
        ours: dict[str, Any] = {"boot": 1, "name": "decode", "rank": 0, "fields": fields}
        self.peer = kind(self.server.address, block_bytes=self.block_bytes, **ours, **more)
        self.peer.take(0, name, self.cache.boot, self.keys, 0.0)
        while not (answers := self.peer.taken()):
            time.sleep(PAUSE)
        assert answers == [(0, self.blocks, "")], answers
        self._places = places(self.target)

    def handed_over(self) -> None:
        """The whole way, into slots, with sums."""
        flying = set()
        for part in self.parts:
            ends = self._places, self.slots[part], 0.0
            flying.add(self.peer.submit_up(self.keys[part], *ends))
        while flying:
            for number, _, why in self.peer.poll(0.0):
                if why:
                    raise SystemExit(f"{why}: {self.peer.why()} {self.peer.stats()}")
                flying.remove(number)
            if flying:
                time.sleep(PAUSE)

    def check(self) -> None:
        (source,), (target,) = self.source.planes, self.target.planes
        if not (source[self.slots] == target[self.slots]).all():
            raise SystemExit("the bytes differ")

    def close(self) -> None:
        self.peer.close()
        self.server.close()
        self.offers.end_all("closed")
