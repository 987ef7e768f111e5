"""`blockyard trace`: makes traces of what the user has, and says what is in one."""

import math
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, TypedDict, Unpack

import click
from rich.console import Console

from blockyard._core import Misuse
from blockyard.tools.click_types import FILE, Word
from blockyard.tools.endings import INTERRUPTED
from blockyard.tools.help import Group
from blockyard.tools.outputs import claim, write_all
from blockyard.tools.screen import show
from blockyard.tools.traces.convert import Converted, convert
from blockyard.tools.traces.describe import describe
from blockyard.tools.traces.formats.format import Format, How, Splitter, TimeUnit
from blockyard.tools.traces.formats.registry import FORMATS
from blockyard.tools.traces.formats.tokenizer import CHARS_PER_TOKEN, Tokenizer, Words
from blockyard.tools.traces.render import page, tables
from blockyard.tools.traces.trace import LONGEST, read
from blockyard.tools.units import duration

__all__ = ["trace"]

_BLOCK: Final = 16
_LEAST_RATE: Final = 1e-6
"""Requests per second."""
_FIELDS: Final = (
    "tokens", "text", "timestamp", "output", "answer", "session",
    "body", "response", "input",
)  # fmt: skip


class _Options(TypedDict):
    """The options of `blockyard trace from`; None where one was left out."""

    form: str
    files: tuple[Path, ...]
    output: Path
    block_size: int | None
    requests: int | None
    tokenizer: Path | None
    chars_per_token: float | None
    fields: tuple[str, ...]
    time_unit: TimeUnit
    rate: float | None
    quiet: bool


_UNITS: Final[tuple[TimeUnit, ...]] = ("s", "ms", "us", "ns")


@click.group(cls=Group)
def trace() -> None:
    """Make a trace of your own traffic, and say what is in one."""


@trace.command(
    "from",
    epilog="For example: blockyard trace from vllm serve.log -o trace.jsonl.gz",
    help="Make a trace of FILEs, which are in FORMAT.\n\n\b\nFORMAT is one of\n"
    + "\n".join(f"  {form.name:10} {form.about}" for form in FORMATS.values())
    + "\n\nThe trace has times, lengths and numbers for blocks, and none of the text. See "
    "docs/traces.md for the fields of each format.",
)
@click.argument("form", metavar="FORMAT", type=Word(FORMATS))
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=FILE)
@click.option(
    "-o",
    "--output",
    type=FILE,
    metavar="PATH",
    required=True,
    help="The trace; gzipped if its name ends in .gz.",
)
@click.option(
    "--block-size",
    type=click.IntRange(1, LONGEST),
    metavar="N",
    help=f"Tokens per block of the trace; default: {_BLOCK}, or what the file has.",
)
@click.option(
    "--requests", type=click.IntRange(1), metavar="N", help="Read only the first N; default: all."
)
@click.option(
    "--tokenizer",
    type=FILE,
    metavar="PATH",
    help="The model's tokenizer.json, for prompts that are text; default: by words.",
)
@click.option(
    "--chars-per-token",
    type=float,
    metavar="N",
    default=None,
    help=f"Characters per token of text without a tokenizer; default: {CHARS_PER_TOKEN:g}.",
)
@click.option(
    "--field",
    "fields",
    multiple=True,
    metavar="WHAT=NAME",
    help="The name of a field in JSON lines, like timestamp=arrived_at; dots lead into objects. "
    f"WHAT is {', '.join(_FIELDS)}. Repeat it for more.",
)
@click.option(
    "--time-unit",
    type=Word(_UNITS),
    default="s",
    help="Unit of times that are numbers, in JSON lines.",
)
@click.option(
    "--rate", type=float, metavar="HZ", help="Requests per second, evenly, instead of any times."
)
@click.option("--quiet", is_flag=True, help="Show no progress.")
@click.pass_context
def make(ctx: click.Context, /, **options: Unpack[_Options]) -> None:
    """Checks the options, converts, and says what came of it."""
    files, output, rate = options["files"], options["output"], options["rate"]
    claim({**{f"FILE {path}": path for path in files}, "--output": output})
    if rate is not None and not 0 < rate < math.inf:
        raise Misuse(f"--rate {rate:g}: must be above 0")
    if rate is not None and rate < _LEAST_RATE:
        raise Misuse(f"--rate {rate:g}: the times would be too large; give at least {_LEAST_RATE}")
    splitter = _splitter(options["tokenizer"], options["chars_per_token"])
    how = How(splitter, options["time_unit"], _fields(options["fields"]))
    form = FORMATS[options["form"]]
    block_size = _block_size(form, files[0], options["block_size"])
    console = Console(stderr=True)
    with ExitStack() as stack:
        progress = None
        if console.is_terminal and not options["quiet"]:
            status = stack.enter_context(console.status("reading"))
            progress = lambda done: status.update(f"{done:,} requests")  # noqa: E731 - one line
        made = convert(
            form,
            files,
            how,
            output,
            block_size=block_size,
            rate=rate,
            requests=options["requests"],
            progress=progress,
        )
    for line in _said(made, form, how, output):
        click.echo(line)
    if not made.complete:
        ctx.exit(INTERRUPTED)


