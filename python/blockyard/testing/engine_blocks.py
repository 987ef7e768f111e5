"""The allocator of a simulated engine whose groups of layers share their blocks."""

from collections import Counter

from blockyard.testing.simulated_engine import check

__all__ = ["EngineBlocks"]

_Name = tuple[int, tuple[int, ...]]
"""What the engine's own prefix cache calls a block: its group, and all tokens up to its end."""


class EngineBlocks:
    """Blocks with holders, from 1 on; one without is found by its name until it is taken.

    Args:
        count: How many.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.cached: dict[_Name, int] = {}
        self.lose()

    def lose(self) -> None:
        """Gives all blocks back, without what they hold."""
        self._refs = [0] * (self.count + 1)
        self.free = list(range(1, self.count + 1))
        self._names: dict[int, _Name] = {}
        self.cached.clear()

    def take(self, count: int) -> list[int]:
        """Takes blocks for new contents."""
        ids, self.free = self.free[:count], self.free[count:]
        check(len(ids) == count, "the engine has given out more blocks than it has")
        for one in ids:
            self._refs[one] = 1
            if one in self._names:
                del self.cached[self._names.pop(one)]
        return ids

    def hold(self, one: int) -> None:
        """Adds a holder to a block."""
        if not self._refs[one]:
            self.free.remove(one)
        self._refs[one] += 1

    def put(self, one: int) -> None:
        """Takes a holder from a block."""
        self._refs[one] -= 1
        check(self._refs[one] >= 0, f"block {one} is given back twice")
        if not self._refs[one]:
            self.free.append(one)

    def name(self, group: int, tokens: tuple[int, ...], one: int) -> None:
        """Makes a computed block known to the engine's own prefix cache."""
        if (group, tokens) not in self.cached and one not in self._names:
            self.cached[group, tokens] = one
            self._names[one] = group, tokens

    def drop_names(self) -> None:
        """Empties the engine's own prefix cache."""
        self.cached.clear()
        self._names.clear()

    def is_own(self, one: int) -> bool:
        """Whether a block with a holder may be written: nothing else has it, or will find it."""
        return self._refs[one] == 1 and one not in self._names

    def check(self, held: Counter[int]) -> None:
        """Checks that each block has the holders that it should have."""
        for one in range(1, self.count + 1):
            check(
                self._refs[one] == held[one] and (one in self.free) == (not held[one]),
                f"the engine's block {one} has {self._refs[one]} holders, of {held[one]}",
            )
