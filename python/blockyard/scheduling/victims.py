"""Who is preempted first when the batch cannot grow. One small interface."""

from typing import NamedTuple, Protocol, runtime_checkable

from blockyard._core import Misuse

__all__ = ["Candidate", "LeastComputed", "Newest", "VictimPolicy", "checked_policy"]


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


@runtime_checkable
class VictimPolicy(Protocol):
    """A policy. Who would free nothing is passed over, whatever the policy says."""

    def rank(self, candidate: Candidate) -> tuple[int, ...]:
        """The smallest goes first."""


class Newest:
    """The lowest priority, then who came last; the more blocks on a tie."""

    def rank(self, candidate: Candidate) -> tuple[int, ...]:
        """The smallest goes first."""
        return (candidate.priority, -candidate.came, -candidate.blocks, -candidate.order)


class LeastComputed:
    """The lowest priority, then the least to compute again: for engines that only recompute."""

    def rank(self, candidate: Candidate) -> tuple[int, ...]:
        """The smallest goes first."""
        return (candidate.priority, candidate.computed, -candidate.order)


def checked_policy(name: str, policy: object) -> VictimPolicy:
    """A policy, asked once: what is wrong with it is said before anybody runs.

    Raises:
        Misuse: It is none, or ranks by something else than integers.
    """
    if isinstance(policy, type) or not isinstance(policy, VictimPolicy):
        raise Misuse(f"{name} = {policy!r:.60}: must be a policy, such as Newest()")
    try:
        said: object = policy.rank(Candidate(0, 0, 0, 1, 1))
    except Exception as error:
        raise Misuse(f"{name} = {policy!r:.60}: {error}") from error
    if not isinstance(said, tuple) or not all(isinstance(number, int) for number in said):
        raise Misuse(f"{name} = {policy!r:.60} ranks by {said!r:.60}: must be a tuple of integers")
    return policy
