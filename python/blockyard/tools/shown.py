"""A command's result as lines and as JSON, and a bar on stderr until it is there."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from blockyard._core import __version__
from blockyard.tools.outputs import claim, write_all

__all__ = ["JSON", "claim_json", "progress", "say", "write_json"]

JSON: Final = click.option(
    "--json", "output", metavar="PATH", help="Write it as JSON; - is stdout."
)
_FORMAT: Final = 1
"""Of the JSON."""


@contextmanager
def progress(length: int, *, quiet: bool) -> Iterator[Callable[[int], object]]:
    """Shows a bar on a terminal's stderr; it is called with each further piece that is done."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
    else:
        with click.progressbar(length=length, file=sys.stderr) as bar:
            yield bar.update


def claim_json(output: str | None) -> None:
    """Checks that the JSON can be written, before anything is done.

    Raises:
        Misuse: It cannot.
    """
    claim({"--json": None if output in {None, "-"} else Path(output)})


def write_json(output: str | None, content: dict[str, Any]) -> list[str]:
    """Writes the JSON; returns why that was not possible, to be raised once all is shown."""
    if output is None:
        return []
    content = {"format": _FORMAT, "blockyard": __version__, **content}
    text = json.dumps(content, indent=2)
    if output == "-":
        click.echo(text)
        return []
    return write_all({Path(output): f"{text}\n".encode()})


def say(output: str | None, line: str) -> None:
    """Shows a line. With `--json -`, stdout is for the JSON alone."""
    click.echo(line, err=output == "-")
