"""What carries bytes from tier to tier. A new one is one new file here."""

from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from blockyard.crane.tiers import Tier
from blockyard.shared.plan import Cause

__all__ = ["Copier", "Joining", "Landed", "Receipt", "Slots", "Turning"]

Slots = NDArray[np.uint32]


class Landed(NamedTuple):
    """How a copy has ended: nothing of it is read or written any more."""

    good: int
    """Leading blocks that are intact."""
    cause: Cause | None = None
    """None when all are."""


class Receipt(Protocol):
    """For a copy that was taken."""

    def poll(self) -> Landed | None:
        """How it has ended; None while it may still read or write. Never waits."""


class Copier(Protocol):
    """Carries blocks between two tiers of one rank, or within one."""

    def start(
        self, source: Tier, destination: Tier, sources: Slots, destinations: Slots
    ) -> Receipt | None:
        """Takes a copy of all planes of some blocks. Never waits.

        Args:
            source: Where the bytes are.
            destination: Where they go; its planes have the same blocks, the strides may differ.
            sources: Slots, shape (blocks,), all there.
            destinations: Slots, shape (blocks,), all there and each once.

        Returns:
            None when the queue is full: ask again later.
        """

    def reset(self) -> None:
        """Ends all that was taken: when it returns, nothing is read or written any more."""

    def close(self) -> None:
        """Takes nothing more. When it returns, every receipt says how its copy has ended."""


@runtime_checkable
class Joining(Protocol):
    """A copier whose copies an engine's stream can wait for."""

    def join(self, stream: object = None, *, layer: int | None = None) -> bool:
        """Has the stream wait for all that was started upward, or for one part of it.

        Returns:
            Whether that is all; if not, some of it is not under way yet.
        """


@runtime_checkable
class Turning(Protocol):
    """A copier whose calls cost less when they come together."""

    def turn(self) -> AbstractContextManager[object]:
        """For the calls of one thread, until the end: what is asked once holds for all of them."""
