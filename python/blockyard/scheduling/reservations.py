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
from blockyard.shared.layout import natural
from blockyard.shared.stats import Stat
from blockyard.yard.cache import KVCache

__all__ = ["Reservation", "ReservationState", "Reservations", "SpentReservation"]


class SpentReservation(Misuse):
    """A ticket was used after its end: it was committed, released, or has expired."""


class ReservationState(StrEnum):
    """Where a promise is; the last three are its ends."""

    OPEN = "open"
    COMMITTED = "committed"
    RELEASED = "released"
    EXPIRED = "expired"


@dataclass(slots=True, eq=False)
class Reservation:
    """Blocks promised to a request that does not run here yet; `Reservations` alone changes it."""

    request: Hashable
    blocks: int
    deadline: int
    """The last tick at which it may be committed."""
    role: Role
    peer: Hashable
    """Who asked: all that it asked for expires when it dies."""
    _ticket: Ticket = field(repr=False)
    state: ReservationState = ReservationState.OPEN

    @property
    def id(self) -> int:
        """Its number, never given out twice: what the other side commits and releases by."""
        return self._ticket.id


class Reservations:
    """Promises made to others, a prefill instance that will send here what it computes, say.

    Time is a tick that is fed from outside, with `expire`. For one thread.

    Args:
        cache: Whose blocks.
        headroom: What must be left for those that run here, by role: give the `Scheduler`'s own
            policy, which learns. By default what it keeps promised already is enough.

    Raises:
        Misuse: There is no such role.
    """

    SCHEMA: Final = (
        Stat("tickets_open", "tickets", "promises that are open"),
        Stat("tickets_blocks", "blocks", "blocks that they keep"),
        Stat("tickets_committed", "tickets", "promises that were committed"),
        Stat("tickets_released", "tickets", "promises that were given back"),
        Stat("tickets_expired", "tickets", "promises that were too late, or whose peer died"),
        Stat("tickets_refused", "tickets", "promises refused for want of room"),
    )

    def __init__(
        self, cache: KVCache, *, headroom: Mapping[Role, HeadroomPolicy] | None = None
    ) -> None:
        self._cache = cache
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

    def open(
        self,
        request: Hashable,
        blocks: int,
        *,
        deadline: int,
        role: Role = "decode",
        peer: Hashable = None,
        running: int = 0,
    ) -> Reservation:
        """Promises blocks, where that leaves enough for those that run here.

        It does if and only if what is free or evictable, and was promised to nobody, is `blocks`
        and the headroom that the role's policy wants for `running` sequences, or more. What the
        cache keeps as headroom already counts as a part of that, and is not kept twice.

        Args:
            request: Its id; one open promise for each.
            blocks: How many, 1 or more.
            deadline: The last tick at which it may be committed.
            role: What this instance is to the request.
            peer: Who asks.
            running: Sequences that run here: `Scheduler.running`.

        Raises:
            Misuse: The request has an open promise, or a value is out of range.
            NoRoom: Try again later.
            TooLarge: The device never holds as many.
        """
        natural("blocks", blocks)
        natural("deadline", deadline, least=self._now)
        natural("running", running, least=0)
        default_headroom(role)
        policy = self._headroom.get(role, NoHeadroom())
        try:
            taken = request in self._requests
        except TypeError as error:
            raise Misuse(f"request {request!r:.60}: an id can be hashed") from error
        if taken:
            raise Misuse(f"request {request!r} has a ticket already: commit or release that one")
        room = self._cache.room()
        headroom = max(policy.headroom(running) - room.headroom, 0)
        try:
            ticket = self._cache.promise(blocks)
            if room.available < blocks + headroom:
                self._cache.release(ticket)
                raise _refusal(room, blocks, headroom)
        except NoRoom:
            self._counts["refused"] += 1
            raise
        promise = Reservation(request, blocks, deadline, role, peer, ticket)
        self._open[promise.id] = self._requests[request] = promise
        return promise

    def commit(self, number: int) -> Ticket:
        """The request comes: the ticket for `Scheduler.add` or `KVCache.begin`.

        Raises:
            SpentTicket: It is not open: it was committed or released, or has expired.
        """
        promise = self._end(number, ReservationState.COMMITTED)
        return promise._ticket  # noqa: SLF001 - its own

    def release(self, number: int) -> None:
        """The request does not come: its blocks are promised no more.

        Raises:
            SpentTicket: It is not open.
        """
        self._cache.release(self._end(number, ReservationState.RELEASED)._ticket)  # noqa: SLF001

    def expire(self, now: int) -> list[Reservation]:
        """Advances the clock to `now`, and releases reservations whose deadline has passed.

        Args:
            now: The tick, agreed over ranks like all that enters here; never less than before.

        Returns:
            What has expired, in the order in which it was promised.

        Raises:
            Misuse: `now` is before an earlier one.
        """
        natural("now", now, least=self._now)
        self._now = now
        return self._expire([one for one in self._open.values() if one.deadline < now])

    def died(self, peer: Hashable) -> list[Reservation]:
        """Who asked is dead: all that is open for it has expired.

        Returns:
            What has expired, in the order in which it was promised.
        """
        return self._expire([one for one in self._open.values() if one.peer == peer])

    def stats(self) -> dict[str, int]:
        """Counters and sizes; `SCHEMA` has units and meanings."""
        return {
            "tickets_open": len(self._open),
            "tickets_blocks": sum(one.blocks for one in self._open.values()),
            **{
                f"tickets_{what}": self._counts[what]
                for what in ("committed", "released", "expired", "refused")
            },
        }

    def _expire(self, promises: list[Reservation]) -> list[Reservation]:
        for promise in promises:
            self._cache.release(self._end(promise.id, ReservationState.EXPIRED)._ticket)  # noqa: SLF001
        return promises

    def _end(self, number: int, state: ReservationState) -> Reservation:
        promise = self._open.pop(number, None)
        if promise is None:
            raise SpentReservation(
                f"ticket {number} is not open: it was committed or released, or has expired; "
                "ask for another"
            )
        del self._requests[promise.request]
        promise.state = state
        self._counts[state] += 1
        return promise


def _refusal(room: Room, blocks: int, headroom: int) -> NoRoom:
    error = NoRoom(
        f"no room on the device: {blocks} blocks are asked for and {headroom} kept for those that "
        f"run, free {room.free}, evictable {room.evictable}, promised {room.promised}"
    )
    error.tier, error.need = "device", blocks + headroom
    error.free, error.evictable, error.promised = room.free, room.evictable, room.promised
    error.available = room.available
    return error
