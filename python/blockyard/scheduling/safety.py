"""Where who is preempted must be parked: who may begin, and who may be stopped. INV-11, INV-25.

A request's claim is all it may ever need: the blocks of its prompt and of all that it may sample,
each counted for it, whoever else holds the same. Those that are there are safe while

    the device holds all their claims at once, or
    the host holds all their claims but the largest of those that run.

Nobody is lost then, however long they grow. Say nobody goes on for want of room. What is parked
leaves the device: its slots of the host are promised. Of those that run all but the largest can be
stopped one after the other, as the host has room for the claims of them all. What runs alone gives
up what it holds twice, and then holds no more than its table, which is no more than its claim, and
that fits: `Scheduler.add` has refused what does not. So it ends, and the next comes back.

They stay safe. Who begins, or is stopped, is asked for here. Who comes back can only make the
largest that runs larger; who ends takes its claim away, and if that was the largest, the host
has room for all others.
"""

from collections.abc import Iterable

from blockyard.scheduling.request import Request
from blockyard.yard.cache import KVCache

__all__ = ["on_host"]


def on_host(cache: KVCache, running: Iterable[Request], kept: Iterable[Request]) -> int:
    """Blocks of the host that parking may take before all have ended.

    Args:
        cache: Where they are.
        running: Those that run, or shall.
        kept: Those that are parked, or shall be.

    Returns:
        Their claims but the largest of those that run; 0 where the device holds all at once.
    """
    claims = [_claim(entry, cache.block_size) for entry in running]
    total = sum(claims) + sum(_claim(entry, cache.block_size) for entry in kept)
    return 0 if total <= cache.limit() else total - max(claims, default=0)


def _claim(entry: Request, block_size: int) -> int:
    return -(-(len(entry.prompt) + entry.max_tokens - 1) // block_size)
