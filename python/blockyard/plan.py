"""What a copy is, and what became of it: known to the yard and to every crane."""

from enum import StrEnum
from typing import NamedTuple

from blockyard._core import Plan

__all__ = ["Cause", "Outcome", "Plan", "Thresholds"]


class Cause(StrEnum):
    """Why a flight did not come whole."""

    FAILED = "failed"
    """The copy went wrong; nothing is known against its source."""
    CORRUPT = "corrupt"
    """The first bad block failed its checksum: its source is not to be used again."""
    DEAD = "dead"
    """Its rank was reset while the copy was in the air: it has ended, and nothing of it counts."""
    LOST = "lost"
    """Its device was lost: nobody knows whether it still writes. The flight is taken as one whose
    deadline has passed, until the rank is reset."""


class Outcome(NamedTuple):
    """What one rank's crane reports of one flight, once its copies there have ended."""

    flight: int
    """`Plan.flight`."""
    rank: int
    """Who reports, from 0."""
    good: int
    """How many of the plan's leading blocks are intact; over ranks the minimum counts."""
    cause: Cause | None = None
    """None when all are."""


class Thresholds(NamedTuple):
    """How copies between a GPU and its host are best made: measured once, and frozen here.

    They change how bytes move, never which: ranks may differ in them without harm.
    """

    kernel_below: int = 1 << 20
    """Bytes of a flight and plane below which a kernel copies over the link by itself."""
    piece_bytes: int = 48 << 10
    """Least bytes of a piece for which it is worth its own copy."""
    most_runs: int = 4096
    """Most copies that a flight of blocks of several pieces is made of; beyond, a ring is used."""
    ring_bytes: int = 256 << 20
    """Device memory, each way, in which scattered pieces are gathered into whole blocks."""
    groups: int = 128
    """Thread blocks that gather and scatter at a time."""
    link_groups: int = 16
    """Thread blocks that copy over the link at a time."""
