"""The logger `blockyard`, which limits how often it writes a line and never raises; warnings."""

import logging
import time
import warnings
from collections.abc import Callable
from threading import current_thread, main_thread

from blockyard.shared.owner import is_foreign, is_signalled

__all__ = ["Limited", "described", "join", "silence", "unclosed"]


def described(error: BaseException) -> str:
    """Kind and text of an error, also of one that cannot be written as text."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception as fault:  # it may be of any kind
        if is_foreign(fault):
            raise
        return type(error).__name__


def unclosed(what: str, remedy: str, source: object) -> None:
    """Warns, out of a finalizer, that something was dropped which should have been closed.

    Call it last: where warnings are errors it raises, and the interpreter reports that and goes on.

    Args:
        what: What was dropped, such as "a LocalCache".
        remedy: How it is closed.
        source: The object, for `tracemalloc`.
    """
    said = f"{what} was dropped and not closed: {remedy}"
    warnings.warn(said, ResourceWarning, stacklevel=3, source=source)


def join(name: str) -> None:
    """Sends the lines of `blockyard` where those of another logger go, in its format.

    An engine that configures its own logger alone, as vLLM does, would print no line of INFO of
    ours. The level is the other's, too. A handler or a level that a program has given to the logger
    `blockyard` itself stays.

    Args:
        name: The other logger's.
    """
    own = logging.getLogger("blockyard")
    if not own.handlers:
        own.parent = logging.getLogger(name)
        own.setLevel(own.level)  # Loggers below it remember which levels were enabled.


def silence(name: str) -> None:
    """Takes another logger its handlers, which print to stdout, and all lines but the worst.

    Args:
        name: The other logger's.
    """
    other = logging.getLogger(name)
    other.handlers.clear()
    other.setLevel(logging.CRITICAL)


class Limited:
    """A logger that writes one line per message and second, and counts those that it left out.

    A handler or filter of the program's that raises loses its line and nothing else: a copy, a
    flight or a stream that is about to be told goes on. What a signal handler raises meanwhile goes
    on to the caller, as an interrupt does.

    Wall time is read here, and by the stall rules: neither ever decides anything.

    Args:
        name: Name of the logger, "blockyard" or below it.
        seconds: Between two lines of one message; 0 writes all.
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

    def info(self, message: str, *values: object) -> None:
        """Logs, for the operator, what was set up or found."""
        self._line(logging.INFO, message, values)

    def warning(self, message: str, *values: object) -> None:
        """Logs, for the operator, that something was lost or given up."""
        self._line(logging.WARNING, message, values)

    def exception(self, message: str, *values: object) -> None:
        """Logs an error that nobody else hears of, with the traceback of the one being handled."""
        self._line(logging.ERROR, message, values, exc_info=True)

    def _line(
        self, level: int, message: str, values: tuple[object, ...], *, exc_info: bool = False
    ) -> None:
        if not self._logger.isEnabledFor(level):
            return
        if self._seconds:
            now = self._clock()
            last = self._last.get(message)
            if last is not None and now - last < self._seconds:
                self._swallowed[message] = self._swallowed.get(message, 0) + 1
                return
            self._last[message] = now
            more = self._swallowed.pop(message, 0)
            if more:
                message, values = message + " (and %d more like it)", (*values, more)
        try:
            # As the caller's line, which is two calls above.
            self._logger.log(level, message, *values, exc_info=exc_info, stacklevel=3)
        except BaseException as fault:
            interrupt = isinstance(fault, KeyboardInterrupt)
            if is_signalled(fault) or (interrupt and current_thread() is main_thread()):
                raise
