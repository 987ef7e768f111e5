"""Waiting requests, the larger priority first, then the one added first; and how long they wait."""

import heapq
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple, TypeAlias

from blockyard.scheduling.request import Request, RequestState
from blockyard.shared.timings import WAITS, Clock, Histogram

__all__ = ["BEGUN", "WaitingQueue", "Waits"]

BEGUN: Final = ("room", "seat", "prefix")
"""What keeps a request from its begin: blocks; a seat or its turn; another request that computes or
loads its prefix."""


class Waits:
    """Notes when requests are queued, and counts their waits when they begin.

    Args:
        clock: Seconds. Nothing is decided by it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock: Final = clock
        self._since: dict[Request, float] = {}
        """The second at which each came to wait."""
        self.begun: Final = {why: Histogram(WAITS) for why in BEGUN}
        """Those that had no work kept, since they were added or had to be recomputed, by what kept
        them last."""
        self.resumed: Final = Histogram(WAITS)
        """Those that were parked, since then."""

    def queued(self, entry: Request) -> None:
        """Notes when a request has come; one that was held and is pushed again waits still."""
        if entry not in self._since:
            self._since[entry] = self._clock()

    def seated(self, entry: Request) -> None:
        """Counts the wait of a request that has a lease now."""
        since, waiting = self._since.pop(entry, None), entry.waiting
        if since is not None:
            # It has begun to come back as often since it was parked: 0 for what begins anew.
            times = self.resumed if waiting.resumes else self.begun[waiting.waited_for]
            times.add(self._clock() - since)

    def ended(self, entry: Request) -> None:
        """Forgets a request, which may have ended while it waited."""
        self._since.pop(entry, None)


_Place: TypeAlias = tuple[tuple[int, int], int, Request]
"""A request's rank, the number of this entry in the queue, and the request."""


class Counts(NamedTuple):
    """How many requests wait, and of these how many for what."""

    waiting: int
    parked: int
    aside: int
    held: int
    too_large: int


