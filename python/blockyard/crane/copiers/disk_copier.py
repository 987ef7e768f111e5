"""Copies between memory and slot files, by the threads of a disk."""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import repeat
from operator import methodcaller
from typing import Final

import numpy as np

from blockyard._core import DiskLane, Misuse
from blockyard._typing import NDArray
from blockyard.crane.copiers import BlockKeys, Landed, Receipt, Slots
from blockyard.crane.tiers import Tier, planes_of
from blockyard.crane.tiers.disk import DiskTier
from blockyard.shared.log import Limited
from blockyard.shared.owner import Owner, owned
from blockyard.shared.plan import Cause
from blockyard.shared.single import Single

__all__ = ["DiskCopier"]

_log = Limited("blockyard", 0)
_CAUSES: Final = {"": None, "failed": Cause.FAILED, "corrupt": Cause.CORRUPT}


class DiskCopier(Single):
    """Copies blocks from and to one disk. Nothing waits but the disk's own threads.

    A copy that hangs is given up in time: no memory is read or written for it then. A slot that a
    thread still writes is written for no other copy before that has ended. Its verbs and its
    receipts are for one thread at a time: a call that comes during another one is refused.

    Args:
        disk: The disk.
        patience: Seconds after which a copy that hangs has failed: since it was submitted, and
            since the disk has ended another one that way.
    """

    def __init__(self, disk: DiskTier, *, patience: float = 30.0) -> None:
        if not patience > 0:
            raise Misuse(f"patience = {patience!r}: must be seconds, more than 0")
        if disk.copier is not None:
            raise Misuse(f"{disk.path} has a DiskCopier already: give that one to all pairs")
        disk.copier = self
        self._disk = disk
        self._owner = Owner()
        self._heard: dict[tuple[DiskLane, bool], float] = {}
        """When a lane has last ended a copy, each way: behind others a copy is not late."""
        self._patience = patience
        self._flying: dict[tuple[DiskLane, int], _Flying] = {}
        self._reports: deque[tuple[DiskLane, list[tuple[int, int, str]]]] = deque()
        """What lanes have reported, each once, and is not noted yet."""
        self._resting = disk.resting()
        self._why = ""
        self._closed = False
        self.collected = False

    def start(self, source: Tier, destination: Tier, _from: Slots, _to: Slots) -> Receipt | None:
        """Refuses: a disk needs the keys of its blocks.

        Raises:
            Misuse: Always.
        """
        raise Misuse(
            f"a plan from {source.name} to {destination.name} without keys: give the yard "
            f'keyed=("{self._disk.name}",)'
        )

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
        stamps: tuple[NDArray[np.uint64], int] | None = None,
    ) -> Receipt | None:
        """Takes a copy, as `KeyedCopier.start_keyed`.

        Args:
            source: As there.
            destination: As there.
            sources: As there.
            destinations: As there.
            keys: As there.
            parents: As there.
            stamps: Those of the blocks and the number of their plan, where `DiskTier.stamps_of` was
                asked before; else it is asked now.

        Raises:
            Misuse: The other side has no memory of this process, or the copier is closed.
        """
        if self._closed:
            raise Misuse("the copier is closed")
        disk = self._disk
        down = destination.name == disk.name
        if down and parents is None:
            raise Misuse(f'a plan to {disk.name} without parents: give keyed=("{disk.name}",)')
        memory, slots, others = (
            (source, destinations, sources) if down else (destination, sources, destinations)
        )
        places = _places(memory)
        if len(slots) and int(slots.max()) >= disk.blocks:
            raise Misuse(f"slots = {slots.max()}: the disk has {disk.blocks}")
        flying = _Flying(self, len(slots), (source, destination), down=down)
        if down and stamps is None:
            stamps = disk.stamps_of(slots)
        try:
            for part in disk.parts:
                rows = part.rows(slots)
                if (down and not part.owned) or (rows is not None and not len(rows)):
                    continue
                which = slice(None) if rows is None else rows
                planes = [place for plane in part.planes for place in places[plane]]
                local = part.local(slots[which])
                flying.open[part.lane] = rows
                if down and stamps is not None and parents is not None:
                    whose = [keys[which]], [parents[which]], [stamps[0][which]]
                    ends = [planes], [others[which]], [stamps[1]]
                    numbers = map(part.lane.submit_down, [local], *whose, *ends)
                else:
                    asked = [keys[which]], [planes], [others[which]]
                    numbers = map(part.lane.submit_up, [local], *asked)
                self._note(flying, part.lane, numbers)
        except BaseException:
            # What was submitted of it must not touch memory that is another's by then.
            self._give_up(flying)
            raise
        return flying

    @owned
    def void(self, keys: BlockKeys, spared: BlockKeys, before: int) -> Receipt:
        """Has the disk void records, as `DiskTier.void`.

        Args:
            keys: As there.
            spared: As there.
            before: As there.

        Raises:
            Misuse: The copier is closed.
        """
        if self._closed:
            raise Misuse("the copier is closed")
        flying = _Flying(self, 1, (self._disk, self._disk), down=True)
        try:
            for part in self._disk.parts:
                if part.owned:
                    flying.open[part.lane] = None
                    numbers = map(part.lane.void_records, [keys], [spared], [before])
                    self._note(flying, part.lane, numbers)
        except BaseException:
            self._give_up(flying)
            raise
        return flying

    def _note(self, flying: "_Flying", lane: DiskLane, numbers: Iterable[int]) -> None:
        """Submits, as `numbers` does when it is asked, and notes the number.

        One call of C does both, so that no interrupt divides them.
        """
        named = zip(repeat(lane), numbers, strict=False)
        self._flying.update(zip(named, [flying], strict=True))

    @owned
    def collect(self) -> None:
        """Takes what the disk's threads have reported, and gives up what has hung for too long."""
        self._collect()

    def _collect(self) -> None:
        now, failed, refused = time.monotonic(), False, False
        for (lane, number), flying in list(self._flying.items()):
            since = max(flying.begun, self._heard.get((lane, flying.down), 0.0))
            if now > since + self._patience:
                lane.give_up(number, late=True)
        lanes = list(dict.fromkeys(lane for lane, _ in self._flying))
        # By one call of C, too: a lane tells each end once.
        self._reports.extend(zip(lanes, map(methodcaller("poll"), lanes), strict=True))
        while self._reports:
            lane, ends = self._reports[0]
            for number, good, why in ends:
                ended = self._flying.get((lane, number))
                if ended is not None:
                    if why != "given up":
                        self._heard[lane, ended.down] = now
                    ended.end(lane, good, _CAUSES.get(why, Cause.FAILED))
                    del self._flying[lane, number]
                    failed |= why not in {"", "corrupt"}
                    refused |= why == "failed"
            self._reports.popleft()
        if refused:
            self._say_why()
        if failed or self._resting:
            self._say()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Asks the disk's threads once for all receipts that are polled until the end."""
        self.collect()
        try:
            self.collected = True
            yield
        finally:
            self.collected = False

    def _say_why(self) -> None:
        """Logs why the system refuses, once for each reason in a row."""
        why = self._disk.why()
        if why != self._why:
            _log.warning("%s: copies fail: %s", self._disk.path, why)
        self._why = why

    def _say(self) -> None:
        """Logs which disks have begun to rest, and which are back."""
        resting = self._disk.resting()
        for path, what in resting:
            if (path, what) not in self._resting:
                _log.warning("%s: %s fail; the disk rests and is retried later", path, what)
        for back in self._resting:
            if back not in resting:
                _log.warning("%s: %s are retried", *back)
        self._resting = resting

    @owned
    def reset(self) -> None:
        """Ends all copies: no memory is read or written any more."""
        self._end()

    def _end(self) -> None:
        self.collected = False
        self._give_up()
        self._collect()

    def _give_up(self, flying: "_Flying | None" = None) -> None:
        """Gives up what was submitted of a copy, or all."""
        for (lane, number), one in list(self._flying.items()):
            if flying is None or one is flying:
                lane.give_up(number)

    @owned
    def close(self) -> None:
        """Ends all copies, those that have not ended as failed."""
        self._closed = True
        self._end()
        self._disk.copier = None


