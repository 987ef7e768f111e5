"""Kinds of memory that is made of slots. A new tier is one new file here."""

from typing import Any, Protocol

from blockyard.shared.layout import KVLayout

__all__ = ["Tier"]


class Tier(Protocol):
    """The slots of one tier, as one rank has them. It is for the thread of its crane."""

    @property
    def name(self) -> str:
        """Its name in plans: "device" or "host"."""

    @property
    def layout(self) -> KVLayout:
        """What a block is."""

    @property
    def blocks(self) -> int:
        """The number of its slots."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory: `blocks` times the layout's `block_bytes`, and no more."""

    @property
    def planes(self) -> tuple[Any, ...]:
        """One array of bytes per plane of the layout, shape (blocks, pieces, piece_bytes).

        They are views with any strides: NumPy's, or where a GPU has the memory, CuPy's. Where an
        engine's tensors lie apart they are `tiers.pieces.Pieces`, indexed by slots in the same way.
        """

    def close(self) -> None:
        """Frees the memory, as soon as no view of it is left."""
