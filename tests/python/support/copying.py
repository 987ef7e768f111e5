"""Flights on a simulated GPU, at random, and what they must have done."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from blockyard import KVLayout
from blockyard.crane.copiers import Landed
from blockyard.crane.copiers.cuda import CudaCopier
from blockyard.crane.tiers.device import DeviceTier
from blockyard.crane.tiers.pinned import PinnedTier
from blockyard.shared.copy_tuning import CopyTuning
from blockyard.testing.gpu import SimulatedGpu
from cranes import LAYOUTS, after, filled, same, slots

Harm = Callable[[CudaCopier, SimulatedGpu], object]
SMALL = [name for name in LAYOUTS if name != "odd"]
LAYERED = LAYOUTS["layer-first"]
ROWS = CopyTuning(kernel_below=0, whole_below=0, piece_bytes=10**9, rows_bytes=0)
METHODS = [
    CopyTuning(),
    CopyTuning(kernel_below=0, whole_below=0, piece_bytes=0, most_runs=10**9),
    CopyTuning(kernel_below=0, whole_below=0, piece_bytes=10**9, ring_bytes=2000, ring_parts=1),
    CopyTuning(kernel_below=0, whole_below=0, piece_bytes=10**9, ring_bytes=3000, ring_parts=3),
    CopyTuning(kernel_below=300, whole_below=300, piece_bytes=64, most_runs=9, ring_bytes=500),
    replace(ROWS, batch_runs=3, queued_runs=4),
]


OPENED: list[tuple[SimulatedGpu, CudaCopier, DeviceTier, PinnedTier]] = []


def closed() -> None:
    """Closes all that was opened."""
    while OPENED:
        for one in OPENED.pop()[1:]:
            one.close()


def unplugged() -> None:
    """Closes it where streams still do what they should not."""
    for gpu, *_ in OPENED:
        gpu.lose()
    closed()


def opened(
    layout: KVLayout = LAYERED, *, device: int = 12, host: int = 9, seed: int = 0, **options: Any
) -> tuple[SimulatedGpu, DeviceTier, PinnedTier, CudaCopier]:
    own = {name: options.pop(name) for name in ("batches", "eager", "kernel") if name in options}
    gpu = SimulatedGpu(seed, **own)
    tier, below = DeviceTier(layout, device, gpu=gpu), PinnedTier(layout, host, gpu=gpu)
    copier = CudaCopier(tier, below, **options)
    OPENED.append((gpu, copier, tier, below))
    return gpu, tier, below, copier


class Work:
    """Flights of all kinds, begun without waiting, between an engine's late writes."""

    def __init__(self, seed: int, harm: Harm | None, **options: Any) -> None:
        self.chance = chance = random.Random(seed)
        layout = LAYOUTS[chance.choice(SMALL)]
        parts = [
            parts
            for parts in (1, 1, 2, 3)
            if all(plane.pieces == 1 or plane.pieces % parts == 0 for plane in layout.planes)
        ]
        self.gpu, device, host, self.copier = opened(
            layout,
            seed=seed,
            batches=chance.random() < 0.8,
            eager=chance.choice([0, 2, 30]),
            copy_tuning=chance.choice(METHODS),
            depth=chance.choice([2, 5, 64]),
            layers=chance.choice(parts),
            **options,
        )
        if harm is not None:
            harm(self.copier, self.gpu)
        self.tiers: list[Any] = [device, host]
        self.wanted = [filled(tier, seed + which) for which, tier in enumerate(self.tiers)]
        self.receipts: list[tuple[Any, int, set[int]]] = []

    def fly(self) -> None:
        chance = self.chance
        ends = chance.choice([(0, 1), (1, 0), (0, 0)])
        source, to = (self.tiers[end] for end in ends)
        blocks = chance.randint(0, 6 if source is to else 9)
        here = chance.sample(range(source.blocks), blocks)
        free = sorted(set(range(to.blocks)) - (set(here) if source is to else set()))
        there = chance.sample(free, blocks)
        if chance.random() < 0.2:
            # Each is written once, and may be read for many.
            here = chance.choices(here, k=blocks) if blocks else here
        elif chance.random() < 0.3:
            here, there = sorted(here), sorted(there)
        receipt = self.copier.start(source, to, slots(*here), slots(*there))
        if receipt is None:
            self.gpu.run(chance.randint(0, 50))
            return
        after(self.wanted[ends[1]], [plane.copy() for plane in self.wanted[ends[0]]], here, there)
        self.receipts.append((receipt, blocks, set(here) if ends == (0, 1) else set()))

    def write(self) -> None:
        """An engine never writes what is read by a copy down: the yard holds the slot back."""
        slot, value = self.chance.randrange(12), self.chance.randrange(256)
        if any(slot in read for _receipt, _blocks, read in self.receipts):
            return
        if not self.copier.join():
            return
        for plane in self.wanted[0]:
            plane[slot] = value
        planes = self.tiers[0].planes
        self.gpu.compute(lambda: [plane.__setitem__(slot, value) for plane in planes])

    def poll(self) -> None:
        for one in list(self.receipts):
            landed = one[0].poll()
            if landed is not None:
                assert landed == Landed(one[1])
                self.receipts.remove(one)

    def end(self) -> None:
        # A reset ends what is queued, and drops what is not.
        while any(stream.later for stream in self.copier._streams):
            self.gpu.run()
            self.poll()
        self.copier.reset()
        self.gpu.run()
        self.poll()
        assert not self.receipts
        assert all(map(same, self.tiers, self.wanted))
        self.copier.close()
        for tier in self.tiers:
            tier.close()
        assert not self.gpu.held


def work(seed: int, harm: Harm | None = None, **options: Any) -> None:
    all_ = Work(seed, harm, **options)
    for _ in range(60):
        (all_.fly if all_.chance.random() < 0.8 else all_.write)()
        all_.poll()
    all_.end()
