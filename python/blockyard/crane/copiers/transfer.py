"""A plane's way from tier to tier with all that it takes: tables, a ring, and the calls."""

from collections.abc import Iterator

import numpy as np

from blockyard.crane.copiers.address_tables import AddressTables
from blockyard.crane.copiers.addressing import Addressing, Road, width
from blockyard.crane.copiers.stream import Part
from blockyard.crane.gpu import Addresses, Gpu, Memory, Move, PitchedCopy, Places
from blockyard.shared.thresholds import Thresholds

__all__ = ["Transfer"]


class Transfer:
    """The way of a plane, its addresses where a kernel reads them, and how blocks go.

    Args:
        gpu: Who copies.
        way: Which way.
        ring: The ring of its lane; None for none.
        atlas: Where its tables go.
        limits: How copies are best made.
    """

    def __init__(
        self,
        gpu: Gpu,
        way: Addressing,
        ring: Memory | None,
        atlas: AddressTables,
        limits: Thresholds,
    ) -> None:
        self.way = way
        self._gpu = gpu
        self._limits = limits
        self._ring = ring
        held = 0 if ring is None else ring.nbytes // way.block_bytes
        self._parts = min(limits.ring_parts, held)
        self._held = held // max(self._parts, 1)
        """Blocks of a part of the ring."""
        pieces = np.arange(way.pieces, dtype=np.uint64) * np.uint64(way.piece_bytes)
        start = np.uint64(0 if ring is None else ring.address)
        self._inside = Places(start + pieces, way.block_bytes)
        every = [way.source, way.destination]
        for part in range(max(self._parts, 1)):
            skip = np.uint64(part * self._held * way.block_bytes)
            every.append(Places(self._inside.pieces + skip, 0))
        self._tables = [atlas.add(places.pieces) for places in every]
        self._batches = gpu.batches and limits.batch_runs > 0
        above = way.destination if way.below == "source" else way.source
        self._ring_width = width(above, self._inside, way.piece_bytes)

    def settle(self, address: int) -> None:
        """The atlas lies there; kernels are made ready."""
        self._tables = [address + offset for offset in self._tables]
        self._gpu.prepare(self.way.width)
        self._gpu.prepare(self._ring_width)

    def road(self, runs: int, blocks: int) -> Road:
        """How so many blocks in so many runs of slots go best."""
        road = self.way.road(runs, blocks, self._limits, batches=self._batches)
        if road == "blocks" and not self._gpu.batches_blocks:
            road = "ring"
        return "kernel" if road == "ring" and self._ring is None else road

    def runs(self, road: Road) -> int:
        """Runs of batches that a block is."""
        return {"runs": self.way.pieces, "blocks": 1, "ring": 1}.get(road, 0)

    def cost(self, road: Road, blocks: int) -> tuple[int, int]:
        """Calls of the driver, and runs in batches."""
        runs = self.runs(road) * blocks
        if road == "ring":
            fillings = -(-blocks // self._held)
            return (6 if self._parts > 1 else 2) * fillings + 2, runs
        return (-(-runs // self._limits.batch_runs) if runs else 1), runs

    def send(self, road: Road, task: Part) -> None:
        """Queues the copies of a flight."""
        way, stream = self.way, task.lane.stream
        if road == "kernel":
            self.move(task)
        elif road == "runs":
            self._copy(*way.runs(task.sources, task.destinations), stream)
        elif road == "blocks":
            self._blocks(task)
        elif road == "ring":
            self._through(task)
        else:
            to, from_ = way.destination, way.source
            there = int(to.pieces[0]) + int(task.destinations[0]) * to.stride
            here = int(from_.pieces[0]) + int(task.sources[0]) * from_.stride
            blocks, size = len(task.sources), way.piece_bytes
            if road == "run":
                self._gpu.copy_run(there, here, blocks * size, stream)
            else:
                # Of a tier of one slot nothing is a stride away.
                pitches = max(to.stride, size), max(from_.stride, size)
                rows = PitchedCopy(there, pitches[0], here, pitches[1], size, blocks)
                self._gpu.copy_rows(rows, stream)

    def _copy(self, to: Addresses, from_: Addresses, sizes: Addresses, stream: int) -> None:
        """By as many calls as it takes."""
        most = self._limits.batch_runs
        if len(to) <= most:
            self._gpu.copy(to, from_, sizes, stream)
            return
        for first in range(0, len(to), most):
            part = slice(first, first + most)
            self._gpu.copy(to[part], from_[part], sizes[part], stream)

    def _blocks(self, task: Part) -> None:
        """Each block by a 2-D copy of its own: a row is a piece."""
        way, size = self.way, self.way.piece_bytes
        pitch = way.pitch
        assert pitch is not None  # noqa: S101 - `road` leads here only where there is one
        down = way.below == "destination"
        pitches = (size, pitch) if down else (pitch, size)
        to, from_ = way.starts(task.sources, task.destinations)
        most = self._limits.batch_runs
        for start in range(0, len(to), most):
            part = slice(start, start + most)
            blocks = PitchedCopy(to[part], pitches[0], from_[part], pitches[1], size, way.pieces)
            self._gpu.copy_blocks(blocks, task.lane.stream)

    def move(self, task: Part, part: int = 0, parts: int = 1) -> None:
        """Queues a kernel that goes straight from slots to slots, for one part of the pieces."""
        way, tables = self.way, task.tables
        first, end = (way.pieces * which // parts for which in (part, part + 1))
        groups = self._limits.groups if way.below is None else self._limits.link_groups
        move = Move(
            self._tables[0] + 8 * first,
            way.source.stride,
            tables[0],
            self._tables[1] + 8 * first,
            way.destination.stride,
            tables[1],
            len(task.sources),
            end - first,
            way.piece_bytes,
            way.width,
            groups,
        )
        self._gpu.move(move, task.lane.stream)

    def _through(self, task: Part) -> None:
        """As many blocks at a time as the ring, or a part of it, holds.

        They are whole below, in pieces above. Where the ring has parts, a stream of its own fills
        one while another is emptied.
        """
        way, lane, gpu, parts = self.way, task.lane, self._gpu, self._parts
        assert self._ring is not None  # noqa: S101 - `road` leads here only where there is one
        down = way.below == "destination"
        below = task.destinations if down else task.sources
        apart = parts > 1 and len(below) > self._held
        step = self._held * way.block_bytes
        tables = [
            way.through(self._ring.address + which * step, self._held, below)
            for which in range(parts if apart else 1)
        ]
        fillings = tables[0][1]
        side = main = lane.stream
        if apart:
            side = lane.side
            gpu.record(lane.begun, main)
            gpu.wait(side, lane.begun)
        for number, gather in enumerate(self._gathers(task)):
            which = number % len(tables)
            to, from_, sizes = tables[which][0]
            run = slice(fillings[number], fillings[number + 1])
            if apart and number >= parts:
                gpu.wait(side, lane.freed[which])
            if down:
                gpu.move(gather, side)
            else:
                self._copy(to[run], from_[run], sizes[run], side)
            if apart:
                gpu.record(lane.filled[which], side)
                gpu.wait(main, lane.filled[which])
            if down:
                self._copy(to[run], from_[run], sizes[run], main)
            else:
                gpu.move(gather, main)
            if apart and number + parts < len(fillings) - 1:
                gpu.record(lane.freed[which], main)

    def _gathers(self, task: Part) -> Iterator[Move]:
        """Between the device and the ring, a filling at a time."""
        way, held, all_ = self.way, self._held, len(task.sources)
        source = self._tables[0], way.source.stride
        target = self._tables[1], way.destination.stride
        sizes = way.pieces, way.piece_bytes, self._ring_width, self._limits.groups
        from_slots, to_slots = task.tables
        for number, first in enumerate(range(0, all_, held)):
            inside = self._tables[2 + number % self._parts], self._inside.stride, 0
            blocks, skip = min(held, all_ - first), 4 * first
            if way.below == "destination":
                yield Move(*source, from_slots + skip, *inside, blocks, *sizes)
            else:
                yield Move(*inside, *target, to_slots + skip, blocks, *sizes)
