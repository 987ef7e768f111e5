"""The progress of the plays on a terminal, and a table of their results."""

import sys
from collections.abc import Sequence
from shutil import get_terminal_size
from textwrap import shorten
from typing import NamedTuple, Self

import click

from blockyard.tools.proof.play import Play
from blockyard.tools.units import size

__all__ = ["ProgressLine", "Row", "table"]

_LABEL, _COLUMN = 29, 13
"""Widths of the table's columns, of which those with numbers are wider where they must."""


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
        quiet: Whether nothing is shown.
    """

    def __init__(self, turns: int, *, quiet: bool = False) -> None:
        self._turns = turns
        self._shown = sys.stderr.isatty() and not quiet

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Clears the line."""
        self._line("")

    def show(self, rows: Sequence[Row]) -> None:
        """Shows how many answers each play has given."""
        far = ", ".join(f"{row.name} {len(row.play.tokens)}" for row in rows)
        text, columns = f"answers of {self._turns}: {far}", get_terminal_size().columns
        # A line that the terminal wraps would not be erased.
        self._line(shorten(text, max(columns - 1, 10), placeholder=" …"))

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
    lines: dict[str, list[str]] = {
        "": [row.name for row in rows],
        "device": [f"{row.play.memory.device - 1} blocks" for row in rows],
        "host": [f"{row.play.memory.host} blocks" for row in rows],
        "answers": [f"{len(row.play.tokens)} of {turns}" for row in rows],
        "tokens identical": [_mark(row) for row in rows],
        "preemptions": [_count(row, "preempted") for row in rows],
        "of them parked": [_count(row, "parkings") for row in rows],
        "tokens computed again": [f"{row.play.figures.recomputed:,}" for row in rows],
        "blocks to the third tier": [_moved(row, "disk_in") for row in rows],
        "blocks from the third tier": [_moved(row, "disk_out") for row in rows],
        "blocks found after a restart": [f"{row.play.cache.restored:,}" for row in rows],
        "bytes moved": [size(row.play.moved) for row in rows],
        "steps": [f"{row.play.figures.steps:,}" for row in rows],
        "seconds": [f"{row.seconds:.1f}" for row in rows],
    }
    width = max(_COLUMN, *(len(cell) + 1 for cells in lines.values() for cell in cells))
    text = {
        name: [_coloured(f"{cell:>{width}}") for cell in cells] for name, cells in lines.items()
    }
    return "\n".join(f"{name:<{_LABEL}}{''.join(cells)}" for name, cells in text.items())


def _mark(row: Row) -> str:
    return {None: "…", True: "✓", False: "no"}[row.same]


def _coloured(cell: str) -> str:
    colour = {"✓": "green", "no": "red"}.get(cell.strip())
    return cell if colour is None else click.style(cell, fg=colour)


def _count(row: Row, name: str) -> str:
    return f"{row.play.scheduler.stats()[name]:,}"


def _moved(row: Row, name: str) -> str:
    return f"{row.play.cache.stats()[name]:,}"
