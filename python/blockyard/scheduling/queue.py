"""Who waits for a seat: the larger priority first, then who came first."""

import heapq
from collections.abc import Iterable
from typing import TypeAlias

from blockyard.scheduling.request import Request

__all__ = ["WaitingQueue"]

_Place: TypeAlias = tuple[tuple[int, int], int, Request]
"""Rank, how often it had moved when it was put there, and who."""


class WaitingQueue:
    """All waiting requests, in the order in which they begin.

    Removal is lazy: a stale entry is dropped when it reaches the top, or when stale entries
    outnumber live ones. Requests that wait for another one's copy or prefill stand beside the
    queue: they are asked again later, and hold up no other.
    """

    def __init__(self) -> None:
        self._heap: list[_Place] = []
        self._aside: list[_Place] = []
        self._waiting = 0
        self.changes = 0
        """Differs when who waits has changed."""
        self.parked: set[Request] = set()
        """Of those who wait, whose work is kept."""
        self.promised: set[Request] = set()
        """Of those who wait, who has a ticket: what room it keeps is nobody else's."""

    def __len__(self) -> int:
        """Who waits, but for those who have ended."""
        return self._waiting

    def push(self, entry: Request) -> None:
        """Somebody comes, or comes back: its place is that of its first coming."""
        self.changes += 1
        self._stand(entry, self._heap)

    def _stand(self, entry: Request, heap: list[_Place]) -> None:
        self._waiting += 1
        entry.moved += 1
        if entry.parked is not None:
            self.parked.add(entry)
        if entry.ticket is not None:
            self.promised.add(entry)
        self._tidy(heap)
        heapq.heappush(heap, (entry.rank, entry.moved, entry))

    def pop(self, *, aside: bool = True) -> Request | None:
        """Whose turn it is.

        Args:
            aside: Whether it may be one that stands aside.
        """
        heaps = [heap for heap in (self._heap, self._aside if aside else []) if _first(heap)]
        if not heaps:
            return None
        entry = heapq.heappop(min(heaps, key=lambda heap: heap[0]))[2]
        self._go(entry)
        return entry

    def take(self, entry: Request) -> None:
        """Its turn has come, or its end, wherever it stands."""
        self._go(entry)
        self._tidy(self._heap)
        self._tidy(self._aside)

    def _go(self, entry: Request) -> None:
        entry.moved += 1
        self.changes += 1
        self._waiting -= 1
        self.parked.discard(entry)
        self.promised.discard(entry)

    def back(self, entries: Iterable[Request]) -> None:
        """Those whose turn came to nothing stand where they stood."""
        for entry in entries:
            self.changes -= 1
            self._stand(entry, self._heap)

    def put_aside(self, entries: Iterable[Request]) -> None:
        """Those who wait for somebody else's copy or prefill."""
        for entry in entries:
            self.changes -= 1
            self._stand(entry, self._aside)

    def _tidy(self, heap: list[_Place]) -> None:
        if len(heap) > 2 * self._waiting:
            heap[:] = filter(_stands, heap)
            heapq.heapify(heap)

    def next(self, count: int) -> list[Request]:
        """The next so many of those whose turn is to come, in their order."""
        found: list[Request] = []
        # A walk down the heap, the smallest first, as far as it is needed.
        edge = [(place, at) for at, place in enumerate(self._heap[:1])]
        while edge and len(found) < count:
            place, at = heapq.heappop(edge)
            if _stands(place):
                found.append(place[2])
            for below in (2 * at + 1, 2 * at + 2):
                if below < len(self._heap):
                    heapq.heappush(edge, (self._heap[below], below))
        return found

    def before(self, entry: Request) -> int:
        """How many stand before somebody."""
        everybody = (*self._heap, *self._aside)
        return sum(place[0] < entry.rank for place in everybody if _stands(place))


def _stands(place: _Place) -> bool:
    """Whether its place is this still."""
    return place[1] == place[2].moved


def _first(heap: list[_Place]) -> bool:
    """Whether somebody stands in it; its first is one who does."""
    while heap and not _stands(heap[0]):
        heapq.heappop(heap)
    return bool(heap)
