"""What goes from the scheduler's process to the workers at each step, and back."""

from dataclasses import dataclass, field
from typing import TypeAlias

from blockyard._typing import override
from blockyard.connectors.orders import Orders
from blockyard.connectors.vllm.vllm_api import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)
from blockyard.crane.tiers.peers import TakenOffer
from blockyard.shared.plan import Outcome
from blockyard.shared.restored import Restored

__all__ = ["Ready", "Reports", "StepOrders", "TakenEvent"]

TakenEvent: TypeAlias = TakenOffer | tuple[str, bytes]
"""An offer that was taken; or the address and the id of one of which nothing more is read."""


@dataclass
class Ready(KVConnectorHandshakeMetadata):  # type: ignore[misc]
    """A worker's report that its memory is ready."""

    rank: int
    fingerprints: tuple[str, ...]
    """Of what the workers and the scheduler's half must have alike, for each group of layers."""
    shared: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Files of the memory that all ranks map, and need by name no more: the device and the number
    of each there."""
    restored: tuple[Restored, ...] = ()
    """What its disk has from before, of each group; none where there is no disk."""
    folders: tuple[tuple[str, ...], ...] = ()
    """Of the identity of what is on it, of each group, one for each of its paths."""
    places: tuple[int, ...] = ()
    """The identity of its values in shared stores, of each group; none where there is no store."""
    fields: tuple[tuple[str, str], ...] = ()
    """All that its bytes depend on, by name, where KV is handed over."""
    lent: int = 0
    """The number of its host's memory, from which the scheduler's process sends; 0 for none."""


@dataclass
class StepOrders(KVConnectorMetadata):  # type: ignore[misc]
    """What the workers do in one step."""

    number: int
    """Each step of a yard has its own, so that none is carried out twice."""
    orders: Orders
    arrived: set[str] = field(default_factory=set)
    """Requests whose loads have ended, which every worker reports to vLLM."""
    missing: set[int] = field(default_factory=set)
    """Blocks of those that have not come."""
    run: int = 0
    """As which owner the disks of all ranks count; 0 in all steps but the first ones."""
    cleared: int = 0
    """How often the lower tiers were cleared so far."""
    yard: int | None = None
    """The yard of the scheduler that orders it: another one counts from the beginning."""
    tells: bool = False
    """Whether the workers report their numbers in this step."""
    failed: set[str] = field(default_factory=set)
    """Requests of several groups of layers whose loads have failed, which vLLM computes again."""
    offers: list[TakenEvent] = field(default_factory=list)
    """What has become of offers of prefill engines, before its copies begin."""


@dataclass
class Reports(KVConnectorWorkerMetadata):  # type: ignore[misc]
    """What has ended on some ranks."""

    outcomes: list[Outcome]
    dead: frozenset[tuple[int, int]] = frozenset()
    """Slots of disks that have died, where a copy has failed: the first, and the step."""
    ready: tuple[Ready, ...] = ()
    """What workers say that have their memory, where vLLM does not carry it: in their first step
    inside another connector."""

    @override
    def aggregate(self, other: KVConnectorWorkerMetadata) -> "Reports":
        """Joins the reports of two ranks; the cache uses the smallest result of each flight."""
        assert isinstance(other, Reports)  # noqa: S101 - vLLM joins what the same class has made
        return Reports(
            [*self.outcomes, *other.outcomes], self.dead | other.dead, self.ready + other.ready
        )
