"""Who begins in the next step: first come, first served, the first overtaken seldom."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from blockyard._core import Keys, Lease, Misuse, NoRoom, Soon, TooLarge, Unavailable
from blockyard.scheduling.headroom import HeadroomPolicy
from blockyard.scheduling.queue import WaitingQueue
from blockyard.scheduling.request import Request, RequestState
from blockyard.scheduling.safety import on_host
from blockyard.scheduling.seats import Seat, Seats
from blockyard.yard.cache import KVCache
from blockyard.yard.parking import Parking

__all__ = ["Admission", "Admitted"]

_KEY = 32
"""Bytes of a key."""
_ASIDE = 64
"""Most of those who wait for another's prefix that are asked in a step, and as many others."""
_HASHED = 65_536
"""Tokens whose keys are made in a step, or one prompt: 0.4 ms or so."""


class Admitted(NamedTuple):
    """What came of one look at the line."""

    seats: list[Seat]
    """Who has a seat and a lease now: some load first."""
    failed: list[tuple[Request, str]]
    """Who can never begin, and why."""
    refused: list[Request]
    """Who found no room."""
    soon: list[Request]
    """Who waits, as another computes or loads the same prefix now."""
    lacks: list[int]
    """Blocks that each of those who were refused lacks."""


class _Refused(NamedTuple):
    """When nobody in line found room, and with what somebody would."""

    standing: tuple[int, ...]
    asks: bool
    """Whether somebody waits for another's prefix, or for its keys, and not for room."""
    some: int
    """Blocks to be had with which somebody would fit."""
    first: Request
    enough: int
    """Blocks to be had with which the first would."""


