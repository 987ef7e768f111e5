"""What a disk tier reaches on a disk, beside what the disk itself does: in one run, in turns.

The floor is `DiskBaseline`: threads that write and read the same blocks in no order, past the page
cache, with one sync at the end. It is the core's, and not threads of Python, because those would
be slower than the disk at small blocks, and would flatter the tier. `benches/python/disk.py`
compares with the same floor.
"""

import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Final, NamedTuple, Self

import numpy as np

from blockyard._core import DiskBaseline, DiskLane, Misuse, Unavailable

__all__ = ["ROUNDS", "BlockLane", "Figure", "Measured", "in_turns", "measure", "room_for", "timed"]

ROUNDS: Final = 5
"""Each figure is the median of so many."""
_RECORD: Final = 128
_ALIGNED: Final = 4096
_MEMORY: Final = 256 << 20
"""Bytes of memory that blocks are written from and read to."""
_WAVES: Final = 4
"""Copies in flight while blocks are read."""
_POLL: Final = 2e-4
"""Seconds."""
_SPARE: Final = 64 << 20
"""Bytes that a measurement leaves free."""


class Figure(NamedTuple):
    """What one thing took, over all rounds."""

    seconds: list[float]
    cpu: list[float]
    """CPU seconds of the process, those of the system for it included."""

    def rate(self, nbytes: int) -> float:
        """Bytes per second, the median."""
        return nbytes / median(self.seconds)

    def part_of(self, other: "Figure") -> float:
        """How fast it is as a part of another: the median of the ratios of each round."""
        return median(b / a for a, b in zip(self.seconds, other.seconds, strict=True))


class Measured(NamedTuple):
    """What was measured."""

    blocks: int
    block_bytes: int
    threads: int
    cores: int
    """Cores that this process may use."""
    direct: bool
    """Whether the page cache was passed by."""
    figures: dict[str, Figure]
    """By "floor write", "write", "floor read" and "read"."""

    @property
    def nbytes(self) -> int:
        """Bytes of each round."""
        return self.blocks * self.block_bytes

    @property
    def load(self) -> int:
        """Nanoseconds to load a block, while all threads read: `disk` of `Speeds`."""
        return round(1e9 * self.block_bytes / self.figures["read"].rate(self.nbytes))


