"""Memory of this process, as NumPy gives it: the tier that runs everywhere."""

import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blockyard._core import Misuse, Unavailable
from blockyard.layout import KVLayout, Plane, natural

__all__ = ["MemoryTier"]

Bytes = NDArray[np.uint8]


class MemoryTier:
    """A device or host tier in ordinary memory, zero at first. Pages are taken when touched.

    A device has its planes in the layout's own order. A host has each block in one contiguous
    slot, plane after plane; planes that are replicated over several ranks lie in a slot of their
    own, in a file that all ranks of the host map.

    Args:
        layout: What a block is.
        blocks: Slots, 1 or more.
        name: "device" or "host".
        shared: File for replicated planes on the host of several ranks, best on a memory file
            system; made by whoever comes first, and left there. Not touched where none is needed.

    Raises:
        Misuse: It is smaller than one block, has no file that it needs, or one of another size.
        Unavailable: The memory is not to be had.
    """

    def __init__(
        self,
        layout: KVLayout,
        blocks: int,
        *,
        name: str = "host",
        shared: str | os.PathLike[str] | None = None,
    ) -> None:
        natural("blocks", blocks, least=0)
        if not blocks:
            raise Misuse(
                f"blocks = 0: a {name} tier smaller than one block of {layout.block_bytes} bytes; "
                "give it 1 or more, or leave it out"
            )
        if name not in {"device", "host"}:
            raise Misuse(f"name = {name!r}: call it 'device' or 'host'")
        self.name = name
        self.layout = layout
        self.blocks = blocks
        self.nbytes = blocks * layout.block_bytes
        self.planes: tuple[Bytes, ...]
        if name == "device":
            self.planes = tuple(self._in_order(plane) for plane in layout.planes)
            return
        common = [plane for plane in layout.planes if plane.replicated and layout.ranks > 1]
        private = [plane for plane in layout.planes if plane not in common]
        views = self._slots(private, self._zeros((blocks * _width(private),)))
        if common:
            if shared is None:
                raise Misuse(
                    f"plane {common[0].name!r} is the same on {layout.ranks} ranks: "
                    "give shared=, a file that the host tiers of all of them map"
                )
            memory = _mapped(Path(shared), blocks * _width(common))
            views |= self._slots(common, memory)
        self.planes = tuple(views[plane.name] for plane in layout.planes)

    def close(self) -> None:
        """Frees the memory, as soon as nobody has a view of it."""
        self.planes = ()

    def _zeros(self, shape: tuple[int, ...]) -> Bytes:
        try:
            return np.zeros(shape, np.uint8)
        except (MemoryError, ValueError) as error:
            raise Unavailable(
                f"no memory for a {self.name} tier of {self.blocks} blocks: "
                f"{self.nbytes} bytes; give it fewer"
            ) from error

    def _in_order(self, plane: Plane) -> Bytes:
        return self._zeros((plane.pieces, self.blocks, plane.piece_bytes)).transpose(1, 0, 2)

    def _slots(self, planes: Sequence[Plane], memory: Bytes) -> dict[str, Bytes]:
        """Views of planes that lie side by side in slots."""
        views, start = {}, 0
        for plane in planes:
            shape = (self.blocks, plane.pieces, plane.piece_bytes)
            strides = (_width(planes), plane.piece_bytes, 1)
            views[plane.name] = np.ndarray(shape, np.uint8, memory, start, strides)
            start += plane.block_bytes
        return views


def _width(planes: Sequence[Plane]) -> int:
    return sum(plane.block_bytes for plane in planes)


def _claim(file: int, size: int) -> None:
    """All of it at once: a page that is not to be had later would kill the process."""
    try:
        os.posix_fallocate(file, 0, size)
    except OSError:
        os.ftruncate(file, 0)
        raise


def _mapped(path: Path, size: int) -> Bytes:
    """A file of zeros as memory that other processes share."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            found = os.fstat(file).st_size
            if found == 0:
                _claim(file, size)
            elif found != size:
                raise Misuse(
                    f"shared = {path}: it has {found} bytes and should have {size}; give every "
                    "rank the same layout and blocks, and a file that nothing else uses"
                )
            return np.frombuffer(mmap.mmap(file, size), np.uint8)
        finally:
            os.close(file)
    except (OSError, OverflowError, ValueError) as error:
        raise Unavailable(f"{path}: no {size} bytes to share: {error}") from error
