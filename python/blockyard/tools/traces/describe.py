"""Computes the description of a trace."""

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from blockyard._core import __version__
from blockyard.tools.traces.description import (
    FORMAT,
    Blocks,
    Continued,
    Curve,
    Description,
    Quantiles,
    Rate,
    Reuse,
    Sessions,
    rounded,
)
from blockyard.tools.traces.distances import NEVER, stack_distances
from blockyard.tools.traces.future import full_blocks, next_users, on_paths, previous_users
from blockyard.tools.traces.trace import Trace
from blockyard.tools.units import duration

__all__ = ["describe"]

_MINUTE: Final = 60_000
_INTERVALS: Final = 120
"""Intervals of the plot of arrivals."""
_STEP: Final = 1.5
"""Between two sizes of the curve."""
_BURSTS: Final = 1.5
"""The variation of the gaps from which one speaks of bursts."""


def describe(trace: Trace) -> Description:
    """Returns a trace's description; takes about 100 bytes per block of each prompt."""
    known = not trace.hits_unknown
    blocks, reuse = _blocks(trace) if known else (None, None)
    found = Description(
        format=FORMAT,
        blockyard=__version__,
        answer=[],
        trace=trace.name,
        complete=not trace.incomplete,
        block_size=trace.trace_block,
        requests=len(trace),
        seconds=_seconds(trace),
        input_tokens=int(trace.input_length.sum()),
        output_tokens=int(trace.output_length.sum()),
        rate=_rate(trace),
        prompts=_quantiles(trace.input_length),
        answers=_quantiles(trace.output_length),
        hits_unknown=trace.hits_unknown or None,
        blocks=blocks,
        reuse=reuse,
        continued=_continued(trace) if known else None,
        sessions=_sessions(trace),
    )
    cut = ["Incomplete: its making was interrupted."] if trace.incomplete else []
    return msgspec.structs.replace(found, answer=_answer(found) + cut)


def _answer(found: Description) -> list[str]:
    """Returns the answer: what a cache could find, and how far apart uses are."""
    rate = found.rate
    bursts = ", in bursts" if rate.variation > _BURSTS else ""
    arriving = (
        f"{found.requests:,} requests in {duration(found.seconds)}, {rate.mean:.3g} per second"
        f"{bursts}, with {found.prompts.p50:,.0f} tokens of prompt and {found.answers.p50:,.0f} of "
        "answer in the median."
    )
    if found.blocks is None:
        return [f"This trace does not show hits: {found.hits_unknown}.", arriving]
    most = found.blocks.infinite_hit_ratio
    if found.reuse is None:
        return ["No cache would find anything: no full block is used twice.", arriving]
    reuse = found.reuse
    again = (
        f"Half of all reuse is within {duration(reuse.seconds.p50)}, and an LRU cache of "
        f"{reuse.blocks.p50:,.0f} blocks still holds it; {found.blocks.once:.0%} of the blocks "
        "are never used again."
    )
    return [
        f"A cache without a limit would find {most:.1%} of the prompts' tokens.",
        arriving,
        again,
    ]


def _seconds(trace: Trace) -> float:
    return float(trace.arrival[-1] - trace.arrival[0]) / 1000


def _rate(trace: Trace) -> Rate:
    since = trace.arrival - trace.arrival[0]
    seconds = _seconds(trace)
    # A trace of one moment counts as one of a second.
    span = max(seconds, 1.0)
    gaps = np.diff(since)
    mean = float(gaps.mean()) if len(gaps) else 0.0
    # The busiest minute begins with an arrival.
    within = np.searchsorted(since, since + _MINUTE) - np.arange(len(trace))
    counts, edges = np.histogram(since / 1000, bins=_INTERVALS, range=(0, span))
    return Rate(
        mean=rounded(len(trace) / span),
        tokens=rounded(float(trace.input_length.sum()) / span),
        busiest=rounded(int(within.max()) / min(span, 60.0)),
        variation=rounded(float(gaps.std()) / mean) if mean else 0.0,
        edges=[rounded(edge) for edge in edges.tolist()],
        arrivals=[rounded(count * _INTERVALS / span) for count in counts.tolist()],
    )


def _blocks(trace: Trace) -> tuple[Blocks, Reuse | None]:
    first = trace.offsets[:-1]
    paths = np.stack((first, first + full_blocks(trace)), 1)
    places, request = on_paths(paths)
    distances = stack_distances(trace.ids, paths)[places]
    again = np.flatnonzero(distances != NEVER)
    tokens = int(trace.input_length.sum())
    distinct = len(places) - len(again)
    blocks = Blocks(
        uses=len(places),
        distinct=distinct,
        once=rounded(_once(trace.ids[places]) / max(distinct, 1)),
        infinite_hit_ratio=rounded(len(again) * trace.trace_block / tokens),
    )
    if not len(again):
        return blocks, None
    users, last = request[again], previous_users(trace.ids, paths)[places[again]]
    reuse = Reuse(
        blocks=_quantiles(distances[again]),
        seconds=_quantiles((trace.arrival[users] - trace.arrival[last]) / 1000),
        curve=_curve(np.sort(distances[again]), distinct, trace.trace_block / tokens),
    )
    return blocks, reuse


def _once(ids: NDArray[np.int64]) -> int:
    return int((np.unique(ids, return_counts=True)[1] == 1).sum())


def _curve(distances: NDArray[np.int64], distinct: int, share: float) -> Curve:
    """Returns the hits by size, from the distances in order; `share` is a block's of all tokens."""
    steps = int(np.ceil(np.log(max(distinct, 2)) / np.log(_STEP)))
    sizes = np.unique(np.rint(np.geomspace(1, distinct, steps + 1)).astype(np.int64))
    found = np.searchsorted(distances, sizes, side="right") * share
    return Curve(blocks=sizes.tolist(), hit_ratio=[rounded(hit) for hit in found.tolist()])


def _continued(trace: Trace) -> Continued | None:
    full = full_blocks(trace)
    first = trace.offsets[:-1]
    asked = np.flatnonzero(full)
    last = first[asked] + full[asked] - 1
    following = next_users(trace.ids, np.stack((first, first + full), 1))[last]
    again = following < len(trace)
    if not again.any():
        return None
    pauses = trace.arrival[following[again]] - trace.arrival[asked[again]]
    return Continued(
        share=rounded(float(again.sum()) / len(trace)), pause=_quantiles(pauses / 1000)
    )


def _sessions(trace: Trace) -> Sessions | None:
    of = np.flatnonzero(trace.session >= 0)
    if not len(of):
        return None
    order = of[np.argsort(trace.session[of], kind="stable")]
    same = np.diff(trace.session[order]) == 0
    pauses = np.diff(trace.arrival[order])[same] / 1000
    return Sessions(
        count=len(trace.sessions),
        requests=len(of),
        turns=_quantiles(np.bincount(trace.session[of])),
        pause=_quantiles(pauses) if len(pauses) else None,
    )


def _quantiles(values: NDArray[np.int64] | NDArray[np.float64]) -> Quantiles:
    grid = np.quantile(values, np.linspace(0, 1, 101), method="inverted_cdf").tolist()
    return Quantiles(
        mean=rounded(float(values.mean())),
        p10=rounded(grid[10]),
        p50=rounded(grid[50]),
        p90=rounded(grid[90]),
        p99=rounded(grid[99]),
        max=rounded(grid[100]),
        quantiles=[rounded(value) for value in grid],
    )
