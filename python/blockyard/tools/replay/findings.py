"""What follows from a replay, in a few sentences: first whether its times mean anything."""

import math
from collections.abc import Iterator, Sequence
from typing import Final

from blockyard.tools.replay.labels import labels
from blockyard.tools.replay.result import Load, Run
from blockyard.tools.units import duration

__all__ = ["conclusions"]

_POINT: Final = 0.005
"""The least difference of hit ratios that matters."""
_TENTH: Final = 0.1
"""The least share by which times or rates differ so that it matters."""
_SPARE: Final = 0.9
"""The most of what an engine serves that is offered to it in what is proposed."""
_LITTLE: Final = 0.005
"""Less than this of the prompt tokens is not worth a tier."""
_COSTLY: Final = 0.01
"""The least share of tokens computed again that is worth a proposal."""
_NOTED: Final = 0.001
_NOTED_MS: Final = 100.0
"""The least of either, computed again or away, for which preemptions are named at all."""
_FULL: Final = 0.9
"""A tier that was once as full as that may be too small."""


def conclusions(
    runs: Sequence[Run], *, speed: float = 1.0, hits_unknown: str = "", cut: bool = False
) -> list[str]:
    """Returns sentences, the first ones about the first run.

    Args:
        runs: One per combination of sizes and policies.
        speed: How many times as fast as in the trace requests arrived.
        hits_unknown: Why the trace does not tell what a cache finds; "" where it does.
        cut: Whether the trace was cut short when it was made.
    """
    main = runs[0]
    whole = ["The trace is incomplete: later requests are missing."] if cut else []
    if hits_unknown:
        # What is found there, and what an order gains by it, are not what a cache would do.
        return [
            *_load(runs, speed),
            f"This trace does not show hits: {hits_unknown}.",
            *whole,
            *_pinned(main),
            *_preempted(main),
        ]
    return [
        *_load(runs, speed),
        *whole,
        *_worth(main),
        *_instant(main),
        *_better(runs),
        *_pinned(main),
        *_preempted(main),
        *_next(runs),
    ]


def _load(runs: Sequence[Run], speed: float) -> Iterator[str]:
    main = runs[0]
    over = [run.load for run in runs if run.load is not None and run.load.overloaded]
    if over:
        yield _overload(runs, over, speed)
    if not main.complete:
        yield "Interrupted: these figures are of the requests served so far."
    elif over or main.ttft_ms is None:
        return
    elif not main.output_tokens:
        keeps_up = _keeps_up(main.load)
        yield f"{keeps_up} no answer has a length, so there are no times to first token."
    else:
        yield (
            f"{_keeps_up(main.load)} half of the first tokens come within "
            f"{duration(main.ttft_ms.p50 / 1e3)}, 99 % within {duration(main.ttft_ms.p99 / 1e3)}."
        )


def _keeps_up(load: Load | None) -> str:
    if load is None:
        return "All requests come at once:"
    if load.served_requests_per_second < _SPARE * load.offered_requests_per_second:
        # There is a backlog, but the queue did not grow all along, or by chance.
        return (
            f"{_rate(load.offered_requests_per_second)} requests/s are offered, and the last of "
            f"them are taken up {duration(load.backlog_seconds)} late:"
        )
    return f"Keeps up with {_rate(load.offered_requests_per_second)} requests/s:"


def _overload(runs: Sequence[Run], over: Sequence[Load], speed: float) -> str:
    main = runs[0]
    load = over[0]
    served = load.served_requests_per_second
    beyond = load.offered_requests_per_second / served
    where = ""
    if len(over) < len(runs):
        names = zip(labels(runs), runs, strict=True)
        listed = [name for name, run in names if run.load is not None and run.load.overloaded]
        where = f" with {' and with '.join(listed)}"
    elif main.replicas:
        count = sum(replica.overloaded is True for replica in main.replicas)
        where = f" ({count} of {len(main.replicas)} replicas)"
    engines = max(len(main.replicas), 1)
    enough = max(math.ceil(engines * beyond / _SPARE - 1e-9), engines + 1)
    return (
        f"Overloaded{where}: {_rate(load.offered_requests_per_second)} requests/s are offered, "
        f"{_rate(served)} are served; times to first token measure the growing queue, not the "
        f"engine. Give --replicas {enough}, or --speed {_below(speed * _SPARE / beyond)}."
    )


def _worth(run: Run) -> Iterator[str]:
    """What each tier finds."""
    parts = [f"{found:.1%} on the {tier}" for tier, found in run.hit_ratio_by_tier.items()]
    if not run.host_blocks:
        parts = parts[:1]
    if run.disk is not None:
        parts.append(f"{run.disk.hit_ratio:.1%} on the disk")
    if run.remote is not None:
        parts.append(f"{run.remote.hit_ratio:.1%} in the store")
    where = f": {', '.join(parts)}" if len(parts) > 1 else ""
    yield f"{run.hit_ratio:.1%} of the prompt tokens are found{where}."


