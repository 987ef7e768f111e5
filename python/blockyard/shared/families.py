"""The families of metrics that are made of the schema of `stats()`: name, kind, help and labels."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from blockyard.shared.stats import HELP, PREFIX, Kind, Stat

__all__ = ["ENGINE", "GROUP", "RANK", "Family", "exists", "families"]

ENGINE: Final = "engine"
"""The label that every metric has: which engine of the process it is of."""
GROUP: Final = "group"
"""The label of the numbers of tiers where there are several groups of layers."""
RANK: Final = "rank"
"""The label of a crane's numbers."""

_OF_A_COPY: Final = frozenset({"dropped_blocks", "unwritten_blocks"})
"""Families of what leaves a tier without a copy below."""


class Family(NamedTuple):
    """Numbers of one name, which differ by their labels."""

    name: str
    """With the prefix, and without the ending of counters."""
    kind: Kind
    help: str
    stats: tuple[Stat, ...]
    """Its numbers; one that is only the sum of others is left out."""


def families(schema: Iterable[Stat]) -> tuple[Family, ...]:
    """Returns the families of these numbers, in the order in which they first come."""
    found: dict[str, list[Stat]] = {}
    for stat in schema:
        found.setdefault(stat.family, []).append(stat)
    return tuple(_family(name, stats) for name, stats in found.items())


def _family(name: str, stats: list[Stat]) -> Family:
    most = max(len(stat.labels) for stat in stats)
    own = tuple(stat for stat in stats if len(stat.labels) == most)
    about = HELP.get(name) or f"{own[0].help[0].upper()}{own[0].help[1:]}."
    return Family(f"{PREFIX}{name}", own[0].kind, about, own)


def exists(stat: Stat, tiers: Sequence[str]) -> bool:
    """Returns whether a number is of tiers that there are, which stand highest first."""
    named = {value for name, value in stat.labels.items() if name in {"tier", "from", "to"}}
    # Nothing is below the last tier.
    here = tiers[:-1] if stat.family in _OF_A_COPY else tiers
    return named <= set(here)
