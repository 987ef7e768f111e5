"""Which requests may begin, and which may be stopped, where every victim must be parked.

A request's claim is the most that it may ever need: the blocks of its prompt and of all that it
may sample, counted for it alone, however many others hold the same blocks. A set of requests is
safe while

    the device holds all their claims at once, or
    the tiers below hold all their claims but the largest of those that run.

Then no request is lost, however long all of them grow. Suppose that none goes on for want of
room. What is parked leaves the device, as its slots below are promised. All that run but the
largest can be stopped one after the other, as there is room below for all those claims. The one
that is left gives up what it holds twice; then it holds no more than its table, which is no more
than its claim, and that fits: `Scheduler.add` has refused what does not. So it ends, and the next
one comes back.

The set stays safe. A begin and a stop are checked here. A request that comes back can only make
the largest running claim larger. A request that ends takes its claim away; if that was the
largest, the tiers below have room for all others. INV-11, INV-25.

A request is parked on one tier, as a whole. So two tiers hold less than both together may have
slots: where none of the two has room for a claim, each may have almost that many left.
"""

from collections.abc import Iterable
from typing import NamedTuple

from blockyard.scheduling.request import Request
from blockyard.yard.cache import KVCache

__all__ = ["Claims", "claims_below"]


class Claims(NamedTuple):
    """What parking may take before some requests have ended, in blocks."""

    blocks: int
    """Blocks below the device, all together; 0 where the device holds all at once."""
    largest: int
    """The most of them that one request takes."""

    def fit(self, limits: Iterable[int]) -> bool:
        """Whether tiers of these sizes hold them, in whatever order the requests are parked."""
        return self.blocks <= self.room(limits)

    def room(self, limits: Iterable[int]) -> int:
        """Blocks that can be parked for certain on tiers of these sizes."""
        sizes = [size for size in limits if size >= self.largest] or [0]
        together = sum(sizes) - (len(sizes) - 1) * max(self.largest - 1, 0)
        return max(*sizes, together)


def claims_below(cache: KVCache, running: Iterable[Request], kept: Iterable[Request]) -> Claims:
    """Claims on the tiers below the device.

    Args:
        cache: The cache that holds them.
        running: Requests that run, or shall run.
        kept: Requests that are parked, or shall be parked.

    Returns:
        Their claims but the largest of those that run.
    """
    claims = sorted(entry.max_blocks(cache.block_size) for entry in running)
    parked = [entry.max_blocks(cache.block_size) for entry in kept]
    if sum(claims) + sum(parked) <= cache.limit():
        return Claims(0, 0)
    below = claims[:-1] + parked
    return Claims(sum(below), max(below, default=0))
