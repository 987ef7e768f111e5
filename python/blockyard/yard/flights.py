"""Flights from their dispatch until every rank has reported them."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from blockyard._core import Misuse
from blockyard.shared.layout import TIERS
from blockyard.shared.log import Limited
from blockyard.shared.plan import Cause, Outcome, Plan, Unreported
from blockyard.shared.stats import Stat
from blockyard.shared.validate import bounded

__all__ = ["Ended", "Flights", "PendingCopies", "Waiting", "numbers", "ranks", "read_twice"]

_log = Limited(__name__)


class Ended(NamedTuple):
    """Flights that every rank has reported, as columns for the core."""

    flights: list[int]
    good: list[int]
    corrupt: list[bool]


@dataclass(slots=True)
class _InFlight:
    """One flight: the ranks that have not reported, and the worst that was reported."""

    blocks: int
    since: int
    """When it was launched."""
    ticks: int | None
    """Its deadline, from then on."""
    missing: set[int]
    order: int
    """How many flights were launched before it."""
    good: int
    corrupt: bool = False
    fault: bool = False
    """Whether a rank has reported a failure, other than by a reset or a close."""
    late: bool = False
    """Whether it counts as unknown."""


class Waiting(NamedTuple):
    """A flight that not every rank has reported."""

    flight: int
    missing: list[int]
    """The ranks that have not."""
    spoken: list[int]
    """The ranks that have."""
    others: int
    """Flights that wait as well."""


class PendingCopies(NamedTuple):
    """Copies that wait for a call."""

    undispatched: tuple[int, int] | None
    """Plans to be dispatched, and the flight of the oldest; None where there is none."""
    ahead: int | None
    """How often `dispatch` was called; None where no block is to be copied ahead now."""
    unreported: Waiting | None
    """The oldest flight that a rank has not reported."""
    unpolled: tuple[int, int] = (0, 0)
    """Flights that the crane of this process has, and how often it was polled."""


class Flights:
    """Collects the outcomes of all ranks and returns the flights that have ended.

    A flight has ended when every rank has reported it, with the smallest count of good blocks. A
    flight past its deadline stays here until its late reports end it.

    Args:
        ranks: Cranes that report each flight.
        yard: The number that the yard's plans have.
        deadline: Returns the ticks from its dispatch, by the lower tier of a flight; None for no
            deadline.
        group: The group of layers of the yard's plans.
    """

    SCHEMA = (
        Stat(
            "outcomes",
            "outcomes",
            "counter",
            "outcomes",
            "reports of copies that were taken from the ranks",
        ),
        Stat(
            "outcomes_ignored",
            "outcomes",
            "counter",
            "outcomes_ignored",
            "reports of copies that arrived twice, late or for unknown copies",
        ),
        Stat(
            "flights_failed",
            "flights",
            "counter",
            "flights_failed",
            "flights (batches of copies) with a failed block",
        ),
        Stat(
            "flights_unknown",
            "flights",
            "counter",
            "copies_failed{cause=unknown}",
            "flights (batches of copies) that not all ranks had reported at the deadline",
        ),
    )
    """Name, unit, kind, metric and meaning of each number in `stats`."""

    __slots__ = (
        "_counts",
        "_deadlines",
        "_due",
        "_group",
        "_heard",
        "_in_flight",
        "_launched",
        "_lost",
        "_ranks",
        "_yards",
    )

    def __init__(
        self,
        ranks: int,
        deadline: Callable[[str], int | None],
        *,
        yard: int = 0,
        group: int = 0,
    ) -> None:
        self._ranks, self._group = ranks, group
        # Plans made in this process need not name their yard.
        self._yards = 0, yard
        self._deadlines = {tier: deadline(tier) for tier in TIERS}
        self._in_flight: dict[int, _InFlight] = {}
        # In order of their launch, for each deadline: the first of each row is due first.
        self._due: dict[int, deque[int]] = {
            ticks: deque() for ticks in self._deadlines.values() if ticks is not None
        }
        self._lost: list[int] = []
        self._launched = 0
        # Flights that were launched when each rank last reported one.
        self._heard = [0] * ranks
        self._counts = dict.fromkeys((stat.name for stat in self.SCHEMA), 0)

    def __len__(self) -> int:
        return len(self._in_flight)

    def __contains__(self, flight: int) -> bool:
        return flight in self._in_flight

    def is_late(self, flight: int) -> bool:
        """Whether it counts as unknown: its copies may still write."""
        entry = self._in_flight.get(flight)
        return entry is not None and entry.late

    def launch(self, plan: Plan, now: int) -> None:
        """Notes that the cranes were given a plan at tick `now`."""
        lower = max(plan.source_tier, plan.destination_tier, key=TIERS.index)
        ticks = self._deadlines[lower]
        if ticks is not None:
            self._due[ticks].append(plan.flight)
        missing = set(range(self._ranks))
        self._in_flight[plan.flight] = _InFlight(
            len(plan), now, ticks, missing, self._launched, good=len(plan)
        )
        self._launched += 1

    def check(self, outcomes: Iterable[Outcome]) -> list[Outcome]:
        """Returns checked outcomes for `take`, in an order that depends on them alone.

        If a rank reports a flight twice, the worst report comes first, and counts.

        Raises:
            Misuse: One contradicts its plan, or is of another group of layers.
        """
        outcomes = list(outcomes)
        for outcome in outcomes:
            flight, rank, good, cause, yard, group = outcome
            if not type(flight) is type(rank) is type(good) is type(yard) is type(group) is int:
                raise Misuse(f"{outcome}: flight, rank, good, yard and group must be integers")
            if cause is not None and not isinstance(cause, Cause):
                raise Misuse(f"{outcome}: cause must be a Cause, or None")
            if group != self._group:
                raise Misuse(
                    f"{outcome}: it is of group {group}, and this cache has group {self._group}: "
                    "commit it to the cache of its own group"
                )
            entry = self._of(outcome)
            if entry is None or rank not in entry.missing:
                continue  # `take` will ignore it
            if not 0 <= good <= entry.blocks:
                raise Misuse(
                    f"rank {rank} reports {good} good blocks of flight {flight}, which has "
                    f"{entry.blocks}: leave it out, and reset that rank"
                )
        return sorted(outcomes, key=_severity) if len(outcomes) > 1 else outcomes

    def report(self, outcomes: Iterable[Outcome]) -> Ended:
        """Takes outcomes and returns the flights that they have ended, until `forget` is called.

        An outcome that comes twice, or of an unexpected yard, flight or rank, is counted and
        changes nothing.

        Raises:
            Misuse: An outcome contradicts its plan; none of the call is taken.
        """
        return self.take(self.check(outcomes))

    def take(self, outcomes: Iterable[Outcome]) -> Ended:
        """Takes outcomes as `report`, which `check` has returned."""
        ended = Ended([], [], [])
        over: set[int] = set()
        lost: set[tuple[int, int]] = set()
        for outcome in outcomes:
            self._counts["outcomes"] += 1
            entry = self._of(outcome)
            if entry is not None and not entry.missing and outcome.flight not in over:
                # An interrupt came when it had ended, and before the end of the call.
                over.add(outcome.flight)
                self._end(outcome.flight, entry, ended)
                continue
            said = outcome.flight, outcome.rank
            if entry is None or outcome.rank not in entry.missing or said in lost:
                self._counts["outcomes_ignored"] += 1
                _log.debug("ignored an unexpected outcome: %s", outcome)
                continue
            if outcome.cause is Cause.LOST:
                self._lost.append(outcome.flight)
                lost.add(said)
                continue
            self._heard[outcome.rank] = self._launched
            corrupt = outcome.cause is Cause.CORRUPT and outcome.good < entry.blocks
            if outcome.good < entry.good:
                entry.good, entry.corrupt = outcome.good, corrupt
            elif outcome.good == entry.good:
                entry.corrupt |= corrupt
            entry.fault |= outcome.good < entry.blocks and outcome.cause is not Cause.DEAD
            # Only now: where it is interrupted before, the same outcome is taken once more.
            entry.missing.remove(outcome.rank)
            if not entry.missing:
                over.add(outcome.flight)
                self._end(outcome.flight, entry, ended)
        return ended

    def _of(self, outcome: Outcome) -> _InFlight | None:
        """The flight that an outcome is of; flights of other yards have the same numbers."""
        return self._in_flight.get(outcome.flight) if outcome.yard in self._yards else None

    def _end(self, flight: int, entry: _InFlight, ended: Ended) -> None:
        if entry.good < entry.blocks:
            self._counts["flights_failed"] += 1
            # A close or a reset with copies in flight is no fault.
            tell = _log.warning if entry.fault else _log.debug
            tell("flight %d: %d of %d blocks are good", flight, entry.good, entry.blocks)
        ended.flights.append(flight)
        # A late copy is not trusted: its source may hold another block by now.
        ended.good.append(0 if entry.late else entry.good)
        ended.corrupt.append(entry.corrupt)

    def reset(self, rank: int) -> Ended:
        """Ends all that a rank had in flight, after its reset, as not good.

        Raises:
            Misuse: There is no such rank.
        """
        return self.take(Outcome(flight, rank, 0, Cause.DEAD) for flight in self._open(rank))

    def overdue(self, now: int) -> list[int]:
        """Returns flights past their deadline at tick `now`, or of a lost device.

        They come again until the caller has called `unknown`.
        """
        if self._lost:
            self._lost = [flight for flight in self._lost if self._awaited(flight)]
        late = dict.fromkeys(self._lost)
        for ticks, row in self._due.items():
            while row and not self._awaited(row[0]):
                row.popleft()
            for flight in row:
                entry = self._awaited(flight)
                if entry is None:
                    continue
                if entry.since + ticks > now:
                    break
                late[flight] = None
        return list(late)

    def unknown(self, flights: Iterable[int], now: int) -> None:
        """Notes that flights which are overdue at tick `now` count as unknown."""
        for flight in flights:
            entry = self._awaited(flight)
            if entry is not None:
                entry.late = True
                self._counts["flights_unknown"] += 1
                _log.warning("flight %d: no end known by tick %d", flight, now)

    def _awaited(self, flight: int) -> _InFlight | None:
        """Returns a flight that does not count as unknown; None for others."""
        entry = self._in_flight.get(flight)
        return None if entry is None or entry.late else entry

    def unreported(self, rank: int) -> Unreported:
        """Returns the flights that a rank has not reported, as `KVCache.unreported`.

        Those that all have reported are among them, where an interrupt kept that from the core.

        Raises:
            Misuse: There is no such rank.
        """
        return Unreported(self._yards[1], self._open(rank), self._group)

    def _open(self, rank: int) -> list[int]:
        self.check_rank(rank)
        waiting = list(self._in_flight.items())
        return [flight for flight, it in waiting if rank in it.missing or not it.missing]

    def check_rank(self, rank: int) -> None:
        """Refuses a rank that is not there.

        Raises:
            Misuse: It is not.
        """
        if not 0 <= rank < self._ranks:
            raise Misuse(f"rank = {rank}: must be an integer from 0 to {self._ranks - 1}")

    def waiting(self, now: int) -> Waiting | None:
        """The oldest flight that waits for a rank; any thread may ask.

        Where the ticks of a deadline go by, a flight is taken care of until that has passed: it
        counts only where a rank has reported nothing at all since it was launched.
        """
        in_flight = list(self._in_flight.items())
        for at, (flight, entry) in enumerate(in_flight):
            missing = sorted(entry.missing)
            if entry.ticks is not None and not entry.late:
                ticks = now > entry.since
                missing = [r for r in missing if not ticks or self._heard[r] <= entry.order]
            if missing:
                spoken = [rank for rank in range(self._ranks) if rank not in entry.missing]
                return Waiting(flight, missing, spoken, len(in_flight) - at - 1)
        return None

    def missing(self, flight: int) -> list[int] | None:
        """The ranks that have not reported a flight; None where it was not given to the cranes."""
        entry = self._in_flight.get(flight)
        return None if entry is None else sorted(entry.missing)

    def forget(self, flights: Iterable[int]) -> None:
        """Drops flights that the caller has ended."""
        for flight in flights:
            self._in_flight.pop(flight, None)

    def state(self) -> tuple[object, ...]:
        """Returns all state that later answers depend on, as plain values; any thread may ask."""
        waiting = [
            (flight, it.order, it.since, sorted(it.missing), it.good, it.corrupt, it.late)
            for flight, it in list(self._in_flight.items())
        ]
        lost = sorted({flight for flight in self._lost if self._awaited(flight)})
        counts = self._counts["flights_failed"], self._counts["flights_unknown"]
        return sorted(waiting), lost, self._launched, self._heard, counts

    def stats(self) -> dict[str, int]:
        """Returns counts, by the names of `SCHEMA`."""
        return dict(self._counts)


def _severity(outcome: Outcome) -> tuple[int, int, bool, int, bool]:
    """By flight and rank, the worst first."""
    flight, rank, good, cause, *_ = outcome
    return flight, rank, cause is not Cause.LOST, good, cause is not Cause.CORRUPT


def read_twice(flights: Any) -> Any:  # noqa: ANN401 - as `KVCache.commit` takes it
    """Flights in a form that can be read twice: by the core, and then here."""
    if isinstance(flights, np.ndarray | np.generic):
        return np.atleast_1d(flights)
    if isinstance(flights, (Plan, int, list, tuple)) or not isinstance(flights, Iterable):
        return flights
    return bounded("flights", flights)


def numbers(flights: Plan | int | Iterable[Plan | int]) -> list[int]:
    """The numbers of flights that a caller names, by themselves or by their plans."""
    each = [flights] if isinstance(flights, Plan | int) else flights
    return [one.flight if isinstance(one, Plan) else int(one) for one in each]


def ranks(numbers: list[int]) -> str:
    """Ranks in words."""
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {', '.join(map(str, numbers))}"
