"""One face for memory and copiers of every kind, so that one suite of tests fits them all."""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from blockyard import KVLayout, Unavailable
from blockyard._typing import override
from blockyard.crane.copiers import Copier, Landed, Receipt
from blockyard.crane.copiers.cuda import CudaCopier
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.crane.gpu import Gpu
from blockyard.crane.gpu.cuda import Cuda
from blockyard.crane.tiers import Mapped
from blockyard.crane.tiers.device import DeviceTier
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.crane.tiers.pinned import PinnedTier
from blockyard.shared.copy_tuning import CopyTuning
from blockyard.testing.gpu import SimulatedGpu

Bytes = list[NDArray[np.uint8]]
Slots = NDArray[np.uint32]

KERNEL = CopyTuning(kernel_below=1 << 40, whole_below=1 << 40)
RUNS = CopyTuning(kernel_below=0, whole_below=0, piece_bytes=0, most_runs=1 << 20)
RING = CopyTuning(kernel_below=0, whole_below=0, piece_bytes=1 << 40, ring_bytes=3000)
ROWS = CopyTuning(kernel_below=0, whole_below=0, piece_bytes=1 << 40, rows_bytes=0)
#: CopyTuning that force each method that bytes may take.
METHODS = {
    "as it comes": CopyTuning(),
    "kernel": KERNEL,
    "runs": RUNS,
    "ring": RING,
    "rows": ROWS,
    "ring in parts": replace(RING, ring_parts=2),
    "no batches": CopyTuning(kernel_below=0, whole_below=0, batch_runs=0),
}


def slots(*numbers: int) -> Slots:
    return np.array(numbers, np.uint32)


class Pair:
    """Two tiers full of noise, their copier, and what they should hold by now."""

    def __init__(self, rig: "Rig", device: Any, host: Mapped, copier: Copier) -> None:
        self.rig = rig
        self.device, self.host, self.copier = device, host, copier
        self.tiers = {"device": device, "host": host}
        self.wanted = {name: rig.fill(tier, seed) for seed, (name, tier) in self._each()}

    def _each(self) -> Any:
        return enumerate(self.tiers.items())

    def start(
        self, way: tuple[str, str], sources: Sequence[int], destinations: Sequence[int]
    ) -> Receipt | None:
        """Starts a copy; from now on its destinations should hold what its sources should."""
        source, destination = (self.tiers[name] for name in way)
        receipt = self.copier.start(source, destination, slots(*sources), slots(*destinations))
        if receipt is not None:
            self.moved(way, sources, destinations)
        return receipt

    def moved(
        self, way: tuple[str, str], sources: Sequence[int], destinations: Sequence[int]
    ) -> None:
        for mine, theirs in zip(self.wanted[way[1]], self.wanted[way[0]], strict=True):
            mine[list(destinations)] = theirs[list(sources)]

    def copy(
        self, way: tuple[str, str], sources: Sequence[int], destinations: Sequence[int]
    ) -> None:
        """Copies, and waits for that."""
        assert landed(self.start(way, sources, destinations)) == Landed(len(sources))

    def check(self) -> None:
        """Both tiers hold what they should, to the byte, everywhere."""
        for name, tier in self.tiers.items():
            held = self.rig.held(tier)
            assert all(map(np.array_equal, held, self.wanted[name])), name

    def close(self) -> None:
        self.copier.close()
        self.host.close()
        self.device.close()


class Rig:
    """A kind of memory, and what carries its bytes."""

    gpu: Gpu | None = None

    def __init__(self) -> None:
        self._pairs: list[Pair] = []

    def pair(self, layout: KVLayout, device: int = 12, host: int = 9, **options: Any) -> Pair:
        self._pairs.append(Pair(self, *self.made(layout, device, host, options)))
        return self._pairs[-1]

    def made(self, layout: KVLayout, device: int, host: int, options: Any) -> tuple[Any, Any, Any]:
        raise NotImplementedError

    def fill(self, tier: Mapped, seed: int) -> Bytes:
        made = noise(tier, seed)
        for plane, bytes_ in zip(tier.planes, made, strict=True):
            plane[...] = bytes_
        return made

    def held(self, tier: Mapped) -> Bytes:
        return [np.array(plane) for plane in tier.planes]

    def compute(self, work: Callable[[], object]) -> None:
        """Has the engine do some work, behind what it was given before."""
        raise NotImplementedError

    def hold(self) -> None:
        """The engine's work waits from here on, until `release`.

        What is given to it meanwhile must have been done before: a kernel that is loaded behind one
        that waits may wait for it.
        """
        raise NotImplementedError

    def release(self) -> None:
        """It goes on."""

    def settle(self) -> None:
        """Waits until everything is done."""

    def capture(self, work: Callable[[], object]) -> AbstractContextManager[Callable[[], None]]:
        """A graph of this work is captured from the engine's stream; answers with its launch.

        The same work must have been done before: what is loaded or allocated ends a capture.
        """
        raise NotImplementedError

    def close(self) -> None:
        self.release()
        self.settle()
        for pair in self._pairs:
            pair.close()


