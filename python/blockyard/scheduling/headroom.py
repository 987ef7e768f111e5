"""Reservation: how much room a running batch keeps for its own growth. One small interface."""

from collections.abc import Callable
from typing import Final, Literal, Protocol, TypeAlias, runtime_checkable

from blockyard._core import Misuse
from blockyard.shared.layout import natural

__all__ = [
    "Adaptive",
    "FullLength",
    "HeadroomPolicy",
    "NoHeadroom",
    "Role",
    "Watermark",
    "checked_headroom",
    "default_headroom",
]

_MOST: Final = 1_000_000
"""Blocks for each sequence; more than any device has."""

Role: TypeAlias = Literal["mixed", "prefill", "decode"]


@runtime_checkable
class HeadroomPolicy(Protocol):
    """A policy. `reserve` is kept per sequence, `headroom` for the batch as a whole."""

    def reserve(self, max_tokens: int) -> int:
        """Tokens of growth promised to a sequence when it begins, of the most it may sample."""

    def headroom(self, running: int) -> int:
        """Blocks that no begin may take while `running` sequences run."""

    def stepped(self) -> None:
        """A step that was not empty went by without a preemption."""

    def preempted(self) -> None:
        """Somebody had to be preempted."""


class _Fixed:
    """What learns nothing."""

    def stepped(self) -> None:
        """Nothing to learn."""

    def preempted(self) -> None:
        """Nothing to learn."""


class NoHeadroom(_Fixed):
    """No room is kept: admit all that fits now, and preempt when it grows."""

    def reserve(self, max_tokens: int) -> int:
        """None."""
        del max_tokens
        return 0

    def headroom(self, running: int) -> int:
        """None."""
        del running
        return 0


class FullLength(_Fixed):
    """Full length: who is admitted never lacks room, and nobody is preempted for it."""

    def reserve(self, max_tokens: int) -> int:
        """All of it."""
        return max_tokens

    def headroom(self, running: int) -> int:
        """None beside."""
        del running
        return 0


class Watermark(_Fixed):
    """A fixed number of blocks is kept.

    Args:
        blocks: How many.
    """

    def __init__(self, blocks: int) -> None:
        natural("blocks", blocks, least=0)
        self._blocks = blocks

    def reserve(self, max_tokens: int) -> int:
        """None by itself."""
        del max_tokens
        return 0

    def headroom(self, running: int) -> int:
        """The blocks, as soon as somebody runs: an empty batch needs none."""
        return self._blocks if running else 0


class Adaptive:
    """Some blocks for each running sequence: fewer after quiet steps, all again on preemption.

    FastDeploy's figures (pull request #7107): from 16 blocks a sequence, less 0.025 per step.

    Args:
        blocks: For each, at first and after a preemption.
        decay: Of that, per step.
    """

    def __init__(self, blocks: float = 16.0, decay: float = 0.025) -> None:
        given: dict[str, object] = {"blocks": blocks, "decay": decay}
        for name, value in given.items():
            if not isinstance(value, int | float) or not 0 <= value < _MOST:
                raise Misuse(f"{name} = {value!r:.60}: give a number from 0 to {_MOST:,}")
        self._first = self._now = blocks
        self._decay = decay

    def reserve(self, max_tokens: int) -> int:
        """None by itself."""
        del max_tokens
        return 0

    def headroom(self, running: int) -> int:
        """For all of them together."""
        return int(self._now * running)

    def stepped(self) -> None:
        """A little less."""
        self._now = max(0.0, self._now - self._decay)

    def preempted(self) -> None:
        """All again."""
        self._now = self._first


_USUAL: Final[dict[Role, Callable[[], HeadroomPolicy]]] = {
    "mixed": Adaptive,
    "prefill": NoHeadroom,  # it samples one token, and grows no further
    "decode": Adaptive,
}


def default_headroom(role: Role) -> HeadroomPolicy:
    """A policy of its own for an engine of that role.

    Raises:
        Misuse: There is no such role.
    """
    if role not in tuple(_USUAL):
        raise Misuse(f"role = {role!r}: must be one of 'mixed', 'prefill', 'decode'")
    return _USUAL[role]()


def checked_headroom(name: str, policy: object) -> HeadroomPolicy:
    """A policy, asked once: what is wrong with it is said before anybody runs.

    Raises:
        Misuse: It is none, or answers with something else than a number of tokens and blocks.
    """
    if isinstance(policy, type) or not isinstance(policy, HeadroomPolicy):
        raise Misuse(f"{name} = {policy!r:.60}: must be a policy, such as Adaptive()")
    try:
        said: tuple[object, object] = policy.reserve(1), policy.headroom(1)
    except Exception as error:
        raise Misuse(f"{name} = {policy!r:.60}: {error}") from error
    if not all(isinstance(number, int) and number >= 0 for number in said):
        raise Misuse(f"{name} = {policy!r:.60} answers {said}: must be integers >= 0")
    return policy
