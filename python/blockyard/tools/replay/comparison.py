"""The runs of a comparison, and the replicas of each: side by side on all cores."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import msgspec

from blockyard.tools.replay.merge import together
from blockyard.tools.replay.play import play, played
from blockyard.tools.replay.result import Run
from blockyard.tools.replay.samples import Played
from blockyard.tools.replay.sizes import fit_at_once
from blockyard.tools.replay.spec import Progress, RunSpec
from blockyard.tools.traces.trace import Trace
from blockyard.tools.workers import Watch, cores, side_by_side

__all__ = ["Job", "compare", "jobs_of"]

_SMALL: Final = 1000
"""Requests that are replayed while a process starts, and sees to its imports."""
_SWIFT: Final = 20
"""How many times as fast a request is without a model of time."""


class Job(NamedTuple):
    """A run of one engine."""

    spec: RunSpec
    replica: int
    """Which of the traces it replays."""


def jobs_of(specs: Sequence[RunSpec], parts: Sequence[Trace]) -> list[Job]:
    """Returns the jobs of a comparison: the replicas of the first spec, then those of the next."""
    if len(parts) > 1:
        origin = min(int(part.arrival[0]) for part in parts if len(part))
        specs = [replace(spec, origin_ms=origin) for spec in specs]
    return [Job(spec, replica) for spec in specs for replica in range(len(parts))]


def compare(
    jobs: Sequence[Job],
    parts: Sequence[Trace],
    watch: Watch[Played],
    *,
    names: Sequence[str],
    processes: int | None = None,
) -> list[Run]:
    """Returns a run for each spec, in their order; after Ctrl-C those that have begun.

    Args:
        jobs: What `jobs_of` returns.
        parts: The requests of each replica.
        watch: Is told of each job.
        names: What an error calls each job.
        processes: The most runs at once; None for what suits this machine and what is to be run.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed twice.
        BlockyardError: A configuration is impossible here, or a process died.
    """
    most = _suitable(jobs, parts) if processes is None else processes
    done = side_by_side(_work, list(parts), jobs, names=names, processes=most, watch=watch)
    runs = []
    for first in range(0, len(jobs), len(parts)):
        there = [
            done.results[job] for job in range(first, first + len(parts)) if job in done.results
        ]
        if there:
            run = together(there)
            complete = run.complete and len(there) == len(parts)
            runs.append(msgspec.structs.replace(run, complete=complete))
    return runs


def _suitable(jobs: Sequence[Job], parts: Sequence[Trace]) -> int:
    """Returns how many runs at once are worth it."""
    spec = jobs[0].spec
    if spec.verify not in {None, "memory"}:
        return 1  # they would share one GPU's memory
    requests = sum(len(parts[job.replica]) for job in jobs)
    if requests < _SMALL * (1 if spec.model == "virtual" else _SWIFT):
        return 1
    # With --verify and more ranks than one each run has a process for each rank.
    each = 1 + spec.ranks if spec.verify and spec.ranks > 1 else 1
    return max(1, min(cores() // each, fit_at_once(spec)))


def _work(parts: Sequence[Trace], job: Job, tell: Callable[[Progress], None]) -> Played:
    """Runs one job, in whichever process."""
    if len(parts) == 1:
        # Its values would only be merged with those of others.
        return Played(play(job.spec, parts[0], tell), None)
    return played(job.spec, parts[job.replica], tell)
