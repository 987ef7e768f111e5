"""Tables of addresses on a GPU, which its kernels read."""

import numpy as np

from blockyard.crane.gpu import Addresses, Gpu, Memory
from blockyard.crane.tiers.pinned import Pinned

__all__ = ["AddressTables"]


class AddressTables:
    """Tables of addresses that kernels read; each has an offset until all are on the device.

    Args:
        gpu: The GPU that reads them.
    """

    def __init__(self, gpu: Gpu) -> None:
        self.address = 0
        self._gpu = gpu
        self._tables: list[Addresses] = []
        self._size = 0

    def add(self, table: Addresses) -> int:
        """Takes a table and returns its offset in bytes."""
        offset = self._size
        self._tables.append(table)
        self._size += table.nbytes
        return offset

    def upload(self, stream: int, memory: list[Memory]) -> None:
        """Copies all of them to the device, into memory that it adds to a list, and waits."""
        gpu, size = self._gpu, self._size
        memory.append(gpu.allocate(size))
        self.address = memory[-1].address
        staging = Pinned(gpu, size)
        try:
            staging.array.view(np.uint64)[:] = np.concatenate(self._tables)
            gpu.copy_run(self.address, staging.address, size, stream)
        finally:
            try:
                gpu.synchronize(stream)
            finally:
                staging.free()
