"""Numbers of ranks in other processes, across restarts of their cranes."""

from collections.abc import Iterable
from threading import Lock
from typing import Final

from blockyard._core import Misuse
from blockyard.shared.stats import Stat
from blockyard.shared.timings import COPIES, SIZES, Copied, CraneNumbers, Reading
from blockyard.shared.validate import integer

__all__ = ["Ranks"]


class Ranks:
    """The numbers of each rank; no counter falls.

    A crane that was made anew counts from 0: what the one before it has counted is added. What
    comes late, or twice, changes nothing.

    Args:
        schema: The numbers of a crane.
        count: How many ranks there are.
    """

    def __init__(self, schema: Iterable[Stat], count: int) -> None:
        self._counters: Final = {stat.name for stat in schema if stat.kind == "counter"}
        self._count: Final = count
        self._lock: Final = Lock()
        self._ranks: dict[int, _Rank] = {}

    def tell(self, numbers: CraneNumbers) -> None:
        """Takes a rank's numbers.

        Raises:
            Misuse: It is something else, or there is no such rank.
        """
        given: object = numbers
        if not isinstance(given, CraneNumbers) or not _is_sound(given):
            raise Misuse(f"{numbers!r:.60}: give what Crane.numbers() returns")
        integer("rank", numbers.rank, least=0, most=self._count - 1)
        with self._lock:
            rank = self._ranks.get(numbers.rank)
            if rank is None:
                self._ranks[numbers.rank] = _Rank(self._counters, numbers)
            else:
                rank.tell(numbers)

    def read(self) -> list[CraneNumbers]:
        """Returns the counters of each rank that has reported."""
        with self._lock:
            return [rank.read() for _, rank in sorted(self._ranks.items())]


class _Rank:
    """One rank, and the cranes that it has had."""

    def __init__(self, counters: set[str], numbers: CraneNumbers) -> None:
        self._counters = counters
        self._now = numbers
        self._ended: CraneNumbers | None = None
        """What the cranes before this one have counted."""
        self._gone: set[int] = set()
        """When each of the cranes before was made."""

    def tell(self, numbers: CraneNumbers) -> None:
        now = self._now
        if now.made == numbers.made:
            self._now = self._latest(now, numbers)
        elif numbers.made not in self._gone:
            self._gone.add(now.made)
            self._ended, self._now = self.read(), numbers

    def read(self) -> CraneNumbers:
        return self._now if self._ended is None else self._sum(self._ended, self._now)

    def _latest(self, one: CraneNumbers, other: CraneNumbers) -> CraneNumbers:
        """Of two reports of one crane, the larger of each counter; gauges of the second."""
        most = {
            name: max(number, one.stats.get(name, 0)) if name in self._counters else number
            for name, number in other.stats.items()
        }
        copies = {
            pair: max(copied, one.copies.get(pair, copied), key=_flights)
            for pair, copied in (one.copies | other.copies).items()
        }
        return other._replace(stats=most, copies=copies)

    def _sum(self, ended: CraneNumbers, now: CraneNumbers) -> CraneNumbers:
        """What cranes before this one have counted, and this one; gauges are those of this one."""
        stats = {
            name: number + (ended.stats.get(name, 0) if name in self._counters else 0)
            for name, number in now.stats.items()
        }
        copies = ended.copies | now.copies
        for pair in ended.copies.keys() & now.copies.keys():
            one, other = ended.copies[pair], now.copies[pair]
            copies[pair] = Copied(_added(one.times, other.times), _added(one.sizes, other.sizes))
        return now._replace(stats=stats, copies=copies)


def _added(one: Reading, other: Reading) -> Reading:
    counts = (mine + more for mine, more in zip(one.counts, other.counts, strict=True))
    return Reading(tuple(counts), one.total + other.total)


def _flights(copied: Copied) -> int:
    """How many flights there were: a number that does not fall while a crane lives."""
    return sum(copied.times.counts) + sum(copied.sizes.counts)


def _is_sound(numbers: CraneNumbers) -> bool:
    """Whether it is of this version: a scrape must not fail by what a rank has sent."""
    stats: object = numbers.stats
    copies: object = numbers.copies
    if not isinstance(stats, dict) or not isinstance(copies, dict):
        return False
    return all(isinstance(number, int) for number in stats.values()) and all(
        isinstance(copied, Copied)
        and (len(copied.times.counts), len(copied.sizes.counts))
        == (len(COPIES) + 1, len(SIZES) + 1)
        for copied in copies.values()
    )
