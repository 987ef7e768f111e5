"""One run, in virtual time or one request after another."""

import time
from collections.abc import Callable

from blockyard.tools.replay.result import DiskReport, Moved, Run
from blockyard.tools.replay.run import played as virtual
from blockyard.tools.replay.samples import Played
from blockyard.tools.replay.sequential import Sequential, sequential
from blockyard.tools.replay.spec import Progress, RunSpec
from blockyard.tools.traces.trace import Trace

__all__ = ["play", "played"]


def play(spec: RunSpec, trace: Trace, progress: Callable[[Progress], None]) -> Run:
    """Replays a trace under one combination of policies; see `played`."""
    return played(spec, trace, progress).run


def played(spec: RunSpec, trace: Trace, progress: Callable[[Progress], None]) -> Played:
    """Replays a trace under one combination of policies; see `run` and `sequential`.

    Ctrl-C ends it early: it returns the figures so far, with `complete` false.

    Raises:
        BlockyardError: The configuration is impossible here.
    """
    if spec.model == "virtual":
        return virtual(spec, trace, progress)
    return Played(_sequential(spec, trace, progress), None)


def _sequential(spec: RunSpec, trace: Trace, progress: Callable[[Progress], None]) -> Run:
    start = time.perf_counter()

    def served(requests: int) -> None:
        arrival = float(trace.arrival[requests - 1] - trace.arrival[0]) / 1e3
        progress(Progress(requests, len(trace), arrival, None, 0, 0, 0, 0))

    got = sequential(
        trace,
        device_blocks=spec.device_blocks,
        host_blocks=spec.host_blocks,
        disk_blocks=spec.disk_blocks,
        policy=spec.policy,
        write=spec.write_policy,
        host_copies=spec.host_copies,
        hints=spec.hints,
        seed=spec.seed,
        owner=spec.owner,
        progress=served,
    )
    return Run(
        model="sequential",
        policy=spec.policy,
        write_policy=spec.write_policy,
        host_copies=spec.host_copies,
        hints=None if spec.hints is None else str(spec.hints),
        owner=spec.owner,
        role=None,
        headroom=None,
        victims=None,
        preempt_mode=None,
        device_blocks=spec.device_blocks,
        host_blocks=spec.host_blocks,
        disk_blocks=spec.disk_blocks,
        block_bytes=spec.block_bytes,
        requests=got.requests,
        refused=0,
        complete=not got.interrupted,
        input_tokens=got.tokens,
        output_tokens=0,
        hit_ratio=got.hit_ratio,
        hit_ratio_by_tier=got.hit_ratio_by_tier,
        skipped_slow=0,
        engine_seconds=0.0,
        wall_seconds=time.perf_counter() - start,
        tokens_per_second=0.0,
        load=None,
        replicas=[],
        ttft_ms=None,
        itl_ms=None,
        waits=None,
        preempted=None,
        reservations=None,
        moved=Moved(
            blocks_down=got.blocks_down,
            blocks_up=got.blocks_up,
            blocks_across=0,
            bytes_down=got.blocks_down * spec.block_bytes,
            bytes_up=got.blocks_up * spec.block_bytes,
            failed_blocks=0,
        ),
        pinned=None,
        peak={},
        disk=_disk(spec, got) if spec.disk_blocks else None,
        bookkeeping=None,
        verified=None,
        audit=got.audit,
        series=None,
    )


def _disk(spec: RunSpec, got: Sequential) -> DiskReport:
    return DiskReport(
        hit_ratio=got.disk_hit_ratio,
        blocks_down=got.disk_down,
        blocks_up=got.disk_up,
        bytes_down=got.disk_down * spec.block_bytes,
        bytes_up=got.disk_up * spec.block_bytes,
        peak=0,
    )
