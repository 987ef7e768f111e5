"""What of the blocks that an engine has free still holds the KV of requests that have ended."""

from collections.abc import Sequence

import numpy as np

from blockyard._core import FreedKeys, Keys, Misuse
from blockyard.connectors.orders import Ids
from blockyard.shared.validate import integer, shown

__all__ = ["FreedBlocks", "check_ids", "check_keys"]


def check_keys(keys: object) -> None:
    """Refuses what are no keys of a prompt.

    Raises:
        Misuse: They are none.
    """
    if not isinstance(keys, Keys):
        raise Misuse(
            f"keys = {shown(keys)}: give the keys of a prompt, from `KVCache.keys` or `ready_keys`"
        )


def check_ids(ids: Ids, blocks: int) -> None:
    """Refuses what are no ids of an engine that has so many blocks.

    Raises:
        Misuse: They are no row of integers, or one is out of range.
    """
    given: object = ids
    if isinstance(ids, np.ndarray):
        is_row = ids.ndim == 1 and (ids.dtype.kind in "iu" or not ids.size)
    else:
        is_row = isinstance(given, Sequence) and not isinstance(given, str | bytes)
    if not is_row:
        raise Misuse(f"ids = {shown(ids)}: give a list or an array of block ids, shape (blocks,)")
    if isinstance(ids, np.ndarray) and ids.size:
        # Where it has many, a look at each costs more than the copies.
        if ids.min() >= 0 and ids.max() < blocks:
            return
    elif {*map(type, ids)} == {int} and min(ids) >= 0 and max(ids) < blocks:
        return
    for one in ids:
        integer("ids", one, least=0, most=blocks - 1)


class FreedBlocks(FreedKeys):
    """The blocks of ended requests, by the engine's ids, until the engine writes them again.

    An engine evicts some of them next. It names those, and gets their keys for an offload.
    """

    def check(self, *each: Ids) -> None:
        """Refuses what are no ids of the engine.

        Raises:
            Misuse: One is no integer, or out of range.
        """
        for ids in each:
            check_ids(ids, len(self))

    def row(self, keys: Keys, ids: Ids, first: int) -> tuple[Keys, Ids, int] | None:
        """What may be offloaded of a request, with the ids copied; None for nothing.

        Args:
            keys: The keys of its full blocks.
            ids: The ids of those from block `first` on, or more.
            first: The block that the first id is for.

        Raises:
            Misuse: A number is out of range, or an id comes twice.
        """
        first = integer("first", first, least=0, most=len(keys))
        self.check(ids)
        own = ids[: len(keys) - first]
        if len(own) > 1 and len(set(own)) < len(own):
            raise Misuse(f"ids = {shown(ids)}: an id is listed twice; give each id once")
        return (keys, np.array(own, np.int64), first) if len(own) else None
