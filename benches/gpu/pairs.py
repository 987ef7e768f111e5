"""Two tiers full of noise and their copier: flights between them, and checked bytes."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockyard import KVLayout
from blockyard.crane.copiers import Receipt, Slots
from blockyard.crane.gpu import Gpu, Places
from blockyard.crane.tiers.device import DeviceTier
from blockyard.crane.tiers.memory import slots
from sizes import WAYS
from yardstick import Rig, Wrong

_PATIENCE = 20.0


@dataclass
class Host:
    """A host tier within pinned memory that all tiers of the bench use in turn."""

    layout: KVLayout
    blocks: int
    gpu: Gpu
    memory: NDArray[np.uint8]
    name: str = "host"
    planes: tuple[Any, ...] = field(init=False)
    places: tuple[Places, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.planes = slots(self.layout, self.blocks, None, lambda size, _: self.memory[:size])
        self.places = tuple(
            Places(
                np.uint64(plane.ctypes.data)
                + np.arange(plane.shape[1], dtype=np.uint64) * np.uint64(plane.strides[1]),
                plane.strides[0],
            )
            for plane in self.planes
        )

    @property
    def nbytes(self) -> int:
        return self.blocks * self.layout.block_bytes

    def close(self) -> None:
        self.planes = ()


class Pair:
    """A device and a host tier, and their copier."""

    def __init__(self, rig: Rig, layout: KVLayout, blocks: int, **options: Any) -> None:
        self.rig = rig
        self.layout = layout
        most = rig.memory.nbytes // layout.block_bytes
        self.host = Host(layout, min(blocks, most), rig.gpu, rig.memory.array)
        self.device = DeviceTier(layout, blocks + blocks // 8, gpu=rig.gpu, stream=rig.idle)
        self.copier: Any = None
        try:
            rig.fill(self.device)
            self.copier = rig.copier(self.device, self.host, **options)
        except BaseException:
            self.device.close()
            raise

    def pick(self, count: int) -> tuple[Slots, Slots]:
        """So many slots of the device and of the host, as far as there are, scattered at random."""
        count = min(count, self.device.blocks, self.host.blocks)
        device, host = (
            self.rig.chance.permutation(tier.blocks)[:count].astype(np.uint32)
            for tier in (self.device, self.host)
        )
        return device, host

    def start(self, way: str, picked: tuple[Slots, Slots]) -> Receipt:
        """Starts a copy of the picked slots, as soon as it is taken."""
        device, host = picked
        end = time.monotonic() + _PATIENCE
        while True:
            if way == "down":
                receipt = self.copier.start(self.device, self.host, device, host)
            else:
                receipt = self.copier.start(self.host, self.device, host, device)
            if receipt is not None:
                taken: Receipt = receipt
                return taken
            if time.monotonic() > end:
                raise TimeoutError("no copy is taken")

    def seconds(self, *flights: tuple[str, tuple[Slots, Slots]]) -> float:
        """From the first start until all have been seen to have landed, on the host's clock."""
        clock = self.rig.clock
        begun = clock()
        landed(*(self.start(*flight) for flight in flights))
        return clock() - begun

    def flight(self, way: str, picks: list[tuple[Slots, Slots]]) -> Callable[[], float]:
        """Seconds of one flight; the next time with the next slots.

        Both ways at once, each has half of the slots: where they met, one would wait for the other.
        """
        turns = cycle(picks)

        def work() -> float:
            device, host = next(turns)
            if way != "both":
                return self.seconds((way, (device, host)))
            half = len(device) // 2
            return self.seconds(
                ("down", (device[:half], host[:half])),
                ("up", (device[half : 2 * half], host[half : 2 * half])),
            )

        return work

    def close(self) -> None:
        if self.copier is not None:
            self.copier.close()
        self.host.close()
        self.device.close()


def landed(*receipts: Receipt) -> None:
    """Polls all in turn, as a crane does, until the copies have ended, whole."""
    end = time.monotonic() + _PATIENCE
    coming, turn = list(receipts), 0
    while coming:
        for receipt in tuple(coming):
            answer = receipt.poll()
            if answer is not None:
                coming.remove(receipt)
                if answer.cause is not None:
                    raise Wrong(f"a copy ended as {answer}")
        turn += 1
        if not turn % 1024 and time.monotonic() > end:
            raise TimeoutError(f"a copy has not ended within {_PATIENCE:.0f} s")


def check(pair: Pair, count: int) -> None:
    """Copies down and up and compares every byte; neighbours too.

    Raises:
        Wrong: They differ.
    """
    rig = pair.rig
    count = max(min(count, rig.sizes.check_bytes // pair.layout.block_bytes), 1)
    for way in WAYS:
        picked = pair.pick(count)
        tiers: list[Any] = [pair.device, pair.host]
        ends = list(zip(tiers, picked, strict=True))
        (source, sources), (target, targets) = ends if way == "down" else ends[::-1]
        beside = np.setdiff1d((targets[:32] + 1) % target.blocks, targets)
        wanted, kept = [], []
        for plane in range(len(pair.layout.planes)):
            wanted.append(rig.read(source, plane, sources))
            kept.append(rig.read(target, plane, beside))
            rig.poison(target, plane, targets)
        pair.seconds((way, picked))
        for plane in range(len(pair.layout.planes)):
            where = f"{pair.layout.name}, {pair.layout.planes[plane]}, {count} blocks {way}"
            if not np.array_equal(rig.read(target, plane, targets), wanted[plane]):
                raise Wrong(f"bytes differ: {where}")
            if not np.array_equal(rig.read(target, plane, beside), kept[plane]):
                raise Wrong(f"a neighbour was written: {where}")
