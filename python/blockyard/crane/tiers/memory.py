"""Memory of this process, as NumPy gives it: the tier that runs everywhere."""

import mmap
import os
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeAlias

import numpy as np

from blockyard._core import Misuse, Unavailable
from blockyard.crane.tiers.adopt import places
from blockyard.crane.tiers.pieces import Bytes, plane_view
from blockyard.shared.layout import TIERS, KVLayout, Plane
from blockyard.shared.single import Single
from blockyard.shared.validate import integer, known

__all__ = ["MemoryTier", "SharedFile", "mapped", "sized", "slots"]

SharedFile: TypeAlias = str | os.PathLike[str]
"""A file that the tiers of several ranks map."""


class MemoryTier(Single):
    """A tier in ordinary memory, zero at first. Pages are taken when touched.

    A device tier has its planes in the layout's own order. One below it has each block in one
    contiguous slot, plane after plane; planes that are replicated over several ranks lie in a slot
    of their own, in a file that all ranks of the host map. It belongs to its crane, and to the
    crane's thread.

    `adopt` makes one of an engine's own arrays.

    Args:
        layout: What a block is.
        blocks: Slots, 1 or more.
        name: Its level: "device", "host" or "disk".
        shared: File for planes that are replicated over several ranks, below the device; best on a
            memory file system, and for each tier another one. The first rank makes it, and it is
            left there; it is not touched where no plane is replicated.

    Raises:
        Misuse: It is smaller than one block, or `shared` is missing or has another size.
        Unavailable: The memory is not to be had.
    """

    def __init__(
        self,
        layout: KVLayout,
        blocks: int,
        *,
        name: str = "host",
        shared: SharedFile | None = None,
    ) -> None:
        self.name = known("name", name, TIERS)
        nbytes = sized(layout, blocks, name)
        self.layout = layout
        self.blocks = int(blocks)
        self.nbytes = nbytes
        self.planes: tuple[Any, ...]
        if name == "device":
            self.planes = tuple(self._in_order(plane) for plane in layout.planes)
            return
        self.planes = slots(layout, blocks, shared, self._zeros_or_shared)

    @classmethod
    def adopt(
        cls,
        layout: KVLayout,
        arrays: object,
        *,
        blocks: int | None = None,
        axis: int | Mapping[str, int] | None = None,
        name: str = "device",
    ) -> Self:
        """Makes a tier of an engine's own host memory.

        Nothing is copied: copies of blocks write to the engine's own arrays. A plane is a view of
        them where its pieces are evenly apart, and `Pieces` where they are not, as in most engines
        with a tensor per layer.

        Args:
            layout: What a block is.
            arrays: NumPy arrays, tensors of PyTorch on the CPU, buffers, or what else speaks
                DLPack, in the forms that `tiers.adopt.places` takes. They are kept alive until the
                tier is closed and no view of it is left.
            blocks: How many blocks there are; or give `axis`.
            axis: Which axis counts blocks, where several have their length; or a mapping by plane.
            name: "device", where a CPU engine computes, or that of a tier below.

        Raises:
            Misuse: They do not fit the layout, cannot be written or are not in host memory; the
                message names what differs. Or a tier of theirs below the device would have a plane
                that all ranks share.
        """
        known("name", name, TIERS)
        common = [plane.name for plane in layout.planes if plane.replicated and layout.ranks > 1]
        if name != "device" and common:
            raise Misuse(
                f"plane {common[0]!r} is the same on {layout.ranks} ranks, which share it on the "
                f"{name}: make MemoryTier(layout, blocks, shared=), which maps a file for it"
            )
        found = places(layout, arrays, blocks=blocks, axis=axis, host=True, gpu=False)
        self = cls.__new__(cls)
        self.name = name
        self.layout = layout
        self.blocks = found.blocks
        self.nbytes = sized(layout, found.blocks, name)
        self.planes = tuple(
            plane_view(where, found.blocks, plane.piece_bytes, found.tensors)
            for plane, where in zip(layout.planes, found.places, strict=True)
        )
        return self

    def close(self) -> None:
        """Frees the memory, as soon as no view of it is left; adopted arrays are dropped."""
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

    def _zeros_or_shared(self, nbytes: int, path: SharedFile | None) -> Bytes:
        return self._zeros((nbytes,)) if path is None else mapped(path, nbytes)


def slots(
    layout: KVLayout,
    blocks: int,
    shared: SharedFile | None,
    memory: Callable[[int, SharedFile | None], Bytes],
) -> tuple[Bytes, ...]:
    """Returns views of the planes of a tier below the device, side by side in slots.

    Args:
        layout: What a block is.
        blocks: Slots.
        shared: File for replicated planes, where there are several ranks.
        memory: Makes memory of a number of bytes, zero at first, or maps them from a file.
    """
    common = [plane for plane in layout.planes if plane.replicated and layout.ranks > 1]
    private = [plane for plane in layout.planes if plane not in common]
    if common and shared is None:
        raise Misuse(
            f"plane {common[0].name!r} is the same on {layout.ranks} ranks: "
            "give shared=, a file that the tiers of all of them map"
        )
    views: dict[str, Bytes] = {}
    for planes, path in ((private, None), (common, shared)):
        width, start = sum(plane.block_bytes for plane in planes), 0
        if not planes:
            continue
        bytes_ = memory(blocks * width, path)
        for plane in planes:
            shape = (blocks, plane.pieces, plane.piece_bytes)
            strides = (width, plane.piece_bytes, 1)
            views[plane.name] = np.ndarray(shape, np.uint8, bytes_, start, strides)
            start += plane.block_bytes
    return tuple(views[plane.name] for plane in layout.planes)


def sized(layout: KVLayout, blocks: int, name: str) -> int:
    """Returns the bytes of a tier.

    Raises:
        Misuse: It is smaller than one block.
    """
    blocks = integer("blocks", blocks, least=0)
    if not blocks:
        raise Misuse(
            f"blocks = 0: a {name} tier smaller than one block of {layout.block_bytes} bytes; "
            "give it 1 or more, or leave it out"
        )
    return blocks * layout.block_bytes


def _claim(file: int, size: int) -> None:
    """Takes all of a file at once: a page that cannot be had later would kill the process."""
    try:
        os.posix_fallocate(file, 0, size)
    except OSError:
        os.ftruncate(file, 0)
        raise


def mapped(path: SharedFile, size: int) -> Bytes:
    """Maps a file as memory that other processes share; a new one is of zeros."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            meta = os.fstat(file)
            found = meta.st_size
            if meta.st_uid != os.geteuid() or meta.st_mode & 0o077:
                raise OSError(f"it is not for this user alone, but of {meta.st_uid}: remove it")
            if found == 0:
                _claim(file, size)
            elif found != size:
                raise Misuse(
                    f"shared = {path}: it has {found} bytes and should have {size}; give every "
                    "rank the same layout and blocks, and a file of their own; if a dead process "
                    "left this file, remove it"
                )
            return np.frombuffer(mmap.mmap(file, size), np.uint8)
        finally:
            os.close(file)
    except (OSError, OverflowError, ValueError) as error:
        raise Unavailable(f"{path}: no {size} bytes to share: {error}") from error
