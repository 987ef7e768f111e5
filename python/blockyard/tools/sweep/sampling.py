"""A trace thinned by a hash of its blocks, for orders that must be simulated size by size.

A share of all blocks is kept, with every use of each, and a cache of that share of the size holds
them (C. A. Waldspurger et al., "Efficient MRC Construction with SHARDS", FAST 2015). A path keeps
some of its blocks, in their order, so a parent still stands before its children. What the sample
gets wrong it gets wrong under recency too, whose truth is known: `Sample.corrected` takes that
difference off.
"""

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from blockyard.tools.sweep.recency import RecencyCurve
from blockyard.tools.traces.future import full_blocks, on_paths
from blockyard.tools.traces.trace import Trace

__all__ = ["Sample", "suitable"]

_LEAST: Final = 25_000
"""Distinct blocks that a sample should have: with fewer its errors pass half a point."""
_WORK: Final = 700_000
"""Uses of blocks and requests that are simulated at each size, or fewer: a second's work."""
_SPARSEST: Final = 64
_LONGEST: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One block in `one_in` of a trace, drawn by a hash of its id; with 1 it is the trace."""

    trace: Trace
    """What is simulated."""
    one_in: int
    uses: int
    """Uses of full blocks in the whole trace."""
    curve: RecencyCurve
    """Recency on the sample."""
    whole: RecencyCurve
    """Recency on the whole trace."""

    @classmethod
    def of(cls, trace: Trace, whole: RecencyCurve, one_in: int) -> Self:
        """Draws a sample.

        Args:
            trace: The requests.
            whole: Its curve.
            one_in: Of how many blocks one is kept, 1 or more.
        """
        uses = int(full_blocks(trace).sum())
        if one_in == 1:
            return cls(trace, 1, uses, whole, whole)
        thin = _thinned(trace, one_in)
        return cls(thin, one_in, uses, RecencyCurve.of(thin), whole)

    def size(self, blocks: int) -> int:
        """Returns the size in the sample that stands for a size."""
        return max(1, round(blocks / self.one_in)) if blocks else 0

    def corrected(self, blocks: int, hits: int) -> float:
        """Returns the blocks that the whole trace would find, for those that the sample found.

        Args:
            blocks: The size in the whole trace.
            hits: Blocks found in the sample, at the size that stands for it.
        """
        if self.one_in == 1:
            return float(hits)
        scale = self.uses / max(len(self.trace.ids), 1)
        beyond = (hits - self.curve.hits(self.size(blocks))) * scale
        return min(max(self.whole.hits(blocks) + beyond, 0.0), float(self.whole.most))


def suitable(trace: Trace, distinct: int) -> int:
    """Returns of how many blocks one should be kept: 1 for a trace of less than a million uses.

    Args:
        trace: The requests.
        distinct: Its distinct full blocks.
    """
    work = int(full_blocks(trace).sum())
    one_in = 1
    while work > one_in * _WORK and distinct >= 2 * one_in * _LEAST and one_in < _SPARSEST:
        one_in *= 2
    return one_in


def _thinned(trace: Trace, one_in: int) -> Trace:
    """Returns the requests with some of their full blocks, each worth `one_in` times the tokens."""
    first = trace.offsets[:-1]
    places, owners = on_paths(np.stack((first, first + full_blocks(trace)), 1))
    kept = _mixed(trace.ids[places]) % np.uint64(one_in) == 0
    counts = np.bincount(owners[kept], minlength=len(trace))
    # So a prompt still has about its length, by which orders tell requests apart.
    block = trace.trace_block * one_in
    return Trace(
        name=trace.name,
        trace_block=block,
        arrival=trace.arrival.copy(),
        input_length=np.clip(counts * block, 1, _LONGEST),
        output_length=trace.output_length.copy(),
        ids=trace.ids[places[kept]],
        offsets=np.concatenate(([0], np.cumsum(counts))),
        session=np.zeros(0, np.int64),
    )


def _mixed(ids: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Returns well-mixed bits of each id, by the finalizer of SplitMix64 (Steele et al., 2014)."""
    bits = ids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