class BlockLane:
    """A disk tier's threads and memory for them, to write all of its blocks, and to read them.

    Args:
        root: A folder of its own.
        blocks: Blocks, each of them of `block_bytes` bytes.
        block_bytes: Likewise.
        threads: Threads that write and read.
    """

    def __init__(self, root: Path, *, blocks: int, block_bytes: int, threads: int) -> None:
        self.lane = DiskLane(
            root,
            [("model", "a measurement"), ("weights", "none")],
            rank=0,
            slots=blocks,
            block_bytes=block_bytes,
            threads=threads,
        )
        mixed = np.random.default_rng(1)
        held = max(min(blocks, _MEMORY // block_bytes), 1)
        self._memory = mixed.integers(0, 256, (held, block_bytes), np.uint8)
        self._order = mixed.permutation(blocks).astype(np.uint32)
        self.keys = mixed.integers(0, 256, (blocks, 32), np.uint8)
        """The key of each slot's block, shape (blocks, 32)."""
        # The first bytes of a key that is somebody's are not all zeros.
        self.keys[:, 0] |= 1
        self._parents = np.zeros_like(self.keys)
        self._written = 0

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the threads."""
        self.lane.close()

    def write(self) -> None:
        """Writes all blocks; returns when they are durable.

        Raises:
            Unavailable: The disk has failed.
        """
        flying = {self._down(part): len(part) for part in self._parts(64)}
        while flying:
            self._land(flying)

    def read(self) -> None:
        """Reads all blocks, each of which is checked.

        Raises:
            Unavailable: The disk has failed, or a block is not what was written.
        """
        size = max(len(self._memory) // _WAVES, 1)
        # A wave's memory is another's when it has landed.
        homes = [np.arange(i, i + size, dtype=np.uint32) for i in range(0, len(self._memory), size)]
        homes = [home for home in homes if home[-1] < len(self._memory)]
        flying: dict[int, int] = {}
        used: dict[int, np.ndarray] = {}
        parts = self._parts(size)
        left = next(parts, None)
        while flying or left is not None:
            while homes and left is not None:
                home = homes.pop()
                number = self.lane.submit_up(
                    left, self.keys[left], self._planes(), home[: len(left)]
                )
                flying[number], used[number] = len(left), home
                left = next(parts, None)
            homes.extend(used.pop(number) for number in self._land(flying))

    def _parts(self, size: int) -> "Iterator[np.ndarray]":
        for first in range(0, len(self._order), size):
            yield self._order[first : first + size]

    def _down(self, slots: "np.ndarray") -> int:
        sources = slots % np.uint32(len(self._memory))
        keys, parents = self.keys[slots], self._parents[slots]
        first = (self.lane.run << 32) + self._written
        self._written += len(slots)
        stamps = np.arange(first, first + len(slots), dtype=np.uint64)
        return self.lane.submit_down(slots, keys, parents, stamps, self._planes(), sources)

    def _planes(self) -> list[tuple["np.ndarray", int, int]]:
        nbytes = self._memory.shape[1]
        first = np.array([self._memory.__array_interface__["data"][0]], np.uint64)
        return [(first, nbytes, nbytes)]

    def _land(self, flying: dict[int, int]) -> list[int]:
        """Takes what has landed, or waits a moment."""
        landed = self.lane.poll()
        if not landed:
            time.sleep(_POLL)
        for number, good, why in landed:
            if good < flying.pop(number):
                raise Unavailable(f"the disk stopped after {good} blocks of a copy: {why}")
        return [number for number, _, _ in landed]


def room_for(blocks: int, block_bytes: int) -> int:
    """Bytes of disk that slot files and the floor of so many blocks take."""
    stride = -(-block_bytes // _ALIGNED) * _ALIGNED
    return blocks * (2 * stride + _RECORD) + _ALIGNED


def measure(
    path: Path,
    *,
    block_bytes: int,
    nbytes: int,
    threads: int,
    rounds: int = ROUNDS,
    step: Callable[[], object] = lambda: None,
) -> Measured:
    """Measures a disk and a disk tier on it, in turns, in a folder of its own that goes away.

    Args:
        path: A folder on the disk.
        block_bytes: Bytes of a block.
        nbytes: Bytes that each round writes and reads.
        threads: Threads that write and read.
        rounds: Rounds that count, as in `in_turns`.
        step: Called after each thing that was measured.

    Raises:
        Misuse: There is no such folder, it may not be written to, or there is too little room.
        Unavailable: The disk has failed.
    """
    blocks = max(nbytes // block_bytes, 1)
    _check(path, room_for(blocks, block_bytes))
    with ExitStack() as stack:
        try:
            made = stack.enter_context(tempfile.TemporaryDirectory(prefix=".bench-", dir=path))
        except OSError as error:
            raise Misuse(f"{path} cannot be written to: {error.strerror or error}") from None
        own = Path(made)
        sizes = {"block_bytes": block_bytes, "threads": threads}
        floor = DiskBaseline(own / "floor", slots=blocks, **sizes)
        lane = stack.enter_context(BlockLane(own / "tier", blocks=blocks, **sizes))
        works = {
            "floor write": floor.write,
            "write": lane.write,
            "floor read": floor.read,
            "read": lane.read,
        }
        figures = in_turns(works, rounds, step=step)
        direct = floor.direct and lane.lane.direct
    cores = len(os.sched_getaffinity(0))
    return Measured(blocks, block_bytes, threads, cores, direct, figures)


def in_turns(
    works: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    before: Mapping[str, Callable[[], object]] = MappingProxyType({}),
    step: Callable[[], object] = lambda: None,
) -> dict[str, Figure]:
    """Measures things in turns, every second round from the last to the first.

    So none of them always comes when the system still has in memory what it is about to read.

    Args:
        works: What is measured, by name. One round more is made at first, which does not count:
            room is slower to write when it is new.
        rounds: Rounds that count.
        before: What is done before a thing, and not measured, by the thing's name.
        step: Called after each thing.
    """
    figures = {name: Figure([], []) for name in works}
    for count in range(rounds + 1):
        for name in works if count % 2 == 0 else reversed(list(works)):
            if name in before:
                before[name]()
            seconds, cpu = timed(works[name])
            if count:
                figures[name].seconds.append(seconds)
                figures[name].cpu.append(cpu)
            step()
    return figures


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Does something; returns seconds, and CPU seconds of this process."""
    cpu, begun = _cpu(), time.perf_counter()
    work()
    return time.perf_counter() - begun, _cpu() - cpu


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _check(path: Path, needed: int) -> None:
    if not path.exists():
        raise Misuse(f"{path}: there is no such folder; make it first")
    if not path.is_dir():
        raise Misuse(f"{path} is no folder: give one on the disk to measure")
    if not os.access(path, os.W_OK | os.X_OK):
        raise Misuse(f"{path}: no permission to write there; give another folder")
    found = os.statvfs(path)
    free = found.f_bavail * found.f_frsize
    if free < needed + _SPARE:
        raise Misuse(
            f"{path}: {needed:,} bytes are needed, and {free:,} are free; give a smaller --bytes, "
            "or another folder"
        )
