"""What copies bytes from tier to tier. A new copier is one new file here."""

from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from blockyard._typing import NDArray
from blockyard.crane.tiers import Tier
from blockyard.shared.plan import Cause

__all__ = [
    "BlockKeys",
    "Copier",
    "Counting",
    "Fencing",
    "Joining",
    "KeyedCopier",
    "Landed",
    "Pair",
    "Receipt",
    "Slots",
    "Turning",
]

Slots = NDArray[np.uint32]
"""Numbers of slots, shape (blocks,)."""
BlockKeys = NDArray[np.uint8]
"""Keys of blocks, shape (blocks, 32); see `Plan.keys` for rows without a key."""

Pair = tuple[str, str]
"""The names of the tiers that a copy goes from and to."""


class Landed(NamedTuple):
    """How a copy has ended: nothing of it is read or written any more."""

    good: int
    """Leading blocks that are intact."""
    cause: Cause | None = None
    """None when all are."""


class Receipt(Protocol):
    """What a copier gives for a copy that it has taken."""

    def poll(self) -> Landed | None:
        """Returns how the copy has ended; None while it may still read or write. Never waits.

        After its end, each further poll returns the same.
        """


class Copier(Protocol):
    """Copies blocks between two tiers of one rank, or within one.

    A crane calls it from one thread at a time, and so should others. One copier may serve several
    pairs of tiers. A slow or full pair should not delay the others.

    Of a plane that is replicated over ranks, a crane asks each rank to write its share of the slots
    below the device. It cannot ask so where one of the tiers is not `Mapped`: there the copier gets
    every block with all its planes, on each rank, and shares the writing out itself.
    """

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
            None when it takes no more between these tiers: ask again later.
        """

    def reset(self) -> None:
        """Ends all copies: when it returns, nothing is read or written any more.

        That holds for copies whose `start` was interrupted, too. Where it is interrupted itself, it
        is called again; so is `close`.
        """

    def close(self) -> None:
        """Ends all copies and takes no more: afterwards every receipt has an answer."""


@runtime_checkable
class KeyedCopier(Protocol):
    """A copier for tiers that store the keys of their blocks.

    A crane calls `start_keyed` for the plans that carry keys, and `start` for all others.
    """

    def start_keyed(  # noqa: PLR0913 - KeyedCopier's call
        self,
        source: Tier,
        destination: Tier,
        sources: Slots,
        destinations: Slots,
        *,
        keys: BlockKeys,
        parents: BlockKeys | None,
    ) -> Receipt | None:
        """Takes a copy like `Copier.start`, of blocks with these keys. Never waits.

        Where the source has another key in a slot than the plan, the copy ends before that block,
        with `Cause.CORRUPT`.

        Args:
            source: As in `start`.
            destination: As in `start`.
            sources: As in `start`.
            destinations: As in `start`.
            keys: The key of each block.
            parents: The key of each block's parent; None where the destination needs none.

        Returns:
            None when the queue is full: ask again later.
        """


@runtime_checkable
class Joining(Protocol):
    """A copier whose copies an engine's stream can wait for."""

    def join(self, stream: object = None, *, layer: int | None = None) -> bool:
        """Makes the stream wait for all copies up that were started, or for one part of them.

        Returns:
            Whether it waits for all of them; False if some are not queued yet.
        """


@runtime_checkable
class Fencing(Protocol):
    """A copier whose copies down an engine's stream can wait for, before it writes their slots."""

    def fence(self, stream: object = None) -> bool:
        """Makes the stream wait for all copies down that were started.

        Returns:
            Whether it waits for all of them; False if some are not queued yet.
        """


@runtime_checkable
class Counting(Protocol):
    """A copier that counts the ends of its copies, so that others need not be asked one by one."""

    @property
    def ends(self) -> int:
        """How often a receipt has got an answer that had none when it was given."""

    def is_still(self) -> bool:
        """Whether `collect` would find nothing. It takes no longer beside many copies."""

    def collect(self) -> None:
        """Gives the receipts their answers."""


@runtime_checkable
class Turning(Protocol):
    """A copier whose calls cost less when they come together."""

    def turn(self) -> AbstractContextManager[object]:
        """Lets the calls of one thread, until the end, share what they ask of the driver."""