def noise(tier: Mapped, seed: int) -> Bytes:
    chance = np.random.default_rng(seed)
    return [
        chance.integers(0, 256, (tier.blocks, plane.pieces, plane.piece_bytes), np.uint8)
        for plane in tier.layout.planes
    ]


class ThreadRig(Rig):
    """NumPy memory and threads."""

    @override
    def made(
        self,
        layout: KVLayout,
        device: int,
        host: int,
        options: Any,  # noqa: ARG002 - those of a GPU
    ) -> tuple[Any, Any, Any]:
        tiers = MemoryTier(layout, device, name="device"), MemoryTier(layout, host)
        return *tiers, ThreadCopier()


class SimulatedRig(Rig):
    """A simulated GPU."""

    gpu: SimulatedGpu

    def __init__(self) -> None:
        super().__init__()
        self.gpu = SimulatedGpu()

    @override
    def made(self, layout: KVLayout, device: int, host: int, options: Any) -> tuple[Any, Any, Any]:
        tiers = gpu_tiers(self.gpu, layout, device, host)
        return *tiers, CudaCopier(*tiers, **options)

    @override
    def compute(self, work: Callable[[], object]) -> None:
        self.gpu.compute(work)

    @override
    def hold(self) -> None:
        self.gpu.hang(0)

    @override
    def release(self) -> None:
        self.gpu.release()

    @override
    def settle(self) -> None:
        self.gpu.run()

    @override
    @contextmanager
    def capture(self, work: Callable[[], object]) -> Iterator[Callable[[], None]]:
        with self.gpu.capture():
            yield lambda: self.gpu.compute(work)

    @override
    def close(self) -> None:
        super().close()
        assert not self.gpu.held


class CudaRig(Rig):
    """A GPU."""

    gpu: Cuda

    def __init__(self) -> None:
        super().__init__()
        self._cupy = cupy = pytest.importorskip("cupy")
        self.gpu = Cuda()
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._gate = cupy.cuda.alloc_pinned_memory(4)
        self._open = np.frombuffer(self._gate, np.uint32, 1)
        self._spin = cupy.RawKernel(
            'extern "C" __global__ void spin(const volatile unsigned *gate) { while (!*gate); }',
            "spin",
        )
        self._open[0] = 1
        self._wait()
        self._stream.synchronize()

    @staticmethod
    def missing() -> str:
        """Why there is none; empty where there is."""
        try:
            Cuda()
        except Unavailable as error:
            return str(error)
        return ""

    def _wait(self) -> None:
        with self._stream:
            self._spin((1,), (1,), (np.uint64(self._gate.ptr),))

    @override
    def made(self, layout: KVLayout, device: int, host: int, options: Any) -> tuple[Any, Any, Any]:
        tier, below = gpu_tiers(self.gpu, layout, device, host)
        tier.stream = self._stream
        return tier, below, CudaCopier(tier, below, **options)

    @override
    def fill(self, tier: Mapped, seed: int) -> Bytes:
        if tier.name == "host":
            return super().fill(tier, seed)
        made = noise(tier, seed)
        with self._stream:
            for plane, bytes_ in zip(tier.planes, made, strict=True):
                plane[...] = self._cupy.asarray(bytes_)
        self._stream.synchronize()
        return made

    @override
    def held(self, tier: Mapped) -> Bytes:
        self.settle()
        return [self._cupy.asnumpy(plane) for plane in tier.planes]

    @override
    def compute(self, work: Callable[[], object]) -> None:
        with self._stream:
            work()

    @override
    def hold(self) -> None:
        # What the collector frees would wait for the kernel that waits for us.
        gc.collect()
        gc.disable()
        self._open[0] = 0
        self._wait()

    @override
    def release(self) -> None:
        self._open[0] = 1
        gc.enable()

    @override
    def settle(self) -> None:
        self._cupy.cuda.runtime.deviceSynchronize()

    @override
    @contextmanager
    def capture(self, work: Callable[[], object]) -> Iterator[Callable[[], None]]:
        graph: list[Any] = []
        # What the collector frees would end the capture: it is in CUDA's strictest mode.
        gc.collect()
        gc.disable()
        try:
            with self._stream:
                self._stream.begin_capture(self._cupy.cuda.runtime.streamCaptureModeGlobal)
                try:
                    work()
                    yield lambda: graph[0].launch(self._stream)
                finally:
                    graph.append(self._stream.end_capture())
        finally:
            gc.enable()


def gpu_tiers(gpu: Gpu, layout: KVLayout, device: int, host: int) -> tuple[DeviceTier, PinnedTier]:
    return DeviceTier(layout, device, gpu=gpu), PinnedTier(layout, host, gpu=gpu)


def landed(receipt: Receipt | None) -> Landed:
    """Waits for a copy."""
    assert receipt is not None
    end = time.monotonic() + 30
    while (answer := receipt.poll()) is None:
        assert time.monotonic() < end, "it never landed"
    return answer
