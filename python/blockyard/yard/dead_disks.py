"""Withdraws the slots of dead disks, and no others."""

from collections.abc import Iterable

import numpy as np

from blockyard._core import InUse, Misuse
from blockyard.shared.log import Limited
from blockyard.shared.restored import MOST_ROWS
from blockyard.shared.validate import integer, shown
from blockyard.yard.cache import KVCache

__all__ = ["Stripes", "stripes_of", "withdraw_dead"]

_log = Limited("blockyard", 0)
_limited = Limited("blockyard")

Stripes = frozenset[tuple[int, int]]
"""Slots: the first, and the step from each to the next."""


def stripes_of(dead: Iterable[tuple[int, int]]) -> Stripes:
    """Returns what ranks have found dead as stripes.

    Raises:
        Misuse: It is something else.
    """
    try:
        return frozenset((first, step) for first, step in dead)
    except (TypeError, ValueError):
        raise Misuse(f"dead = {shown(dead)}: give pairs (first slot, step)") from None


def withdraw_dead(cache: KVCache, dead: Stripes, before: Stripes) -> Stripes:
    """Withdraws the slots of disks that have died since.

    Args:
        cache: The cache whose disk tier they are of.
        dead: All that any rank has found dead, as `PersistentTiers.dead`.
        before: The answer of the last call.

    Returns:
        The slots that are withdrawn now. Slots promised to tickets are not: call again. Nor are any
        if none would be left, as when each rank has found another disk dead.

    Raises:
        Misuse: A first slot is below 0, or a step below 1; nothing is withdrawn.
    """
    new = dead - before
    if not new:
        return before
    for first, step in new:
        integer("first slot of a dead disk", first, least=0)
        integer("step of a dead disk", step)
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
        "a disk has died: its %d slots are out of use until the next start, and the %d blocks in "
        "them will be recomputed when needed",
        len(slots),
        lost,
    )
    return before | new
