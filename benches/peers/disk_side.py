"""What the sides of `disk.py` share: the blocks, and the answers to its lines.

A side is a process with one store or several. Asked `{"do": "write", "what": …}` it writes all
blocks, and then syncs them; asked to `read`, it reads them back, cold, and compares every byte;
asked to `flip`, it flips a bit of what lies on the disk.
"""

from __future__ import annotations

import mmap
import os
import resource
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from peers.driver import answered, override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["Asked", "Memory", "Store", "cool", "override", "serve", "sync", "unlink"]

SYNCERS = 4
"""Threads that sync what a side has not."""


class Asked:
    """What the bench gives on the command line, at its end: FOLDER BLOCKS BLOCK_BYTES JOB."""

    def __init__(self) -> None:
        self.folder = Path(sys.argv[-4])
        self.blocks, self.block_bytes, self.job = map(int, sys.argv[-3:])
        mixed = np.random.default_rng(11)
        #: Blocks are written in one order and read in another.
        self.written = mixed.permutation(self.blocks).astype(np.uint32)
        self.read = mixed.permutation(self.blocks).astype(np.uint32)
        self.folder.mkdir()

    def jobs(self, order: np.ndarray) -> Iterator[np.ndarray]:
        """Parts of an order: what is handed over together, as for a request."""
        for first in range(0, self.blocks, self.job):
            yield order[first : first + self.job]

    def block(self, number: int) -> np.ndarray:
        """The bytes of a block, the same on every side."""
        return np.random.default_rng((7, number)).integers(0, 256, self.block_bytes, np.uint8)


class Memory:
    """Host memory from which blocks are written, and as much to which they are read."""

    def __init__(self, asked: Asked) -> None:
        # Page-aligned, as direct reads and writes need it.
        self._room = mmap.mmap(-1, 2 * asked.blocks * asked.block_bytes)
        self.all = np.frombuffer(self._room, np.uint8).reshape(2 * asked.blocks, asked.block_bytes)
        self.sources, self.back = self.all[: asked.blocks], self.all[asked.blocks :]
        for number in range(asked.blocks):
            self.sources[number] = asked.block(number)

    def blank(self) -> None:
        """Forgets what was read."""
        self.back[:] = 0

    def wrong(self) -> int:
        """Blocks that are not what was written."""
        return int(np.count_nonzero((self.back != self.sources).any(axis=1)))


class Store:
    """A way to keep blocks on a disk."""

    durable = False
    """Whether a write that has returned is on the disk."""
    memory: Memory

    def __init__(self, asked: Asked) -> None:
        self.asked, self.root = asked, asked.folder

    def empty(self) -> None:
        """Drops what an earlier round wrote, where it would not be written again."""

    def write(self) -> None:
        """Writes all blocks."""
        raise NotImplementedError

    def files(self) -> list[Path]:
        """Everything that was written."""
        return [path for path in self.root.rglob("*") if path.is_file()]

    def blank(self) -> None:
        """Forgets what was read."""
        self.memory.blank()

    def read(self) -> None:
        """Reads all blocks."""
        raise NotImplementedError

    def wrong(self) -> int:
        """How many of them are not what was written."""
        return self.memory.wrong()


def sync(paths: list[Path]) -> None:
    """Makes files and their names durable."""

    def one(path: Path) -> None:
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)

    with ThreadPoolExecutor(SYNCERS) as pool:
        list(pool.map(one, paths))
        list(pool.map(one, {path.parent for path in paths}))


def cool(paths: list[Path]) -> None:
    """Has the page cache forget files, which are synced."""
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def unlink(paths: list[Path]) -> None:
    """Removes files, durably: that is not left to whoever writes next."""
    folders = {path.parent for path in paths}
    for path in paths:
        path.unlink(missing_ok=True)
    for folder in folders:
        file = os.open(folder, os.O_RDONLY)
        os.fsync(file)
        os.close(file)


def flip(paths: list[Path]) -> None:
    """Flips a bit in the middle of the largest file."""
    path = max(paths, key=lambda one: one.stat().st_size)
    with path.open("r+b") as file:
        at = path.stat().st_size // 2
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    sync([path])


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Does something; returns seconds, and CPU seconds of this process."""

    def cpu() -> float:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime

    before, begun = cpu(), time.perf_counter()
    work()
    return time.perf_counter() - begun, cpu() - before


def answer(store: Store, do: str) -> dict[str, Any]:
    """Plays a turn."""
    if do == "write":
        store.empty()
        seconds, cpu = timed(store.write)
        synced = 0.0 if store.durable else timed(lambda: sync(store.files()))[0]
        return {"seconds": seconds, "cpu": cpu, "synced": synced}
    if do == "flip":
        flip(store.files())
        return {}
    cool(store.files())
    store.blank()
    seconds, cpu = timed(store.read)
    return {"seconds": seconds, "cpu": cpu, "wrong": store.wrong()}


def serve(stores: Mapping[str, Store], about: dict[str, str]) -> None:
    """Answers the lines of `disk.py`."""
    answered(lambda ask: about if ask["do"] == "about" else answer(stores[ask["what"]], ask["do"]))
