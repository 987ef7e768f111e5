"""Writes published blocks to the tier that outlives the process, as at a clean stop."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from blockyard._core import Cache
from blockyard.shared.layout import TierName
from blockyard.shared.timings import Clock
from blockyard.yard.copy_ahead import CopyAhead

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Flush", "Flushes"]

_FIRST: Final = 4
"""Blocks in flight before any has landed, into free slots; one if none is free, so that a failing
disk loses no more of its blocks."""
_BYTES: Final = 1 << 28
"""Most bytes in flight."""
_BLOCKS: Final = 1024
"""Most blocks in flight, if the bytes of a block are unknown."""
_FAILURES: Final = 3
"""Failed copies in a row after which the disk is left alone."""
_PAUSE: Final = 5e-4
"""Seconds between two questions whether a copy has ended."""


class Flush:
    """Plans copies to the disk, a few at a time, until all blocks are there or time is over.

    Make it with `KVCache.flushing`. The caller's loop carries the copies out:

        flush = cache.flushing(until=20.0)
        while flush.plan():
            ...  # as in each step: dispatch, submit, poll, commit
        left = flush.left()

    If the disk is too small, newer blocks replace older ones. Failed copies are retried as long as
    others land. Meanwhile nothing is copied down ahead of need: that could evict blocks before they
    are written.

    Args:
        cache: The bookkeeping.
        copy_ahead: The copies down ahead of need, which pause meanwhile.
        tier: The tier to write to; None for nothing to do.
        seconds: The bound, from now on.
        block_bytes: Bytes of a block; None if unknown.
        clock: Seconds.
    """

    def __init__(  # noqa: PLR0913 - keywords
        self,
        cache: Cache,
        copy_ahead: CopyAhead,
        tier: TierName | None,
        seconds: float,
        *,
        block_bytes: int | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._cache, self._copy_ahead, self._tier, self._clock = cache, copy_ahead, tier, clock
        self._end = clock() + seconds
        self._over = tier is None or seconds == 0
        self._rest: NDArray[np.uint8] = np.zeros((0, 32), np.uint8)
        """Keys that this pass has not planned yet."""
        self._instead, self._newer = self._rest, 0
        """Keys to evict from a full disk, and for how many of the rest, from the first."""
        self._before: int | None = None
        """Blocks that were not written when this pass began, if nothing was in flight then."""
        self._passes = 0
        self._air: deque[tuple[frozenset[int], NDArray[np.uint8], int]] = deque()
        """Copies in flight: flights, the keys of their blocks and others, and their number."""
        self._limit = _BLOCKS if block_bytes is None else max(_FIRST, _BYTES // block_bytes)
        self._most: int | None = None
        """Most blocks in flight; None until some have landed, and after the last have failed."""
        self._failures = 0

    def plan(self) -> bool:
        """Plans the next copies, which `dispatch` hands out.

        Returns:
            Whether to go on: carry out the plans, and call it again.
        """
        goes_on = self._plan()
        if goes_on:
            self._copy_ahead.skip()
        return goes_on

    def run(self, carry: Callable[[], bool | int]) -> int:
        """Plans until there is nothing more to do.

        Args:
            carry: Carries out the plans; returns whether any copy has ended.

        Returns:
            How many blocks are not on the disk, as `left`.
        """
        return Flushes([self]).run(carry)

    def _plan(self) -> bool:
        if self._over or self._tier is None:
            return False
        if self._cache.undispatched() is not None:
            return self._clock() < self._end
        flying = set(self._cache.dispatched())
        self._land(flying, self._tier)
        while self._clock() < self._end and self._failures < _FAILURES:
            # Other copies in flight may hang: the first pass does not wait for them.
            ready = not len(self._rest) and (not flying or self._passes == 0)
            if ready and not self._begin(self._tier, still=not flying):
                break
            if self._fill(self._tier) or flying:
                return True
        self._over = True
        return False

    def left(self) -> int:
        """Returns how many cached blocks are not durable on the disk."""
        return 0 if self._tier is None else len(self._cache.unwritten(self._tier))

    def _begin(self, tier: TierName, *, still: bool) -> bool:
        """Begins a pass, unless the last one has changed nothing; returns whether it has."""
        self._rest = self._cache.unwritten(tier)
        self._instead, self._newer = self._cache.outranked(tier)
        left, before = len(self._rest), self._before
        # Blocks in flight when a pass began may be written by the next one.
        self._before = left if still else None
        self._passes += 1
        return left > 0 and (before is None or left < before)

    def _fill(self, tier: TierName) -> bool:
        """Plans as many copies as may be in flight; returns whether there were any."""
        flying = planned = sum(blocks for _, _, blocks in self._air)
        most = self._most or max(1, min(_FIRST, self._cache.room(tier).free))
        if flying > most // 2:
            return False
        while len(self._rest) and planned < most and self._clock() < self._end:
            count = min(most - planned, self._newer or self._limit)
            keys, self._rest = self._rest[:count], self._rest[count:]
            # More of these than of those: some may not go now.
            instead = self._instead[: 2 * count if self._newer else 0]
            self._newer = max(0, self._newer - count)
            plans, looked = self._cache.write_down(keys, tier, instead)
            self._instead = self._instead[looked:]
            if plans:
                blocks = sum(map(len, plans))
                self._air.append((frozenset(plan.flight for plan in plans), keys, blocks))
                planned += blocks
        return planned > flying

    def _land(self, flying: set[int], tier: TierName) -> None:
        """Takes note of ended flights."""
        for _ in range(len(self._air)):
            flights, keys, _ = self._air[0]
            if flights & flying:
                self._air.rotate(-1)
                continue
            self._air.popleft()
            if self._cache.written(keys, tier):
                self._failures = 0
                self._most = min(2 * (self._most or _FIRST), self._limit)
            else:
                self._failures += 1
                self._most = None


class Flushes:
    """The flushes of several caches, such as those of groups of layers, in one loop.

    Args:
        flushes: They may share threads and disks.
    """

    def __init__(self, flushes: Sequence[Flush]) -> None:
        self._flushes = flushes

    def plan(self) -> bool:
        """Plans the next copies of each; returns whether any goes on."""
        goes_on = False
        for flush in self._flushes:
            goes_on |= flush.plan()
        return goes_on

    def run(self, carry: Callable[[], bool | int]) -> int:
        """Plans until there is nothing more to do, as `Flush.run`.

        Args:
            carry: Carries out the plans of all; returns whether any copy has ended.

        Returns:
            How many blocks are not on the disk, of all caches.
        """
        while self.plan():
            if not carry():
                time.sleep(_PAUSE)
        return sum(flush.left() for flush in self._flushes)
