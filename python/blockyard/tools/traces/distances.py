"""How far apart the uses of a block are: the least cache that still holds it.

After a request the order of an LRU cache that evicts leaves first is: the blocks of this request
from the root down, then those of the request before that are in no later one, and so on. No size
stands in that rule, so a cache of C blocks holds the first C of them, and one pass tells for all
sizes. This is Mattson's stack distance (R. L. Mattson et al., "Evaluation techniques for storage
hierarchies", IBM Systems Journal 9(2), 1970), with the path of a request as what is pushed.

What a request used last and no later one has used is always the lower end of its path: whatever
continues or leaves a path uses it from the root on. So a request's path falls into a few runs, each
with one last user, and a tree over requests, not over blocks, does with two steps for each run.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from blockyard.tools.traces.future import on_paths, previous_users

__all__ = ["NEVER", "stack_distances"]

NEVER: Final = 2**63 - 1
"""The distance of a first use: no cache holds what was never there."""


def stack_distances(ids: NDArray[np.int64], paths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns, for each use of a block, the size in blocks of the least LRU cache that hits.

    A cache of C blocks hits exactly where the distance is at most C, as `blockyard replay --model
    sequential --policy recency` does: one request after another, its own path pinned, leaves
    evicted first, a path longer than the cache cut off. So the distance is 1 more than the number
    of other blocks in front of it: those used since, and those above it in its last user's path.

    Args:
        ids: The ids of all requests, one request after another; an id has one parent.
        paths: Request i holds ids[paths[i, 0] : paths[i, 1]], shape (requests, 2). For what the
            cache sees these are the full blocks of its prompt.

    Returns:
        Blocks, 1 or more; `NEVER` at an id's first use, and at places that are on no path. Shape
        (ids,). Along a path they rise.
    """
    distances = np.full(len(ids), NEVER)
    last = previous_users(ids, paths)
    places, request = on_paths(paths)
    known = np.flatnonzero(last[places] >= 0)
    if not len(known):
        return distances
    places, users = places[known], request[known]
    last = last[places]
    # A run: neighbours in one path that have the same last user.
    begins = np.concatenate(([True], (users[1:] != users[:-1]) | (last[1:] != last[:-1])))
    starts = np.flatnonzero(begins)
    counts = np.diff(starts, append=len(known))
    taken = _taken(last[starts], counts, len(paths))
    # What was pushed after the last user, less what others took out of that since. The runs above
    # this one count as taken, but stood in front of it: as many blocks as its depth.
    pushed = np.concatenate(([0], np.cumsum(paths[:, 1] - paths[:, 0])))
    front = pushed[users[starts]] - pushed[last[starts] + 1] - taken
    distances[places] = np.repeat(front, counts) + places - paths[users, 0] + 1
    return distances


def _taken(
    owners: NDArray[np.int64], counts: NDArray[np.int64], requests: int
) -> NDArray[np.int64]:
    """Returns for each run, in order, the blocks that runs before it took from later owners.

    Args:
        owners: The request that used a run's blocks last, shape (runs,).
        counts: The run's blocks, shape (runs,).
        requests: Requests in all.
    """
    # A Fenwick tree, with the latest request first: a prefix of it is all later owners.
    tree = [0] * (requests + 1)
    taken = []
    for place, count in zip((requests - owners).tolist(), counts.tolist(), strict=True):
        at, total = place - 1, 0
        while at:
            total += tree[at]
            at &= at - 1
        taken.append(total)
        at = place
        while at <= requests:
            tree[at] += count
            at += at & -at
    return np.array(taken, np.int64)
