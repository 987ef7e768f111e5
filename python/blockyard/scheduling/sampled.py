"""The tokens that requests have sampled; those of the last steps are in a ring for each seat."""

from array import array
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["SampledTokens", "TokenRings"]

_CELLS: Final = 512
"""Cells of a ring, a power of two: the token at a position is in the cell `position % _CELLS`."""

_BYTES: Final = 4
"""Bytes of a cell."""


class _Ring(NamedTuple):
    """The ring of a seat that a request has."""

    cells: memoryview
    """Its cells, as bytes."""
    known: memoryview
    """`Seats.known`: a token is in its cell before it counts there."""
    number: int
    """The seat's number."""
    prompt: int
    """Tokens of the request's prompt."""


class SampledTokens:
    """The tokens that a request has sampled, first to last. Any thread may read them.

    A step writes one token into the ring of each seat, in one call for all of them. Here they come
    when half of the ring is full at the latest, and when the request leaves its seat.
    """

    __slots__ = ("_kept", "_ring")

    def __init__(self) -> None:
        self._kept = array("I")
        self._ring: _Ring | None = None

    def __len__(self) -> int:
        """How many they are."""
        while True:
            ring, count = self._ring, len(self._kept)
            if ring is not None:
                count = ring.known[ring.number] - ring.prompt
            if ring is self._ring:
                return count

    def since(self, first: int = 0) -> list[int]:
        """Returns the tokens from number `first` on."""
        return self._from(first).tolist()

    def array(self) -> NDArray[np.uint32]:
        """Returns all of them in a new array, shape (tokens,)."""
        return np.array(self._from(0), np.uint32)

    def _from(self, first: int) -> "array[int]":
        while True:
            ring, kept = self._ring, len(self._kept)
            found = self._kept[first:]
            if ring is not None:
                if first < 0:
                    return self._from(0)[first:]
                self._copy(ring, max(first, kept), found)
            # Otherwise its tokens have moved meanwhile, or the seat is another request's.
            if ring is self._ring and kept == len(self._kept):
                return found

    @staticmethod
    def _copy(ring: _Ring, first: int, to: "array[int]") -> None:
        """Copies the tokens from number `first` on out of a ring."""
        cells, known, number, prompt = ring
        begin, end = prompt + first, known[number]
        if begin >= end:
            return
        begin, end = begin % _CELLS * _BYTES, end % _CELLS * _BYTES
        if begin < end:
            to.frombytes(cells[begin:end])
        else:
            to.frombytes(cells[begin:])
            to.frombytes(cells[:end])

    def keep(self) -> None:
        """Takes the tokens over that are in the ring alone."""
        if self._ring is not None:
            # Where an interrupt has come between two parts, the next call goes on behind the first.
            self._copy(self._ring, len(self._kept), self._kept)

    def extend(self, tokens: NDArray[np.uint32]) -> None:
        """Adds tokens past the ring; the caller counts them in `Seats.known` next."""
        self.keep()
        self._kept.frombytes(tokens.tobytes())

    def sit(self, ring: _Ring) -> None:
        """Reads the ring of a seat from now on, too."""
        self._ring = ring

    def leave(self) -> None:
        """Reads no ring any more."""
        self.keep()
        self._ring = None


class TokenRings:
    """The rings of all seats.

    Args:
        known: Tokens that exist in each seat, prompt and sampled.
    """

    def __init__(self, known: NDArray[np.int64]) -> None:
        self._known = known
        self._cells = np.zeros((len(known), _CELLS), np.uint32)
        self._flat = self._cells.reshape(-1)
        self.each = -(-2 * len(known) // _CELLS)
        """Seats whose tokens are to be kept after each step, in turn, before they are half full."""

    def of(self, number: int, prompt: int) -> _Ring:
        """The ring of a seat for a request with so many tokens of a prompt."""
        return _Ring(memoryview(self._cells[number]).cast("B"), memoryview(self._known), number, prompt)

    def add(self, numbers: NDArray[np.int64], tokens: NDArray[np.uint32]) -> None:
        """Adds a token to each of some seats."""
        known = self._known[numbers]
        self._flat[numbers * _CELLS + (known & (_CELLS - 1))] = tokens
        self._known[numbers] = known + 1
