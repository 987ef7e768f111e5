"""Memory of a GPU, which Blockyard allocates or adopts from an engine."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from blockyard._core import Misuse, Unavailable, Unsupported
from blockyard.crane.gpu import Array, Gpu, GpuError, Memory, Places, address_of, freed
from blockyard.crane.gpu.cuda import current
from blockyard.crane.tiers.adopt import places
from blockyard.crane.tiers.memory import sized
from blockyard.shared.layout import KVLayout, Plane
from blockyard.shared.single import Single

__all__ = ["DeviceTier"]


class DeviceTier(Single):
    """A device tier on a GPU, zero at first, its planes in the layout's own order.

    `adopt` makes one of an engine's own tensors. It belongs to its crane, and to the crane's
    thread.

    Args:
        layout: What a block is.
        blocks: Slots, 1 or more.
        gpu: The GPU that has the memory; None for the current CUDA device.
        stream: The stream on which the engine computes over this memory: its address, or a stream
            object of PyTorch or CuPy. 0 is the legacy default stream. It may be set later, to one
            that waits for what the old one was given.

    Raises:
        Misuse: It is smaller than one block.
        Unavailable: There is no GPU, or not so much memory; nothing is left allocated.
    """

    name = "device"

    def __init__(
        self, layout: KVLayout, blocks: int, *, gpu: Gpu | None = None, stream: object = 0
    ) -> None:
        self.nbytes = sized(layout, blocks, "device")
        self.layout = layout
        self.blocks = int(blocks)
        self.gpu = current(gpu)
        self.stream = stream
        self._memory: list[Memory] = []
        self._owners: object = None
        self._planes: tuple[Any, ...] | None = ()
        try:
            with self.gpu:
                for plane in layout.planes:
                    self._memory.append(self.gpu.allocate(blocks * plane.block_bytes))
                made = zip(layout.planes, self._memory, strict=True)
                self._planes = tuple(self._view(plane, memory) for plane, memory in made)
        except GpuError as error:
            self.close()
            raise Unavailable(f"{self.nbytes} bytes of device memory: {error}") from error
        except BaseException:
            self.close()
            raise
        self.places = tuple(
            _in_order(plane, memory.address, blocks)
            for plane, memory in zip(layout.planes, self._memory, strict=True)
        )

    @classmethod
    def adopt(  # noqa: PLR0913 - keywords
        cls,
        layout: KVLayout,
        tensors: object,
        *,
        blocks: int | None = None,
        axis: int | Mapping[str, int] | None = None,
        gpu: Gpu | None = None,
        stream: object = 0,
    ) -> Self:
        """Makes a device tier of an engine's own tensors.

        Args:
            layout: What a block is.
            tensors: The engine's tensors, in the forms that `tiers.adopt.places` takes. They are
                kept alive until the tier is closed.
            blocks: How many blocks there are; or give `axis`.
            axis: Which axis counts blocks, where several have their length; or a mapping by plane.
            gpu: The GPU that has the memory; None for the current CUDA device.
            stream: As in the class.

        Raises:
            Misuse: They do not fit the layout; the message names what differs.
            Unavailable: There is no GPU.
        """
        gpu = current(gpu)
        found = places(
            layout, tensors, blocks=blocks, axis=axis, device=gpu.device, host=gpu.device is None
        )
        with gpu:
            for plane, where in zip(layout.planes, found.places, strict=True):
                last = (found.blocks - 1) * where.stride + plane.piece_bytes - 1
                for piece in where.pieces.tolist():
                    if not (gpu.owns(piece) and gpu.owns(piece + last)):
                        raise Misuse(
                            f"plane {plane.name!r}: {piece:#x} to {piece + last:#x} is no memory "
                            f"of GPU {gpu.device}; give tensors of that one, or its gpu="
                        )
        self = cls.__new__(cls)
        self.layout = layout
        self.blocks = found.blocks
        self.nbytes = sized(layout, found.blocks, "device")
        self.gpu = gpu
        self.stream = stream
        self.places = found.places
        self._memory = []
        self._owners = found.tensors
        self._planes = None
        return self

    @property
    def planes(self) -> tuple[Any, ...]:
        """One array per plane, shape (blocks, pieces, piece_bytes), of the GPU's own kind.

        Raises:
            Unsupported: The memory is adopted: use the engine's tensors.
        """
        if self._planes is None:
            raise Unsupported("planes of adopted memory: use the tensors that it was adopted from")
        return self._planes

    @property
    def stream(self) -> int:
        """The address of the stream on which the engine computes."""
        return self._stream

    @stream.setter
    def stream(self, stream: object) -> None:
        self._stream = address_of(stream)

    def close(self) -> None:
        """Frees the memory, as soon as no view of it is left; adopted tensors are dropped."""
        if self._planes is not None:
            self._planes = ()
        self._owners = None
        freed(self.gpu, self._memory)

    def _view(self, plane: Plane, memory: Memory) -> Array:
        shape = (self.blocks, plane.pieces, plane.piece_bytes)
        return self.gpu.view(memory, shape, (plane.piece_bytes, self.blocks * plane.piece_bytes, 1))


def _in_order(plane: Plane, address: int, blocks: int) -> Places:
    pieces = np.arange(plane.pieces, dtype=np.uint64) * np.uint64(blocks * plane.piece_bytes)
    return Places(np.uint64(address) + pieces, plane.piece_bytes)
