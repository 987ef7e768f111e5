"""Which requests begin in the next step: first come, first served, with few overtakes."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Final, NamedTuple

from blockyard._core import Keys, Lease, Misuse, NoRoom, Soon, TooLarge, Unavailable
from blockyard.scheduling.request import Request, RequestState
from blockyard.scheduling.seats import Seat
from blockyard.scheduling.shared import Shared
from blockyard.shared.layout import BELOW
from blockyard.yard.cache import KVCache

__all__ = ["Admission", "Admitted", "claims_below", "parked_of"]

_KEY: Final = 32
"""Bytes of a key."""
_ASIDE: Final = 64
"""Most requests asked in a step of those that wait for a prefix, and as many others."""
_ASKED_AHEAD: Final = 16
"""Requests about which stores are asked ahead of their turn."""
_HASHED: Final = 65_536
"""Tokens whose keys are made in a step, or one prompt: 0.4 ms or so."""


class Admitted(NamedTuple):
    """The result of one pass over the queue."""

    seats: list[Seat]
    """Seats of the requests that have a lease now; some load first."""
    failed: list[tuple[Request, str]]
    """Requests that can never begin, and why."""
    refused: list[Request]
    """Requests that found no room."""
    soon: list[Request]
    """Requests whose prefix another request computes or loads now."""
    lacks: list[int]
    """Blocks that each refused request lacks."""
    still: bool = False
    """Whether the pass was skipped: requests refused before would be refused again."""


class _Refused(NamedTuple):
    """A pass over the queue in which no request found room, and the conditions to try again."""

    version: tuple[int, ...]
    """`Admission._version` at the time."""
    asks: bool
    """Whether one waits for another one's prefix or for its keys, or another one's work was given
    up since it was refused."""
    some: int
    """Available blocks with which a request would fit."""
    first: Request
    enough: int
    """Available blocks with which the first would fit."""
    below: bool
    """Whether the first lacks room below the device, to be parked beside the others."""
    needs: list[tuple[Request, int]]
    """Available blocks with which each that lacks some on the device would fit, in their order."""


class Admission:
    """The way from the queue into the seats.

    Args:
        shared: State that all parts of the scheduler share.
    """

    def __init__(self, shared: Shared) -> None:
        self._cache = shared.cache
        self._seats = shared.seats
        self._queue = shared.queue
        self._headroom = shared.headroom
        self._parking = shared.parking
        self._max_overtakes = shared.options.max_overtakes
        self._max_stood_first = shared.options.max_stalled_steps
        self._prefetch_depth = shared.options.prefetch_depth
        self._lookups = shared.lookups
        self._moving = shared.moving
        self._prefetched = 0
        self._waited: tuple[int | None, int, Admitted] | None = None
        """A pass in which all that wait waited for answers, and what would change that."""
        self._refused: _Refused | None = None
        self._computing: dict[bytes, list[Request]] = {}
        self._hashed = 0
        self._gave_up = False
        self._out: list[Request] = []
        self._below: set[Request] = set()
        self.largest = 0
        """The most blocks that the device had when a request began."""

    def admit(self) -> Admitted | None:
        """Begins every request that fits, in turn (T1, T2, T5, T16, T17, T22).

        Returns:
            What came of it; None where no request waits or no seat is free.
        """
        waiting = len(self._queue)
        self._lookups.purge()
        if waiting and self._queue.too_large:
            self._readmit()
        if not waiting or self._seats.full:
            return None
        if self._refused_still():
            return Admitted([], [], [], [], [], still=True)
        # Hundreds may wait for offers, and a step is not to ask each of them.
        answers = self._lookups.changes() if self._lookups.is_out else None
        if self._waited is not None and self._waited[:2] == (answers, self._queue.changes):
            return self._waited[2]
        admitted = self._admit(lambda tried: chain(self._in_turn(tried), self._owed(tried)))
        self._refused = self._waited = None
        waits = not (admitted.seats or admitted.failed or admitted.refused)
        waits = waits and self._hashed < _HASHED
        # One whose prefix another one computes, asked about or not, waits for that.
        if answers is not None and waits and all(map(self._waits_for_answer, admitted.soon)):
            self._waited = answers, self._queue.changes, admitted
        if admitted.refused:
            spare, lacks = self.spare(), admitted.lacks
            asks = bool(admitted.soon) or self._hashed >= _HASHED or self._gave_up
            some, first = (spare + max(lack, 1) for lack in (min(lacks), lacks[0]))
            entry = admitted.refused[0]
            below = entry in self._below
            needs = [
                (other, spare + lack)
                for other, lack in zip(admitted.refused, lacks, strict=True)
                if other not in self._below
            ]
            self._refused = _Refused(self._version(), asks, some, entry, first, below, needs)
        return admitted

    def forget(self) -> None:
        """Forgets earlier passes over the queue, for a reset."""
        self._refused = self._waited = None
        self._prefetched = -1
        self._computing, self._out = {}, []
        self._lookups.clear()
        self._below.clear()

    def is_too_large(self, entry: Request) -> bool:
        """Whether a request may need more than the device has, since it was made smaller."""
        return entry.new.max_blocks(self._cache.block_size) > self._cache.limit()

    def _readmit(self) -> None:
        """Puts requests back in line that the device can hold again."""
        fits = [entry for entry in self._queue.too_large if not self.is_too_large(entry)]
        for entry in sorted(fits, key=lambda entry: entry.rank):
            entry.waiting.too_large = False
            self._queue.push(entry)

    def _refused_still(self) -> bool:
        """Whether all requests that did not fit before still would not."""
        refused = self._refused
        return (
            refused is not None
            and not refused.asks
            and refused.version == self._version()
            and self.spare() < refused.some
        )

    @property
    def refused(self) -> Request | None:
        """The first request that found no room, and has not begun or ended since."""
        refused = self._refused
        if refused is None or refused.first.lease is not None or refused.first.gone:
            return None
        return refused.first

    def first_refused(self) -> tuple[Request, int, bool] | None:
        """The first request that found no room, how much it lacks still, and whether below."""
        refused = self._refused
        if refused is None or refused.version != self._version():
            return None
        return refused.first, refused.enough - self.spare(), refused.below

    def ask_again(self) -> None:
        """Asks all requests in the next step, though none may find room."""
        self._refused = None

    @staticmethod
    def give_way(row: Request, to: Request) -> None:
        """Notes for which waiting request a running one is preempted."""
        row.waiting.displaced_by = to
        to.waiting.displaced |= {row}
        to.waiting.stood_first = 0

    @staticmethod
    def load_failed(entry: Request) -> None:
        """Notes that the loads of a request have failed, and left it no room to go on."""
        entry.waiting.failed_loads += 1

    def first_in_line(self) -> Request | None:
        """The first request that waits, and not for another one's prefix."""
        for entry in self._queue.next(1):
            return entry
        self._computing = self._prefilling()
        return next((one for one in self._queue.aside if self._is_in_line(one)), None)

    def in_line(self, most: int) -> list[Request]:
        """The first requests that wait, and not for another one's prefix, in their order.

        Args:
            most: How many at most.
        """
        entries, aside = self._queue.next(most), self._queue.aside
        if aside:
            self._computing = self._prefilling()
            entries += [entry for entry in aside if self._is_in_line(entry)]
            entries.sort(key=lambda entry: entry.rank)
        return entries[:most]

    def _is_in_line(self, entry: Request) -> bool:
        """Whether a request that was set aside waits no more for a prefix or an answer."""
        return not self._lookups.waits(entry) and self.computed_by(entry) is None

    def _waits_for_answer(self, entry: Request) -> bool:
        return self._lookups.waits(entry) and self.computed_by(entry) is None

    def needs(self) -> list[tuple[Request, int]]:
        """The requests that found no room in the last pass, in their order, and their needs.

        Needs are available blocks of the device; requests that lack room below are left out.
        """
        if self._refused is None:
            return []
        needs = self._refused.needs
        return [(entry, need) for entry, need in needs if entry.lease is None and not entry.gone]

    def _stands_first(self, refused: list[Request], priority: int) -> bool:
        """Whether no request of that priority may overtake the first refused one.

        It is so while room is made for it by requests of a lower priority.
        """
        if not refused or not refused[0].waiting.displaced or refused[0] in self._below:
            return False
        first = refused[0]
        stood = first.waiting.stood_first
        return first.new.priority > priority and stood <= self._max_stood_first

    def admit_promised(self) -> Admitted:
        """Begins only requests with a ticket: rows that grow cannot use the room of a ticket."""
        return self._admit(lambda tried: self._in_order(self._queue.promised, tried))

    def _admit(self, turns: Callable[[Admitted], Iterable[tuple[Request, bool]]]) -> Admitted:
        """Begins the requests that `turns` gives, each with whether it was popped for that."""
        admitted = Admitted([], [], [], [], [])
        back: list[Request] = []
        aside: list[Request] = []
        out = self._out = []
        self._computing = self._prefilling()
        self._hashed = 0
        self._gave_up = False
        self._below.clear()
        for entry, popped in turns(admitted):
            promised = entry.waiting.ticket is not None
            try:
                lease = self._begin(entry)
            except (TooLarge, Misuse, Unavailable) as error:
                if not popped:
                    self._queue.withdraw(entry)
                if self.is_too_large(entry):
                    entry.waiting.too_large = True
                    self._queue.push(entry)
                    continue
                # Its ticket was given back, or its KV is lost.
                entry.give_back(self._cache)
                admitted.failed.append((entry, str(error)))
                self._gave_up = True
                continue
            except NoRoom as error:
                admitted.refused.append(entry)
                entry.waiting.waited_for = "room"
                entry.waiting.stood_first += 1
                lack = error.need - error.available
                admitted.lacks.append(lack)
                if error.tier != "device":
                    self._below.add(entry)
                back += [entry] * popped
                out.append(entry)
                continue
            if lease is None:
                admitted.soon.append(entry)
                entry.waiting.waited_for = "prefix"
                aside += [entry] * popped
                out.append(entry)
                continue
            if not popped:
                self._queue.withdraw(entry)
            admitted.seats.append(self._seated(entry, lease))
            if admitted.refused and not promised:
                admitted.refused[0].waiting.overtaken += 1
        self._queue.put_back(back)
        self._out = []
        self._queue.put_aside(aside)
        return admitted

    def _in_turn(self, tried: Admitted) -> Iterator[tuple[Request, bool]]:
        """Pops requests in their order; none once the first refused was overtaken enough.

        No request overtakes a preempted one: admitting it would force another preemption. A request
        that waits for another one's prefix holds up no other.
        """
        refused, most = tried.refused, self._max_overtakes
        while not self._seats.full and len(refused) <= most and self._hashed < _HASHED:
            if refused and (refused[0].preempted or refused[0].waiting.overtaken >= most):
                return
            if len(tried.soon) >= 2 * _ASIDE:
                return
            highest = self._queue.highest
            if highest is None or self._stands_first(refused, highest):
                return
            entry = self._queue.pop(aside=len(tried.soon) < _ASIDE)
            if entry is None:
                return
            yield entry, True

    def _owed(self, tried: Admitted) -> Iterator[tuple[Request, bool]]:
        """Requests with a ticket, and parked ones that must come back: these wait for no turn."""
        yield from self._in_order(self._queue.promised, tried)
        if self._parking.must_park:
            yield from self._in_order(self._queue.parked, tried)

    def _in_order(
        self, entries: Iterable[Request], tried: Admitted
    ) -> Iterator[tuple[Request, bool]]:
        """Requests by rank; they stay in the queue until they begin."""
        most = len(tried.refused) + self._max_overtakes
        for entry in sorted(entries, key=lambda entry: entry.rank):
            if self._seats.full or len(tried.refused) > most:
                return
            if not entry.apart and (
                entry.waiting.ticket or not self._stands_first(tried.refused, entry.new.priority)
            ):
                yield entry, False

    def prefetch(self) -> None:
        """Has the prefixes of the next requests copied up ahead of their turn, each once.

        Stores are asked about them, and about some more.
        """
        asked = _ASKED_AHEAD if self._lookups.is_on else 0
        depth = max(self._prefetch_depth, asked)
        if not depth or self._prefetched == self._queue.changes:
            return
        self._prefetched = self._queue.changes
        for place, entry in enumerate(self._queue.next(depth)):
            if entry.waiting.prefetched or entry.parked is not None or not entry.reads_prefix:
                continue
            if asked and self._asks(entry, self._keys(entry)):
                self._prefetched = -1
            elif place < self._prefetch_depth:
                with contextlib.suppress(NoRoom):
                    self._cache.promote(self._keys(entry))
                    entry.waiting.prefetched = True
            if self._hashed >= _HASHED:
                self._prefetched = -1
                return

    def take_back(self, but: Request | None = None) -> bool:
        """Takes back the ticket of the last request, if nothing goes on for want of room.

        Otherwise requests that were each promised a part of the room would wait for one another.
        Requests outside the queue's order give theirs back first.

        Args:
            but: A request that keeps its ticket.

        Returns:
            Whether there was a ticket to take back.
        """
        return self._take_back([entry for entry in self._queue.promised if entry is not but])

    def take_back_apart(self) -> bool:
        """Takes a ticket back as `take_back`, only from one that stands in no line."""
        return self._take_back([entry for entry in self._queue.promised if entry.apart])

    def _take_back(self, promised: list[Request]) -> bool:
        if promised:
            last = max(promised, key=lambda entry: (entry.apart, entry.rank))
            last.give_back(self._cache)
            self._queue.drop_ticket(last)
            last.waiting.ticket = None
            self._refused = None
        return bool(promised)

    def spare(self) -> int:
        """Device blocks to be had that are promised to none; below 0 after a resize."""
        return self._cache.room().available

    def growth(self) -> int:
        """Device blocks that running rows may grow by: spare ones, and the headroom."""
        room = self._cache.room()
        return room.available + room.headroom

    def _version(self) -> tuple[int, ...]:
        """Numbers that change when a request comes or goes, or a tier has another size."""
        below = [*self._parking.limits(), len(self._moving)] if self._parking.must_park else ()
        return self._seats.departures, self._queue.changes, self._cache.limit(), *below

    def _begin(self, entry: Request) -> Lease | None:
        """The lease of a request; None where another one computes or loads its prefix now.

        Raises:
            TooLarge: It may need more than the device, which was made smaller, has: it waits apart,
                and delays no other.
        """
        if self.is_too_large(entry):
            raise TooLarge(f"the device has {self._cache.limit()} blocks now")
        work = entry.parked
        if work is not None and self._parking.gives_up(work.handle, work.stalled_steps):
            if self._parking.must_park:
                raise Unavailable("kv_lost: its kept blocks are gone")
            self._cache.abandon(work.handle)
            entry.recompute()
            self._gave_up = True
        growth = entry.new.max_tokens - len(entry.outputs) - 1
        if entry.new.hold:
            # A hold gives way to no row, and keeps all that was computed: the rows that this step
            # begins have their headroom before it, and no block of it is for its growth (INV-36e).
            self._cache.set_headroom(self._headroom.wanted())
            reserve = growth
        else:
            reserve = self._headroom.reserve(growth)
        if entry.parked is not None:
            lease = self._parking.resume(entry.parked.handle, reserve=reserve)
            return None if isinstance(lease, Soon) else lease
        keys = self._keys(entry)
        if entry.reads_prefix and self.computed_by(entry) is not None:
            return None
        if self._asks(entry, keys):
            return None
        if self._parking.must_park:
            self._check_safe(entry)
        load = self._parking.load_limit(entry.waiting.failed_loads)
        lease = self._cache.begin(
            keys,
            reserve=reserve,
            load=load,
            filling="soon",
            ticket=entry.waiting.ticket,
            read_prefix=entry.reads_prefix,
        )
        return None if isinstance(lease, Soon) else lease

    def _asks(self, entry: Request, keys: Keys) -> bool:
        """Whether a request waits for what stores say of it; it is asked about once."""
        waiting = entry.waiting
        if waiting.looked_up or not entry.reads_prefix:
            return False
        waiting.looked_up = not self._lookups.take(entry, keys)
        return not waiting.looked_up

    def _keys(self, entry: Request) -> Keys:
        self._hashed += entry.keys.unmade(entry.outputs)
        return entry.keyed(self._cache)

    def _check_safe(self, entry: Request) -> None:
        """Refuses a request beside which not all but one could be parked, as `safety` has it.

        Raises:
            NoRoom: The tiers below have too few blocks for that.
        """
        # Requests refused in this step, or waiting for a copy, are out of the queue for now, and
        # keep what they had.
        running, stopping = self._seats.requests()
        parked = {*self._queue.parked, *(out for out in self._out if out.parked is not None)}
        kept = [*stopping, *parked, *parked_of(self._moving)]
        need = claims_below(self._cache, [*running, entry], kept)
        room, tier = self._parking.largest()
        if need > room:
            error = NoRoom(f"no room on the {tier} to park {need} blocks: there is room for {room}")
            error.tier, error.need, error.free = tier, need, room
            error.evictable, error.promised, error.available = 0, 0, room
            raise error

    def _seated(self, entry: Request, lease: Lease) -> Seat:
        waiting, limit = entry.waiting, self._cache.limit()
        waiting.overtaken = waiting.stood_first = 0
        waiting.displaced, waiting.displaced_by = frozenset(), None
        waiting.ticket = None
        waiting.resumes = waiting.resumes + 1 if entry.parked is not None else 0
        self.largest = max(self.largest, limit)
        entry.resume()
        if self._queue.waits is not None:
            self._queue.waits.seated(entry)
        waiting.waited_for = "seat"
        seat = self._seats.bind(entry, lease, limit)
        if lease.state != "loading" and entry.keys.raw:
            self._computing.setdefault(entry.keys.raw[:_KEY], []).append(entry)
        return seat

    def _prefilling(self) -> dict[bytes, list[Request]]:
        """Requests whose prompts are being computed, by their first key."""
        found: dict[bytes, list[Request]] = {}
        for seat in self._seats.bound():
            if seat.request.state is RequestState.PREFILL and seat.request.keys.raw:
                found.setdefault(seat.request.keys.raw[:_KEY], []).append(seat.request)
        return found

    def waits_for(self, entry: Request) -> Request | None:
        """As `computed_by`, between steps."""
        self._computing = self._prefilling()
        return self.computed_by(entry)

    def computed_by(self, entry: Request) -> Request | None:
        """The request that computes more of the same prompt than can be found: it is waited for."""
        others = self._computing.get(entry.keys.raw[:_KEY]) if entry.keys.raw else None
        if not others:
            return None
        probe = self._cache.probe(entry.keyed(self._cache))
        found = (probe.device + sum(getattr(probe, tier) for tier in BELOW) + 1) * _KEY
        # Keys are chained: where one is the same, so are all before it.
        mine = entry.keys.raw[found - _KEY : found]
        return next(
            (other for other in others if mine and other.keys.raw[found - _KEY : found] == mine),
            None,
        )


