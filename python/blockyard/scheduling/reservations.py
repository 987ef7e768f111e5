"""Reservations of device blocks for another instance, until it commits, releases or times out."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from blockyard._core import Misuse, NoRoom, Room, Ticket
from blockyard.scheduling.headroom import (
    HeadroomPolicy,
    NoHeadroom,
    Role,
    checked_headroom,
    default_headroom,
)
from blockyard.shared.owner import Owner, owned
from blockyard.shared.single import Single
from blockyard.shared.stats import Stat
from blockyard.shared.validate import integer
from blockyard.yard.cache import KVCache

__all__ = ["Reservation", "ReservationState", "Reservations", "SpentReservation"]


class SpentReservation(Misuse):
    """A reservation was used after its end: it was committed, released, or has expired."""


class ReservationState(StrEnum):
    """Where a reservation is; the last three are its ends."""

    OPEN = "open"
    COMMITTED = "committed"
    RELEASED = "released"
    EXPIRED = "expired"


@dataclass(slots=True, eq=False)
class Reservation:
    """Blocks kept for a request that does not run here yet; `Reservations` alone changes it."""

    request: Hashable
    blocks: int
    deadline: int
    """The last tick at which it may be committed."""
    role: Role
    peer: Hashable
    """The instance that asked: all its reservations expire when it dies."""
    _ticket: Ticket = field(repr=False)
    state: ReservationState = ReservationState.OPEN

    @property
    def id(self) -> int:
        """Its number, used only once: the other side commits and releases by it."""
        return self._ticket.id


class Reservations(Single):
    """Reservations for other engines, such as a prefill engine that will send its KV here.

    Time is a tick that `expire` is given from outside. All of it is for one thread at a time: a
    call that comes during another one is refused.

    Args:
        cache: The cache whose blocks are reserved.
        headroom: Policies, by role, for the room left to sequences that run here: give the
            `Scheduler`'s own policy, which learns. By default its headroom is enough.

    Raises:
        Misuse: There is no such role.
    """

    SCHEMA: Final = (
        Stat(
            "tickets_open", "tickets", "gauge", "open_reservations", "open reservations of blocks"
        ),
        Stat(
            "tickets_blocks",
            "blocks",
            "gauge",
            "reserved_blocks",
            "blocks that open reservations hold",
        ),
        Stat(
            "tickets_committed",
            "tickets",
            "counter",
            "reservations{event=committed}",
            "reservations that were committed",
        ),
        Stat(
            "tickets_released",
            "tickets",
            "counter",
            "reservations{event=released}",
            "reservations that were released",
        ),
        Stat(
            "tickets_expired",
            "tickets",
            "counter",
            "reservations{event=expired}",
            "reservations that passed their deadline, or whose peer died",
        ),
        Stat(
            "tickets_refused",
            "tickets",
            "counter",
            "reservations{event=refused}",
            "reservations that were refused because there was no room",
        ),
    )
    """Name, unit, kind, metric and meaning of each number in `stats`."""

    def __init__(
        self, cache: KVCache, *, headroom: Mapping[Role, HeadroomPolicy] | None = None
    ) -> None:
        self._cache = cache
        self._owner = Owner()
        self._headroom: dict[Role, HeadroomPolicy] = {}
        if headroom is not None and not isinstance(headroom, Mapping):
            raise Misuse(f"headroom = {headroom!r:.60}: must map roles to policies")
        for role, policy in (headroom or {}).items():
            default_headroom(role)
            self._headroom[role] = checked_headroom(f"headroom[{role!r}]", policy)
        self._now = 0
        self._open: dict[int, Reservation] = {}
        self._requests: dict[Hashable, Reservation] = {}
        self._counts = dict.fromkeys((*ReservationState, "refused"), 0)

    @owned
    def open(  # noqa: PLR0913 - keywords
        self,
        request: Hashable,
        blocks: int,
        *,
        deadline: int,
        role: Role = "decode",
        peer: Hashable = None,
        running: int = 0,
        growth: int | None = None,
    ) -> Reservation:
        """Reserves blocks, if that leaves enough for the sequences that run here.

        The free or evictable blocks that are not promised must be at least `blocks` plus the
        headroom that the role's policy wants for `running` sequences. Headroom that the cache keeps
        already is part of that, and not kept twice.

        Args:
            request: Its id; each has at most one open reservation.
            blocks: How many blocks, 1 or more.
            deadline: The last tick at which it may be committed.
            role: The phases that this instance computes of the request.
            peer: The instance that asks.
            running: Sequences that run here: `Scheduler.running`.
            growth: Blocks that they can still need: `Scheduler.growth`. No more is kept for them by
                a policy that is `capped`. None if unknown.

        Raises:
            Misuse: The request has an open reservation, or a value is out of range.
            NoRoom: There is too little room now: try again later.
            TooLarge: The device never holds as many.
        """
        blocks = integer("blocks", blocks)
        deadline = integer("deadline", deadline, least=self._now)
        running = integer("running", running, least=0)
        if growth is not None:
            growth = integer("growth", growth, least=0)
        default_headroom(role)
        policy = self._headroom.get(role, NoHeadroom())
        try:
            taken = request in self._requests
        except TypeError as error:
            raise Misuse(f"request {request!r:.60}: must be an id that can be hashed") from error
        if taken:
            raise Misuse(
                f"request {request!r} has a reservation already: commit or release that one"
            )
        room = self._cache.room()
        wanted = policy.headroom(running)
        if growth is not None and getattr(policy, "capped", False) is True:
            wanted = min(wanted, growth)
        headroom = max(wanted - room.headroom, 0)
        try:
            ticket = self._cache.promise(blocks)
            if room.available < blocks + headroom:
                self._cache.release(ticket)
                raise _refusal(room, blocks, headroom)
        except NoRoom:
            self._counts["refused"] += 1
            raise
        reservation = Reservation(request, blocks, deadline, role, peer, ticket)
        self._open[reservation.id] = self._requests[request] = reservation
        return reservation

    @owned
    def commit(self, number: int) -> Ticket:
        """Ends a reservation as the request comes: returns the ticket for `Scheduler.add`.

        Raises:
            SpentReservation: It is not open: it was committed or released, or has expired.
        """
        reservation = self._end(number, ReservationState.COMMITTED)
        return reservation._ticket  # noqa: SLF001 - its own

    @owned
    def release(self, number: int) -> None:
        """Ends a reservation as the request does not come, and gives its blocks back.

        Raises:
            SpentReservation: It is not open.
        """
        self._cache.release(self._end(number, ReservationState.RELEASED)._ticket)  # noqa: SLF001

    @owned
    def expire(self, now: int) -> list[Reservation]:
        """Advances the clock to `now`, and releases reservations whose deadline has passed.

        Args:
            now: The tick, which is the same on all ranks, and never less than before.

        Returns:
            The reservations that expired, oldest first.

        Raises:
            Misuse: `now` is before an earlier one.
        """
        now = integer("now", now, least=self._now)
        self._now = now
        return self._expire([open_ for open_ in self._open.values() if open_.deadline < now])

    @owned
    def died(self, peer: Hashable) -> list[Reservation]:
        """Ends all reservations of an instance that is dead.

        Returns:
            The reservations that expired, oldest first.
        """
        return self._expire([open_ for open_ in self._open.values() if open_.peer == peer])

    def stats(self) -> dict[str, int]:
        """Returns counters and sizes; `SCHEMA` has units and meanings."""
        return {
            "tickets_open": len(self._open),
            "tickets_blocks": sum(open_.blocks for open_ in self._open.values()),
            **{
                f"tickets_{what}": self._counts[what]
                for what in ("committed", "released", "expired", "refused")
            },
        }

    def _expire(self, late: list[Reservation]) -> list[Reservation]:
        for reservation in late:
            self._cache.release(self._end(reservation.id, ReservationState.EXPIRED)._ticket)  # noqa: SLF001
        return late

    def _end(self, number: int, state: ReservationState) -> Reservation:
        reservation = self._open.pop(number, None)
        if reservation is None:
            raise SpentReservation(
                f"reservation {number} is not open: it was committed or released, or has expired; "
                "ask for another"
            )
        del self._requests[reservation.request]
        reservation.state = state
        self._counts[state] += 1
        return reservation


def _refusal(room: Room, blocks: int, headroom: int) -> NoRoom:
    error = NoRoom(
        f"no room on the device: {blocks} blocks requested, {headroom} kept for running requests, "
        f"free {room.free}, evictable {room.evictable}, promised {room.promised}"
    )
    error.tier, error.need = "device", blocks + headroom
    error.free, error.evictable, error.promised = room.free, room.evictable, room.promised
    error.available = room.available
    return error
