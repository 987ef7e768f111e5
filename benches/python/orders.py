"""`make bench-orders`: what the eviction orders find, as the tables of `docs/measurements.md`.

All but the last table are of the sequential model, in % of the prompt tokens. The real traces are
looked for beside the checkout; a table whose trace is missing is left out, and says so.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "python" / "support"))

from blockyard.tools.replay.hardware import preset  # noqa: E402
from blockyard.tools.replay.hints import Hints  # noqa: E402
from blockyard.tools.replay.result import Run  # noqa: E402
from blockyard.tools.replay.run import run  # noqa: E402
from blockyard.tools.replay.sequential import Sequential, sequential  # noqa: E402
from blockyard.tools.replay.spec import HostCopies, Policy, Progress, RunSpec  # noqa: E402
from blockyard.tools.traces.adversaries import ADVERSARIES  # noqa: E402
from blockyard.tools.traces.trace import Trace, read  # noqa: E402
from order_cells import (  # noqa: E402
    ADVERSARY_SHARES,
    CELLS,
    LOOP_LEAST,
    TOLERANCE,
    TRACES,
    WORSE,
    Cell,
    distinct,
    sizes,
)

ALL: Final[tuple[Policy, ...]] = ("recency", "learned", "optimum")
#: What the learned order's shadows found of the adversaries alone, the least of five seeds: recency
#: with a bonus for what was used again, and what is new first.
SHADOWS: Final = {"loop": (0.0, 26.0), "flood": (11.3, 9.5), "shift": (54.5, 48.9)}
#: What a caller may know, and how well.
HINTS: Final = (
    "none",
    "end=0.8:0.02",
    "end=0.5:0.2",
    "next=1:2",
    "next=1:8",
    "end=0.8:0.02,next=0.8:2",
    "lies",
)
#: Virtual time: shares of the distinct blocks on the device; the host has four times that.
VIRTUAL: Final = {"conversation": 0.02, "claude_code": 0.03}
#: Tokens per block there, and GPUs that share the model, so that the queue does not grow for ever.
BLOCK, RANKS = 128, 4

Say = Callable[[str], None]


@cache
def opened(folder: Path, name: str) -> Trace | None:
    """Returns a trace, or None where it is missing."""
    file, block = TRACES[name]
    path = folder / file
    if path.exists():
        return read(path, trace_block=block)
    print(f"({name}: there is no {path}; give --traces)", flush=True)
    return None


def percent(result: Sequential | Run) -> float:
    """Returns the hits; a broken law ends the bench."""
    if result.audit not in {"ok", "none"}:
        raise SystemExit(f"audit: {result.audit}")
    return 100 * result.hit_ratio


def head(say: Say, title: str, columns: Sequence[str]) -> None:
    """Begins a table, whose first column is text."""
    say(f"\n### {title}\n")
    row(say, columns)
    say("|---|" + "--:|" * (len(columns) - 1))


def row(say: Say, cells: Sequence[object]) -> None:
    """Adds a row."""
    say("| " + " | ".join(f"{c:.1f}" if isinstance(c, float) else str(c) for c in cells) + " |")


def traces(folder: Path) -> Iterator[tuple[str, Trace]]:
    """Yields the traces that are there."""
    for name in TRACES:
        trace = opened(folder, name)
        if trace is not None:
            yield name, trace


def cells(folder: Path, say: Say) -> None:
    """What has to be reached."""
    head(say, "Figures to reach", ["trace and blocks", "recency", "learned", "to reach", "met"])
    there = dict(traces(folder))
    for cell in (cell for cell in CELLS if cell.trace in there):
        plain, learned = (percent(cell.run(there[cell.trace], it)) for it in ("recency", "learned"))
        row(say, [str(cell), plain, learned, cell.least, met(learned, cell)])


def met(found: float, cell: Cell) -> str:
    """Says whether a cell is reached."""
    if found >= cell.least:
        return "yes"
    return f"within {TOLERANCE}" if found >= cell.least - TOLERANCE else "no"


def sweep(folder: Path, say: Say, *, count: int) -> None:
    """Every order at many sizes."""
    for name, trace in traces(folder):
        total = distinct(trace)
        head(
            say,
            f"{name}, {total:,} distinct full blocks",
            ["blocks", "share", *ALL, "learned over recency"],
        )
        gains = []
        for size in sizes(trace, count):
            found = {it: percent(sequential(trace, device_blocks=size, policy=it)) for it in ALL}
            gains.append(found["learned"] - found["recency"])
            cells = [*found.values(), f"{gains[-1]:+.2f}"]
            row(say, [f"{size:,}", f"{size / total:.1%}", *cells])
        worst, mean = min(gains), statistics.mean(gains)
        good = "met" if worst >= -WORSE[name] else "MISSED"
        say(f"\nLearned over recency: mean {mean:+.2f}, worst {worst:+.2f}, allowed "
            f"-{WORSE[name]}: {good}")  # fmt: skip


def hints(folder: Path, say: Say) -> None:
    """What hints are worth at 3 % of a trace's blocks."""
    for name, trace in traces(folder):
        size = round(0.03 * distinct(trace))
        bound = percent(sequential(trace, device_blocks=size, policy="optimum"))
        plain = percent(sequential(trace, device_blocks=size))
        head(
            say,
            f"{name} at {size:,}: hints; the optimum finds {bound:.1f}",
            ["hints", "recency", "learned", "learned: share of the gap closed"],
        )
        for text in HINTS:
            said = Hints.parse(text)
            found = [
                percent(sequential(trace, device_blocks=size, policy=it, hints=said))
                for it in ("recency", "learned")
            ]
            row(say, [text, *found, f"{(found[1] - plain) / max(bound - plain, 1e-9):.0%}"])


