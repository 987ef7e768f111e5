"""Copies between a GPU's memory and a disk, through a little pinned memory between them."""

from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from blockyard._core import Misuse
from blockyard.crane.copiers import BlockKeys, Landed, Receipt, Slots
from blockyard.crane.copiers.cuda import CudaCopier
from blockyard.crane.copiers.disk import DiskCopier
from blockyard.crane.tiers import Tier
from blockyard.crane.tiers.device import DeviceTier
from blockyard.crane.tiers.disk import DiskTier
from blockyard.crane.tiers.pinned import PinnedTier
from blockyard.shared.log import Limited
from blockyard.shared.owner import Owner, owned
from blockyard.shared.plan import Cause
from blockyard.shared.single import Single
from blockyard.shared.thresholds import Thresholds

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["BounceCopier"]

_log = Limited("blockyard")
_BYTES: Final = 64 << 20
"""Pinned memory that blocks pass through, where a block is not larger."""


class BounceCopier(Single):
    """Copies blocks between a GPU and a disk, a few at a time by way of pinned memory of its own.

    No call waits. Copies begin in the order in which they were submitted, and go on when receipts
    are polled. Its verbs and its receipts are for one thread at a time: a call that comes during
    another one is refused.

    Args:
        device: The GPU's memory.
        disk: The disk.
        copier: What copies between memory and that disk; this closes it.
        thresholds: As in `CudaCopier`.

    Raises:
        Unavailable: There is not enough memory to pin.
    """

    def __init__(
        self,
        device: DeviceTier,
        disk: DiskTier,
        copier: DiskCopier,
        thresholds: Thresholds | None = None,
    ) -> None:
        layout = device.layout
        slots = max(min(_BYTES // layout.block_bytes, disk.blocks), 2)
        # It is this rank's alone, also planes that ranks share.
        self._memory = PinnedTier(replace(layout, ranks=1), slots, gpu=device.gpu)
        try:
            self._gpu = CudaCopier(device, self._memory, thresholds=thresholds)
        except BaseException:
            self._memory.close()
            raise
        self._disk, self._copier = disk, copier
        self._free = self._all(slots)
        self._flying: deque[_Bounced] = deque()
        self._owner = Owner()
        self._turning = False
        self._closed = False

    def start(self, source: Tier, destination: Tier, sources: Slots, destinations: Slots) -> None:
        """Refuses, as `DiskCopier.start`.

        Raises:
            Misuse: Always.
        """
        self._copier.start(source, destination, sources, destinations)

    @owned
    def start_keyed(
        self,
        source: Tier,
        destination: Tier,
        sources: Slots,
        destinations: Slots,
        *,
        keys: BlockKeys,
        parents: BlockKeys | None,
    ) -> Receipt | None:
        """Takes a copy, as `KeyedCopier.start_keyed`.

        Raises:
            Misuse: The copier is closed.
        """
        if self._closed:
            raise Misuse("the copier is closed")
        down = destination.name == self._disk.name
        stamps = self._disk.stamps_of(destinations) if down else None
        taken = _Bounced(self, (source, destination), (sources, destinations), (keys, parents))
        taken.stamps = stamps
        self._flying.append(taken)
        self._go_on()
        return taken

    @owned
    def go_on(self) -> None:
        """Begins what can begin, and takes what has ended."""
        self._go_on()

    def _go_on(self) -> None:
        for one in self._flying:
            one.advance()
            free = self._free[one.stamps is not None]
            while one.begins and free:
                one.begin(free)
        self._flying = deque(one for one in self._flying if one.landed is None)

    def first(self, one: "_Bounced", rows: slice, memory: Slots) -> Receipt | None:
        """Begins the first half of the way of some blocks; None where it takes no more now."""
        source, _ = one.tiers
        sources, _ = one.slots
        if one.stamps is not None:
            return self._gpu.start(source, self._memory, sources[rows], memory)
        return self._copier.start_keyed(
            source, self._memory, sources[rows], memory, keys=one.keys[0][rows], parents=None
        )

    def second(self, one: "_Bounced", rows: slice, memory: Slots) -> Receipt | None:
        """Begins the other half."""
        _, destination = one.tiers
        _, destinations = one.slots
        if one.stamps is None:
            return self._gpu.start(self._memory, destination, memory, destinations[rows])
        keys, parents = one.keys
        return self._copier.start_keyed(
            self._memory,
            destination,
            memory,
            destinations[rows],
            keys=keys[rows],
            parents=None if parents is None else parents[rows],
            stamps=(one.stamps[0][rows], one.stamps[1]),
        )

    @staticmethod
    def _all(slots: int) -> tuple[list[int], list[int]]:
        """Each way has a half, so that reads go on where writes hang."""
        return list(range(slots // 2)), list(range(slots // 2, slots))

    def give(self, one: "_Bounced", memory: Slots) -> None:
        """Takes pinned memory back."""
        self._free[one.stamps is not None].extend(memory.tolist())

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Lets the calls until its end share what they ask of driver and disk."""
        with ExitStack() as turns:
            turns.enter_context(self._gpu.turn())
            turns.enter_context(self._copier.turn())
            self.go_on()
            self._turning = True
            try:
                yield
            finally:
                self._turning = False

    @property
    def turning(self) -> bool:
        """Whether a turn has asked already."""
        return self._turning

    @owned
    def reset(self) -> None:
        """Ends all copies: no memory is read or written any more."""
        self._end()

    def _end(self) -> None:
        self._gpu.reset()
        self._copier.reset()
        for one in self._flying:
            one.end()
        self._flying.clear()
        self._free = self._all(self._memory.blocks)

    @owned
    def close(self) -> None:
        """Ends all copies, and frees the pinned memory."""
        if self._closed:
            return
        self._closed = True
        self._end()
        self._copier.close()
        self._gpu.close()
        self._memory.close()


class _Bounced:
    """A copy by way of pinned memory, and its receipt."""

    __slots__ = (
        *("_cause", "_copier", "_good", "_next", "_parts"),
        *("keys", "landed", "slots", "stamps", "tiers"),
    )

    def __init__(
        self,
        copier: BounceCopier,
        tiers: tuple[Tier, Tier],
        slots: tuple[Slots, Slots],
        keys: tuple[BlockKeys, BlockKeys | None],
    ) -> None:
        self._copier, self.tiers, self.slots, self.keys = copier, tiers, slots, keys
        self.stamps: tuple[NDArray[np.uint64], int] | None = None
        self._good = len(slots[0])
        self._cause: Cause | None = None
        self._next = 0
        self._parts: list[_Part] = []
        self.landed: Landed | None = None

    @property
    def begins(self) -> bool:
        """Whether there are blocks that have not begun."""
        return self._next < self._good

    def begin(self, free: list[int]) -> None:
        """Has as many blocks begin as there is memory for."""
        count = min(len(free), self._good - self._next)
        memory = np.array([free.pop() for _ in range(count)], np.uint32)
        self._parts.append(_Part(slice(self._next, self._next + count), memory))
        self._next += count
        self.advance()

    def advance(self) -> None:
        """Takes what has ended of each half, and begins the other."""
        for part in self._parts:
            self._advance(part)
        self._parts = [part for part in self._parts if not part.over]
        if not self._parts and not self.begins and self.landed is None:
            self.landed = Landed(self._good, self._cause)

    def _advance(self, part: "_Part") -> None:
        while not part.over:
            if part.receipt is None:
                begin = self._copier.second if part.half else self._copier.first
                try:
                    part.receipt = begin(self, part.rows, part.memory)
                except Exception as error:  # noqa: BLE001 - it fails this copy, and no other's call
                    _log.warning("a copy by way of pinned memory was refused: %r", error)
                    self._over(part, 0, Cause.FAILED)
                    return
                if part.receipt is None:
                    return
            landed = part.receipt.poll()
            if landed is None:
                return
            part.receipt = None
            if part.half or not landed.good:
                self._over(part, landed.good, landed.cause)
                return
            self._cut(part, landed.good, landed.cause)
            part.half = True
            self._copier.give(self, part.memory[landed.good :])
            part.memory = part.memory[: landed.good]
            part.rows = slice(part.rows.start, part.rows.start + landed.good)

    def _over(self, part: "_Part", good: int, cause: Cause | None) -> None:
        """Ends a part, with fewer blocks than it had or with all."""
        self._cut(part, good, cause)
        part.over = True
        self._copier.give(self, part.memory)

    def _cut(self, part: "_Part", good: int, cause: Cause | None) -> None:
        end = part.rows.start + good
        if end < min(part.rows.stop, self._good):
            self._good, self._cause = end, cause or Cause.FAILED

    def end(self) -> None:
        """Ends without the rest."""
        if self.landed is None:
            self.landed = Landed(0, Cause.FAILED)

    def poll(self) -> Landed | None:
        """Returns how it has ended, or None."""
        if self.landed is None and not self._copier.turning:
            self._copier.go_on()
        return self.landed


class _Part:
    """Some blocks of a copy, and the pinned memory that they pass through."""

    __slots__ = ("half", "memory", "over", "receipt", "rows")

    def __init__(self, rows: slice, memory: Slots) -> None:
        self.rows, self.memory = rows, memory
        self.receipt: Receipt | None = None
        self.half = False
        """Whether it is on the second half of its way."""
        self.over = False
