"""What the recency order (LRU) finds at every size, from one pass over the trace."""

from typing import Self

import numpy as np
from numpy.typing import NDArray

from blockyard.tools.traces.distances import NEVER, stack_distances
from blockyard.tools.traces.future import full_blocks
from blockyard.tools.traces.trace import Trace

__all__ = ["RecencyCurve"]


class RecencyCurve:
    """Blocks found by size, exact at every size; it never falls.

    It needs no word of prompts that are longer than the cache, although these are cut to what fits:
    a block stands behind those above it, so its stack distance is at least its depth, and what is
    cut off is out of reach. What such a prompt leaves is its first blocks, which are the first of
    the order that has no size, so later requests find what that order says.

    Args:
        steps: Sizes at which more is found, rising, shape (steps,).
        found: Blocks found at each, and until the next one, shape (steps,).
    """

    def __init__(self, steps: NDArray[np.int64], found: NDArray[np.int64]) -> None:
        self.steps = steps
        self.found = found

    @classmethod
    def of(cls, trace: Trace) -> Self:
        """Makes the curve of a trace, whose full blocks are what is cached."""
        first = trace.offsets[:-1]
        distances = stack_distances(trace.ids, np.stack((first, first + full_blocks(trace)), 1))
        steps, counts = np.unique(distances[distances != NEVER], return_counts=True)
        return cls(steps, np.cumsum(counts))

    @property
    def most(self) -> int:
        """The blocks that an infinite cache finds."""
        return int(self.found[-1]) if len(self.found) else 0

    @property
    def enough(self) -> int:
        """The least size that finds all of them; 0 where nothing is ever found."""
        return int(self.steps[-1]) if len(self.steps) else 0

    def hits(self, size: int) -> int:
        """Returns the blocks found at a size, over all requests."""
        return int(self._at(np.array([size]))[0])

    def size_of(self, hits: float) -> int | None:
        """Returns the least size that finds so many blocks; None where no size does."""
        if hits <= 0:
            return 0
        place = int(np.searchsorted(self.found, hits))
        return int(self.steps[place]) if place < len(self.steps) else None

    def knee(self, least: float) -> int:
        """Returns the size from which on no doubling is worth it; 0 where none finds any.

        It is the least size that finds at least half of what an infinite cache does, and that lies
        behind every size whose double finds `least` blocks more. Behind every one, as the curve may
        have many plateaus: where all sessions share a system prompt the first is what they share,
        and their own blocks come behind it. Half, as a long slope may have no such doubling at all.

        Args:
            least: Blocks, more than 0.
        """
        # Up to the next step a size finds the same and its double ever more: the last size before
        # a step gains most, and behind it comes the step.
        before = self.steps - 1
        worth = np.flatnonzero(self._at(2 * before) - self._at(before) >= least)
        behind = int(self.steps[worth[-1]]) if len(worth) else 0
        return max(behind, self.size_of(self.most / 2) or 0)

    def _at(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        places = np.searchsorted(self.steps, sizes, side="right")
        return np.concatenate(([0], self.found))[places]
