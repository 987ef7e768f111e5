"""A CUDA device as Blockyard uses it: streams, events and memory by CuPy, the hot calls direct.

CuPy gives the interpreter's lock away around most calls, and beside a busy Python thread each such
call then waits milliseconds to get it back. The calls of every copy therefore go to the driver's
library itself, with the lock held: they only queue work, and take microseconds.
"""

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_int, c_uint64, c_void_p
from types import TracebackType
from typing import Any, Self

import numpy as np

from blockyard._core import Unavailable
from blockyard.crane.gpu import (
    Addresses,
    Array,
    Gpu,
    GpuError,
    Memory,
    Move,
    PitchedCopy,
    kernels,
)
from blockyard.crane.gpu.driver import (
    BLOCK,
    NOT_READY,
    OVERLAP,
    POINTER_KIND,
    STREAM_ORDER,
    Driver,
    Rows,
    install,
)
from blockyard.shared.owner import is_foreign

__all__ = ["Cuda", "current"]

# From cuda.h.
_UNIFIED = 4
_RELAXED = 2
_PORTABLE_MAPPED = 1 | 2
_HOST_POINTER_WORKS = 91
_PROCESSORS = 16
_MEMORY_KIND, _ORDINAL, _ON_DEVICE = 2, 9, 2


class _Allocation:
    """Device memory of CuPy's."""

    def __init__(self, cupy: Any, nbytes: int) -> None:
        self.pointer: Any = cupy.cuda.MemoryPointer(cupy.cuda.Memory(nbytes), 0)
        self.address: int = self.pointer.ptr
        self.nbytes = nbytes

    def free(self) -> None:
        """Drops it; the memory is freed when no view is left."""
        self.pointer = None


class _Here(threading.local):
    """Buffers for arguments, of each thread its own."""

    def __init__(self) -> None:
        self.rows = Rows(source_kind=_UNIFIED, destination_kind=_UNIFIED)
        self.parameters = (c_uint64 * 9)()
        start, size = ctypes.addressof(self.parameters), ctypes.sizeof(c_uint64)
        self.arguments = (c_void_p * 9)(*(start + size * i for i in range(9)))


class _Entered(threading.local):
    """The devices that a thread has entered, the last one on top."""

    def __init__(self) -> None:
        self.devices: list[Cuda] = []
        self.times: list[int] = []
        """How often each was entered in a row."""
        self.modes: list[c_int] = []
        """Capture modes to go back to."""


_entered = _Entered()


