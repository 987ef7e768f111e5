"""Waiting requests sorted by rank, in short lists: none of its calls walks over all of them."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter
from typing import Final

from blockyard.scheduling.request import Request

__all__ = ["RankOrder"]

_SHORT: Final = 512
"""Requests in a list; one of twice as many is halved."""
_rank: Final = attrgetter("rank")


class RankOrder:
    """Requests in the order of `Request.rank`, which differs between any two of them.

    A heap is shorter, but cannot say how many are before one of its entries.
    """

    def __init__(self) -> None:
        self._lists: list[list[Request]] = []
        """In order, none of them empty."""

    def __len__(self) -> int:
        return sum(map(len, self._lists))

    def __bool__(self) -> bool:
        return bool(self._lists)

    def __iter__(self) -> Iterator[Request]:
        """The requests, the first first."""
        for some in self._lists:
            yield from some

    @property
    def first(self) -> Request | None:
        """The request that begins first; None if there is none."""
        return self._lists[0][0] if self._lists else None

    def _list_of(self, rank: tuple[int, int]) -> int:
        """The list that has a rank, or gets it; the number of lists if all are smaller."""
        return bisect_left(self._lists, rank, key=lambda some: some[-1].rank)

    def add(self, entry: Request) -> None:
        """Adds a request that is not in it."""
        if not self._lists:
            self._lists.append([entry])
            return
        at = min(self._list_of(entry.rank), len(self._lists) - 1)
        some = self._lists[at]
        insort(some, entry, key=_rank)
        if len(some) >= 2 * _SHORT:
            self._lists[at : at + 1] = [some[:_SHORT], some[_SHORT:]]

    def remove(self, entry: Request) -> None:
        """Removes a request that is in it."""
        at = self._list_of(entry.rank)
        some = self._lists[at]
        # Each in one act: an interrupt leaves no empty list.
        if len(some) == 1:
            del self._lists[at]
        else:
            del some[bisect_left(some, entry.rank, key=_rank)]

    def count_before(self, rank: tuple[int, int]) -> int:
        """How many have a smaller rank."""
        at = self._list_of(rank)
        before = sum(map(len, self._lists[:at]))
        return before + (bisect_left(self._lists[at], rank, key=_rank) if self._lists[at:] else 0)

    def clear(self) -> None:
        """Removes all."""
        self._lists.clear()
