"""Hints: what is known of a request's future when it ends, checked. None of them is a promise."""

from math import isfinite
from typing import Final, Literal, NamedTuple, Self, TypeAlias, TypedDict, get_args

import numpy as np

from blockyard._core import Misuse
from blockyard.shared.validate import integer, known, shown

__all__ = ["NO_HINTS", "HintKeywords", "Hints", "Retention"]

Retention: TypeAlias = Literal["ordinary", "session-ended", "retain"]
"""When the blocks of a request that has ended are evicted: in their turn, first, or last."""

_MOST_PRIORITY: Final = 100
_MOST_TICKS: Final = 2**32 - 1


class HintKeywords(TypedDict):
    """Hints as keywords of `KVCache.finish` and `used`."""

    retention: Retention
    next_use: float | None
    priority: int | None
    ttl: int | None


class Hints(NamedTuple):
    """What is known of a request's future, as `KVCache.finish` takes it.

    It is a tuple, which any thread may make. Who takes it checks it.
    """

    retention: Retention = "ordinary"
    """Whether its session goes on: "ordinary", "session-ended" or "retain"."""
    next_use: float | None = None
    """Seconds until its blocks will be used again; None where nobody knows."""
    priority: int | None = None
    """From 0 to 100, the last to be evicted; None for 35."""
    ttl: int | None = None
    """Ticks after which its blocks go first; None for never."""

    @property
    def keywords(self) -> HintKeywords:
        """Themselves as keywords."""
        retention, next_use, priority, ttl = self
        return {"retention": retention, "next_use": next_use, "priority": priority, "ttl": ttl}

    @classmethod
    def given(cls, hints: object) -> Self:
        """Takes hints that a caller has made.

        Raises:
            Misuse: They are no hints, or as in `checked`.
        """
        if not isinstance(hints, Hints):
            raise Misuse(f"hints = {hints!r:.60}: must be Hints(...)")
        return cls.checked(*hints, prefix="hints.")

    @classmethod
    def checked(
        cls,
        retention: object = "ordinary",
        next_use: object = None,
        priority: object = None,
        ttl: object = None,
        *,
        prefix: str = "",
    ) -> Self:
        """Takes what a caller says.

        Args:
            retention: As in `Hints`.
            next_use: As in `Hints`.
            priority: As in `Hints`.
            ttl: As in `Hints`.
            prefix: What errors call priority and ttl by, before their names.

        Raises:
            Misuse: A value is none of those that are allowed. The message names it.
        """
        return cls(
            known("retention", retention, get_args(Retention)),  # type: ignore[arg-type]
            None if next_use is None else _seconds(next_use),
            None
            if priority is None
            else integer(f"{prefix}priority", priority, least=0, most=_MOST_PRIORITY),
            None if ttl is None else integer(f"{prefix}ttl", ttl, least=0, most=_MOST_TICKS),
        )


NO_HINTS: Final = Hints()
"""Where nothing is known."""


def _seconds(given: object) -> float:
    """A finite number that is not negative, of Python or NumPy."""
    if isinstance(given, int | float | np.integer | np.floating) and not isinstance(given, bool):
        try:
            seconds = float(given)
        except OverflowError:
            seconds = float("inf")
        if isfinite(seconds) and seconds >= 0:
            return seconds
    raise Misuse(
        f"next_use = {shown(given)}: give seconds, a finite number that is not negative; or leave "
        "it out"
    )
