"""The cranes and copiers of simulated ranks."""

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from blockyard._typing import override
from blockyard.crane.copiers import Receipt, Slots
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.crane.tiers import Tier
from blockyard.shared.plan import Cause, Outcome, Plan
from blockyard.testing.copier import Action, ScriptedCopier, delay, deliver

__all__ = ["QueueCopier", "RemoteCrane", "SimulatedCrane", "way_of"]


def way_of(source: str, destination: str) -> str:
    """Returns the direction of a copy, seen from the device; disk and store have their own."""
    if "remote" in {source, destination}:
        return "to store" if destination == "remote" else "from store"
    if source == destination:
        return "across"
    if "disk" in {source, destination}:
        return "to disk" if destination == "disk" else "from disk"
    return "up" if destination == "device" else "down"


class SimulatedCrane(Protocol):
    """A crane as a simulation uses it."""

    @property
    def in_flight(self) -> int:
        """How many flights are not reported yet."""

    def submit(self, plans: list[Plan]) -> None:
        """Takes plans."""

    def poll(self) -> list[Outcome]:
        """Returns the outcomes since the last call."""

    def reset(self) -> None:
        """Ends all flights as dead."""

    def close(self) -> None:
        """Gives its memory back."""


class RemoteCrane:
    """A crane without bytes: each copy is good, some polls later."""

    def __init__(self, rank: int, disk_polls: int = 0) -> None:
        self._rank = rank
        self._disk_polls = disk_polls
        self._air: list[tuple[int, Outcome]] = []
        self._polls = 0

    @property
    def in_flight(self) -> int:
        """How many flights are not reported yet."""
        return len(self._air)

    def submit(self, plans: Iterable[Plan]) -> None:
        """Takes plans, which overtake one another."""
        for plan in plans:
            due = self._polls + 1 + (3 * plan.flight + self._rank) % 4
            due += self._disk_polls * ("disk" in way_of(plan.source_tier, plan.destination_tier))
            self._air.append((due, Outcome.of(plan, self._rank, len(plan))))

    def poll(self) -> list[Outcome]:
        """Returns the outcomes since the last call."""
        self._polls += 1
        due = [outcome for at, outcome in self._air if at <= self._polls]
        self._air = [entry for entry in self._air if entry[0] > self._polls]
        return due

    def reset(self) -> None:
        """Lets the next poll report all flights as dead."""
        dead = [one._replace(good=0, cause=Cause.DEAD) for _, one in self._air]
        self._air = [(self._polls, outcome) for outcome in dead]

    def close(self) -> None:
        """Does nothing."""


class QueueCopier(ScriptedCopier):
    """A copier with a queue of actions for each direction; without one a copy is delivered.

    Args:
        ways: The directions.
        polls: Polls that a copy without an action waits.
        copies: Copies that it makes at once; it takes no more. 0 for any number.
    """

    def __init__(self, ways: Iterable[str], *, polls: int = 0, copies: int = 0) -> None:
        self.actions: dict[str, deque[Action]] = {way: deque() for way in ways}
        self._way = next(iter(self.actions))
        self._usual = delay(polls) if polls else deliver()
        self._copies = copies
        super().__init__(ThreadCopier(workers=0), iter(self._action, None))

    def _action(self) -> Action:
        actions = self.actions[self._way]
        return actions.popleft() if actions else self._usual

    @property
    def held(self) -> int:
        """How many copies wait since their own action says so, or since it is dead."""
        waits = {"delay", "hang"}
        return sum(one.ended is None and (self.dead or one.word in waits) for one in self._held)

    @override
    def start(
        self, source: Tier, destination: Tier, sources: Slots, destinations: Slots
    ) -> Receipt | None:
        """Takes the next action of the direction; None where it makes enough copies."""
        if self._copies and sum(one.ended is None for one in self._held) >= self._copies:
            return None
        self._way = way_of(source.name, destination.name)
        return super().start(source, destination, sources, destinations)
