"""Where a tensor of any library lies, by the interchange protocols, without the library.

Only addresses are read, never the memory there.
"""

import ctypes
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np

from blockyard._core import Misuse
from blockyard.shared.layout import WIDTHS

__all__ = ["Tensor", "describe", "is_buffer", "is_pair"]


class Tensor(NamedTuple):
    """A tensor's memory, in bytes."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    device: int | None
    """Index of its GPU; None on the host, or if it is unknown."""
    owner: object
    """It keeps the memory alive."""


def describe(tensor: Any, *, host: bool = False, gpu: bool = True) -> Tensor:  # noqa: ANN401 - of any library
    """Reads where a tensor lies.

    Args:
        tensor: An object with `__cuda_array_interface__` or DLPack; or, where they refuse its
            dtype, a pair of its uint8 view and its shape.
        host: Whether host memory is allowed, also that of an `__array_interface__` or a buffer.
        gpu: Whether the memory of a GPU is allowed.

    Raises:
        Misuse: It offers no protocol, is read only, or is in memory that is not allowed.
    """
    if is_pair(tensor):
        return _viewed(describe(tensor[0], host=host, gpu=gpu), tensor[1])
    kinds = (_CUDA, _MANAGED) * gpu + _HOST * host
    readers = (_of_cuda,) * gpu + (_of_host, _of_buffer) * host + (_of_dlpack,)
    refusals = []
    for read in readers:
        try:
            return read(tensor, kinds)
        except _REFUSALS as error:
            refusals.append(f"{type(error).__name__}: {error}")
    shape = tuple(getattr(tensor, "shape", ())) or "shape"
    raise Misuse(
        f"this {type(tensor).__name__} does not expose its memory ({'; '.join(refusals)}): if "
        "its dtype is refused, give a uint8 view and the shape, as "
        f"(tensor.view(torch.uint8), {shape})"
    )


_REFUSALS = (AttributeError, BufferError, LookupError, RuntimeError, TypeError, ValueError)
"""What libraries raise from an interchange protocol that they do not serve."""
_CUDA: Final = 2
_MANAGED: Final = 13
_HOST: Final = (1, 3)
_WHERE: Final = {
    _CUDA: "the memory of a CUDA device",
    _MANAGED: "managed memory of a CUDA device",
} | dict.fromkeys(_HOST, "host memory")
_VERSION: Final = (1, 2)
_READ_ONLY, _COPIED = 1, 2


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("kind", ctypes.c_int32),
        ("index", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    )


_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _of_cuda(tensor: Any, kinds: tuple[int, ...]) -> Tensor:  # noqa: ANN401 - of any library
    interface = tensor.__cuda_array_interface__
    try:
        kind, index = tensor.__dlpack_device__()
    except _REFUSALS:
        kind, index = _MANAGED, 0  # whose index says nothing either
    return _of_interface(interface, _device(kind, index, kinds), tensor)


def _of_host(tensor: Any, _: tuple[int, ...]) -> Tensor:  # noqa: ANN401 - of any library
    return _of_interface(tensor.__array_interface__, None, tensor)


def _of_buffer(tensor: Any, _: tuple[int, ...]) -> Tensor:  # noqa: ANN401 - of any library
    array = np.asarray(memoryview(tensor))
    return _of_interface(array.__array_interface__, None, array)


def _of_interface(interface: Mapping[str, Any], device: int | None, owner: object) -> Tensor:
    """Reads the dictionary of either array interface.

    Its stream only matters where bytes are read now.
    """
    address, read_only = interface["data"]
    _writable(read_only=read_only)
    shape = tuple(map(int, interface["shape"]))
    itemsize = np.dtype(interface["typestr"]).itemsize
    strides = interface.get("strides")
    strides = _compact(shape, itemsize) if strides is None else tuple(map(int, strides))
    return Tensor(int(address or 0), shape, strides, itemsize, device, owner)


def _of_dlpack(tensor: Any, kinds: tuple[int, ...]) -> Tensor:  # noqa: ANN401 - of any library
    """Reads a DLPack capsule, which stays unused, so that its destructor frees what it holds.

    Stream -1 asks for no order between streams: no byte is read here, every later copy waits for
    an event of the engine's stream, and a wait would break the capture of a graph.
    """
    kind, index = tensor.__dlpack_device__()
    device = _device(kind, index, kinds)
    stream = None if kind in _HOST else -1
    try:
        capsule = tensor.__dlpack__(stream=stream, max_version=_VERSION)
    except TypeError:  # from before there were versions
        capsule = tensor.__dlpack__(stream=stream)
    if _valid(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        if managed.major != _VERSION[0]:
            raise Misuse(f"it uses DLPack {managed.major}.{managed.minor}, not {_VERSION[0]}.x")
        if managed.flags & _COPIED:
            raise Misuse("DLPack returned a copy: give the tensor that the engine uses")
        _writable(read_only=bool(managed.flags & _READ_ONLY))
        raw = managed.tensor
    elif _valid(capsule, b"dltensor"):
        raw = _DLTensor.from_address(_pointer(capsule, b"dltensor"))
    else:
        raise TypeError("__dlpack__ gave no unused capsule")
    itemsize, rest = divmod(raw.bits * raw.lanes, 8)
    if rest:
        raise Misuse(f"its items have {raw.bits} bits: give a uint8 view and the shape in bytes")
    shape = tuple(raw.shape[: raw.ndim])
    strides = (
        tuple(stride * itemsize for stride in raw.strides[: raw.ndim])
        if raw.strides
        else _compact(shape, itemsize)
    )
    address = raw.data + raw.byte_offset if raw.data else 0
    return Tensor(address, shape, strides, itemsize, device, capsule)


def _device(kind: int, index: int, kinds: tuple[int, ...]) -> int | None:
    """Returns the index of the GPU that has the memory; None for the host, or for any GPU."""
    if kind in kinds:
        return int(index) if kind == _CUDA else None
    where = _WHERE.get(kind, f"memory of DLPack's device type {int(kind)}")
    other = "the memory of a CUDA device" if _CUDA in kinds else "host memory"
    tier = {_CUDA: "DeviceTier", _MANAGED: "DeviceTier"} | dict.fromkeys(_HOST, "MemoryTier")
    also = f", or adopt it by a {tier[kind]}" if kind in tier else ""
    raise Misuse(f"it is in {where}: give a tensor in {other}{also}")


def _writable(*, read_only: bool) -> None:
    if read_only:
        raise Misuse("it is read-only, and blocks are loaded into it: give a writable tensor")


def _compact(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    return tuple(itemsize * prod(shape[at + 1 :]) for at in range(len(shape)))


def is_buffer(entry: object) -> bool:
    """Whether it is one buffer of bytes, such as a `bytearray`, which is a sequence, too."""
    try:
        memoryview(entry)  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError):
        return False
    return True


def is_pair(entry: object) -> bool:
    """Whether it is a view and a shape, rather than a sequence of tensors."""
    if not isinstance(entry, tuple) or len(entry) != 2:  # noqa: PLR2004 - a pair
        return False
    shape = entry[1]
    return isinstance(shape, tuple | list) and all(isinstance(length, int) for length in shape)


def _viewed(view: Tensor, shape: Sequence[int]) -> Tensor:
    """Returns a tensor of that shape from its view as bytes."""
    shape = tuple(shape)
    widths = [width for width in sorted(set(WIDTHS.values())) if view.itemsize == 1]
    for width in widths:
        if shape and view.shape == (*shape[:-1], shape[-1] * width) and view.strides[-1] == 1:
            return view._replace(shape=shape, strides=(*view.strides[:-1], width), itemsize=width)
    raise Misuse(
        f"a view of shape {view.shape} with strides of {view.strides} bytes and items of "
        f"{view.itemsize} is no uint8 view of shape {shape}: but for the last axis, which is as "
        "many times longer as an item has bytes, both must agree"
    )
