"""The copies of a simulation, counted a second time beside the yard's own counters."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from blockyard.shared.layout import TIERS
from blockyard.shared.plan import Outcome, Plan
from blockyard.testing.restarts import Remains
from blockyard.testing.setup import Setup
from blockyard.testing.simulated_cranes import way_of
from blockyard.testing.simulated_engine import check
from blockyard.yard.by_tier import of_tier

__all__ = ["Copies"]


@dataclass(slots=True)
class _PlanInFlight:
    """One plan in flight."""

    way: str
    blocks: int
    due: int | None
    missing: set[int]
    good: int
    late: bool = False


class Copies:
    """Plans and outcomes of all ranks; counts faults by direction.

    Args:
        setup: How many cranes there are, and the ticks until an outcome is unknown.
        seen: Where it counts.
        remains: Notes what comes to a disk that outlives the process.
    """

    def __init__(self, setup: Setup, seen: Counter[str], remains: Remains | None = None) -> None:
        self._remains = remains
        self._ranks = setup.ranks
        self._yard = setup.yard
        self._deadline = setup.deadline
        self._seen = seen
        self._air: dict[int, _PlanInFlight] = {}
        self._heard: set[tuple[int, int]] = set()
        self._launched: set[int] = set()
        self._now = 0
        """The tick that the yard knows, from which its deadlines count."""
        self._counts = dict.fromkeys(("outcomes_ignored", "flights_failed", "flights_unknown"), 0)

    def launched(self, plans: Iterable[Plan]) -> None:
        """Notes plans that the cranes were given."""
        for plan in plans:
            tiers = plan.source_tier, plan.destination_tier
            deadline: int | None = of_tier(self._deadline, max(tiers, key=TIERS.index), None)
            due = None if deadline is None else self._now + deadline
            way = way_of(*tiers)
            ranks = set(range(self._ranks))
            self._air[plan.flight] = _PlanInFlight(way, len(plan), due, ranks, len(plan))
            self._launched.add(plan.flight)
            self._seen[f"plans {way}"] += 1
            if self._remains is not None:
                self._remains.launched(plan)

    def heard(self, outcomes: Iterable[Outcome]) -> None:
        """Notes outcomes that the yard is given."""
        for outcome in outcomes:
            flight, rank = outcome.flight, outcome.rank
            air = self._air.get(flight)
            ours = outcome.yard == self._yard
            if air is None or rank not in air.missing or not ours:
                self._counts["outcomes_ignored"] += 1
                known = flight in self._launched and rank < self._ranks and ours
                self._seen["outcome of another yard"] += not ours
                again = (flight, rank) in self._heard
                name = ("twice" if again else "late") if known else "foreign"
                self._seen[f"2.3 {name}"] += 1
            else:
                self._seen["2.3 late"] += air.late
                self._heard.add((flight, rank))
                self._missed(flight, air, rank, outcome.good)

    def _missed(self, flight: int, air: _PlanInFlight, rank: int, good: int) -> None:
        air.missing.remove(rank)
        air.good = min(air.good, good)
        if not air.missing:
            del self._air[flight]
            if self._remains is not None:
                self._remains.ended(flight, air.good)
            self._counts["flights_failed"] += air.good < air.blocks
            self._seen[f"2.3 {air.way} failed"] += air.good < air.blocks and not air.late

    def reset(self, rank: int) -> None:
        """Counts as failed what a rank did not report before its reset."""
        for flight, air in list(self._air.items()):
            if rank in air.missing:
                self._missed(flight, air, rank, 0)

    def overdue(self, now: int) -> None:
        """Counts the plans whose deadline has passed at a tick that the yard was told."""
        self._now = now
        for air in self._air.values():
            if not air.late and air.due is not None and air.due <= now:
                air.late = True
                self._counts["flights_unknown"] += 1
                self._seen[f"2.3 {air.way} unknown"] += 1

    def compare(self, stats: dict[str, int]) -> None:
        """Checks that the yard has the same counters."""
        theirs = {name: stats[name] for name in self._counts}
        check(
            theirs == self._counts,
            f"the yard has counted copies as {theirs}, and they were {self._counts}",
        )
