"""Sections that need CuPy: what copies cost a matrix product, and how others copy."""

from collections.abc import Callable
from importlib import import_module
from statistics import median
from typing import Any

import numpy as np

from blockyard.shared.copy_tuning import CopyTuning
from flights import Result
from pairs import Pair, landed
from sizes import ORDERS, WAYS
from yardstick import Rig, Skipped, busy_thread, repeated, say, shares

# Calls that beside a busy thread take up to 5 ms each: so many are enough to see it.
_MOST_CALLS = 512


class Product:
    """A matrix product that fills the GPU, several in a row, timed by events on its own stream."""

    def __init__(self, rig: Rig, size: int) -> None:
        try:
            self._torch: Any = import_module("torch")
        except ImportError:
            self._torch = None
        if self._torch is not None and not self._torch.cuda.is_available():
            self._torch = None
        self._cupy = cupy = rig.cupy
        self.times = 10
        if self._torch is not None:
            torch = self._torch
            self.kind = f"torch {torch.__version__}, bfloat16"
            self.stream: Any = torch.cuda.Stream()
            with torch.cuda.stream(self.stream):
                self._parts = [
                    torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(3)
                ]
            self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        else:
            self.kind = "cupy, float16"
            self.stream = cupy.cuda.Stream(non_blocking=True)
            noise = np.random.default_rng(1).standard_normal((size, size), np.float32)
            self._parts = [cupy.asarray(noise.astype(np.float16)) for _ in range(3)]
            self._events = [cupy.cuda.Event() for _ in range(2)]
        one = self._timed()
        one = self._timed() / self.times
        # Some 25 ms: long beside the edges, short beside the flights.
        self.times = max(int(0.025 / one), 1)
        self.rate = 2 * size**3 / one

    def _timed(self) -> float:
        self.begin()
        return self.end()

    def begin(self) -> None:
        """Queues the products."""
        one, other, out = self._parts
        if self._torch is not None:
            with self._torch.cuda.stream(self.stream):
                self._events[0].record(self.stream)
                for _ in range(self.times):
                    self._torch.matmul(one, other, out=out)
                self._events[1].record(self.stream)
            return
        with self.stream:
            self._events[0].record(self.stream)
            for _ in range(self.times):
                self._cupy.matmul(one, other, out=out)
            self._events[1].record(self.stream)

    def end(self) -> float:
        """Seconds that they took, once they have ended."""
        self._events[1].synchronize()
        if self._torch is not None:
            return float(self._events[0].elapsed_time(self._events[1])) / 1e3
        return float(self._cupy.cuda.get_elapsed_time(*self._events)) / 1e3


