"""Who is preempted first when the batch cannot grow. One small interface."""

from typing import NamedTuple, Protocol

__all__ = ["Candidate", "LastCome", "LeastWork", "Victims"]


class Candidate(NamedTuple):
    """A running sequence that may be preempted."""

    priority: int
    came: int
    """The step before which it came: the same for requests that came together."""
    order: int
    """Its number among all requests: no two have the same."""
    blocks: int
    """Blocks in its table."""
    computed: int
    """Tokens of KV that would be given up."""


class Victims(Protocol):
    """A policy. Who would free nothing is passed over, whatever the policy says."""

    def rank(self, candidate: Candidate) -> tuple[int, ...]:
        """The smallest goes first."""


class LastCome:
    """The lowest priority, then who came last; the more blocks on a tie."""

    def rank(self, candidate: Candidate) -> tuple[int, ...]:
        """The smallest goes first."""
        return (candidate.priority, -candidate.came, -candidate.blocks, -candidate.order)


class LeastWork:
    """The lowest priority, then the least to compute again: for engines that only recompute."""

    def rank(self, candidate: Candidate) -> tuple[int, ...]:
        """The smallest goes first."""
        return (candidate.priority, candidate.computed, -candidate.order)
