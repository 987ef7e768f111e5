"""The virtual-time engine's clock, and the link that copies queue on."""

import heapq
from collections.abc import Sequence
from itertools import count

from blockyard.plan import Plan

__all__ = ["Link"]


class Link:
    """When copies land: each direction carries one plan after another at the link's speed.

    Args:
        block_bytes: Bytes of one block on one rank; every rank has a link of its own.
        bytes_per_second: Per direction.
        latency: Seconds from submit to first byte.
    """

    __slots__ = ("_air", "_free", "_latency", "_order", "_seconds")

    def __init__(self, block_bytes: float, bytes_per_second: float, latency: float) -> None:
        self._seconds = block_bytes / bytes_per_second
        self._latency = latency
        self._free: dict[tuple[str, str], float] = {}
        self._air: list[tuple[float, int, Plan]] = []
        self._order = count()

    def send(self, plans: Sequence[Plan], now: float) -> None:
        """Plans are submitted at `now` seconds."""
        for plan in plans:
            way = (plan.source_tier, plan.destination_tier)
            # A copy within the device takes next to no time beside one over the link.
            seconds = 0.0 if way[0] == way[1] else len(plan) * self._seconds
            end = max(now, self._free.get(way, 0.0)) + seconds
            self._free[way] = end
            heapq.heappush(self._air, (end + self._latency, next(self._order), plan))

    def next(self) -> float | None:
        """When the next plan lands; None when nothing is in the air."""
        return self._air[0][0] if self._air else None

    def landed(self, now: float) -> list[Plan]:
        """Plans that have landed by `now`, in the order of their landing."""
        plans = []
        while self._air and self._air[0][0] <= now:
            plans.append(heapq.heappop(self._air)[2])
        return plans