def _instant(run: Run) -> Iterator[str]:
    """What a write policy means where there is no time."""
    if run.model == "sequential" and (run.host_blocks or run.disk is not None):
        yield (
            "Copies take no time here, so that none comes too late: --model virtual shows what "
            "--write-policy does in an engine."
        )


def _better(runs: Sequence[Run]) -> Iterator[str]:
    """Which run of a comparison is better, and by how much."""
    if len(runs) == 1:
        return
    names = labels(runs)
    bound = next((run for run in runs if run.policy == "optimum"), None)
    real = [(name, run) for name, run in zip(names, runs, strict=True) if run.policy != "optimum"]
    if not all(run.complete for run in runs):
        yield "Interrupted: the runs served different requests, so they are not compared."
        return
    if len(real) > 1:
        yield _best(real)
    if bound is not None and real:
        name, best = max(real, key=lambda pair: pair[1].hit_ratio)
        yield (
            f"No order can find more than {bound.hit_ratio:.1%} at this size, as the clairvoyant "
            f"optimum does; {name} finds {best.hit_ratio / max(bound.hit_ratio, 1e-9):.0%} of that."
        )


def _best(real: Sequence[tuple[str, Run]]) -> str:
    hits = max(real, key=lambda pair: pair[1].hit_ratio)
    least = min(real, key=lambda pair: pair[1].hit_ratio)
    gain = hits[1].hit_ratio - least[1].hit_ratio
    said = []
    if gain >= _POINT:
        said.append(
            f"{hits[0]} finds the most, {hits[1].hit_ratio:.1%}: {100 * gain:.1f} points more than "
            f"{least[0]}"
        )
    # Times of a queue that grows are not compared, and the rate says as much.
    over = any(run.load is not None and run.load.overloaded for _, run in real)
    times = [(name, _time(run, over=over)) for name, run in real]
    if all(math.isfinite(time) and time > 0 for _, time in times):
        fast = min(times, key=lambda pair: pair[1])
        slow = max(times, key=lambda pair: pair[1])
        share = 1 - fast[1] / slow[1]
        if share >= _TENTH:
            said.append(
                f"{fast[0]} serves {1 / (1 - share) - 1:.0%} more requests/s than {slow[0]}"
                if over
                else f"{fast[0]} has a median time to first token {share:.0%} below {slow[0]}'s"
            )
    if not said:
        return "The runs do not differ by as much as half a point in hits, or a tenth in speed."
    return f"{'; '.join(said)}."


def _time(run: Run, *, over: bool) -> float:
    """The time to be short: to the first token, or between two requests that are taken up."""
    if over:
        return math.inf if run.load is None else 1 / run.load.served_requests_per_second
    return math.inf if run.ttft_ms is None or not run.output_tokens else run.ttft_ms.p50


def _pinned(run: Run) -> Iterator[str]:
    if run.pinned is None:
        return
    mean, most = run.pinned / run.device_blocks, run.peak["pinned"] / run.device_blocks
    yield (
        f"Running requests hold {mean:.0%} of the device, {most:.0%} at most, so {1 - mean:.0%} is "
        "left for the prefix cache."
    )


def _preempted(run: Run) -> Iterator[str]:
    gone = run.preempted
    if gone is None or (gone.share < _NOTED and gone.away_ms.p50 < _NOTED_MS):
        return
    again = f"{gone.share:.1%} of all tokens" if gone.share >= _NOTED else "next to nothing"
    proposal = "; --headroom full-length shows how few are possible" if gone.share > _COSTLY else ""
    count = f"{gone.count:,} preemption{'s' * (gone.count != 1)}"
    away = duration(gone.away_ms.p50 / 1e3)
    yield (
        f"{count} had {again} computed again, and kept a request away for {away} at the median"
        f"{proposal}."
    )


def _next(runs: Sequence[Run]) -> Iterator[str]:
    """What to try next: the most telling thing alone."""
    main = runs[0]
    if not main.complete:
        return
    host = main.hit_ratio_by_tier.get("host", 0.0)
    orders = {run.policy for run in runs}
    if main.host_blocks and host < _LITTLE and main.owner == "cache":
        yield f"The host finds {host:.1%}: compare --host 0, which saves its memory."
    elif orders == {"recency"} and main.hit_ratio > _LITTLE and not any(r.hints for r in runs):
        yield "Compare --policy recency --policy learned: an order costs nothing to change."
    elif main.peak.get("host", 0) >= _FULL * main.host_blocks > 0:
        yield "The host was full: `blockyard sweep` shows the hits of a larger one."


def _rate(value: float) -> str:
    """Returns three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004 - three digits


def _below(value: float) -> str:
    """Returns two digits, rounded down."""
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return f"{math.floor(value / step + 1e-9) * step:g}"
