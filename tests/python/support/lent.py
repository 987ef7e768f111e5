"""NumPy memory that passes for a GPU's: tensors that speak one interchange protocol alone."""

import ctypes
import struct
from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]

# DLPack's codes of dtypes.
CODES = {"i": 0, "u": 1, "f": 2, "V": 4}

_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)(("PyCapsule_GetName", ctypes.pythonapi))
_at = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
# What each capsule holds until it is destroyed.
HELD: dict[int, tuple[object, ...]] = {}


def _destroyed(capsule: int) -> None:
    name = _name(capsule)
    del HELD[_at(capsule, name)]


_destroy = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_destroyed)


class Cuda:
    """A tensor with `__cuda_array_interface__` alone, of version 2 or 3."""

    def __init__(self, array: Array, *, version: int = 3, **other: Any) -> None:
        self.array = array
        self.version = version
        self.other = other

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        compact = self.array.flags.c_contiguous
        stream = {} if self.version == 2 else {"stream": 1}
        return {
            "data": (self.array.ctypes.data, False),
            "shape": self.array.shape,
            "strides": None if compact else self.array.strides,
            "typestr": self.array.dtype.str,
            "version": self.version,
            **stream,
            **self.other,
        }


class OfDevice(Cuda):
    """That says its device too."""

    def __init__(self, array: Array, kind: int, index: int) -> None:
        super().__init__(array)
        self.device = (kind, index)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


class Capsules:
    """A tensor with DLPack alone."""

    def __init__(
        self,
        array: Array,
        *,
        version: tuple[int, int] | None = None,
        kind: int = 2,
        index: int = 0,
        offset: int = 0,
        flags: int = 0,
        bits: int | None = None,
        name: bytes | None = None,
    ) -> None:
        self.array = array
        self.version = version
        self.kind = kind
        self.index = index
        self.offset = offset
        self.flags = flags
        self.bits = bits or 8 * array.dtype.itemsize
        self.name = name or (b"dltensor_versioned" if version else b"dltensor")
        self.asked: list[dict[str, Any]] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.kind, self.index)

    def __dlpack__(self, *, stream: int | None = None, **keywords: Any) -> object:
        self.asked.append({"stream": stream, **keywords})
        if keywords and not self.version:
            raise TypeError("__dlpack__() got an unexpected keyword argument")
        array, itemsize = self.array, self.array.dtype.itemsize
        numbers = ctypes.c_int64 * array.ndim
        shape = numbers(*array.shape)
        strides = numbers(*(stride // itemsize for stride in array.strides))
        raw = struct.pack(
            "QiiiBBHQQQ",
            array.ctypes.data - self.offset,
            self.kind,
            self.index,
            array.ndim,
            CODES[array.dtype.kind],
            self.bits,
            1,
            ctypes.addressof(shape),
            0 if array.flags.c_contiguous else ctypes.addressof(strides),
            self.offset,
        )
        if self.version:
            raw = struct.pack("IIQQQ", *self.version, 0, 0, self.flags) + raw
        memory = ctypes.create_string_buffer(raw)
        at = ctypes.addressof(memory)
        HELD[at] = (memory, array, shape, strides, name := ctypes.c_char_p(self.name))
        return _new(at, ctypes.cast(name, ctypes.c_void_p).value, _destroy)
