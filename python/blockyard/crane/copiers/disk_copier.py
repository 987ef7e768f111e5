"""Copies between memory and slot files, by the threads of a disk."""

import numpy as np

from blockyard._core import DiskLane, Misuse
from blockyard._typing import NDArray, override
from blockyard.crane.copiers import BlockKeys, Receipt, Slots
from blockyard.crane.copiers.lane_copier import LaneCopier
from blockyard.crane.copiers.lane_flights import LaneFlight, LaneFlights, memory_places
from blockyard.crane.tiers import Tier
from blockyard.crane.tiers.disk import DiskTier
from blockyard.shared.log import Limited
from blockyard.shared.owner import owned

__all__ = ["DiskCopier"]

_log = Limited("blockyard", 0)


class DiskCopier(LaneCopier[DiskLane]):
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
        super().__init__(disk.name, LaneFlights(self.collect, patience=patience))
        if disk.copier is not None:
            raise Misuse(f"{disk.path} has a DiskCopier already: give that one to all pairs")
        disk.copier = self
        self._disk = disk
        self._resting = disk.resting()
        self._why = ""

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
        disk, down = self._disk, self._is_down(destination, parents)
        memory, slots, others = (
            (source, destinations, sources) if down else (destination, sources, destinations)
        )
        places = memory_places(memory, disk.name)
        if len(slots) and int(slots.max()) >= disk.blocks:
            raise Misuse(f"slots = {slots.max()}: the disk has {disk.blocks}")
        flying = LaneFlight(self._flights, len(slots), (source, destination), down=down)
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
                self._flights.note(flying, part.lane, numbers)
        except BaseException:
            # What was submitted of it must not touch memory that is another's by then.
            self._flights.give_up(flying)
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
        self._check_open()
        flying = LaneFlight(self._flights, 1, (self._disk, self._disk), down=True)
        try:
            for part in self._disk.parts:
                if part.owned:
                    flying.open[part.lane] = None
                    numbers = map(part.lane.void_records, [keys], [spared], [before])
                    self._flights.note(flying, part.lane, numbers)
        except BaseException:
            self._flights.give_up(flying)
            raise
        return flying

    @override
    def _collect(self) -> None:
        words = self._flights.collect()
        if "failed" in words:
            self._say_why()
        if words - {"", "corrupt"} or self._resting:
            self._say()

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

    @override
    def _leave(self) -> None:
        self._disk.copier = None
