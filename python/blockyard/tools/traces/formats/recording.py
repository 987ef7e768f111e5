"""What a cache has recorded of its own traffic, by `record` in its configuration."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from blockyard.tools.traces.formats.format import Answered, Asked, Format, How
from blockyard.tools.traces.recording import block_size, recorded

__all__ = ["FORMAT"]

_KEY: Final = 8
_MS: Final = 10**6


def _read(path: Path, how: How) -> Iterator[Asked | Answered]:
    torn: list[int] = []
    for one in recorded(path, torn):
        keys = one.keys
        yield Asked(
            input_length=one.prompt,
            milliseconds=one.nanoseconds // _MS,
            keys=[keys[at : at + _KEY] for at in range(0, len(keys), _KEY)],
            output_length=one.answer,
        )
    if torn:
        how.notes.count("bytes were torn by a crash or a full disk, and were left out", sum(torn))


FORMAT: Final = Format(
    "recording",
    "what `record` in a cache's configuration has written",
    _read,
    block_size=block_size,
)
