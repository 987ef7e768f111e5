"""Detects the end of vLLM, of which a connector is notified only after its workers have ended."""

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["LEAST", "Stopping", "said"]

_GRACE = 5.0
"""Seconds that vLLM gives an engine whose `--shutdown-timeout` is 0, where it gives it any."""
LEAST = 1.0
"""Seconds that are left to it, of these or of `--shutdown-timeout`."""


def said(timeout: float) -> str:
    """Returns a warning for the first log line if the end leaves no time, or ""."""
    if timeout > LEAST:
        return ""
    return (
        f"; --shutdown-timeout {timeout:g} leaves no time to write blocks to the disk at the "
        "end: add --shutdown-timeout 60"
    )


class Stopping:
    """Handles the signals that end vLLM's scheduler process, behind vLLM's handlers.

    Make it in that process, in the thread that gets signals. Where vLLM has no handlers, as in a
    process of the user's, it hears nothing.

    Args:
        timeout: vLLM's `shutdown_timeout`, in seconds.
        clock: Seconds.
    """

    def __init__(self, timeout: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout = timeout or _GRACE
        self._clock = clock
        self._since: float | None = None
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                before = signal.getsignal(number)
                if _is_engines(before):
                    signal.signal(number, self._behind(before))

    def _behind(self, before: Any) -> Callable[[int, FrameType | None], None]:
        def hears(number: int, frame: FrameType | None) -> None:
            if self._since is None:
                self._since = self._clock()
            before(number, frame)

        return hears

    def left(self) -> float | None:
        """Returns the seconds that are left before vLLM ends its processes; None where it runs."""
        if self._since is None:
            return None
        return max(0.0, self._since + self._timeout - LEAST - self._clock())


def _is_engines(handler: object) -> bool:
    module = getattr(handler, "__module__", None) or ""
    return callable(handler) and module.partition(".")[0] in {"blockyard", "vllm"}
