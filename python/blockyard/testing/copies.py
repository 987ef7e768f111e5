"""What becomes of the copies of a simulation: reckoned once more, beside the yard's own account."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from blockyard.shared.plan import Outcome, Plan
from blockyard.testing.engine import check
from blockyard.testing.simulated_rank import way_of

__all__ = ["Copies"]


@dataclass(slots=True)
class _Air:
    """One plan in flight."""

    way: str
    blocks: int
    due: int | None
    missing: set[int]
    good: int
    late: bool = False


class Copies:
    """Plans and outcomes of all ranks; counts what went wrong, by way.

    Args:
        ranks: Cranes.
        deadline: Ticks.
        seen: Where it counts.
    """

    def __init__(self, ranks: int, deadline: int | None, seen: Counter[str]) -> None:
        self._ranks = ranks
        self._deadline = deadline
        self._seen = seen
        self._air: dict[int, _Air] = {}
        self._heard: set[tuple[int, int]] = set()
        self._flown: set[int] = set()
        self._counts = dict.fromkeys(("outcomes_ignored", "flights_failed", "flights_unknown"), 0)

    def launched(self, plans: Iterable[Plan], now: int) -> None:
        """Plans were handed to the cranes."""
        for plan in plans:
            due = None if self._deadline is None else now + self._deadline
            way = way_of(plan.source_tier, plan.destination_tier)
            ranks = set(range(self._ranks))
            self._air[plan.flight] = _Air(way, len(plan), due, ranks, len(plan))
            self._flown.add(plan.flight)
            self._seen[f"plans {way}"] += 1

    def heard(self, outcomes: Iterable[Outcome]) -> None:
        """Outcomes that the yard is told."""
        for outcome in outcomes:
            flight, rank = outcome.flight, outcome.rank
            air = self._air.get(flight)
            if air is None or rank not in air.missing:
                self._counts["outcomes_ignored"] += 1
                known = flight in self._flown and rank < self._ranks
                again = (flight, rank) in self._heard
                name = ("twice" if again else "late") if known else "foreign"
                self._seen[f"2.3 {name}"] += 1
            else:
                self._seen["2.3 late"] += air.late
                self._heard.add((flight, rank))
                self._missed(flight, air, rank, outcome.good)

    def _missed(self, flight: int, air: _Air, rank: int, good: int) -> None:
        air.missing.remove(rank)
        air.good = min(air.good, good)
        if not air.missing:
            del self._air[flight]
            self._counts["flights_failed"] += air.good < air.blocks
            self._seen[f"2.3 {air.way} failed"] += air.good < air.blocks and not air.late

    def reset(self, rank: int) -> None:
        """A rank was reset: what it did not report has failed."""
        for flight, air in list(self._air.items()):
            if rank in air.missing:
                self._missed(flight, air, rank, 0)

    def overdue(self, now: int) -> None:
        """Deadlines pass."""
        for air in self._air.values():
            if not air.late and air.due is not None and air.due <= now:
                air.late = True
                self._counts["flights_unknown"] += 1
                self._seen[f"2.3 {air.way} unknown"] += 1

    def compare(self, stats: dict[str, int]) -> None:
        """The yard has counted the same."""
        theirs = {name: stats[name] for name in self._counts}
        check(theirs == self._counts, f"of copies it says {theirs}, and it was {self._counts}")
