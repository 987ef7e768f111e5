"""Measures how copies between a GPU and its host are best made here, for `CopyTuning`."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from math import log
from statistics import median
from typing import NamedTuple

import numpy as np

from blockyard._core import Misuse, Unavailable
from blockyard.crane.copiers import Slots
from blockyard.crane.copiers.cuda import CudaCopier, Device, Placed
from blockyard.crane.gpu import Gpu
from blockyard.crane.tiers.device import DeviceTier
from blockyard.crane.tiers.pinned import PinnedTier
from blockyard.shared.copy_tuning import CopyTuning
from blockyard.shared.layout import KVLayout, Plane

__all__ = ["Sample", "calibrate", "crossover", "pieces", "sizes"]

Clock = Callable[[], float]

_ALWAYS = 1 << 62
# What is tried: bytes of a flight; and bytes of a piece, where `_BLOCKS` blocks of `_BLOCK` bytes
# are copied at a time.
_SIZES = tuple(1 << power for power in range(16, 24))
_PIECES = tuple(1 << power for power in range(12, 20))
_BLOCK, _BLOCKS = 2 << 20, 8
# Nanoseconds for which compute leaves no room for a kernel when a flight begins: as long as a
# layer of a large model takes, about.
_COMPUTE = 200_000
# Most turns of each after the first, which warms up.
_TURNS = 15


class Sample(NamedTuple):
    """The medians of two methods at one size, down and up together, in seconds."""

    size: int
    below: float
    """By the method for sizes below the threshold."""
    beyond: float
    """By the other method."""


def calibrate(
    device: Device,
    host: Placed,
    *,
    copy_tuning: CopyTuning | None = None,
    clock: Clock = time.perf_counter,
    budget: float = 2.0,
    busy: bool = True,
) -> CopyTuning:
    """Finds `piece_bytes`, and `whole_below` or `kernel_below`; the others stay as given.

    It copies between small tiers of its own, on a stream of its own: no byte of the tiers given is
    touched. Call it while nothing else uses the link, and keep what it found. It finds
    `whole_below` where the layout has a block in one piece, else `kernel_below`.

    Args:
        device: The device tier that is tuned.
        host: Its host tier.
        copy_tuning: What to start from; None for the defaults.
        clock: Returns seconds.
        budget: Seconds after which every size has its last turn; each has two or more.
        busy: Whether every copy begins beside compute that leaves no room for kernels, as it will
            beside an engine. On an idle GPU kernels look better than they are.

    Raises:
        Misuse: The tiers are of two GPUs.
        Unavailable: There is not enough memory (some 32 MiB, each way), or a copy failed.
    """
    gpu = device.gpu
    if host.gpu is not gpu:
        raise Misuse("the tiers are of two GPUs: give both the same gpu=")
    found = CopyTuning() if copy_tuning is None else copy_tuning
    begun = clock()
    if gpu.batches:
        samples = pieces(gpu, found, clock=clock, end=begun + budget / 2, busy=busy)
        found = replace(found, piece_bytes=crossover(samples))
    plane = max(device.layout.planes, key=lambda plane: plane.block_bytes)
    piece = plane.piece_bytes if plane.pieces > 1 else None
    samples = sizes(gpu, found, piece, clock=clock, end=begun + budget, busy=busy)
    least = crossover(samples)
    return (
        replace(found, whole_below=least) if piece is None else replace(found, kernel_below=least)
    )


def crossover(samples: Iterable[Sample]) -> int:
    """Returns the size from which the other method is used, so that least time is lost."""
    kept = list(samples)
    starts = [sample.size for sample in kept]

    def lost(start: int) -> float:
        return sum(log(one.below if one.size < start else one.beyond) for one in kept)

    return min([*starts, 2 * starts[-1]], key=lost)


def pieces(
    gpu: Gpu, known: CopyTuning, *, clock: Clock, end: float, busy: bool = True
) -> Iterator[Sample]:
    """Measures pieces of each size: all through the ring, and each by a copy of its own."""
    apart = replace(known, kernel_below=0, whole_below=0)
    ring = replace(apart, piece_bytes=_ALWAYS)
    runs = replace(apart, piece_bytes=0, most_runs=_ALWAYS)
    for left, piece in zip(range(len(_PIECES), 0, -1), _PIECES, strict=True):
        now = clock()
        plane = Plane("kv", _BLOCK // piece, piece)
        yield Sample(
            piece, *_duel(gpu, plane, _BLOCKS, (ring, runs), clock, now + (end - now) / left, busy)
        )


def sizes(
    gpu: Gpu,
    known: CopyTuning,
    piece: int | None = None,
    *,
    clock: Clock,
    end: float,
    busy: bool = True,
) -> Iterator[Sample]:
    """Measures one block of each size: by the kernel over the link, and by another method.

    Args:
        gpu: The GPU that copies.
        known: The other fields.
        piece: Bytes of each of its pieces; None for a block in one piece.
        clock: Returns seconds.
        end: When it should be over.
        busy: As in `calibrate`.
    """
    kernel = replace(known, kernel_below=_ALWAYS, whole_below=_ALWAYS)
    other = replace(known, kernel_below=0, whole_below=0)
    tried = [size for size in _SIZES if piece is None or size >= 2 * piece]
    # A block of very long pieces is larger than any threshold: one size is enough.
    tried = tried or [_SIZES[-1]]
    for left, size in zip(range(len(tried), 0, -1), tried, strict=True):
        now = clock()
        length = size if piece is None else min(piece, size)
        plane = Plane("kv", size // length, length)
        yield Sample(
            size, *_duel(gpu, plane, 1, (kernel, other), clock, now + (end - now) / left, busy)
        )


def _duel(
    gpu: Gpu,
    plane: Plane,
    blocks: int,
    rivals: tuple[CopyTuning, CopyTuning],
    clock: Clock,
    end: float,
    busy: bool,  # noqa: FBT001 - it is handed on
) -> tuple[float, float]:
    """Returns the seconds of a copy down and one up, by each of two methods in turn."""
    layout = KVLayout((plane,), dtype="uint8")
    order = np.concatenate((np.arange(0, blocks, 2), np.arange(1, blocks, 2))).astype(np.uint32)
    with ExitStack() as stack:
        with gpu:
            stream, compute = gpu.stream(), gpu.stream()
        stack.callback(_discard, gpu, stream, compute)
        # One slot more: in a tier of one slot, all pieces would follow one another.
        device = DeviceTier(layout, blocks + 1, gpu=gpu, stream=stream)
        stack.callback(device.close)
        host = PinnedTier(layout, blocks + 1, gpu=gpu)
        stack.callback(host.close)
        copiers = []
        for limits in rivals:
            ring = min(limits.ring_bytes, layout.block_bytes * blocks)
            fitted = replace(limits, ring_bytes=ring)
            copiers.append(CudaCopier(device, host, copy_tuning=fitted, depth=2))
            stack.callback(copiers[-1].close)
        # It has ended before memory is freed.
        stack.callback(_ended, gpu, compute)
        times: dict[tuple[int, bool], list[float]] = {}
        for turn in count():
            for which, copier in enumerate(copiers):
                for up in (False, True):
                    ends = (host, device) if up else (device, host)
                    _ended(gpu, compute)
                    if busy:
                        with gpu:
                            gpu.occupy(_COMPUTE, compute)
                    taken = _seconds(copier, ends, order, clock)
                    if turn:
                        times.setdefault((which, up), []).append(taken)
            if turn and (turn == _TURNS or clock() >= end):
                break
    one, other = (sum(median(times[which, up]) for up in (False, True)) for which in (0, 1))
    return one, other


def _seconds(copier: CudaCopier, ends: tuple[Placed, Placed], order: Slots, clock: Clock) -> float:
    """Returns the seconds from the start of a copy until a poll says that it has landed."""
    begun = clock()
    receipt = copier.start(*ends, order, order[::-1])
    assert receipt is not None  # noqa: S101 - nothing else is in flight, nothing is captured
    while (landed := receipt.poll()) is None:
        pass
    taken = clock() - begun
    if landed.cause is not None:
        raise Unavailable(f"a copy failed while copy tuning was measured: {landed.cause}")
    return taken


def _ended(gpu: Gpu, stream: int) -> None:
    with gpu:
        gpu.synchronize(stream)


def _discard(gpu: Gpu, *streams: int) -> None:
    with gpu:
        for stream in streams:
            gpu.discard(stream, [])
