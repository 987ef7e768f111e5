"""The links on which copies queue, in virtual time."""

import heapq
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

from blockyard.shared.plan import Plan

__all__ = ["Link", "LinkDirection", "StoreTimes"]


class StoreTimes(NamedTuple):
    """How long copies to and from a store take."""

    seconds: float = 0.0
    """Of one block."""
    latency: float = 0.0
    """From submit to first byte."""


class LinkDirection:
    """One direction of a link: it carries one copy after another.

    Args:
        seconds: How long a block takes.
        latency: Seconds from submit to first byte.
    """

    __slots__ = ("_free", "_latency", "_seconds")

    def __init__(self, seconds: float, latency: float) -> None:
        self._seconds = seconds
        self._latency = latency
        self._free = 0.0

    def lands(self, blocks: int, now: float) -> float:
        """Returns when blocks would arrive that are sent at `now`."""
        return max(now, self._free) + blocks * self._seconds + self._latency

    def send(self, blocks: int, now: float) -> float:
        """Sends blocks, and returns when they arrive."""
        self._free = max(now, self._free) + blocks * self._seconds
        return self._free + self._latency


class Link:
    """Says when copies land; each direction has its own queue.

    Args:
        block_bytes: Bytes of one block on one rank; every rank has its own link.
        bytes_per_second: Per direction.
        latency: Seconds from submit to first byte.
        disk: Seconds of a block to or from a tier below the host. That has a queue of its own in
            each direction, and holds up no copy of the link.
        store: What copies to or from a shared store take, which has such queues, too.
    """

    __slots__ = ("_air", "_disk", "_latency", "_order", "_seconds", "_store", "_ways")

    def __init__(
        self,
        block_bytes: float,
        bytes_per_second: float,
        latency: float,
        disk: float = 0.0,
        store: StoreTimes = StoreTimes(),  # noqa: B008 - immutable
    ) -> None:
        self._seconds = block_bytes / bytes_per_second
        self._disk = disk
        self._store = store
        self._latency = latency
        self._ways: dict[tuple[str, str], LinkDirection] = {}
        self._air: list[tuple[float, int, Plan]] = []
        self._order = count()

    def send(self, plans: Sequence[Plan], now: float) -> None:
        """Submits plans at `now` seconds."""
        for plan in plans:
            way: tuple[str, str] = (plan.source_tier, plan.destination_tier)
            for lower in ("remote", "disk"):
                if lower in way:
                    # All tiers above share what this one can read or write.
                    way = (lower, "up") if way[0] == lower else (lower, "down")
                    break
            if way not in self._ways:
                self._ways[way] = self._direction(way)
            lands = self._ways[way].send(len(plan), now)
            heapq.heappush(self._air, (lands, next(self._order), plan))

    def _direction(self, way: tuple[str, str]) -> LinkDirection:
        if way[0] == "remote":
            return LinkDirection(*self._store)
        if way[0] == "disk":
            return LinkDirection(self._disk, self._latency)
        # A copy within the device takes almost no time beside one over the link.
        return LinkDirection(0.0 if way[0] == way[1] else self._seconds, self._latency)

    def next(self) -> float | None:
        """Returns when the next plan lands, or None when nothing is in flight."""
        return self._air[0][0] if self._air else None

    def landed(self, now: float) -> list[Plan]:
        """Returns the plans that have landed by `now`, in the order of landing."""
        plans = []
        while self._air and self._air[0][0] <= now:
            plans.append(heapq.heappop(self._air)[2])
        return plans
