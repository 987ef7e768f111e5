"""Durations and bytes as a person reads them."""

from typing import Final

from blockyard.shared.sizes import digits
from blockyard.shared.sizes import size_text as size

__all__ = ["duration", "size"]

_HOUR: Final = 3600
_MINUTE: Final = 60


def duration(seconds: float) -> str:
    """Returns about three digits with a unit that suits them."""
    if seconds >= _HOUR:
        return f"{seconds // _HOUR:.0f} h {seconds % _HOUR // _MINUTE:02.0f} min"
    if seconds >= _MINUTE:
        return f"{seconds // _MINUTE:.0f} min {int(seconds) % _MINUTE:02} s"
    for unit, per in (("s", 1.0), ("ms", 1e3)):
        if seconds * per >= 1:
            return f"{seconds * per:.{digits(seconds * per)}f} {unit}"
    return f"{seconds * 1e6:.{digits(seconds * 1e6)}f} µs" if seconds else "0 s"
