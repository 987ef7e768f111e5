"""Traces of requests in the Mooncake format, which are read and checked before anything runs."""

import gzip
import hashlib
import json
import os
import re
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from blockyard._core import Misuse
from blockyard._typing import override
from blockyard.tools.outputs import write
from blockyard.tools.traces.lines import Place, TraceError, lines
from blockyard.tools.traces.memory_check import Room
from blockyard.tools.traces.recording import block_size, is_recording, recorded

__all__ = ["LONGEST", "Line", "Trace", "TraceError", "read"]

# The latest millisecond whose nanoseconds fit into 64 bits.
_LATEST: Final = 2**63 // 10**6 - 1
LONGEST: Final = 2**31 - 1
"""The most tokens of a prompt or an answer."""
_GREATEST: Final = 2**63 - 1

_EACH: Final = 40
"""Bytes that the checks take for each id of a trace."""

# The block sizes that are tried where none is given, and the share of lines that must agree.
_BLOCKS: Final = tuple(1 << power for power in range(3, 13))
_AGREE: Final = 0.9

_WANTED: Final = {
    "timestamp": f"milliseconds from the start, a whole number from 0 to {_LATEST}",
    "input_length": f"tokens of the prompt, a whole number from 1 to {LONGEST}",
    "output_length": f"tokens of the answer, a whole number from 0 to {LONGEST}",
    "hash_ids": f"a list of whole numbers from 0 to {_GREATEST}, one for each block of the prompt",
    "session": "text, the same for all requests of one session",
    "block_size": f"tokens per id, a whole number from 1 to {LONGEST}",
    "hits_unknown": "text with the reason",
    "incomplete": "true or false",
}


