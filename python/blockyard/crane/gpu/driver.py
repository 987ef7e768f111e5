"""The driver's library: the few of its functions that Blockyard calls, each checked.

They are called with the interpreter's lock held, as each only queues work and takes microseconds;
slow ones give the lock away meanwhile.
"""

import ctypes
from ctypes import (
    POINTER,
    byref,
    c_char_p,
    c_int,
    c_size_t,
    c_ubyte,
    c_uint,
    c_uint64,
    c_ulonglong,
    c_void_p,
)
from typing import Any, ClassVar

import numpy as np

from blockyard._core import Unavailable
from blockyard.crane.gpu import GpuError

__all__ = [
    "BLOCK",
    "NOT_READY",
    "OVERLAP",
    "POINTER_KIND",
    "STREAM_ORDER",
    "Attributes",
    "Driver",
    "Rows",
    "install",
]

# From cuda.h.
NOT_READY = 600
STREAM_ORDER, OVERLAP, POINTER_KIND = 1, 1, 1
# Errors after which no later call works in this process, by CUDA's documentation of each.
_LOST = frozenset(
    f"CUDA_ERROR_{word}"
    for word in (
        "ASSERT",
        "CONTAINED",
        "CONTEXT_IS_DESTROYED",
        "DEINITIALIZED",
        "DEVICE_UNAVAILABLE",
        "ECC_UNCORRECTABLE",
        "EXTERNAL_DEVICE",
        "HARDWARE_STACK_ERROR",
        "ILLEGAL_ADDRESS",
        "ILLEGAL_INSTRUCTION",
        "INVALID_ADDRESS_SPACE",
        "INVALID_PC",
        "LAUNCH_FAILED",
        "LAUNCH_TIMEOUT",
        "MISALIGNED_ADDRESS",
        "MPS_CLIENT_TERMINATED",
        "NVLINK_UNCORRECTABLE",
        "TENSOR_MEMORY_LEAK",
        "UNKNOWN",
    )
)


def install() -> str:
    """Returns what to install for a GPU, and what needs none."""
    from blockyard.shared import extras  # noqa: PLC0415 - only an error needs it

    return (
        f"{extras.install('cuda12', 'cuda13')}, as the driver has it; no GPU is needed by "
        "blockyard.crane.tiers.memory.MemoryTier, nor with --on memory or --verify memory"
    )


class Attributes(ctypes.Structure):
    """`CUmemcpyAttributes` of cuda.h."""

    _fields_: ClassVar = [
        ("source_order", c_int),
        ("source_kind", c_int),
        ("source_id", c_int),
        ("destination_kind", c_int),
        ("destination_id", c_int),
        ("flags", c_uint),
    ]


class Rows(ctypes.Structure):
    """`CUDA_MEMCPY2D` of cuda.h."""

    _fields_: ClassVar = [
        field
        for side in ("source", "destination")
        for field in (
            (f"{side}_x", c_size_t),
            (f"{side}_y", c_size_t),
            (f"{side}_kind", c_int),
            (f"{side}_host", c_void_p),
            (f"{side}_device", c_uint64),
            (f"{side}_array", c_void_p),
            (f"{side}_pitch", c_size_t),
        )
    ] + [("width", c_size_t), ("height", c_size_t)]


BLOCK = np.dtype(
    [
        (f"{side}_{word}", np.uint64)
        for side in ("source", "destination")
        # Kind 1 is a pointer; a row's length is in bytes there. The hint is for managed memory.
        for word in ("kind", "address", "pitch", "rows", "hint")
    ]
    + [("width", np.uint64), ("height", np.uint64), ("depth", np.uint64)]
    + [("source_order", np.uint32), ("flags", np.uint32)]
)
"""`CUDA_MEMCPY3D_BATCH_OP` of cuda.h, with pointers on both sides."""


