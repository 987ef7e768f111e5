"""What it costs to submit a flight to a GPU: `CudaCopier.start` of 1,024 scattered blocks.

    python benches/python/submit.py [--calls 1000]

The GPU does nothing, so that what remains is Python's part: CPU time alone, and elapsed time
beside one busy Python thread, where to give the interpreter's lock away may cost 5 ms. "waited" is
how many calls did: the thread slept in them. The last line is a loop that cannot: what the machine
does by itself. It fails where a target is missed.
"""

import argparse
import resource
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np

from blockyard import KVLayout
from blockyard._typing import override
from blockyard.crane.copiers.cuda import CudaCopier
from blockyard.crane.tiers.device import DeviceTier
from blockyard.crane.tiers.pinned import PinnedTier
from blockyard.shared.thresholds import Thresholds
from blockyard.testing.gpu import SimulatedGpu

Order = Literal["page-first", "layer-first"]
ORDERS: tuple[Order, ...] = ("page-first", "layer-first")
BLOCKS, POOL = 1024, 1152
CPU, ELAPSED = 100.0, 300.0


class NullGpu(SimulatedGpu):
    """A driver that takes every call, does nothing, and reports it done."""

    @override
    def _call(self, name: str, stream: int | None = None) -> None:
        pass

    @override
    def _queue(self, stream: int, work: Iterator[bool]) -> None:
        pass

    @override
    def _submit(self, *_args: Any) -> None:
        pass

    @override
    def copy(self, *_args: Any) -> None:
        pass

    @override
    def ended(self, _event: int) -> bool:
        return True

    @override
    def synchronize(self, _stream: int) -> None:
        pass


def opened(order: Order) -> Callable[[int], Callable[[], None]]:
    """Flights of 1,024 scattered blocks of 64 pieces, down and up in turn.

    Layer-first they go through a ring that is filled eight times, as one of 256 MiB with blocks of
    2 MiB.
    """
    gpu = NullGpu()
    layout = KVLayout.llama(layers=32, kv_heads=1, head_dim=8, block_size=1, order=order)
    device, host = DeviceTier(layout, POOL, gpu=gpu), PinnedTier(layout, POOL, gpu=gpu)
    ring = BLOCKS // 8 * layout.block_bytes
    limits = Thresholds(kernel_below=0, whole_below=0, piece_bytes=1024, ring_bytes=ring)
    copier = CudaCopier(device, host, thresholds=limits, depth=64)
    chance = np.random.default_rng(1)

    air: deque[Any] = deque()

    def flight(number: int) -> Callable[[], None]:
        slots = [chance.permutation(POOL)[:BLOCKS].astype(np.uint32) for _ in range(2)]
        tiers = (device, host) if number % 2 else (host, device)
        # One flight is always in the other direction, and its slots must be avoided.
        if len(air) == 2:
            air.popleft().poll()

        def start() -> None:
            taken = copier.start(*tiers, *slots)
            if taken is None:
                raise SystemExit("nothing was taken: this has measured nothing")
            air.append(taken)

        return start

    return flight


@contextmanager
def busy() -> Iterator[None]:
    """A thread that only computes."""
    stop = False

    def spin() -> None:
        while not stop:
            pass

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        yield
    finally:
        stop = True
        thread.join()


def plain(_number: int) -> Callable[[], None]:
    """Takes about as long, and holds the interpreter's lock throughout."""

    def loop() -> None:
        for _ in range(8000):
            pass

    return loop


def sleeps() -> int:
    """Returns how often this thread has waited."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def measured(
    flight: Callable[[int], Callable[[], None]], calls: int, clock: Callable[[], int], pause: float
) -> tuple[list[float], int]:
    """Returns the microseconds of each call, in ascending order, and how many waited."""
    spent, waited = [], 0
    for number in range(calls):
        start = flight(number)
        # As in an engine, the call begins when the interpreter's lock has just been taken.
        time.sleep(pause)
        before, begun = sleeps(), clock()
        start()
        spent.append((clock() - begun) / 1e3)
        waited += sleeps() > before
    return sorted(spent), waited


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--calls", type=int, default=1000)
    calls = asked.parse_args().calls
    missed = False

    def show(what: str, spent: list[float], waited: int, wanted: float) -> None:
        nonlocal missed
        seen = spent[calls // 2], spent[calls * 99 // 100], spent[-1]
        numbers = " ".join(f"{one:9.1f}" for one in seen)
        print(f"{what:40} {numbers} {waited:7}  ≤ {wanted:g}")
        missed |= seen[0] > wanted

    heads = " ".join(f"{head:>9}" for head in ("median", "p99", "max"))
    print(f"{'1,024 scattered blocks, us':40} {heads} {'waited':>7}")
    for order in ORDERS:
        flight = opened(order)
        measured(flight, 100, time.thread_time_ns, 0)
        show(f"{order}, CPU", *measured(flight, calls, time.thread_time_ns, 0), CPU)
        with busy():
            beside, waited = measured(flight, calls, time.perf_counter_ns, 0.001)
        show(f"{order}, beside a busy thread", beside, waited, ELAPSED)
        # Now and then the machine may take the processor away for longer than the lock's interval.
        missed |= waited * 200 > calls
    with busy():
        show("a loop, beside it", *measured(plain, calls, time.perf_counter_ns, 0.001), ELAPSED)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
