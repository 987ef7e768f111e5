"""What copies cost: `ThreadCopier` beside one plain memcpy of the same bytes, in the same run.

    python benches/python/copies.py [--mib 512] [--repeats 9]

Blocks of 2 MiB in scattered slots; each repeat measures every row once, and the medians of the
repeats are compared. Ratios are what counts: the machine is never alone. It fails when the default
number of workers, page-first, stays below its target, or the caller's cost above it.
"""

import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from statistics import median

import numpy as np

from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.crane.crane import Crane
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.shared.layout import KVLayout, Order
from blockyard.shared.plan import Plan
from report import Figure, asked, busy, report

PLAN = 1024
TARGET = 0.8
"""The size of one plain memcpy."""
COST = 1e3
"""CPU microseconds of the calling thread."""
SMALL = KVLayout.llama(2, 2, 8)
ORDERS: tuple[Order, ...] = ("page-first", "layer-first")


def seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


class Copies:
    """A device and a host tier of equal size, and the blocks copied between them."""

    def __init__(self, order: Order, mib: int) -> None:
        layout = KVLayout.preset("llama-3-8b", order=order)
        self.blocks = (mib << 20) // layout.block_bytes
        self.device = MemoryTier(layout, self.blocks, name="device")
        self.host = MemoryTier(layout, self.blocks)
        for tier in (self.device, self.host):
            for plane in tier.planes:
                plane[...] = 1
        mixed = np.random.default_rng(1)
        self.sources, self.destinations = (
            mixed.permutation(self.blocks).astype(np.uint32) for _ in range(2)
        )

    def run(self, copier: ThreadCopier, way: str) -> None:
        ends = (self.device, self.host) if way == "down" else (self.host, self.device)
        receipt = copier.start(*ends, self.sources, self.destinations)
        while receipt is None or receipt.poll() is None:
            time.sleep(0.0002)


def throughput(mib: int, repeats: int) -> dict[str, float]:
    """Returns the median ratio to a plain copy, for each row."""
    one, other = (np.ones(mib << 20, np.uint8) for _ in range(2))
    rows: dict[str, Callable[[], object]] = {"plain": lambda: np.copyto(other, one)}
    copiers = [ThreadCopier(workers=workers) for workers in (1, 2)]
    for order in ORDERS:
        copies = Copies(order, mib)
        for workers, copier in enumerate(copiers, 1):
            for way in ("down", "up"):
                name = f"{order}, {way}, {workers} worker{'s'[: workers - 1]}"
                rows[name] = lambda c=copies, k=copier, w=way: c.run(k, w)  # type: ignore[misc]
    times: dict[str, list[float]] = {name: [] for name in rows}
    for repeat in range(repeats + 1):
        for name, work in rows.items():
            taken = seconds(work)
            if repeat:
                times[name].append(taken)
    for copier in copiers:
        copier.close()
    plain = median(times.pop("plain"))
    print(f"one plain memcpy of {mib} MiB: {(mib << 20) / plain / 1e9:.1f} GB/s")
    return {name: plain / median(taken) for name, taken in times.items()}


def caller(repeats: int, *, accompanied: bool) -> float:
    """Returns the CPU seconds of the calling thread for submitting and landing 1,024 blocks."""
    device, host = MemoryTier(SMALL, PLAN, name="device"), MemoryTier(SMALL, PLAN)
    mixed = np.random.default_rng(1)
    costs = []
    beside = busy() if accompanied else nullcontext()
    with beside, Crane(SMALL, device=device, host=host) as crane:
        for number in range(1, repeats + 1):
            slots = [mixed.permutation(PLAN).astype("<u4").tobytes() for _ in range(2)]
            header = struct.pack("<2sBBIQQ", b"Y3", 0, 1, PLAN, 1 << 32 | number, 1)
            plan = Plan.from_bytes(header + slots[0] + slots[1])
            cost = -time.thread_time()
            crane.submit(plan)
            cost += time.thread_time()
            while crane.in_flight:
                time.sleep(0.0002)
                begun = time.thread_time()
                if crane.poll():
                    costs.append(cost + time.thread_time() - begun)
    return median(costs)


def figures(mib: int, repeats: int) -> Iterator[Figure]:
    for name, ratio in throughput(mib, repeats).items():
        default = name.startswith("page-first") and name.endswith("2 workers")
        yield Figure(f"{name}, of a plain memcpy", ratio, least=TARGET if default else None)
    for accompanied, where in ((False, "alone"), (True, "beside a busy thread")):
        cost = 1e6 * caller(50, accompanied=accompanied)
        yield Figure(f"submit and land {PLAN} blocks {where}, µs of the caller's CPU", cost, COST)


if __name__ == "__main__":
    given = asked(__doc__, mib=512, repeats=9)
    sys.exit(report(figures(given.mib, given.repeats), given.json))
