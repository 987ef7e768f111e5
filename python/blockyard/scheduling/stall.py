"""Detects a stalled loop: which call is missing, and for how long."""

import re
from collections.abc import Callable, Hashable
from contextlib import suppress
from enum import StrEnum
from typing import Final, Literal, NamedTuple, TypeAlias

from blockyard._core import Lease, Misuse
from blockyard._typing import override
from blockyard.scheduling.admission import Admission
from blockyard.scheduling.request import Request
from blockyard.scheduling.shared import Shared
from blockyard.scheduling.unread import Unread, named
from blockyard.shared.log import Limited
from blockyard.shared.timings import checked_clock
from blockyard.yard.flights import PendingCopies, ranks

__all__ = ["Fact", "Lasted", "Rule", "Stalls"]

_STEPS: Final = 64
_SECONDS: Final = 2.0
"""A rule fires when its fact has held for so many steps, and for so many seconds."""
_EVERY: Final = 16
"""Steps between two checks: a step costs next to nothing, and a stall is reported within 96."""
_MINUTE: Final = 60.0
_MOST_UNANSWERED: Final = 1024
"""Steps in flight beyond which no step is scheduled: no engine has so many."""
_ANSWER: Final = "call on_output once for every step, also for one without rows"
_SHOWN: Final = 3
"""Most holders named in a sentence."""
_HANDLE: Final = re.compile(r"\b(lease|parked|ticket) (\d+)\b")
_Below: TypeAlias = Literal["host", "disk"]


class Rule(StrEnum):
    """Stalled conditions, the most certain first."""

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
"""Rules that do not fire while one of these lasts from check to check: they are its effect."""


class Lasted(NamedTuple):
    """How long a fact has held."""

    steps: int
    seconds: float

    @override
    def __str__(self) -> str:
        return f"{self.steps} steps, {self.seconds:.1f} s"


class Fact(NamedTuple):
    """A condition that is normal for a moment, and a stall if it does not change."""

    rule: Rule
    identity: Hashable
    """Equal as long as nothing has changed."""
    message: Callable[[Lasted], str]


