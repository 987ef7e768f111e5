"""Which addresses stores have: a hint, asked of those that answer, by any thread."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from blockyard.shared.log import Limited, described
from blockyard.stores import Session, Store

__all__ = ["Questions"]

_REST: Final = 0.5
_LONGEST: Final = 60.0
"""Seconds for which a store that has failed is not asked: at first, and at most."""
_AT_ONCE: Final = 1024
"""Addresses of one call."""
_log = Limited(__name__, 60.0)


class Questions:
    """Asks stores. One that fails rests, twice as long each time, and counts as one without values.

    Each thread has sessions of its own, which are closed with the thread or by `close` in it.

    Args:
        stores: The stores.
        clock: Seconds.
    """

    def __init__(
        self, stores: Sequence[Store], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stores = tuple(stores)
        self._clock = clock
        self._rests = [_Rest() for _ in self._stores]
        self._own = threading.local()

    @property
    def is_resting(self) -> bool:
        """Whether no store is to be asked now."""
        now = self._clock()
        return all(rest.until > now for rest in self._rests)

    def has(self, addresses: Sequence[str]) -> list[bool]:
        """Returns for each address whether a store says that it has a value. It raises nothing.

        It takes as long as the stores take, each within its timeout.
        """
        found = [False] * len(addresses)
        for number, rest in enumerate(self._rests):
            if rest.until > self._clock():
                continue
            left = [at for at, has in enumerate(found) if not has]
            try:
                session = self._session(number)
                for first in range(0, len(left), _AT_ONCE):
                    part = left[first : first + _AT_ONCE]
                    said = session.has([addresses[at] for at in part])
                    for at, has in zip(part, said, strict=True):
                        found[at] = bool(has)
            # Whatever a client raises is the end of its call alone.
            except Exception as error:  # noqa: BLE001
                self._drop(number)
                rest.begin(self._clock())
                _log.warning(
                    "%s is not asked for %.1f s: %s",
                    *(self._stores[number].url, rest.seconds, described(error)),
                )
            else:
                rest.end()
        return found

    def close(self) -> None:
        """Closes the sessions of the calling thread."""
        for number in range(len(self._stores)):
            self._drop(number)

    def _sessions(self) -> list[Session | None]:
        if not hasattr(self._own, "sessions"):
            self._own.sessions = [None] * len(self._stores)
        sessions: list[Session | None] = self._own.sessions
        return sessions

    def _session(self, number: int) -> Session:
        sessions = self._sessions()
        session = sessions[number]
        if session is None:
            session = sessions[number] = self._stores[number].connect()
        return session

    def _drop(self, number: int) -> None:
        sessions = self._sessions()
        session, sessions[number] = sessions[number], None
        if session is not None:
            with suppress(Exception):
                session.close()


class _Rest:
    """The rest of one store."""

    def __init__(self) -> None:
        self.until = float("-inf")
        self.seconds = 0.0

    def begin(self, now: float) -> None:
        self.seconds = min(max(2 * self.seconds, _REST), _LONGEST)
        self.until = now + self.seconds

    def end(self) -> None:
        self.seconds = 0.0
