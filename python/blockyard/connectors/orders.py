"""What a connector asks of its workers for one step of an engine that owns its block ids."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from blockyard.shared.plan import Plan

__all__ = ["NO_IDS", "NO_ORDERS", "Ids", "Orders"]

Ids: TypeAlias = Sequence[int] | NDArray[np.integer[Any]]
"""Block ids of the engine, shape (blocks,)."""
NO_IDS: Final = np.array([], np.int64)


class Orders(NamedTuple):
    """What every rank's worker does for one step: plain values, which pickle carries."""

    down: tuple[Plan, ...]
    """Copies from the engine's blocks, and between the tiers below, as they were planned."""
    up: tuple[Plan, ...]
    """Copies to the engine's blocks, likewise."""
    fence: int | None
    """The newest flight that must have ended before `written` are written; None for none."""
    written: NDArray[np.integer[Any]]
    """Ids that the engine writes from this step on, where there is a fence; else none."""
    spoiled: NDArray[np.integer[Any]]
    """Ids that the engine has written in this step already, before any fence."""
    lent: NDArray[np.integer[Any]] = NO_IDS
    """Ids among `written` that no stream of the engine writes, but somebody else's transfer."""

    def loads(self) -> "Orders":
        """Returns the copies up alone."""
        return Orders((), self.up, None, NO_IDS, NO_IDS)


NO_ORDERS: Final = Orders((), (), None, NO_IDS, NO_IDS)