class Line(msgspec.Struct, omit_defaults=True, gc=False):
    """A request as the file has it."""

    timestamp: Annotated[int, msgspec.Meta(ge=0, le=_LATEST)]
    input_length: Annotated[int, msgspec.Meta(ge=1, le=LONGEST)]
    output_length: Annotated[int, msgspec.Meta(ge=0, le=LONGEST)]
    hash_ids: list[Annotated[int, msgspec.Meta(ge=0, le=_GREATEST)]]
    session: str | None = None
    # These are of the whole trace, and stand in its first line.
    block_size: Annotated[int, msgspec.Meta(ge=1, le=LONGEST)] | None = None
    hits_unknown: str | None = None
    incomplete: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests in the order of arrival, frozen; traces are equal by value, whatever their names.

    An id stands for `trace_block` tokens of a prompt and for all tokens before them: equal ids have
    equal prefixes. A prompt's last id may stand for fewer tokens. A prompt may continue after its
    last id, with tokens that no other request has.
    """

    name: str
    """The name in reports."""
    trace_block: int
    """Tokens per id."""
    arrival: NDArray[np.int64]
    """Milliseconds from the start, never falling, shape (requests,)."""
    input_length: NDArray[np.int64]
    """Tokens of the prompts, 1 or more, shape (requests,)."""
    output_length: NDArray[np.int64]
    """Tokens of the answers, shape (requests,); with 0 the prompt is computed all the same."""
    ids: NDArray[np.int64]
    """The ids of all requests, one request after another, within their prompts."""
    offsets: NDArray[np.int64]
    """Request i has ids[offsets[i] : offsets[i + 1]], shape (requests + 1,)."""
    session: NDArray[np.int64]
    """Index into `sessions`, -1 for none, shape (requests,); shape (0,) where none has one."""
    sessions: tuple[str, ...] = ()
    """Names of the sessions, in the order they first appear."""
    hits_unknown: str = ""
    """Why the ids do not show hits; "" if they do."""
    incomplete: bool = False
    """Whether it was cut short by Ctrl-C when it was made."""

    def __post_init__(self) -> None:
        """Freezes the arrays."""
        for column in self._arrays():
            column.flags.writeable = False

    def __len__(self) -> int:
        """Returns the number of requests."""
        return len(self.arrival)

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trace) and self.digest() == other.digest()

    @override
    def __hash__(self) -> int:
        return hash(self.digest())

    def ids_of(self, request: int) -> NDArray[np.int64]:
        """Returns the ids of a prompt's blocks, a partial last one included."""
        return self.ids[self.offsets[request] : self.offsets[request + 1]]

    def digest(self) -> str:
        """Returns 64 hexadecimal digits, the same for equal traces on every machine."""
        digest = hashlib.sha256(b"%d" % self.trace_block)
        for column in self._arrays():
            digest.update(b"|%d|" % len(column))
            digest.update(column.astype("<i8").tobytes())
        digest.update("\0".join(self.sessions).encode())
        digest.update(self.hits_unknown.encode() + b"incomplete" * self.incomplete)
        return digest.hexdigest()

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes a file that `read` reads, gzipped if its name ends in .gz. It is whole or absent.

        Raises:
            TraceError: The file cannot be written.
        """
        path = Path(path)
        sessions = [self.sessions[i] if i >= 0 else None for i in self.session.tolist()]
        columns = zip(
            self.arrival.tolist(),
            self.input_length.tolist(),
            self.output_length.tolist(),
            (self.ids_of(request).tolist() for request in range(len(self))),
            sessions or [None] * len(self),
            strict=True,
        )
        rows = [Line(*column) for column in columns]
        for row in rows[:1]:
            row.block_size, row.hits_unknown = self.trace_block, self.hits_unknown or None
            row.incomplete = self.incomplete
        raw = msgspec.json.Encoder().encode_lines(rows)
        try:
            # No time in the gzip header: equal traces, equal files.
            write(path, gzip.compress(raw, mtime=0) if path.suffix == ".gz" else raw)
        except Misuse as error:
            raise TraceError(str(error)) from None

    def _arrays(self) -> tuple[NDArray[np.int64], ...]:
        lengths = (self.input_length, self.output_length)
        return (self.arrival, *lengths, self.ids, self.offsets, self.session)


def read(
    path: str | os.PathLike[str], *, trace_block: int | None = None, requests: int | None = None
) -> Trace:
    """Reads a trace: one JSON object per line, gzipped if the name ends in .gz; or a recording.

    Keys are `timestamp`, `input_length`, `output_length`, `hash_ids` and optionally `session`, and
    in the first line `block_size`, tokens per id, `hits_unknown`, why the ids do not tell hits, and
    `incomplete`. Others are ignored, and so is an id beyond `input_length`.

    Args:
        path: The file.
        trace_block: Tokens per id; None for what the first line says, or else to find the power of
            two from 8 to 4096 that fits.
        requests: Read only as many; None for all.

    Raises:
        TraceError: The first error. Lines are checked one by one, and ids against those of other
            lines when all lines are good.
        Misuse: An argument is out of range.
    """
    path = Path(path)
    for name, value in (("trace_block", trace_block), ("requests", requests)):
        if value is not None and not 1 <= value <= LONGEST:
            raise Misuse(f"{name} = {value}: must be None or an integer from 1 to {LONGEST}")
    if is_recording(path):
        return _of_recording(path, trace_block, requests)
    return _of_lines(path, trace_block, requests)


def _of_lines(path: Path, trace_block: int | None, requests: int | None) -> Trace:
    """Reads a trace that is not a recording."""
    # Eight bytes for each number: a list of integers takes five times as many.
    head, flat, counts, session = array("q"), array("q"), array("q"), array("q")
    codes: dict[str | None, int] = {None: -1}
    room = Room(_EACH, f"ids of {path}; give --requests for the first of its requests")
    decode = msgspec.json.Decoder(Line).decode
    before, hits_unknown, incomplete = 0, "", False
    for place, text in lines(path):
        if place.line != len(counts) + 1:
            blank = Place(path, len(counts) + 1)
            raise blank.wrong(None, "it is blank, but not the last; delete it")
        try:
            line = decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise _fault(place, text, error) from None
        if line.timestamp < before:
            raise place.wrong(
                "timestamp",
                f"{line.timestamp} is below the previous line's {before}; sort the lines by it",
            )
        before = line.timestamp
        if not head:
            trace_block = line.block_size if trace_block is None else trace_block
            hits_unknown, incomplete = line.hits_unknown or "", line.incomplete
        head.extend((line.timestamp, line.input_length, line.output_length))
        flat.extend(line.hash_ids)
        room.grown(len(flat))
        counts.append(len(line.hash_ids))
        session.append(codes.setdefault(line.session, len(codes) - 1))
        if len(counts) == requests:
            break
    if not head:
        raise TraceError(f"{path}: there is no request in it; write one JSON object per line")
    arrival, inputs, outputs = np.array(head, np.int64).reshape(-1, 3).T.copy()
    given = np.array(counts, np.int64)
    block = _guess(path, inputs, given) if trace_block is None else trace_block
    kept = np.minimum(given, -(-inputs // block))
    ids = _within(np.array(flat, np.int64), given, kept)
    del flat
    offsets = np.concatenate(([0], np.cumsum(kept)))
    _check_parents(path, ids, offsets)
    none = len(codes) == 1
    return Trace(
        name=path.name,
        trace_block=block,
        arrival=arrival,
        input_length=inputs,
        output_length=outputs,
        ids=ids,
        offsets=offsets,
        session=np.array([] if none else session, np.int64),
        sessions=tuple(name for name in codes if name is not None),
        hits_unknown=hits_unknown,
        incomplete=incomplete,
    )


def _of_recording(path: Path, trace_block: int | None, requests: int | None) -> Trace:
    """Reads a recording, whose requests are in the order of their ends."""
    size = block_size(path)
    if trace_block not in {None, size}:
        raise Misuse(f"trace_block = {trace_block}: the recording {path} has {size}; leave it out")
    head, keys, counts = array("q"), bytearray(), array("q")
    room = Room(_EACH, f"blocks of {path}; make a trace of it by `blockyard trace from recording`")
    for one in recorded(path):
        head.extend((one.nanoseconds, one.prompt, one.answer))
        keys += one.keys
        counts.append(len(one.keys) // 8)
        room.grown(len(keys) // 8)
    if not head:
        raise TraceError(f"{path}: no request has ended in it yet; record for longer")
    arrival, inputs, outputs = np.array(head, np.int64).reshape(-1, 3).T
    order = np.argsort(arrival, kind="stable")[:requests]
    have = np.array(counts, np.int64)
    starts, have = (np.cumsum(have) - have)[order], have[order]
    offsets = np.concatenate(([0], np.cumsum(have)))
    at = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], have)
    ids = np.frombuffer(keys, "<i8")[at]
    # The numbers of keys, in the order in which they first appear: a trace has no key in it.
    _, first, which = np.unique(ids, return_index=True, return_inverse=True)
    number = np.empty(len(first), np.int64)
    number[np.argsort(first)] = np.arange(len(first))
    return Trace(
        name=path.name,
        trace_block=size,
        # Whole milliseconds of the clock, as in a trace that is made of it.
        arrival=arrival[order] // 10**6 - arrival[order[0]] // 10**6,
        input_length=inputs[order],
        output_length=outputs[order],
        ids=number[which],
        offsets=offsets,
        session=np.zeros(0, np.int64),
    )


def _fault(place: Place, text: str, error: Exception) -> TraceError:
    """Returns what msgspec found in the terms of the format, with the value that is there."""
    if not isinstance(error, msgspec.ValidationError):
        return place.wrong(None, f"not JSON: {error}; give one object per line")
    said = str(error)
    if missing := re.search(r"missing required field `(\w+)`", said):
        field = missing[1]
        return place.wrong(field, f"it is missing; give {_WANTED[field]}")
    at = re.search(r"at `\$\.(\w+)(?:\[(\d+)\])?`", said)
    if at is None:
        return place.wrong(None, "it is not a JSON object; give one object per line")
    field, index = at[1], at[2]
    where = field if index is None else f"{field}[{index}]"
    return place.wrong(where, f"{_value(text, field, index)}; give {_WANTED[field]}")


def _value(text: str, field: str, index: str | None) -> str:
    try:
        value: Any = json.loads(text)[field]
    except ValueError:  # an integer of thousands of digits
        return "a number too large"
    except RecursionError:
        return "a value too deep"
    shown = json.dumps(value if index is None else value[int(index)])
    return shown if len(shown) <= 60 else shown[:60] + "…"  # noqa: PLR2004 - some of a line


def _within(
    ids: NDArray[np.int64], given: NDArray[np.int64], kept: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Returns the first `kept` ids of the `given` ones of each request."""
    if (kept == given).all():
        return ids
    place = np.arange(len(ids)) - np.repeat(np.cumsum(given) - given, given)
    return ids[place < np.repeat(kept, given)]


