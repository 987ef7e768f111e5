"""What Blockyard asks of a GPU; tiers and copiers use it without knowing which GPU it is.

Addresses, streams and events are plain integers, as the driver has them. Copies, moves, records
and waits are one native call each, whatever they carry; they allocate nothing and wait for nothing.
"""

from types import TracebackType
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np

from blockyard._core import BlockyardError, Misuse
from blockyard._typing import NDArray

__all__ = [
    "Addresses",
    "Array",
    "Gpu",
    "GpuError",
    "Memory",
    "Move",
    "PitchedCopy",
    "Places",
    "address_of",
    "freed",
]

# `CU_STREAM_PER_THREAD` of cuda.h.
_PER_THREAD = 2

Addresses = NDArray[np.uint64]
Array = Any
"""Device memory as an array of the GPU's own kind: CuPy's, which has no types."""


class GpuError(BlockyardError):
    """A call of the driver failed.

    Args:
        name: CUDA's name for it, as "CUDA_ERROR_ILLEGAL_ADDRESS".
        call: The function that was called.
        lost: Whether the device is lost to this process: no later call will work.
    """

    def __init__(self, name: str, call: str, *, lost: bool = False) -> None:
        super().__init__(f"{call}: {name}")
        self.name = name
        self.lost = lost


class Places(NamedTuple):
    """Where a plane's bytes are: piece p of slot s begins at pieces[p] + s * stride."""

    pieces: Addresses
    """Address of each piece of slot 0, shape (pieces,)."""
    stride: int
    """Bytes from a slot to the next."""


class Move(NamedTuple):
    """One launch of the kernel: pieces of blocks, from places to places.

    Tables are read while the kernel runs, so that they stay as they are until it has ended.
    """

    from_pieces: int
    """Address of a table of `pieces` addresses (uint64), as `Places.pieces`."""
    from_stride: int
    from_slots: int
    """Address of a table of `blocks` slots (uint32); 0 for slots 0, 1, 2, …"""
    to_pieces: int
    to_stride: int
    to_slots: int
    blocks: int
    pieces: int
    piece_bytes: int
    width: int
    """Bytes per load: 16, 8, 4 or 1. Every address, stride and length is a multiple of it."""
    groups: int
    """Most thread blocks at a time: how much of the GPU it may take."""


_Where = TypeVar("_Where", int, Addresses)


class PitchedCopy(NamedTuple, Generic[_Where]):
    """Blocks of rows, whose starts lie a pitch apart on either side: a 2-D copy for each block.

    For one block `to` and `from_` are addresses, for many they are tables, shape (blocks,).
    """

    to: _Where
    """Where the first row of a block goes."""
    to_pitch: int
    """Bytes from the start of a row to the next, there."""
    from_: _Where
    from_pitch: int
    width: int
    """Bytes of a row."""
    rows: int
    """Rows of a block."""


class Memory(Protocol):
    """Memory that a GPU sees."""

    @property
    def address(self) -> int:
        """The address at which it begins, a multiple of 256."""

    @property
    def nbytes(self) -> int:
        """Its bytes."""

    def free(self) -> None:
        """Gives it back; what still uses it must have ended. Once is enough."""


