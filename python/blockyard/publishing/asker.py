"""Who asks the replay socket: what it has not read, and what it still waits for."""

from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["Asker"]

_UNREAD: Final = 2
"""Answers that wait for one asker at most: each is as long as all that is kept, or a snapshot."""
_ALL: Final = -1
"""A first number that is never kept: all is told."""


@dataclass(slots=True)
class Asker:
    """One who asks. One thread uses it.

    ZeroMQ lets go of an answer some time after the asker has read it. So the count of unread
    answers says when there is certainly room, and never that somebody does not read: a request
    without room waits. Requests of one asker that wait are answered together.
    """

    unread: list[Any] = field(default_factory=list)
    """The ends of its answers that ZeroMQ still holds, oldest first."""
    waiting: int = 0
    """Requests that wait. The last one gets the answer, those before it an end alone."""
    start: int = 0
    """The first number that any of them lacks."""

    def ask(self, start: int, newest: int) -> None:
        """Takes a request for all from number `start` on, where `newest` is the next one."""
        start = start if start <= newest else _ALL
        self.start = min(self.start, start) if self.waiting else start
        self.waiting += 1

    def room(self) -> bool:
        """Whether an answer may be sent to it."""
        self.unread = [end for end in self.unread if not end.done]
        return len(self.unread) < _UNREAD
