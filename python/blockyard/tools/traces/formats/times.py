"""Times in logs, as milliseconds."""

from datetime import UTC, datetime, timedelta
from typing import Final

from blockyard.tools.traces.formats.format import TimeUnit

__all__ = ["milliseconds"]

_PER_SECOND: Final[dict[TimeUnit, int]] = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST: Final = 10**11
"""Seconds of the year 5138: a larger number is in another unit."""


def milliseconds(value: object, unit: TimeUnit) -> int:
    """Returns a time in milliseconds since 1970, or since what a number counts from.

    Args:
        value: A number, or text in the form of ISO 8601; without a zone it counts as UTC.
        unit: Of a number.

    Raises:
        ValueError: It is not a time. The message has the valid forms.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        # Compared before it is divided: a whole number may be too large for a float.
        if not 0 <= value < _LATEST * _PER_SECOND[unit]:
            raise ValueError(
                f"{str(value)[:40]} is no time in {unit}; give another --time-unit: "
                f"{', '.join(_PER_SECOND)}"
            )
        # Whole units stay exact, where a fraction of seconds would not.
        return (
            round(value * 1000 / _PER_SECOND[unit])
            if isinstance(value, float)
            else (value * 1000 // _PER_SECOND[unit])
        )
    try:
        moment = datetime.fromisoformat(str(value).strip())
    except ValueError:
        raise ValueError(
            f"{str(value)[:40]!r} is no time; give a number, or a time like 2024-05-10T12:00:00.5"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(milliseconds=1)
