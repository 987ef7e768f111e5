"""A rank of a simulation: memory, a crane, and a road that outcomes go lost on."""

from collections import Counter, deque
from pathlib import Path

from blockyard._typing import override
from blockyard.config import Config
from blockyard.copiers import Receipt, Slots
from blockyard.copiers.threads import ThreadCopier
from blockyard.crane import Crane
from blockyard.layout import KVLayout, Plane
from blockyard.plan import Outcome
from blockyard.testing.copier import Action, ScriptedCopier, deliver
from blockyard.testing.engine import Sums
from blockyard.testing.scenario import Setup
from blockyard.tiers import Tier
from blockyard.tiers.memory import MemoryTier

__all__ = ["Hands", "config_of"]


class _Copier(ScriptedCopier):
    """Whose actions events bring, for each way; without one a copy is delivered."""

    def __init__(self) -> None:
        self._way = "up"
        self.actions: dict[str, deque[Action]] = {"up": deque(), "down": deque()}
        super().__init__(ThreadCopier(workers=0), iter(self._action, None))

    def _action(self) -> Action:
        actions = self.actions[self._way]
        return actions.popleft() if actions else deliver()

    @override
    def start(
        self, source: Tier, destination: Tier, sources: Slots, destinations: Slots
    ) -> Receipt | None:
        """Takes the next action of its way."""
        self._way = "up" if destination.name == "device" else "down"
        return super().start(source, destination, sources, destinations)


class Hands:
    """A rank: its crane, and the road that its outcomes take."""

    def __init__(self, config: Config, rank: int, shared: Path) -> None:
        layout = config.layout
        assert layout is not None  # noqa: S101 - `config_of` makes one
        device = MemoryTier(layout, config.device_blocks, name="device")
        host = MemoryTier(layout, config.host_blocks, shared=shared) if config.host_blocks else None
        self.memory = Sums(device, rank)
        self.memory.forget()
        self.copier = _Copier()
        self.crane = Crane(layout, rank=rank, device=device, host=host, copier=self.copier)
        self.fates: deque[tuple[str, int]] = deque()
        self.road: list[tuple[int, Outcome]] = []
        self.lost = False
        """Whether an outcome was never said: only a reset of the rank ends that flight."""

    def poll(self, now: int, seen: Counter[str]) -> list[Outcome]:
        """What arrives of what the crane has said, now or before."""
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
        due = [outcome for tick, outcome in self.road if tick <= now]
        self.road = [entry for entry in self.road if entry[0] > now]
        return due

    @property
    def silent(self) -> bool:
        """Whether nothing is in the air, or on its way."""
        return not self.crane.in_air and not self.road


def config_of(setup: Setup) -> Config:
    """Memory of 8 bytes for each token and piece."""
    piece = 8 * setup.block_size
    planes = {
        "page-first": (Plane("kv", 1, piece),),
        "layer-first": (Plane("k", 2, piece), Plane("v", 3, piece)),
        "replicated": (Plane("own", 1, piece), Plane("same", 2, piece, replicated=True)),
    }[setup.shape]
    layout = KVLayout(planes, block_size=setup.block_size, ranks=setup.ranks, dtype="uint8")
    return Config(
        layout=layout,
        device=setup.device,
        host=setup.host,
        eviction=setup.eviction,
        write=setup.write,
        ahead=setup.ahead,
        deadline=setup.deadline,
        speeds=setup.speeds,
    )
