"""Writes what is published to the tier that outlives the process, as at a clean stop."""

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np

from blockyard._core import Cache
from blockyard.shared.layout import TierName
from blockyard.shared.timings import Clock
from blockyard.yard.offload import Offload

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Flush"]

_FIRST: Final = 4
"""Blocks in the air before any has landed, into free slots; where none is free, one: a disk that
fails costs no more of what it had."""
_BYTES: Final = 1 << 28
"""Bytes in the air at most."""
_BLOCKS: Final = 1024
"""Blocks in the air at most, where nobody says how many bytes a block has."""
_FAILURES: Final = 3
"""Copies in a row of which nothing has landed, after which the disk is left alone."""
_PAUSE: Final = 5e-4
"""Seconds between two questions whether a copy has ended."""


class Flush:
    """Plans copies to the disk, a few at a time, until all is there, nothing moves or time is over.

    Make it with `KVCache.flushing`. The caller's loop carries the copies out:

        flush = cache.flushing(until=20.0)
        while flush.plan():
            ...  # as in each step: dispatch, submit, poll, commit
        left = flush.left()

    Where the disk is too small for all, what is newest is there at the end: what the disk has goes
    for what is newer. What fails is tried again as long as something lands. While it goes on
    nothing is copied down ahead of need, as that could evict what is not written yet.

    Args:
        cache: The bookkeeping.
        offload: What copies down ahead of need, and does not meanwhile.
        tier: Where to; None for nowhere: there is nothing to do then.
        seconds: The bound, from now on.
        block_bytes: Bytes of a block; None where nobody says.
        clock: Seconds.
    """

    def __init__(  # noqa: PLR0913 - keywords
        self,
        cache: Cache,
        offload: Offload,
        tier: TierName | None,
        seconds: float,
        *,
        block_bytes: int | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._cache, self._offload, self._tier, self._clock = cache, offload, tier, clock
        self._end = clock() + seconds
        self._over = tier is None or seconds == 0
        self._rest: NDArray[np.uint8] = np.zeros((0, 32), np.uint8)
        """Keys that this pass has not planned yet."""
        self._instead, self._newer = self._rest, 0
        """Keys of what goes from a full disk, and for how many of the rest, from the first."""
        self._before: int | None = None
        """Blocks that were not written when this pass began, where nothing was in the air then."""
        self._passes = 0
        self._air: deque[tuple[frozenset[int], NDArray[np.uint8], int]] = deque()
        """What is in the air: flights, the keys of their blocks and others, and their number."""
        self._limit = _BLOCKS if block_bytes is None else max(_FIRST, _BYTES // block_bytes)
        self._most: int | None = None
        """Blocks in the air; None until some have landed, and where the last have not."""
        self._failures = 0

    def plan(self) -> bool:
        """Plans the next copies, which `dispatch` hands out.

        Returns:
            Whether to go on: carry out what is planned, and ask again.
        """
        goes_on = self._plan()
        if goes_on:
            self._offload.skip()
        return goes_on

    def run(self, carry: Callable[[], bool | int]) -> int:
        """Plans until there is nothing more to do.

        Args:
            carry: Carries out what is planned; returns whether any copy has ended.

        Returns:
            How many blocks are not on the disk, as `left`.
        """
        while self.plan():
            if not carry():
                time.sleep(_PAUSE)
        return self.left()

    def _plan(self) -> bool:
        if self._over or self._tier is None:
            return False
        if self._cache.undispatched() is not None:
            return self._clock() < self._end
        flying = set(self._cache.dispatched())
        self._land(flying, self._tier)
        while self._clock() < self._end and self._failures < _FAILURES:
            # What others have in the air may hang: the first pass does not wait for it.
            ready = not len(self._rest) and (not flying or self._passes == 0)
            if ready and not self._begin(self._tier, still=not flying):
                break
            if self._fill(self._tier) or flying:
                return True
        self._over = True
        return False

    def left(self) -> int:
        """Returns how many blocks that a request finds above are not on the disk, durable."""
        return 0 if self._tier is None else len(self._cache.unwritten(self._tier))

    def _begin(self, tier: TierName, *, still: bool) -> bool:
        """Begins a pass; returns whether there is one: not where the last has changed nothing."""
        self._rest = self._cache.unwritten(tier)
        self._instead, self._newer = self._cache.outranked(tier)
        left, before = len(self._rest), self._before
        # What was in the air when a pass began may be written by the next one.
        self._before = left if still else None
        self._passes += 1
        return left > 0 and (before is None or left < before)

    def _fill(self, tier: TierName) -> bool:
        """Plans as much as may be in the air; returns whether anything was planned."""
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
        """Looks at what has ended."""
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
