"""What computes: this machine with NumPy, or a GPU with CuPy; and the memory of either."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from blockyard.crane.tiers import Tier
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.shared.layout import KVLayout

__all__ = ["NUMPY", "Device", "DeviceName", "device", "fetched"]

DeviceName = Literal["memory", "cuda"]
"""Memory of this machine, computed in by NumPy; or a GPU's."""

Shared = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Device:
    """Where an engine computes, and the memory there; `device` has each by its name."""

    xp: Any
    """The array module: NumPy, or CuPy. Planes of the device's tier are its arrays."""
    near: Callable[[KVLayout, int], Tier]
    """A device tier of so many blocks."""
    far: Callable[[KVLayout, int, Shared | None], Tier]
    """A host tier of so many blocks; the file is for what `MemoryTier` calls shared."""

    def tiers(
        self, layout: KVLayout, blocks: int, host: int, *, shared: Shared | None = None
    ) -> tuple[Tier, Tier | None]:
        """The tiers of device and host.

        Args:
            layout: What a block is.
            blocks: Of the device.
            host: Blocks of the host; 0 for none.
            shared: As in `MemoryTier`.

        Raises:
            Misuse: As of the tiers.
            Unavailable: The memory is not to be had.
        """
        return self.near(layout, blocks), self.far(layout, host, shared) if host else None


def _near(layout: KVLayout, blocks: int) -> Tier:
    return MemoryTier(layout, blocks, name="device")


def _far(layout: KVLayout, blocks: int, shared: Shared | None) -> Tier:
    return MemoryTier(layout, blocks, shared=shared)


NUMPY: Final = Device(np, _near, _far)


def device(name: DeviceName) -> Device:
    """The device of that name, for engines of this process.

    What is computed on a GPU is computed on the stream that is CuPy's current one when the tier is
    made: the tier is told, so that copies wait for it.

    Raises:
        Unavailable: There is no such device, or not what it takes to use it.
    """
    return NUMPY if name == "memory" else _cuda()


def fetched(values: Any) -> NDArray[Any]:  # noqa: ANN401 - an array of either module
    """An array as NumPy has it. One of a GPU is copied, behind what still computes it."""
    here: NDArray[Any] = values.get() if hasattr(values, "get") else values
    return here


def _cuda() -> Device:
    # Only now: nobody who computes in memory needs them.
    from blockyard.crane.gpu.cuda import current  # noqa: PLC0415
    from blockyard.crane.tiers.device import DeviceTier  # noqa: PLC0415
    from blockyard.crane.tiers.pinned import PinnedTier  # noqa: PLC0415

    # Says what to install, so that CuPy is there behind it.
    gpu = current()
    xp = import_module("cupy")

    def near(layout: KVLayout, blocks: int) -> Tier:
        return DeviceTier(layout, blocks, gpu=gpu, stream=xp.cuda.get_current_stream().ptr)

    def far(layout: KVLayout, blocks: int, shared: Shared | None) -> Tier:
        return PinnedTier(layout, blocks, gpu=gpu, shared=shared)

    return Device(xp, near, far)
