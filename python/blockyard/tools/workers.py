"""Jobs in processes side by side: progress to the parent, Ctrl-C to the children, no hang."""

import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from blockyard._core import Unavailable
from blockyard.shared.processes import ignore_sigint

if TYPE_CHECKING:
    from ctypes import c_byte

__all__ = ["Done", "Watch", "cores", "side_by_side"]

_Shared = TypeVar("_Shared")
_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")

_LOOK: Final = 0.05
"""Seconds after which the parent looks at what jobs have told, and whether Ctrl-C was pressed."""

_Work = Callable[[_Shared, _Argument, Callable[[Any], None]], _Result]


@dataclass(frozen=True, slots=True)
class Done(Generic[_Result]):
    """What came of the jobs."""

    results: dict[int, _Result]
    """By the number of the job, in the order of the jobs. Without an interruption all are there."""
    interrupted: bool
    """Whether Ctrl-C ended it early. A job that it met has a result if it returned one."""


class Watch(Generic[_Result]):
    """Gets progress in the caller's thread; this one ignores it."""

    def began(self, job: int) -> None:
        """A job begins."""

    def on_progress(self, job: int, progress: Any) -> None:  # noqa: ANN401 - whatever the job reports
        """A job has reported."""

    def ended(self, job: int, result: _Result) -> None:
        """A job has returned."""


def cores() -> int:
    """Returns how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def side_by_side(  # noqa: PLR0913 - keywords
    work: Callable[[_Shared, _Argument, Callable[[Any], None]], _Result],
    shared: _Shared,
    arguments: Sequence[_Argument],
    *,
    names: Sequence[str] | None = None,
    processes: int | None = None,
    watch: Watch[_Result] | None = None,
) -> Done[_Result]:
    """Calls `work(shared, argument, tell)` for each argument; results keep their order.

    Each process is spawned, gets `shared` once, and takes one job after another. With one job or
    one process all of it happens in this process. `tell` takes any picklable object to the watch.

    On Ctrl-C each job that runs is interrupted by a KeyboardInterrupt, in another process when it
    tells next, and may return what it has; no other job begins. A second Ctrl-C ends all of them at
    once.

    Args:
        work: A function of a module, so that it can be pickled by its name.
        shared: What all jobs read, such as a trace.
        arguments: One for each job.
        names: What an error calls each job; by default its number.
        processes: The most that run at once; None for as many as there are cores.
        watch: Is told what happens.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed twice.
        Unavailable: A process died.
        Exception: What a job has raised, as it is. The other jobs are ended.
    """
    calls = names or [f"job {job}" for job in range(len(arguments))]
    jobs = _Jobs(work, shared, list(arguments), calls, watch or Watch())
    most = min(len(arguments), cores() if processes is None else processes)
    return jobs.here() if most <= 1 else jobs.beside(most)


@contextmanager
def _counted(first: Callable[[], None]) -> Iterator[None]:
    """Counts Ctrl-C: the first one calls a function, and others raise KeyboardInterrupt.

    Only the main thread may change what a signal does, and a program that ignores Ctrl-C, as one
    in a shell's background, goes on doing so.
    """
    presses = 0

    def pressed(_number: int, _frame: FrameType | None) -> None:
        nonlocal presses
        presses += 1
        if presses > 1:
            raise KeyboardInterrupt
        first()

    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    if not main or before in {signal.SIG_IGN, None}:
        yield
        return
    signal.signal(signal.SIGINT, pressed)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@dataclass(slots=True, eq=False)
class _Jobs(Generic[_Shared, _Argument, _Result]):
    """The jobs, and what came of them so far."""

    work: _Work[_Shared, _Argument, _Result]
    shared: _Shared
    arguments: list[_Argument]
    names: Sequence[str]
    watch: Watch[_Result]
    results: dict[int, _Result] = field(default_factory=dict)
    owners: dict[int, int] = field(default_factory=dict)
    """The processes of those that run."""
    interrupted: bool = False

    def here(self) -> Done[_Result]:
        """Runs them one after another in this process."""
        with _counted(self._interrupt):
            try:
                for job, argument in enumerate(self.arguments):
                    if self.interrupted:
                        break
                    self.watch.began(job)
                    self._returned(job, self.work(self.shared, argument, self._telling(job)))
            except KeyboardInterrupt:
                self.interrupted = True
        return self._done()

    def beside(self, most: int) -> Done[_Result]:
        """Runs them in processes of their own."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)
        stop = context.RawValue("b", 0)
        before = multiprocessing.active_children()
        workers: list[BaseProcess] = []
        with tempfile.NamedTemporaryFile() as file, _counted(partial(setattr, stop, "value", 1)):
            # Pickled once, and not sent at the start, for all start at once.
            pickle.dump(self.shared, file, pickle.HIGHEST_PROTOCOL)
            file.flush()
            begin = (theirs, context.Lock(), stop, file.name)
            pool = ProcessPoolExecutor(most, context, _begin, begin)
            try:
                with ignore_sigint():
                    jobs = {
                        pool.submit(_run, self.work, job, argument): job
                        for job, argument in enumerate(self.arguments)
                    }
                workers += (one for one in multiprocessing.active_children() if one not in before)
                theirs.close()
                self._attend(jobs, ours, stop)
            except BrokenProcessPool:
                # It ends the other processes.
                pool.shutdown()
                raise self._died(workers) from None
            except BaseException:
                for worker in workers:
                    worker.kill()
                raise
            finally:
                pool.shutdown(cancel_futures=True)
                ours.close()
        self.interrupted = bool(stop.value)
        return self._done()

    def _attend(
        self, jobs: "dict[Future[list[_Result]], int]", pipe: Connection, stop: "c_byte"
    ) -> None:
        """Receives the results of the jobs."""
        left = set(jobs)
        while left:
            done, left = futures.wait(left, _LOOK, futures.FIRST_COMPLETED)
            with suppress(EOFError):  # of a message that is torn, as its process was killed
                while pipe.poll():
                    kind, job, what = pipe.recv()
                    if kind == "began":
                        self.owners[job] = what
                        self.watch.began(job)
                    else:
                        self.watch.on_progress(job, what)
            for future in done - {one for one in done if one.cancelled()}:
                # What died after Ctrl-C has no result.
                with suppress(BrokenProcessPool) if stop.value else nullcontext():
                    for result in future.result():
                        self._returned(jobs[future], result)
                self.owners.pop(jobs[future], None)
            for future in left if stop.value else ():
                future.cancel()

    def _died(self, workers: list[BaseProcess]) -> Unavailable:
        ends = {worker.pid: worker.exitcode for worker in workers if worker.exitcode}
        # The pool ends the other ones with SIGTERM.
        dead = min(ends, key=lambda pid: ends[pid] == -signal.SIGTERM, default=None)
        job = next((job for job, owner in self.owners.items() if owner == dead), 0)
        return Unavailable(
            f"{self.names[job]}: its process died with {_cause(ends.get(dead))}; "
            "run fewer at once, or read the system's log"
        )

    def _interrupt(self) -> None:
        self.interrupted = True
        raise KeyboardInterrupt

    def _returned(self, job: int, result: _Result) -> None:
        self.results[job] = result
        self.watch.ended(job, result)

    def _telling(self, job: int) -> Callable[[Any], None]:
        return lambda progress: self.watch.on_progress(job, progress)

    def _done(self) -> Done[_Result]:
        return Done(dict(sorted(self.results.items())), interrupted=self.interrupted)


