"""Why a loop stands still: which call is missing, and for how long."""

import re
from contextlib import suppress
from typing import Final, Literal, TypeAlias

from blockyard._core import Misuse
from blockyard.scheduling.admission import Admission
from blockyard.scheduling.batch import Batch, Seats
from blockyard.scheduling.lifecycle import Lifecycle
from blockyard.scheduling.queue import WaitingQueue
from blockyard.scheduling.unread import Unread, named
from blockyard.shared.stall import Clock, Fact, Rule, StallWatch, lasting, those
from blockyard.yard.cache import KVCache

__all__ = ["Stalls"]

_MOST_UNANSWERED: Final = 1024
"""Steps in flight beyond which no step is scheduled: no engine has so many."""
_ANSWER: Final = "call on_output once for every step, also for one without rows"
_SHOWN: Final = 3
"""Holders of blocks that a sentence names."""
_Below: TypeAlias = Literal["host", "disk"]


class Stalls:
    """Looks at the scheduler's parts and at the cache, and changes nothing.

    Args:
        cache: The cache, which knows its plans and flights.
        queue: What waits.
        seats: What runs or stops.
        batch: The steps in flight.
        admission: Which request found no room.
        unread: Which held requests keep others waiting.
        lifecycle: Whether the engine lives.
        clock: Seconds.
    """

    def __init__(
        self,
        cache: KVCache,
        queue: WaitingQueue,
        seats: Seats,
        batch: Batch,
        admission: Admission,
        unread: Unread,
        lifecycle: Lifecycle,
        clock: Clock,
    ) -> None:
        self._cache = cache
        self._queue = queue
        self._seats = seats
        self._batch = batch
        self._admission = admission
        self.unread = unread
        """Which held requests keep others waiting."""
        self._lifecycle = lifecycle
        self._watch = StallWatch(__name__, clock)
        sizes: dict[_Below, int] = {
            "host": cache.config.host_blocks,
            "disk": cache.config.disk_blocks,
        }
        self._below = [tier for tier, size in sizes.items() if size]
        """Where parked requests go down to."""

    def step(self) -> None:
        """Counts a call of `schedule`, and looks now and then."""
        self._watch.step(self._facts)

    def stalled(self) -> tuple[str, ...]:
        """What stands still, in sentences, the surest first. Any thread may ask."""
        return self._watch.stalled(self._facts)

    def spoken(self) -> dict[Rule, str]:
        """The same, each by its rule."""
        return self._watch.spoken(self._facts)

    @property
    def refuses(self) -> bool:
        """Whether a request was refused room, and has not begun or ended since."""
        return self._admission.refused is not None

    def check_answered(self) -> None:
        """Refuses one step more where far too many are unanswered.

        Raises:
            Misuse: That is so; nothing is changed.
        """
        oldest = self._batch.oldest
        if oldest is not None and self._batch.number - oldest.number + 1 >= _MOST_UNANSWERED:
            raise Misuse(
                f"{_MOST_UNANSWERED:,} steps are unanswered, the oldest is step {oldest.number}: "
                f"{_ANSWER}"
            )

    def _facts(self) -> list[Fact]:
        """What holds now. While nothing can go on for one reason, no other counts."""
        ended = self._ended()
        if ended is not None:
            return [ended]
        oldest = None
        # Another thread asks, and the step was answered just now.
        with suppress(IndexError):
            oldest = self._batch.oldest
        unanswered = self._batch.number + 1 if oldest is None else oldest.number
        facts = [
            self._unanswered(unanswered),
            self._unacked(unanswered),
            self._unread_streams(),
            self._no_room(),
        ]
        return [*(fact for fact in facts if fact is not None), *self._cache.standing()]

    def _ended(self) -> Fact | None:
        if self._cache.closed:
            return Fact(
                Rule.DEAD,
                None,
                lambda *held: (
                    f"The cache is closed ({lasting(*held)}): make another one, and a scheduler "
                    "on it"
                ),
            )
        dead = self._lifecycle.dead
        if dead is None:
            return None
        return Fact(
            Rule.DEAD,
            (dead, self._batch.number),
            lambda *held: (
                f"The engine failed ({dead}) and was not reset ({lasting(*held)}): reset it, then "
                "call reset"
            ),
        )

    def _unanswered(self, first: int) -> Fact | None:
        """Steps from `first` on are in flight."""
        count = self._batch.number + 1 - first
        if count <= 0:
            return None

        def say(_steps: int, seconds: float) -> str:
            return (
                f"{count} steps are unanswered, the oldest is step {first}, for {seconds:.1f} s: "
                f"{_ANSWER}"
            )

        return Fact(Rule.UNANSWERED, first, say)

    def _unacked(self, unanswered: int) -> Fact | None:
        """The oldest stop whose step is answered, and whose ack has not come."""
        if not self._seats.stopping:
            return None
        stops = [seat for seat in self._seats.stopping_seats() if 0 < seat.stopped_at < unanswered]
        if not stops:
            return None
        seat = min(stops, key=lambda seat: seat.stopped_at)
        steps, others = self._batch.number - seat.stopped_at, len(stops) - 1
        more = f"; {those(others, 'more seat', 'wait')}, too" if others else ""

        def say(_steps: int, seconds: float) -> str:
            return (
                f"Seat {seat.number} waits since step {seat.stopped_at} "
                f"({lasting(steps, seconds)}) for the ack of request {seat.request.id!r}{more}: "
                'call on_acks, or say stops="in-order"; where acks are lost, call reconcile'
            )

        return Fact(Rule.NO_ACK, (seat.number, seat.epoch), say)

    def _unread_streams(self) -> Fact | None:
        """A request waits for what held ones keep, which must stay where they are."""
        waiting, keepers = self.unread.waiting, self.unread.keepers()
        if waiting is None:
            return None

        def say(steps: int, seconds: float) -> str:
            return (
                f"Request {waiting.id!r} waits ({lasting(steps, seconds)}) for what requests keep "
                f"that nobody reads: {named(keepers)}. Read their tokens and call unhold, or abort "
                f"them; one fails after {self.unread.most:,} steps in which others wait"
            )

        return Fact(Rule.UNREAD, tuple(entry.order for entry in (waiting, *keepers)), say)

    def _no_room(self) -> Fact | None:
        """A request was refused.

        The identity changes when a row computes, anything ends, or a parked block has come down.
        """
        refused = self._admission.refused if len(self._queue) else None
        if refused is None:
            return self._too_large()
        room, seats = self._cache.room(), self._seats
        # A seat that is given out begins its steps anew: their sum alone might stay the same.
        ran = seats.arrivals, seats.departures, int(seats.steps_run.sum())
        owed = (self._cache.room(tier).promised for tier in self._below)
        moved = *ran, room.free, room.available, *owed

        def say(steps: int, seconds: float) -> str:
            return (
                f"Request {refused.id!r} finds no room ({lasting(steps, seconds)}), no row "
                f"computes and no request ends. {self._holders()}"
            )

        return Fact(Rule.NO_ROOM, moved, say)

    def _too_large(self) -> Fact | None:
        """The device was made smaller than a request that was accepted."""
        limit, ran = self._cache.limit(), 0
        waiting = sorted(self._queue.too_large, key=lambda entry: entry.rank)
        if not waiting:
            # Rows that find no room to grow, and can neither be parked nor computed again.
            rows = [seat.request for seat in self._seats.bound() if not seat.request.held]
            waiting = [entry for entry in rows if entry.limit > limit]
            ran = int(self._seats.steps_run.sum())
        if not waiting:
            return None
        most = max(entry.max_blocks(self._cache.block_size) for entry in waiting)

        def say(steps: int, seconds: float) -> str:
            return (
                f"Requests wait ({lasting(steps, seconds)}) until the device is larger: it has "
                f"{limit} blocks since it was made smaller, and {named(waiting)} may need up to "
                f"{most}: resize it, or abort them"
            )

        return Fact(Rule.NO_ROOM, (limit, ran, *(entry.order for entry in waiting)), say)

    def with_names(self, sentence: str) -> str:
        """Names the request beside the number of each lease, parked sequence and ticket."""
        mine = {("lease", seat.lease.id): seat.request.id for seat in self._seats.bound()}
        for entry in (*self._queue.parked, *self._queue.promised):
            # Another thread may ask, and it begins just now.
            parked, ticket = entry.parked, entry.ticket
            if parked is not None:
                mine["parked", parked.id] = entry.id
            if ticket is not None:
                mine["ticket", ticket.id] = entry.id

        def name(found: re.Match[str]) -> str:
            key = found[1], int(found[2])
            return f"request {mine[key]!r} ({found[0]})" if key in mine else found[0]

        return re.sub(r"\b(lease|parked|ticket) (\d+)\b", name, sentence)

    def _holders(self) -> str:
        """Who holds the blocks, and what can be called to get them back."""
        holders = self._cache.holders()
        most = ", ".join(
            f"{kind} {number}: {held} blocks and {promised} promised"
            for kind, number, held, promised, *_ in holders[:_SHOWN]
        )
        most = self.with_names(most)
        lines = [f"Holders of blocks: {len(holders)}" + (f" ({most})." if most else ".")]
        mine = {seat.lease.id for seat in self._seats.bound()}
        lost = [
            str(number) for kind, number, *_ in holders if kind == "lease" and number not in mine
        ]
        if lost:
            lines.append(f"A lease that no request has: {', '.join(lost)}; call finish with it.")
        tickets = [str(number) for kind, number, *_ in holders if kind == "ticket"]
        if tickets:
            lines.append(f"Promised to tickets: {', '.join(tickets)}; call release, or begin.")
        if self._batch.held:
            ids = named(seat.request for seat in self._batch.held)
            lines.append(f"Held, as nobody reads their tokens: {ids}; call unhold.")
        quarantined = self._cache.stats()["device_quarantined"]
        if quarantined:
            lines.append(f"{quarantined} slots are quarantined: report their copies, or reset.")
        return " ".join(lines)
