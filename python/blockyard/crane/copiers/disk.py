"""Copies between memory and slot files, by the threads of a disk."""

import time
from typing import Any, Final

import numpy as np

from blockyard._core import Misuse
from blockyard.crane.copiers import BlockKeys, Landed, Receipt, Slots
from blockyard.crane.tiers import Tier, planes_of
from blockyard.crane.tiers.disk import DiskTier
from blockyard.shared.plan import Cause

__all__ = ["DiskCopier"]

_CAUSES: Final = {"": None, "failed": Cause.FAILED, "corrupt": Cause.CORRUPT}


class DiskCopier:
    """Copies blocks from and to one disk. Nothing waits but the disk's own threads.

    A load that hangs is given up in time: nothing is written to its destination then. Of a copy
    down that hangs the yard's deadline decides, since its slots may still be written.

    Args:
        disk: The disk.
        patience: Seconds after which a load that hangs has failed.
    """

    def __init__(self, disk: DiskTier, *, patience: float = 30.0) -> None:
        if not patience > 0:
            raise Misuse(f"patience = {patience!r}: must be seconds, more than 0")
        self._disk = disk
        self._patience = patience
        self._flying: dict[int, _Flying] = {}
        self._closed = False

    def start(self, source: Tier, destination: Tier, _from: Slots, _to: Slots) -> Receipt | None:
        """Refuses: a disk must know whose blocks it has.

        Raises:
            Misuse: Always.
        """
        raise Misuse(
            f"a plan from {source.name} to {destination.name} without keys: give the yard "
            f'keyed=("{self._disk.name}",)'
        )

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
            Misuse: The other side has no memory of this process, or the copier is closed.
        """
        if self._closed:
            raise Misuse("the copier is closed")
        lane = self._disk.lane
        if destination is self._disk or destination.name == self._disk.name:
            if parents is None:
                raise Misuse(f'a plan to {destination.name} without parents: give keyed=("disk",)')
            planes = _places(source)
            number = lane.submit_down(destinations, keys, parents, planes, sources)
            until = None
        else:
            number = lane.submit_up(sources, keys, _places(destination), destinations)
            until = time.monotonic() + self._patience
        flying = self._flying[number] = _Flying(self, number, until, (source, destination))
        return flying

    def collect(self) -> None:
        """Takes what the disk's threads have reported, and gives up what has hung for too long."""
        lane = self._disk.lane
        now = time.monotonic()
        for number, flying in list(self._flying.items()):
            if flying.until is not None and now > flying.until:
                lane.give_up(number)
        for number, good, why in lane.poll():
            ended = self._flying.pop(number, None)
            if ended is not None:
                ended.landed = Landed(good, _CAUSES.get(why, Cause.FAILED))

    def reset(self) -> None:
        """Ends all copies: no memory is read or written any more."""
        for number in list(self._flying):
            self._disk.lane.give_up(number)
        self.collect()

    def close(self) -> None:
        """Ends all copies, those that have not ended as failed."""
        self._closed = True
        self.reset()


class _Flying:
    """A copy under way, and its receipt."""

    __slots__ = ("_copier", "_tiers", "landed", "number", "until")

    def __init__(
        self, copier: DiskCopier, number: int, until: float | None, tiers: tuple[Tier, Tier]
    ) -> None:
        self._copier = copier
        # The threads know addresses alone.
        self._tiers = tiers
        self.number = number
        self.until = until
        self.landed: Landed | None = None

    def poll(self) -> Landed | None:
        """Returns how it has ended, or None."""
        if self.landed is None:
            self._copier.collect()
        return self.landed


def _places(tier: Tier) -> list[tuple[Any, int, int]]:
    """Returns where the planes of a tier are: pieces of slot 0, bytes to the next slot, of a piece.

    Raises:
        Misuse: They are no memory of this process.
    """
    found = []
    for plane in planes_of(tier):
        arrays = getattr(plane, "arrays", (plane,))
        for array in arrays:
            if not isinstance(array, np.ndarray):
                raise Misuse(
                    f"the {tier.name}'s memory is a GPU's: give the yard a host between it and disk"
                )
            first = array.__array_interface__["data"][0]
            stride, step, _ = array.strides
            pieces = np.uint64(first) + np.arange(array.shape[1], dtype=np.uint64) * np.uint64(step)
            found.append((pieces, stride, array.shape[2]))
    return found
