"""Engines side by side as one run: sums, spreads over the values of all, and each one's share."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
import numpy as np
from msgspec import Struct

from blockyard.tools.replay.counters import bookkeeping
from blockyard.tools.replay.load import summed
from blockyard.tools.replay.result import (
    DiskReport,
    Moved,
    Preempted,
    PromisedBlocks,
    Replica,
    Run,
    StoreReport,
    TicketCounts,
    Verified,
    Waits,
)
from blockyard.tools.replay.samples import Played, Samples
from blockyard.tools.replay.timeline import merged, spread

__all__ = ["together"]

_Part = TypeVar("_Part")
_Sum = TypeVar("_Sum", bound=Struct)


def together(parts: Sequence[Played]) -> Run:
    """Returns the run of all replicas, which had the same spec; a single one as it is."""
    runs = [part.run for part in parts]
    if len(runs) == 1:
        return runs[0]
    whole = _counted(runs)
    samples = [part.samples for part in parts if part.samples is not None]
    return _timed(whole, runs, Samples.together(samples)) if samples else whole


def _counted(runs: Sequence[Run]) -> Run:
    """Returns what either model has; the rest is the first one's."""
    tokens = [run.input_tokens for run in runs]
    disks = _there(runs, lambda run: run.disk)
    stores = _there(runs, lambda run: run.remote)
    return msgspec.structs.replace(
        runs[0],
        requests=sum(run.requests for run in runs),
        refused=sum(run.refused for run in runs),
        complete=all(run.complete for run in runs),
        input_tokens=sum(tokens),
        output_tokens=sum(run.output_tokens for run in runs),
        hit_ratio=_weighed([run.hit_ratio for run in runs], tokens),
        hit_ratio_by_tier={
            tier: _weighed([run.hit_ratio_by_tier[tier] for run in runs], tokens)
            for tier in runs[0].hit_ratio_by_tier
        },
        skipped_slow=sum(run.skipped_slow for run in runs),
        engine_seconds=max(run.engine_seconds for run in runs),
        wall_seconds=sum(run.wall_seconds for run in runs),
        replicas=[_replica(run) for run in runs],
        moved=_summed([run.moved for run in runs], Moved),
        peak={what: max(run.peak[what] for run in runs) for what in runs[0].peak},
        disk=_summed(
            disks,
            DiskReport,
            hit_ratio=_weighed([disk.hit_ratio for disk in disks], tokens),
            peak=max(disk.peak for disk in disks),
        )
        if disks
        else None,
        remote=_summed(
            stores,
            StoreReport,
            hit_ratio=_weighed([store.hit_ratio for store in stores], tokens),
            peak=max(store.peak for store in stores),
        )
        if stores
        else None,
        audit=next((run.audit for run in runs if run.audit not in {"ok", "none"}), runs[0].audit),
    )


def _timed(whole: Run, runs: Sequence[Run], samples: Samples) -> Run:
    """Returns the whole with what needs a model of time."""
    preempted = _there(runs, lambda run: run.preempted)
    verified = _there(runs, lambda run: run.verified)
    return msgspec.structs.replace(
        whole,
        tokens_per_second=whole.output_tokens / max(whole.engine_seconds, 1e-9),
        load=summed(_there(runs, lambda run: run.load)),
        ttft_ms=spread(samples.ttft),
        itl_ms=spread(samples.gaps, samples.gap_counts),
        waits=_summed(_there(runs, lambda run: run.waits), Waits, queue_ms=spread(samples.queue)),
        preempted=_summed(
            preempted,
            Preempted,
            share=sum(each.recomputed for each in preempted) / max(samples.computed, 1),
            away_ms=spread(samples.away),
        ),
        reservations=_promised(_there(runs, lambda run: run.reservations)),
        pinned=_mean(_there(runs, lambda run: run.pinned)),
        bookkeeping=bookkeeping(samples, sum(run.engine_seconds for run in runs)),
        verified=_summed(verified, Verified, block_bytes=verified[0].block_bytes)
        if verified
        else None,
        series=merged(_there(runs, lambda run: run.series)),
    )


def _promised(parts: Sequence[PromisedBlocks]) -> PromisedBlocks:
    tickets = _there(parts, lambda part: part.tickets)
    return PromisedBlocks(
        headroom=_mean([part.headroom for part in parts]),
        headroom_peak=max(part.headroom_peak for part in parts),
        promised=_mean([part.promised for part in parts]),
        promised_peak=max(part.promised_peak for part in parts),
        tickets=_summed(tickets, TicketCounts) if tickets else None,
    )


def _replica(run: Run) -> Replica:
    return Replica(
        requests=run.requests,
        input_tokens=run.input_tokens,
        output_tokens=run.output_tokens,
        hit_ratio=run.hit_ratio,
        engine_seconds=run.engine_seconds,
        overloaded=None if run.load is None else run.load.overloaded,
    )


def _summed(parts: Sequence[_Sum], kind: type[_Sum], **others: object) -> _Sum:
    """Returns the sum of each field but the others, whose values are given."""
    names = [field.name for field in msgspec.structs.fields(kind) if field.name not in others]
    return kind(**{name: sum(getattr(part, name) for part in parts) for name in names}, **others)


def _there(runs: Sequence[_Sum], of: Callable[[_Sum], _Part | None]) -> list[_Part]:
    return [part for part in map(of, runs) if part is not None]


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _weighed(values: Sequence[float], weights: Sequence[int]) -> float:
    return float(np.average(values, weights=weights)) if sum(weights) else 0.0
