"""How the bytes of a plane get from one tier to another on a GPU: addresses in, runs out."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, Self

import numpy as np

from blockyard._core import runs, through
from blockyard.crane.copiers import Slots
from blockyard.crane.gpu import Addresses, Gpu, Memory, Places
from blockyard.crane.tiers.pinned import Pinned
from blockyard.shared.copy_tuning import CopyTuning

__all__ = ["AddressTables", "Addressing", "Method", "Runs", "width"]

# Most bytes between two rows: CUDA's limit for all its devices so far (`maxPitch`: 2^31 - 1).
_PITCH = 1 << 31

Method = Literal["run", "rows", "runs", "blocks", "ring", "kernel"]


class Runs(NamedTuple):
    """Contiguous bytes to copy, shape (runs,) each."""

    to: Addresses
    from_: Addresses
    sizes: Addresses


@dataclass(frozen=True)
class Addressing:
    """Where the pieces of one plane are in two tiers, and how blocks of it are best copied.

    Pieces that follow one another on both sides count as one.

    Args:
        source: Where its pieces are.
        destination: Where they go.
        piece_bytes: Bytes of a piece.
        below: The side below the device, if its pieces follow one another in a slot there, so that
            whole blocks pass through a ring; None if there is no such side.
    """

    source: Places
    destination: Places
    piece_bytes: int
    below: Literal["source", "destination"] | None = None

    @classmethod
    def between(
        cls,
        source: Places,
        destination: Places,
        piece_bytes: int,
        names: tuple[str, str],
        *,
        apart: bool = False,
    ) -> Self:
        """Makes that of a plane between tiers of these names; `apart` joins no pieces."""
        whole = np.uint64(piece_bytes)
        joined = (np.diff(source.pieces) == whole) & (np.diff(destination.pieces) == whole)
        # Only as many at a time as divide all of them evenly, so that every piece stays as long.
        starts = np.flatnonzero(np.concatenate(([True], ~joined)))
        lengths = np.diff(np.append(starts, len(source.pieces)))
        if not apart and len(set(lengths.tolist())) == 1:
            source, destination = (
                Places(side.pieces[starts], side.stride) for side in (source, destination)
            )
            piece_bytes *= int(lengths[0])
        below: Literal["source", "destination"] | None = None
        if names[0] != names[1]:
            below = "source" if names[1] == "device" else "destination"
            side = source if below == "source" else destination
            if np.any(np.diff(side.pieces) != np.uint64(piece_bytes)):
                below = None
        return cls(source, destination, piece_bytes, below)

    @cached_property
    def pieces(self) -> int:
        """Pieces of a block."""
        return len(self.source.pieces)

    @cached_property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return self.pieces * self.piece_bytes

    @cached_property
    def flat(self) -> bool:
        """Whether consecutive slots are one run of bytes on both sides."""
        return self.source.stride == self.destination.stride == self.piece_bytes

    @cached_property
    def pitch(self) -> int | None:
        """Bytes from a piece of a block to its next above the link, if all are so far apart.

        Below it they follow one another, so that such a block is one 2-D copy.
        """
        above = self.destination if self.below == "source" else self.source
        apart = np.unique(np.diff(above.pieces.astype(np.int64)))
        even = self.below is not None and len(apart) == 1 and apart[0] >= self.piece_bytes
        return int(apart[0]) if even and apart[0] < _PITCH else None

    @cached_property
    def width(self) -> int:
        """Bytes that a kernel may load at a time here."""
        return width(self.source, self.destination, self.piece_bytes)

    def method(self, runs: int, blocks: int, limits: CopyTuning, *, batches: bool) -> Method:
        """Returns the method by which that many blocks are best copied.

        Args:
            runs: Runs of slots that are consecutive on both sides.
            blocks: Blocks.
            limits: Where one method begins to beat another.
            batches: Whether one call copies many runs.
        """
        whole = self.pieces == 1
        least = limits.whole_below if whole else limits.kernel_below
        if self.below is None or blocks * self.block_bytes < least:
            return "kernel"
        if runs == 1 and whole:
            return "run" if blocks == 1 or self.flat else "rows"
        few = blocks * self.pieces <= limits.most_runs or whole
        # A ring needs kernels, too, so that blocks in one piece gain nothing by it.
        own = min(limits.piece_bytes, limits.whole_below) if whole else limits.piece_bytes
        if batches and few and self.piece_bytes >= own:
            return "runs"
        if batches and self.piece_bytes >= limits.rows_bytes and self.pitch is not None:
            return "blocks"
        return "ring" if batches and not whole else "kernel"

    def runs(self, sources: Slots, destinations: Slots) -> Runs:
        """Returns all runs of some blocks.

        Args:
            sources: Slots, shape (blocks,).
            destinations: Slots, shape (blocks,).
        """
        places = self.source, self.destination
        return Runs(*runs(sources, destinations, *places, self.piece_bytes))

    def starts(self, sources: Slots, destinations: Slots) -> tuple[Addresses, Addresses]:
        """Returns where the first piece of each block goes, and where it is, shape (blocks,)."""
        here, there = (
            Places(side.pieces[:1], side.stride) for side in (self.source, self.destination)
        )
        # A piece of one byte never fills a slot, so that every block is a run of its own.
        to, from_, _ = runs(sources, destinations, here, there, 1)
        return to, from_

    def through(self, ring: int, held: int, slots: Slots) -> tuple[Runs, list[int]]:
        """Returns runs between slots of the tier below and a ring that is filled repeatedly.

        Args:
            ring: Address of the ring.
            held: Blocks that it holds.
            slots: Slots of the tier below, shape (blocks,).

        Returns:
            The runs, and the index at which those of each filling begin, then their number.
        """
        side = self.source if self.below == "source" else self.destination
        block = self.block_bytes
        (outside, inside, sizes), fillings = through(slots, side, ring, held, block)
        to, from_ = (outside, inside) if self.below == "destination" else (inside, outside)
        return Runs(to, from_, sizes), fillings


def width(source: Places, destination: Places, piece_bytes: int) -> int:
    """Returns the widest load, 16, 8, 4 or 1 bytes, that divides all sizes."""
    every = [*source.pieces.tolist(), *destination.pieces.tolist()]
    every += [source.stride, destination.stride, piece_bytes]
    return next(bytes_ for bytes_ in (16, 8, 4, 1) if all(not one % bytes_ for one in every))


class AddressTables:
    """Tables of addresses that kernels read; each has an offset until all are on the device.

    Args:
        gpu: The GPU that reads them.
    """

    def __init__(self, gpu: Gpu) -> None:
        self.address = 0
        self._gpu = gpu
        self._tables: list[Addresses] = []
        self._size = 0

    def add(self, table: Addresses) -> int:
        """Takes a table and returns its offset in bytes."""
        offset = self._size
        self._tables.append(table)
        self._size += table.nbytes
        return offset

    def upload(self, stream: int, memory: list[Memory]) -> None:
        """Copies all of them to the device, into memory that it adds to a list, and waits."""
        gpu, size = self._gpu, self._size
        memory.append(gpu.allocate(size))
        self.address = memory[-1].address
        staging = Pinned(gpu, size)
        try:
            staging.array.view(np.uint64)[:] = np.concatenate(self._tables)
            gpu.copy_run(self.address, staging.address, size, stream)
        finally:
            try:
                gpu.synchronize(stream)
            finally:
                staging.free()
