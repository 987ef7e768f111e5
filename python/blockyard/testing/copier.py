"""A copier that misbehaves by a script, the same way every time."""

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Literal, Self

from blockyard._typing import override
from blockyard.crane.copiers import Copier, Landed, Receipt, Slots
from blockyard.crane.tiers import Tier, planes_of
from blockyard.shared.plan import Cause

__all__ = [
    "Action",
    "Script",
    "ScriptedCopier",
    "corrupt",
    "delay",
    "deliver",
    "die",
    "fail",
    "hang",
]


@dataclass(frozen=True, slots=True, repr=False)
class Action:
    """The fate of one copy; the functions below make it, and it prints as their call."""

    word: Literal["deliver", "delay", "fail", "corrupt", "hang", "die"]
    number: int | None = None

    @override
    def __repr__(self) -> str:
        return f"{self.word}({'' if self.number is None else self.number})"


def deliver() -> Action:
    """The copy is made, and lands as usual."""
    return Action("deliver")


def delay(polls: int) -> Action:
    """The copy begins only after that many polls: it reads and writes late."""
    return Action("delay", polls)


def fail(good: int) -> Action:
    """Only `good` leading blocks are copied (modulo its blocks), and the copy fails."""
    return Action("fail", good)


def corrupt(good: int) -> Action:
    """The block after `good` others (modulo its blocks) is copied wrongly, and so reported."""
    return Action("corrupt", good)


def hang() -> Action:
    """The copy does not begin until `release`."""
    return Action("hang")


def die() -> Action:
    """From here on no copy begins and none is reported, until `revive`."""
    return Action("die")


class Script(tuple[Action, ...]):
    """Actions, one per copy in the order of their start. Its `repr` can be replayed."""

    __slots__ = ()

    @classmethod
    def seeded(  # noqa: PLR0913 - keywords
        cls,
        seed: int,
        *,
        copies: int = 1000,
        late: float = 0.3,
        failing: float = 0.05,
        corrupting: float = 0.05,
        hanging: float = 0.0,
        dying: float = 0.0,
        longest: int = 8,
    ) -> Self:
        """Returns actions, the same for the same arguments. The figures are probabilities.

        Args:
            seed: Any number.
            copies: How many actions.
            late: That a copy is delayed by 1 to `longest` polls, so that others overtake it.
            failing: That a copy fails.
            corrupting: That a copy is corrupt.
            hanging: That a copy hangs until it is released.
            dying: That the copier dies.
            longest: The longest delay in polls.
        """
        chance = random.Random(seed)  # noqa: S311 - not for cryptography

        def action() -> Action:
            number = chance.randrange(2**16)
            point = chance.random()
            for share, made in (
                (late, delay(1 + number % longest)),
                (failing, fail(number)),
                (corrupting, corrupt(number)),
                (hanging, hang()),
                (dying, die()),
            ):
                if point < share:
                    return made
                point -= share
            return deliver()

        return cls(action() for _ in range(copies))


class ScriptedCopier:
    """A copier around a real one: its actions delay, spoil or hold copies.

    Its behaviour depends on starts and polls alone; around a `ThreadCopier(workers=0)` it is the
    same in every run.

    Args:
        inner: The copier that moves the bytes.
        script: An action per copy; copies after its end are delivered.
    """

    def __init__(self, inner: Copier, script: Iterable[Action] = ()) -> None:
        self.inner = inner
        self._script = chain(script, repeat(deliver()))
        self._next: Action | None = None
        self._held: list[_Held] = []
        self.dead = False

    def start(
        self, source: Tier, destination: Tier, sources: Slots, destinations: Slots
    ) -> Receipt | None:
        """Takes the next action for this copy; None, and no action, when `inner` is full."""
        action = self._next or next(self._script)
        held = _Held(self, (source, destination, sources, destinations), action)
        if action.word == "die":
            self.dead = True
        if action.word == "deliver" and not self.dead and not held.begin():
            self._next = action
            return None
        self._next = None
        self._held = [one for one in self._held if not one.ended] + [held]
        return held

    @property
    def hanging(self) -> bool:
        """Whether a copy hangs."""
        return any(held.hangs for held in self._held)

    def release(self) -> None:
        """Lets copies that hang go on."""
        for held in self._held:
            held.release()

    def revive(self) -> None:
        """Lets a dead copier go on where it stopped."""
        self.dead = False

    def reset(self) -> None:
        """Ends and forgets all copies, and revives the copier."""
        self.inner.reset()
        for held in self._held:
            held.drop()
        self._held = []
        self.dead = False

    def close(self) -> None:
        """Closes `inner`; copies that never began have failed."""
        self.inner.close()
        for held in self._held:
            held.drop()
        self.dead = False


class _Held:
    """A receipt that reports what the action demands."""

    def __init__(
        self, copier: ScriptedCopier, copy: tuple[Tier, Tier, Slots, Slots], action: Action
    ) -> None:
        self._copier = copier
        self._copy = copy
        self._action = action
        self._polls: float = math.inf if action.word == "hang" else 0
        if action.word == "delay":
            self._polls = action.number or 0
        self._good = (action.number or 0) % max(len(copy[2]), 1)
        self._receipt: Receipt | None = None
        self.ended: Landed | None = None

    def poll(self) -> Landed | None:
        """Returns how the copy ended, once its action permits."""
        if self.ended is not None or self._copier.dead:
            return self.ended
        if self._polls > 0:
            self._polls -= 1
            return None
        if self._receipt is None and not self.begin():
            return None
        landed = None if self._receipt is None else self._receipt.poll()
        if landed is not None:
            self.ended = self._twisted(landed)
        return self.ended

    def begin(self) -> bool:
        """Starts the real copy; returns whether `inner` took it."""
        source, destination, sources, destinations = self._copy
        end = self._good if self._action.word == "fail" else len(sources)
        self._receipt = self._copier.inner.start(
            source, destination, sources[:end], destinations[:end]
        )
        return self._receipt is not None

    @property
    def word(self) -> str:
        """What its action says."""
        return self._action.word

    @property
    def hangs(self) -> bool:
        """Whether it waits for `release`."""
        return self.ended is None and math.isinf(self._polls)

    def release(self) -> None:
        """Ends a hang."""
        if self._action.word == "hang":
            self._polls = 0

    def drop(self) -> None:
        """Ends as failed where it never began."""
        if self._receipt is None:
            self.ended = Landed(0, Cause.FAILED)

    def _twisted(self, landed: Landed) -> Landed:
        if landed.cause is not None:
            return landed
        if self._action.word == "fail":
            return Landed(self._good, Cause.FAILED)
        if self._action.word == "corrupt":
            _source, destination, _sources, destinations = self._copy
            slot = int(destinations[self._good])
            for plane in planes_of(destination):
                plane[slot] = ~plane[slot]
            return Landed(self._good, Cause.CORRUPT)
        return landed
