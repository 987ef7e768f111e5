"""An engine's memory as the planes of a layout: arithmetic on addresses alone."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import NamedTuple

import numpy as np

from blockyard._core import Misuse
from blockyard.crane.gpu import Places
from blockyard.crane.tiers.tensors import Tensor, describe, is_buffer, is_pair
from blockyard.shared.layout import KVLayout, Plane
from blockyard.shared.validate import integer

__all__ = ["Adopted", "Tensor", "describe", "places"]


class Adopted(NamedTuple):
    """Memory of the engine as the planes of a layout."""

    places: tuple[Places, ...]
    """Where each plane is."""
    blocks: int
    tensors: tuple[Tensor, ...]
    """They keep the memory alive; hold them for as long as the places are used."""


def places(  # noqa: PLR0913 - keywords
    layout: KVLayout,
    tensors: object,
    *,
    blocks: int | None = None,
    axis: int | Mapping[str, int] | None = None,
    device: int | None = None,
    host: bool = False,
    gpu: bool = True,
) -> Adopted:
    """Finds the pieces of every block in tensors of the engine.

    One axis of each tensor counts blocks. What lies together in memory over the other axes is
    cut into pieces. They are numbered tensor by tensor, then in row-major order over the axes
    that lie apart, then as they lie. What an axis means, and in which order a piece has them, does
    not matter: bytes come back to where they were.

    Args:
        layout: What a block is.
        tensors: What `describe` takes, or a sequence of it; with several planes a mapping of each
            one's name to such.
        blocks: How many there are. It or `axis` must be given: neither is guessed.
        axis: Which axis counts blocks, where not just one has their length; for every tensor, or
            a mapping of a plane's name to that of its tensors.
        device: Index of the GPU that must have them; None for any one.
        host: As in `describe`.
        gpu: As in `describe`.

    Raises:
        Misuse: They do not fit; the message has both shapes.
    """
    if blocks is not None:
        blocks = integer("blocks", blocks)
    names = [plane.name for plane in layout.planes]
    axes = axis if isinstance(axis, Mapping) else dict.fromkeys(names, axis)
    if not set(axes) <= set(names):
        raise Misuse(f"axis = {dict(axes)}: the layout has planes {names}")
    found, owners = [], []
    for plane, entries in zip(layout.planes, _by_plane(names, tensors), strict=True):
        runs: list[_Runs] = []
        for number, entry in enumerate(entries):
            with _named(f"tensor {number} of plane {plane.name!r}"):
                tensor = describe(entry, host=host, gpu=gpu)
                _check(tensor, device)
                at = _block_axis(tensor.shape, axes.get(plane.name), blocks, layout.block_size)
                runs.append(_runs(tensor, at))
                _check_stride(runs)
            blocks = tensor.shape[at]
            device = tensor.device if device is None else device
            owners.append(tensor)
        found.append((plane, _joined(plane, runs)))
    assert blocks is not None  # noqa: S101 - every plane has a tensor, and that says how many
    _check_apart(found, blocks)
    return Adopted(tuple(where for _, where in found), blocks, tuple(owners))


class _Runs(NamedTuple):
    """The runs of bytes that a block has in a tensor."""

    address: int
    nbytes: int
    """Bytes of each run."""
    apart: tuple[tuple[int, int], ...]
    """Length and stride of each axis over which runs lie apart, outermost first."""
    stride: int | None
    """From a block to the next; None where there is one block."""


@contextmanager
def _named(what: str) -> Iterator[None]:
    try:
        yield
    except Misuse as error:
        raise Misuse(f"{what}: {error}") from error


def _by_plane(names: list[str], tensors: object) -> Iterator[Sequence[object]]:
    if not isinstance(tensors, Mapping):
        if len(names) > 1:
            raise Misuse(f"planes {names} have tensors of their own: give a mapping by name")
        tensors = {names[0]: tensors}
    if set(tensors) != set(names):
        raise Misuse(f"tensors for planes {list(tensors)}: the layout has {names}")
    for name in names:
        given = tensors[name]
        if is_pair(given) or is_buffer(given) or not isinstance(given, Sequence):
            given = [given]
        if not given:
            raise Misuse(f"no tensors for plane {name!r}: give one or more")
        yield given


def _check(tensor: Tensor, device: int | None) -> None:
    """Refuses memory that is not there, is elsewhere, repeats itself or runs backwards."""
    address, shape, strides, size = tensor[:4]
    if not address or not shape or not prod(shape) or not size:
        raise Misuse(f"it is empty: shape {shape}, items of {size} bytes, address {address:#x}")
    if None not in {device, tensor.device} and device != tensor.device:
        raise Misuse(f"it is on device {tensor.device}, not on {device}: give all from one device")
    if address % size:
        raise Misuse(f"address {address:#x} is misaligned for items of {size} bytes")
    for at, (length, stride) in enumerate(zip(shape, strides, strict=True)):
        if length > 1 and (stride < size or stride % size):
            raise Misuse(
                f"axis {at} of shape {shape} has a stride of {stride} bytes, and items have "
                f"{size}: give memory that is neither expanded, flipped nor misaligned"
            )


def _block_axis(
    shape: tuple[int, ...], axis: int | None, blocks: int | None, block_size: int
) -> int:
    if axis is None:
        if blocks is None:
            raise Misuse(f"which axis of shape {shape} counts blocks? Give blocks= or axis=")
        fits = [at for at, length in enumerate(shape) if length == blocks]
        if len(fits) > 1:
            raise Misuse(f"axes {fits} of shape {shape} have the length {blocks}: give axis=")
    else:
        axis = integer("axis", axis, least=-len(shape))
        if axis >= len(shape):
            raise Misuse(f"axis = {axis}: shape {shape} has {len(shape)} axes")
        blocks = shape[axis] if blocks is None else blocks
        fits = [axis % len(shape)] if shape[axis] == blocks else []
    if fits:
        return fits[0]
    if blocks * block_size in shape:
        at = shape.index(blocks * block_size)
        view = (*shape[:at], blocks, block_size, *shape[at + 1 :])
        raise Misuse(
            f"axis {at} of shape {shape} counts tokens, {block_size} in each of {blocks} blocks: "
            f"reshape it first, as tensor.view{view}"
        )
    which = "no axis" if axis is None else f"not axis {axis}"
    raise Misuse(f"{which} of shape {shape} has the length blocks = {blocks}")


def _runs(tensor: Tensor, at: int) -> _Runs:
    """Joins the axes that lie together into runs of bytes, in whatever order they are."""
    axes = [axis for axis, length in enumerate(tensor.shape) if axis != at and length > 1]
    run = tensor.itemsize
    for axis in sorted(axes, key=tensor.strides.__getitem__):
        if tensor.strides[axis] != run:
            break
        run *= tensor.shape[axis]
        axes.remove(axis)
    apart = tuple((tensor.shape[axis], tensor.strides[axis]) for axis in axes)
    return _Runs(tensor.address, run, apart, tensor.strides[at] if tensor.shape[at] > 1 else None)


def _check_stride(runs: list[_Runs]) -> None:
    first, last = runs[0].stride, runs[-1].stride
    if first != last:
        raise Misuse(
            f"its blocks are {last} bytes apart, those of tensor 0 {first}: a plane has one "
            "stride; give the layout a plane for each kind of tensor"
        )


def _joined(plane: Plane, runs: list[_Runs]) -> Places:
    sizes = Counter[int]()
    for run in runs:
        sizes[run.nbytes] += prod(length for length, _ in run.apart)
    total = sum(size * count for size, count in sizes.items())
    if total != plane.block_bytes or any(size % plane.piece_bytes for size in sizes):
        have = " and ".join(f"{count} pieces of {size} bytes" for size, count in sizes.items())
        raise Misuse(
            f"a block has {have} in the tensors of plane {plane.name!r}, and {plane.pieces} of "
            f"{plane.piece_bytes} in the layout: "
            + (
                "give a layout with pieces no larger, as order='layer-first' has them for a "
                "tensor per layer, or tensors with larger ones"
                if total == plane.block_bytes
                else f"{total} bytes, not {plane.block_bytes}; are dtype, block_size, layers and "
                "heads the engine's, and is every tensor there?"
            )
        )
    pieces = []
    for run in runs:
        at = np.array([run.address], np.uint64)
        for length, stride in (*run.apart, (run.nbytes // plane.piece_bytes, plane.piece_bytes)):
            steps = np.arange(length, dtype=np.uint64) * np.uint64(stride)
            at = (at[:, None] + steps).ravel()
        pieces.append(at)
    return Places(np.concatenate(pieces), runs[0].stride or plane.block_bytes)


def _check_apart(found: list[tuple[Plane, Places]], blocks: int) -> None:
    """Refuses places that share a byte, of whatever plane, piece and slot."""
    for plane, where in found:
        if where.stride < plane.piece_bytes:
            raise Misuse(
                f"blocks of plane {plane.name!r} overlap: they are {where.stride} bytes apart, "
                f"and a piece has {plane.piece_bytes}; which axis counts them?"
            )
    pieces = [(plane.name, piece) for plane, _ in found for piece in range(plane.pieces)]
    counts = [plane.pieces for plane, _ in found]
    sizes = np.repeat([plane.piece_bytes for plane, _ in found], counts)
    strides = np.repeat([where.stride for _, where in found], counts)
    starts = np.concatenate([where.pieces for _, where in found]).astype(np.int64)
    ends = starts + (blocks - 1) * strides + sizes
    for at, (name, piece) in enumerate(pieces):
        # Where two pieces lie among each other's slots, a later one begins so far into a slot of
        # this one, and may reach into the next. Where strides differ, they are kept out.
        later = slice(at + 1, None)
        into = (starts[later] - starts[at]) % strides[at]
        meets = (into < sizes[at]) | (into + sizes[later] > strides[at])
        meets |= strides[later] != strides[at]
        meets &= (starts[later] < ends[at]) & (starts[at] < ends[later])
        if meets.any():
            other = at + 1 + int(meets.argmax())
            raise Misuse(
                f"piece {piece} of plane {name!r} and piece {pieces[other][1]} of plane "
                f"{pieces[other][0]!r} lie in the same memory, their blocks {strides[at]} and "
                f"{strides[other]} bytes apart: was a tensor given twice?"
            )
