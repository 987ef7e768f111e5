"""The memory that a simulated GPU reaches: every address that is used must be its own or pinned."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockyard._core import Unavailable
from blockyard.crane.gpu import Array, GpuError

__all__ = ["AddressSpace", "Allocation"]

_ALIGNED = 256


@dataclass(slots=True, eq=False)
class Allocation:
    """Device memory."""

    array: NDArray[np.uint8]
    address: int
    nbytes: int
    freed: Callable[[int], object]
    """Is told the address when it is given back."""

    def free(self) -> None:
        """Gives it back."""
        self.freed(self.address)


class AddressSpace:
    """Device memory and pinned host memory, both of them ordinary memory.

    Args:
        memory: Bytes of device memory.
        pins: Bytes of host memory that can be pinned.
    """

    def __init__(self, memory: int, pins: int) -> None:
        self._memory = memory
        self._pins = pins
        self._ranges: dict[int, int] = {}
        self._device: dict[int, NDArray[np.uint8]] = {}

    @property
    def held(self) -> int:
        """Bytes allocated and pinned, and not given back."""
        return sum(self._ranges.values())

    def allocate(self, nbytes: int, freed: Callable[[int], object]) -> Allocation:
        """Allocates device memory, zero at first."""
        used = sum(self._ranges[address] for address in self._device)
        if used + nbytes > self._memory:
            raise Unavailable(f"{nbytes} bytes of device memory: {self._memory - used} are left")
        array = np.zeros(nbytes + _ALIGNED, np.uint8)
        first = -int(array.ctypes.data) % _ALIGNED
        address = int(array.ctypes.data) + first
        self._ranges[address] = nbytes
        self._device[address] = array
        return Allocation(array[first : first + nbytes], address, nbytes, freed)

    def allocated(self, address: int) -> bool:
        """Whether device memory begins there."""
        return address in self._device

    def free(self, address: int) -> None:
        """Takes device memory back."""
        del self._ranges[address], self._device[address]

    def register(self, address: int, nbytes: int) -> None:
        """Pins host memory."""
        pinned = sum(size for one, size in self._ranges.items() if one not in self._device)
        if pinned + nbytes > self._pins:
            raise GpuError("CUDA_ERROR_OUT_OF_MEMORY", "cuMemHostRegister")
        self._ranges[address] = nbytes

    def unregister(self, address: int) -> None:
        """Unpins it."""
        if self._ranges.pop(address, None) is None:
            raise GpuError("CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "cuMemHostUnregister")

    def owns(self, address: int) -> bool:
        """Whether the address is in device memory, or in pinned memory."""
        return any(start <= address < start + size for start, size in self._ranges.items())

    def on_device(self, address: int) -> bool:
        """Whether the address is in device memory."""
        return any(start <= address < start + self._ranges[start] for start in self._device)

    def copy(self, to: int, from_: int, nbytes: int) -> None:
        """Copies bytes between addresses that are the GPU's to use."""
        ctypes.memmove(self._checked(to, nbytes), self._checked(from_, nbytes), nbytes)

    def table(self, address: int, count: int, kind: type[np.unsignedinteger[Any]]) -> Array:
        """Reads `count` numbers of a kind."""
        size = count * np.dtype(kind).itemsize
        return np.frombuffer(ctypes.string_at(self._checked(address, size), size), kind)

    def _checked(self, address: int, nbytes: int) -> int:
        for start, size in self._ranges.items():
            if start <= address and address + nbytes <= start + size:
                return address
        raise AssertionError(f"{nbytes} bytes at {address:#x} are neither its own nor pinned")
