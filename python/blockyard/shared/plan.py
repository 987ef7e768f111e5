"""Plans of copies and their outcomes, which the yard and every crane know."""

from enum import StrEnum
from typing import NamedTuple

from blockyard._core import Plan

__all__ = ["Cause", "Outcome", "Plan"]


class Cause(StrEnum):
    """Why a flight did not land whole."""

    FAILED = "failed"
    """The copy went wrong; nothing is known against its source."""
    CORRUPT = "corrupt"
    """The first bad block failed its checksum: its source must not be used again."""
    DEAD = "dead"
    """Its rank was reset or its crane closed while the copy was in flight: it has ended there, and
    nothing has gone wrong."""
    LOST = "lost"
    """Its device was lost, and may still write. The flight counts as past its deadline until the
    rank is reset."""


class Outcome(NamedTuple):
    """What one rank's crane reports of one flight, once its copies there have ended.

    It is a tuple, which any thread may read and pickle may carry.
    """

    flight: int
    """`Plan.flight`."""
    rank: int
    """The rank that reports, from 0."""
    good: int
    """How many of the plan's leading blocks are intact; over ranks the minimum counts."""
    cause: Cause | None = None
    """Why not all of them are; None when all are."""
