"""A CUDA device as Blockyard uses it: streams, events and memory by CuPy, the hot calls direct.

CuPy gives the interpreter's lock away around most calls, and beside a busy Python thread each such
call then waits milliseconds to get it back. What is called for every flight therefore goes to the
driver's library itself, with the lock held: it only queues work, and takes microseconds.
"""

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import (
    POINTER,
    byref,
    c_char_p,
    c_int,
    c_size_t,
    c_ubyte,
    c_uint,
    c_uint64,
    c_void_p,
)
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import numpy as np

from blockyard import kernels
from blockyard._core import Unavailable
from blockyard.gpu import Addresses, Array, Gpu, GpuError, Memory, Move

__all__ = ["Attributes", "Cuda", "Driver", "Rows", "current"]

_INSTALL = (
    "pip install 'blockyard[cuda12]', or [cuda13], as the driver has it; "
    "no GPU is needed by blockyard.tiers.memory.MemoryTier, nor with --device memory"
)
# From cuda.h.
_NOT_READY = 600
_STREAM_ORDER, _OVERLAP = 1, 1
_UNIFIED = 4
_RELAXED = 2
_PORTABLE_MAPPED = 1 | 2
_HOST_POINTER_WORKS = 91
_MEMORY_KIND, _ORDINAL, _ON_DEVICE = 2, 9, 2
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


class Driver:
    """The driver's library: the few of its functions that are called here, each checked.

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
            raise Unavailable(f"no CUDA driver ({error}); {_INSTALL}") from error
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
        self.launch = self._function(
            "cuLaunchKernel", c_void_p, *(c_uint,) * 7, c_void_p, c_void_p, c_void_p
        )
        # The same call twice: CUDA 13 dropped the index of what failed.
        head = (word, word, word, c_size_t, POINTER(Attributes), POINTER(c_size_t), c_size_t)
        self._attributes = Attributes(source_order=_STREAM_ORDER, flags=_OVERLAP)
        self._first = c_size_t(0)
        self._failed = c_size_t(0)
        self._batch: Any = None
        self._tail: tuple[Any, ...] = ()
        if hasattr(self._library, "cuMemcpyBatchAsync_v2"):
            self._batch = self._function("cuMemcpyBatchAsync_v2", *head, c_void_p)
        elif hasattr(self._library, "cuMemcpyBatchAsync"):
            self._batch = self._function("cuMemcpyBatchAsync", *head, POINTER(c_size_t), c_void_p)
            self._tail = (byref(self._failed),)

    @property
    def batches(self) -> bool:
        """Whether there is a call that copies many runs at once: since CUDA 12.8."""
        return self._batch is not None

    def batch(self, to: int, from_: int, sizes: int, runs: int, stream: int) -> None:
        """That call: addresses of three tables of 64-bit words, one per run."""
        if self._batch is None:
            raise Unavailable("this driver has no cuMemcpyBatchAsync: it came with CUDA 12.8")
        attributes, first = byref(self._attributes), byref(self._first)
        self._batch(to, from_, sizes, runs, attributes, first, 1, *self._tail, stream)

    def name(self, code: int) -> str:
        """CUDA's word for an error."""
        name = c_char_p()
        self._library.cuGetErrorName(c_int(code), byref(name))
        return (name.value or b"CUDA_ERROR_%d" % code).decode()

    def _function(self, name: str, *arguments: Any, slow: bool = False) -> Any:
        """One of its functions; a slow one gives the interpreter's lock away meanwhile."""
        function = getattr(self._slow if slow else self._library, name)
        function.argtypes = arguments
        function.restype = c_int

        def check(code: int, _function: Any, _arguments: Any) -> int:
            if code and code != _NOT_READY:
                word = self.name(code)
                raise GpuError(word, name, lost=word in _LOST)
            return code

        function.errcheck = check
        return function


class _Allocation:
    """Device memory of CuPy's."""

    def __init__(self, cupy: Any, nbytes: int) -> None:
        self.pointer: Any = cupy.cuda.MemoryPointer(cupy.cuda.Memory(nbytes), 0)
        self.address: int = self.pointer.ptr
        self.nbytes = nbytes

    def free(self) -> None:
        """Lets go of it; it is freed when no view is left."""
        self.pointer = None


