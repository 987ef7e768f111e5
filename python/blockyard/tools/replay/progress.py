"""What is shown during the runs: a bar for each on a terminal, and lines now and then elsewhere."""

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bar
from rich.table import Column
from rich.text import Text

from blockyard._typing import override
from blockyard.tools.replay.comparison import Job
from blockyard.tools.replay.labels import labels
from blockyard.tools.replay.samples import Played
from blockyard.tools.replay.spec import Progress
from blockyard.tools.traces.trace import Trace
from blockyard.tools.units import duration
from blockyard.tools.workers import Watch

__all__ = ["ReplayDisplay", "names"]

_EVERY: Final = 10.0
"""The most seconds between two lines."""
_SOONEST: Final = 1.0
"""The least seconds between two lines; from then on each tenth of the work has one."""
_TELLING: Final = 2.0
"""Seconds before which, and the share of the work before which, nothing is estimated."""
_SHARE: Final = 0.01


def names(jobs: Sequence[Job], replicas: int) -> list[str]:
    """Returns what each job is called: what varies between the runs, and its replica."""
    each = labels([job.spec for job in jobs])
    if replicas == 1:
        return each
    return [
        f"{name}, replica {job.replica + 1} of {replicas}"
        for name, job in zip(each, jobs, strict=True)
    ]


class ReplayDisplay(Watch[Played]):
    """Shows live bars on a terminal; elsewhere lines at the start and end of each run, and between.

    Args:
        jobs: What is run.
        parts: The requests of each replica.
        called: The names of the jobs.
        console: Where it is shown; None for nowhere.
        clock: Seconds from any moment.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        parts: Sequence[Trace],
        called: Sequence[str],
        console: Console | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._jobs = jobs
        self._parts = parts
        self._names = called
        self._console = console
        self._clock = clock
        self._start = self._last = clock()
        self._tenth = 0
        self._all = sum(len(parts[job.replica]) for job in jobs)
        self._done = dict.fromkeys(range(len(jobs)), 0)
        self._tasks: dict[int, TaskID] = {}
        self._bar: Bar | None = None
        if console is not None and console.is_terminal:
            self._bar = Bar(
                TextColumn("{task.description}", table_column=Column(no_wrap=True)),
                BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=6)),
                TextColumn("{task.fields[state]}", table_column=Column(no_wrap=True)),
                console=console,
                expand=True,
            )

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    @override
    def began(self, job: int) -> None:
        """Begins a bar, or writes what is replayed."""
        spec, replica = self._jobs[job]
        requests = len(self._parts[replica])
        if self._bar is not None:
            self._tasks[job] = self._bar.add_task(self._names[job], total=requests, state="")
            return
        self._say(
            f"replaying {requests:,} requests of {self._parts[replica].name}: {self._names[job]}, "
            f"{spec.device_blocks:,} + {spec.host_blocks:,} blocks"
        )

    @override
    def on_progress(self, job: int, progress: Progress) -> None:
        """Moves the bar, or writes a line if it is time for one."""
        self._done[job] = progress.requests_done
        if self._bar is not None:
            state = self._state(job, progress)
            self._bar.update(self._tasks[job], completed=progress.requests_done, state=state)
            return
        done = sum(self._done.values())
        tenth = 10 * done // max(self._all, 1)
        since = self._clock() - self._last
        if done < self._all and (since >= _EVERY or (since >= _SOONEST and tenth > self._tenth)):
            self._last += since
            self._tenth = tenth
            left = self.left()
            self._say(
                f"{done:,} of {self._all:,} requests, {done / self._all:.0%}"
                + ("" if left is None else f", about {left} left")
            )

    @override
    def ended(self, job: int, result: Played) -> None:
        """Writes what came of it."""
        run = result.run
        self._done[job] = len(self._parts[self._jobs[job].replica])
        if self._bar is not None:
            return
        how = "done" if run.complete else "interrupted"
        name = f"{self._names[job]}: " if len(self._jobs) > 1 else ""
        self._say(
            f"{name}{how} in {duration(run.wall_seconds)}: {run.requests:,} requests, "
            f"{run.hit_ratio:.1%} of prompt tokens found, audit {run.audit}"
        )

    def left(self) -> str | None:
        """Returns about how long all runs still take, or None while that would be a guess."""
        spent = self._clock() - self._start
        share = sum(self._done.values()) / max(self._all, 1)
        if spent < _TELLING or share < _SHARE:
            return None
        seconds = max(1, round(spent * (1 - share) / share))
        return f"{seconds} s" if seconds < 60 else duration(seconds)  # noqa: PLR2004 - a minute

    def _say(self, text: str) -> None:
        if self._console is not None:
            self._console.print(Text(f"blockyard: {text}"), soft_wrap=True)

    def _state(self, job: int, progress: Progress) -> str:
        """Returns about 50 columns of text, so that 80 are enough for the whole line."""
        spec, _replica = self._jobs[job]
        parts = [f"{progress.requests_done:,}/{progress.requests:,}"]
        if progress.hit_ratio is not None:
            parts.append(f"hits {progress.hit_ratio:.0%}")
            parts.append(f"device {progress.device_used / spec.device_blocks:.0%}")
        left = self.left()
        if left is not None:
            parts.append(f"{left} left")
        return "  ".join(parts)
