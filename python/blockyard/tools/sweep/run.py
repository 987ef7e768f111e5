"""The sweep itself: what is exact first, then what must be simulated, then what it comes to."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import numpy as np

from blockyard._core import Misuse, __version__
from blockyard.shared.sizes import MOST_BLOCKS
from blockyard.tools.replay.result import Run
from blockyard.tools.replay.sequential import sequential
from blockyard.tools.replay.spec import Eviction, RunSpec
from blockyard.tools.sweep.jobs import Engine, Job, Shared, Simulate, Simulated, head, run
from blockyard.tools.sweep.optimum import Future
from blockyard.tools.sweep.options import Plan
from blockyard.tools.sweep.recency import Curve
from blockyard.tools.sweep.result import FORMAT, Modelled, Point, SplitResult, SweepResult
from blockyard.tools.sweep.sampling import Sample, suitable
from blockyard.tools.sweep.sizes import Split, SplitText, geometric
from blockyard.tools.sweep.summary import Setting, advise, sentences
from blockyard.tools.traces.future import full_blocks, on_paths
from blockyard.tools.workers import Watch, side_by_side

__all__ = ["Watcher", "sweep"]

_STEPS: Final = 1000
"""By default the least size is this part of the largest."""
_ENGINE_BLOCK: Final = 16
"""Tokens per block of the virtual engine, as `blockyard replay` has it."""


class Watcher(Protocol):
    """Is told how far the sweep is."""

    def part(self, name: str, done: float) -> None:
        """A part of it, and the share of that which is done."""

    def jobs(self, names: list[str]) -> Watch[Simulated | Run | None]:
        """Returns what watches the jobs."""


@dataclass(slots=True, eq=False)
class _Swept:
    """What is known so far."""

    plan: Plan
    setting: Setting
    distinct: int
    sizes: list[int]
    sample: Sample
    optimum: dict[int, int] = field(default_factory=dict)
    """Blocks found by size."""
    done: dict[Job, Simulated | Run | None] = field(default_factory=dict)
    complete: bool = True

    def simulate(self, order: Eviction, split: Split) -> Simulate:
        """Returns the job that stands for an order and a size; no tier is larger than the trace."""
        most = max(len(self.sample.trace.ids), 1)
        return Simulate(
            order,
            Split(*(min(self.sample.size(blocks), most) for blocks in split)),
        )


def sweep(plan: Plan, command: str, watcher: Watcher, processes: int | None) -> SweepResult:
    """Sweeps a trace over sizes.

    After Ctrl-C it returns what is done, with `complete` false.

    Args:
        plan: What to sweep.
        command: The command that repeats it.
        watcher: Is told how far it is.
        processes: The most that run at once; None for as many as there are cores.

    Raises:
        KeyboardInterrupt: Ctrl-C came before anything was known.
        BlockyardError: A size is impossible here, or a law was broken.
    """
    swept = _exact(plan, watcher)
    splits = [(text, _split(swept, text)) for text in _splits(swept)]
    engines = dict(_engines(swept))
    # First what the answer needs, then the largest, so that no long job comes last.
    sizes = sorted(swept.sizes, key=lambda size: (size != swept.setting.knee, -size))
    jobs: list[Job] = [
        *(swept.simulate(order, Split(size, 0, 0)) for order in plan.orders for size in sizes),
        *(
            swept.simulate(order, split)
            for _, split in splits
            for order in ("recency", *plan.orders)
        ),
        *engines.values(),
    ]
    if swept.complete:
        _run(swept, list(dict.fromkeys(jobs)), watcher, processes)
    points = [_point(swept, size) for size in swept.sizes]
    advice = advise(swept.setting, points)
    results = [
        result
        for text, split in splits
        for order in ("recency", *plan.orders)
        if (result := _split_result(swept, text, split, order)) is not None
    ]
    return SweepResult(
        format=FORMAT,
        blockyard=__version__,
        trace=_plain(plan.trace.name),
        trace_block=plan.trace.trace_block,
        trace_requests=len(plan.trace),
        input_tokens=swept.setting.tokens,
        distinct_blocks=swept.distinct,
        block_bytes=plan.block_bytes,
        preset=plan.preset,
        figures=plan.roofline.figures(),
        device_blocks=plan.device_blocks,
        device_hit_ratio=swept.setting.at(plan.device_blocks),
        infinite_hit_ratio=swept.setting.share(swept.setting.curve.most),
        sampled=swept.sample.one_in,
        seed=plan.seed,
        command=_plain(command),
        complete=swept.complete,
        answer=sentences(swept.setting, points, advice, results),
        advice=advice,
        points=points,
        splits=results,
        modelled=[
            _modelled(swept, size, got)
            for size, engine in engines.items()
            if isinstance(got := swept.done.get(engine), Run)
        ],
    )


def _exact(plan: Plan, watcher: Watcher) -> _Swept:
    """Finds what needs no simulation of the cache: recency at all sizes, and the bound."""
    trace = plan.trace
    watcher.part("recency at every size", 0.0)
    curve = Curve.of(trace)
    paths = np.stack((trace.offsets[:-1], trace.offsets[:-1] + full_blocks(trace)), 1)
    distinct = len(np.unique(trace.ids[on_paths(paths)[0]]))
    setting = Setting(
        curve=curve,
        tokens=int(trace.input_length.sum()),
        block=trace.trace_block,
        block_bytes=plan.block_bytes,
        preset=plan.preset,
        device_blocks=plan.device_blocks,
        largest=0,
        sampled=1,
        cut=trace.incomplete,
    )
    asked = _asked(plan, distinct)
    simulates = bool(plan.orders) and curve.most > 0
    one_in = (plan.sample or suitable(trace, distinct)) if simulates else 1
    sample = Sample.of(trace, curve, one_in)
    setting = replace(setting, largest=asked[-1], sampled=one_in)
    knee = setting.knee
    extra = {knee, min(2 * knee, MOST_BLOCKS)} if knee else set()
    swept = _Swept(plan, setting, distinct, sorted({*asked, *extra}), sample)
    watcher.part("recency at every size", 1.0)
    if plan.optimum:
        try:
            future = Future(trace)
            for number, size in enumerate(swept.sizes, 1):
                swept.optimum[size] = future.hits(size)
                watcher.part("the bound that knows the future", number / len(swept.sizes))
        except KeyboardInterrupt:
            swept.complete = False
    return swept


def _asked(plan: Plan, distinct: int) -> list[int]:
    """Returns the sizes that were asked for."""
    if plan.sizes:
        return list(plan.sizes)
    last = max(distinct, 1) if plan.last is None else plan.last
    first = max(last // _STEPS, 1) if plan.first is None else plan.first
    if first > last:
        raise Misuse(
            f"--from: {first:,} blocks are more than all {last:,} of the trace; give less, or --to"
        )
    return geometric(first, last, plan.points)


def _splits(swept: _Swept) -> list[SplitText]:
    """Returns the splits that were asked for, or those of the advised size that suit the engine."""
    plan, knee = swept.plan, swept.setting.knee
    if plan.splits is not None:
        return list(plan.splits)
    own = plan.device_blocks
    if own >= knee:
        return []
    below = knee - own
    return [
        SplitText(f"{_named(swept, own)} + {_named(swept, below)}", blocks=(own, below)),
        SplitText(
            f"{_named(swept, own)} + {_named(swept, below // 4)} + "
            f"{_named(swept, below - below // 4)}",
            blocks=(own, below // 4, below - below // 4),
        ),
    ]


def _named(swept: _Swept, blocks: int) -> str:
    return swept.setting.bytes(blocks)


def _split(swept: _Swept, text: SplitText) -> Split:
    return text.of(swept.setting.knee or swept.sizes[-1])


def _engines(swept: _Swept) -> Iterator[tuple[int, Engine]]:
    """Yields the sizes for the virtual engine: what the device has not is on the host."""
    plan, trace = swept.plan, swept.plan.trace
    if not plan.model_requests:
        return
    knee = swept.setting.knee or swept.sizes[-1]
    block = plan.roofline.kv_bytes_per_token * _ENGINE_BLOCK
    # More than all tokens of the trace need no bookkeeping.
    tokens = swept.distinct * trace.trace_block + int(trace.output_length.sum())
    longest = int((trace.input_length + trace.output_length).max(initial=1))
    most = (tokens + longest) // _ENGINE_BLOCK + len(trace) + 1
    for size in plan.model_sizes or (knee, 2 * knee):
        blocks = max(size * plan.block_bytes // block, 1)
        device = min(blocks, plan.roofline.device_blocks(_ENGINE_BLOCK))
        host = blocks - device
        yield (
            size,
            Engine(
                RunSpec(
                    preset=plan.preset,
                    roofline=plan.roofline,
                    trace_block=trace.trace_block,
                    block_size=_ENGINE_BLOCK,
                    device_blocks=min(device, most),
                    host_blocks=min(host, most),
                    preempt_mode="park" if host else "recompute",
                    seed=plan.seed,
                )
            ),
        )


def _run(swept: _Swept, jobs: list[Job], watcher: Watcher, processes: int | None) -> None:
    if not jobs:
        return
    plan = swept.plan
    engines = any(isinstance(job, Engine) for job in jobs)
    shared = Shared(swept.sample.trace, head(plan.trace, plan.model_requests) if engines else None)
    names = [
        f"{job.order}, {sum(job.split) * swept.sample.one_in:,} blocks"
        if isinstance(job, Simulate)
        else f"virtual engine, {job.spec.device_blocks:,} + {job.spec.host_blocks:,} blocks"
        for job in jobs
    ]
    done = side_by_side(
        run, shared, jobs, names=names, processes=processes, watch=watcher.jobs(names)
    )
    swept.done = {jobs[number]: result for number, result in done.results.items()}
    swept.complete = swept.complete and not done.interrupted


def _point(swept: _Swept, size: int) -> Point:
    setting, ratios = swept.setting, {}
    ratios["recency"] = setting.at(size)
    for order in swept.plan.orders:
        got = swept.done.get(swept.simulate(order, Split(size, 0, 0)))
        if isinstance(got, Simulated):
            ratios[order] = setting.share(swept.sample.corrected(size, sum(got.hits)))
    if size in swept.optimum:
        ratios["optimum"] = setting.share(swept.optimum[size])
    return Point(blocks=size, bytes=size * setting.block_bytes, hit_ratio=ratios)


def _split_result(
    swept: _Swept, text: SplitText, split: Split, order: Eviction
) -> SplitResult | None:
    got = swept.done.get(swept.simulate(order, split))
    if not isinstance(got, Simulated):
        return None
    sample, setting = swept.sample, swept.setting
    # A sample's error is about the same for all that is found.
    scale = sample.corrected(split.blocks, sum(got.hits)) / max(sum(got.hits), 1)
    ratios = [setting.share(hits * scale) for hits in got.hits]
    moved = sample.one_in * setting.block_bytes
    return SplitResult(
        split=text.text,
        order=order,
        device_blocks=split.device,
        host_blocks=split.host,
        disk_blocks=split.disk,
        hit_ratio=sum(ratios),
        hit_ratio_by_tier=dict(zip(("device", "host", "disk"), ratios, strict=True)),
        bytes_down=got.down * moved,
        bytes_up=got.up * moved,
    )


def _modelled(swept: _Swept, size: int, run: Run) -> Modelled:
    bytes_ = size * swept.setting.block_bytes
    device = swept.plan.device_blocks * swept.setting.block_bytes
    # Without an answer no request has a first token: all were refused, or no length is known.
    times = run.ttft_ms if run.output_tokens else None
    most = max(swept.distinct, 1)
    instant = sequential(
        head(swept.plan.trace, swept.plan.model_requests),
        device_blocks=max(min(swept.plan.device_blocks, size, most), 1),
        host_blocks=min(max(size - swept.plan.device_blocks, 0), most),
    )
    return Modelled(
        blocks=size,
        bytes=bytes_,
        device_bytes=min(device, bytes_),
        host_bytes=max(bytes_ - device, 0),
        requests=run.requests,
        hit_ratio=run.hit_ratio,
        sequential_hit_ratio=instant.hit_ratio,
        ttft_ms_p50=times.p50 if times else None,
        ttft_ms_p99=times.p99 if times else None,
        tokens_per_second=run.tokens_per_second,
        overloaded=run.load is not None and run.load.overloaded,
    )


def _plain(text: str) -> str:
    """Returns the text with a replacement character for each unprintable one."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
