"""How much room a running batch keeps for its own growth. One small interface."""

from collections.abc import Callable
from typing import Final, Literal, Protocol, TypeAlias, runtime_checkable

from blockyard._core import Misuse
from blockyard.shared.owner import is_foreign
from blockyard.shared.validate import integer, one_of

__all__ = [
    "Adaptive",
    "Asked",
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
"""What an instance does for its requests: all of it, or only one of the two phases."""


@runtime_checkable
class HeadroomPolicy(Protocol):
    """Says how much room to keep: `reserve` per sequence, `headroom` for the whole batch.

    Where a policy has an attribute `capped` that is true, no more blocks are kept than the running
    sequences can still need, as their prompts and `max_tokens` say.
    """

    def reserve(self, max_tokens: int) -> int:
        """Returns the tokens of growth to promise at a begin, of the most that it may need."""

    def headroom(self, running: int) -> int:
        """Returns the blocks that no begin may take while `running` sequences run."""

    def stepped(self) -> None:
        """Hears of a step with rows that went by without a preemption."""

    def preempted(self) -> None:
        """Hears of a preemption."""


class _Fixed:
    """A policy that learns nothing."""

    def stepped(self) -> None:
        """Learns nothing."""

    def preempted(self) -> None:
        """Learns nothing."""


class NoHeadroom(_Fixed):
    """No room is kept: admit all that fits now, and preempt when it grows."""

    def reserve(self, max_tokens: int) -> int:
        """Returns 0."""
        del max_tokens
        return 0

    def headroom(self, running: int) -> int:
        """Returns 0."""
        del running
        return 0


class FullLength(_Fixed):
    """Full length is promised: an admitted sequence never lacks room, and none is preempted."""

    def reserve(self, max_tokens: int) -> int:
        """Returns all that it may need."""
        return max_tokens

    def headroom(self, running: int) -> int:
        """Returns 0: the promises are enough."""
        del running
        return 0


class Watermark(_Fixed):
    """A fixed number of blocks is kept.

    Args:
        blocks: How many.
    """

    def __init__(self, blocks: int) -> None:
        blocks = integer("blocks", blocks, least=0)
        self._blocks = blocks

    def reserve(self, max_tokens: int) -> int:
        """Returns 0."""
        del max_tokens
        return 0

    def headroom(self, running: int) -> int:
        """Returns the fixed number while anything runs: an empty batch needs none."""
        return self._blocks if running else 0


class Adaptive:
    """Keeps some blocks for each running sequence: fewer after quiet steps, all after a preemption.

    FastDeploy's figures (pull request #7107): from 16 blocks a sequence, less 0.025 per step. It
    keeps no more than the sequences can still need. A short answer is promised in full at its
    begin: many of them begin in one step, before any headroom is kept for them.

    Args:
        blocks: Blocks for each, at first and after a preemption.
        decay: What each loses of them per step.
        short: The most tokens that are promised in full.
    """

    capped: Final = True
    """Whether no more is kept than the sequences can still need."""

    def __init__(self, blocks: float = 16.0, decay: float = 0.025, short: int = 32) -> None:
        self._short = integer("short", short, least=0)
        given: dict[str, object] = {"blocks": blocks, "decay": decay}
        for name, value in given.items():
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not 0 <= value < _MOST
            ):
                raise Misuse(f"{name} = {value!r:.60}: must be a number >= 0 and < {_MOST:,}")
        self._first = self._now = blocks
        self._decay = decay

    def reserve(self, max_tokens: int) -> int:
        """Returns all of a short answer, and 0 of a longer one."""
        return max_tokens if max_tokens <= self._short else 0

    def headroom(self, running: int) -> int:
        """Returns the blocks of all running sequences together."""
        return int(self._now * running)

    def stepped(self) -> None:
        """Keeps a little less from now on."""
        self._now = max(0.0, self._now - self._decay)

    def preempted(self) -> None:
        """Keeps all again."""
        self._now = self._first


