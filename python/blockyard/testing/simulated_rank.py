"""A rank of a simulation: its crane, and faults of its copies and outcomes."""

from collections import Counter, deque
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from blockyard._typing import override
from blockyard.crane.copiers import Receipt, Slots
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.crane.crane import Crane
from blockyard.crane.tiers import Tier
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.shared.layout import KVLayout, Plane
from blockyard.shared.plan import Cause, Outcome, Plan
from blockyard.testing.copier import Action, ScriptedCopier, deliver
from blockyard.testing.engine import Sums
from blockyard.testing.setup import Setup
from blockyard.yard.config import Config

__all__ = ["SimulatedRank", "config_of", "way_of"]


def way_of(source: str, destination: str) -> str:
    """Returns the direction of a copy, seen from the device."""
    if source == destination:
        return "across"
    return "up" if destination == "device" else "down"


class _Crane(Protocol):
    """A crane as a simulation uses it."""

    @property
    def in_flight(self) -> int: ...
    def submit(self, plans: list[Plan]) -> None: ...
    def poll(self) -> list[Outcome]: ...
    def reset(self) -> None: ...
    def close(self) -> None: ...


class _RemoteCrane:
    """A crane without bytes: each copy is good, some polls later."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
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
            self._air.append((due, Outcome(plan.flight, self._rank, len(plan))))

    def poll(self) -> list[Outcome]:
        """Returns the outcomes since the last call."""
        self._polls += 1
        due = [outcome for at, outcome in self._air if at <= self._polls]
        self._air = [entry for entry in self._air if entry[0] > self._polls]
        return due

    def reset(self) -> None:
        """Lets the next poll report all flights as dead."""
        dead = [Outcome(one.flight, one.rank, 0, Cause.DEAD) for _, one in self._air]
        self._air = [(self._polls, outcome) for outcome in dead]

    def close(self) -> None:
        """Does nothing."""


class _Copier(ScriptedCopier):
    """A copier with a queue of actions for each direction; without one a copy is delivered."""

    def __init__(self) -> None:
        self._way = "up"
        self.actions: dict[str, deque[Action]] = {way: deque() for way in ("up", "down", "across")}
        super().__init__(ThreadCopier(workers=0), iter(self._action, None))

    def _action(self) -> Action:
        actions = self.actions[self._way]
        return actions.popleft() if actions else deliver()

    @override
    def start(
        self, source: Tier, destination: Tier, sources: Slots, destinations: Slots
    ) -> Receipt | None:
        """Takes the next action of the direction."""
        self._way = way_of(source.name, destination.name)
        return super().start(source, destination, sources, destinations)


class SimulatedRank:
    """A rank: its crane, and the outcomes that are delayed, repeated or lost."""

    def __init__(self, config: Config, rank: int, shared: Path, *, here: bool) -> None:
        layout = config.layout
        assert layout is not None  # noqa: S101 - `config_of` makes one
        self.copier = _Copier()
        self.memory: list[Sums] = []
        self.crane: _Crane = _RemoteCrane(rank)
        self._ranks = config.ranks
        if here:
            device = MemoryTier(layout, config.device_blocks, name="device")
            slots = config.host_blocks
            host = MemoryTier(layout, slots, shared=shared) if slots else None
            self.memory = [Sums(device, rank)]
            self.memory[0].forget()
            self.crane = Crane(layout, rank=rank, device=device, host=host, copier=self.copier)
        self.fates: deque[tuple[str, int]] = deque()
        self.road: list[tuple[int, Outcome]] = []
        self.lost = False
        """Whether an outcome was lost: only a reset of the rank ends that flight."""

    def poll(self, now: int, seen: Counter[str]) -> list[Outcome]:
        """Returns the outcomes that arrive now."""
        for outcome in self.crane.poll():
            fate, ticks = self.fates.popleft() if self.fates else ("", 0)
            seen[f"outcome {fate}".strip()] += 1
            seen[f"copy {outcome.cause}"] += outcome.cause is not None
            if fate == "lost":
                self.lost = True
                continue
            self.road.append((now + (ticks if fate == "late" else 0), outcome))
            if fate == "twice":
                self.road.append((now + ticks, outcome))
            if fate == "foreign":
                no_flight = Outcome(outcome.flight + 10**6, outcome.rank, 0)
                no_rank = Outcome(outcome.flight, self._ranks, 0)
                self.road += [(now, no_flight), (now, no_rank)]
        due = [outcome for tick, outcome in self.road if tick <= now]
        self.road = [entry for entry in self.road if entry[0] > now]
        return due

    @property
    def hung(self) -> bool:
        """Whether a flight waits for what only an event ends: a release, or a reset."""
        return self.lost or self.copier.dead or self.copier.hanging

    @property
    def silent(self) -> bool:
        """Whether no flight and no outcome is on its way."""
        return not self.crane.in_flight and not self.road


def config_of(setup: Setup, *, device: int = 0, host: int = 0) -> Config:
    """Returns a configuration with 8 bytes for each token and piece.

    Args:
        setup: Sizes and policies.
        device: Slots of the device, where these are more than the setup's.
        host: Slots of the host, likewise.
    """
    piece = 8 * setup.block_size
    planes = {
        "page-first": (Plane("kv", 1, piece),),
        "layer-first": (Plane("k", 2, piece), Plane("v", 3, piece)),
        "replicated": (Plane("own", 1, piece), Plane("same", 2, piece, replicated=True)),
    }[setup.shape]
    layout = KVLayout(planes, block_size=setup.block_size, ranks=setup.ranks, dtype="uint8")
    return Config(
        layout=layout,
        device=max(device, setup.device),
        host=max(host, setup.host),
        eviction=setup.eviction,
        write=setup.write,
        ahead=setup.ahead,
        deadline=setup.deadline,
        speeds=setup.speeds,
        recompute=setup.recompute,
    )