class WaitingQueue:
    """All waiting requests, in the order in which they begin.

    Removal is lazy: a stale entry is dropped when it reaches the top, or when stale entries
    outnumber live ones. Requests that wait for another one's copy or prefill stand beside the
    queue: they are asked again later, and hold up no other.

    Args:
        waits: Where waits are counted; None for nowhere.
    """

    def __init__(self, waits: Waits | None = None) -> None:
        self.waits = waits
        self._heap: list[_Place] = []
        self._aside: list[_Place] = []
        self._current: dict[Request, int] = {}
        self._entries = 0
        self._parked: set[Request] = set()
        self._promised: set[Request] = set()
        self._held: set[Request] = set()
        self._too_large: set[Request] = set()
        self._recomputed: set[Request] = set()
        self.changes = 0
        """A number that differs whenever the set of waiting requests has changed."""

    def __len__(self) -> int:
        """Waiting requests; those that have ended do not count."""
        return len(self._current)

    @property
    def parked(self) -> AbstractSet[Request]:
        """The waiting requests whose work is kept."""
        return self._parked

    @property
    def recomputed(self) -> AbstractSet[Request]:
        """The waiting requests that ran, and whose work is computed again."""
        return self._recomputed

    @property
    def held(self) -> AbstractSet[Request]:
        """The waiting requests that are held: they stand in no line."""
        return self._held

    @property
    def apart(self) -> bool:
        """Whether a waiting request stands in no line."""
        return bool(self._held or self._too_large)

    @property
    def too_large(self) -> AbstractSet[Request]:
        """The waiting requests that the device, which was made smaller, cannot hold now."""
        return self._too_large

    @property
    def aside(self) -> list[Request]:
        """The requests that wait for another one's copy or prefill, in their order."""
        return [place[2] for place in sorted(filter(self._is_current, self._aside))]

    @property
    def promised(self) -> AbstractSet[Request]:
        """The waiting requests with a ticket: the room that it keeps is no other request's."""
        return self._promised

    def push(self, entry: Request) -> None:
        """Adds a request; one that comes back has the place that it had at first.

        One that is held or too large stands in no line, so that its turn does not come. Push it
        again when that has changed.
        """
        self.changes += 1
        if self.waits is not None:
            self.waits.queued(entry)
        self._insert(entry, self._heap)

    def _insert(self, entry: Request, heap: list[_Place]) -> None:
        self._entries += 1
        self._current[entry] = self._entries
        if entry.parked is not None:
            self._parked.add(entry)
        elif entry.state is RequestState.RECOMPUTE:
            self._recomputed.add(entry)
        if entry.waiting.ticket is not None:
            self._promised.add(entry)
        (self._held.add if entry.held else self._held.discard)(entry)
        (self._too_large.add if entry.waiting.too_large else self._too_large.discard)(entry)
        if entry.apart:
            return
        self._compact(heap)
        heapq.heappush(heap, (entry.rank, self._entries, entry))

    @property
    def highest(self) -> int | None:
        """The highest priority of those that stand in line or aside; None where none does."""
        tops = [heap[0][0][0] for heap in (self._heap, self._aside) if self._first(heap)]
        return -min(tops) if tops else None

    def pop(self, *, aside: bool = True) -> Request | None:
        """Removes and returns the first request; None where no request waits.

        Args:
            aside: Whether it may be one that stands aside.
        """
        heaps = [heap for heap in (self._heap, self._aside if aside else []) if self._first(heap)]
        if not heaps:
            return None
        entry = heapq.heappop(min(heaps, key=lambda heap: heap[0]))[2]
        self._remove(entry)
        return entry

    def withdraw(self, entry: Request) -> None:
        """Removes a request, wherever it stands."""
        self._remove(entry)
        self._compact(self._heap)
        self._compact(self._aside)

    def _remove(self, entry: Request) -> None:
        del self._current[entry]
        self.changes += 1
        self._parked.discard(entry)
        self._recomputed.discard(entry)
        self._promised.discard(entry)
        self._held.discard(entry)
        self._too_large.discard(entry)
        if not self._current:
            self._heap.clear()
            self._aside.clear()

    def clear(self) -> None:
        """Removes all requests."""
        self.changes += 1
        self._current.clear()
        for heap in (self._heap, self._aside):
            heap.clear()
        for some in (self._parked, self._recomputed, self._promised, self._held, self._too_large):
            some.clear()

    def drop_parked(self, entry: Request) -> None:
        """Notes that the work of a waiting request is kept no more: it is computed again."""
        self._parked.discard(entry)
        self._recomputed.add(entry)

    def drop_ticket(self, entry: Request) -> None:
        """Notes that the ticket of a waiting request was taken away: it waits on without it."""
        self._promised.discard(entry)

    def put_back(self, entries: Iterable[Request]) -> None:
        """Returns popped requests that could not begin to their places."""
        for entry in entries:
            self.changes -= 1
            self._insert(entry, self._heap)

    def put_aside(self, entries: Iterable[Request]) -> None:
        """Returns popped requests that wait for another one's copy or prefill."""
        for entry in entries:
            self.changes -= 1
            self._insert(entry, self._aside)

    def count(self) -> Counts:
        """How many wait, and for what: each counts once. Any thread may ask."""
        aside = {place[2] for place in tuple(self._aside) if self._is_current(place)}
        held, large = tuple(self._held), {*self._too_large}
        parked = tuple(self._parked)
        aside -= {*held, *parked, *large}
        large -= {*held, *parked}
        apart = sum(entry not in self._parked for entry in held)
        return Counts(len(self._current), len(parked), len(aside), apart, len(large))

    def next(self, count: int) -> list[Request]:
        """The first `count` requests in their order; none of those that stand aside."""
        found: list[Request] = []
        # A walk down the heap, the smallest first, as far as it is needed.
        edge = [(place, at) for at, place in enumerate(self._heap[:1])]
        while edge and len(found) < count:
            place, at = heapq.heappop(edge)
            if self._is_current(place):
                found.append(place[2])
            for below in (2 * at + 1, 2 * at + 2):
                if below < len(self._heap):
                    heapq.heappush(edge, (self._heap[below], below))
        return found

    def count_before(self, entry: Request) -> int:
        """How many waiting requests stand before this one."""
        places = (*self._heap, *self._aside)
        return sum(place[0] < entry.rank for place in places if self._is_current(place))

    def _is_current(self, place: _Place) -> bool:
        """Whether a request still stands in this place."""
        return self._current.get(place[2]) == place[1]

    def _first(self, heap: list[_Place]) -> bool:
        """Drops stale entries at the top; returns whether a live one is left."""
        while heap and not self._is_current(heap[0]):
            heapq.heappop(heap)
        return bool(heap)

    def _compact(self, heap: list[_Place]) -> None:
        """Drops all stale entries where they outnumber the live ones."""
        if len(heap) > 2 * len(self._current):
            heap[:] = filter(self._is_current, heap)
            heapq.heapify(heap)