class Asked:
    """A policy as a scheduler asks it: what it raises, or answers wrongly, breaks nothing off.

    Args:
        policy: The policy.
    """

    def __init__(self, policy: HeadroomPolicy) -> None:
        self._policy = policy
        self.capped: bool = getattr(policy, "capped", False) is True
        """Whether no more is kept than the sequences can still need."""
        self._kept = 0
        self._fault: Misuse | None = None

    def check(self) -> None:
        """Raises, once, what it did wrong since the last call.

        Raises:
            Misuse: It raised, or answered with no number of blocks.
        """
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault

    def reserve(self, max_tokens: int) -> int:
        """Returns what it promises, of no more tokens than a request may need.

        Raises:
            Misuse: It raised, or this is no number of tokens: the request fails by it, and no
                other one does.
        """
        try:
            answer: object = self._policy.reserve(max_tokens)
        except Exception as error:
            if is_foreign(error):
                raise
            raise Misuse(f"the headroom policy raised {error!r:.200}") from error
        if not isinstance(answer, int) or isinstance(answer, bool) or answer < 0:
            raise Misuse(
                f"the headroom policy reserves {answer!r:.60}: must be an integer, 0 or more"
            )
        return min(answer, max_tokens)

    def headroom(self, running: int) -> int:
        """Returns what it wants kept; where it does wrong, what it wanted last."""
        try:
            answer: object = self._policy.headroom(running)
        except Exception as error:  # noqa: BLE001 - `check` raises it where nothing is half done
            self._raised(error)
            return self._kept
        if isinstance(answer, int) and not isinstance(answer, bool) and answer < 1 << 32:
            self._kept = max(answer, 0)
        else:
            self._fault = Misuse(
                f"the headroom policy wants {answer!r:.60} kept: must be an integer of blocks"
            )
        return self._kept

    def stepped(self) -> None:
        """Tells it of a step that went by without a preemption."""
        try:
            self._policy.stepped()
        except Exception as error:  # noqa: BLE001 - likewise
            self._raised(error)

    def preempted(self) -> None:
        """Tells it of a preemption."""
        try:
            self._policy.preempted()
        except Exception as error:  # noqa: BLE001 - likewise
            self._raised(error)

    def _raised(self, error: Exception) -> None:
        """Keeps an error of the policy's for `check`; what a signal handler has raised goes on."""
        if is_foreign(error):
            raise error
        self._fault = Misuse(f"the headroom policy raised {error!r:.200}")
        self._fault.__cause__ = error


_DEFAULT: Final[dict[Role, Callable[[], HeadroomPolicy]]] = {
    "mixed": Adaptive,
    "prefill": NoHeadroom,  # a prefill samples one token, and grows no further
    "decode": Adaptive,
}


def default_headroom(role: Role) -> HeadroomPolicy:
    """Makes the default policy of a role.

    Raises:
        Misuse: There is no such role.
    """
    return _DEFAULT[one_of("role", role, _DEFAULT)]()


def checked_headroom(name: str, policy: object) -> HeadroomPolicy:
    """Asks a policy once, so that a wrong one is refused before anything runs, and returns it.

    Raises:
        Misuse: It is no policy, or answers with something else than integers >= 0.
    """
    if isinstance(policy, type) or not isinstance(policy, HeadroomPolicy):
        raise Misuse(f"{name} = {policy!r:.60}: must be a policy, such as Adaptive()")
    try:
        answers: tuple[object, object] = policy.reserve(1), policy.headroom(1)
    except Exception as error:
        if is_foreign(error):
            raise
        raise Misuse(f"{name} = {policy!r:.60}: {error}") from error
    if not all(
        type(number) is not bool and isinstance(number, int) and number >= 0 for number in answers
    ):
        raise Misuse(f"{name} = {policy!r:.60} answers {answers}: must be integers >= 0")
    return policy