class Driver:
    """The driver's library: the few of its functions that Blockyard calls, each checked.

    Args:
        library: Name or path of the shared library.

    Raises:
        Unavailable: It is not there.
    """

    def __init__(self, library: str = "libcuda.so.1") -> None:
        try:
            self._library = ctypes.PyDLL(library)
            self._slow = ctypes.CDLL(library)
        except OSError as error:
            raise Unavailable(f"no CUDA driver ({error}); {install()}") from error
        where, word = POINTER(c_void_p), c_uint64
        self.init = self._function("cuInit", c_uint, slow=True)
        self.device_get = self._function("cuDeviceGet", POINTER(c_int), c_int)
        self.device_attribute = self._function("cuDeviceGetAttribute", POINTER(c_int), c_int, c_int)
        self.context_retain = self._function("cuDevicePrimaryCtxRetain", where, c_int, slow=True)
        self.context_push = self._function("cuCtxPushCurrent_v2", c_void_p)
        self.context_pop = self._function("cuCtxPopCurrent_v2", where)
        self.capture_mode = self._function("cuThreadExchangeStreamCaptureMode", POINTER(c_int))
        self.is_capturing = self._function("cuStreamIsCapturing", c_void_p, POINTER(c_int))
        self.record = self._function("cuEventRecord", c_void_p, c_void_p)
        self.wait = self._function("cuStreamWaitEvent", c_void_p, c_void_p, c_uint)
        self.query = self._function("cuEventQuery", c_void_p)
        pins = (c_void_p, c_size_t, c_uint)
        self.register = self._function("cuMemHostRegister_v2", *pins, slow=True)
        self.unregister = self._function("cuMemHostUnregister", c_void_p, slow=True)
        self.synchronize = self._function("cuStreamSynchronize", c_void_p, slow=True)
        self.synchronize_all = self._function("cuCtxSynchronize", slow=True)
        self.fill = self._function("cuMemsetD8Async", word, c_ubyte, c_size_t, c_void_p)
        self.pointer = self._function("cuPointerGetAttribute", POINTER(c_int), c_int, word)
        self.rows = self._function("cuMemcpy2DAsync_v2", POINTER(Rows), c_void_p)
        self.run = self._function("cuMemcpyAsync", word, word, c_size_t, c_void_p)
        self.launch = self._function(
            "cuLaunchKernel", c_void_p, *(c_uint,) * 7, c_void_p, c_void_p, c_void_p
        )
        # The same call twice: CUDA 13 dropped the index of what failed.
        head = (word, word, word, c_size_t, POINTER(Attributes), POINTER(c_size_t), c_size_t)
        self._attributes = Attributes(source_order=STREAM_ORDER, flags=OVERLAP)
        self._first = c_size_t(0)
        self._failed = c_size_t(0)
        self._batch: Any = None
        self._tail: tuple[Any, ...] = ()
        if hasattr(self._library, "cuMemcpyBatchAsync_v2"):
            self._batch = self._function("cuMemcpyBatchAsync_v2", *head, c_void_p)
        elif hasattr(self._library, "cuMemcpyBatchAsync"):
            self._batch = self._function("cuMemcpyBatchAsync", *head, POINTER(c_size_t), c_void_p)
            self._tail = (byref(self._failed),)
        self._blocks: Any = None
        if hasattr(self._library, "cuMemcpy3DBatchAsync_v2"):
            several = (c_size_t, c_void_p, c_ulonglong, c_void_p)
            self._blocks = self._function("cuMemcpy3DBatchAsync_v2", *several)

    @property
    def batches(self) -> bool:
        """Whether there is a call that copies many runs at once: since CUDA 12.8."""
        return self._batch is not None

    def batch(self, to: int, from_: int, sizes: int, runs: int, stream: int) -> None:
        """Makes that call, with the addresses of three tables of 64-bit words, one per run."""
        if self._batch is None:
            raise Unavailable("this driver has no cuMemcpyBatchAsync: it came with CUDA 12.8")
        attributes, first = byref(self._attributes), byref(self._first)
        self._batch(to, from_, sizes, runs, attributes, first, 1, *self._tail, stream)

    @property
    def batches_blocks(self) -> bool:
        """Whether there is a call that copies many blocks of rows at once: since CUDA 13."""
        return self._blocks is not None

    def blocks(self, table: int, blocks: int, stream: int) -> None:
        """Makes that call, with the address of a table of `BLOCK`."""
        if self._blocks is None:
            raise Unavailable("this driver has no cuMemcpy3DBatchAsync_v2: it came with CUDA 13.0")
        self._blocks(blocks, table, 0, stream)

    def name(self, code: int) -> str:
        """Returns CUDA's name for an error."""
        name = c_char_p()
        self._library.cuGetErrorName(c_int(code), byref(name))
        return (name.value or b"CUDA_ERROR_%d" % code).decode()

    def _function(self, name: str, *arguments: Any, slow: bool = False) -> Any:
        """Looks a function up; a slow one gives the interpreter's lock away meanwhile."""
        function = getattr(self._slow if slow else self._library, name)
        function.argtypes = arguments
        function.restype = c_int

        def check(code: int, _function: Any, _arguments: Any) -> int:
            if code and code != NOT_READY:
                word = self.name(code)
                raise GpuError(word, name, lost=word in _LOST)
            return code

        function.errcheck = check
        return function
