"""The copies of one plane from tier to tier: its tables, its ring, and the calls that it takes."""

from collections.abc import Iterator

import numpy as np

from blockyard.crane.copiers.copy_method import Addressing, AddressTables, Method, Runs, width
from blockyard.crane.copiers.copy_stream import CopyPart
from blockyard.crane.gpu import Gpu, Memory, Move, PitchedCopy, Places
from blockyard.shared.copy_tuning import CopyTuning

__all__ = ["Transfer"]

# Copies in the first batch that an idle stream is given; each later one has twice as many. The
# driver takes up to 1 µs for each copy of a batch, and the device begins when the call returns.
_FIRST = 16


def _batches(runs: int, most: int, first: int = _FIRST) -> Iterator[slice]:
    """Yields batches, short ones first, so that the device begins at once."""
    start, size = 0, min(first, most)
    while start < runs:
        yield slice(start, start + size)
        start, size = start + size, min(2 * size, most)


class Transfer:
    """Queues copies of one plane between two tiers.

    Args:
        gpu: The GPU that copies.
        addressing: Where the pieces are.
        ring: The ring of its stream; None for none.
        tables: Where it adds the tables that its kernels read.
        limits: How copies are best made.
    """

    def __init__(
        self,
        gpu: Gpu,
        addressing: Addressing,
        ring: Memory | None,
        tables: AddressTables,
        limits: CopyTuning,
    ) -> None:
        self.addressing = addressing
        self._gpu = gpu
        self._limits = limits
        self._ring = ring
        held = 0 if ring is None else ring.nbytes // addressing.block_bytes
        self._parts = min(limits.ring_parts, held)
        self._held = held // max(self._parts, 1)
        """Blocks of a part of the ring."""
        pieces = np.arange(addressing.pieces, dtype=np.uint64) * np.uint64(addressing.piece_bytes)
        start = np.uint64(0 if ring is None else ring.address)
        self._inside = Places(start + pieces, addressing.block_bytes)
        every = [addressing.source, addressing.destination]
        for part in range(max(self._parts, 1)):
            skip = np.uint64(part * self._held * addressing.block_bytes)
            every.append(Places(self._inside.pieces + skip, 0))
        self._tables = [tables.add(places.pieces) for places in every]
        self._batches = gpu.batches and limits.batch_runs > 0
        above = addressing.destination if addressing.below == "source" else addressing.source
        self._ring_width = width(above, self._inside, addressing.piece_bytes)

    def bind(self, address: int) -> None:
        """Takes the address at which all tables lie now, and makes kernels ready."""
        self._tables = [address + offset for offset in self._tables]
        self._gpu.prepare(self.addressing.width)
        self._gpu.prepare(self._ring_width)

    def method(self, runs: int, blocks: int) -> Method:
        """Returns the method by which this many blocks, in this many runs, are best copied."""
        method = self.addressing.method(runs, blocks, self._limits, batches=self._batches)
        if method == "blocks" and not self._gpu.batches_blocks:
            method = "ring"
        return "kernel" if method == "ring" and self._ring is None else method

    def runs(self, method: Method) -> int:
        """Returns how many runs of batches a block takes."""
        return {"runs": self.addressing.pieces, "blocks": 1, "ring": 1}.get(method, 0)

    def cost(self, method: Method, blocks: int) -> tuple[int, int]:
        """Returns how many calls of the driver, and runs in batches, blocks take."""
        runs, most = self.runs(method) * blocks, self._limits.batch_runs
        if method != "ring":
            return max(sum(1 for _ in _batches(runs, most)), 1), runs
        fillings = -(-blocks // self._held)
        batches = sum(1 for _ in _batches(min(blocks, self._held), most))
        return (6 if self._parts > 1 else 2) * fillings + batches + 1, runs

    def send(self, method: Method, task: CopyPart) -> None:
        """Queues the copies of a part."""
        addressing, stream = self.addressing, task.stream.handle
        if method == "kernel":
            self.move(task)
        elif method == "runs":
            self._copy(addressing.runs(task.sources, task.destinations), stream, self._first(task))
        elif method == "blocks":
            self._blocks(task)
        elif method == "ring":
            self._through(task)
        else:
            to, from_ = addressing.destination, addressing.source
            there = int(to.pieces[0]) + int(task.destinations[0]) * to.stride
            here = int(from_.pieces[0]) + int(task.sources[0]) * from_.stride
            blocks, size = len(task.sources), addressing.piece_bytes
            if method == "run":
                self._gpu.copy_run(there, here, blocks * size, stream)
            else:
                # Of a tier of one slot nothing is a stride away.
                pitches = max(to.stride, size), max(from_.stride, size)
                rows = PitchedCopy(there, pitches[0], here, pitches[1], size, blocks)
                self._gpu.copy_rows(rows, stream)

    def _first(self, task: CopyPart) -> int:
        """Returns the length of the first batch; behind other copies there is no hurry."""
        return _FIRST if len(task.stream.queued) == 1 else self._limits.batch_runs

    def _copy(self, runs: Runs, stream: int, first: int) -> None:
        """Queues runs, by as many calls as it takes."""
        to, from_, sizes = runs
        if len(to) == 1:
            # The driver takes half as long for it as for a batch.
            self._gpu.copy_run(int(to[0]), int(from_[0]), int(sizes[0]), stream)
            return
        for part in _batches(len(to), self._limits.batch_runs, first):
            self._gpu.copy(to[part], from_[part], sizes[part], stream)

    def _blocks(self, task: CopyPart) -> None:
        """Queues a 2-D copy for each block, with a piece as a row."""
        addressing, size = self.addressing, self.addressing.piece_bytes
        pitch = addressing.pitch
        assert pitch is not None  # noqa: S101 - `method` leads here only where there is one
        down = addressing.below == "destination"
        pitches = (size, pitch) if down else (pitch, size)
        to, from_ = addressing.starts(task.sources, task.destinations)
        for part in _batches(len(to), self._limits.batch_runs, self._first(task)):
            ends = to[part], pitches[0], from_[part], pitches[1]
            blocks = PitchedCopy(*ends, size, addressing.pieces)
            self._gpu.copy_blocks(blocks, task.stream.handle)

    def move(self, task: CopyPart, part: int = 0, parts: int = 1) -> None:
        """Queues a kernel that goes straight from slots to slots, for one part of the pieces."""
        addressing, tables = self.addressing, task.tables
        first, end = (addressing.pieces * which // parts for which in (part, part + 1))
        groups = self._limits.groups if addressing.below is None else self._limits.link_groups
        move = Move(
            self._tables[0] + 8 * first,
            addressing.source.stride,
            tables[0],
            self._tables[1] + 8 * first,
            addressing.destination.stride,
            tables[1],
            len(task.sources),
            end - first,
            addressing.piece_bytes,
            addressing.width,
            groups,
        )
        self._gpu.move(move, task.stream.handle)

    def _through(self, task: CopyPart) -> None:
        """Queues as many blocks at a time as the ring, or a part of it, holds.

        Blocks are whole below the device and in pieces on it. Where the ring has parts, a stream
        of its own fills one while another is emptied.
        """
        addressing, stream, gpu, parts = self.addressing, task.stream, self._gpu, self._parts
        assert self._ring is not None  # noqa: S101 - `method` leads here only where there is one
        down = addressing.below == "destination"
        below = task.destinations if down else task.sources
        apart = parts > 1 and len(below) > self._held
        step = self._held * addressing.block_bytes
        tables = [
            addressing.through(self._ring.address + which * step, self._held, below)
            for which in range(parts if apart else 1)
        ]
        fillings = tables[0][1]
        side = main = stream.handle
        if apart:
            side = stream.side
            gpu.record(stream.begun, main)
            gpu.wait(side, stream.begun)
        for number, gather in enumerate(self._gathers(task)):
            which = number % len(tables)
            filling = slice(fillings[number], fillings[number + 1])
            runs = Runs(*(table[filling] for table in tables[which][0]))
            first = self._limits.batch_runs if number else self._first(task)
            if apart and number >= parts:
                gpu.wait(side, stream.freed[which])
            if down:
                gpu.move(gather, side)
            else:
                self._copy(runs, side, first)
            if apart:
                gpu.record(stream.filled[which], side)
                gpu.wait(main, stream.filled[which])
            if down:
                self._copy(runs, main, first)
            else:
                gpu.move(gather, main)
            if apart and number + parts < len(fillings) - 1:
                gpu.record(stream.freed[which], main)

    def _gathers(self, task: CopyPart) -> Iterator[Move]:
        """Yields the moves between the device and the ring, one for each filling."""
        addressing, held, all_ = self.addressing, self._held, len(task.sources)
        source = self._tables[0], addressing.source.stride
        target = self._tables[1], addressing.destination.stride
        sizes = addressing.pieces, addressing.piece_bytes, self._ring_width, self._limits.groups
        from_slots, to_slots = task.tables
        for number, first in enumerate(range(0, all_, held)):
            inside = self._tables[2 + number % self._parts], self._inside.stride, 0
            blocks, skip = min(held, all_ - first), 4 * first
            if addressing.below == "destination":
                yield Move(*source, from_slots + skip, *inside, blocks, *sizes)
            else:
                yield Move(*inside, *target, to_slots + skip, blocks, *sizes)
