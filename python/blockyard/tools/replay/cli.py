"""`blockyard replay`: checks all options, then runs, shows and writes the result."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Unpack, get_args

import click
from rich.console import Console

from blockyard._core import Misuse, __version__
from blockyard.crane.devices import DeviceName
from blockyard.scheduling.headroom import Role
from blockyard.tools.click_types import FILE, ORDERS, QUIET, Word, number
from blockyard.tools.endings import INTERRUPTED, Broken
from blockyard.tools.help import Remembered
from blockyard.tools.outputs import claim, write_all
from blockyard.tools.replay.comparison import compare, jobs_of
from blockyard.tools.replay.findings import conclusions
from blockyard.tools.replay.options import ReplayOptions, Replays, resolve
from blockyard.tools.replay.progress import ReplayDisplay, names
from blockyard.tools.replay.report import page
from blockyard.tools.replay.result import FORMAT, Result, Run
from blockyard.tools.replay.result_tables import tables
from blockyard.tools.replay.routing import RouterName
from blockyard.tools.replay.sections import SECTIONS
from blockyard.tools.replay.spec import (
    HeadroomName,
    HostCopies,
    Owner,
    Policy,
    VictimsName,
    WritePolicy,
)
from blockyard.tools.screen import show
from blockyard.tools.traces.adversaries import AdversaryName
from blockyard.tools.traces.workload import WorkloadName
from blockyard.yard.parking import PreemptMode

__all__ = ["replay"]


@click.command(cls=Remembered, sections=SECTIONS)
@click.argument("trace", required=False, type=FILE)
@number("--trace-block", 1, 10**6, None, "Tokens per id of TRACE; derived from it by default.")
@number("--requests", 1, 10**7, None, "Replay only the first N; default: all, or 1000 generated.")
@click.option("--rate", type=float, metavar="HZ", help="Generated requests per second; default: 4.")
@click.option(
    "--workload",
    type=Word([*get_args(WorkloadName), *get_args(AdversaryName)]),
    help="Traffic to generate: chats and agents (default), chats with long answers, or an adversary"
    " of eviction orders.",
)
@number("--seed", 0, 2**64 - 1, 0, "Seed of the tokens and of a generated workload.")
@click.option("--save-trace", type=FILE, metavar="PATH", help="Write the requests as a trace.")
@click.option(
    "--speed",
    type=float,
    metavar="X",
    default=1.0,
    help="Let requests arrive X times as fast as in the trace.",
)
@number("--replicas", 1, 1024, 1, "Engines that share the requests, each of these sizes.")
@click.option(
    "--router",
    type=Word(get_args(RouterName)),
    help="What sends a request to a replica: where its prefix went (default), or chance.",
)
@click.option(
    "--device",
    multiple=True,
    metavar="SIZE",
    help="Size of the device over all ranks, like 40GiB or 8GiB/rank, or in blocks. Repeat to "
    "compare.",
)
@click.option(
    "--host",
    multiple=True,
    metavar="SIZE",
    help="Size of the host likewise; 0 for no host. Repeat to compare.",
)
@click.option(
    "--disk",
    multiple=True,
    metavar="SIZE",
    help="Size of a disk below the host likewise; default: none. Repeat to compare.",
)
@click.option(
    "--disk-gbps",
    type=float,
    metavar="GBPS",
    default=5.0,
    help="Its bandwidth in each direction, GB/s over all ranks.",
)
@click.option(
    "--remote",
    multiple=True,
    metavar="SIZE",
    help="Names of blocks in a shared store, as a number or a size likewise; default: no store. "
    "Repeat to compare. --model virtual only.",
)
@click.option(
    "--store-latency",
    type=float,
    metavar="SECONDS",
    default=1e-3,
    help="From a copy's submit to its first byte, at the store.",
)
@click.option(
    "--store-bandwidth",
    type=float,
    metavar="GBPS",
    default=5.0,
    help="The store's bandwidth in each direction, GB/s over all ranks.",
)
@click.option(
    "--store-loss",
    type=float,
    metavar="SHARE",
    default=0.0,
    help="Of the blocks loaded from the store, the share that it has lost, drawn by --seed.",
)
@number("--block-size", 1, 10**5, None, "Tokens per block of the cache; default: 16.")
@click.option(
    "--policy",
    type=Word(get_args(Policy), ORDERS),
    multiple=True,
    default=("recency",),
    help="Eviction; repeat to compare. The optimum knows the future: --model sequential only.",
)
@click.option(
    "--write-policy",
    type=Word(get_args(WritePolicy)),
    multiple=True,
    default=("on-evict",),
    help="When blocks are copied to the host; repeat to compare.",
)
@click.option(
    "--host-copies",
    type=Word(get_args(HostCopies)),
    multiple=True,
    help="When copies of what the device has go from the host; default: as suits the policy. "
    "Repeat to compare.",
)
@click.option(
    "--hints",
    multiple=True,
    metavar="HINTS",
    help="What is known of the future, like end=0.8:0.02,next=0.8:2, or lies, or none (default). "
    "Repeat to compare. --model sequential only.",
)
@click.option(
    "--owner",
    type=Word(get_args(Owner)),
    multiple=True,
    help="Who gives out the device's blocks: the cache (default), or an engine with an LRU of its "
    "own. Repeat to compare. --model sequential only.",
)
@click.option(
    "--role",
    type=Word(get_args(Role)),
    default="mixed",
    help="What the engine serves: whole requests, only prompts, or only answers.",
)
@click.option(
    "--preempt-mode",
    type=Word(get_args(PreemptMode)),
    multiple=True,
    help="What a preempted request keeps; default: park with a host. Repeat to compare.",
)
@click.option(
    "--headroom",
    type=Word(get_args(HeadroomName)),
    multiple=True,
    help="Room kept for growth; default: adaptive, or none with --role prefill. Repeat to compare.",
)
@click.option(
    "--victims",
    type=Word(get_args(VictimsName)),
    default="newest",
    help="Which request is preempted first when room runs out.",
)
@click.option(
    "--loads",
    type=Word(["gated", "all"]),
    default="gated",
    help="Load a prefix only where that beats computing it, or always.",
)
@click.option(
    "--model",
    type=Word(["virtual", "sequential"]),
    default="virtual",
    help="Model an engine in virtual time, or serve one request after another.",
)
@click.option(
    "--preset", default="llama-3-8b/h100", metavar="MODEL/GPU", help="The modelled engine."
)
@click.option(
    "--set",
    "figures",
    multiple=True,
    metavar="FIGURE=VALUE",
    help="Replace a figure of the preset.",
)
@number("--ranks", 1, 1024, None, "GPUs that share the model; default: the preset's.")
@number("--max-num-batched-tokens", 1, 10**6, 8192, "The most tokens that a step computes.")
@number("--max-num-seqs", 1, 4096, 256, "The most requests that run at once.")
@number("--prefetch", 0, 4096, 0, "Waiting requests whose prefix is loaded early.")
@click.option(
    "--verify",
    type=Word(get_args(DeviceName)),
    help="Move real bytes and check every block; the device's in main memory, or on a GPU.",
)
@click.option("--json", metavar="PATH", help="Write the result as JSON; - is stdout.")
@click.option("--report", type=FILE, metavar="PATH", help="Write a page with plots.")
@number("--jobs", 1, 1024, None, "The most runs at once; default: as many as suit this machine.")
@QUIET
@click.pass_context
def replay(ctx: click.Context, /, **options: Unpack[ReplayOptions]) -> None:
    """Replay TRACE, or a generated workload, through a cache.

    TRACE has one request per line, in the Mooncake format; see docs/replay.md. The exit status is 3
    where the audit finds a broken law, or --verify a wrong byte.
    """
    claim(_files(options))
    replays = resolve(options)
    if options["save_trace"] is not None:
        replays.trace.write(options["save_trace"])
    runs = _play(replays, options)
    if not runs:
        raise click.Abort
    result = _result(replays, options, ctx.obj, runs)
    faults = write_all(_results(options, result))
    # With `--json -`, stdout is for the JSON alone.
    table = Console(stderr=options["json"] == "-")
    for part in tables(result, table.width):
        show(table, part)
    if options["json"] == "-":
        click.echo(result.encode())
    if broken := list(dict.fromkeys(_broken(runs))):
        raise Broken("; ".join([*broken, *faults]))
    if faults:
        raise Misuse("; ".join(faults))
    if len(runs) < len(replays.specs) or not all(run.complete for run in runs):
        ctx.exit(INTERRUPTED)


def _broken(runs: Sequence[Run]) -> Iterator[str]:
    """Yields what Blockyard got wrong."""
    for run in runs:
        if run.audit not in {"ok", "none"}:
            yield f"a law is broken: {run.audit}"
        if run.verified and run.verified.wrong:
            yield f"{run.verified.wrong:,} blocks had wrong bytes"
        if run.verified and run.verified.wrong_answers:
            yield f"{run.verified.wrong_answers:,} answers were wrong"


def _play(replays: Replays, options: ReplayOptions) -> list[Run]:
    """Returns the runs; after Ctrl-C those so far, incomplete, and none after a second one."""
    jobs = jobs_of(replays.specs, replays.parts)
    called = names(jobs, len(replays.parts))
    console = None if options["quiet"] else Console(stderr=True)
    try:
        with ReplayDisplay(jobs, replays.parts, called, console) as watch:
            return compare(jobs, replays.parts, watch, names=called, processes=options["jobs"])
    except KeyboardInterrupt:
        return []


def _files(options: ReplayOptions) -> dict[str, Path | None]:
    """Returns the files that are read and written, by option."""
    to_file = options["json"] is not None and options["json"] != "-"
    return {
        "TRACE": options["trace"],
        "--save-trace": options["save_trace"],
        "--json": Path(options["json"] or "") if to_file else None,
        "--report": options["report"],
    }


def _results(options: ReplayOptions, result: Result) -> dict[Path | None, bytes]:
    json, report = _files(options)["--json"], options["report"]
    return {json: result.encode() + b"\n"} | ({} if report is None else {report: page(result)})


def _result(replays: Replays, options: ReplayOptions, command: str, runs: Sequence[Run]) -> Result:
    spec, trace = replays.specs[0], replays.trace
    return Result(
        format=FORMAT,
        blockyard=__version__,
        trace=_plain(trace.name),
        trace_block=spec.trace_block,
        trace_requests=len(trace),
        answer=conclusions(
            runs, speed=options["speed"], hits_unknown=trace.hits_unknown, cut=trace.incomplete
        ),
        speed=options["speed"],
        router=replays.router,
        block_size=spec.block_size,
        max_num_batched_tokens=spec.max_num_batched_tokens,
        max_num_seqs=spec.max_num_seqs,
        prefetch=spec.prefetch,
        gate=spec.gate,
        seed=spec.seed,
        preset=spec.preset,
        figures=spec.roofline.figures(),
        command=_plain(command),
        runs=list(runs),
        missing=len(replays.specs) - len(runs),
    )


def _plain(text: str) -> str:
    """Returns the text with a replacement character for each unprintable one."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