@trace.command(
    "describe",
    epilog="For example: blockyard trace describe trace.jsonl.gz --report trace.html",
)
@click.argument("path", metavar="TRACE", type=FILE)
@click.option(
    "--trace-block",
    type=click.IntRange(1, LONGEST),
    metavar="N",
    help="Tokens per id of TRACE; default: what it says, or what fits it.",
)
@click.option(
    "--requests", type=click.IntRange(1), metavar="N", help="Only the first N; default: all."
)
@click.option("--json", metavar="PATH", help="Write all figures as JSON; - is stdout.")
@click.option("--report", type=FILE, metavar="PATH", help="Write a page with plots.")
def tell(
    path: Path, trace_block: int | None, requests: int | None, json: str | None, report: Path | None
) -> None:
    """Say what is in TRACE: rate, lengths, reuse, sessions, and what a cache could find at most."""
    to_file = None if json in {None, "-"} else Path(json or "")
    claim({"TRACE": path, "--json": to_file, "--report": report})
    found = describe(read(path, trace_block=trace_block, requests=requests))
    encoded = found.encode()
    files: dict[Path | None, bytes] = {to_file: encoded + b"\n"}
    if report is not None:
        files[report] = page(found)
    faults = write_all(files)
    # With `--json -`, stdout is for the JSON alone.
    console = Console(stderr=json == "-")
    for shown in tables(found):
        show(console, shown)
    if json == "-":
        click.echo(encoded)
    if faults:
        raise Misuse("; ".join(faults))


def _splitter(tokenizer: Path | None, chars_per_token: float | None) -> Splitter:
    if tokenizer is None:
        return Words(CHARS_PER_TOKEN if chars_per_token is None else chars_per_token)
    if chars_per_token is not None:
        raise Misuse("--tokenizer and --chars-per-token exclude each other: give one")
    return Tokenizer(tokenizer)


def _fields(words: Sequence[str]) -> dict[str, str]:
    fields = {}
    for word in words:
        what, equals, name = word.partition("=")
        if not equals or not name or what not in _FIELDS:
            raise Misuse(
                f"--field {word}: must be WHAT=NAME, where WHAT is one of {', '.join(_FIELDS)}"
            )
        fields[what] = name
    return fields


def _block_size(form: Format, file: Path, given: int | None) -> int:
    if form.block_size is None:
        return given or _BLOCK
    size = form.block_size(file)
    if given not in {None, size}:
        raise Misuse(f"--block-size {given}: {file} has blocks of {size} tokens; leave it out")
    return size


def _said(made: Converted, form: Format, how: How, output: Path) -> list[str]:
    """Returns the lines that say what was written, and what to know of it."""
    written = (
        f"{output}: {made.requests:,} requests in {duration(made.seconds)}, {made.tokens:,} tokens "
        f"of prompts, {made.blocks:,} distinct blocks of {made.block_size} tokens"
    )
    lines = [written]
    if not made.complete:
        lines.append("interrupted: it has what was read until then, and is marked as incomplete")
    if form.hits_unknown:
        lines.append(f"hits cannot be told from it: {form.hits_unknown}")
    if made.unanswered:
        lines.append(
            f"note: answers whose length no file tells, and is 0 in the trace: {made.unanswered:,}"
        )
    return lines + [f"note: {note}" for note in how.notes]
