"""Blockyard's side of `disk.py`: a disk tier's lane, and the disk alone.

python side_disk_blockyard.py WORK FOLDER BLOCKS BLOCK_BYTES JOB
"""

import sys
import time
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from blockyard._core import DiskBaseline, DiskLane, Unavailable
from peers.disk_side import Asked, Memory, Store, override, serve, unlink

THREADS = 4
"""Of the disk alone; the lane has as many, its default."""
POLL = 2e-4
"""Seconds."""


class Lane(Store):
    """A disk tier's threads: durable writes with a checksum, and reads that are verified."""

    durable = True

    def __init__(self, asked: Asked, memory: Memory, name: str) -> None:
        super().__init__(asked)
        self.memory, self.root = memory, asked.folder / name
        mixed = np.random.default_rng(1)
        self.keys = mixed.integers(0, 256, (asked.blocks, 32), np.uint8)
        # The first bytes of a key that is somebody's are not all zeros.
        self.keys[:, 0] |= 1
        self.parents = np.zeros_like(self.keys)
        self.count = 0
        self.open()

    def open(self) -> None:
        self.lane = DiskLane(
            self.root,
            [("model", "a measurement"), ("weights", "none")],
            rank=0,
            slots=self.asked.blocks,
            block_bytes=self.asked.block_bytes,
            threads=THREADS,
        )

    def planes(self) -> list[tuple[np.ndarray, int, int]]:
        nbytes = self.asked.block_bytes
        first = np.array([self.memory.all.ctypes.data], np.uint64)
        return [(first, nbytes, nbytes)]

    @override
    def write(self) -> None:
        flying = {}
        for slots in self.asked.jobs(self.asked.written):
            first = (self.lane.run << 32) + self.count
            self.count += len(slots)
            stamps = np.arange(first, first + len(slots), dtype=np.uint64)
            keys, parents = self.keys[slots], self.parents[slots]
            number = self.lane.submit_down(slots, keys, parents, stamps, self.planes(), slots)
            flying[number] = len(slots)
        self.land(flying)

    @override
    def read(self) -> None:
        flying = {}
        for slots in self.asked.jobs(self.asked.read):
            homes = slots + np.uint32(self.asked.blocks)
            number = self.lane.submit_up(slots, self.keys[slots], self.planes(), homes)
            flying[number] = len(slots)
        self.land(flying)

    def land(self, flying: dict[int, int]) -> None:
        while flying:
            landed = self.lane.poll()
            if not landed:
                time.sleep(POLL)
            for number, good, why in landed:
                if good < flying.pop(number):
                    raise Unavailable(why)


class New(Lane):
    """The same, into room that nothing was ever written to."""

    @override
    def empty(self) -> None:
        self.lane.close()
        unlink(self.files())
        self.count = 0
        self.open()


class Alone(Store):
    """The floor of `blockyard disk bench`: the disk with nothing else, and one sync at the end."""

    durable = True

    def __init__(self, asked: Asked) -> None:
        super().__init__(asked)
        self.path = asked.folder / "alone"
        self.floor = DiskBaseline(
            self.path, slots=asked.blocks, block_bytes=asked.block_bytes, threads=THREADS
        )

    @override
    def files(self) -> list[Path]:
        return [self.path]

    @override
    def write(self) -> None:
        self.floor.write()

    @override
    def blank(self) -> None:
        """It keeps nothing of what it reads."""

    @override
    def read(self) -> None:
        self.floor.read()

    @override
    def wrong(self) -> int:
        return 0


def main() -> None:
    asked = Asked()
    memory = Memory(asked)
    stores: dict[str, Store] = {
        "alone": Alone(asked),
        "lane": Lane(asked, memory, "lane"),
        "new": New(asked, memory, "new"),
    }
    serve(stores, {"blockyard": version("blockyard")})


if __name__ == "__main__":
    main()
