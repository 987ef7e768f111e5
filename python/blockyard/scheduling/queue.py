"""Waiting requests, the larger priority first, then the one added first; and how long they wait."""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Final, NamedTuple

from blockyard.scheduling.rank_order import RankOrder
from blockyard.scheduling.request import Request, RequestState
from blockyard.shared.timings import WAITS, Clock, Histogram

__all__ = ["BEGUN", "WaitingQueue", "Waits"]

BEGUN: Final = ("room", "seat", "prefix")
"""Reasons why a request waits: blocks; a seat or its turn; another request that computes or loads
its prefix."""


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
            # Times that it came back since it was parked: 0 for one that begins anew.
            times = self.resumed if waiting.resumes else self.begun[waiting.waited_for]
            times.add(self._clock() - since)

    def ended(self, entry: Request) -> None:
        """Forgets a request, which may have ended while it waited."""
        self._since.pop(entry, None)


class Counts(NamedTuple):
    """How many requests wait, and of these how many for what."""

    waiting: int
    parked: int
    aside: int
    held: int
    too_large: int


class WaitingQueue:
    """All waiting requests, in the order in which they begin.

    Requests that wait for another one's copy or prefill are set aside: they are tried again later,
    and delay no other.

    Args:
        waits: Where waits are counted; None for nowhere.
    """

    def __init__(self, waits: Waits | None = None) -> None:
        self.waits = waits
        self._in_line = RankOrder()
        self._aside = RankOrder()
        self._orders: dict[Request, RankOrder | None] = {}
        """All that wait, and where each is; None for one outside the queue's order."""
        self._parked: set[Request] = set()
        self._promised: set[Request] = set()
        self._held: set[Request] = set()
        self._too_large: set[Request] = set()
        self._recomputed: set[Request] = set()
        self.changes = 0
        """A number that differs whenever the set of waiting requests has changed."""

    def __len__(self) -> int:
        """Waiting requests; those that have ended do not count."""
        return len(self._orders)

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
        """The waiting requests that are held: they are outside the queue's order."""
        return self._held

    @property
    def apart(self) -> bool:
        """Whether a waiting request is outside the queue's order."""
        return bool(self._held or self._too_large)

    @property
    def too_large(self) -> AbstractSet[Request]:
        """The waiting requests that the device, which was made smaller, cannot hold now."""
        return self._too_large

    @property
    def aside(self) -> list[Request]:
        """The requests that wait for another one's copy or prefill, in their order."""
        return list(self._aside)

    @property
    def promised(self) -> AbstractSet[Request]:
        """The waiting requests with a ticket: the room that it keeps is no other request's."""
        return self._promised

    def push(self, entry: Request) -> None:
        """Adds a request; one that comes back has its first place.

        A held or too large request gets no turn. Push it again when that has changed.
        """
        self.changes += 1
        if self.waits is not None:
            self.waits.queued(entry)
        self._insert(entry, self._in_line)

    def _insert(self, entry: Request, order: RankOrder) -> None:
        if entry in self._orders:
            self._take_out(entry)
        if entry.parked is not None:
            self._parked.add(entry)
        elif entry.state is RequestState.RECOMPUTE:
            self._recomputed.add(entry)
        if entry.waiting.ticket is not None:
            self._promised.add(entry)
        (self._held.add if entry.held else self._held.discard)(entry)
        (self._too_large.add if entry.waiting.too_large else self._too_large.discard)(entry)
        if entry.apart:
            self._orders[entry] = None
            return
        self._orders[entry] = order
        order.add(entry)

    def _take_out(self, entry: Request) -> None:
        order = self._orders.pop(entry)
        if order is not None:
            order.remove(entry)

    @property
    def highest(self) -> int | None:
        """The highest priority of those in order or set aside; None if there are none."""
        first = self._first(self._in_line, self._aside)
        return None if first is None else first.new.priority

    @staticmethod
    def _first(*orders: RankOrder) -> Request | None:
        firsts = [first for order in orders if (first := order.first) is not None]
        return min(firsts, key=lambda entry: entry.rank, default=None)

    def pop(self, *, aside: bool = True) -> Request | None:
        """Removes and returns the first request; None where no request waits.

        Args:
            aside: Whether it may be one that is set aside.
        """
        entry = self._first(self._in_line, *[self._aside] * aside)
        if entry is not None:
            self.withdraw(entry)
        return entry

    def withdraw(self, entry: Request) -> None:
        """Removes a request, from any place."""
        self._take_out(entry)
        self.changes += 1
        self._parked.discard(entry)
        self._recomputed.discard(entry)
        self._promised.discard(entry)
        self._held.discard(entry)
        self._too_large.discard(entry)

    def clear(self) -> None:
        """Removes all requests."""
        self.changes += 1
        self._orders.clear()
        self._in_line.clear()
        self._aside.clear()
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
            self._insert(entry, self._in_line)

    def put_aside(self, entries: Iterable[Request]) -> None:
        """Returns popped requests that wait for another one's copy or prefill."""
        for entry in entries:
            self.changes -= 1
            self._insert(entry, self._aside)

    def count(self) -> Counts:
        """How many wait, and for what: each counts once. Any thread may ask."""
        aside = {*self._aside}
        held, large = tuple(self._held), {*self._too_large}
        parked = tuple(self._parked)
        aside -= {*held, *parked, *large}
        large -= {*held, *parked}
        apart = sum(entry not in self._parked for entry in held)
        return Counts(len(self._orders), len(parked), len(aside), apart, len(large))

    def next(self, count: int) -> list[Request]:
        """The first `count` requests in their order, without those set aside."""
        return list(islice(self._in_line, count))

    def count_before(self, entry: Request) -> int:
        """How many waiting requests are before this one."""
        return sum(order.count_before(entry.rank) for order in (self._in_line, self._aside))
