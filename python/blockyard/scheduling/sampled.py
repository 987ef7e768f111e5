"""The tokens that requests have sampled; those of the last steps are in a row for each seat."""

from array import array
from typing import Final, NamedTuple

import numpy as np

from blockyard._typing import NDArray

__all__ = ["EMPTIED", "SampledTokens", "TokenRows"]

EMPTIED: Final = 1000
"""Tokens behind which the row of a seat is emptied."""
_CELLS: Final = 1024
"""Tokens that it has room for."""
_STRIDE: Final = _CELLS + 16
"""Cells from a row to the next: a power of two would put them in few lines of a CPU's cache."""


class _Row(NamedTuple):
    """The row of a seat, while a request has it."""

    cells: memoryview
    known: memoryview
    """`Seats.known`: a token is in its cell before it counts there."""
    number: int
    """The seat's number."""
    before: int
    """Tokens that were sampled before that of the first cell."""
    first: int
    """The position of the token of the first cell."""


class SampledTokens:
    """The tokens that a request has sampled, first to last. Any thread may ask `len` and `since`.

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
            row = self._row
            if row is None:
                return len(self._kept)
            count = row.before + row.known[row.number] - row.first
            # Otherwise they have moved meanwhile, or the seat is another request's.
            if row is self._row:
                return count

    def since(self, first: int = 0) -> list[int]:
        """Returns the tokens from number `first` on."""
        while True:
            row = self._row
            if row is None:
                return self._kept[first:].tolist()
            cells, known, number, before, at = row
            if first >= before:
                found = cells[first - before : known[number] - at].tolist()
            elif first >= 0:
                found = self._kept[first:before].tolist() + cells[: known[number] - at].tolist()
            else:
                return self.since()[first:]
            if row is self._row:
                return found

    def as_array(self) -> NDArray[np.uint32]:
        """Returns all of them in a new array, shape (tokens,)."""
        self.keep()
        return np.array(self._kept, np.uint32)

    def keep(self) -> None:
        """Copies the tokens that only the row has."""
        if self._row is not None:
            cells, known, number, before, first = self._row
            new = cells[len(self._kept) - before : known[number] - first]
            self._kept.frombytes(new.tobytes())

    def sit(self, cells: memoryview, known: memoryview, number: int) -> None:
        """Reads a row whose first cell is for the next token, too."""
        self._row = _Row(cells, known, number, len(self._kept), known[number])

    def leave(self) -> None:
        """Reads no row any more."""
        self.keep()
        self._row = None

    def extend(self, tokens: NDArray[np.uint32]) -> None:
        """Adds tokens while it has no row."""
        self._kept.frombytes(tokens.tobytes())


class TokenRows:
    """The rows of all seats.

    Args:
        known: Tokens that exist in each seat, prompt and sampled.
    """

    def __init__(self, known: NDArray[np.int64]) -> None:
        count = len(known)
        self._known = known
        self._known_view = known.data
        self._cells = np.zeros((count, _STRIDE), np.uint32)
        self._flat = self._cells.reshape(-1)
        self._next = np.zeros(count, np.int64)
        """Where the next token of each seat goes, in all cells."""

    def sit(self, number: int, outputs: SampledTokens) -> None:
        """Empties the row of a seat, for the tokens of its request that come next."""
        outputs.keep()
        self._next[number] = number * _STRIDE
        outputs.sit(self._cells[number].data, self._known_view, number)

    def add(
        self, numbers: NDArray[np.int64], tokens: NDArray[np.uint32], once: NDArray[np.int64]
    ) -> None:
        """Adds a token to each of some seats; `once` has a 1 in the place of each of them."""
        self._flat[self._next[numbers]] = tokens
        self._next += once
        self._known += once
