"""Disks that have died: their slots are withdrawn, with what was in them, and no others."""

import numpy as np

from blockyard._core import InUse
from blockyard.shared.log import Limited
from blockyard.shared.restored import MOST_ROWS
from blockyard.yard.cache import KVCache

__all__ = ["Stripes", "withdraw_dead"]

_log = Limited("blockyard", 0)
_limited = Limited("blockyard")

Stripes = frozenset[tuple[int, int]]
"""Slots: the first, and the step from each to the next."""


def withdraw_dead(cache: KVCache, dead: Stripes, before: Stripes) -> Stripes:
    """Withdraws the slots of disks that have died since.

    Args:
        cache: The cache whose disk tier they are of.
        dead: All that any rank has found dead, as `PersistentTiers.dead`.
        before: What the last call returned.

    Returns:
        What is withdrawn now. Slots that tickets were promised are not: ask again. Nor is any where
        none would be left, as where each rank has found another disk dead.
    """
    new = dead - before
    if not new:
        return before
    blocks = cache.config.disk_blocks
    left = np.ones(blocks, bool)
    for first, step in dead | before:
        left[first::step] = False
    if not left.any():
        return before
    stripes = [np.arange(first, blocks, step, dtype=np.uint32) for first, step in sorted(new)]
    slots = np.concatenate(stripes)
    parts = range(0, len(slots), MOST_ROWS)
    try:
        lost = sum(cache.withdraw("disk", slots[part : part + MOST_ROWS]) for part in parts)
    except InUse as error:
        _limited.warning("a disk has died, and its slots were promised to tickets: %s", error)
        return before
    _log.warning(
        "a disk has died: its %d slots are given out no more until the next start, and the %d "
        "blocks in them are computed again when they are needed",
        len(slots),
        lost,
    )
    return before | new
