"""The output on the terminal at the end: what follows from the replay, and a table."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from rich import box
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from blockyard.shared.layout import TIERS
from blockyard.tools.replay.labels import sizes
from blockyard.tools.replay.result import (
    DiskReport,
    Load,
    Preempted,
    PromisedBlocks,
    Result,
    Run,
    Spread,
    StoreReport,
    TicketCounts,
)
from blockyard.tools.units import duration, size

__all__ = ["tables"]


_Cell = str | Text | None
"""The text of a run in a row; None where it has none."""
_Row = tuple[str, Callable[[Run], _Cell]]


def _part(*rows: _Row) -> tuple[_Row, ...]:
    return rows


def _modelled(of: Callable[[Run], str]) -> Callable[[Run], _Cell]:
    """Leaves the cell empty where time is not modelled."""
    return lambda run: of(run) if run.ttft_ms else None


def _quantile(spread: Spread | None, name: str) -> _Cell:
    return None if spread is None else duration(getattr(spread, name) / 1e3)


def _answered(of: Callable[[Run], _Cell]) -> Callable[[Run], _Cell]:
    """Leaves the cell empty where no answer has a length: there are no times of tokens then."""
    return lambda run: of(run) if run.output_tokens else None


def _queue(run: Run) -> _Cell:
    return _quantile(run.waits.queue_ms, "p99") if run.waits else None


def _stopped(of: Callable[[Preempted], str]) -> Callable[[Run], _Cell]:
    """Leaves the cell empty where no request was preempted."""
    return lambda run: of(run.preempted) if run.preempted and run.preempted.count else None


def _kept(of: Callable[[PromisedBlocks], float]) -> Callable[[Run], _Cell]:
    def cell(run: Run) -> _Cell:
        return f"{of(run.reservations) / run.device_blocks:.1%}" if run.reservations else None

    return cell


def _tickets(of: Callable[[TicketCounts], int]) -> Callable[[Run], _Cell]:
    def cell(run: Run) -> _Cell:
        tickets = run.reservations and run.reservations.tickets
        return f"{of(tickets):,}" if tickets else None

    return cell


def _cost(name: str) -> Callable[[Run], _Cell]:
    def cell(run: Run) -> _Cell:
        cost = run.bookkeeping
        return duration(getattr(cost.us_per_step, name) / 1e6) if cost else None

    return cell


def _load(of: Callable[[Load], float]) -> Callable[[Run], _Cell]:
    """Leaves the cell empty where there is no rate."""
    return lambda run: f"{of(run.load):,.3g}" if run.load is not None else None


def _pinned(run: Run) -> _Cell:
    return None if run.pinned is None else f"{run.pinned / run.device_blocks:.0%}"


def _peak(what: str) -> Callable[[Run], _Cell]:
    def cell(run: Run) -> _Cell:
        blocks = run.host_blocks if what == "host" else run.device_blocks
        return f"{run.peak[what] / blocks:.0%}" if blocks and what in run.peak else None

    return cell


def _below(of: Callable[[Run], str]) -> Callable[[Run], _Cell]:
    """Leaves the cell empty where there is no host."""
    return lambda run: of(run) if run.host_blocks else None


def _disk(of: Callable[[DiskReport], str]) -> Callable[[Run], _Cell]:
    """Leaves the cell empty where there is no disk."""
    return lambda run: of(run.disk) if run.disk is not None else None


def _store(of: Callable[[StoreReport], str]) -> Callable[[Run], _Cell]:
    """Leaves the cell empty where there is no store."""
    return lambda run: of(run.remote) if run.remote is not None else None


def _audit(run: Run) -> _Cell:
    return Text(run.audit, {"ok": "green", "none": ""}.get(run.audit, "bold red"))


def _bytes(run: Run) -> _Cell:
    seen = run.verified
    if seen is None:
        return None
    if seen.wrong or seen.wrong_answers:
        return Text(f"{seen.wrong + seen.wrong_answers:,} WRONG", "bold red")
    return Text(f"{seen.checked:,} good", "green")


_PARTS: Final = {
    "Found, of the prompt tokens": _part(
        ("in any tier", lambda run: f"{run.hit_ratio:.1%}"),
        ("on the device", _below(lambda run: f"{run.hit_ratio_by_tier['device']:.1%}")),
        ("on the host", _below(lambda run: f"{run.hit_ratio_by_tier['host']:.1%}")),
        ("on the disk", _disk(lambda disk: f"{disk.hit_ratio:.1%}")),
        ("in the store", _store(lambda store: f"{store.hit_ratio:.1%}")),
    ),
    "Latency, modelled": _part(
        ("to first token, median", _answered(lambda run: _quantile(run.ttft_ms, "p50"))),
        ("to first token, 99 %", _answered(lambda run: _quantile(run.ttft_ms, "p99"))),
        ("between tokens, median", _answered(lambda run: _quantile(run.itl_ms, "p50"))),
        ("between tokens, 99 %", _answered(lambda run: _quantile(run.itl_ms, "p99"))),
        ("in the queue, 99 %", _queue),
    ),
    "Traffic, modelled": _part(
        ("requests/s offered", _load(lambda load: load.offered_requests_per_second)),
        ("requests/s served", _load(lambda load: load.served_requests_per_second)),
        ("output tokens per second", _modelled(lambda run: f"{run.tokens_per_second:,.0f}")),
        ("engine time", _modelled(lambda run: duration(run.engine_seconds))),
        ("copied down", _below(lambda run: size(run.moved.bytes_down))),
        ("copied up", _below(lambda run: size(run.moved.bytes_up))),
        ("copied to the disk", _disk(lambda disk: size(disk.bytes_down))),
        ("copied from the disk", _disk(lambda disk: size(disk.bytes_up))),
        ("copied to the store", _store(lambda store: size(store.bytes_down))),
        ("copied from the store", _store(lambda store: size(store.bytes_up))),
        ("loads with a lost block", _store(lambda store: f"{store.losses:,}")),
        ("device held by requests, mean", _pinned),
        ("device held by requests, peak", _peak("pinned")),
        ("device in use, peak", _peak("device")),
        ("host in use, peak", _peak("host")),
    ),
    "Preempted": _part(
        ("preemptions", lambda run: f"{run.preempted.count:,}" if run.preempted else None),
        ("requests preempted", _stopped(lambda gone: f"{gone.requests:,}")),
        ("of these parked", _stopped(lambda gone: f"{gone.parked:,}")),
        ("blocks that were kept", _stopped(lambda gone: f"{gone.kept:,}")),
        ("of these moved for others", _stopped(lambda gone: f"{gone.relieved:,}")),
        ("tokens of work lost", _stopped(lambda gone: f"{gone.lost:,}")),
        ("tokens computed again", _stopped(lambda gone: f"{gone.recomputed:,}")),
        ("share of all computed", _stopped(lambda gone: f"{gone.share:.2%}")),
    ),
    "Promised, of the device": _part(
        ("for growth of the batch, mean", _kept(lambda kept: kept.headroom)),
        ("in all, mean", _kept(lambda kept: kept.promised)),
        ("in all, peak", _kept(lambda kept: kept.promised_peak)),
        ("tickets given", _tickets(lambda tickets: tickets.granted)),
        ("times a ticket was refused", _tickets(lambda tickets: tickets.refused)),
    ),
    "Measured here": _part(
        ("bookkeeping CPU per step, median", _cost("p50")),
        ("bookkeeping CPU per step, 99 %", _cost("p99")),
        ("duration of this run", lambda run: duration(run.wall_seconds)),
    ),
    "Checked": _part(
        ("requests served", lambda run: f"{run.requests:,}"),
        ("too large, refused", lambda run: f"{run.refused:,}" if run.refused else None),
        ("audit of the bookkeeping", _audit),
        ("blocks of real bytes", _bytes),
    ),
}
_NAME: Final = 35
_LEAST_NAME: Final = 12
_COLUMN: Final = 15
"""Columns of the terminal for names, and for each run."""


def tables(result: Result, width: int) -> Iterator[RenderableType]:
    """Yields the tables of a replay, with as many runs side by side as `width` columns hold."""
    runs = result.runs
    varied = [tier for tier in TIERS if len({sizes(run, [tier])[0] for run in runs}) > 1]
    same = [tier for tier in TIERS if tier not in varied]
    tiers = [text for text in sizes(runs[0], same) if not text.startswith("no ")]
    role = f", {runs[0].role}" if runs[0].role in {"prefill", "decode"} else ""
    replicas = len(runs[0].replicas)
    engines = f", {replicas} replicas by {result.router}, each" if replicas else ","
    preset = f"{result.preset}{role}{engines}"
    facts = f"{result.trace_requests:,} requests, {preset} {' + '.join(tiers)}"
    yield Text(f"\n{result.trace}", "bold")
    yield Text(f"{facts}\n")
    for sentence in result.answer:
        yield Padding(Text(sentence), (0, 0, 0, 2))
    yield ""
    most = max(1, (width - _NAME) // _COLUMN)
    for first in range(0, len(runs), most):
        yield _table(runs[first : first + most], varied)
        yield ""
    if not all(run.complete for run in runs):
        yield Text("Interrupted: all figures are up to that moment.\n", "yellow")


def _cache(of: Run) -> list[str]:
    """Describes how a run's cache differs from the others."""
    copies = [] if of.host_copies is None else [f"copies {of.host_copies}"]
    hints = [] if of.hints is None else str(of.hints).split(",")
    owner = ["engine's device"] if of.owner == "engine" else []
    return [of.policy, of.write_policy, *copies, *hints, *owner]


def _table(runs: Sequence[Run], varied: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("", min_width=_LEAST_NAME, overflow="fold")
    for run in runs:
        words = (*_cache(run), run.headroom, run.preempt_mode, *sizes(run, varied))
        heading = Text("\n".join(filter(None, words)))
        table.add_column(heading, justify="right", no_wrap=True, min_width=_COLUMN - 3)
    for part, rows in _PARTS.items():
        cells = {name: [of(run) for run in runs] for name, of in rows}
        shown = {name: row for name, row in cells.items() if any(cell is not None for cell in row)}
        if shown:
            table.add_row(Text(part, "bold"))
        for name, row in shown.items():
            table.add_row(f"  {name}", *("-" if cell is None else cell for cell in row))
    return table
