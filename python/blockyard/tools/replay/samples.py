"""A run with the values behind its distributions, so that several engines can be merged."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from blockyard.tools.replay.result import Run

__all__ = ["Played", "Samples"]

_Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """The values of one engine in virtual time, one by one; times are in milliseconds."""

    ttft: _Values
    gaps: _Values
    """Times between two tokens, each once per step and length."""
    gap_counts: NDArray[np.int64]
    """How many times each of them occurred."""
    queue: _Values
    away: _Values
    step_us: _Values
    """CPU time of the bookkeeping of each step, microseconds."""
    added_us: float
    """CPU time of adding all requests, microseconds."""
    taken: int
    """Requests that were added or refused."""
    spent: float
    """CPU time of all bookkeeping, seconds."""
    computed: int
    """Tokens computed, repeated ones included."""

    @classmethod
    def together(cls, parts: Sequence[Self]) -> Self:
        """Returns the values of several engines."""

        def all_of(name: str) -> NDArray[np.float64]:
            return np.concatenate([getattr(part, name) for part in parts])

        return cls(
            ttft=all_of("ttft"),
            gaps=all_of("gaps"),
            gap_counts=np.concatenate([part.gap_counts for part in parts]),
            queue=all_of("queue"),
            away=all_of("away"),
            step_us=all_of("step_us"),
            added_us=sum(part.added_us for part in parts),
            taken=sum(part.taken for part in parts),
            spent=sum(part.spent for part in parts),
            computed=sum(part.computed for part in parts),
        )


class Played(NamedTuple):
    """A run, and its values; None with model sequential, which has no distributions."""

    run: Run
    samples: Samples | None