def adversaries(_folder: Path, say: Say, *, seeds: int) -> None:
    """Traces that defeat an order, over some seeds: the least that each order finds."""
    head(
        say,
        f"Adversaries, the least of {seeds} seeds",
        ["trace", "share held", *ALL, "learned over recency, least", "bonus", "newest", "met"],
    )
    for name, make in ADVERSARIES.items():
        share = ADVERSARY_SHARES[name]
        rows = []
        for trace in map(make, range(seeds)):
            size = round(share * distinct(trace))
            rows.append([percent(sequential(trace, device_blocks=size, policy=it)) for it in ALL])
        worst = min(found[1] - found[0] for found in rows)
        least = [min(column) for column in zip(*rows, strict=True)]
        good = least[1] >= LOOP_LEAST if name == "loop" else worst >= 0
        good &= least[1] >= max(SHADOWS[name]) - TOLERANCE
        cells = [*least, f"{worst:+.2f}", *SHADOWS[name], "yes" if good else "no"]
        row(say, [name, f"{share:.1%}", *cells])


def tiers(folder: Path, say: Say) -> None:
    """A host of four times the device: its copies, and who owns the device."""
    for name, trace in traces(folder):
        head(
            say,
            f"{name}: a host of four times the device",
            ["device", "order, copies", "owner", "found", "on the device", "down", "up"],
        )
        for share in (0.01, 0.03, 0.1):
            size = round(share * distinct(trace))
            for order, copies, owner in (
                ("recency", "last", "cache"),
                ("recency", "first", "cache"),
                ("learned", "last", "cache"),
                ("learned", "first", "cache"),
                ("recency", None, "engine"),
                ("learned", None, "engine"),
            ):
                got = sequential(
                    trace,
                    device_blocks=size,
                    host_blocks=4 * size,
                    policy=order,  # type: ignore[arg-type]
                    host_copies=copies,  # type: ignore[arg-type]
                    owner=owner,  # type: ignore[arg-type]
                )
                own = 100 * got.hit_ratio_by_tier["device"]
                moved = (f"{got.blocks_down:,}", f"{got.blocks_up:,}")
                how = f"{order}, {copies}" if copies else order
                row(say, [f"{size:,}", how, owner, percent(got), own, *moved])


