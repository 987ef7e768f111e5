"""Which slots and planes of a disk tier lie in which folder, and who writes them."""

from collections.abc import Iterable

from blockyard._core import Unsupported
from blockyard.shared.layout import KVLayout

__all__ = ["places_of"]

_Place = tuple[int, int, int, tuple[int, ...], int | None, bool]


def places_of(layout: KVLayout, disks: int) -> Iterable[_Place]:
    """Yields first, step, which disk, planes, the rank that writes or None, and if shared."""
    planes = range(len(layout.planes))
    shared = tuple(one for one in planes if layout.ranks > 1 and layout.planes[one].replicated)
    own = tuple(one for one in planes if one not in shared)
    if shared and layout.ranks > 1 << 16:
        raise Unsupported(f"{layout.ranks} ranks share planes: 65,536 at most")
    for disk in range(disks):
        if own:
            yield disk, disks, disk, own, None, False
        for rank in range(layout.ranks if shared else 0):
            yield rank + layout.ranks * disk, layout.ranks * disks, disk, shared, rank, True
