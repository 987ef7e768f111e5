"""A plane's way from tier to tier with all that it takes: tables, a ring, and the calls."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from blockyard.copiers import Slots
from blockyard.copiers.lane import Flight
from blockyard.copiers.ways import Road, Way, width
from blockyard.gpu import Addresses, Gpu, Memory, Move, Places
from blockyard.thresholds import Thresholds
from blockyard.tiers.pinned import Pinned

__all__ = ["Atlas", "Route", "Task"]


class Task(NamedTuple):
    """The blocks of a flight."""

    flight: Flight
    stream: int
    sources: Slots
    destinations: Slots


class Atlas:
    """Tables of addresses for kernels to read, each at an offset until all are on the device.

    Args:
        gpu: Whose device.
    """

    def __init__(self, gpu: Gpu) -> None:
        self.address = 0
        self._gpu = gpu
        self._pages: list[Addresses] = []
        self._size = 0

    def add(self, page: Addresses) -> int:
        """Takes a table; answers with its offset in bytes."""
        offset = self._size
        self._pages.append(page)
        self._size += page.nbytes
        return offset

    def unroll(self, stream: int, memory: list[Memory]) -> None:
        """Puts all of them on the device, in memory that it adds to a list, and waits for that."""
        gpu, size = self._gpu, self._size
        memory.append(gpu.allocate(size))
        self.address = memory[-1].address
        staging = Pinned(gpu, size)
        try:
            staging.array.view(np.uint64)[:] = np.concatenate(self._pages)
            gpu.copy_rows(self.address, size, staging.address, size, size, 1, stream)
        finally:
            gpu.synchronize(stream)
            staging.free()


class Route:
    """The way of a plane, its addresses where a kernel reads them, and how blocks go.

    Args:
        gpu: Who copies.
        way: Which way.
        ring: The ring of its lane; None for none.
        atlas: Where its tables go.
        limits: How copies are best made.
    """

    def __init__(
        self, gpu: Gpu, way: Way, ring: Memory | None, atlas: Atlas, limits: Thresholds
    ) -> None:
        self.way = way
        self._gpu = gpu
        self._limits = limits
        self._ring = ring
        self._held = 0 if ring is None else ring.nbytes // way.block_bytes
        pieces = np.arange(way.pieces, dtype=np.uint64) * np.uint64(way.piece_bytes)
        start = np.uint64(0 if ring is None else ring.address)
        self._inside = Places(start + pieces, way.block_bytes)
        every = way.source, way.destination, self._inside
        self._tables = [atlas.add(places.pieces) for places in every]
        above = way.destination if way.below == "source" else way.source
        self._ring_width = width(above, self._inside, way.piece_bytes)

    def settle(self, address: int) -> None:
        """The atlas lies there; kernels are made ready."""
        self._tables = [address + offset for offset in self._tables]
        self._gpu.prepare(self.way.width)
        self._gpu.prepare(self._ring_width)

    def road(self, runs: int, blocks: int) -> Road:
        """How so many blocks in so many runs of slots go best."""
        road = self.way.road(runs, blocks, self._limits, batches=self._gpu.batches)
        return "kernel" if road == "ring" and self._ring is None else road

    def cost(self, road: Road, blocks: int) -> tuple[int, int]:
        """Calls of the driver, and runs in batches."""
        if road == "runs":
            return 1, blocks * self.way.pieces
        return (2 * -(-blocks // self._held), blocks) if road == "ring" else (1, 0)

    def send(self, road: Road, task: Task) -> None:
        """Queues the copies of a flight."""
        way = self.way
        if road == "kernel":
            self.move(task)
        elif road == "runs":
            runs = way.runs(task.sources, task.destinations)
            self._gpu.copy(*runs, task.stream)
        elif road == "rows":
            to, from_ = way.destination, way.source
            self._gpu.copy_rows(
                int(to.pieces[0]) + int(task.destinations[0]) * to.stride,
                # Of a tier of one slot nothing is a stride away.
                max(to.stride, way.piece_bytes),
                int(from_.pieces[0]) + int(task.sources[0]) * from_.stride,
                max(from_.stride, way.piece_bytes),
                way.piece_bytes,
                task.flight.blocks,
                task.stream,
            )
        else:
            self._through(task)

    def move(self, task: Task, part: int = 0, parts: int = 1) -> None:
        """Queues a kernel that goes straight from slots to slots, for one part of the pieces."""
        way, flight = self.way, task.flight
        first, end = (way.pieces * which // parts for which in (part, part + 1))
        groups = self._limits.groups if way.below is None else self._limits.link_groups
        move = Move(
            self._tables[0] + 8 * first,
            way.source.stride,
            flight.tables[0],
            self._tables[1] + 8 * first,
            way.destination.stride,
            flight.tables[1],
            flight.blocks,
            end - first,
            way.piece_bytes,
            way.width,
            groups,
        )
        self._gpu.move(move, task.stream)

    def _through(self, task: Task) -> None:
        """As many blocks at a time as the ring holds: whole below, in pieces above."""
        way, stream = self.way, task.stream
        assert self._ring is not None  # noqa: S101 - `road` leads here only where there is one
        down = way.below == "destination"
        below = task.destinations if down else task.sources
        (to, from_, sizes), fillings = way.through(self._ring.address, self._held, below)
        copy, move = self._gpu.copy, self._gpu.move
        for number, gather in enumerate(self._gathers(task.flight)):
            part = slice(fillings[number], fillings[number + 1])
            if down:
                move(gather, stream)
            copy(to[part], from_[part], sizes[part], stream)
            if not down:
                move(gather, stream)

    def _gathers(self, flight: Flight) -> Iterator[Move]:
        """Between the device and the ring, a filling at a time."""
        way, held = self.way, self._held
        source = self._tables[0], way.source.stride
        target = self._tables[1], way.destination.stride
        inside = self._tables[2], self._inside.stride, 0
        sizes = way.pieces, way.piece_bytes, self._ring_width, self._limits.groups
        from_slots, to_slots = flight.tables
        for first in range(0, flight.blocks, held):
            blocks, skip = min(held, flight.blocks - first), 4 * first
            if way.below == "destination":
                yield Move(*source, from_slots + skip, *inside, blocks, *sizes)
            else:
                yield Move(*inside, *target, to_slots + skip, blocks, *sizes)
