"""The kernels that move pieces of blocks: their source, and how they are compiled and launched.

Only this file depends on both sides; it needs neither CuPy nor a device.
"""

from blockyard.crane.gpu import Move

__all__ = [
    "OCCUPIERS",
    "OCCUPY",
    "THREADS",
    "WIDTHS",
    "arguments",
    "grid",
    "items",
    "name",
    "options",
    "source",
]

THREADS = 256
"""Threads of a thread block."""
OCCUPY, OCCUPIERS = "blockyard_occupy", 1024
"""The kernel that does nothing for a while, and the threads of its thread blocks."""
WIDTHS = (16, 8, 4, 1)
"""Bytes per load; there is a kernel for each."""
# Most threads that share a chunk, and the words that each of them copies of it: 2 KiB by 16 bytes.
_LANES = 32
_UNROLL = 4


def source() -> str:
    """Returns the CUDA source, which includes no header."""
    from importlib.resources import files  # noqa: PLC0415 - it takes 10 ms, and a GPU uses it

    return files(__package__).joinpath("kernels.cu").read_text("utf-8")


def options() -> tuple[str, ...]:
    """Returns the options of NVRTC beside the architecture."""
    return ("--std=c++17", f"-DTHREADS={THREADS}", f"-DLANES={_LANES}", f"-DUNROLL={_UNROLL}")


def name(width: int) -> str:
    """Returns the name of the kernel that loads this many bytes at a time."""
    return f"blockyard_move{width}"


def arguments(move: Move) -> tuple[int, ...]:
    """Returns the kernel's arguments, in its order, as unsigned integers of 64 bits."""
    return move[: Move._fields.index("width")]


def items(move: Move) -> int:
    """Returns the number of chunks, which thread blocks share among them."""
    return move.blocks * move.pieces * -(-move.piece_bytes // (move.width * _lanes(move) * _UNROLL))


def grid(move: Move) -> int:
    """Returns the thread blocks to launch; 0 where there is nothing to move."""
    return min(-(-items(move) * _lanes(move) // THREADS), move.groups)


def _lanes(move: Move) -> int:
    """Returns the threads that share a chunk, as the kernel has it: a power of two."""
    words = max(move.piece_bytes // move.width, 1)
    return min(1 << (words - 1).bit_length(), _LANES)
