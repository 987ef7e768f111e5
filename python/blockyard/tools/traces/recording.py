"""Recordings: what a cache with `record` in its configuration has written of its requests.

`rust/record/src/frame.rs` says what the bytes are. A crash or a full disk may have torn one:
reading goes on at the next frame, or the next header, that is whole.
"""

import mmap
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from blockyard._core import __version__
from blockyard.tools.traces.lines import TraceError

__all__ = ["Recorded", "block_size", "is_recording", "recorded"]

_MAGIC: Final = b"\x89BLOCKYARD REC\r\n"
_VERSION: Final = 1
_FRAME: Final = struct.Struct("<II")
"""The length of a body, and its CRC-32."""
_HEADER: Final = struct.Struct("<IIQ")
"""The version, tokens per block, and when it began, in nanoseconds since 1970."""
_REQUEST: Final = struct.Struct("<QQQQ")
"""When it arrived and ended, in nanoseconds since then; tokens of its prompt and its answer."""
_WHOLE: Final = len(_MAGIC) + _FRAME.size + _HEADER.size
_LARGEST: Final = 16 << 20
"""Bytes of a body: more are never written."""


class Recorded(NamedTuple):
    """A request, in the order in which they ended."""

    nanoseconds: int
    """Its arrival, since 1970."""
    prompt: int
    """Tokens of its prompt."""
    answer: int
    """Tokens of its answer."""
    keys: bytes
    """Eight bytes for each full block of its prompt."""


def is_recording(path: Path) -> bool:
    """Whether a file is one; False where it cannot be read."""
    try:
        with path.open("rb") as file:
            # The first header may have been torn by a crash, before the next process wrote its own.
            return _MAGIC in file.read(2 * _WHOLE)
    except OSError:
        return False


def block_size(path: Path) -> int:
    """Returns the tokens per block.

    Raises:
        TraceError: It is no recording, or no header in it is whole.
    """
    for size, _ in _bodies(path, []):
        return size
    raise TraceError(f"{path}: {_NONE}")


def recorded(path: Path, torn: list[int] | None = None) -> Iterator[Recorded]:
    """Yields the requests.

    Args:
        path: The file.
        torn: Takes the bytes of each place that could not be read; the torn end of a file counts.

    Raises:
        TraceError: It is no recording, or of several sizes of blocks.
    """
    first = None
    began = 0
    for size, body in _bodies(path, [] if torn is None else torn):
        if isinstance(body, int):
            began, first = body, first or size
            if size != first:
                raise TraceError(
                    f"{path}: it has blocks of {first} tokens, and from some point on of {size}; "
                    "give the file as it was written"
                )
            continue
        arrived, _, prompt, answer = _REQUEST.unpack_from(body)
        if prompt:
            yield Recorded(began + arrived, prompt, answer, body[_REQUEST.size :])
    if first is None:
        raise TraceError(f"{path}: {_NONE}")


_NONE: Final = "it is no recording; give the file of `record` in the cache's configuration"


def _bodies(path: Path, torn: list[int]) -> Iterator[tuple[int, int | bytes]]:
    """Yields the tokens per block, with the start of each header and the body of each request."""
    if path.is_dir():
        raise TraceError(f"{path}: this is a directory; give the file of a recording")
    try:
        with path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                raise TraceError(f"{path}: {_NONE}")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                yield from _read(path, data, torn)
    except FileNotFoundError:
        raise TraceError(f"{path}: there is no such file; give the path of a recording") from None
    except OSError as error:
        raise TraceError(f"{path}: it cannot be read: {error}") from None


def _read(path: Path, data: mmap.mmap, torn: list[int]) -> Iterator[tuple[int, int | bytes]]:
    at = size = 0
    while at < len(data):
        begins = data[at : at + len(_MAGIC)] == _MAGIC
        start = at + len(_MAGIC) if begins else at
        body = _body(data, start, _HEADER.size if begins else _REQUEST.size)
        if body is None or not (begins or size):
            behind = _behind(data, at)
            torn.append(behind - at)
            at = behind
            continue
        at = start + _FRAME.size + len(body)
        if begins:
            version, size, began = _HEADER.unpack_from(body)
            if version != _VERSION or not size:
                raise TraceError(
                    f"{path}: it is of format {version}, and Blockyard {__version__} knows "
                    f"{_VERSION}: read it with the version that wrote it"
                )
            yield size, began
        else:
            yield size, body


def _body(data: mmap.mmap, at: int, least: int) -> bytes | None:
    """Returns the body of the frame that is there; None where it is not whole."""
    start = at + _FRAME.size
    if start > len(data):
        return None
    length, checksum = _FRAME.unpack_from(data, at)
    if not least <= length <= _LARGEST or length % 8:
        return None
    body = data[start : start + length]
    return body if len(body) == length and zlib.crc32(body) == checksum else None


def _behind(data: mmap.mmap, at: int) -> int:
    """Returns where reading goes on behind what is torn: the next header, or the end.

    Where a bit has flipped in a frame, its length still leads to the next one.
    """
    header = data.find(_MAGIC, at + 1)
    end = len(data) if header < 0 else header
    if at + _FRAME.size <= end:
        follows: int = at + _FRAME.size + _FRAME.unpack_from(data, at)[0]
        if follows < end and _body(data, follows, _REQUEST.size) is not None:
            return follows
    return end