def _cause(code: int | None) -> str:
    if code is not None and code < 0:
        return f"signal {-code}" + (", as for want of memory" if code == -signal.SIGKILL else "")
    return f"exit status {code}"


@dataclass(slots=True, eq=False)
class _Side:
    """A process of the pool: its way to the parent, and what all jobs read."""

    pipe: Connection
    lock: AbstractContextManager[Any]
    stop: "c_byte"
    path: str
    interrupted: bool = False

    def send(self, kind: str, job: int, what: Any) -> None:  # noqa: ANN401 - as it is told
        with self.lock:
            self.pipe.send((kind, job, what))

    def tell(self, job: int, progress: Any) -> None:  # noqa: ANN401
        """Reports of a job; the first time after Ctrl-C it interrupts it instead."""
        if self.stop.value and not self.interrupted:
            self.interrupted = True
            raise KeyboardInterrupt
        self.send("told", job, progress)


_side: _Side


def _begin(*what: Any) -> None:  # noqa: ANN401 - as _Side has it
    """Begins a process of the pool, which ends with its parent."""
    global _side  # noqa: PLW0603 - what a pool's initializer is for
    _side = _Side(*what)
    threading.Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@cache
def _shared(path: str) -> Any:  # noqa: ANN401 - whatever all jobs read
    return pickle.loads(Path(path).read_bytes())  # noqa: S301 - what the parent has written


def _run(work: _Work[Any, Any, Any], job: int, argument: Any) -> list[Any]:  # noqa: ANN401
    """Returns what a job returns; nothing where Ctrl-C came before."""
    if _side.stop.value:
        return []
    try:
        _side.send("began", job, os.getpid())
        return [work(_shared(_side.path), argument, partial(_side.tell, job))]
    except KeyboardInterrupt:
        return []
    except Exception as error:  # noqa: BLE001 - as itself, where that can be pickled
        raise _portable(error) from None


def _portable(error: Exception) -> Exception:
    """Returns the error, or if it cannot be pickled as itself what it says."""
    with suppress(Exception):
        if type(pickle.loads(pickle.dumps(error))) is type(error):  # noqa: S301 - just made
            return error
    return Unavailable(f"{type(error).__name__}: {error}")
