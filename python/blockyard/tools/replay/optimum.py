"""The bound of one tier that knows the future."""

import heapq

import numpy as np
from numpy.typing import NDArray

from blockyard.tools.traces.future import next_users

__all__ = ["Optimum"]


class Optimum:
    """Evicts the block whose next use is last; among equals, the deepest first.

    A request that uses a block uses its parent too, so this order evicts leaves only.

    Args:
        ids: The ids of all requests, one request after another.
        paths: Request i holds ids[paths[i, 0] : paths[i, 1]], shape (requests, 2).
        device: Blocks that the device holds.
    """

    down = up = disk_down = disk_up = 0

    def __init__(self, ids: NDArray[np.int64], paths: NDArray[np.int64], device: int) -> None:
        self.device = device
        self.ids = ids.tolist()
        self.following = next_users(ids, paths).tolist()
        self.due: dict[int, int] = {}
        self.queue: list[tuple[int, int, int]] = []

    def serve(self, request: int, first: int, end: int) -> tuple[int, int, int]:  # noqa: ARG002
        """Serves a request, and returns its hits."""
        path, following = self.ids[first:end], self.following[first:end]
        hits = sum(block in self.due for block in path)
        # From here on the path's entries in the queue are stale, so the path is pinned.
        self.due.update(zip(path, following, strict=True))
        while len(self.due) > self.device:
            due, _, block = heapq.heappop(self.queue)
            if self.due.get(block) == -due:
                del self.due[block]
        for depth, (block, due) in enumerate(zip(path, following, strict=True)):
            heapq.heappush(self.queue, (-due, -depth, block))
        return hits, 0, 0

    def audit(self) -> str:
        """Says that no cache was used."""
        return "none"
