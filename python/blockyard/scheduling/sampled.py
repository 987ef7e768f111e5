"""The tokens that requests have sampled; those of the last steps are in a row for each seat."""

from array import array
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["EMPTIED", "SampledTokens", "TokenRows"]

EMPTIED: Final = 1000
"""Tokens behind which the row of a seat is emptied."""
_CELLS: Final = 1024
"""Tokens that it has room for."""
_STRIDE: Final = _CELLS + 16
"""Cells from a row to the next: a power of two would put them in few lines of a CPU's cache."""
_BYTES: Final = 4
"""Bytes of a cell."""


class _Row(NamedTuple):
    """The row of a seat, while a request has it."""

    cells: memoryview
    """Its cells, as bytes."""
    known: memoryview
    """`Seats.known`: a token is in its cell before it counts there."""
    number: int
    """The seat's number."""
    first: int
    """The position of the token in the first cell."""
    prompt: int
    """Tokens of the request's prompt."""


class SampledTokens:
    """The tokens that a request has sampled, first to last. Any thread may read them.

    While it has a seat the newest ones are in the row of that seat, where a step writes those of
    all requests in one call.
    """

    __slots__ = ("_kept", "_row")

    def __init__(self) -> None:
        self._kept = array("I")
        self._row: _Row | None = None

    def __len__(self) -> int:
        """How many they are."""
        while True:
            row, count = self._row, len(self._kept)
            if row is not None:
                count = row.known[row.number] - row.prompt
            if row is self._row:
                return count

    def since(self, first: int = 0) -> list[int]:
        """Returns the tokens from number `first` on."""
        return self._from(first).tolist()

    def as_array(self) -> NDArray[np.uint32]:
        """Returns all of them in a new array, shape (tokens,)."""
        return np.array(self._from(0), np.uint32)

    def _from(self, first: int) -> "array[int]":
        if first < 0:
            return self._from(0)[first:]
        while True:
            row, kept = self._row, len(self._kept)
            found = self._kept[first:]
            if row is not None:
                found.frombytes(self._cells(row, max(first, kept)))
            # Otherwise they have moved meanwhile, or the seat is another request's.
            if row is self._row and kept == len(self._kept):
                return found

    @staticmethod
    def _cells(row: _Row, first: int) -> memoryview:
        """The cells from the token number `first` on."""
        begin, end = first + row.prompt - row.first, row.known[row.number] - row.first
        return row.cells[begin * _BYTES : end * _BYTES]

    def sit(self, cells: memoryview, known: memoryview, number: int, prompt: int) -> None:
        """Reads a row whose first cell has the next token, too."""
        self._row = _Row(cells, known, number, prompt + len(self._kept), prompt)

    def keep(self) -> None:
        """Copies the tokens that only the row has."""
        if self._row is not None:
            self._kept.frombytes(self._cells(self._row, len(self._kept)))

    def extend(self, tokens: NDArray[np.uint32]) -> None:
        """Adds tokens past the row, which has none."""
        self._kept.frombytes(tokens.tobytes())

    def leave(self) -> None:
        """Reads no row any more."""
        self.keep()
        self._row = None


class TokenRows:
    """The rows of all seats.

    Args:
        known: Tokens that exist in each seat, prompt and sampled.
    """

    def __init__(self, known: NDArray[np.int64]) -> None:
        count = len(known)
        self._known = known
        self._known_view = memoryview(known.data)
        self._cells = np.zeros((count, _STRIDE), np.uint32)
        self._flat = self._cells.reshape(-1)
        self._next = np.zeros(count, np.int64)
        """Where the next token of each seat goes, in all cells."""

    def sit(self, number: int, outputs: SampledTokens, prompt: int) -> None:
        """Empties the row of a seat, for a request with so many tokens of a prompt."""
        outputs.keep()
        self._next[number] = number * _STRIDE
        cells = memoryview(self._cells[number]).cast("B")
        outputs.sit(cells, self._known_view, number, prompt)

    def add(
        self, numbers: NDArray[np.int64], tokens: NDArray[np.uint32], once: NDArray[np.int64]
    ) -> None:
        """Adds a token to each of some seats; `once` has a 1 in the place of each of them."""
        self._flat[self._next[numbers]] = tokens
        self._next += once
        self._known += once
