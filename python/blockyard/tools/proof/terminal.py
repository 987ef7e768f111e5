"""The progress of the plays on a terminal, and a table of their results."""

import sys
from collections.abc import Sequence
from typing import NamedTuple, Self

import click

from blockyard.tools.proof.play import Play

__all__ = ["ProgressLine", "Row", "table"]

_KIB = 1024
_LABEL, _COLUMN = 29, 13
"""Widths of the table's columns."""


class Row(NamedTuple):
    """One play and its name."""

    name: str
    play: Play
    seconds: float
    """The CPU time that it took."""
    same: bool | None
    """Whether all its answers equal the first play's; None before both are over."""


class ProgressLine:
    """A line on a terminal's stderr that shows progress, and disappears at the end.

    Args:
        turns: How many answers each play gives.
    """

    def __init__(self, turns: int) -> None:
        self._turns = turns
        self._shown = sys.stderr.isatty()

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Clears the line."""
        self._line("")

    def show(self, rows: Sequence[Row]) -> None:
        """Shows how many answers each play has given."""
        far = ", ".join(f"{row.name} {len(row.play.tokens)}" for row in rows)
        self._line(f"answers of {self._turns}: {far}")

    def _line(self, text: str) -> None:
        if self._shown:
            # Return to the first column and erase the line.
            click.echo(f"\r\x1b[K{text}", nl=False, err=True)


def table(rows: Sequence[Row], turns: int) -> str:
    """Returns the results of the plays, side by side.

    Args:
        rows: One per play.
        turns: How many answers each play gives.
    """
    lines: dict[str, Sequence[str]] = {
        "": [_right(row.name) for row in rows],
        "device": [_right(f"{row.play.memory.device - 1} blocks") for row in rows],
        "host": [_right(f"{row.play.memory.host} blocks") for row in rows],
        "answers": [_right(f"{len(row.play.tokens)} of {turns}") for row in rows],
        "tokens identical": [_mark(row) for row in rows],
        "preemptions": [_count(row, "preempted") for row in rows],
        "of them parked": [_count(row, "parkings") for row in rows],
        "tokens computed again": [_right(f"{row.play.figures.recomputed:,}") for row in rows],
        "blocks to the third tier": [_moved(row, "disk_in") for row in rows],
        "blocks from the third tier": [_moved(row, "disk_out") for row in rows],
        "blocks found after a restart": [_right(f"{row.play.cache.restored:,}") for row in rows],
        "bytes moved": [_right(_size(row.play.moved)) for row in rows],
        "steps": [_right(f"{row.play.figures.steps:,}") for row in rows],
        "seconds": [_right(f"{row.seconds:.1f}") for row in rows],
    }
    return "\n".join(f"{name:<{_LABEL}}{''.join(cells)}" for name, cells in lines.items())


def _right(text: str) -> str:
    return f"{text:>{_COLUMN}}"


def _mark(row: Row) -> str:
    if row.same is None:
        return _right("…")
    return click.style(_right("✓"), fg="green") if row.same else click.style(_right("no"), fg="red")


def _count(row: Row, name: str) -> str:
    return _right(f"{row.play.scheduler.stats()[name]:,}")


def _moved(row: Row, name: str) -> str:
    return _right(f"{row.play.cache.stats()[name]:,}")


def _size(count: float) -> str:
    """Returns bytes with a unit that suits them."""
    for unit in ("B", "KiB", "MiB"):
        if count < _KIB:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= _KIB
    return f"{count:.1f} GiB"
