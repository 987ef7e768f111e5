"""Plans of copies and their outcomes, which the yard and every crane know."""

import os
from enum import StrEnum
from typing import Any, Final, NamedTuple, Self

from blockyard._core import Misuse, Plan
from blockyard._typing import override

__all__ = ["MOST_GROUP", "MOST_YARD", "WIRE", "Cause", "Outcome", "Plan", "Unreported", "draw_yard"]

WIRE: Final = 3
"""The version of plans and outcomes between processes: each has that of the others."""
MOST_GROUP: Final = 255
"""The highest number of a group of layers: a byte in a plan."""
MOST_YARD: Final = 2**47 - 1
"""The highest number of a yard: pickled in 8 bytes."""


def draw_yard() -> int:
    """Returns a random number for a yard that starts, from 1 on."""
    return int.from_bytes(os.urandom(6)) & MOST_YARD or 1


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
    yard: int = 0
    """`Plan.yard`; 0 for the yard of this process. One that is sent must name it."""
    group: int = 0
    """`Plan.group`; 0 where there is one group of layers."""

    @classmethod
    def of(cls, plan: Plan, rank: int, good: int, cause: Cause | None = None) -> Self:
        """Makes the outcome of a plan on one rank.

        Args:
            plan: The plan.
            rank: The rank that reports, from 0.
            good: How many of its leading blocks are intact.
            cause: Why not all of them are; None when all are.
        """
        return cls(plan.flight, rank, good, cause, plan.yard, plan.group)

    @override
    def __reduce__(self) -> tuple[type["Outcome"], tuple[Any, ...]]:
        """Returns what pickle carries.

        Raises:
            Misuse: It names no yard: elsewhere it could be taken for an outcome of another yard.
        """
        if not self.yard:
            raise Misuse(f"{self}: it names no yard; to send it, make it with yard=plan.yard")
        return type(self), tuple(self)


class Unreported(NamedTuple):
    """The flights of which a yard has no outcome of one rank: it asks that rank's crane for them.

    It is a tuple, which any thread may read and pickle may carry.
    """

    yard: int
    """`Plan.yard` of them all."""
    flights: list[int]
    """`Plan.flight` of each, the oldest first."""
    group: int = 0
    """`Plan.group` of them all."""
