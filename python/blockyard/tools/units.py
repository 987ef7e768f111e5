"""Durations and bytes as a person reads them."""

from typing import Final

__all__ = ["duration", "size"]

_HOUR: Final = 3600
_MINUTE: Final = 60
_KIB: Final = 1024


def duration(seconds: float) -> str:
    """Returns about three digits with a unit that suits them."""
    if seconds >= _HOUR:
        return f"{seconds // _HOUR:.0f} h {seconds % _HOUR // _MINUTE:02.0f} min"
    if seconds >= _MINUTE:
        return f"{seconds // _MINUTE:.0f} min {int(seconds) % _MINUTE:02} s"
    for unit, per in (("s", 1.0), ("ms", 1e3)):
        if seconds * per >= 1:
            return f"{seconds * per:.{_digits(seconds * per)}f} {unit}"
    return f"{seconds * 1e6:.{_digits(seconds * 1e6)}f} µs" if seconds else "0 s"


def size(count: float) -> str:
    """Returns bytes with a unit that suits them."""
    if count < _KIB:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        count /= _KIB
        if count < _KIB:
            return f"{count:.{_digits(count)}f} {unit}"
    count /= _KIB
    return f"{count:.{_digits(count)}f} TiB"


def _digits(value: float) -> int:
    """Returns the digits after the point that make three in all."""
    for digits in (2, 1):
        if value < 10.0 ** (3 - digits):
            return digits
    return 0
