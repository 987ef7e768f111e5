"""What stands still, and for how long: a loop that forgets a call is told which one."""

import time
from collections.abc import Callable, Hashable, Iterable
from enum import StrEnum
from threading import Lock
from typing import Final, NamedTuple, TypeAlias

from blockyard._core import Misuse
from blockyard.shared.log import Limited

__all__ = [
    "SECONDS",
    "STEPS",
    "Clock",
    "Fact",
    "Rule",
    "StallWatch",
    "checked_clock",
    "lasting",
    "those",
]

STEPS: Final = 64
SECONDS: Final = 2.0
"""A rule speaks when its fact has held for so many steps, and for so many seconds."""
_EVERY: Final = 16
"""Steps between two looks: a step costs next to nothing, and a stall is told within 96."""
_MINUTE: Final = 60.0

Clock: TypeAlias = Callable[[], float]
"""Returns seconds, from any beginning. Nothing is decided by it."""


class Rule(StrEnum):
    """What may stand still, the surest first."""

    DEAD = "dead"
    UNANSWERED = "unanswered"
    NO_ACK = "no ack"
    UNDISPATCHED = "undispatched"
    NOT_POLLED = "not polled"
    NO_OUTCOME = "no outcome"
    UNREAD = "unread"
    NO_ROOM = "no room"


_CAUSES: Final = {
    Rule.NOT_POLLED: frozenset({Rule.UNDISPATCHED}),
    Rule.NO_OUTCOME: frozenset({Rule.UNDISPATCHED, Rule.NOT_POLLED}),
    Rule.NO_ROOM: frozenset(Rule) - {Rule.NO_ROOM},
}
"""Rules that say nothing while one of these lasts from look to look: they are its effect."""


class Fact(NamedTuple):
    """Something that is all right for a moment, and a stall where it stays as it is."""

    rule: Rule
    identity: Hashable
    """Equal as long as nothing has changed."""
    say: Callable[[int, float], str]
    """Makes the sentence, of the steps and the seconds for which it has lasted."""


class _Since(NamedTuple):
    """When a fact was first seen as it is."""

    identity: Hashable
    step: int
    second: float


class StallWatch:
    """Remembers since when each fact has held unchanged, and says those that hold too long.

    It reads, and decides nothing. Every 16th step asks for the facts, and so does each `stalled`,
    which any thread may call; a fact that does not hold any more is forgotten.

    Args:
        name: Name of the logger that warns, once per rule and minute.
        clock: Seconds, for the rules and their log alone.

    Raises:
        Misuse: The clock does not return seconds.

    Example:
        >>> now = 0.0
        >>> watch = StallWatch("blockyard.mine", lambda: now)
        >>> facts = lambda: [Fact(Rule.NO_ROOM, 7, lambda *held: f"7 waits ({lasting(*held)}).")]
        >>> for now in range(81):
        ...     watch.step(facts)
        >>> watch.stalled(facts)
        ('7 waits (65 steps, 65.0 s).',)
    """

    __slots__ = ("_clock", "_lock", "_log", "_since", "_steps")

    def __init__(self, name: str, clock: Clock = time.monotonic) -> None:
        self._clock = checked_clock(clock)
        self._lock = Lock()
        self._log = Limited(name, _MINUTE, clock)
        self._since: dict[Rule, _Since] = {}
        self._steps = 0

    def step(self, facts: Callable[[], Iterable[Fact]]) -> None:
        """Counts a step, and looks at the facts now and then; it never waits."""
        self._steps += 1
        # Whoever has the lock is looking now.
        if not self._steps % _EVERY and self._lock.acquire(blocking=False):
            try:
                stalls = self._look(facts)
            finally:
                self._lock.release()
            self._warn(stalls)

    def stalled(self, facts: Callable[[], Iterable[Fact]]) -> tuple[str, ...]:
        """Looks at the facts, and returns a sentence for each that stands still."""
        return tuple(self.spoken(facts).values())

    def spoken(self, facts: Callable[[], Iterable[Fact]]) -> dict[Rule, str]:
        """The same, each by its rule, the surest first."""
        with self._lock:
            stalls = self._look(facts)
        self._warn(stalls)
        return stalls

    def _look(self, facts: Callable[[], Iterable[Fact]]) -> dict[Rule, str]:
        now, held = self._clock(), {fact.rule: fact for fact in facts()}
        before, self._since = self._since, {}
        lasted: dict[Rule, tuple[int, float]] = {}
        for rule, fact in held.items():
            since = before.get(rule)
            if since is None or since.identity != fact.identity:
                since = _Since(fact.identity, self._steps, now)
            self._since[rule] = since
            lasted[rule] = self._steps - since.step, now - since.second
        stand = {
            rule
            for rule, (steps, seconds) in lasted.items()
            if steps >= STEPS and seconds >= SECONDS
        }
        if not stand:
            return {}
        causes = {rule for rule, (steps, _) in lasted.items() if steps >= _EVERY}
        return {
            rule: held[rule].say(*lasted[rule])
            for rule in Rule
            if rule in stand and not _CAUSES.get(rule, frozenset()) & causes
        }

    def _warn(self, stalls: dict[Rule, str]) -> None:
        for rule, sentence in stalls.items():
            self._log.warning(f"stalled, {rule}: %s", sentence)


def checked_clock(clock: Clock) -> Clock:
    """A clock that returns seconds, as far as one can see.

    Raises:
        Misuse: It does not.
    """
    given: object = clock
    if not callable(given) or not isinstance(given(), int | float):
        raise Misuse(f"clock = {clock!r:.60}: must return seconds, such as time.monotonic")
    return clock


def lasting(steps: int, seconds: float) -> str:
    """For how long something has lasted, in words."""
    return f"{steps} steps, {seconds:.1f} s"


def those(count: int, noun: str, verb: str) -> str:
    """Things that do something, one or several: "1 plan waits", "2 plans wait"."""
    return f"{count} {noun} {verb}s" if count == 1 else f"{count} {noun}s {verb}"
