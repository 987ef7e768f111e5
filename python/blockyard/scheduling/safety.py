"""Which requests may begin, and which may be stopped, where every victim must be parked.

A request's claim is the most that it may ever need: the blocks of its prompt and of all that it
may sample, counted for it alone, however many others hold the same blocks. A set of requests is
safe while

    the device holds all their claims at once, or
    a tier below holds all their claims but the largest of those that run.

Then no request is lost, however long all of them grow. Suppose that none goes on for want of
room. What is parked leaves the device, as its slots below are promised. All that run but the
largest can be stopped one after the other, as there is room below for all those claims. The one
that is left gives up what it holds twice; then it holds no more than its table, which is no more
than its claim, and that fits: `Scheduler.add` has refused what does not. So it ends, and the next
one comes back.

The set stays safe. A begin and a stop are checked here. A request that comes back can only make
the largest running claim larger. A request that ends takes its claim away; if that was the
largest, that tier has room for all others. INV-11, INV-25.

With several tiers below, one of them must have the room: what is parked there may block idle blocks
above it on another, so that a request can take as much of each as its claim.
"""

from collections.abc import Iterable

from blockyard.scheduling.request import Request
from blockyard.yard.cache import KVCache

__all__ = ["claims_below"]


def claims_below(cache: KVCache, running: Iterable[Request], kept: Iterable[Request]) -> int:
    """Blocks below the device that parking may take before all of these requests have ended.

    Args:
        cache: The cache that holds them.
        running: Requests that run, or shall run.
        kept: Requests that are parked, or shall be parked.

    Returns:
        Their claims but the largest of those that run; 0 where the device holds all at once.
    """
    claims = [entry.max_blocks(cache.block_size) for entry in running]
    total = sum(claims) + sum(entry.max_blocks(cache.block_size) for entry in kept)
    return 0 if total <= cache.limit() else total - max(claims, default=0)
