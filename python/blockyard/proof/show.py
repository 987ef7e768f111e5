"""The plays side by side, live, and what came of each."""

from collections.abc import Sequence
from typing import NamedTuple, Self

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from blockyard.proof.play import Play

__all__ = ["Row", "Watch", "size"]

_KIB = 1024


class Row(NamedTuple):
    """One play, and what it is called."""

    name: str
    play: Play
    seconds: float
    """CPU time that it took."""
    same: bool | None
    """Whether all its answers are the first play's; None before both are over."""


class Watch:
    """A table that changes as the plays go on; on no terminal only the last one is printed.

    Args:
        console: Where.
        turns: Answers in all.
    """

    def __init__(self, console: Console, turns: int) -> None:
        self._console = console
        self._turns = turns
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        """Shows the table."""
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Takes it away: the last one is printed by `end`."""
        self._live.stop()

    def show(self, rows: Sequence[Row]) -> None:
        """How far they are."""
        if self._console.is_terminal:
            self._live.update(self._table(rows), refresh=True)

    def end(self, rows: Sequence[Row]) -> None:
        """What came of them."""
        self._live.stop()
        self._console.print(self._table(rows))

    def _table(self, rows: Sequence[Row]) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        table.add_column("", no_wrap=True, min_width=28)
        for row in rows:
            table.add_column(Text(row.name), justify="right", min_width=12)
        lines: dict[str, Sequence[str | Text]] = {
            "device": [f"{row.play.memory.device - 1} blocks" for row in rows],
            "answers": [f"{len(row.play.tokens)} of {self._turns}" for row in rows],
            "tokens identical": [_mark(row) for row in rows],
            "preemptions": [_count(row, "preempted") for row in rows],
            "of them parked": [_count(row, "parkings") for row in rows],
            "tokens computed again": [f"{row.play.figures.recomputed:,}" for row in rows],
            "bytes moved": [size(row.play.moved) for row in rows],
            "steps": [f"{row.play.figures.steps:,}" for row in rows],
            "seconds": [f"{row.seconds:.1f}" for row in rows],
        }
        for name, cells in lines.items():
            table.add_row(name, *cells)
        return table


def _mark(row: Row) -> Text:
    if row.same is None:
        return Text("…")
    return Text("✓", "green") if row.same else Text("no", "red")


def _count(row: Row, name: str) -> str:
    return f"{row.play.scheduler.stats()[name]:,}"


def size(count: float) -> str:
    """Bytes, with the unit that suits them."""
    for unit in ("B", "KiB", "MiB"):
        if count < _KIB:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= _KIB
    return f"{count:.1f} GiB"
