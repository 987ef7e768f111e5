"""Tables of addresses on a GPU, which its kernels read."""

import numpy as np

from blockyard.crane.gpu import Addresses, Gpu, Memory
from blockyard.crane.tiers.pinned import Pinned

__all__ = ["AddressTables"]


class AddressTables:
    """Tables of addresses for kernels to read, each at an offset until all are on the device.

    Args:
        gpu: Whose device.
    """

    def __init__(self, gpu: Gpu) -> None:
        self.address = 0
        self._gpu = gpu
        self._pages: list[Addresses] = []
        self._size = 0

    def add(self, page: Addresses) -> int:
        """Takes a table; answers with its offset in bytes."""
        offset = self._size
        self._pages.append(page)
        self._size += page.nbytes
        return offset

    def unroll(self, stream: int, memory: list[Memory]) -> None:
        """Puts all of them on the device, in memory that it adds to a list, and waits for that."""
        gpu, size = self._gpu, self._size
        memory.append(gpu.allocate(size))
        self.address = memory[-1].address
        staging = Pinned(gpu, size)
        try:
            staging.array.view(np.uint64)[:] = np.concatenate(self._pages)
            gpu.copy_run(self.address, staging.address, size, stream)
        finally:
            try:
                gpu.synchronize(stream)
            finally:
                staging.free()
