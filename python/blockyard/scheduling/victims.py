"""Policies for the sequence that is preempted when the batch cannot grow."""

from typing import NamedTuple, Protocol, runtime_checkable

from blockyard._core import Misuse
from blockyard.shared.owner import is_foreign

__all__ = ["Candidate", "LeastComputed", "Newest", "VictimPolicy", "checked_policy", "rank_of"]


class Candidate(NamedTuple):
    """A running sequence that may be preempted."""

    priority: int
    arrival_step: int
    """The newest step when it was added: the same for requests that came together."""
    order: int
    """Its number among all requests: no two have the same."""
    blocks: int
    """Blocks in its table."""
    computed: int
    """Tokens of KV that would be given up."""


@runtime_checkable
class VictimPolicy(Protocol):
    """Ranks the candidates for preemption; one that would free nothing is passed over."""

    def rank(self, candidate: Candidate) -> tuple[int, ...]:
        """Returns a key; the smallest is preempted first."""


class Newest:
    """The lowest priority first, then the newest; the more blocks on a tie."""

    def rank(self, candidate: Candidate) -> tuple[int, ...]:
        """Returns a key; the smallest is preempted first."""
        return (candidate.priority, -candidate.arrival_step, -candidate.blocks, -candidate.order)


class LeastComputed:
    """The lowest priority first, then the least to recompute: where nothing is parked."""

    def rank(self, candidate: Candidate) -> tuple[int, ...]:
        """Returns a key; the smallest is preempted first."""
        return (candidate.priority, candidate.computed, -candidate.order)


def checked_policy(name: str, policy: object) -> VictimPolicy:
    """Asks a policy once, so that a wrong one is refused before anything runs, and returns it.

    Raises:
        Misuse: It is no policy, or ranks by something else than integers.
    """
    if isinstance(policy, type) or not isinstance(policy, VictimPolicy):
        raise Misuse(f"{name} = {policy!r:.60}: must be a policy, such as Newest()")
    rank_of(name, policy, Candidate(0, 0, 0, 1, 1))
    return policy


def rank_of(name: str, policy: VictimPolicy, candidate: Candidate) -> tuple[int, ...]:
    """Asks a policy for the rank of a candidate.

    Raises:
        Misuse: It raises, calls the scheduler, or ranks by something else than integers.
    """
    try:
        rank: object = policy.rank(candidate)
    except Exception as error:
        if is_foreign(error):
            raise
        raise Misuse(f"{name} = {policy!r:.60} raised {error!r:.200}") from error
    if not isinstance(rank, tuple) or not all(isinstance(number, int) for number in rank):
        raise Misuse(f"{name} = {policy!r:.60} ranks by {rank!r:.60}: must be a tuple of integers")
    return rank
