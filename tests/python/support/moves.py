"""Moves for the kernels on a processor, and what NumPy says that they must have done.

As a program it tries a library in a process of its own, and names the first move that went wrong.
"""

import ctypes
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blockyard.crane.gpu import Move, kernels

# Words of a piece: around a team's width, a chunk, two chunks, and far beyond.
LENGTHS = (1, 2, 3, 5, 31, 32, 33, 127, 128, 129, 255, 257, 1000)
# Pieces and blocks.
SHAPES = ((4, 4), (1, 0), (1, 1), (1, 9), (6, 1), (3, 7), (2, 300))
KINDS = tuple(itertools.product(("pages", "layers"), ("identity", "scattered", "far")))
# Thread blocks at a time; the last is more than there is work for.
GROUPS = (1, 3, 10_000)
# Forward, the grid reversed, the threads reversed, both.
ORDERS = (0, 1, 2, 3)
# What the program answers when bytes are wrong; nothing else answers so.
WRONG = 3

_GUARD = 4096
Bytes = NDArray[np.uint8]


class Case(NamedTuple):
    """A move to try; everything else about it is drawn from a seed."""

    width: int
    words: int
    pieces: int
    blocks: int
    source: tuple[str, str] = ("layers", "scattered")
    target: tuple[str, str] = ("pages", "identity")
    seed: int = 0


class _Side:
    """Memory between guards, and where the pieces of the blocks lie in it."""

    def __init__(self, case: Case, kind: tuple[str, str], rng: np.random.Generator) -> None:
        arrangement, choice = kind
        size = case.width * case.words
        slots = case.blocks + int(rng.integers(0, 4))
        gap = case.width * int(rng.integers(0, 4))
        order = rng.permutation(case.pieces)
        if arrangement == "pages":
            self.stride = case.pieces * size + gap
            starts = order * size
            total = slots * self.stride
        else:
            self.stride = size + gap
            region = slots * self.stride + case.width * int(rng.integers(0, 4))
            starts = order * region
            total = case.pieces * region
        # A multiple of the width, and of nothing more.
        start = _GUARD + case.width * (1 + 2 * int(rng.integers(0, 8)))
        whole = rng.integers(0, 256, total + 3 * _GUARD, np.uint8)
        self.memory = whole[-whole.ctypes.data % 256 :]
        chosen = np.arange(case.blocks) if choice == "identity" else rng.permutation(slots)
        chosen = chosen[: case.blocks]
        # Far slots are the last that there can be, of memory that begins where they would put it.
        away = 2**32 - slots if choice == "far" else 0
        base = self.memory.ctypes.data + start - away * self.stride
        self.pieces = np.array([(base + int(at)) % 2**64 for at in starts], np.uint64)
        self.slots = None if choice == "identity" else (chosen + away).astype(np.uint32)
        places = start + starts + chosen[:, None] * self.stride
        self.index = places[..., None] + np.arange(size)

    @property
    def tables(self) -> tuple[int, int, int]:
        """Pieces, stride and slots, as a move has them."""
        slots = 0 if self.slots is None else self.slots.ctypes.data
        return self.pieces.ctypes.data, self.stride, slots


def cases() -> Iterator[Case]:
    """Every width with every length and shape, and a few pages as long as real ones."""
    kinds = list(itertools.product(KINDS, KINDS))
    every = itertools.product(kernels.WIDTHS, LENGTHS, SHAPES)
    for seed, (width, words, (pieces, blocks)) in enumerate(every):
        if words * blocks <= 80_000:
            # By sevens, so that a shape meets other kinds with every length.
            source, target = kinds[seed * 7 % len(kinds)]
            yield Case(width, words, pieces, blocks, source, target, seed)
    yield Case(16, (2 << 20) // 16, 1, 2, ("pages", "scattered"), ("pages", "scattered"))
    yield Case(16, 18_432 // 16, 20, 3, ("layers", "scattered"), ("pages", "scattered"))
    yield Case(16, 4096 // 16, 64, 5, ("pages", "scattered"), ("layers", "far"))


def moved(library: Any, case: Case) -> bool:
    """Whether each word is stored once, where it must be, on any grid and in any order."""
    rng = np.random.default_rng(case.seed)
    source, target = _Side(case, case.source, rng), _Side(case, case.target, rng)
    before, after = target.memory.copy(), target.memory.copy()
    after[target.index] = source.memory[source.index]
    unread = source.memory.copy()
    move = Move(
        *source.tables,
        *target.tables,
        blocks=case.blocks,
        pieces=case.pieces,
        piece_bytes=case.width * case.words,
        width=case.width,
        groups=1,
    )
    numbers = kernels.arguments(move)
    arguments = (ctypes.c_uint64 * len(numbers))(*numbers)
    # With nothing to move the grid would be 0; a kernel launched all the same moves nothing.
    grids = {max(kernels.grid(move._replace(groups=groups)), 1) for groups in GROUPS}
    for grid, order in itertools.product(sorted(grids), ORDERS):
        target.memory[:] = before
        stored = library.launch(case.width, grid, order, arguments)
        once = stored == case.words * case.pieces * case.blocks
        if not once or not np.array_equal(target.memory, after):
            return False
    return np.array_equal(source.memory, unread)


def load(path: Path) -> Any:
    """The kernels, built as a library."""
    library = ctypes.CDLL(str(path))
    library.launch.restype = ctypes.c_uint64
    library.launch.argtypes = [ctypes.c_uint] * 3 + [ctypes.POINTER(ctypes.c_uint64)]
    return library


def main() -> int:
    """Tries the library that is named."""
    library = load(Path(sys.argv[1]))
    # Far slots last: where nothing else is wrong, a mistake there is a crash.
    order = sorted(cases(), key=lambda case: "far" in case.source + case.target)
    wrong = next((case for case in order if not moved(library, case)), None)
    if wrong is None:
        return 0
    sys.stdout.write(f"{wrong}\n")
    return WRONG


if __name__ == "__main__":
    sys.exit(main())
