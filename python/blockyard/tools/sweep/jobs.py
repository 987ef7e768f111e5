"""What a sweep simulates, each job in whatever process has time for it."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from blockyard.tools.endings import Broken
from blockyard.tools.replay.play import play
from blockyard.tools.replay.result import Run
from blockyard.tools.replay.sequential import sequential
from blockyard.tools.replay.spec import Eviction, Progress, RunSpec
from blockyard.tools.sweep.sizes import Split
from blockyard.tools.traces.trace import Trace

__all__ = ["Engine", "Job", "Shared", "Simulate", "Simulated", "head", "run"]


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """What all jobs read."""

    trace: Trace
    """What the orders are simulated on, which may be a sample."""
    head: Trace | None
    """What the virtual engine serves; None where it is not asked for."""


@dataclass(frozen=True, slots=True)
class Simulate:
    """One order at one size, one request after another, blocks going down as they are evicted."""

    order: Eviction
    split: Split
    """The blocks to simulate, which stand for those of a whole trace."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """What was found and copied, in blocks."""

    hits: tuple[int, int, int]
    """By tier: device, host, disk."""
    down: int
    up: int


@dataclass(frozen=True, slots=True)
class Engine:
    """A virtual engine with a size."""

    spec: RunSpec


Job = Simulate | Engine


def run(shared: Shared, job: Job, tell: Callable[[float], None]) -> Simulated | Run | None:
    """Does one job; it tells the share that is done.

    Returns:
        What the job gives; None after Ctrl-C, where half of it would mislead.

    Raises:
        Broken: The bookkeeping broke a law.
        BlockyardError: The configuration is impossible here.
    """
    if isinstance(job, Engine):
        return _served(shared, job, tell)
    requests = len(shared.trace)
    got = sequential(
        shared.trace,
        device_blocks=job.split.device,
        host_blocks=job.split.host,
        disk_blocks=job.split.disk,
        policy=job.order,
        progress=lambda served: tell(served / requests) if served % 1000 == 0 else None,
    )
    if got.interrupted:
        return None
    if got.audit != "ok":
        raise Broken(f"order {job.order} with {job.split}: {got.audit}")
    device, host, disk = got.hits.sum(0).tolist()
    return Simulated(
        (device, host, disk), got.blocks_down + got.disk_down, got.blocks_up + got.disk_up
    )


def _served(shared: Shared, job: Engine, tell: Callable[[float], None]) -> Run | None:
    assert shared.head is not None  # noqa: S101 - it comes with the job

    def told(progress: Progress) -> None:
        tell(progress.requests_done / progress.requests)

    run = play(job.spec, shared.head, told)
    return run if run.complete else None


def head(trace: Trace, requests: int) -> Trace:
    """Returns the first requests of a trace."""
    end = int(trace.offsets[min(requests, len(trace))])
    return replace(
        trace,
        arrival=trace.arrival[:requests].copy(),
        input_length=trace.input_length[:requests].copy(),
        output_length=trace.output_length[:requests].copy(),
        ids=trace.ids[:end].copy(),
        offsets=np.array(trace.offsets[: requests + 1]),
        session=trace.session[:requests].copy(),
    )
