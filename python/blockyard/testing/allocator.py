"""The allocator and prefix cache of a simulated engine that gives out its block ids itself."""

from collections.abc import Hashable
from itertools import takewhile

from blockyard.testing.engine import check

__all__ = ["Allocator"]


class Allocator:
    """Blocks with holders; one without is found again by its name until it is taken."""

    def __init__(self, count: int) -> None:
        self.holders = [0] * count
        self.idle = dict.fromkeys(range(count))
        """The next to be taken stands first."""
        self._published: dict[Hashable, int] = {}
        self._names: dict[int, Hashable] = {}

    def hold(self, names: list[Hashable]) -> list[int]:
        """Takes blocks that are there, as far as they are."""
        ids = [self._published[name] for name in takewhile(self._published.__contains__, names)]
        for one in ids:
            self.holders[one] += 1
            self.idle.pop(one, None)
        return ids

    def take(self, count: int) -> list[int]:
        """Takes blocks for new contents; there are so many."""
        ids = list(self.idle)[:count]
        for one in ids:
            del self.idle[one]
            self.holders[one] += 1
            self._published.pop(self._names.pop(one, None), None)
        return ids

    def publish(self, ids: list[int], names: list[Hashable]) -> None:
        """Makes blocks known whose contents are computed."""
        for one, name in zip(ids, names, strict=False):
            if self._published.setdefault(name, one) == one:
                self._names[one] = name

    def give_back(self, ids: list[int]) -> None:
        """Gives blocks back, the deepest first."""
        for one in reversed(ids):
            self.holders[one] -= 1
            check(self.holders[one] >= 0, f"block {one} is given back twice")
            if not self.holders[one]:
                self.idle[one] = None