class Gpu(Protocol):
    """One device; `gpu.cuda.Cuda` is the real one. Its methods are called inside `with`."""

    @property
    def device(self) -> int | None:
        """The device's number; None where its memory is the host's own."""

    def allocate(self, nbytes: int) -> Memory:
        """Allocates device memory, zero at first.

        Raises:
            Unavailable: There is not so much.
        """

    def owns(self, address: int) -> bool:
        """Whether there is memory of this device at an address."""

    def register(self, address: int, nbytes: int) -> None:
        """Pins host memory, so that the device reads and writes it, at the same address.

        Raises:
            GpuError: The machine does not pin so much.
        """

    def unregister(self, address: int) -> None:
        """Unpins what was registered there."""

    def view(self, memory: Memory, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
        """Returns device memory as an array of bytes, of the GPU's own kind."""

    def node(self) -> int | None:
        """Returns the nearest NUMA node of the host; None where that is unknown."""

    def __enter__(self) -> Self:
        """Makes the device current to this thread, and its calls allowed beside a capture.

        When it is entered already, that costs no call.
        """

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """Restores what was before."""

    def stream(self) -> int:
        """Makes a stream that does not wait for the legacy default stream."""

    def event(self) -> int:
        """Makes an event without a time stamp."""

    def record(self, event: int, stream: int) -> None:
        """Records the event: it comes when what was submitted to the stream has ended."""

    def wait(self, stream: int, event: int) -> None:
        """Makes later work on the stream wait for the event's last record."""

    def ended(self, event: int) -> bool:
        """Whether the event has come; allowed while another stream is being captured.

        Raises:
            GpuError: Something before it went wrong.
        """

    def capturing(self, stream: int) -> bool:
        """Whether a graph is being captured from this stream."""

    def copy(self, to: Addresses, from_: Addresses, sizes: Addresses, stream: int) -> None:
        """Copies runs of bytes, in any order, shape (runs,) each.

        Raises:
            Unavailable: The driver has no such call; check `batches` first.
        """

    @property
    def batches(self) -> bool:
        """Whether `copy` is there."""

    def copy_rows(self, rows: PitchedCopy[int], stream: int) -> None:
        """Copies the rows of one block."""

    def copy_run(self, to: int, from_: int, nbytes: int, stream: int) -> None:
        """Copies one run of bytes."""

    def copy_blocks(self, blocks: PitchedCopy[Addresses], stream: int) -> None:
        """Copies many blocks, in any order, each as `copy_rows` does one.

        Raises:
            Unavailable: The driver has no such call; check `batches_blocks` first.
        """

    @property
    def batches_blocks(self) -> bool:
        """Whether `copy_blocks` is there."""

    def prepare(self, width: int) -> None:
        """Makes the kernel for moves of this width ready."""

    def move(self, move: Move, stream: int) -> None:
        """Launches the kernel."""

    def occupy(self, nanoseconds: int, stream: int) -> None:
        """Keeps all multiprocessors busy for so long, as a large matrix product does.

        The first call compiles a kernel for it.
        """

    def synchronize(self, stream: int) -> None:
        """Waits until what was submitted to the stream has ended."""

    def settle(self) -> None:
        """Waits until the device has done everything; not allowed beside a capture."""

    def discard(self, stream: int, events: list[int]) -> None:
        """Gives a stream and events back, after their last use."""


def address_of(stream: object) -> int:
    """Returns the address of a stream.

    Args:
        stream: The address; or a stream object of PyTorch, of CuPy, or of any library that has
            `__cuda_stream__`, as CUDA Python does.

    Raises:
        Misuse: It is neither; or it is the per-thread default stream, which is another stream in
            every thread.
    """
    found = stream
    for name in ("cuda_stream", "ptr", "__cuda_stream__"):
        if hasattr(found, name):
            found = getattr(found, name)
            break
    found = found() if callable(found) else found
    if isinstance(found, tuple) and len(found) == 2:  # noqa: PLR2004 - (version, address)
        found = found[1]
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise Misuse(f"stream = {stream!r}: give its address, or a stream of PyTorch or CuPy")
    if found == _PER_THREAD:
        raise Misuse(
            f"stream = {stream!r}: the per-thread default stream is a different stream in each "
            "thread, and copies would wait for the wrong one; give a created stream, or 0"
        )
    return found


def freed(gpu: Gpu, memory: list[Memory]) -> None:
    """Frees all of it, also where the device is lost, and beside a capture."""
    try:
        with gpu:
            while memory:
                memory[-1].free()
                memory.pop()
    except GpuError:
        # Of a lost device nothing can be given back.
        memory.clear()
