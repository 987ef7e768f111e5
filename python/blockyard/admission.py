"""Who begins in the next step: first come, first served, the first overtaken seldom."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from blockyard._core import ForeignLease, Lease, Misuse, NoRoom, Soon, TooLarge
from blockyard.cache import KVCache
from blockyard.line import Line
from blockyard.request import Request, State
from blockyard.reserve import Reserve
from blockyard.seats import Seat, Seats

__all__ = ["Admission", "Admitted"]

_KEY = 32
"""Bytes of a key."""


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
    lack: int
    """Blocks more with which one of those that were refused would fit."""


class Admission:
    """The way from the line into the seats.

    Args:
        cache: Where they begin.
        seats: Where they sit.
        line: Where they wait.
        reserve: What they are promised for their growth.
        skip: How often one that does not fit may be overtaken.
        prefetch: How many of the next in line have their prefix brought up.
    """

    def __init__(
        self, cache: KVCache, seats: Seats, line: Line, reserve: Reserve, skip: int, prefetch: int
    ) -> None:
        self._cache = cache
        self._seats = seats
        self._line = line
        self._reserve = reserve
        self._skip = skip
        self._prefetch = prefetch
        self._brought_up = 0
        self._refused: tuple[tuple[int, ...], int] | None = None
        self._computing: dict[bytes, list[Request]] = {}

    def admit(self) -> Admitted:
        """T1, T2, T5, T22: begins whoever fits."""
        if not len(self._line) or self._seats.full or self._refused_still():
            return Admitted([], [], [], [], 0)
        admitted = self._admit(lambda tried: chain(self._in_turn(tried), self._by_ticket()))
        again = admitted.soon or not admitted.refused
        self._refused = None if again else (self._standing(), self.spare() + admitted.lack)
        return admitted

    def _refused_still(self) -> bool:
        """Whether nobody in line would fit who did not fit before."""
        if self._refused is None:
            return False
        standing, enough = self._refused
        return standing == self._standing() and self.spare() < enough

    def admit_promised(self) -> Admitted:
        """Begins those alone who have a ticket: what it keeps is of no use to who grows."""
        return self._admit(lambda _: self._by_ticket())

    def _admit(self, turns: Callable[[Admitted], Iterable[Request]]) -> Admitted:
        admitted = Admitted([], [], [], [], 0)
        lacks: list[int] = []
        self._computing = self._prefilling()
        for entry in turns(admitted):
            promised = entry.ticket is not None
            try:
                lease = self._begin(entry)
            except (TooLarge, Misuse) as error:
                # The device was made smaller, or its ticket is not of this cache.
                self.give_back(entry)
                admitted.failed.append((entry, str(error)))
                continue
            except NoRoom as error:
                lacks.append(error.need + error.promised - error.free - error.evictable)
                admitted.refused.append(entry)
                continue
            if lease is None:
                admitted.soon.append(entry)
                continue
            admitted.seats.append(self._seated(entry, lease))
            if admitted.refused and not promised:
                admitted.refused[0].overtaken += 1
        self._line.back(admitted.refused + admitted.soon)
        return admitted._replace(lack=max(min(lacks, default=1), 1))

    def _in_turn(self, tried: Admitted) -> Iterator[Request]:
        """First come, first served; nobody where the first was overtaken enough."""
        refused = tried.refused
        while not self._seats.full and len(refused) + len(tried.soon) <= self._skip:
            if refused and refused[0].overtaken >= self._skip:
                return
            entry = self._line.pop()
            if entry is None:
                return
            yield entry

    def _by_ticket(self) -> Iterator[Request]:
        """Who was promised room waits for nobody else's."""
        for entry in sorted(self._line.promised, key=lambda entry: entry.rank):
            if self._seats.full:
                return
            self._line.take(entry)
            yield entry

    def bring_up(self) -> None:
        """The prefixes of the next in line are copied up ahead of their turn, each once."""
        if not self._prefetch or self._brought_up == self._line.changes:
            return
        self._brought_up = self._line.changes
        for entry in self._line.next(self._prefetch):
            if not entry.prefetched:
                entry.prefetched = True
                with contextlib.suppress(NoRoom):
                    self._cache.promote(entry.keyed(self._cache))

    def give_back(self, entry: Request) -> None:
        """What it was promised, as it never begins."""
        if entry.ticket is not None and entry.ticket.state == "open":
            with contextlib.suppress(ForeignLease):
                self._cache.release(entry.ticket)

    def take_back(self, but: Request | None = None) -> None:
        """Nobody goes on for want of room: the last in line with a ticket waits on without it.

        Else those who were promised parts of the room would wait for one another.

        Args:
            but: Who keeps its own.
        """
        others = [entry for entry in self._line.promised if entry is not but]
        if others:
            last = max(others, key=lambda entry: entry.rank)
            self.give_back(last)
            self._line.promised.discard(last)
            last.ticket = None

    def spare(self) -> int:
        """Device blocks to be had that nobody was promised; less than none after a resize."""
        room = self._cache.room()
        return room.free + room.evictable - room.promised

    def _standing(self) -> tuple[int, ...]:
        """What changes when somebody comes or goes."""
        return self._seats.bindings, self._seats.left, self._line.changes

    def _begin(self, entry: Request) -> Lease | None:
        """Its lease; None where another computes or loads its prefix now."""
        keys = entry.keyed(self._cache)
        if self.computed_by(entry) is not None:
            return None
        most = entry.most - len(entry.outputs)
        reserve = min(self._reserve.promise(most - 1), most - 1)
        lease = self._cache.begin(keys, reserve=reserve, filling="soon", ticket=entry.ticket)
        return None if isinstance(lease, Soon) else lease

    def _seated(self, entry: Request, lease: Lease) -> Seat:
        entry.overtaken = 0
        entry.ticket = None
        seat = self._seats.bind(entry, lease, len(entry.prompt) + entry.most - 1)
        entry.seat, entry.lease = seat.number, lease
        if lease.state != "loading":
            self._computing.setdefault(entry.chain[:_KEY], []).append(entry)
        return seat

    def _prefilling(self) -> dict[bytes, list[Request]]:
        """Whose prompts are being computed, by their first key."""
        found: dict[bytes, list[Request]] = {}
        for seat in self._seats.bound():
            if seat.request.state is State.PREFILL and seat.request.chain:
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
