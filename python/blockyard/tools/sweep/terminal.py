"""The output on the terminal: progress, the curve as a table, and the sentences at the end."""

import time
from collections.abc import Iterator
from typing import Final

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from blockyard._typing import override
from blockyard.tools.replay.result import Run
from blockyard.tools.sweep.jobs import Simulated
from blockyard.tools.sweep.result import Modelled, Point, SweepResult
from blockyard.tools.units import duration, size
from blockyard.tools.workers import Watch

__all__ = ["Display", "parts"]

_EVERY: Final = 10.0
"""Seconds between two lines, where there is no terminal."""
_OFTEN: Final = 0.1
"""Seconds between two looks of the line on a terminal."""
_COLUMN: Final = 11
"""Columns of the terminal for each column of the table."""
_BAR: Final = 28
_LEAST_BAR: Final = 10
"""Columns of the bar that stands for all tokens found by an infinite cache."""
_MARK: Final = " ← knee"


class Display(Watch[Simulated | Run | None]):
    """One line that is written again and again on a terminal; elsewhere a line now and then.

    Args:
        console: Where lines are shown; None for nowhere.
    """

    def __init__(self, console: Console | None) -> None:
        self._console = console
        self._live = console is not None and console.is_terminal
        self._told = self._begun = time.monotonic()
        self._names: list[str] = []
        self._shares: list[float] = []

    def part(self, name: str, done: float) -> None:
        """A part of what is exact."""
        self._say(f"{name}: {done:.0%}")

    def jobs(self, names: list[str]) -> "Display":
        """Begins the jobs."""
        self._begun = time.monotonic()
        self._names = names
        self._shares = [0.0] * len(names)
        return self

    @override
    def began(self, job: int) -> None:
        """A job begins."""
        self._state(self._names[job])

    @override
    def told(self, job: int, progress: float) -> None:
        """A job tells the share that is done."""
        self._shares[job] = progress
        self._state(self._names[job])

    @override
    def ended(self, job: int, result: Simulated | Run | None) -> None:  # noqa: ARG002 - a share is shown
        """A job has ended."""
        self._shares[job] = 1.0
        self._state(self._names[job])

    def close(self) -> None:
        """Clears the line."""
        if self._console is not None and self._live:
            self._console.file.write("\r\x1b[2K")
            self._console.file.flush()

    def _state(self, name: str) -> None:
        share = sum(self._shares) / len(self._shares)
        done = sum(one == 1 for one in self._shares)
        spent = time.monotonic() - self._begun
        left = f", {duration(spent / share - spent)} left" if share > 0 and spent > 1 else ""
        self._say(f"{share:.0%}, {done} of {len(self._shares)} simulations{left}: {name}")

    def _say(self, text: str) -> None:
        now = time.monotonic()
        if self._console is None or now - self._told < (_OFTEN if self._live else _EVERY):
            return
        self._told = now
        if self._live:
            line = f"blockyard: {text}"[: self._console.width - 1]
            self._console.file.write(f"\r\x1b[2K{line}")
            self._console.file.flush()
        else:
            self._console.print(Text(f"blockyard: {text}"), soft_wrap=True)


def parts(result: SweepResult, width: int) -> Iterator[RenderableType]:
    """Yields what is shown of a sweep in `width` columns; the answer comes last."""
    yield Text(f"\n{result.trace}", "bold")
    sampled = f", 1 block in {result.sampled} simulated" if result.sampled > 1 else ""
    yield Text(
        f"{result.trace_requests:,} requests, {result.distinct_blocks:,} distinct blocks of "
        f"{result.trace_block} tokens, {size(result.block_bytes)} each, {result.preset}{sampled}\n"
    )
    yield _curve(result, width)
    yield ""
    if result.splits:
        yield _splits(result)
        yield ""
    if result.modelled:
        yield _engine(result)
        yield ""
    if not result.complete:
        yield Text("Interrupted: what is there is right, and some is missing.\n", "yellow")
    for sentence in result.answer[1:]:
        yield Text(sentence)
    yield Text(f"\n{result.answer[0]}\n", "bold")