class _Flying:
    """A copy under way, and its receipt."""

    __slots__ = ("_blocks", "_cause", "_copier", "_good", "_tiers", "begun", "down", "open")

    def __init__(
        self, copier: DiskCopier, blocks: int, tiers: tuple[Tier, Tier], *, down: bool
    ) -> None:
        self._copier = copier
        # The threads know addresses alone.
        self._tiers = tiers
        self._blocks = self._good = blocks
        self._cause: Cause | None = None
        self.open: dict[DiskLane, NDArray[np.intp] | None] = {}
        """Lanes that have not ended their part, and which of its blocks that is; None for all."""
        self.begun = time.monotonic()
        self.down = down

    def end(self, lane: DiskLane, good: int, cause: Cause | None) -> None:
        """Takes how a part of it has ended: how many of that part's blocks are good."""
        if lane not in self.open:
            return
        if cause is not None:
            rows = self.open[lane]
            first = good if rows is None else int(rows[good])
            if first < self._good:
                self._good, self._cause = first, cause
        # At last: from here on it may count as ended.
        del self.open[lane]

    def poll(self) -> Landed | None:
        """Returns how it has ended, or None."""
        if self.open and not self._copier.collected:
            self._copier.collect()
        return None if self.open else Landed(self._good, self._cause)


_Place = tuple[NDArray[np.uint64], int, int]


def _places(tier: Tier) -> list[list[_Place]]:
    """Returns where each plane is: pieces of slot 0, bytes to the next slot, bytes of a piece.

    Raises:
        Misuse: They are no memory of this process.
    """
    found = []
    for plane in planes_of(tier):
        arrays = getattr(plane, "arrays", (plane,))
        places: list[_Place] = []
        for array in arrays:
            if not isinstance(array, np.ndarray):
                raise Misuse(
                    f"the {tier.name}'s memory is a GPU's: give the yard a host between it and disk"
                )
            first = array.__array_interface__["data"][0]
            stride, step, _ = array.strides
            # An engine's layers may lie in any order, so that the step may be below 0.
            pieces = first + np.arange(array.shape[1], dtype=np.int64) * step
            places.append((pieces.astype(np.uint64), stride, array.shape[2]))
        found.append(places)
    return found
