"""Threads, streams and rings that the cranes of a model's groups of layers share on one rank."""

import os
from collections.abc import Iterable, Sequence

from blockyard._core import DiskThreads
from blockyard.crane.copiers import Pair
from blockyard.crane.copiers.checked import ChecksumThreads
from blockyard.crane.copiers.copy_stream import GpuStream
from blockyard.crane.copiers.threads import CopyThreads
from blockyard.crane.gpu import Gpu
from blockyard.shared.copy_tuning import CopyTuning
from blockyard.shared.layout import KVLayout

__all__ = ["SharedCopying"]


class SharedCopying:
    """What the cranes of several groups of layers share, so that they have no more than one crane.

    Each lane has the same threads, or the same streams, in all cranes; copies of two groups from
    one tier to another begin in the order in which they were submitted. Each part is made with its
    first user, and ends with the last one. It is for the thread that makes and closes the cranes.

    Args:
        layouts: The layouts of all groups: a ring holds a block of each.
        copy_tuning: As in `CudaCopier`.
    """

    def __init__(
        self, layouts: Iterable[KVLayout], *, copy_tuning: CopyTuning | None = None
    ) -> None:
        tuning = CopyTuning() if copy_tuning is None else copy_tuning
        largest = max(plane.block_bytes for layout in layouts for plane in layout.planes)
        self._ring_bytes = max(largest, tuning.ring_bytes)
        self._lanes: dict[Pair, CopyThreads] = {}
        self._streams: dict[tuple[int, str], tuple[GpuStream, GpuStream]] = {}
        self._disks: dict[str, DiskThreads] = {}
        self.checksums = ChecksumThreads()
        """Threads that compute checksums."""

    def threads(self, pair: Pair) -> CopyThreads:
        """Returns the threads that copy from one tier to another."""
        return self._lanes.setdefault(pair, CopyThreads())

    def streams(self, gpu: Gpu, below: str) -> tuple[GpuStream, GpuStream]:
        """Returns the streams up and down between a GPU and a tier below it.

        Args:
            gpu: The GPU.
            below: The name of the tier; "" for none.
        """
        streams = self._streams.get((id(gpu), below))
        if streams is None:
            streams = GpuStream(gpu, self._ring_bytes), GpuStream(gpu, self._ring_bytes)
            self._streams[id(gpu), below] = streams
        return streams

    def disk_threads(
        self, path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    ) -> list[DiskThreads]:
        """Returns the threads of each path of a disk, as `DiskTier` takes them."""
        paths = [path] if isinstance(path, str | os.PathLike) else path
        return [self._disks.setdefault(os.fspath(one), DiskThreads()) for one in paths]
