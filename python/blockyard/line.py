"""Who waits for a seat: the larger priority first, then who came first."""

import heapq
from collections.abc import Iterable

from blockyard.request import Request

__all__ = ["Line"]


class Line:
    """All who wait. Who ends while it waits is passed over, and dropped when half are such."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int], Request]] = []
        self._waiting = 0
        self.changes = 0
        """Differs when who waits has changed."""
        self.promised: set[Request] = set()
        """Of those who wait, who has a ticket: what room it keeps is nobody else's."""

    def __len__(self) -> int:
        """Who waits, but for those who have ended."""
        return self._waiting

    def push(self, entry: Request) -> None:
        """Somebody comes, or comes back: its place is that of its first coming."""
        self.changes += 1
        self._stand(entry)

    def _stand(self, entry: Request) -> None:
        self._waiting += 1
        if entry.ticket is not None:
            self.promised.add(entry)
        heapq.heappush(self._heap, (entry.rank, entry))

    def pop(self) -> Request | None:
        """Whose turn it is."""
        while self._heap:
            entry = heapq.heappop(self._heap)[1]
            if not entry.terminal:
                self._go(entry)
                return entry
        return None

    def take(self, entry: Request) -> None:
        """Its turn comes, wherever it stands."""
        self._heap.remove((entry.rank, entry))
        heapq.heapify(self._heap)
        self._go(entry)

    def _go(self, entry: Request) -> None:
        self.changes += 1
        self._waiting -= 1
        self.promised.discard(entry)

    def back(self, entries: Iterable[Request]) -> None:
        """Those whose turn came to nothing stand where they stood."""
        for entry in entries:
            self.changes -= 1
            self._stand(entry)

    def ended(self, entry: Request) -> None:
        """Somebody who waits has ended."""
        self.promised.discard(entry)
        self.changes += 1
        self._waiting -= 1
        if len(self._heap) > 2 * self._waiting:
            self._heap = [one for one in self._heap if not one[1].terminal]
            heapq.heapify(self._heap)

    def next(self, count: int) -> list[Request]:
        """The next so many, in their order."""
        return [one for _, one in heapq.nsmallest(count, self._heap) if not one.terminal]

    def before(self, entry: Request) -> int:
        """How many stand before somebody."""
        return sum(rank < entry.rank and not one.terminal for rank, one in self._heap)