class Stalls:
    """Checks the scheduler's parts and the cache, and changes nothing.

    Every 16th step checks, and so does each question, from any thread. A fact that holds no more is
    forgotten.

    Args:
        shared: State that all parts of the scheduler share.
        admission: Which request found no room.
        unread: Which held requests keep others waiting.

    Raises:
        Misuse: The clock does not return seconds.
    """

    def __init__(self, shared: Shared, admission: Admission, unread: Unread) -> None:
        self._cache = cache = shared.cache
        self._queue = shared.queue
        self._moving = shared.moving
        self._seats = shared.seats
        self._batch = shared.batch
        self._admission = admission
        self.unread = unread
        """Which held requests keep others waiting."""
        self._clock = checked_clock(shared.clock)
        self._log = Limited(__name__, _MINUTE, shared.clock)
        self._since: dict[Rule, tuple[Hashable, int, float]] = {}
        """The identity of each fact, and the step and second in which it was first seen so."""
        self._steps = 0
        sizes: dict[_Below, int] = {
            "host": cache.config.host_blocks,
            "disk": cache.config.disk_blocks,
        }
        self._below = [tier for tier, size in sizes.items() if size]
        """The tiers that parked requests are copied down to."""

    def step(self) -> None:
        """Counts a call of `schedule`, and checks now and then."""
        self._steps += 1
        if not self._steps % _EVERY:
            self.stall_messages()

    def stall_messages(self) -> dict[Rule, str]:
        """Returns a sentence for each rule that fires, the most certain first, and logs it."""
        now, step, before = self._clock(), self._steps, self._since
        facts = self._stall_facts()
        since, lasted = dict[Rule, tuple[Hashable, int, float]](), dict[Rule, Lasted]()
        for rule, identity, _ in facts:
            first = before.get(rule)
            if first is None or first[0] != identity:
                first = identity, step, now
            since[rule] = first
            lasted[rule] = Lasted(step - first[1], now - first[2])
        # No lock: where two threads look at once, either is right.
        self._since = since
        causes = {rule for rule, (steps, _) in lasted.items() if steps >= _EVERY}
        found = {
            rule: message(lasted[rule])
            for rule, _, message in facts
            if lasted[rule].steps >= _STEPS
            and lasted[rule].seconds >= _SECONDS
            and not _CAUSES.get(rule, frozenset()) & causes
        }
        for rule, sentence in found.items():
            self._log.warning(f"stalled, {rule}: %s", sentence)
        return found

    def check_answered(self) -> None:
        """Refuses another step if far too many have no output.

        Raises:
            Misuse: They have none; nothing is changed.
        """
        oldest = self._batch.oldest
        if oldest is not None and self._batch.number - oldest.number + 1 >= _MOST_UNANSWERED:
            raise Misuse(
                f"{_MOST_UNANSWERED:,} steps are unanswered, the oldest is step {oldest.number}: "
                f"{_ANSWER}"
            )

    def _stall_facts(self) -> list[Fact]:
        """The facts that hold now, the most certain first; only one if nothing can go on."""
        ended = self._ended()
        if ended is not None:
            return [ended]
        oldest = None
        # Another thread asks, and the step was answered just now.
        with suppress(IndexError):
            oldest = self._batch.oldest
        unanswered = self._batch.number + 1 if oldest is None else oldest.number
        pending = self._cache.pending_copies()
        facts = (
            self._unanswered(unanswered),
            self._unacked(unanswered),
            self._undispatched(pending),
            self._unpolled(pending),
            self._unreported(pending),
            self._unread_streams(),
            self._no_room(),
        )
        return [fact for fact in facts if fact is not None]

    def _ended(self) -> Fact | None:
        dead = self._batch.dead
        if self._cache.closed:
            return Fact(
                Rule.DEAD,
                None,
                lambda lasted: (
                    f"The cache is closed ({lasted}): make another one, and a scheduler on it"
                ),
            )
        if dead is None:
            return None
        return Fact(
            Rule.DEAD,
            (dead, self._batch.number),
            lambda lasted: (
                f"The engine failed ({dead}) and was not reset ({lasted}): reset it, then call "
                "reset"
            ),
        )

    def _unanswered(self, first: int) -> Fact | None:
        """Steps from `first` on are in flight."""
        count = self._batch.number + 1 - first
        if count <= 0:
            return None
        return Fact(
            Rule.UNANSWERED,
            first,
            lambda lasted: (
                f"{count} steps are unanswered, the oldest is step {first}, for "
                f"{lasted.seconds:.1f} s: {_ANSWER}"
            ),
        )

    def _unacked(self, unanswered: int) -> Fact | None:
        """The oldest stop whose step is answered, and whose ack has not come."""
        if not self._seats.stopping:
            return None
        stops = [seat for seat in self._seats.stopping_seats() if 0 < seat.stopped_at < unanswered]
        if not stops:
            return None
        seat = min(stops, key=lambda seat: seat.stopped_at)
        others = len(stops) - 1
        more = f"; {_those(others, 'more seat', 'wait')}, too" if others else ""
        since = f"Seat {seat.number} waits since step {seat.stopped_at}"
        whose = f"for the ack of request {seat.request.id!r}{more}"
        return Fact(
            Rule.NO_ACK,
            (seat.number, seat.epoch),
            lambda lasted: (
                f"{since} ({lasted}) {whose}: "
                'call on_acks, or pass stops="in-order"; if acks were lost, call reconcile'
            ),
        )

    def _undispatched(self, pending: PendingCopies) -> Fact | None:
        """Plans that were made, or copies ahead that are due, while `dispatch` is not called."""
        if pending.undispatched is not None:
            plans, flight = pending.undispatched
            return Fact(
                Rule.UNDISPATCHED,
                ("plan", flight),
                lambda lasted: (
                    f"{_those(plans, 'plan', 'wait')} to be dispatched, the oldest is flight "
                    f"{flight} ({lasted}): call cache.step() (or dispatch) once per turn"
                ),
            )
        if pending.ahead is None:
            return None
        return Fact(
            Rule.UNDISPATCHED,
            ("ahead", pending.ahead),
            lambda lasted: (
                f"Dispatch was not called for {lasted}, so that nothing is copied to the host "
                "ahead of need: call cache.step() (or dispatch) once per turn"
            ),
        )

    def _unpolled(self, pending: PendingCopies) -> Fact | None:
        """The crane of this process has flights, and is not polled."""
        flights, polls = pending.unpolled
        if not flights:
            return None
        return Fact(
            Rule.NOT_POLLED,
            polls,
            lambda lasted: (
                f"{_those(flights, 'flight', 'wait')} on rank 0, which was not polled for "
                f"{lasted}: call commit(crane.poll()) once per turn (cache.step() does)"
            ),
        )

    def _unreported(self, pending: PendingCopies) -> Fact | None:
        """The oldest flight that was dispatched, and not reported by every rank."""
        waiting = pending.unreported
        if waiting is None:
            return None

        def message(lasted: Lasted) -> str:
            spoken = waiting.spoken
            have = "has" if len(spoken) == 1 else "have"
            heard = f"; {ranks(spoken)} {have} reported" if spoken else ""
            more = f"; {_those(waiting.others, 'newer flight', 'wait')}, too" * bool(waiting.others)
            held = ", ".join(
                f"{blocks} idle {'block' if blocks == 1 else 'blocks'} of the {tier}"
                for tier, (blocks, _) in self._cache.idle_in_flight().items()
            )
            held = f"; copies hold {held} until flights end" if held else ""
            return (
                f"Flight {waiting.flight} waits for {ranks(waiting.missing)} "
                f"({lasted}){heard}{more}{held}: call commit(crane.poll()) with "
                "the outcomes of every rank's crane, once per turn (cache.step() does); if a "
                "report may be lost, commit(crane.reconcile(cache.unreported(rank)))"
            )

        return Fact(Rule.NO_OUTCOME, waiting.flight, message)

    def _unread_streams(self) -> Fact | None:
        """A request waits for seats or blocks of held ones, which cannot leave."""
        waiting, keepers = self.unread.waiting, self.unread.keepers()
        if waiting is None:
            return None
        return Fact(
            Rule.UNREAD,
            tuple(entry.order for entry in (waiting, *keepers)),
            lambda lasted: (
                f"Request {waiting.id!r} waits ({lasted}) for held requests, whose tokens are not "
                f"read: {named(keepers)}. Read their tokens and call resume_decoding, or abort "
                f"them; one fails after {self.unread.most:,} steps in which others wait"
            ),
        )

    def _no_room(self) -> Fact | None:
        """A request was refused.

        The identity changes when a row computes, anything ends, or a parked block has come down.
        """
        refused = self._admission.refused if len(self._queue) else None
        if refused is None:
            return self._too_large()
        if self._moving:
            # What moves gives its blocks back when its patience is over.
            return None
        room, seats = self._cache.room(), self._seats
        # A seat that is given out begins its steps anew: their sum alone might stay the same.
        ran = seats.arrivals, seats.departures, int(seats.steps_run.sum())
        owed = (self._cache.room(tier).promised for tier in self._below)
        moved = *ran, room.free, room.available, *owed
        return Fact(
            Rule.NO_ROOM,
            moved,
            lambda lasted: (
                f"Request {refused.id!r} finds no room ({lasted}), no row computes and no request "
                f"ends. {self._holders()}"
            ),
        )

    def _too_large(self) -> Fact | None:
        """The device was made smaller than a request that was accepted."""
        limit, ran = self._cache.limit(), 0
        waiting = sorted(self._queue.too_large, key=lambda entry: entry.rank)
        if not waiting and limit < self._admission.largest:
            # Rows that find no room to grow, and can neither be parked nor computed again.
            rows = [seat for seat in self._seats.bound() if not seat.request.held]
            waiting = [seat.request for seat in rows if seat.limit > limit]
            ran = int(self._seats.steps_run.sum())
        if not waiting:
            return None
        most = max(entry.new.max_blocks(self._cache.block_size) for entry in waiting)
        return Fact(
            Rule.NO_ROOM,
            (limit, ran, *(entry.order for entry in waiting)),
            lambda lasted: (
                f"Requests wait ({lasted}) until the device is larger: it has {limit} blocks since "
                f"it was made smaller, and {named(waiting)} may need up to {most}: resize it, or "
                "abort them"
            ),
        )

    def with_names(self, sentence: str) -> str:
        """Names the request beside the number of each lease, parked sequence and ticket."""
        if not (asked := {(kind, int(number)) for kind, number in _HANDLE.findall(sentence)}):
            return sentence
        mine = {("lease", seat.lease.id): seat.request.id for seat in self._seats.bound()}
        mine |= {("lease", lease.id): entry.id for entry, lease in self._left()}
        if not asked <= mine.keys():
            for entry in (*self._queue.parked, *self._queue.promised, *self._moving):
                # Another thread may ask, and it begins just now.
                parked, ticket = entry.parked, entry.waiting.ticket
                if parked is not None:
                    mine["parked", parked.handle.id] = entry.id
                if ticket is not None:
                    mine["ticket", ticket.id] = entry.id

        def name(found: re.Match[str]) -> str:
            key = found[1], int(found[2])
            return f"request {mine[key]!r} ({found[0]})" if key in mine else found[0]

        return _HANDLE.sub(name, sentence)

    def _left(self) -> list[tuple[Request, Lease]]:
        """The leases of requests that move to another engine, and have no seat any more."""
        moving = list(self._moving.items())
        return [(entry, move.lease) for entry, move in moving if move.lease is not None]

    def _holders(self) -> str:
        """Names the holders of blocks, and the calls that release them."""
        holders = self._cache.holders()
        most = ", ".join(
            f"{kind} {number}: {held} blocks and {promised} promised"
            for kind, number, held, promised, *_ in holders[:_SHOWN]
        )
        most = self.with_names(most)
        lines = [f"Holders of blocks: {len(holders)}" + (f" ({most})." if most else ".")]
        mine = {seat.lease.id for seat in self._seats.bound()}
        mine |= {lease.id for _, lease in self._left()}
        lost = [
            str(number) for kind, number, *_ in holders if kind == "lease" and number not in mine
        ]
        if lost:
            lines.append(f"A lease that no request has: {', '.join(lost)}; call finish with it.")
        tickets = [str(number) for kind, number, *_ in holders if kind == "ticket"]
        if tickets:
            lines.append(f"Promised to tickets: {', '.join(tickets)}; call release, or begin.")
        holds = [str(number) for kind, number, *_ in holders if kind == "hold"]
        if holds:
            lines.append(f"Held for other engines: {', '.join(holds)}; release them.")
        if self._batch.held:
            ids = named(seat.request for seat in self._batch.held)
            lines.append(f"Held requests, whose tokens are not read: {ids}; call resume_decoding.")
        quarantined = self._cache.stats()["device_quarantined"]
        if quarantined:
            lines.append(f"{quarantined} slots are quarantined: report their copies, or reset.")
        return " ".join(lines)


def _those(count: int, noun: str, verb: str) -> str:
    """Things that do something, one or several: "1 plan waits", "2 plans wait"."""
    return f"{count} {noun} {verb}s" if count == 1 else f"{count} {noun}s {verb}"