def _curve(result: SweepResult, width: int) -> Table:
    table = _table()
    orders = list(dict.fromkeys(name for point in result.points for name in point.hit_ratio))
    orders.sort(key=lambda order: order == "optimum")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("blocks", justify="right", no_wrap=True)
    for order in orders:
        table.add_column("optimum*" if order == "optimum" else order, justify="right", no_wrap=True)
    room = min(width - _COLUMN * (2 + len(orders)) - len(_MARK), _BAR)
    if room >= _LEAST_BAR:
        table.add_column("", no_wrap=True)
    for point in result.points:
        advised = point.blocks == result.advice.blocks
        cells = [f"{point.hit_ratio[o]:.1%}" if o in point.hit_ratio else "-" for o in orders]
        bar = [_bar(point, result, room, advised=advised)] if room >= _LEAST_BAR else []
        table.add_row(
            size(point.bytes),
            f"{point.blocks:,}",
            *cells,
            *bar,
            style="bold" if advised else "",
        )
    notes = ["of the prompt tokens found"]
    if "optimum" in orders:
        notes.append("* a bound that knows the future: no order can find more")
    table.caption = "; ".join(notes)
    table.caption_justify = "left"
    return table


def _bar(point: Point, result: SweepResult, room: int, *, advised: bool) -> Text:
    """What recency finds in full blocks, and what the best simulated order adds in light ones."""
    most = max(result.infinite_hit_ratio, 1e-9)
    recency = round(room * point.hit_ratio["recency"] / most)
    ratios = [ratio for name, ratio in point.hit_ratio.items() if name != "optimum"]
    best = round(room * max(ratios) / most)
    bar = Text("█" * recency + "▒" * (best - recency))
    if advised:
        bar.append(_MARK)
    return bar


def _splits(result: SweepResult) -> Table:
    table = _table()
    for name in ("device + host + disk", "order", "found", "device", "host", "disk"):
        table.add_column(name, justify="left" if name == "order" else "right")
    table.add_column("down", justify="right")
    table.add_column("up", justify="right")
    for split in result.splits:
        tiers = [split.device_blocks, split.host_blocks, split.disk_blocks]
        found = split.hit_ratio_by_tier
        table.add_row(
            " + ".join(size(blocks * result.block_bytes) for blocks in tiers if blocks),
            split.order,
            f"{split.hit_ratio:.1%}",
            *(
                f"{found[tier]:.1%}" if blocks else "-"
                for tier, blocks in zip(("device", "host", "disk"), tiers, strict=True)
            ),
            size(split.bytes_down),
            size(split.bytes_up),
        )
    return table


def _engine(result: SweepResult) -> Table:
    table = _table()
    for name in ("device + host", "found", "instant*", "first token, median", "99 %", "tokens/s"):
        table.add_column(name, justify="right")
    table.add_column("", justify="right")
    for one in result.modelled:
        times = [one.ttft_ms_p50, one.ttft_ms_p99]
        table.add_row(
            " + ".join(size(part) for part in (one.device_bytes, one.host_bytes) if part),
            f"{one.hit_ratio:.1%}",
            f"{one.sequential_hit_ratio:.1%}",
            *("-" if ms is None else duration(ms / 1e3) for ms in times),
            f"{one.tokens_per_second:,.0f}",
            _note(one),
        )
    served = max(one.requests for one in result.modelled)
    table.caption = (
        f"modelled, for the first {served:,} requests, from an empty cache\n"
        "* found where copies take no time, one request after another, as in what stands above"
    )
    table.caption_justify = "left"
    return table


def _note(one: Modelled) -> Text:
    """Says what makes the figures of a size useless."""
    if not one.requests:
        return Text("too small", "yellow")
    return Text("overloaded", "yellow") if one.overloaded else Text()


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
