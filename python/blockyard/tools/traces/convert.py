"""Makes a trace of what an importer reads, without ever holding the file in memory."""

import gzip
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import msgspec
import numpy as np

from blockyard._core import Misuse
from blockyard.tools.outputs import opened
from blockyard.tools.traces.formats.blocks import Numbering
from blockyard.tools.traces.formats.format import Answered, Asked, Format, How
from blockyard.tools.traces.lines import TraceError
from blockyard.tools.traces.trace import LONGEST, Line

__all__ = ["Converted", "convert"]

_OFTEN: Final = 1000
"""Requests between two reports of progress."""


@dataclass(frozen=True, slots=True)
class Converted:
    """What was written."""

    requests: int
    tokens: int
    """Of all prompts."""
    blocks: int
    """Distinct blocks."""
    block_size: int
    """Tokens per block."""
    seconds: float
    """From the first arrival to the last."""
    unanswered: int
    """Requests whose answer has no length in the files; it is written as 0."""
    complete: bool = True
    """False after Ctrl-C: the trace has the requests read until then, and is marked."""


def convert(  # noqa: PLR0913 - keywords
    form: Format,
    paths: Sequence[Path],
    how: How,
    output: Path,
    *,
    block_size: int,
    rate: float | None = None,
    requests: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> Converted:
    """Reads files and writes one trace, sorted by arrival and counted from the first.

    After Ctrl-C it has the requests that were read until then, and is marked.

    Args:
        form: What the files are.
        paths: The files; their requests are put together.
        how: How to read them.
        output: The trace, gzipped if its name ends in .gz. It is whole or absent.
        block_size: Tokens per block.
        rate: Spaces requests evenly, so many per second, whatever the files say; None for the times
            of the files, and to refuse files without.
        requests: Reads only as many; None for all.
        progress: Called now and then with the number of requests read.

    Raises:
        TraceError: A file cannot be read; it names file, line and field.
        Misuse: There are no times and no rate, no requests, or no memory for more.
    """
    with _spool(output) as spool:
        rows = _Rows(spool, block_size, rate)
        try:
            found = ((path, one) for path in paths for one in form.read(path, how))
            _read(rows, found, requests, progress)
        except KeyboardInterrupt:
            if not len(rows):
                raise
            rows.cut()
        if not len(rows):
            raise TraceError(
                f"{', '.join(map(str, paths))}: there is no request in it that could be read as "
                f"{form.name}" + "".join(f"; {note}" for note in how.notes)
            )
        with opened(output) as file:
            _write(rows, form, file, gzipped=output.suffix == ".gz")
        return rows.result()


@contextmanager
def _spool(output: Path) -> Iterator[IO[bytes]]:
    """Gives the file between, in the folder of the trace; it has no name, and is gone at the end.

    In the body an OSError is taken for one of this file: readers say theirs in their own words.
    """
    try:
        with tempfile.TemporaryFile(dir=output.resolve().parent) as file:
            yield file
    except OSError as error:  # also where closing it writes what was left
        raise Misuse(f"{output} cannot be written: {error.strerror or error}") from None


def _read(
    rows: "_Rows",
    found: Iterable[tuple[Path, Asked | Answered]],
    requests: int | None,
    progress: Callable[[int], object] | None,
) -> None:
    for path, seen in found:
        if isinstance(seen, Answered):
            rows.answer(seen)
            continue
        if len(rows) == requests:
            return
        rows.add(seen, path)
        if progress is not None and len(rows) % _OFTEN == 0:
            progress(len(rows))


class _Rows:
    """Requests in a file of their own, in the order in which they were read."""

    def __init__(self, spool: IO[bytes], block_size: int, rate: float | None) -> None:
        self.times = array("q")
        self.outputs = array("q")
        self.numbering = Numbering(block_size)
        self._lengths = array("q")
        self.complete = True
        self._rate = rate
        self._places = array("q", [0])
        self._names: dict[str, int] = {}
        self._spool = spool
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(tuple[int, list[int], str | None])

    def __len__(self) -> int:
        # Its place is the last that is noted of a request: Ctrl-C may come between any two.
        return len(self._places) - 1

    def cut(self) -> None:
        """Leaves out the request that Ctrl-C came into, and marks the rest as incomplete."""
        for column in (self.times, self.outputs, self._lengths):
            del column[len(self) :]
        self.complete = False

    def add(self, asked: Asked, path: Path) -> None:
        if asked.input_length > LONGEST:
            raise TraceError(f"{path}: a prompt of {asked.input_length:,} tokens is too long")
        if asked.tokens is not None:
            ids = self.numbering.of_tokens(asked.tokens, asked.salt)
        else:
            ids = self.numbering.of_keys(asked.keys or ())
        self.times.append(self._time(asked, path))
        self.outputs.append(-1 if asked.output_length is None else asked.output_length)
        if asked.name is not None:
            self._names[asked.name] = len(self.times) - 1
        self._lengths.append(asked.input_length)
        row = self._encoder.encode((asked.input_length, ids, asked.session))
        self._spool.write(row)
        self._places.append(self._places[-1] + len(row))

    def answer(self, answered: Answered) -> None:
        row = self._names.get(answered.name)
        if row is not None:
            self.outputs[row] = max(self.outputs[row], 0) + answered.output_length

    def sorted(self) -> Iterator[Line]:
        """Yields the requests by arrival; what arrived at once stays in the order of the files."""
        times = np.array(self.times, np.int64)
        first = int(times.min())
        for row in np.argsort(times, kind="stable").tolist():
            self._spool.seek(self._places[row])
            raw = self._spool.read(self._places[row + 1] - self._places[row])
            length, ids, session = self._decoder.decode(raw)
            answer = min(max(self.outputs[row], 0), LONGEST)
            yield Line(self.times[row] - first, length, answer, ids, session)

    def result(self) -> Converted:
        return Converted(
            requests=len(self),
            tokens=sum(self._lengths),
            blocks=len(self.numbering),
            block_size=self.numbering.block_size,
            seconds=(max(self.times) - min(self.times)) / 1000,
            unanswered=sum(length < 0 for length in self.outputs),
            complete=self.complete,
        )

    def _time(self, asked: Asked, path: Path) -> int:
        if self._rate is not None:
            return round(len(self) * 1000 / self._rate)
        if asked.milliseconds is None:
            raise TraceError(
                f"{path}: request {len(self) + 1} has no time; give --rate HZ to space all of them "
                "evenly, or name the field: --field timestamp=NAME"
            )
        return asked.milliseconds


def _write(rows: _Rows, form: Format, file: IO[bytes], *, gzipped: bool) -> None:
    encoder = msgspec.json.Encoder()
    with ExitStack() as stack:
        # No time and no name in the gzip header: equal traces, equal files.
        sink = (
            stack.enter_context(gzip.GzipFile("", "wb", fileobj=file, mtime=0)) if gzipped else file
        )
        for number, line in enumerate(rows.sorted()):
            if number == 0:
                line.block_size = rows.numbering.block_size
                line.hits_unknown = form.hits_unknown or None
                line.incomplete = not rows.complete
            sink.write(encoder.encode(line) + b"\n")
