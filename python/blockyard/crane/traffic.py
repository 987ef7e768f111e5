"""The flights of one rank: what waits for a copier, what moves, and what has ended."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from itertools import count
from operator import attrgetter
from typing import Final

from blockyard._core import Misuse, Unsupported
from blockyard.crane.copiers import (
    Copier,
    Counting,
    KeyedCopier,
    Landed,
    Pair,
    Receipt,
    Slots,
    Turning,
)
from blockyard.crane.lanes import Copy, Flight, Lane, dead
from blockyard.crane.tiers import Stamping, Tier
from blockyard.crane.voids import Voids, is_void
from blockyard.shared.log import Limited
from blockyard.shared.owner import Reentry, broke_in
from blockyard.shared.plan import Cause, Outcome, Plan, Unreported
from blockyard.shared.timings import Clock, Copied, CopyTimes, checked_clock

__all__ = ["Traffic"]


_log = Limited("blockyard")
_WAITING: Final = attrgetter("waiting")
_APART: Final = nullcontext()
"""The turn of copiers that share nothing."""
_PAST: Final = 4096
"""Least number of reported outcomes that are remembered."""


class _CopyWatch:
    """Notes when flights are submitted, and counts them when they are reported.

    Copies within one tier are a block or two, and are left out.

    Args:
        pairs: The two tiers of each lane.
        block_bytes: Bytes of a block on this rank.
        clock: Seconds. Nothing is decided by it.

    Raises:
        Misuse: The clock does not return seconds.
    """

    def __init__(self, pairs: Iterable[Pair], block_bytes: int, clock: Clock) -> None:
        self._clock: Final = checked_clock(clock)
        self._block_bytes: Final = block_bytes
        self._copied = {pair: CopyTimes() for pair in pairs if pair[0] != pair[1]}
        self._since: dict[int, tuple[Pair, float]] = {}

    def submitted(self, plans: Iterable[Plan]) -> None:
        """Notes when these plans were submitted."""
        now = self._clock()
        for plan in plans:
            pair = plan.source_tier, plan.destination_tier
            if pair in self._copied:
                self._since[plan.flight] = pair, now

    def reported(self, flight: Flight) -> None:
        """Counts a flight that has ended: its time, where all of it came whole."""
        pair, since = self._since.pop(flight.number, (None, 0.0))
        if pair is not None:
            seconds = self._clock() - since if flight.good == flight.blocks else None
            self._copied[pair].add(seconds, flight.good * self._block_bytes)

    def read(self) -> Mapping[Pair, Copied]:
        """Returns what was counted; any thread may ask."""
        return {pair: times.read() for pair, times in self._copied.items()}


class Traffic:
    """The flights of one rank, and the lanes in which their copies wait and move.

    It is what a crane's verbs do, without the crane's owner: who calls it has that.

    Args:
        rank: Which rank this is.
        tiers: The tiers, by name.
        copiers: The copier of each lane, by the names of its two tiers.
        block_bytes: Bytes of a block on this rank.
        group: The group of layers whose plans it takes.
    """

    def __init__(
        self,
        rank: int,
        tiers: Mapping[str, Tier],
        copiers: Mapping[Pair, Copier],
        block_bytes: int,
        *,
        group: int = 0,
    ) -> None:
        self.rank, self.group = rank, group
        self.lanes = {
            pair: Lane(tiers[pair[0]], tiers[pair[1]], one, rank) for pair, one in copiers.items()
        }
        self.copiers = list({id(one): one for one in copiers.values()}.values())
        self.closed = False
        self.counts = dict.fromkeys(("flights", "failed", "blocks"), 0)
        self._yard: int | None = None
        """The yard whose plans it executes, once known."""
        self._named = False
        """Whether that yard gave its number in `hello`."""
        self._former: set[int] = set()
        """The yards before."""
        self._past: dict[int, Outcome] = {}
        """The last reported outcomes by flight, and those of lost devices."""
        self._refused: set[int] = set()
        """Flights reported dead whose plans have not arrived."""
        self._used = False
        """Whether plans came since all copies were ended."""
        self._tiers = tiers
        self._stamping = {name: one for name, one in tiers.items() if isinstance(one, Stamping)}
        self._block_bytes = block_bytes
        self._turning = [one for one in self.copiers if isinstance(one, Turning)]
        self._flights: dict[int, Flight] = {}
        self._order = count()
        self._moving: deque[tuple[Copy, Receipt]] = deque()
        self._counting = [one for one in self.copiers if isinstance(one, Counting)]
        self._ends: list[int] | None = None
        """How many copies of each had ended at the last poll; None where others move or anything
        waits."""
        self._voids = Voids()
        self._ended: list[Outcome] = []
        self.polls = 0
        """How often it was polled."""
        self._watched: _CopyWatch | None = None
        self._unsure = False
        """Whether a call has begun a change and not finished it."""
        self._lost = False
        """Whether a copy may run whose end cannot be known until a reset."""
        self._open: list[Copier | Voids | Tier] = [*self.copiers, self._voids, *tiers.values()]

    @property
    def in_flight(self) -> int:
        """Flights accepted and not yet reported."""
        return len(self._flights) + len(self._ended)

    def submit(self, plans: list[Plan]) -> None:
        """Takes plans, as `Crane.submit`.

        Raises:
            Misuse: As there; nothing is taken.
        """
        if self.closed:
            raise Misuse("the crane is closed, and takes no plan")
        if self._unsure:
            self._mend()
        # Most steps plan nothing.
        if plans:
            self._take(plans)

    def _take(self, plans: list[Plan]) -> None:
        """Takes some plans, or none of them."""
        taken: dict[int, Flight] = {}
        copies: list[Copy] = []
        plans, late = self._of_one_yard(plans)
        new = bool(plans) and plans[0].yard != self._yard
        ended: set[int] = set() if new else self._untold()
        for plan in plans:
            if (plan.flight in self._flights and not new) or plan.flight in taken:
                raise Misuse(f"flight = {plan.flight}: it is in flight already; submit it once")
            if plan.flight in ended or (plan.flight in self._past and not new):
                raise Misuse(
                    f"flight = {plan.flight}: it has been executed already, and its slots may "
                    "hold other blocks now; submit it once, and get its outcome with "
                    "reconcile(cache.unreported(rank))"
                )
            ends = frozenset((plan.source_tier, plan.destination_tier))
            taken[plan.flight] = flight = Flight(plan.flight, len(plan), next(self._order), ends)
            copies += self._copies(plan, flight)
        if new:
            self.meet(plans[0].yard)
        self.counts["failed"] += len(late)
        self._ended += [Outcome.of(one, self.rank, 0, Cause.DEAD) for one in late]
        if not plans:
            return
        if self._watched is not None:
            self._watched.submitted(plans)
        self._used, self._unsure, self._ends = True, True, None
        self._stamp(plans)
        for copy in copies:
            copy.lane.waiting.append(copy)
        self._flights |= taken
        self.counts["flights"] += len(taken)
        voids = [plan for plan in plans if is_void(plan)]
        for plan in voids:
            self._voids.take(taken[plan.flight], plan, self._tiers[plan.source_tier])
        self._report([flight for flight in taken.values() if not flight.copies])
        with self._turn():
            self._start()
        self._unsure = False

    def _stamp(self, plans: list[Plan]) -> None:
        """Announces plans to tiers that record the order of their writes."""
        for plan in plans:
            tier = self._stamping.get(plan.destination_tier)
            if tier is not None and len(plan) and not is_void(plan):
                tier.submitted(plan)

    def unvoided(self, tier: str) -> int:
        """Returns how many keys a tier is to void of which it was not told yet."""
        return self._voids.waiting(tier)

    def known(self) -> set[int]:
        """Returns the flights that were accepted and not yet reported."""
        if self._unsure:
            self._mend()
        return self._flights.keys() | self._untold()

    def hello(self, yard: int | None) -> None:
        """Meets a yard, whose plans alone are carried out from now on, as `Crane.hello`."""
        self.meet(yard)
        self._named = yard is not None

    def meet(self, yard: int | None) -> None:
        """Ends all that it has of another yard, as `Crane.hello`.

        Raises:
            Misuse: As there.
        """
        if self.closed and yard != self._yard:
            raise Misuse("the crane is closed, and accepts no other yard")
        if yard in self._former:
            raise Misuse(
                f"yard = {yard}: another yard has taken over since; give each start of a scheduler "
                "a new number (Config.named)"
            )
        if yard is not None and yard == self._yard:
            return
        if self._used:
            _log.info(
                "another yard takes over: %d flights of the previous yard end", self.in_flight
            )
            self.reset()
        if self._yard is not None:
            self._former.add(self._yard)
        # Flights of both have the same numbers. Whatever interrupts, the next call begins again.
        self._past.clear()
        self._refused.clear()
        self._yard = yard

    def _of_one_yard(self, plans: list[Plan]) -> tuple[list[Plan], list[Plan]]:
        """Returns the plans to carry out, and those that come too late for it."""
        for plan in plans:
            if plan.group != self.group:
                raise Misuse(
                    f"flight {plan.flight}: group = {plan.group}, and this crane has group "
                    f"{self.group}: give the plan to the crane of its own group"
                )
        late = [plan for plan in plans if self._is_over(plan)]
        plans = [plan for plan in plans if not self._is_over(plan)] if late else plans
        if len(plans) > 1 and len(yards := {plan.yard for plan in plans}) > 1:
            raise Misuse(f"plans of yards {sorted(yards)} in one call: give those of one yard")
        return plans, late

    def _is_over(self, plan: Plan) -> bool:
        if plan.yard == self._yard:
            return plan.flight in self._refused
        # Where a yard has said its number, the next one says its own: others are former ones,
        # of which a new process may know nothing.
        return self._named or plan.yard in self._former

    def _untold(self) -> set[int]:
        """Ended flights whose outcomes the yard may not have yet."""
        if not self._ended:
            return set()
        return {outcome.flight for outcome in self._ended if outcome.yard == self._yard}

    def poll(self) -> list[Outcome]:
        """Returns unreported outcomes, again until `told`."""
        self.polls += 1
        if self._unsure:
            self._mend()
        if self._flights and not self._is_still():
            self._unsure = True
            with self._turn():
                self._poll()
                self._start()
                self._void()
            if self._voids or any(map(_WAITING, self.lanes.values())):
                self._ends = None
            self._unsure = False
        return self._ended[:]

    def _is_still(self) -> bool:
        """Whether nothing waits, and no copy has ended since the last poll.

        Hundreds may be on their way from other machines, and a step is not to pay for each.
        """
        if self._ends is None:
            return False
        for copier in self._counting:
            if not copier.is_still():
                copier.collect()
        return [copier.ends for copier in self._counting] == self._ends

    def _void(self) -> None:
        """Continues to void records."""
        for flight, landed in self._voids.ended(self._flights.values()):
            flight.good, flight.cause = landed.good, landed.cause
            self._report([flight])
            self._voids.remove(flight)

    def _poll(self) -> None:
        ends, self._ends = [one.ends for one in self._counting], None
        for _ in range(len(self._moving)):
            copy, receipt = self._moving[0]
            landed = receipt.poll()
            if landed is None:
                self._moving.rotate(-1)
            else:
                # In this order: where it is interrupted, it lands once more.
                self._land(copy, landed)
                self._moving.popleft()
        if all(copy.lane.copier in self._counting for copy, _ in self._moving):
            self._ends = ends

    def _mend(self) -> None:
        """After an interrupt: a flight that lacks a copy now has an unknown end."""
        self._ends = None
        for number in self._untold() & self._flights.keys():
            del self._flights[number]
        taken = set(self._flights.values())
        # What moves of other flights has landed, and what waits of others has not begun.
        self._moving = deque(one for one in self._moving if one[0].flight in taken)
        there = Counter(copy.flight for copy, _ in self._moving)
        for lane in self.lanes.values():
            lane.waiting = deque(copy for copy in lane.waiting if copy.flight in taken)
            there.update(copy.flight for copy in lane.waiting)
        self._voids.keep(taken)
        there.update(flight for flight in taken if flight in self._voids)
        for flight in taken:
            if flight.copies > there[flight]:
                flight.good, flight.cause, self._lost = 0, Cause.LOST, True
            flight.copies = there[flight]
        ended = [flight for flight in self._flights.values() if not flight.copies]
        self._report(ended)
        self._unsure = False

    def told(self, outcomes: list[Outcome]) -> None:
        """Notes that these outcomes of the last poll have come to the yard."""
        if not outcomes:
            return
        past = self._past
        past |= {one.flight: one for one in outcomes if one.yard == (self._yard or 0)}
        if len(past) > 2 * _PAST:
            lost = {n: one for n, one in past.items() if one.cause is Cause.LOST}
            self._past = lost | dict(list(past.items())[-_PAST:])
        # Only now: a flight that is nowhere counts as dead.
        del self._ended[: len(outcomes)]

    def reconcile(self, asked: Unreported) -> list[Outcome]:
        """Returns the state of flights, as `Crane.reconcile`."""
        yard = asked.yard
        if self._yard is None and yard not in self._former and not self.closed:
            self.meet(yard)
        if yard != self._yard:
            # Nothing of another yard is here. If that has been followed, or the crane is closed,
            # nothing will be carried out either.
            gone = asked.flights if yard in self._former or self.closed else []
            return [self._dead(flight, yard) for flight in gone]
        known = self.known()
        said = []
        for flight in asked.flights:
            if flight not in known:
                if flight not in self._past:
                    self._refused.add(flight)
                said.append(self._past.get(flight) or self._dead(flight, yard))
        return said

    def _dead(self, flight: int, yard: int) -> Outcome:
        return Outcome(flight, self.rank, 0, Cause.DEAD, yard, self.group)

    def go_on(self, lanes: list[Lane], kind: type) -> bool:
        """Starts what waits; returns whether all under way in these lanes has such a copier."""
        if self._unsure:
            self._mend()
        self._unsure = True
        with self._turn():
            self._start()
        self._unsure = False
        alone = any(
            copy.lane in lanes and not isinstance(copy.lane.copier, kind)
            for copy, _ in self._moving
        )
        return not (alone or self._lost or any(lane.waiting for lane in lanes))

    def reset(self) -> None:
        """Ends all flights as dead, as `Crane.reset`."""
        for copier in self.copiers:
            copier.reset()
        if self._unsure:
            self._mend()
        self._unsure = True
        for flight in self._flights.values():
            flight.good, flight.cause, flight.copies = 0, Cause.DEAD, 0
        for lane in self.lanes.values():
            lane.waiting.clear()
        self._moving.clear()
        self._voids.clear()
        # Nothing writes any more, on a lost device either.
        self._past = {number: dead(one) for number, one in self._past.items()}
        self._ended = list(map(dead, self._ended))
        self._report(list(self._flights.values()))
        self._unsure = self._used = self._lost = False

    def close(self) -> None:
        """Ends the copiers, then frees the tiers, as `Crane.close`."""
        self.closed = True
        failed: Exception | None = None
        # Where it is interrupted, the next call goes on with what is open still.
        while self._open:
            try:
                self._open[0].close()
            except Exception as error:
                if broke_in(error):
                    raise
                # It leaves nothing else open, and is raised.
                failed = failed or error
            del self._open[0]
        if self._unsure:
            self._mend()
        self._unsure = True
        for lane in self.lanes.values():
            while lane.waiting:
                self._land(lane.waiting[0], Landed(0, Cause.DEAD))
                lane.waiting.popleft()
        for flight in [one for one in self._flights.values() if one in self._voids]:
            flight.good, flight.cause = 0, Cause.DEAD
            self._report([flight])
            self._voids.remove(flight)
        self._unsure = False
        if failed is not None:
            raise failed

    def drop(self) -> bool:
        """Closes the rest for a finalizer, which may run in any thread and never blocks.

        Returns:
            Whether anything was, as where a close was interrupted.
        """
        self.closed = True
        for one in self._open:
            end = getattr(one, "drop", one.close)
            with suppress(Exception):
                end()
        return bool(self._open)

    def measure(self, clock: Clock) -> None:
        """Counts from now on how long flights take, as `Crane.measure`."""
        if self._watched is None:
            self._watched = _CopyWatch(self.lanes, self._block_bytes, clock)

    def times(self) -> dict[Pair, Copied]:
        """Returns how long flights took; empty without `measure`. Any thread may ask."""
        return {} if self._watched is None else dict(self._watched.read())

    def _turn(self) -> AbstractContextManager[object]:
        """Lets calls of the copiers, until its end, share what they ask of a driver."""
        if not self._turning:
            return _APART
        with ExitStack() as turns:
            for copier in self._turning:
                turns.enter_context(copier.turn())
            return turns.pop_all()

    def _copies(self, plan: Plan, flight: Flight) -> list[Copy]:
        """Returns what copiers have to do for a plan; nothing for one that voids records."""
        sources, destinations = plan.sources, plan.destinations
        source = self._tier(plan.flight, plan.source_tier, sources)
        destination = self._tier(plan.flight, plan.destination_tier, destinations)
        if is_void(plan):
            return []
        lane = self.lanes.get((source.name, destination.name))
        if lane is None:
            raise Unsupported(f"no copies from {source.name} to {destination.name} here")
        keys, parents = plan.keys, plan.parents
        if keys is not None and not isinstance(lane.copier, KeyedCopier):
            raise Misuse(
                f"flight {plan.flight} carries keys, and {type(lane.copier).__name__} has no "
                "start_keyed: give the Crane a KeyedCopier, or the yard no keyed tiers"
            )
        return lane.copies(flight, sources, destinations, keys, parents)

    def _tier(self, flight: int, name: str, slots: Slots) -> Tier:
        """Returns the tier of that name, if it has these slots."""
        tier = self._tiers.get(name)
        if tier is None:
            raise Misuse(f"flight {flight}: there is no {name} tier on rank {self.rank}")
        if len(slots) and slots.max() >= tier.blocks:
            raise Misuse(
                f"flight {flight}: {name} slot {slots.max()}, but the {name} tier of rank "
                f"{self.rank} has slots 0 to {tier.blocks - 1}; the yard must open with the "
                "sizes that the cranes have agreed on"
            )
        return tier

    def _start(self) -> None:
        """Starts waiting copies, the oldest first, until no lane's copier takes more."""
        # A close that was interrupted goes on at its next call, and begins nothing meanwhile.
        lanes = [lane for lane in self.lanes.values() if lane.waiting and not self.closed]
        while lanes:
            lane = min(lanes, key=lambda one: one.waiting[0].flight.order)
            if not self._begin(lane) or not lane.waiting:
                lanes.remove(lane)

    def _begin(self, lane: Lane) -> bool:
        """Starts the oldest copy of a lane; returns whether it waits no more."""
        copy = lane.waiting.popleft()
        if self._voids.bars(copy):
            self._land(copy, Landed(0, Cause.FAILED))
            return True
        try:
            receipt = lane.begin(copy)
        except BaseException as error:
            # What broke into the copier may have come when it had the copy already.
            foreign = broke_in(error)
            self._land(copy, Landed(0, Cause.LOST if foreign else Cause.FAILED))
            if foreign and not isinstance(error, Reentry):
                raise
            _log.warning("a copy of %d blocks was refused: %r", len(copy.sources), error)
            return True
        if receipt is None:
            lane.waiting.appendleft(copy)
            return False
        self._ends = None
        self._moving.append((copy, receipt))
        return True

    def _land(self, copy: Copy, landed: Landed) -> None:
        flight = copy.flight
        good = landed.good
        if copy.which is not None:
            good = int(copy.which[good]) if good < len(copy.which) else flight.blocks
        if Cause.LOST in {landed.cause, flight.cause}:
            flight.good, flight.cause, self._lost = 0, Cause.LOST, True
        elif good < flight.good:
            flight.good, flight.cause = good, landed.cause or Cause.FAILED
            if self.closed and flight.cause is Cause.FAILED:
                flight.cause = Cause.DEAD
        elif good == flight.good < flight.blocks and landed.cause is Cause.CORRUPT:
            flight.cause = Cause.CORRUPT
        flight.copies -= 1
        if not flight.copies:
            self._report([flight])

    def _report(self, flights: Iterable[Flight]) -> None:
        for flight in flights:
            yard = self._yard or 0
            number, good, cause = flight.number, flight.good, flight.cause
            self._ended.append(Outcome(number, self.rank, good, cause, yard, self.group))
            del self._flights[number]
            self.counts["failed"] += cause is not None
            self.counts["blocks"] += good
            if self._watched is not None:
                self._watched.reported(flight)