class Admission:
    """The way from the line into the seats.

    Args:
        cache: Where they begin.
        seats: Where they sit.
        line: Where they wait.
        reserve: What they are promised for their growth.
        preempt: How parked ones come back.
        skip: How often one that does not fit may be overtaken.
        prefetch: How many of the next in line have their prefix brought up.
    """

    def __init__(
        self,
        cache: KVCache,
        seats: Seats,
        queue: WaitingQueue,
        reserve: HeadroomPolicy,
        parking: Parking,
        skip: int,
        prefetch: int,
    ) -> None:
        self._cache = cache
        self._seats = seats
        self._queue = queue
        self._reserve = reserve
        self._parking = parking
        self._skip = skip
        self._prefetch = prefetch
        self._brought_up = 0
        self._refused: _Refused | None = None
        self._computing: dict[bytes, list[Request]] = {}
        self._hashed = 0
        self._out: list[Request] = []

    def admit(self) -> Admitted:
        """T1, T2, T5, T16, T17, T22: begins whoever fits."""
        if not len(self._queue) or self._seats.full or self._refused_still():
            return Admitted([], [], [], [], [])
        admitted = self._admit(lambda tried: chain(self._in_turn(tried), self._owed(tried)))
        self._refused = None
        if admitted.refused:
            spare, lacks = self.spare(), admitted.lacks
            asks = bool(admitted.soon) or self._hashed >= _HASHED
            some, first = (spare + max(lack, 1) for lack in (min(lacks), lacks[0]))
            self._refused = _Refused(self._standing(), asks, some, admitted.refused[0], first)
        return admitted

    def _refused_still(self) -> bool:
        """Whether nobody in line would fit who did not fit before."""
        refused = self._refused
        return (
            refused is not None
            and not refused.asks
            and refused.standing == self._standing()
            and self.spare() < refused.some
        )

    def lacking(self) -> tuple[Request, int] | None:
        """Who is first of those that found no room, and the blocks that it lacks still.

        T17: to be asked once per step: one that is parked grows older by it, and is looked at again
        when it has waited too long.
        """
        refused = self._refused
        if refused is None or refused.standing != self._standing():
            return None
        entry = refused.first
        entry.refused += 1
        if entry.parked is not None and self._parking.is_old(entry.refused):
            self._refused = None
        return entry, refused.enough - self.spare()

    def admit_promised(self) -> Admitted:
        """Begins those alone who have a ticket: what it keeps is of no use to who grows."""
        return self._admit(lambda tried: self._standing_there(self._queue.promised, tried))

    def _admit(self, turns: Callable[[Admitted], Iterable[tuple[Request, bool]]]) -> Admitted:
        """Begins those whose turn it is; with each, whether it has left its place for that."""
        admitted = Admitted([], [], [], [], [])
        back: list[Request] = []
        aside: list[Request] = []
        out = self._out = []
        self._computing = self._prefilling()
        self._hashed = 0
        for entry, popped in turns(admitted):
            promised = entry.ticket is not None
            try:
                lease = self._begin(entry)
            except (TooLarge, Misuse, Unavailable) as error:
                # The device was made smaller, its ticket was given back, or its KV is lost.
                if not popped:
                    self._queue.take(entry)
                self.give_back(entry)
                admitted.failed.append((entry, str(error)))
                continue
            except NoRoom as error:
                admitted.refused.append(entry)
                lack = error.need - error.available
                admitted.lacks.append(lack)
                back += [entry] * popped
                out.append(entry)
                continue
            if lease is None:
                admitted.soon.append(entry)
                aside += [entry] * popped
                out.append(entry)
                continue
            if not popped:
                self._queue.take(entry)
            admitted.seats.append(self._seated(entry, lease))
            if admitted.refused and not promised:
                admitted.refused[0].overtaken += 1
        self._queue.back(back)
        self._out = []
        self._queue.put_aside(aside)
        return admitted

    def _in_turn(self, tried: Admitted) -> Iterator[tuple[Request, bool]]:
        """First come, first served; nobody where the first was overtaken enough.

        No request overtakes a preempted one: admitting it would force another preemption. A request
        that waits for another one's prefix holds up no other.
        """
        refused = tried.refused
        while not self._seats.full and len(refused) <= self._skip and self._hashed < _HASHED:
            if refused and (refused[0].preempted or refused[0].overtaken >= self._skip):
                return
            if len(tried.soon) >= 2 * _ASIDE:
                return
            entry = self._queue.pop(aside=len(tried.soon) < _ASIDE)
            if entry is None:
                return
            yield entry, True

    def _owed(self, tried: Admitted) -> Iterator[tuple[Request, bool]]:
        """Who was promised room waits for nobody else's; nor does who must come back."""
        yield from self._standing_there(self._queue.promised, tried)
        if self._parking.must_park:
            yield from self._standing_there(self._queue.parked, tried)

    def _standing_there(
        self, entries: Iterable[Request], tried: Admitted
    ) -> Iterator[tuple[Request, bool]]:
        most = len(tried.refused) + self._skip
        for entry in sorted(entries, key=lambda entry: entry.rank):
            if self._seats.full or len(tried.refused) > most:
                return
            yield entry, False

    def bring_up(self) -> None:
        """The prefixes of the next in line are copied up ahead of their turn, each once."""
        if not self._prefetch or self._brought_up == self._queue.changes:
            return
        self._brought_up = self._queue.changes
        for entry in self._queue.next(self._prefetch):
            if entry.prefetched or entry.parked is not None:
                continue
            with contextlib.suppress(NoRoom):
                self._cache.promote(self._keys(entry))
                entry.prefetched = True
            if self._hashed >= _HASHED:
                self._brought_up = -1
                return

    def give_back(self, entry: Request) -> None:
        """What it was promised and what was kept of it, as it never begins."""
        if entry.parked is not None:
            self._cache.abandon(entry.parked)
            entry.parked = None
        if entry.ticket is not None and entry.ticket.state == "open":
            self._cache.release(entry.ticket)

    def take_back(self, but: Request | None = None) -> bool:
        """Nobody goes on for want of room: the last in line with a ticket waits on without it.

        Else those who were promised parts of the room would wait for one another.

        Args:
            but: Who keeps its own.

        Returns:
            Whether somebody had one.
        """
        others = [entry for entry in self._queue.promised if entry is not but]
        if others:
            last = max(others, key=lambda entry: entry.rank)
            self.give_back(last)
            self._queue.promised.discard(last)
            last.ticket = None
            self._refused = None
        return bool(others)

    def spare(self) -> int:
        """Device blocks to be had that nobody was promised; less than none after a resize."""
        return self._cache.room().available

    def growth(self) -> int:
        """Device blocks that those who run may grow by: what is spare, and the headroom."""
        room = self._cache.room()
        return room.available + room.headroom

    def _standing(self) -> tuple[int, ...]:
        """What changes when somebody comes or goes."""
        return self._seats.left, self._queue.changes

    def _begin(self, entry: Request) -> Lease | None:
        """Its lease; None where another computes or loads its prefix now."""
        if entry.parked is not None and self._parking.given_up(entry.parked, entry.refused):
            if self._parking.must_park:
                raise Unavailable("kv_lost: what was kept of it is gone")
            self._cache.abandon(entry.parked)
            entry.again()
        most = entry.max_tokens - len(entry.outputs)
        reserve = min(self._reserve.reserve(most - 1), most - 1)
        if entry.parked is not None:
            lease = self._parking.resume(entry.parked, reserve=reserve)
            return None if isinstance(lease, Soon) else lease
        keys = self._keys(entry)
        if self.computed_by(entry) is not None:
            return None
        if self._parking.must_park:
            self._check_safe(entry)
        load = self._parking.loads(entry.unloaded)
        lease = self._cache.begin(
            keys, reserve=reserve, load=load, filling="soon", ticket=entry.ticket
        )
        return None if isinstance(lease, Soon) else lease

    def _keys(self, entry: Request) -> Keys:
        if entry.keys is None:
            self._hashed += len(entry.prompt) + len(entry.outputs)
        return entry.keyed(self._cache)

    def _check_safe(self, entry: Request) -> None:
        """Where who is preempted must be parked: `safety` says when all but one can be.

        Raises:
            NoRoom: Some would stand in each other's way.
        """
        # Those who were refused in this step, or wait for a copy, have left their places, and keep
        # what they had.
        running, stopping = self._seats.requests()
        parked = self._queue.parked.union(one for one in self._out if one.parked is not None)
        kept = [*stopping, *parked]
        need, host = on_host(self._cache, [*running, entry], kept), self._cache.limit("host")
        if need > host:
            error = NoRoom(f"no room on the host to park {need} blocks: it has {host}")
            error.tier, error.need, error.free = "host", need, host
            error.evictable, error.promised, error.available = 0, 0, host
            raise error

    def _seated(self, entry: Request, lease: Lease) -> Seat:
        entry.overtaken = 0
        entry.ticket = None
        entry.resumes = entry.resumes + 1 if entry.parked is not None else 0
        entry.parked = None
        seat = self._seats.bind(entry, lease, len(entry.prompt) + entry.max_tokens - 1)
        entry.seat, entry.lease = seat.number, lease
        if lease.state != "loading" and entry.chain:
            self._computing.setdefault(entry.chain[:_KEY], []).append(entry)
        return seat

    def _prefilling(self) -> dict[bytes, list[Request]]:
        """Whose prompts are being computed, by their first key."""
        found: dict[bytes, list[Request]] = {}
        for seat in self._seats.bound():
            if seat.request.state is RequestState.PREFILL and seat.request.chain:
                found.setdefault(seat.request.chain[:_KEY], []).append(seat.request)
        return found

    def waits_for(self, entry: Request) -> Request | None:
        """Asked between steps: as `computed_by`."""
        self._computing = self._prefilling()
        return self.computed_by(entry)

    def computed_by(self, entry: Request) -> Request | None:
        """Who computes more of its prompt just now than can be found: it waits for that."""
        others = self._computing.get(entry.chain[:_KEY]) if entry.chain else None
        if not others:
            return None
        probe = self._cache.probe(entry.keyed(self._cache))
        found = (probe.device + probe.host + probe.disk + 1) * _KEY
        # Keys are chained: where one is the same, so are all before it.
        mine = entry.chain[found - _KEY : found]
        return next(
            (one for one in others if mine and one.chain[found - _KEY : found] == mine), None
        )
