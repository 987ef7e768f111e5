"""The logger `blockyard`, which limits how often it writes a line."""

import logging
import time
from collections.abc import Callable

__all__ = ["Limited"]


class Limited:
    """A logger that writes one line per message and second, and counts those that it left out.

    Wall time is read here, and by the stall rules: neither ever decides anything.

    Args:
        name: Name of the logger, "blockyard" or below it.
        seconds: Between two lines of one message.
        clock: Returns the seconds.
    """

    __slots__ = ("_clock", "_last", "_logger", "_seconds", "_swallowed")

    def __init__(
        self, name: str, seconds: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._logger = logging.getLogger(name)
        self._clock = clock
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
        now = self._clock()
        last = self._last.get(message)
        if last is not None and now - last < self._seconds:
            self._swallowed[message] = self._swallowed.get(message, 0) + 1
            return
        self._last[message] = now
        more = self._swallowed.pop(message, 0)
        if more:
            message, values = message + " (and %d more like it)", (*values, more)
        self._logger.log(level, message, *values)
