"""The logger `blockyard`, which limits how often it writes a line."""

import logging
import time

__all__ = ["Limited"]


class Limited:
    """A logger that writes one line per message and second, and counts those that it left out.

    This is the one place where wall time is read: logging never decides anything.

    Args:
        name: Name of the logger, "blockyard" or below it.
        seconds: Between two lines of one message.
    """

    __slots__ = ("_last", "_logger", "_seconds", "_swallowed")

    def __init__(self, name: str, seconds: float = 1.0) -> None:
        self._logger = logging.getLogger(name)
        self._seconds = seconds
        self._last: dict[str, float] = {}
        self._swallowed: dict[str, int] = {}

    def debug(self, message: str, *values: object) -> None:
        """Logs what helps to find a fault."""
        self._line(logging.DEBUG, message, values)

    def warning(self, message: str, *values: object) -> None:
        """Logs, for the operator, that something was lost or given up."""
        self._line(logging.WARNING, message, values)

    def _line(self, level: int, message: str, values: tuple[object, ...]) -> None:
        if not self._logger.isEnabledFor(level):
            return
        now = time.monotonic()
        last = self._last.get(message)
        if last is not None and now - last < self._seconds:
            self._swallowed[message] = self._swallowed.get(message, 0) + 1
            return
        self._last[message] = now
        more = self._swallowed.pop(message, 0)
        if more:
            message, values = message + " (and %d more like it)", (*values, more)
        self._logger.log(level, message, *values)
