"""The ranks of a simulation: their cranes, and faults of their copies and outcomes."""

from collections import Counter, deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockyard.crane.crane import Crane
from blockyard.crane.persistent import PersistentTiers
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.shared.layout import KVLayout, Plane
from blockyard.shared.plan import Outcome, Plan
from blockyard.testing.copier import Action
from blockyard.testing.setup import Setup
from blockyard.testing.simulated_cranes import QueueCopier, RemoteCrane, SimulatedCrane, way_of
from blockyard.testing.simulated_disk import SimulatedDisk, SimulatedDiskCopier
from blockyard.testing.simulated_engine import Sums, check
from blockyard.testing.simulated_store import SimulatedLookup, StoreWorker
from blockyard.yard.config import BlockCosts, Config

if TYPE_CHECKING:
    from blockyard.crane.copiers import Copier, Pair

__all__ = ["SimulatedRank", "config_of"]

_NEAR = frozenset({"up", "down", "across"})
"""The ways of copies that no disk and no store delays."""


class SimulatedRank:
    """A rank: its crane, and the outcomes that are delayed, repeated or lost.

    Args:
        config: Its tiers.
        setup: The speed of its disk, and whether it has bytes.
        rank: Its number.
        shared: A folder for what ranks share.
        disk: Its disk, where that outlives the process.
        worker: What asks a shared store for it.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - made in two places
        self,
        config: Config,
        setup: Setup,
        rank: int,
        shared: Path,
        disk: SimulatedDisk | None = None,
        worker: StoreWorker | None = None,
    ) -> None:
        layout = config.layout
        assert layout is not None  # noqa: S101 - `config_of` makes one
        self._near = QueueCopier(("up", "down", "across"))
        slow = {"polls": setup.disk_polls, "copies": setup.disk_copies}
        self._disk = (
            QueueCopier(("to disk", "from disk"), **slow)
            if disk is None
            else SimulatedDiskCopier(disk, **slow)
        )
        self._copiers = self._near, self._disk
        self.memory: list[Sums] = []
        self.crane: SimulatedCrane = RemoteCrane(rank, setup.disk_polls)
        self.persistent = PersistentTiers([] if disk is None else [disk])
        """Its disk, as a crane knows it where it outlives the process."""
        self._ranks = config.ranks
        self.worker = worker
        self._near_flights: set[tuple[int, int]] = set()
        if setup.cranes == "here":
            device = MemoryTier(layout, config.device_blocks, name="device")
            host, below = (
                MemoryTier(layout, slots, name=name, shared=shared / name) if slots else None
                for name, slots in (
                    ("host", config.host_blocks),
                    ("disk", 0 if disk else config.disk_blocks),
                )
            )
            below = disk or below
            self.memory = [Sums(device, rank)]
            self.memory[0].forget()
            names = [tier.name for tier in (device, host, below) if tier is not None]
            pairs = [(one, other) for one in names for other in names if one != other]
            copiers: dict[Pair, Copier] = {
                pair: self._disk if "disk" in pair else self._near for pair in pairs
            }
            copiers["device", "device"] = self._near
            remote = None if worker is None else worker.tier
            if worker is not None:
                ends = [(name, "remote") for name in names]
                copiers |= dict.fromkeys(ends, worker.copier)
                copiers |= dict.fromkeys([end[::-1] for end in ends], worker.copier)
            self.crane = Crane(
                layout,
                rank=rank,
                device=device,
                host=host,
                disk=below,
                remote=remote,
                copier=copiers,
                fingerprint=config.fingerprint,
            )
        self.fates: deque[tuple[str, int]] = deque()
        self.road: list[tuple[int, Outcome]] = []
        self.lost: set[tuple[int, int]] = set()
        """The yards and flights of outcomes that were lost: a reset of the rank ends them, or an
        answer of `reconcile`."""

    def lookup(self) -> SimulatedLookup | None:
        """Returns what asks the store about requests; None without one."""
        return None if self.worker is None else self.worker.lookup()

    def submit(self, plans: list[Plan]) -> None:
        """Gives the crane plans."""
        near = (p for p in plans if way_of(p.source_tier, p.destination_tier) in _NEAR)
        self._near_flights.update(map(_name, near))
        self.crane.submit(plans)

    def poll(self, now: int, seen: Counter[str]) -> list[Outcome]:
        """Returns the outcomes that arrive now.

        Raises:
            Broken: What was given to another lane than those of the disk waits, and not for itself.
        """
        if self.worker is not None:
            self.worker.turn()
        outcomes = self.crane.poll()
        self._near_flights.difference_update(map(_name, outcomes))
        if self.memory:
            waiting, held = len(self._near_flights), self._near.held
            check(waiting <= held, f"{waiting} flights wait, and only {held} copies are held up")
        self.send(outcomes, now, seen)
        return self.arrived(now)

    def send(self, outcomes: Iterable[Outcome], now: int, seen: Counter[str]) -> None:
        """Sends outcomes on their way, each to its fate."""
        for outcome in outcomes:
            fate, ticks = self.fates.popleft() if self.fates else ("", 0)
            seen[f"outcome {fate}".strip()] += 1
            seen[f"copy {outcome.cause}"] += outcome.cause is not None
            if fate == "lost":
                self.lost.add(_name(outcome))
                continue
            self.lost.discard(_name(outcome))
            self.road.append((now + (ticks if fate == "late" else 0), outcome))
            if fate == "twice":
                self.road.append((now + ticks, outcome))
            if fate == "foreign":
                no_flight = outcome._replace(flight=outcome.flight + 10**6, good=0, cause=None)
                no_rank = outcome._replace(rank=self._ranks, good=0, cause=None)
                self.road += [(now, no_flight), (now, no_rank)]

    def arrived(self, now: int) -> list[Outcome]:
        """Returns the outcomes that have come by now."""
        due = [outcome for tick, outcome in self.road if tick <= now]
        self.road = [entry for entry in self.road if entry[0] > now]
        return due

    def script(self, way: str, action: Action) -> None:
        """Gives the next copy of a direction its action."""
        self._of(way).actions[way].append(action)

    def _of(self, way: str) -> QueueCopier:
        return next(one for one in self._copiers if way in one.actions)

    def release(self) -> None:
        """Lets copies that hang go on, and copiers that are dead live again."""
        for copier in self._copiers:
            copier.release()
            copier.revive()

    def end_faults(self) -> None:
        """Lets all go on, and nothing fail any more."""
        for copier in self._copiers:
            for actions in copier.actions.values():
                actions.clear()
        self.fates.clear()
        self.release()

    @property
    def hung(self) -> bool:
        """Whether a flight waits for what only an event ends: a release, or a reset."""
        return bool(self.lost) or any(one.dead or one.hanging for one in self._copiers)

    @property
    def silent(self) -> bool:
        """Whether no flight and no outcome is on its way."""
        waits = self.worker is not None and self.worker.is_busy
        return not self.crane.in_flight and not self.road and not waits


def _name(one: Plan | Outcome) -> tuple[int, int]:
    return one.yard, one.flight


def config_of(setup: Setup, largest: Callable[[str], int] = lambda _: 0) -> Config:
    """Returns a configuration with 8 bytes for each token and piece.

    Args:
        setup: Sizes and policies.
        largest: Returns the slots of a tier, where these are more than the setup's.
    """
    piece = 8 * setup.block_size
    planes = {
        "page-first": (Plane("kv", 1, piece),),
        "layer-first": (Plane("k", 2, piece), Plane("v", 3, piece)),
        "replicated": (Plane("own", 1, piece), Plane("same", 2, piece, replicated=True)),
    }[setup.shape]
    layout = KVLayout(planes, block_size=setup.block_size, ranks=setup.ranks, dtype="uint8")
    owner = "device" if setup.blocks == "yard" else "engine"
    blocks: dict[str, Any] = {owner: max(largest("device"), setup.device)}
    return Config(
        yard=setup.yard,
        layout=layout,
        **blocks,
        host=max(largest("host"), setup.host),
        disk=max(largest("disk"), setup.disk),
        remote=setup.remote,
        remote_writes=setup.store_values > 0,
        eviction=setup.eviction,
        host_copies=setup.host_copies,
        write=setup.write,
        ahead=setup.ahead,
        spare=setup.spare,
        deadline=setup.deadline,
        block_costs=None if setup.block_costs is None else BlockCosts(*setup.block_costs),
        recompute=setup.recompute,
        keyed=("disk",) if setup.disk_lasts else (),
    )
