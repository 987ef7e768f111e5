"""Pinned memory of the host, which a GPU reads and writes itself, at the speed of its link."""

import atexit
import contextlib
import ctypes
import mmap
import platform
import time
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from blockyard._core import Unavailable
from blockyard.crane.gpu import Gpu, GpuError, Places
from blockyard.crane.gpu.cuda import current
from blockyard.crane.tiers.memory import SharedFile, mapped, sized, slots
from blockyard.crane.tiers.pieces import Bytes
from blockyard.shared.layout import TIERS, KVLayout
from blockyard.shared.log import Limited
from blockyard.shared.single import Single
from blockyard.shared.validate import known

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Pinned", "PinnedTier"]

# Bytes that a thread touches between two calls of `progress`.
_CHUNK = 1 << 30
_TOUCHERS = 4
# Least bytes that are taken at a time.
_LEAST = 64 << 20
# Bytes that are left to the machine; no more than are asked for.
_SPARE = 1 << 30
# Seconds that a machine is given to find memory, and seconds between two questions.
_PATIENCE, _PAUSE = 5.0, 0.25
# From linux/mempolicy.h, and the system call's number on x86-64 and on AArch64.
_PREFERRED = 1
_MBIND = {"x86_64": 237, "aarch64": 235}
_log = Limited("blockyard")

Progress = Callable[[int, int], None]


class Pinned:
    """Host memory that a GPU sees, exactly as large as asked for, zero at first.

    Every page is taken, near the GPU where that can be told, before all of it is pinned at once:
    a copy may not cross from one pinned range to another.

    Args:
        gpu: The GPU that will see it.
        nbytes: Bytes.
        progress: Is called now and then with the bytes that are taken, and all there will be.
        shared: A file that other processes map, too; made and sized if it is not there.

    Raises:
        Unavailable: The machine has no such amount, or does not pin it.
    """

    def __init__(
        self,
        gpu: Gpu,
        nbytes: int,
        *,
        progress: Progress | None = None,
        shared: SharedFile | None = None,
    ) -> None:
        self.gpu = gpu
        self.nbytes = nbytes
        self.array = _mapping(nbytes, shared)
        self.address = int(self.array.ctypes.data)
        _near(gpu, self.address, nbytes)
        for taken in _touched(self.array, kept=shared is not None):
            if progress is not None:
                progress(taken, nbytes)
        try:
            with gpu:
                gpu.register(self.address, nbytes)
        except GpuError as error:
            raise Unavailable(
                f"{nbytes} bytes of memory cannot be pinned ({error}): ask for fewer, or raise the "
                "machine's limit on locked memory"
                + ("; a shared file is best on a memory file system" if shared else "")
            ) from error
        # It holds the memory, so that the range is not unmapped, and used again, while pinned.
        self._unpin = weakref.finalize(self, _dropped, gpu, self.address, self.array)
        self._unpin.atexit = False
        _OPEN.add(self)

    def free(self) -> None:
        """Unpins it; the memory is freed when no view of it is left. Once is enough."""
        if self._unpin.alive:
            # Before it is let go of, so that an interrupt leaves no memory pinned that is not held.
            _unpinned(self.gpu, self.address, self.array)
            self._unpin.detach()
        _OPEN.discard(self)
        self.array = np.empty(0, np.uint8)


_OPEN: weakref.WeakSet[Pinned] = weakref.WeakSet()
"""All that is pinned and not freed."""
_kept: list[Bytes] = []
"""Memory that stays pinned, as copies may still use it."""


@atexit.register
def _left() -> None:
    """Unpins what was not closed when the process ends, once no copy is under way."""
    settled: dict[Gpu, bool] = {}
    for memory in list(_OPEN):
        gpu = memory.gpu
        if gpu not in settled:
            settled[gpu] = _settled(gpu)
        if settled[gpu]:
            memory.free()


def _dropped(gpu: Gpu, address: int, array: Bytes) -> None:
    """Unpins memory that was dropped without `free`, unless a copy may still be under way."""
    if _settled(gpu):
        _unpinned(gpu, address, array)
    else:
        _kept.append(array)


def _settled(gpu: Gpu) -> bool:
    try:
        with gpu:
            gpu.settle()
    except GpuError as error:
        _log.warning("pinned memory stays pinned: %s", error)
        return False
    return True


def _unpinned(gpu: Gpu, address: int, _array: Bytes) -> None:
    try:
        with gpu:
            gpu.unregister(address)
    except GpuError as error:
        _log.warning("pinned memory was not unpinned: %s", error)


