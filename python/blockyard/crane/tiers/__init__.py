"""Kinds of memory that is made of slots. A new kind of tier is one new file here.

It has the members of `Tier`, and nothing lists it. If it is also `Mapped`, threads copy its blocks.
If it is not, or copies faster in another way, it comes with a copier: one new file in
`blockyard.crane.copiers`, which a line in `copiers/select.py` chooses for such a tier, or which is
given to the crane with the names of its two tiers, `Crane(..., copier={("host", "disk"): ...})`.
The name of a tier says where it stands, not of which kind it is.
"""

import inspect
from typing import Any, Protocol, TypeGuard

from blockyard._core import Misuse
from blockyard.shared.layout import KVLayout

__all__ = ["Mapped", "Tier", "is_mapped", "planes_of"]


class Tier(Protocol):
    """The slots of one tier, as one rank has them. It is for the thread of its crane."""

    @property
    def name(self) -> str:
        """Its name in plans: "device", "host" or "disk"."""

    @property
    def layout(self) -> KVLayout:
        """What a block is."""

    @property
    def blocks(self) -> int:
        """The number of its slots."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory: `blocks` times the layout's `block_bytes`, and no more."""

    def close(self) -> None:
        """Frees the memory, as soon as no view of it is left."""


class Mapped(Tier, Protocol):
    """A tier with its planes in memory, where copiers reach them. `is_mapped` tells."""

    @property
    def planes(self) -> tuple[Any, ...]:
        """One array of bytes per plane of the layout, shape (blocks, pieces, piece_bytes).

        They are views with any strides: NumPy's, or where a GPU has the memory, CuPy's. Where an
        engine's tensors lie apart they are `tiers.pieces.Pieces`, indexed by slots in the same way.
        """


def is_mapped(tier: Tier) -> TypeGuard[Mapped]:
    """Whether a tier has planes in memory. They are not read: adopted ones may refuse that."""
    return inspect.getattr_static(tier, "planes", None) is not None


def planes_of(tier: Tier) -> tuple[Any, ...]:
    """Returns the planes of a tier, for copiers.

    Raises:
        Misuse: It has none in memory.
    """
    if not is_mapped(tier):
        raise Misuse(
            f"the {tier.name} tier has no planes in memory: what is copied from or to it needs a "
            "copier of its own"
        )
    return tier.planes