class Cuda:
    """One CUDA device of this process.

    Making it creates the CUDA context of the device. Make it after fork or spawn, in the process
    that uses it.

    Args:
        device: Its number.

    Raises:
        Unavailable: CuPy, the driver or the device is missing.
    """

    def __init__(self, device: int = 0) -> None:
        self._cupy = _cupy()
        self._driver = driver = Driver()
        try:
            driver.init(0)
            number, works, processors, context = c_int(), c_int(), c_int(), c_void_p()
            driver.device_get(byref(number), device)
            driver.device_attribute(byref(works), _HOST_POINTER_WORKS, number)
            driver.device_attribute(byref(processors), _PROCESSORS, number)
            driver.context_retain(byref(context), number)
        except GpuError as error:
            raise Unavailable(f"no CUDA device {device} ({error}); {install()}") from error
        if not works.value:
            raise Unavailable(
                f"CUDA device {device} does not read pinned memory at the host's own addresses"
            )
        self.device = device
        self._processors = processors.value
        self._context = context
        self._here = _Here()
        self._kept: dict[int, Any] = {}
        self._kernels: dict[str, tuple[Any, int]] = {}
        self._zeroing = 0

    def __enter__(self) -> Self:
        """Makes the device current to this thread, and its calls allowed beside a capture."""
        here = _entered
        if here.devices and here.devices[-1] is self:
            here.times[-1] += 1
            return self
        self._driver.context_push(self._context)
        mode = c_int(_RELAXED)
        try:
            self._driver.capture_mode(byref(mode))
        except GpuError:
            self._driver.context_pop(byref(c_void_p()))
            raise
        here.devices.append(self)
        here.times.append(1)
        here.modes.append(mode)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """Restores what was before."""
        here = _entered
        here.times[-1] -= 1
        if here.times[-1]:
            return
        here.devices.pop()
        here.times.pop()
        mode = here.modes.pop()
        try:
            try:
                self._driver.capture_mode(byref(mode))
            finally:
                self._driver.context_pop(byref(c_void_p()))
        except GpuError:
            # An error from inside says more.
            if kind is None:
                raise

    @property
    def batches(self) -> bool:
        """Whether the driver copies many runs in one call."""
        return self._driver.batches

    @property
    def batches_blocks(self) -> bool:
        """Whether the driver copies many blocks of rows in one call."""
        return self._driver.batches_blocks

    def allocate(self, nbytes: int) -> Memory:
        """Allocates device memory, zero at first, exactly as large as asked for."""
        cuda = self._cupy.cuda
        try:
            with cuda.Device(self.device):
                memory = _Allocation(self._cupy, nbytes)
            # On a stream of its own: a wait for the whole device is forbidden beside a capture.
            self._zeroing = self._zeroing or self.stream()
            self._driver.fill(memory.address, 0, nbytes, self._zeroing)
            self._driver.synchronize(self._zeroing)
        except (cuda.memory.OutOfMemoryError, cuda.runtime.CUDARuntimeError, GpuError) as error:
            raise Unavailable(f"{nbytes} bytes of device memory: {error}; ask for fewer") from error
        return memory

    def view(self, memory: Memory, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
        """Returns a CuPy array of uint8."""
        assert isinstance(memory, _Allocation)  # noqa: S101 - only `allocate` makes any
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
        """Returns the NUMA node of the device's slot on the bus."""
        from pathlib import Path  # noqa: PLC0415 - only pinned memory needs it

        slot = self._cupy.cuda.runtime.deviceGetPCIBusId(self.device).lower()
        try:
            path = Path("/sys/bus/pci/devices", slot, "numa_node")
            node = int(path.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None
        return node if node >= 0 else None

    def stream(self) -> int:
        """Makes a non-blocking stream with CuPy, its priority above the default."""
        with self._made("a stream"):
            stream = self._cupy.cuda.Stream(non_blocking=True, priority=-1)
        self._kept[stream.ptr] = stream
        return int(stream.ptr)

    def event(self) -> int:
        """Makes an event with CuPy, without a time stamp."""
        with self._made("an event"):
            event = self._cupy.cuda.Event(block=False, disable_timing=True)
        self._kept[event.ptr] = event
        return int(event.ptr)

    @contextmanager
    def _made(self, what: str) -> Iterator[None]:
        """Makes the device current to CuPy, and its errors errors of the driver."""
        try:
            with self._cupy.cuda.Device(self.device):
                yield
        except self._cupy.cuda.runtime.CUDARuntimeError as error:
            raise GpuError(str(error), what) from error

    def discard(self, stream: int, events: list[int]) -> None:
        """Drops them, so that CuPy destroys them."""
        for pointer in (stream, *events):
            self._kept.pop(pointer, None)

    def record(self, event: int, stream: int) -> None:
        """Records the event: it comes when what was submitted to the stream has ended."""
        self._driver.record(event, stream)

    def wait(self, stream: int, event: int) -> None:
        """Makes later work on the stream wait for the event's last record."""
        self._driver.wait(stream, event, 0)

    def ended(self, event: int) -> bool:
        """Whether the event has come."""
        return int(self._driver.query(event)) != NOT_READY

    def capturing(self, stream: int) -> bool:
        """Whether a graph is being captured from this stream."""
        status = c_int()
        try:
            self._driver.is_capturing(stream, byref(status))
        except GpuError as error:
            # The legacy default stream gives this error while another one is being captured.
            if error.name != "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT":
                raise
            return True
        return status.value != 0

    def copy(self, to: Addresses, from_: Addresses, sizes: Addresses, stream: int) -> None:
        """Copies runs of bytes, in any order."""
        tables = to.ctypes.data, from_.ctypes.data, sizes.ctypes.data
        self._driver.batch(*tables, len(sizes), stream)

    def copy_rows(self, rows: PitchedCopy[int], stream: int) -> None:
        """Copies the rows of one block."""
        what = self._here.rows
        what.source_device, what.source_pitch = rows.from_, rows.from_pitch
        what.destination_device, what.destination_pitch = rows.to, rows.to_pitch
        what.width, what.height = rows.width, rows.rows
        self._driver.rows(byref(what), stream)

    def copy_run(self, to: int, from_: int, nbytes: int, stream: int) -> None:
        """Copies one run of bytes."""
        self._driver.run(to, from_, nbytes, stream)

    def copy_blocks(self, blocks: PitchedCopy[Addresses], stream: int) -> None:
        """Copies many blocks, in any order, each as `copy_rows` does one."""
        table = np.zeros(len(blocks.to), BLOCK)
        table["source_kind"] = table["destination_kind"] = POINTER_KIND
        table["source_address"], table["source_pitch"] = blocks.from_, blocks.from_pitch
        table["destination_address"], table["destination_pitch"] = blocks.to, blocks.to_pitch
        table["source_rows"] = table["destination_rows"] = blocks.rows
        table["width"], table["height"], table["depth"] = blocks.width, blocks.rows, 1
        table["source_order"], table["flags"] = STREAM_ORDER, OVERLAP
        self._driver.blocks(table.ctypes.data, len(table), stream)

    def prepare(self, width: int) -> None:
        """Compiles the kernel for this width, unless it is there."""
        self._compiled(kernels.name(width))

    def _compiled(self, name: str) -> int:
        """Returns the address of a kernel, which is compiled the first time."""
        if name not in self._kernels:
            try:
                with self._made("a kernel"):
                    kernel = self._cupy.RawKernel(kernels.source(), name, options=kernels.options())
                    self._kernels[name] = kernel, int(kernel.kernel.ptr)
            except GpuError:
                raise
            except Exception as error:  # of many kinds, without a common one
                if is_foreign(error):
                    raise
                raise Unavailable(f"kernels cannot be compiled ({error}); {install()}") from error
        return self._kernels[name][1]

    def occupy(self, nanoseconds: int, stream: int) -> None:
        """Launches two thread blocks for each multiprocessor, which fill its 2,048 threads.

        Where a multiprocessor has fewer, they last twice as long.
        """
        function, here = self._compiled(kernels.OCCUPY), self._here
        here.parameters[0] = nanoseconds
        self._driver.launch(
            function,
            *(2 * self._processors, 1, 1),
            *(kernels.OCCUPIERS, 1, 1),
            *(0, stream, here.arguments, None),
        )

    def move(self, move: Move, stream: int) -> None:
        """Launches the kernel."""
        _kernel, function = self._kernels[kernels.name(move.width)]
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
        """Waits until the device has done everything that this process gave it."""
        self._driver.synchronize_all()


_made: dict[tuple[int, int], Cuda] = {}


def current(gpu: Gpu | None = None) -> Gpu:
    """Returns this one, or CuPy's current device, which is made once per process.

    Raises:
        Unavailable: There is no CuPy, no driver or no device.
    """
    if gpu is not None:
        return gpu
    cupy = _cupy()
    try:
        device = int(cupy.cuda.runtime.getDevice())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise Unavailable(f"no CUDA device ({error}); {install()}") from error
    key = os.getpid(), device
    if key not in _made:
        _made[key] = Cuda(device)
    return _made[key]


def _cupy() -> Any:
    try:
        import cupy  # noqa: PLC0415 - only a GPU needs it
    except ImportError as error:
        raise Unavailable(f"no CuPy ({error}); {install()}") from error
    return cupy