class _Here(threading.local):
    """What each thread has of its own."""

    def __init__(self) -> None:
        self.modes: list[c_int] = []
        """Capture modes to go back to."""
        self.parameters = (c_uint64 * 9)()
        start, size = ctypes.addressof(self.parameters), ctypes.sizeof(c_uint64)
        self.arguments = (c_void_p * 9)(*(start + size * i for i in range(9)))


class Cuda:
    """One CUDA device of this process.

    Making it creates the CUDA context of the device. Make it after fork or spawn, in the process
    that uses it.

    Args:
        device: Its number.

    Raises:
        Unavailable: There is no CuPy, no driver or no such device; it says what to install.
    """

    def __init__(self, device: int = 0) -> None:
        self._cupy = _cupy()
        self._driver = driver = Driver()
        try:
            driver.init(0)
            number, works, context = c_int(), c_int(), c_void_p()
            driver.device_get(byref(number), device)
            driver.device_attribute(byref(works), _HOST_POINTER_WORKS, number)
            driver.context_retain(byref(context), number)
        except GpuError as error:
            raise Unavailable(f"no CUDA device {device} ({error}); {_INSTALL}") from error
        if not works.value:
            raise Unavailable(
                f"CUDA device {device} does not read pinned memory at the host's own addresses"
            )
        self.device = device
        self._context = context
        self._here = _Here()
        self._kept: dict[int, Any] = {}
        self._kernels: dict[int, tuple[Any, int]] = {}
        self._zeroing = 0

    def __enter__(self) -> Self:
        """Makes the device current to this thread; what follows is allowed beside a capture."""
        self._driver.context_push(self._context)
        mode = c_int(_RELAXED)
        try:
            self._driver.capture_mode(byref(mode))
        except GpuError:
            self._driver.context_pop(byref(c_void_p()))
            raise
        self._here.modes.append(mode)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """As it was before."""
        mode = self._here.modes.pop()
        try:
            try:
                self._driver.capture_mode(byref(mode))
            finally:
                self._driver.context_pop(byref(c_void_p()))
        except GpuError:
            # What went wrong inside says more.
            if kind is None:
                raise

    @property
    def batches(self) -> bool:
        """Whether the driver copies many runs in one call."""
        return self._driver.batches

    def allocate(self, nbytes: int) -> Memory:
        """Device memory, zero at first, exactly as large as asked for."""
        cuda = self._cupy.cuda
        try:
            with cuda.Device(self.device):
                memory = _Allocation(self._cupy, nbytes)
            # On a stream of its own: to wait for the whole device is forbidden beside a capture.
            self._zeroing = self._zeroing or self.stream()
            self._driver.fill(memory.address, 0, nbytes, self._zeroing)
            self._driver.synchronize(self._zeroing)
        except (cuda.memory.OutOfMemoryError, cuda.runtime.CUDARuntimeError, GpuError) as error:
            raise Unavailable(f"{nbytes} bytes of device memory: {error}; ask for fewer") from error
        return memory

    def view(self, memory: Memory, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
        """A CuPy array of uint8."""
        assert isinstance(memory, _Allocation)  # noqa: S101 - nobody else makes any
        array = self._cupy.ndarray
        return array(shape, np.uint8, memptr=memory.pointer, strides=strides)

    def owns(self, address: int) -> bool:
        """Whether there is memory of this device at an address."""
        kind, device = c_int(), c_int()
        try:
            self._driver.pointer(byref(kind), _MEMORY_KIND, address)
            self._driver.pointer(byref(device), _ORDINAL, address)
        except GpuError as error:
            if error.lost:
                raise
            return False
        return (kind.value, device.value) == (_ON_DEVICE, self.device)

    def register(self, address: int, nbytes: int) -> None:
        """Pins host memory, for all contexts."""
        self._driver.register(address, nbytes, _PORTABLE_MAPPED)

    def unregister(self, address: int) -> None:
        """Unpins what was registered there."""
        self._driver.unregister(address)

    def node(self) -> int | None:
        """The NUMA node of the device's slot on the bus."""
        slot = self._cupy.cuda.runtime.deviceGetPCIBusId(self.device).lower()
        try:
            path = Path("/sys/bus/pci/devices", slot, "numa_node")
            node = int(path.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None
        return node if node >= 0 else None

    def stream(self) -> int:
        """A non-blocking stream of CuPy's, its priority above the default: others wait for it."""
        with self._made("a stream"):
            stream = self._cupy.cuda.Stream(non_blocking=True, priority=-1)
        self._kept[stream.ptr] = stream
        return int(stream.ptr)

    def event(self) -> int:
        """An event of CuPy's, without a time stamp."""
        with self._made("an event"):
            event = self._cupy.cuda.Event(block=False, disable_timing=True)
        self._kept[event.ptr] = event
        return int(event.ptr)

    @contextmanager
    def _made(self, what: str) -> Iterator[None]:
        """On this device, with CuPy's errors told as the driver's own."""
        try:
            with self._cupy.cuda.Device(self.device):
                yield
        except self._cupy.cuda.runtime.CUDARuntimeError as error:
            raise GpuError(str(error), what) from error

    def discard(self, stream: int, events: list[int]) -> None:
        """CuPy destroys them."""
        for pointer in (stream, *events):
            self._kept.pop(pointer, None)

    def record(self, event: int, stream: int) -> None:
        """The event will have come when what was submitted to the stream has ended."""
        self._driver.record(event, stream)

    def wait(self, stream: int, event: int) -> None:
        """What is submitted to the stream from now on waits for the event's last record."""
        self._driver.wait(stream, event, 0)

    def ended(self, event: int) -> bool:
        """Whether the event has come."""
        return int(self._driver.query(event)) != _NOT_READY

    def capturing(self, stream: int) -> bool:
        """Whether a graph is being captured from this stream."""
        status = c_int()
        try:
            self._driver.is_capturing(stream, byref(status))
        except GpuError as error:
            # So it says of the legacy default stream, while another one is being captured.
            if error.name != "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT":
                raise
            return True
        return status.value != 0

    def copy(self, to: Addresses, from_: Addresses, sizes: Addresses, stream: int) -> None:
        """Copies runs of bytes, in any order."""
        tables = to.ctypes.data, from_.ctypes.data, sizes.ctypes.data
        self._driver.batch(*tables, len(sizes), stream)

    def copy_rows(
        self,
        to: int,
        to_pitch: int,
        from_: int,
        from_pitch: int,
        width: int,
        rows: int,
        stream: int,
    ) -> None:
        """Copies `rows` rows of `width` bytes, whose starts lie a pitch apart."""
        what = Rows(
            source_kind=_UNIFIED,
            source_device=from_,
            source_pitch=from_pitch,
            destination_kind=_UNIFIED,
            destination_device=to,
            destination_pitch=to_pitch,
            width=width,
            height=rows,
        )
        self._driver.rows(byref(what), stream)

    def prepare(self, width: int) -> None:
        """Compiles the kernel for this width, unless it is there."""
        if width not in self._kernels:
            try:
                with self._made("a kernel"):
                    kernel = self._cupy.RawKernel(
                        kernels.source(), kernels.name(width), options=kernels.options()
                    )
                    self._kernels[width] = kernel, int(kernel.kernel.ptr)
            except GpuError:
                raise
            except Exception as error:  # of many kinds, without a common one
                raise Unavailable(f"kernels cannot be compiled ({error}); {_INSTALL}") from error

    def move(self, move: Move, stream: int) -> None:
        """Launches the kernel."""
        _kernel, function = self._kernels[move.width]
        here, grid = self._here, kernels.grid(move)
        if kernels.items(move):
            here.parameters[:] = list(kernels.arguments(move))
            self._driver.launch(
                function, grid, 1, 1, kernels.THREADS, 1, 1, 0, stream, here.arguments, None
            )

    def synchronize(self, stream: int) -> None:
        """Waits until what was submitted to the stream has ended."""
        self._driver.synchronize(stream)

    def settle(self) -> None:
        """Waits until the device has done all that it was given, by whomever in this process."""
        self._driver.synchronize_all()


_made: dict[tuple[int, int], Cuda] = {}


def current(gpu: Gpu | None = None) -> Gpu:
    """This one, or else CuPy's current device, made once per process.

    Raises:
        Unavailable: There is no CuPy, no driver or no device.
    """
    if gpu is not None:
        return gpu
    cupy = _cupy()
    try:
        device = int(cupy.cuda.runtime.getDevice())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise Unavailable(f"no CUDA device ({error}); {_INSTALL}") from error
    key = os.getpid(), device
    if key not in _made:
        _made[key] = Cuda(device)
    return _made[key]


def _cupy() -> Any:
    try:
        import cupy  # noqa: PLC0415 - only who has chosen a GPU needs it
    except ImportError as error:
        raise Unavailable(f"no CuPy ({error}); {_INSTALL}") from error
    return cupy
