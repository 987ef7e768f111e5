"""Kinds of memory that is made of slots. A new kind of tier is one new file here.

It has the members of `Tier`, and nothing lists it. If it is also `Mapped`, threads copy its blocks.
If it is not, or copies faster in another way, it comes with a copier: one new file in
`blockyard.crane.copiers`, which a line in `copiers/select.py` chooses for such a tier, or which is
given to the crane with the names of its two tiers, `Crane(..., copier={("host", "disk"): ...})`.
The name of a tier is its level, not its kind.
"""

from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeGuard, runtime_checkable

import numpy as np

from blockyard._core import Misuse
from blockyard._typing import NDArray
from blockyard.shared.layout import KVLayout
from blockyard.shared.plan import Plan
from blockyard.shared.restored import Restored

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Forgetting", "Mapped", "Persistent", "Stamping", "Tier", "is_mapped", "planes_of"]


class Tier(Protocol):
    """The slots of one tier, as one rank has them. It is for the thread of its crane."""

    @property
    def name(self) -> str:
        """Its name in plans: "device", "host", "disk" or "remote"."""

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
    """A tier with its planes in memory, where copiers access them; see `is_mapped`."""

    @property
    def planes(self) -> tuple[Any, ...]:
        """One array of bytes per plane of the layout, shape (blocks, pieces, piece_bytes).

        They are views with any strides: NumPy's, or where a GPU has the memory, CuPy's. Where an
        engine's tensors lie apart they are `tiers.pieces.Pieces`, indexed by slots in the same way.
        """


@runtime_checkable
class Persistent(Protocol):
    """A tier whose blocks outlive the process."""

    @property
    def name(self) -> str:
        """As of any tier."""

    @property
    def folders(self) -> tuple["Path", ...]:
        """The folder of its identity on each disk; empty where it has none."""

    @property
    def run(self) -> int:
        """The number of this owner, higher than any earlier one."""

    def count_as(self, run: int) -> None:
        """Counts as this owner, where that is a later one, before the first block is written."""

    def restored(self) -> Restored:
        """Returns what it has from before. It is asked once."""

    def clear(self, *, patience: float = 1.0) -> bool:
        """Clears all that was submitted so far; returns whether no restart brings it back."""

    def forget(self) -> None:
        """Hides blocks written from now on from later restarts."""

    def keep_order(self, slots: NDArray[np.uint32]) -> None:
        """Notes the eviction order for the next owner."""

    def stats(self) -> dict[str, int]:
        """Returns what it has done, as `Crane.stats` gives it."""

    def resting(self) -> list[tuple["Path", Literal["writes", "reads"]]]:
        """Returns what of it is left alone now, after failures."""

    def dead(self) -> frozenset[tuple[int, int]]:
        """Returns which slots are gone, as their memory has died: the first, and the step."""


@runtime_checkable
class Forgetting(Protocol):
    """A tier that can keep others from what is written from now on."""

    def forget(self) -> None:
        """Hides it: it depends on what the tier's identity does not say."""


@runtime_checkable
class Stamping(Protocol):
    """A tier that notes in which order, and by which plan, its blocks were written."""

    def submitted(self, plan: Plan) -> None:
        """Notes a plan that fills some of its slots, before a copier is asked for it."""


def is_mapped(tier: Tier) -> TypeGuard[Mapped]:
    """Whether a tier has planes in memory. They are not read: adopted ones may refuse that."""
    own: dict[str, object] = getattr(tier, "__dict__", {})
    if "planes" in own:
        return own["planes"] is not None
    # As `inspect.getattr_static`, at a tenth of its cost: each copy asks.
    kinds = (kind.__dict__ for kind in type(tier).__mro__ if "planes" in kind.__dict__)
    return next((kind["planes"] for kind in kinds), None) is not None


def planes_of(tier: Tier) -> tuple[Any, ...]:
    """Returns the planes of a tier, for copiers.

    Raises:
        Misuse: It has none in memory.
    """
    if not is_mapped(tier):
        raise Misuse(
            f"the {tier.name} tier has no planes in memory: copies from and to it need a "
            "copier of its own"
        )
    return tier.planes