def compute(rig: Rig, until: float, said: Result) -> None:
    """What a saturating matrix product loses while copies run."""
    if rig.cupy is None:
        raise Skipped("it needs a GPU")
    product = Product(rig, rig.sizes.matrix)
    said["product"], said["operations_per_second"] = product.kind, product.rate
    said["method"] = "CUDA events around products; interleaved pairs; copies outlast the products"
    rows = said.setdefault("rows", [])
    tried: list[tuple[Any, dict[str, Any], int]] = [
        (order, {}, rig.sizes.pairs) for order in ORDERS
    ]
    for groups in (32, 64, 256, 512):
        limits = CopyTuning(groups=groups)
        tried.append(("layer-first", {"copy_tuning": limits}, rig.sizes.pairs // 2))
    ends = shares(until, rig.clock(), 3 * len(tried))
    delayed = said.setdefault("delayed", [])
    for order, options, pairs in tried:
        pair = Pair(rig, rig.sizes.cases[0].make(order), max(rig.sizes.counts), **options)
        try:
            if not options:
                delayed += [{"order": order, **row} for row in _delayed(pair, product)]
            for way in (*WAYS, "both"):
                rows.append(
                    {
                        "order": order,
                        "way": way,
                        "groups": options.get("copy_tuning", CopyTuning()).groups,
                        "default": not options,
                        **_losses(pair, product, way, pairs, next(ends)),
                    }
                )
        finally:
            pair.close()


def _delayed(pair: Pair, product: Product) -> list[Result]:
    """Short flights alone and beside products: what they wait for room, or for an engine."""
    rows = []
    for blocks in (1, 16, 64):
        for way in WAYS:
            flight = pair.flight(way, [pair.pick(blocks) for _ in range(8)])
            alone, beside = [], []
            for _ in range(6):
                alone.append(flight())
                # Ten or so: longer than the flight, which begins in the midst of them.
                product.begin()
                beside.append(flight())
                product.end()
            rows.append(
                {
                    "way": way,
                    "blocks": blocks,
                    "alone": median(alone[1:]),
                    "beside": median(beside[1:]),
                }
            )
    return rows


def connections(rig: Rig, until: float, said: Result) -> None:
    """The losses once more, where a process has 32 hardware queues: see its environment."""
    if rig.cupy is None:
        raise Skipped("it needs a GPU")
    product = Product(rig, rig.sizes.matrix)
    rows = said.setdefault("rows", [])
    ends = shares(until, rig.clock(), len(ORDERS))
    for order in ORDERS:
        pair = Pair(rig, rig.sizes.cases[0].make(order), max(rig.sizes.counts) // 2)
        try:
            known = {"order": order, "way": "both", "default": False}
            rows.append({**known, **_losses(pair, product, "both", rig.sizes.pairs, next(ends))})
        finally:
            pair.close()


def _losses(pair: Pair, product: Product, way: str, pairs: int, until: float) -> Result:
    """Pairs of products, alone and beside copies that begin before and end after them."""
    # No more than is queued at once: what waits to be queued would look like a copy under way.
    count = min(pair.host.blocks // 2, CopyTuning().queued_runs)
    ratios, uncovered = [], 0
    for turn in range(pairs + 1):
        alone = product._timed()
        device, host = pair.pick(2 * count)
        halves = {"down": (device[:count], host[:count]), "up": (device[count:], host[count:])}
        ways = WAYS if way == "both" else (way,)
        receipts = [pair.start(one, halves[one]) for one in ways]
        product.begin()
        beside = product.end()
        covered = all(receipt.poll() is None for receipt in receipts)
        for receipt in receipts:
            landed(receipt)
        if turn:
            ratios.append(alone / beside)
            uncovered += not covered
        if turn >= 5 and pair.rig.clock() > until:
            break
    return {
        "loss": 1 - median(ratios),
        "pairs": len(ratios),
        "pairs_that_copies_did_not_outlast": uncovered,
    }


def others(rig: Rig, until: float, said: Result) -> None:
    """The same blocks by loops of copies, and by an index and one copy, as engines do it."""
    if rig.cupy is None:
        raise Skipped("it needs CuPy")
    said["method"] = "host clock, the last stream synchronized"
    rows = said.setdefault("rows", [])
    turns = 4 * len(WAYS) * 2
    ends = shares(until, rig.clock(), turns)
    for order in ORDERS:
        layout = rig.sizes.cases[0].make(order)
        pair = Pair(rig, layout, rig.sizes.submit)
        try:
            for name, make in (("a copy per piece", _loop), ("index, then copy", _index)):
                for way in WAYS:
                    for busy in (False, True):
                        blocks, work = make(pair, way)
                        with busy_thread(busy=busy):
                            # Beside a busy thread once, at up to 5 ms a call.
                            most, end = 1 if busy else 5, next(ends)
                            times = repeated(rig, work, most, end, least=1, warm=not busy)
                        rate = blocks * layout.block_bytes / median(times)
                        rows.append(
                            {
                                "how": name,
                                "order": order,
                                "way": way,
                                "busy": busy,
                                "blocks": blocks,
                                "rate": rate,
                                "share": rate / rig.peak[way] if rig.peak else None,
                            }
                        )
                say(f"  {name}, {order}: done")
        finally:
            pair.close()
            rig.tidy()


def _loop(pair: Pair, way: str) -> tuple[int, Callable[[], float]]:
    """memcpyAsync for every piece of every block."""
    rig, runtime = pair.rig, pair.rig.cupy.cuda.runtime
    plane = pair.layout.planes[0]
    count = min(rig.sizes.submit, max(_MOST_CALLS // plane.pieces, 1))
    stream = rig.streams[0]

    def work() -> float:
        device, host = pair.pick(count)
        ends = []
        for tier, picked in ((pair.device, device), (pair.host, host)):
            where = tier.places[0]
            starts = picked.astype(np.uint64)[:, None] * np.uint64(where.stride) + where.pieces
            ends.append(starts.ravel().tolist())
        from_, to = ends if way == "down" else ends[::-1]
        size, kind = plane.piece_bytes, runtime.memcpyDefault
        begun = rig.clock()
        for one, other in zip(to, from_, strict=True):
            runtime.memcpyAsync(one, other, size, kind, stream)
        runtime.streamSynchronize(stream)
        return rig.clock() - begun

    return count, work


def _index(pair: Pair, way: str) -> tuple[int, Callable[[], float]]:
    """Gathered on the device, one copy, scattered by NumPy; or the reverse."""
    rig, cupy = pair.rig, pair.rig.cupy
    layout, runtime = pair.layout, cupy.cuda.runtime
    # The pinned memory behind the host tier is the buffer in between.
    free = rig.memory.nbytes - pair.host.nbytes
    count = min(rig.sizes.submit, pair.host.blocks, free // layout.block_bytes)
    if count < 1:
        raise Skipped("there is no pinned memory left for a buffer")
    shape = (count, layout.planes[0].pieces, layout.planes[0].piece_bytes // 8)
    start = -(-pair.host.nbytes // 4096) * 4096
    size = count * layout.block_bytes
    if start + size > rig.memory.nbytes:
        start = pair.host.nbytes
    staging = rig.memory.array[start : start + size].view(np.uint64).reshape(shape)
    below = pair.host.planes[0].view(np.uint64)
    device = pair.device.planes[0]
    above = cupy.ndarray(
        (*device.shape[:2], shape[2]),
        cupy.uint64,
        memptr=device.data,
        strides=(*device.strides[:2], 8),
    )
    stream = cupy.cuda.Stream(non_blocking=True)
    buffer = cupy.empty(shape, cupy.uint64)

    def work() -> float:
        slots, host = pair.pick(count)
        with stream:
            begun = rig.clock()
            where = cupy.asarray(slots.astype(np.int64))
            if way == "down":
                gathered = above[where]
                runtime.memcpyAsync(
                    staging.ctypes.data, gathered.data.ptr, size, runtime.memcpyDefault, stream.ptr
                )
                stream.synchronize()
                below[host] = staging
            else:
                np.take(below, host, axis=0, out=staging)
                runtime.memcpyAsync(
                    buffer.data.ptr, staging.ctypes.data, size, runtime.memcpyDefault, stream.ptr
                )
                above[where] = buffer
                stream.synchronize()
            return rig.clock() - begun

    return count, work
