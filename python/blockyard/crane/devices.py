"""Where an engine computes: this machine with NumPy, or a GPU with CuPy; and the memory there."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, Literal

import numpy as np

from blockyard._typing import NDArray
from blockyard.crane.tiers import Mapped
from blockyard.crane.tiers.memory import MemoryTier, SharedFile
from blockyard.shared.layout import KVLayout

__all__ = ["NUMPY", "Device", "DeviceName", "device", "fetched"]

DeviceName = Literal["memory", "cuda"]
"""Memory of this machine, computed in by NumPy; or a GPU's."""


@dataclass(frozen=True, slots=True)
class Device:
    """Where an engine computes, and the memory there; `device` has each by its name."""

    xp: Any
    """The array module: NumPy, or CuPy. Planes of the device's tier are its arrays."""
    near: Callable[[KVLayout, int], Mapped]
    """Makes a device tier of a number of blocks."""
    far: Callable[[KVLayout, int, str, SharedFile | None], Mapped]
    """Makes a tier below it, of a number of blocks and this name; the file is what `MemoryTier`
    calls shared."""

    def tiers(
        self,
        layout: KVLayout,
        blocks: int,
        host: int,
        disk: int = 0,
        *,
        shared: SharedFile | None = None,
    ) -> tuple[Mapped, Mapped | None, Mapped | None]:
        """Makes the tiers of device and host, and of memory in a disk's place.

        Args:
            layout: What a block is.
            blocks: Blocks of the device.
            host: Blocks of the host; 0 for none.
            disk: Blocks of the tier below the host; 0 for none.
            shared: As in `MemoryTier`; the tier below the host has a file of its own beside it.

        Raises:
            Misuse: As the tiers raise it.
            Unavailable: The memory is not to be had.
        """
        below = None if shared is None else f"{os.fspath(shared)}.disk"
        return (
            self.near(layout, blocks),
            self.far(layout, host, "host", shared) if host else None,
            self.far(layout, disk, "disk", below) if disk else None,
        )


def _near(layout: KVLayout, blocks: int) -> Mapped:
    return MemoryTier(layout, blocks, name="device")


def _far(layout: KVLayout, blocks: int, name: str, shared: SharedFile | None) -> Mapped:
    return MemoryTier(layout, blocks, name=name, shared=shared)


NUMPY: Final = Device(np, _near, _far)
"""This machine: NumPy computes, in its memory."""


def device(name: DeviceName) -> Device:
    """Returns the device of that name, for engines of this process.

    On a GPU an engine computes on CuPy's current stream as it is when the tier is made: the tier
    keeps its address, and copies wait for it.

    Raises:
        Unavailable: There is no such device, or a library is missing; the message names it.
    """
    return NUMPY if name == "memory" else _cuda()


def fetched(values: Any) -> NDArray[Any]:  # noqa: ANN401 - an array of either module
    """Returns an array as NumPy's; one of a GPU is copied, behind what still computes it."""
    here: NDArray[Any] = values.get() if hasattr(values, "get") else values
    return here


def _cuda() -> Device:
    # Only now: what computes in memory needs none of them.
    from blockyard.crane.gpu.cuda import current  # noqa: PLC0415
    from blockyard.crane.tiers.device import DeviceTier  # noqa: PLC0415
    from blockyard.crane.tiers.pinned import PinnedTier  # noqa: PLC0415

    # It raises where CuPy is missing, and says what to install.
    gpu = current()
    xp = import_module("cupy")

    def near(layout: KVLayout, blocks: int) -> Mapped:
        return DeviceTier(layout, blocks, gpu=gpu, stream=xp.cuda.get_current_stream().ptr)

    def far(layout: KVLayout, blocks: int, name: str, shared: SharedFile | None) -> Mapped:
        return PinnedTier(layout, blocks, name=name, gpu=gpu, shared=shared)

    return Device(xp, near, far)