def cost(folder: Path, say: Say) -> None:
    """What a request costs here, with Python's part: the least of three runs."""
    columns = ["trace, blocks, requests", *ALL, "recency, host", "recency, host, engine's device"]
    head(say, "CPU microseconds per request, sequential model", columns)
    for name, trace in traces(folder):
        size = round(0.03 * distinct(trace))
        host = partial(sequential, trace, device_blocks=size, host_blocks=4 * size)
        kinds = [partial(sequential, trace, device_blocks=size, policy=it) for it in ALL]
        kinds += [host, partial(host, owner="engine")]
        took = [min(kind().seconds for _ in range(3)) / len(trace) * 1e6 for kind in kinds]
        row(say, [f"{name}, {size:,}, {len(trace):,}", *took])


def virtual(folder: Path, say: Say, *, requests: int | None) -> None:
    """The engine in virtual time, with a host. It takes minutes."""
    columns = ["order, copies", "found", "on the device", "on the host", "blocks up"]
    columns += ["blocks down", "output tokens/s", "engine, s", "to first token, median, s"]
    choices: tuple[tuple[Policy, HostCopies], ...] = (
        ("recency", "last"),
        ("learned", "first"),
        ("learned", "last"),
    )
    for name, share in VIRTUAL.items():
        whole = opened(folder, name)
        if whole is None:
            continue
        file, block = TRACES[name]
        trace = whole if requests is None else read(
            folder / file, trace_block=block, requests=requests
        )  # fmt: skip
        device = round(share * distinct(whole)) * block // BLOCK
        title = f"{name} in virtual time, {device:,} + {4 * device:,} blocks of {BLOCK} tokens"
        head(say, title, columns)
        for policy, copies in choices:
            got = in_virtual_time(trace, policy, copies, device)
            by_tier = [100 * got.hit_ratio_by_tier[tier] for tier in ("device", "host")]
            moved = (f"{got.moved.blocks_up:,}", f"{got.moved.blocks_down:,}")
            first = 0.0 if got.ttft_ms is None else got.ttft_ms.p50 / 1e3
            speed = (got.tokens_per_second, f"{got.engine_seconds:,.0f}", first)
            row(say, [f"{policy}, {copies}", percent(got), *by_tier, *moved, *speed])


def in_virtual_time(trace: Trace, policy: Policy, copies: HostCopies, device: int) -> Run:
    """Returns one run."""
    roofline = preset("llama-3-8b/h100").with_({"ranks": str(RANKS)})
    spec = RunSpec(
        preset="llama-3-8b/h100",
        roofline=roofline,
        trace_block=trace.trace_block,
        block_size=BLOCK,
        device_blocks=device,
        host_blocks=4 * device,
        policy=policy,
        host_copies=copies,
    )
    return run(spec, trace, quiet)


def quiet(_progress: Progress) -> None:
    """Shows nothing."""


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path, default=ROOT.parent / "shared" / "traces")
    parser.add_argument("--sizes", type=int, default=20, help="sizes of the sweep")
    parser.add_argument("--seeds", type=int, default=5, help="seeds of the adversaries")
    parser.add_argument("--requests", type=int, help="of the runs in virtual time; default: all")
    tables: dict[str, Callable[[argparse.Namespace], None]] = {
        "cells": lambda given: cells(given.traces, say),
        "adversaries": lambda given: adversaries(given.traces, say, seeds=given.seeds),
        "hints": lambda given: hints(given.traces, say),
        "tiers": lambda given: tiers(given.traces, say),
        "cost": lambda given: cost(given.traces, say),
        "sweep": lambda given: sweep(given.traces, say, count=given.sizes),
        "virtual": lambda given: virtual(given.traces, say, requests=given.requests),
    }
    parser.add_argument("--only", nargs="+", choices=tables, default=list(tables))
    given = parser.parse_args()
    say = partial(print, flush=True)
    for name in given.only:
        tables[name](given)


if __name__ == "__main__":
    main()