def _guess(path: Path, inputs: NDArray[np.int64], counts: NDArray[np.int64]) -> int:
    """Returns the block that fits: n tokens and k > 1 ids fit at most one power of two."""
    telling = counts > 1
    inputs, counts = inputs[telling], counts[telling]
    # Most traces have an id for a partial last block; others have ids for full blocks alone.
    for last in (1, 0):
        for block in _BLOCKS:
            fits = (inputs - last) // block + last == counts
            if len(counts) and np.mean(fits) >= _AGREE:
                return block
    raise TraceError(
        f"{path}: its tokens per id cannot be derived: no power of two from {_BLOCKS[0]} to "
        f"{_BLOCKS[-1]} fits {_AGREE:.0%} of the prompts of two or more ids; give --trace-block"
    )


def _check_parents(path: Path, ids: NDArray[np.int64], offsets: NDArray[np.int64]) -> None:
    """Checks that each id has one parent, and so is only once in a request."""
    parents = np.concatenate(([-1], ids[:-1]))[: len(ids)]
    parents[offsets[:-1][np.diff(offsets) > 0]] = -1
    # In a good trace neighbours in this order tell it all, for half the memory of `unique`.
    order = np.argsort(ids, kind="stable")
    same = np.diff(ids[order]) == 0
    if not (same & (np.diff(parents[order]) != 0)).any():
        return
    _, first, which = np.unique(ids, return_index=True, return_inverse=True)
    bad = np.flatnonzero(parents != parents[first[which]])
    at = int(bad[0])
    seen = int(first[which[at]])
    line, line_seen = np.searchsorted(offsets, [at, seen], side="right").tolist()
    where = f"hash_ids[{at - offsets[line - 1]}]"
    if line == line_seen:
        what = f"{ids[at]} is in it twice; an id is for one position in a prompt"
    else:
        after = ["first" if i < 0 else f"after {i}" for i in (parents[at], parents[seen])]
        what = (
            f"{ids[at]} is {after[0]} here, but {after[1]} in line {line_seen}; "
            "equal ids must have equal prefixes: give it another id"
        )
    raise Place(path, line).wrong(where, what)
