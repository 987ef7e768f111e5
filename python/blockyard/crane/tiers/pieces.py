"""Planes over memory that an engine allocated: views of it, wherever the pieces of a block lie."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from blockyard._typing import NDArray
from blockyard.crane.gpu import Addresses, Places

__all__ = ["Bytes", "Pieces", "aligned", "plane_view"]

Bytes = NDArray[np.uint8]


class Pieces:
    """A plane whose pieces lie in several arrays, as those of a tensor per layer do.

    It is read and written by slots, as an array of shape (blocks, pieces, piece_bytes) is. What is
    read is a copy; what is written goes to the memory itself.

    Args:
        arrays: Shape (blocks, some pieces, piece_bytes) each, in the order of the pieces.
    """

    def __init__(self, arrays: Sequence[Bytes]) -> None:
        self.arrays = tuple(arrays)
        self.cuts = np.cumsum([array.shape[1] for array in arrays]).tolist()
        """Pieces up to the end of each array."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Blocks, pieces and bytes of a piece."""
        blocks, _, piece_bytes = self.arrays[0].shape
        return blocks, self.cuts[-1], piece_bytes

    def __getitem__(self, slots: Any) -> Bytes:  # noqa: ANN401 - whatever NumPy takes
        """Returns a copy of the bytes of one or several slots."""
        return np.concatenate([array[_slots(slots)] for array in self.arrays], axis=-2)

    def __setitem__(self, slots: Any, blocks: Any) -> None:  # noqa: ANN401 - likewise
        """Writes the bytes of one or several slots."""
        slots, blocks = _slots(slots), np.asarray(blocks)
        parts = [blocks] * len(self.arrays)
        if blocks.ndim > 1:
            # An axis of one piece stands for all of them, too.
            whole = np.broadcast_to(blocks, (*blocks.shape[:-2], *self.shape[1:]))
            parts = np.split(whole, self.cuts[:-1], -2)
        for array, part in zip(self.arrays, parts, strict=True):
            array[slots] = part

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:  # noqa: ANN401, FBT001 - NumPy's protocol
        """Returns a copy of all bytes."""
        if copy is False:
            raise ValueError("the pieces lie in several arrays: they cannot be one without a copy")
        return self[...].astype(dtype or np.uint8, copy=False)


def plane_view(where: Places, blocks: int, piece_bytes: int, owner: object) -> Bytes | Pieces:
    """Returns a view of memory of this process as a plane of shape (blocks, pieces, piece_bytes).

    Args:
        where: Where the bytes are.
        blocks: Slots.
        piece_bytes: Bytes of a piece.
        owner: What keeps the memory alive; every view holds it.
    """
    arrays = [
        np.asarray(_Memory(first, (blocks, pieces, piece_bytes), (where.stride, step, 1), owner))
        for first, pieces, step in _runs(where.pieces, piece_bytes)
    ]
    return arrays[0] if len(arrays) == 1 else Pieces(arrays)


def aligned(source: Any, destination: Any) -> Iterator[tuple[Any, Any]]:  # noqa: ANN401 - planes
    """Yields arrays of the same pieces of two planes, cut where one of the planes is."""
    cuts = {cut for plane in (source, destination) for cut in getattr(plane, "cuts", ())}
    if not cuts:
        yield source, destination
        return
    for span in pairwise([0, *sorted(cuts)]):
        yield _between(source, *span), _between(destination, *span)


def _slots(slots: Any) -> Any:  # noqa: ANN401 - whatever NumPy takes
    if isinstance(slots, tuple):
        raise IndexError(f"{slots}: these pieces lie in several arrays; index them by slots alone")
    return slots


def _between(plane: Any, first: int, end: int) -> Any:  # noqa: ANN401 - a plane
    """The array that has these pieces of a plane."""
    if not isinstance(plane, Pieces):
        return plane[:, first:end]
    number = next(at for at, cut in enumerate(plane.cuts) if end <= cut)
    start = plane.cuts[number] - plane.arrays[number].shape[1]
    return plane.arrays[number][:, first - start : end - start]


def _runs(pieces: Addresses, piece_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Yields address, number and step of pieces that are evenly apart, as many as there are."""
    at = pieces.astype(np.int64).tolist()
    first = 0
    while first < len(at):
        end, step = first + 1, piece_bytes
        if end < len(at):
            step = at[end] - at[first]
        while end < len(at) and at[end] - at[end - 1] == step:
            end += 1
        yield at[first], end - first, step
        first = end


class _Memory:
    """Memory at an address, as NumPy reads it."""

    def __init__(
        self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], owner: object
    ) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "data": (address, False),
            "shape": shape,
            "strides": strides,
        }