class PinnedTier(Single):
    """A tier below the device that a GPU copies to and from: each block in one contiguous slot.

    It belongs to its crane, and to the crane's thread.

    Args:
        layout: What a block is.
        blocks: Slots, 1 or more.
        name: Its level, "host" or "disk".
        gpu: The GPU that copies; None for the current CUDA device.
        shared: File for planes that are replicated over several ranks, as in `MemoryTier`.
        progress: Is called with (bytes taken, bytes in all) while a large pool is made.

    Raises:
        Misuse: As `MemoryTier` raises it.
        Unavailable: There is no GPU, or the machine does not pin so much; nothing is left pinned.
    """

    def __init__(  # noqa: PLR0913 - keywords
        self,
        layout: KVLayout,
        blocks: int,
        *,
        name: str = "host",
        gpu: Gpu | None = None,
        shared: SharedFile | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.name = known("name", name, TIERS[1:])
        self.nbytes = sized(layout, blocks, name)
        self.layout = layout
        self.blocks = int(blocks)
        self.gpu = current(gpu)
        self._pools: list[Pinned] = []

        def pool(nbytes: int, path: SharedFile | None) -> Bytes:
            self._pools.append(Pinned(self.gpu, nbytes, progress=progress, shared=path))
            return self._pools[-1].array

        try:
            self.planes = slots(layout, blocks, shared, pool)
        except BaseException:
            self.close()
            raise
        self.places = tuple(_places(plane) for plane in self.planes)

    def close(self) -> None:
        """Unpins the memory, which is freed as soon as no view of it is left."""
        self.planes = ()
        for memory in self._pools:
            memory.free()


def _places(plane: Bytes) -> Places:
    first = int(plane.ctypes.data)
    starts = first + plane.strides[1] * np.arange(plane.shape[1], dtype=np.uint64)
    return Places(starts.astype(np.uint64), plane.strides[0])


def _mapping(nbytes: int, shared: SharedFile | None) -> Bytes:
    if shared is not None:
        return mapped(shared, nbytes)
    try:
        memory = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError, ValueError) as error:
        raise Unavailable(f"no {nbytes} bytes of memory to pin: {error}; ask for fewer") from error
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def _available(group: "Path | None" = None) -> int:
    """Returns the bytes that the machine and its control group still have."""
    from pathlib import Path  # noqa: PLC0415 - only a GPU needs it

    group = Path("/sys/fs/cgroup") if group is None else group
    with Path("/proc/meminfo").open(encoding="ascii") as file:
        lines = dict(line.split(":", 1) for line in file)
    room = int(lines["MemAvailable"].split()[0]) * 1024
    try:
        most = int((group / "memory.max").read_text(encoding="ascii"))
        taken = int((group / "memory.current").read_text(encoding="ascii"))
        stat = (group / "memory.stat").read_text(encoding="ascii")
    except (OSError, ValueError):  # no such group, or "max"
        return room
    # Files that were read count as taken, and are given back when needed.
    parts = dict(line.split() for line in stat.splitlines())
    files = sum(int(parts.get(name, 0)) for name in ("active_file", "inactive_file"))
    return min(room, most - taken + files)


def _near(gpu: Gpu, address: int, nbytes: int) -> None:
    """Asks for pages of the GPU's own node, which the machine may ignore."""
    node, number = gpu.node(), _MBIND.get(platform.machine())
    if node is None or number is None:
        return
    mask = ctypes.c_ulong(1 << node)
    bits = ctypes.sizeof(mask) * 8
    call = ctypes.CDLL(None, use_errno=True).syscall
    arguments = (number, address, nbytes, _PREFERRED, ctypes.addressof(mask), bits + 1, 0)
    if node >= bits or call(*map(ctypes.c_long, arguments)):
        _log.warning("pinned memory is not bound to node %d, which is nearest the GPU", node)


def _touched(array: Bytes, *, kept: bool) -> Iterator[int]:
    """Takes every page; yields the bytes taken so far.

    The memory of a virtual machine may grow only as it is used, and be reported late. So the
    machine is asked before each part, which takes at most half of what it reports; and where that
    is too little, it is asked again for some seconds before this gives up.
    """
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - only a GPU needs it

    pages = array[:: mmap.PAGESIZE]

    def touch(part: slice) -> None:
        if kept:
            # Other processes may write to the file, so that its pages are only read.
            pages[part].any()
        else:
            pages[part] = 0

    taken, patience = 0, _PATIENCE
    with ThreadPoolExecutor(_TOUCHERS) as pool:
        while taken < len(array):
            left = len(array) - taken
            # Some memory is left to the machine.
            room = max(_available() - min(_SPARE, len(array)), 0)
            needed = min(left, _TOUCHERS * _CHUNK)
            if not kept and needed > room // 2:
                # The last part may take all that there is.
                needed = left if left <= room else min(needed, room // 2)
                if needed < min(left, _LEAST):
                    if patience <= 0:
                        raise Unavailable(
                            f"{len(array)} bytes of pinned memory: {taken} were taken, and the "
                            f"machine has {room} more to spare; ask for fewer"
                        )
                    patience -= _PAUSE
                    time.sleep(_PAUSE)
                    continue
            first, count = taken // mmap.PAGESIZE, -(-needed // mmap.PAGESIZE)
            share = -(-count // _TOUCHERS)
            parts = [
                slice(at, min(at + share, first + count))
                for at in range(first, first + count, share)
            ]
            list(pool.map(touch, parts))
            patience = _PATIENCE
            taken = min((first + count) * mmap.PAGESIZE, len(array))
            yield taken
