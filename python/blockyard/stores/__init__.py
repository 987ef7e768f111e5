"""Stores that engines share: one file for each, behind a small protocol.

A store keeps values under addresses. It knows no blocks, keys or sums: `StoreLane` makes the
values, and believes nothing that comes back. A new store is one new file here, and a line in
`open.py`.
"""

from collections.abc import Iterator, Sequence
from typing import Final, Literal, Protocol, runtime_checkable

__all__ = ["PATIENCE", "Keeping", "Session", "Store", "Telling"]

PATIENCE: Final = 0.02
"""Seconds that a request waits for a lookup at most, where nobody says."""


class Session(Protocol):
    """A connection to a store, of one thread.

    Every call ends within the store's timeout, and is tried once: who calls decides what comes
    next. After an error the session stays usable, and connects again with its next call.
    """

    def put(self, address: str, value: memoryview, ttl: float | None = None) -> None:
        """Stores a value; when it returns, the store has acknowledged it.

        Where the call fails, the store may have the value nevertheless, now or later.

        Args:
            address: Where.
            value: Its bytes, which are read during the call only.
            ttl: Seconds after which the store may drop it; None for as long as it likes.

        Raises:
            Unavailable: The store is down, slow or full, or refuses.
        """

    def get(self, address: str, into: memoryview) -> memoryview | bytes | None:
        """Reads a value.

        Args:
            address: Where.
            into: Room for it, which is written during the call only. A value that is longer is not
                read: what is returned then has another length than the value that was wanted.

        Returns:
            The leading bytes of `into` that the value takes, or the value elsewhere, until the next
            call; None where nothing is there.

        Raises:
            Unavailable: The store is down or slow, or refuses.
        """

    def has(self, addresses: Sequence[str]) -> list[bool]:
        """Returns for each address whether a value is there. It is a hint and no more.

        Raises:
            Unavailable: The store is down or slow, or refuses.
        """

    def delete(self, addresses: Sequence[str]) -> int:
        """Deletes values; returns how many were there.

        Raises:
            Unavailable: The store is down or slow, or refuses. Some may be deleted.
        """

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Yields the addresses that begin with a text, and the bytes of their values.

        It may take long. Values that come or go meanwhile may be left out, and none comes twice.

        Raises:
            Unavailable: The store is down or slow, or refuses.
        """

    def close(self) -> None:
        """Ends the connection. Called again, it does nothing."""


@runtime_checkable
class Keeping(Protocol):
    """A session whose `put` leaves a value that is there already as it is.

    A value that was found wrong is deleted by it, before it is put again.
    """

    keeps: Literal[True]


@runtime_checkable
class Telling(Protocol):
    """A session that knows what may be wrong with its store."""

    def notes(self) -> Sequence[str]:
        """Returns what an operator should know, a sentence each."""


class Store(Protocol):
    """A store, as `open_store` makes it. Any thread may use it."""

    @property
    def url(self) -> str:
        """Where it is, as it may be logged: without a password."""

    def connect(self) -> Session:
        """Returns a session for the calling thread.

        Raises:
            Unavailable: The store is down, or refuses this client.
        """
