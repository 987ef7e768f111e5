"""Copies between tiers of which none has memory here, through a little memory between them."""

from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from blockyard._core import Misuse
from blockyard.crane.copiers import BlockKeys, Landed, Receipt, Slots
from blockyard.crane.copiers.copy_stream import GpuStream
from blockyard.crane.copiers.cuda_copier import CudaCopier
from blockyard.crane.copiers.disk_copier import DiskCopier
from blockyard.crane.tiers import Tier
from blockyard.crane.tiers.device import DeviceTier
from blockyard.crane.tiers.disk import DiskTier
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.crane.tiers.pinned import PinnedTier
from blockyard.shared.copy_tuning import CopyTuning
from blockyard.shared.log import Limited
from blockyard.shared.owner import Owner, Reentry, broke_in, owned
from blockyard.shared.plan import Cause
from blockyard.shared.single import Single

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from blockyard.crane.copiers.store_copier import StoreCopier
    from blockyard.crane.tiers.remote import RemoteTier

__all__ = ["BounceCopier"]

_log = Limited("blockyard")
_BYTES: Final = 64 << 20
"""Memory that blocks pass through, where a block is not larger."""


class BounceCopier(Single):
    """Copies blocks between two tiers, a few at a time by way of memory of its own.

    It is for a GPU and a disk, a GPU and shared stores, and a disk and shared stores: what carries
    their bytes needs memory of this process on the other side.

    No call waits. Copies begin in the order in which they were submitted, and go on when receipts
    are polled. Its verbs and its receipts are for one thread at a time: a call that comes during
    another one is refused.

    Args:
        above: The GPU's memory, whose memory between is pinned; or a disk, whose `DiskCopier` this
            closes.
        below: The disk, or the stores.
        copier: What copies between memory and what is below; this closes it.
        copy_tuning: As in `CudaCopier`.
        streams: As there.

    Raises:
        Unavailable: There is not enough memory, or not enough of it can be pinned.
    """

    def __init__(
        self,
        above: DeviceTier | DiskTier,
        below: "DiskTier | RemoteTier",
        copier: "DiskCopier | StoreCopier",
        copy_tuning: CopyTuning | None = None,
        streams: tuple[GpuStream, GpuStream] | None = None,
    ) -> None:
        # It is this rank's alone, also planes that ranks share.
        layout = replace(above.layout, ranks=1)
        slots = max(min(_BYTES // layout.block_bytes, below.blocks), 2)
        self._memory: PinnedTier | MemoryTier
        self._near: CudaCopier | DiskCopier
        if isinstance(above, DeviceTier):
            self._memory = PinnedTier(layout, slots, gpu=above.gpu)
            try:
                self._near = CudaCopier(
                    above, self._memory, copy_tuning=copy_tuning, streams=streams
                )
            except BaseException:
                self._memory.close()
                raise
        else:
            self._memory = MemoryTier(layout, slots)
            own = above.copier
            self._near = own if isinstance(own, DiskCopier) else DiskCopier(above)
        self._below, self._copier = below, copier
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
    def start_keyed(  # noqa: PLR0913 - KeyedCopier's call
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
        down = destination.name == self._below.name
        ends = (source, destination), (sources, destinations), (keys, parents)
        taken = _Bounced(self, *ends, down=down)
        if isinstance(destination, DiskTier):
            taken.stamps = destination.stamps_of(destinations)
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
        free: dict[bool, Slots] = {}
        for one in self._flying:
            if one.begins:
                if one.down not in free:
                    free[one.down] = self._free(down=one.down)
                free[one.down] = one.begin(free[one.down])
        self._flying = deque(one for one in self._flying if one.landed is None or one.parts)

    def _free(self, *, down: bool) -> Slots:
        """Returns the memory that no part has, of the half of that way.

        Each way has a half, so that reads go on where writes hang.
        """
        slots = self._memory.blocks
        free = np.zeros(slots, np.bool_)
        free[slots // 2 :] = down
        free[: slots // 2] = not down
        for one in self._flying:
            for part in one.parts:
                free[part.memory] = False
        return np.flatnonzero(free).astype(np.uint32)

    def first(self, one: "_Bounced", rows: slice, memory: Slots) -> Receipt | None:
        """Begins the first half of the way of some blocks; None where it takes no more now."""
        source, _ = one.tiers
        sources, _ = one.slots
        copier = self._near if one.down else self._copier
        ends = source, self._memory, sources[rows], memory
        if isinstance(copier, CudaCopier):
            return copier.start(*ends)
        return copier.start_keyed(*ends, keys=one.keys[0][rows], parents=None)

    def second(self, one: "_Bounced", rows: slice, memory: Slots) -> Receipt | None:
        """Begins the other half."""
        _, destination = one.tiers
        _, destinations = one.slots
        copier = self._copier if one.down else self._near
        ends = self._memory, destination, memory, destinations[rows]
        if isinstance(copier, CudaCopier):
            return copier.start(*ends)
        keys, parents = one.keys[0][rows], one.keys[1]
        parents = None if parents is None else parents[rows]
        if one.stamps is None or not isinstance(copier, DiskCopier):
            return copier.start_keyed(*ends, keys=keys, parents=parents)
        stamps = one.stamps[0][rows], one.stamps[1]
        return copier.start_keyed(*ends, keys=keys, parents=parents, stamps=stamps)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Lets the calls until its end share what they ask of driver and disk."""
        with ExitStack() as turns:
            turns.enter_context(self._near.turn())
            turns.enter_context(self._copier.turn())
            self.go_on()
            try:
                self._turning = True
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
        self._turning = False
        self._near.reset()
        self._copier.reset()
        for one in self._flying:
            one.end()
        self._flying.clear()

    @owned
    def close(self) -> None:
        """Ends all copies, and frees the memory. Where it is interrupted, call it again."""
        self._closed = True
        self._end()
        self._copier.close()
        self._near.close()
        self._memory.close()


class _Bounced:
    """A copy by way of memory between, and its receipt."""

    __slots__ = (
        *("_cause", "_copier", "_good", "_next"),
        *("down", "keys", "landed", "parts", "slots", "stamps", "tiers"),
    )

    def __init__(
        self,
        copier: BounceCopier,
        tiers: tuple[Tier, Tier],
        slots: tuple[Slots, Slots],
        keys: tuple[BlockKeys, BlockKeys | None],
        *,
        down: bool,
    ) -> None:
        self._copier, self.tiers, self.slots, self.keys = copier, tiers, slots, keys
        self.down = down
        """Whether it goes to the tier below."""
        self.stamps: tuple[NDArray[np.uint64], int] | None = None
        self._good = len(slots[0])
        self._cause: Cause | None = None
        self._next = 0
        self.parts: list[_Part] = []
        """Those that have memory."""
        self.landed: Landed | None = None

    @property
    def begins(self) -> bool:
        """Whether there are blocks that have not begun."""
        return self._next < self._good

    def begin(self, free: Slots) -> Slots:
        """Has as many blocks begin as there is memory for; returns the rest of that."""
        count = min(len(free), self._good - self._next)
        if count:
            end = self._next + count
            part = _Part(slice(self._next, end), free[:count])
            # At once, so that no block begins twice.
            self.parts, self._next = [*self.parts, part], end
            self.advance()
        return free[count:]

    def advance(self) -> None:
        """Takes what has ended of each half, and begins the other."""
        for part in self.parts:
            self._advance(part)
        self.parts = [part for part in self.parts if not part.over]
        lost = all(part.lost for part in self.parts)
        if lost and not self.begins and self.landed is None:
            self.landed = Landed(self._good, self._cause)

    def _advance(self, part: "_Part") -> None:
        """Takes a part on. Each step is one assignment, at last: an interrupt may come anywhere."""
        while not part.over:
            if part.receipt is None and not part.lost:
                self._start(part)
            if part.lost:
                # Its memory may be written still: it has that until the reset.
                self._good, self._cause = 0, Cause.LOST
                return
            landed = None if part.receipt is None else part.receipt.poll()
            if landed is None:
                return
            if landed.cause is Cause.LOST:
                part.lost = True
                continue
            self._cut(part, landed.good, landed.cause)
            if part.half or not landed.good:
                part.over = True
            else:
                part.turn(landed.good)

    def _start(self, part: "_Part") -> None:
        """Begins a half, if it is taken now."""
        begin = self._copier.second if part.half else self._copier.first
        # So it stays where the copier is broken into: it may have the copy by then.
        part.lost = True
        try:
            receipt = begin(self, part.rows, part.memory)
        except Exception as error:
            if broke_in(error):
                if isinstance(error, Reentry):
                    _log.warning("a copy through memory between was interrupted: %r", error)
                    return
                raise
            # It fails this copy, and no other's call.
            _log.warning("a copy through memory between was refused: %r", error)
            self._cut(part, 0, Cause.FAILED)
            part.over, part.lost = True, False
            return
        part.receipt, part.lost = receipt, False

    def _cut(self, part: "_Part", good: int, cause: Cause | None) -> None:
        end = part.rows.start + good
        if end < min(part.rows.stop, self._good):
            self._good, self._cause = end, cause or Cause.FAILED

    def end(self) -> None:
        """Ends without the rest, when nothing of it is copied any more."""
        self.parts, self._good, self._cause = [], 0, Cause.FAILED
        if self.landed is None:
            self.landed = Landed(0, Cause.FAILED)

    def poll(self) -> Landed | None:
        """Returns how it has ended, or None."""
        if self.landed is None and not self._copier.turning:
            self._copier.go_on()
        return self.landed


class _Part:
    """Some blocks of a copy, and the memory that they pass through."""

    __slots__ = ("half", "lost", "memory", "over", "receipt", "rows")

    def __init__(self, rows: slice, memory: Slots) -> None:
        self.rows, self.memory = rows, memory
        self.receipt: Receipt | None = None
        self.half = False
        """Whether it is on the second half of its way."""
        self.over = False
        self.lost = False
        """Whether its end is unknown."""

    def turn(self, good: int) -> None:
        """Goes to the second half of the way, with the blocks that have come so far."""
        rows, memory = slice(self.rows.start, self.rows.start + good), self.memory[:good]
        self.half, self.receipt, self.rows, self.memory = True, None, rows, memory
