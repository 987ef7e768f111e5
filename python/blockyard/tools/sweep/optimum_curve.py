"""The clairvoyant bound at one size, by runs of blocks instead of single ones.

What a request leaves behind falls into a few runs, each with one next user, as whatever continues
or leaves a path uses it from the root on. To keep a run until then is to keep an interval of
requests busy, as many blocks wide as the run. Evicting what is due last, down to the blocks that
the running request does not hold, keeps the most of them: it is the rule of `replay --policy
optimum`, which names the same hits block by block.
"""

import heapq

import numpy as np

from blockyard.tools.traces.future import full_blocks, next_users, on_paths
from blockyard.tools.traces.trace import Trace

__all__ = ["Future"]


class Future:
    """Next uses of each block of a trace, prepared once for all sizes.

    Args:
        trace: The requests; their full blocks are what is cached.
    """

    def __init__(self, trace: Trace) -> None:
        self._full = full_blocks(trace)
        paths = np.stack((trace.offsets[:-1], trace.offsets[:-1] + self._full), 1)
        # A block stands at the same depth in every path, so what a size cuts off of one use it
        # cuts off of all: which request is next depends on no size.
        users = next_users(trace.ids, paths)
        places, owners = on_paths(paths)
        used = users[places] < len(trace)
        places, owners = places[used], owners[used]
        users, depth = users[places], places - paths[owners, 0]
        begins = np.ones(len(users), np.bool_)
        begins[1:] = (users[1:] != users[:-1]) | (owners[1:] != owners[:-1])
        starts = np.flatnonzero(begins)
        self._owner = owners[starts]
        self._next = users[starts]
        self._depth = depth[starts]
        self._blocks = np.diff(starts, append=len(users))

    def hits(self, size: int) -> int:
        """Returns the blocks that a cache of `size` blocks finds, over all requests.

        Args:
            size: Blocks, 1 or more.
        """
        room = (size - np.minimum(self._full, size)).tolist()
        blocks = np.clip(size - self._depth, 0, self._blocks)
        there = np.flatnonzero(blocks)
        runs = np.searchsorted(self._owner[there], np.arange(len(room) + 1)).tolist()
        due, blocks = self._next[there].tolist(), blocks[there].tolist()
        # Of the blocks kept for each request, only their number matters.
        kept = [0] * len(room)
        latest: list[int] = []
        total = hits = 0
        for request, most in enumerate(room):
            found = kept[request]
            if found:
                hits += found
                total -= found
                kept[request] = 0
            while total > most:
                user = -latest[0]
                # What is due at an earlier request has been found: its entry is stale.
                gone = min(kept[user], total - most)
                kept[user] -= gone
                total -= gone
                if not kept[user]:
                    heapq.heappop(latest)
            for run in range(runs[request], runs[request + 1]):
                user = due[run]
                if not kept[user]:
                    heapq.heappush(latest, -user)
                kept[user] += blocks[run]
                total += blocks[run]
        return hits
