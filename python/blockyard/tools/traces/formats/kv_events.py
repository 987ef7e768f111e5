"""The KV cache events of vLLM and SGLang: blocks stored and removed.

Both publish batches of events over ZMQ, in the same form (checked with vLLM 0.33, distributed/
kv_events.py, and SGLang 0.5.23, srt/disaggregation/kv_events.py). A file has the payloads of the
messages one after another, as they come in msgpack, or as JSON with a batch in each line.

Events list stored blocks, not requests: a request that finds its whole prompt
stores nothing, and an answer that grows stores block after block. So there are no requests here.
Each branch of the tree of blocks becomes a line, at the time of its first block: what the cache has
held, and how much of it. Hits are unknown, and the trace is marked so.
"""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final, cast

import msgspec

from blockyard.tools.traces.formats.format import Answered, Asked, Format, How
from blockyard.tools.traces.formats.msgpack import split
from blockyard.tools.traces.formats.times import milliseconds
from blockyard.tools.traces.lines import TraceError, lines

__all__ = ["FORMAT"]

_DEVICE: Final = (None, "GPU")
"""Where blocks are computed; what goes to other media is a copy."""
_STORED: Final = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
)
_REMOVED: Final = ("block_hashes", "medium")
_GIVE: Final = "give batches of KV events: [time, [event, …], rank]"


def _read(path: Path, how: How) -> Iterator[Asked | Answered]:
    tree = _Tree(_block_size(path), how)
    for where, time, event in _events(path):
        if event.get("medium") not in _DEVICE:
            continue
        if event.get("group_idx") not in (None, 0):
            how.notes.count("events left out as they are of further groups of layers")
            continue
        match event.get("type"):
            case "BlockStored":
                tree.store(where, time, event)
            case "BlockRemoved":
                tree.remove(where, event)
            case _:
                pass
    yield from tree.branches()


class _Tree:
    """All blocks that were ever stored, by their hashes."""

    def __init__(self, block_size: int, how: How) -> None:
        self.block_size = block_size
        self.notes = how.notes
        self.parents: dict[Any, Any] = {}
        # The ends of branches, with the time of what is new in each.
        self.tips: dict[Any, int] = {}
        self.removed: set[Any] = set()

    def store(self, where: str, time: int, event: dict[str, Any]) -> None:
        if event.get("block_size") != self.block_size:
            self.notes.count(f"events left out as their blocks are not of {self.block_size} tokens")
            return
        hashes = _hashes(where, event)
        above = event.get("parent_block_hash")
        if above is not None and not isinstance(above, (int, str, bytes)):
            raise TraceError(f"{where}, field parent_block_hash: give a hash, or null")
        if above is not None and above not in self.parents:
            self.notes.count("chains of blocks that begin before the file does")
            above = None
        for block in hashes:
            if block not in self.parents:
                self.parents[block] = above
                self.tips[block] = self.tips.pop(above, time)
            elif block in self.removed:
                self.removed.discard(block)
                self.notes.count("blocks stored again after they were removed, for want of room")
            above = block

    def remove(self, where: str, event: dict[str, Any]) -> None:
        self.removed.update(block for block in _hashes(where, event) if block in self.parents)

    def branches(self) -> Iterator[Asked]:
        for tip, time in self.tips.items():
            keys = [tip]
            while (above := self.parents[keys[-1]]) is not None:
                keys.append(above)
            yield Asked(
                input_length=len(keys) * self.block_size,
                milliseconds=time,
                keys=keys[::-1],
                output_length=0,
            )


def _hashes(where: str, event: dict[str, Any]) -> list[Any]:
    """Returns the hashes of an event's blocks."""
    hashes = event.get("block_hashes")
    if not isinstance(hashes, list) or not all(isinstance(h, (int, str, bytes)) for h in hashes):
        raise TraceError(f"{where}, field block_hashes: give a list of hashes")
    return hashes


def _block_size(path: Path) -> int:
    """Returns the tokens per block of the first block that is stored."""
    for where, _, event in _events(path):
        if event.get("type") == "BlockStored" and event.get("medium") in _DEVICE:
            size = event.get("block_size")
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise TraceError(f"{where}, field block_size: {size!r}; give a whole number from 1")
            return size
    raise TraceError(f"{path}: no block is stored in it; {_GIVE}")


def _events(path: Path) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yields an event's position, its time in milliseconds, and its fields by name."""
    for where, batch in _batches(path):
        if not isinstance(batch, list) or len(batch) < 2 or not isinstance(batch[1], list):  # noqa: PLR2004
            raise TraceError(f"{where}: it is no batch; {_GIVE}")
        time = batch[0]
        if isinstance(time, bool) or not isinstance(time, (int, float)):
            raise TraceError(f"{where}, field time: {time!r:.40}; give seconds")
        try:
            time = milliseconds(time, "s")
        except ValueError:
            raise TraceError(f"{where}, field time: {time!r:.40}; give seconds") from None
        for event in batch[1]:
            yield where, time, _named(where, event)


def _named(where: str, event: object) -> dict[str, Any]:
    """Returns an event by names of fields: before 2026 it was a list that begins with its type."""
    if isinstance(event, dict):
        return event
    if isinstance(event, list) and event and isinstance(event[0], str):
        names = _STORED if event[0] == "BlockStored" else _REMOVED
        return {"type": event[0], **dict(zip(names, event[1:], strict=False))}
    raise TraceError(f"{where}: {event!r:.40} is no event; {_GIVE}")


def _batches(path: Path) -> Iterator[tuple[str, object]]:
    """Yields a batch's position, and the decoded batch."""
    if _packed(path):
        yield from _unpacked(path)
        return
    for place, line in lines(path, "KV events"):
        try:
            yield f"{path}, line {place.line}", msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError) as error:
            raise place.wrong(None, f"not JSON: {error}; give one batch per line") from None


def _packed(path: Path) -> bool:
    """Returns whether a file is no JSON; what cannot be read is said by what reads lines."""
    try:
        with _opened(path) as file:
            return file.read(1) not in {b"[", b"{", b""}
    except (OSError, EOFError, zlib.error):
        return False


def _unpacked(path: Path) -> Iterator[tuple[str, object]]:
    number = 1
    try:
        with _opened(path) as file:
            for raw in split(file):
                batch: object = msgspec.msgpack.decode(raw)
                yield f"{path}, batch {number}", batch
                number += 1
    except (ValueError, RecursionError, EOFError, OSError, zlib.error) as error:
        raise TraceError(f"{path}, batch {number}: not msgpack: {error}; {_GIVE}") from None


def _opened(path: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


FORMAT: Final = Format(
    "kv-events",
    "KV cache events of vLLM and SGLang, msgpack or JSON lines",
    _read,
    hits_unknown="KV events list stored blocks, not requests",
    block_size=_block_size,
)
