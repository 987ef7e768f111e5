"""`blockyard sweep`: checks all options, then sweeps, shows and writes the result."""

from pathlib import Path
from typing import Final, Unpack, get_args

import click
from rich.console import Console

from blockyard._core import Misuse
from blockyard.tools.click_types import FILE, ORDERS, Word, number
from blockyard.tools.endings import INTERRUPTED
from blockyard.tools.help import Remembered, Section
from blockyard.tools.outputs import claim, write_all
from blockyard.tools.replay.spec import Policy
from blockyard.tools.screen import show
from blockyard.tools.sweep import terminal
from blockyard.tools.sweep.options import MOST_POINTS, Options, resolve
from blockyard.tools.sweep.page import page
from blockyard.tools.sweep.result import SweepResult
from blockyard.tools.sweep.run import sweep as swept
from blockyard.tools.traces.adversaries import AdversaryName
from blockyard.tools.traces.workload import WorkloadName

__all__ = ["sweep"]

_SECTIONS: Final = (
    Section(
        "The requests",
        ("--trace-block", "--requests", "--workload", "--rate", "--seed"),
        "blockyard sweep --workload mixed --requests 5000 --seed 7",
    ),
    Section(
        "The engine",
        ("--preset", "--set", "--ranks"),
        "blockyard sweep TRACE --preset llama-3-70b/h100x4",
    ),
    Section(
        "Sizes and orders",
        ("--sizes", "--from", "--to", "--points", "--policy"),
        "blockyard sweep TRACE --from 50GiB --to 2TiB --points 30 --policy lru --policy learned",
    ),
    Section("Tiers", ("--split",), "blockyard sweep TRACE --split 20%+80% --split 55GiB+1TiB"),
    Section(
        "Latency",
        ("--model-size", "--model-requests"),
        "blockyard sweep TRACE --model-size 500GiB --model-requests 2000",
    ),
    Section("How it is done", ("--sample", "--jobs", "--quiet"), "blockyard sweep TRACE --jobs 1"),
    Section(
        "What is written",
        ("--json", "--report"),
        "blockyard sweep TRACE --report sweep.html --json sweep.json",
    ),
)
"""The options by what they are about."""


@click.command(cls=Remembered, sections=_SECTIONS)
@click.argument("trace", required=False, type=FILE)
@number("--trace-block", 1, 10**6, None, "Tokens per id of TRACE; derived from it by default.")
@number("--requests", 1, 10**7, None, "Sweep only the first N; default: all, or 1000 generated.")
@click.option("--rate", type=float, metavar="HZ", help="Generated requests per second; default: 4.")
@click.option(
    "--workload",
    type=Word([*get_args(WorkloadName), *get_args(AdversaryName)]),
    help="Traffic to generate instead of reading TRACE.",
)
@number("--seed", 0, 2**64 - 1, 0, "Seed of a generated workload.")
@click.option(
    "--preset",
    default="llama-3-8b/h100",
    metavar="MODEL/GPU",
    help="The engine, which says what a block weighs and what the device holds.",
)
@click.option(
    "--set",
    "figures",
    multiple=True,
    metavar="FIGURE=VALUE",
    help="Replace a figure of the preset.",
)
@number("--ranks", 1, 1024, None, "GPUs that share the model; default: the preset's.")
@click.option(
    "--sizes",
    metavar="SIZE,…",
    help="Sizes of the cache, all tiers together, like 10GiB,20GiB or in blocks.",
)
@click.option(
    "--from",
    "first",
    metavar="SIZE",
    help="The least size; default: a thousandth of the largest.",
)
@click.option(
    "--to", "last", metavar="SIZE", help="The largest size; default: all distinct blocks."
)
@number(
    "--points", 2, MOST_POINTS, 20, "How many sizes, each by the same factor larger than the last."
)
@click.option(
    "--policy",
    type=Word(get_args(Policy), ORDERS),
    multiple=True,
    default=("learned", "optimum"),
    help="Orders beside recency, which is always there; repeat for several.",
)
@click.option(
    "--split",
    multiple=True,
    metavar="SPLIT",
    help="Split a total: DEVICE+HOST or DEVICE+HOST+DISK, in shares of the knee (20%+80%) or in "
    "sizes (55GiB+512GiB). Repeat for up to five; none for none. Default: as the engine's device "
    "asks for.",
)
@click.option(
    "--model-size",
    multiple=True,
    metavar="SIZE",
    help="A size whose time to first token and throughput is modelled; default: the knee and its "
    "double.",
)
@number(
    "--model-requests",
    0,
    10**7,
    None,
    "Model only the first N requests; default: all if they are at most 1000, else none.",
)
@number(
    "--sample",
    1,
    1024,
    None,
    "Simulate one block in N, a power of two; default: 1 up to some 700,000 uses.",
)
@number("--jobs", 1, 1024, None, "Simulations at once; default: one for each core.")
@click.option("--json", metavar="PATH", help="Write the result as JSON; - is stdout.")
@click.option("--report", type=FILE, metavar="PATH", help="Write a page with plots.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
@click.pass_context
def sweep(ctx: click.Context, /, **options: Unpack[Options]) -> None:
    """Say how much memory to buy for the traffic of TRACE, or of a generated workload.

    It finds what caches of many sizes would find, and ends in one sentence. TRACE has one request
    per line, in the Mooncake format; see docs/sweep.md.
    """
    claim(_files(options))
    plan = resolve(options)
    display = terminal.Display(None if options["quiet"] else Console(stderr=True))
    try:
        result = swept(plan, ctx.obj, display, options["jobs"])
    except KeyboardInterrupt:
        raise click.Abort from None
    finally:
        display.close()
    faults = write_all(_results(options, result))
    # With `--json -`, stdout is for the JSON alone.
    table = Console(stderr=options["json"] == "-", highlight=False)
    for part in terminal.parts(result, table.width):
        show(table, part)
    if options["json"] == "-":
        click.echo(result.encode())
    if faults:
        raise Misuse("; ".join(faults))
    if not result.complete:
        ctx.exit(INTERRUPTED)


def _files(options: Options) -> dict[str, Path | None]:
    """Returns the files that are read and written, by option."""
    to_file = options["json"] is not None and options["json"] != "-"
    return {
        "TRACE": options["trace"],
        "--json": Path(options["json"] or "") if to_file else None,
        "--report": options["report"],
    }


def _results(options: Options, result: SweepResult) -> dict[Path | None, bytes]:
    json, report = _files(options)["--json"], options["report"]
    return {json: result.encode() + b"\n"} | ({} if report is None else {report: page(result)})
