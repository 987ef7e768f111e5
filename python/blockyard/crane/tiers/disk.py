"""Slot files on a disk: blocks that outlive the process, a kill and a power cut."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from blockyard._core import DiskLane, Misuse
from blockyard.shared.layout import TIERS, KVLayout
from blockyard.shared.validate import integer, known

__all__ = ["DiskTier", "Restored"]

_NAMED = ("model", "weights")


class Restored(NamedTuple):
    """What a disk has from before, the oldest first."""

    slots: NDArray[np.uint32]
    """Shape (blocks,)."""
    keys: NDArray[np.uint8]
    """Shape (blocks, 32)."""
    parents: NDArray[np.uint8]
    """The keys of the blocks before them in their sequences, likewise; zeros for the first ones."""
    stamps: NDArray[np.uint64]
    """When each was written, shape (blocks,): the same on all ranks, or the block is not whole."""


class DiskTier:
    """The slots of one rank in a folder, which this process owns until it ends.

    A block is served only where its record says that it is what was asked for, and its checksum
    agrees; it counts as written when it is durable. The folder's name follows from `identity` and
    the layout, and stands in it in clear text: what differs in any of it never meets.

    Not there yet: planes that ranks share, what several ranks find again, and several disks.

    Args:
        layout: What a block is.
        path: The folder of all identities, best on a disk of its own. It and all in it are for
            their owner alone. Bytes are not encrypted there.
        blocks: Slots, 1 or more. Their room is taken at once.
        identity: What the bytes depend on beside the layout, as `Config.namespace`: it names
            `model` and `weights` at least.
        rank: The rank.
        name: Where it stands: "host" or "disk".
        direct: Whether the system's page cache is passed by, where it can be.
        threads: Threads that read and write.

    Raises:
        Misuse: A value is out of range, or `identity` does not name model and weights.
        Unavailable: There is no room, another process owns the folder, or the system refuses.
    """

    def __init__(
        self,
        layout: KVLayout,
        path: str | os.PathLike[str],
        *,
        blocks: int,
        identity: Mapping[str, str],
        rank: int = 0,
        name: str = "disk",
        direct: bool = True,
        threads: int = 4,
    ) -> None:
        self.name = known("name", name, TIERS[1:])
        self.layout = layout
        self.blocks = integer("blocks", blocks, most=(1 << 32) - 1)
        self.nbytes = 0
        """Bytes of memory: staging alone, which is not counted."""
        missing = [field for field in _NAMED if not identity.get(field)]
        if missing:
            raise Misuse(
                f"namespace names no {missing[0]}: a disk outlives the process, and would be read "
                f'by one with another {missing[0]}; give namespace={{"{missing[0]}": …}}'
            )
        fields = {**identity, "blocks of": layout.fingerprint, "ranks": str(layout.ranks)}
        self.lane = DiskLane(
            Path(path),
            sorted(fields.items()),
            rank=rank,
            slots=self.blocks,
            block_bytes=layout.block_bytes,
            direct=direct,
            threads=integer("threads", threads),
        )

    @property
    def path(self) -> Path:
        """The folder of this rank."""
        return self.lane.path

    def restored(self) -> Restored:
        """Returns what it has from before, for `KVCache.restore`.

        Raises:
            Unavailable: The disk cannot be read.
        """
        return Restored(*self.lane.restore())

    def clear(self) -> None:
        """Clears all that was submitted so far: no restart brings it back.

        Raises:
            Unavailable: The system refuses; nothing is cleared then.
        """
        self.lane.clear()

    def close(self) -> None:
        """Ends the threads; what was reported as written is there for the next owner."""
        self.lane.close()