def parked_of(moving: Iterable[Request]) -> list[Request]:
    """Those of some requests whose work is kept: until they have moved, others cannot have it."""
    return [entry for entry in moving if entry.parked is not None]


def claims_below(cache: KVCache, running: Iterable[Request], kept: Iterable[Request]) -> int:
    """Returns the blocks below the device that parking may take before all these have ended.

    It decides which requests may begin, and which may be stopped, where every victim must be
    parked.

    A request's claim is the most that it may ever need: the blocks of its prompt and of all that it
    may sample, counted for it alone, however many others hold the same blocks. A set of requests is
    safe while

        the device holds all their claims at once, or
        a tier below holds all their claims but the largest of those that run.

    Then no request is lost, however long all of them grow. Suppose that none goes on for want of
    room. Parked blocks leave the device, as their slots below are promised. All running requests
    but the largest can be stopped one after the other, as there is room below for their claims. The
    last one frees its duplicates. Then it holds its table alone, which is within its claim, and
    every claim fits: `Scheduler.add` has refused larger ones. So it ends, and the next one comes
    back.

    The set stays safe. A begin and a stop are checked here. A request that comes back can only make
    the largest running claim larger. A request that ends takes its claim away; if that was the
    largest, that tier has room for all others. INV-11, INV-25.

    With several tiers below, one of them must have the room: blocks parked on one tier may pin idle
    ancestors on another, so a request can take as much of each as its claim.

    Args:
        cache: The cache that holds them.
        running: Requests that run, or shall run.
        kept: Requests that are parked, or shall be parked.

    Returns:
        Their claims but the largest of those that run; 0 where the device holds all at once.
    """
    claims = [entry.new.max_blocks(cache.block_size) for entry in running]
    total = sum(claims) + sum(entry.new.max_blocks(cache.block_size) for entry in kept)
    return 0 if total <= cache.limit() else total - max(claims, default=0)
