"""What it costs to submit a flight to a GPU: `CudaCopier.start` of 1,024 scattered blocks.

    python benches/python/submit.py [--calls 1000]

The GPU does nothing, so that what remains is Python's part: CPU time alone, and elapsed time
beside one busy Python thread, where to give the interpreter's lock away may cost 5 ms. "waited" is
how many calls did: the thread slept in them. The last line is a loop that cannot: what the machine
does by itself. It fails where a target is missed.
"""

import resource
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np

from blockyard import KVLayout
from blockyard._typing import override
from blockyard.crane.copiers.cuda import CudaCopier
from blockyard.crane.tiers.device import DeviceTier
from blockyard.crane.tiers.pinned import PinnedTier
from blockyard.shared.copy_tuning import CopyTuning
from blockyard.testing.gpu import SimulatedGpu
from report import Figure, asked, busy, report

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
    limits = CopyTuning(kernel_below=0, whole_below=0, piece_bytes=1024, ring_bytes=ring)
    copier = CudaCopier(device, host, copy_tuning=limits, depth=64)
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
    what: str,
    flight: Callable[[int], Callable[[], None]],
    calls: int,
    clock: Callable[[], int],
    most: float,
) -> Figure:
    """Returns the median microseconds of a call; beside a busy thread after a pause."""
    spent, waited = [], 0
    for number in range(calls):
        start = flight(number)
        # As in an engine, the call begins when the interpreter's lock has just been taken.
        time.sleep(0.001 if clock is time.perf_counter_ns else 0)
        before, begun = sleeps(), clock()
        start()
        spent.append((clock() - begun) / 1e3)
        waited += sleeps() > before
    spent.sort()
    tail = f"p99 {spent[calls * 99 // 100]:.0f}, worst {spent[-1]:.0f}, {waited} waited"
    return Figure(f"{what}, µs", spent[calls // 2], most, about=tail)


def figures(calls: int) -> Iterator[Figure]:
    for order in ORDERS:
        flight = opened(order)
        measured("warm-up", flight, 100, time.thread_time_ns, CPU)
        yield measured(f"{order}, CPU", flight, calls, time.thread_time_ns, CPU)
        with busy():
            where = f"{order}, beside a busy thread"
            yield measured(where, flight, calls, time.perf_counter_ns, ELAPSED)
    with busy():
        yield measured("a loop, beside it", plain, calls, time.perf_counter_ns, ELAPSED)


if __name__ == "__main__":
    given = asked(__doc__, calls=1000)
    sys.exit(report(figures(given.calls), given.json))
