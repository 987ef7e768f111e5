"""Says that memory runs out before it does."""

from typing import Final

from blockyard.shared.machine import free_memory
from blockyard.tools.traces.lines import TraceError

__all__ = ["Room"]

_OFTEN: Final = 1 << 16
"""Things between two looks at the memory."""
_SPARE: Final = 64 << 20
"""Bytes that are left alone."""


class Room:
    """Watches something grow that will need more memory for each thing in it.

    Args:
        each: Bytes that a thing needs later, beside what it has taken when it is counted.
        what: What the things are, and what to do where there are too many, for the error.
    """

    def __init__(self, each: int, what: str) -> None:
        self._each = each
        self._what = what
        self._next = _OFTEN

    def grown(self, count: int) -> None:
        """Looks now and then whether that many things still fit.

        Raises:
            TraceError: They do not.
        """
        if count < self._next:
            return
        self._next = count + _OFTEN
        free = free_memory()
        if free is not None and free < self._each * count + _SPARE:
            raise TraceError(f"memory runs out after {count:,} {self._what}")
