"""Where one msgpack object ends and the next begins, in a file of several.

msgspec decodes an object that stands alone. The first byte of an object says what follows it
(github.com/msgpack/msgpack, spec.md): a value, a length, or a number of further objects.
"""

from collections.abc import Iterator
from typing import IO, Final

__all__ = ["split"]

_CHUNK: Final = 1 << 20

# By the first byte: bytes of the length that follows it, bytes beside those, objects per length.
_SIZED: Final[dict[int, tuple[int, int, int]]] = {
    **{0xC4 + power: (1 << power, 0, 0) for power in range(3)},  # binary
    **{0xC7 + power: (1 << power, 1, 0) for power in range(3)},  # extensions
    **{0xD9 + power: (1 << power, 0, 0) for power in range(3)},  # text
    0xDC: (2, 0, 1),  # lists
    0xDD: (4, 0, 1),
    0xDE: (2, 0, 2),  # maps
    0xDF: (4, 0, 2),
}
# By the first byte: bytes that follow.
_FIXED: Final[dict[int, int]] = {
    0xC0: 0,
    0xC2: 0,
    0xC3: 0,
    0xCA: 4,
    0xCB: 8,
    **{0xCC + power: 1 << power for power in range(4)},  # whole numbers from 0
    **{0xD0 + power: 1 << power for power in range(4)},  # whole numbers
    **{0xD4 + power: 1 + (1 << power) for power in range(5)},  # small extensions
}


def split(file: IO[bytes]) -> Iterator[bytes]:
    """Yields the objects of a file, each as its bytes.

    Raises:
        ValueError: The file ends within an object, or a byte begins none.
    """
    data, at = b"", 0
    while True:
        while (end := _end(data, at)) is not None:
            yield data[at:end]
            at = end
        # An object of many chunks is looked through anew for twice the bytes, not for each chunk.
        more = file.read(max(_CHUNK, len(data) - at))
        data, at = data[at:] + more, 0
        if not more:
            if data:
                raise ValueError("the file ends within an object")
            return


def _end(data: bytes, at: int) -> int | None:
    """Returns where the object that begins at `at` ends; None if the data ends before."""
    open_objects = 1
    while open_objects:
        if at >= len(data):
            return None
        first = data[at]
        at += 1
        open_objects -= 1
        if first < 0x80 or first >= 0xE0:  # noqa: PLR2004 - small numbers
            continue
        if first < 0x90:  # noqa: PLR2004 - small maps
            open_objects += 2 * (first & 0x0F)
        elif first < 0xA0:  # noqa: PLR2004 - small lists
            open_objects += first & 0x0F
        elif first < 0xC0:  # noqa: PLR2004 - short text
            at += first & 0x1F
        elif first in _FIXED:
            at += _FIXED[first]
        elif first in _SIZED:
            width, beside, objects = _SIZED[first]
            size = int.from_bytes(data[at : at + width], "big")
            if at + width > len(data):
                return None
            at += width + beside + (0 if objects else size)
            open_objects += objects * size
        else:
            raise ValueError(f"0x{first:02x} begins no object")
    return at if at <= len(data) else None
