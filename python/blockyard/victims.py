"""Who is preempted when the batch cannot grow. One small interface."""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

__all__ = ["Candidate", "LastCome", "LeastWork", "Victims"]


class Candidate(NamedTuple):
    """A running sequence that may be preempted, and would free something."""

    seat: int
    priority: int
    order: int
    """When it came, among all requests."""
    frees: int
    """Device blocks that nobody else holds."""
    computed: int
    """Tokens of KV that would be given up."""


class Victims(Protocol):
    """A policy."""

    def choose(self, candidates: Iterable[Candidate]) -> Candidate:
        """One of them; there is at least one."""


class LastCome:
    """The lowest priority, then who came last; the more blocks it frees on a tie."""

    def choose(self, candidates: Iterable[Candidate]) -> Candidate:
        """The victim."""
        return min(candidates, key=lambda one: (one.priority, -one.order, -one.frees))


class LeastWork:
    """The lowest priority, then the least to compute again: for engines that only recompute."""

    def choose(self, candidates: Iterable[Candidate]) -> Candidate:
        """The victim."""
        return min(candidates, key=lambda one: (one.priority, one.computed, -one.order))
