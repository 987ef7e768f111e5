"""A GPU, pinned memory full of noise, and clocks: what all sections of the bench share."""

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockyard import Unavailable
from blockyard.crane.copiers import Slots
from blockyard.crane.copiers.cuda_copier import CudaCopier
from blockyard.crane.gpu import Gpu
from blockyard.crane.tiers.device import DeviceTier
from blockyard.crane.tiers.pinned import Pinned
from sizes import Sizes

POISON = 0xA5
# The noise repeats after so many bytes: no power of two, so that no two blocks are the same.
_PERIOD = (64 << 20) - 4099
# Seconds for taking pages, after which what has been taken is enough.
_TOUCHING = 40.0


class Skipped(Exception):
    """The section cannot run here; why."""


class _Slow(Exception):
    def __init__(self, taken: int) -> None:
        super().__init__(taken)
        self.taken = taken


class Wrong(Exception):
    """Bytes are not what they should be."""


class Rig:
    """A GPU, one large piece of pinned memory full of noise, and clocks.

    Args:
        gpu: The device.
        sizes: How much of everything.
        cupy: The module, or None on a simulated GPU.
        copier: Makes what copies.
        clock: Seconds.
        cpu: Nanoseconds of this thread's CPU time.
    """

    def __init__(
        self,
        gpu: Gpu,
        sizes: Sizes,
        *,
        cupy: Any = None,
        copier: Callable[..., Any] = CudaCopier,
        clock: Callable[[], float] = time.perf_counter,
        cpu: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        self.gpu, self.sizes, self.cupy = gpu, sizes, cupy
        self.copier, self.clock, self.cpu = copier, clock, cpu
        self.chance = np.random.default_rng(6)
        self.facts: dict[str, Any] = {}
        self.peak: dict[str, float] = {}
        """Bytes per second: "down", "up" and "both"."""
        with gpu:
            self.streams = gpu.stream(), gpu.stream()
            self.idle = gpu.stream()
            """Of an engine that computes nothing: flights wait for no matrix product."""
        self.memory = self._pinned()
        self._noise()

    def _pinned(self) -> Pinned:
        """As much as the machine gives within a time; it says how much, and how long that took."""
        size = self.sizes.host
        refused: list[str] = []
        while True:
            begun = time.perf_counter()

            def progress(taken: int, nbytes: int, begun: float = begun) -> None:
                if nbytes > self.sizes.least_host and time.perf_counter() - begun > _TOUCHING:
                    raise _Slow(taken)

            try:
                memory = Pinned(self.gpu, size, progress=progress)
            except Unavailable as error:
                refused.append(str(error))
                if size // 2 < self.sizes.least_host:
                    raise
                size //= 2
            except _Slow as slow:
                refused.append(f"{slow.taken} of {size} bytes were taken in {_TOUCHING:.0f} s")
                size = max(slow.taken * 3 // 4 >> 20 << 20, self.sizes.least_host)
            else:
                taken = time.perf_counter() - begun
                self.facts["pinned"] = {"bytes": size, "seconds": taken, "refused": refused}
                return memory

    def _noise(self) -> None:
        array = self.memory.array
        seed = self.chance.integers(0, 256, min(_PERIOD, len(array)), np.uint8)

        def lay(start: int) -> None:
            part = array[start : start + len(seed)]
            np.copyto(part, seed[: len(part)])

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lay, range(0, len(array), len(seed))))

    def bulk(self, to: int, from_: int, size: int, stream: int) -> None:
        """One large copy, as anybody would make it; inside `with gpu`."""
        if self.cupy is not None:
            runtime = self.cupy.cuda.runtime
            runtime.memcpyAsync(to, from_, size, runtime.memcpyDefault, stream)
        else:
            self.gpu.copy_run(to, from_, size, stream)

    def fill(self, device: DeviceTier) -> None:
        """Noise in all of its memory, of other parts of the period than the host has there."""
        with self.gpu:
            for memory in device._memory:
                at = 0
                while at < memory.nbytes:
                    skip = (at + 7919 * 16) % (self.memory.nbytes // 2)
                    step = min(memory.nbytes - at, self.memory.nbytes - skip, 1 << 30)
                    self.bulk(
                        memory.address + at, self.memory.address + skip, step, self.streams[0]
                    )
                    at += step
            self.gpu.synchronize(self.streams[0])

    def read(self, tier: Any, plane: int, which: Slots) -> NDArray[np.uint8]:
        """Slots of a plane; on a device piece by piece, by no code that is tested here."""
        if self.cupy is None or tier.name == "host":
            return np.array(tier.planes[plane][which])
        runtime = self.cupy.cuda.runtime
        shape = len(which), tier.layout.planes[plane].pieces, tier.layout.planes[plane].piece_bytes
        held = np.empty(shape, np.uint8)
        to, size = int(held.ctypes.data), shape[2]
        for number, from_ in enumerate(self._addresses(tier, plane, which)):
            runtime.memcpy(to + number * size, from_, size, runtime.memcpyDefault)
        return held

    def poison(self, tier: Any, plane: int, which: Slots) -> None:
        if self.cupy is None or tier.name == "host":
            tier.planes[plane][which] = POISON
            return
        runtime = self.cupy.cuda.runtime
        for address in self._addresses(tier, plane, which):
            runtime.memset(address, POISON, tier.layout.planes[plane].piece_bytes)
        runtime.deviceSynchronize()

    @staticmethod
    def _addresses(tier: Any, plane: int, which: Slots) -> Iterator[int]:
        """As the layout has them on a device: (pieces, blocks, piece_bytes)."""
        what, first = tier.layout.planes[plane], tier._memory[plane].address
        for slot in which.tolist():
            for piece in range(what.pieces):
                yield first + (piece * tier.blocks + slot) * what.piece_bytes

    def tidy(self) -> None:
        """Gives CuPy's spare memory back."""
        if self.cupy is not None:
            self.cupy.cuda.runtime.deviceSynchronize()
            self.cupy.get_default_memory_pool().free_all_blocks()

    def close(self) -> None:
        self.memory.free()
        with self.gpu:
            for stream in (*self.streams, self.idle):
                self.gpu.discard(stream, [])


def repeated(
    rig: Rig,
    work: Callable[[], float],
    most: int,
    until: float,
    *,
    least: int = 3,
    warm: bool = True,
) -> list[float]:
    """Times of a work, after one turn that warms up: `most` of them, or `least` when it is late."""
    if warm:
        work()
    times: list[float] = []
    while len(times) < most and (len(times) < least or rig.clock() < until):
        times.append(work())
    return times


@contextmanager
def busy_thread(*, busy: bool = True) -> Iterator[None]:
    """One Python thread that does nothing but compute, in the interpreter."""
    stop = threading.Event()

    def spin() -> None:
        number = 0
        while not stop.is_set():
            number += 1

    thread = threading.Thread(target=spin, daemon=True)
    if busy:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        if busy:
            thread.join()


def shares(until: float, now: float, parts: int) -> Iterator[float]:
    """When each of so many parts should be over, if time is shared evenly."""
    for part in range(1, parts + 1):
        yield now + (until - now) * part / parts


def quantile(times: Iterable[float], share: float) -> float:
    ordered = sorted(times)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def summary(times: list[float]) -> Mapping[str, float]:
    return {"median": median(times), "p90": quantile(times, 0.9), "worst": max(times)}


def say(*words: object) -> None:
    """To whoever watches."""
    print(*words, file=sys.stderr, flush=True)
