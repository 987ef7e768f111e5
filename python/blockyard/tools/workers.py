"""Jobs in processes side by side: progress to the parent, Ctrl-C to the children, no hang."""

import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import FrameType
from typing import Any, Final, Generic, TypeVar

from blockyard._core import Unavailable
from blockyard.shared.processes import ignore_sigint

__all__ = ["Done", "Watch", "cores", "side_by_side"]

_Shared = TypeVar("_Shared")
_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")

_LOOK: Final = 0.1
"""Seconds after which the parent looks whether Ctrl-C was pressed."""
_PATIENCE: Final = 5.0
"""Seconds that an idle process has to end by itself."""

_Work = Callable[[_Shared, _Argument, Callable[[Any], None]], _Result]


@dataclass(frozen=True, slots=True)
class Done(Generic[_Result]):
    """What came of the jobs."""

    results: dict[int, _Result]
    """By the number of the job, in the order of the jobs. Without an interruption all are there."""
    interrupted: bool
    """Whether Ctrl-C ended it early. A job that it met has a result if it returned one."""


class Watch(Generic[_Result]):
    """Is told what happens, in the thread of the caller; this one does nothing with it."""

    def began(self, job: int) -> None:
        """A job begins."""

    def told(self, job: int, progress: Any) -> None:  # noqa: ANN401 - whatever the job reports
        """A job has reported."""

    def ended(self, job: int, result: _Result) -> None:
        """A job has returned."""


def cores() -> int:
    """Returns how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def side_by_side(
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

    On Ctrl-C each job that runs is interrupted by a KeyboardInterrupt and may return what it has;
    no other job begins. A second Ctrl-C ends all of them at once.

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


@dataclass(slots=True, eq=False)
class _Presses:
    """How often Ctrl-C was pressed."""

    count: int = 0


@contextmanager
def _counted(first: Callable[[], None]) -> Iterator[_Presses]:
    """Counts Ctrl-C: the first one calls a function, and others raise KeyboardInterrupt.

    Only the main thread may change what a signal does, and a program that ignores Ctrl-C, as one
    in a shell's background, goes on doing so.
    """
    presses = _Presses()

    def pressed(_number: int, _frame: FrameType | None) -> None:
        presses.count += 1
        if presses.count > 1:
            raise KeyboardInterrupt
        first()

    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    if not main or before in {signal.SIG_IGN, None}:
        yield presses
        return
    signal.signal(signal.SIGINT, pressed)
    try:
        yield presses
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupt() -> None:
    raise KeyboardInterrupt


def _count_only() -> None:
    """Interrupts nothing: what is read from a pipe would be torn."""


@dataclass(slots=True, eq=False)
class _Worker:
    """A process, its pipe, and the job that it has."""

    process: SpawnProcess
    pipe: Connection
    job: int | None = None


@dataclass(slots=True, eq=False)
class _Jobs(Generic[_Shared, _Argument, _Result]):
    """The jobs, and what came of them so far."""

    work: _Work[_Shared, _Argument, _Result]
    shared: _Shared
    arguments: list[_Argument]
    names: Sequence[str]
    watch: Watch[_Result]
    results: dict[int, _Result] = field(default_factory=dict)
    next: int = 0
    """The first job that has not begun."""

    def here(self) -> Done[_Result]:
        """Runs them one after another in this process."""
        stopped = False
        with _counted(_interrupt) as presses:
            try:
                for job, argument in enumerate(self.arguments):
                    if presses.count:
                        break
                    self.watch.began(job)
                    result = self.work(self.shared, argument, self._telling(job))
                    self.results[job] = result
                    self.watch.ended(job, result)
            except KeyboardInterrupt:
                stopped = True
        return self._done(stopped=stopped or bool(presses.count))

    def beside(self, most: int) -> Done[_Result]:
        """Runs them in processes of their own."""
        workers: list[_Worker] = []
        try:
            with _counted(_count_only) as presses:
                workers += (self._started() for _ in range(most))
                self._share(workers)
                return self._attend(workers, presses)
        except BaseException:
            for worker in workers:
                worker.process.kill()
            raise
        finally:
            for worker in workers:
                _end(worker)

    def _share(self, workers: list[_Worker]) -> None:
        """Sends what all read: pickled once, and not at the start, for all start at once."""
        pickled = pickle.dumps(self.shared, pickle.HIGHEST_PROTOCOL)
        for worker in workers:
            # A process that is gone is noticed when its answer is awaited.
            with suppress(OSError):
                worker.pipe.send_bytes(pickled)

    def _attend(self, workers: list[_Worker], presses: _Presses) -> Done[_Result]:
        """Gives out the jobs, and hears what comes of them."""
        warned = False
        while True:
            if presses.count and not warned:
                warned = True
                _warn(workers)
            if not warned:
                self._give(workers)
            busy = [worker for worker in workers if worker.job is not None]
            if not busy:
                return self._done(stopped=warned)
            ready = wait([worker.pipe for worker in busy], timeout=_LOOK)
            for worker in busy:
                if worker.pipe in ready:
                    self._hear(worker, warned=warned)

    def _started(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        # Not daemons: a job may have processes of its own.
        process = context.Process(target=_serve, args=(there, self.work))
        with ignore_sigint():
            process.start()
        there.close()
        return _Worker(process, here)

    def _give(self, workers: list[_Worker]) -> None:
        for worker in workers:
            if worker.job is not None or self.next == len(self.arguments):
                continue
            worker.job, self.next = self.next, self.next + 1
            self.watch.began(worker.job)
            with suppress(OSError):  # likewise
                worker.pipe.send(self.arguments[worker.job])

    def _hear(self, worker: _Worker, *, warned: bool) -> None:
        job = worker.job
        assert job is not None  # noqa: S101 - only the busy ones are heard
        try:
            kind, what = worker.pipe.recv()
        except (EOFError, OSError):
            if not warned:
                worker.process.join(_PATIENCE)
                raise Unavailable(
                    f"{self.names[job]}: its process died with {_cause(worker.process.exitcode)}; "
                    "run fewer at once, or see what the system says of it"
                ) from None
            # It had not begun when it was interrupted.
            worker.job = None
            return
        if kind == "told":
            self.watch.told(job, what)
            return
        worker.job = None
        if kind == "raised":
            raise what
        if kind == "returned":
            self.results[job] = what
            self.watch.ended(job, what)

    def _telling(self, job: int) -> Callable[[Any], None]:
        return lambda progress: self.watch.told(job, progress)

    def _done(self, *, stopped: bool) -> Done[_Result]:
        return Done(dict(sorted(self.results.items())), interrupted=stopped)


def _warn(workers: list[_Worker]) -> None:
    """Interrupts what runs. A terminal's own Ctrl-C does not reach these processes."""
    for worker in workers:
        if worker.job is not None:
            # `terminate` sends SIGTERM, which `_Stop` makes a KeyboardInterrupt.
            worker.process.terminate()


def _end(worker: _Worker) -> None:
    worker.pipe.close()
    worker.process.join(_PATIENCE)
    if worker.process.is_alive():
        worker.process.kill()
        worker.process.join()
    worker.process.close()


def _cause(code: int | None) -> str:
    if code is not None and code < 0:
        return f"signal {-code}" + (", as for want of memory" if code == -signal.SIGKILL else "")
    return f"exit status {code}"


class _Stop:
    """Makes the first SIGTERM a KeyboardInterrupt, but never in the middle of a message."""

    def __init__(self) -> None:
        self.stopped = False
        self._held = False
        signal.signal(signal.SIGTERM, self._come)

    def _come(self, _number: int, _frame: FrameType | None) -> None:
        if not self.stopped:
            self.stopped = True
            if not self._held:
                raise KeyboardInterrupt

    def send(self, pipe: Connection, kind: str, what: Any) -> None:  # noqa: ANN401 - as it is told
        """Sends a message whole."""
        before = self.stopped
        self._held = True
        try:
            pipe.send((kind, what))
        finally:
            self._held = False
        if self.stopped and not before:
            raise KeyboardInterrupt


def _serve(pipe: Connection, work: _Work[Any, Any, Any]) -> None:
    """Runs a process: first comes what all jobs read, then jobs until the pipe closes."""
    stop = _Stop()
    try:
        shared = pipe.recv()
        while not stop.stopped:
            argument = pipe.recv()
            kind, what = "nothing", None
            try:
                what = work(shared, argument, lambda told: stop.send(pipe, "told", told))
                kind = "returned"
            except KeyboardInterrupt:
                pass
            except BrokenPipeError:
                return  # the parent is gone
            except Exception as error:  # noqa: BLE001 - raised again in the parent
                kind, what = "raised", _portable(error)
            stop.send(pipe, kind, what)
    except (EOFError, OSError, KeyboardInterrupt):
        return


def _portable(error: Exception) -> Exception:
    """Returns the error, or if it cannot be pickled what it says; its place stands in a note."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        return _same(pickle.loads(pickle.dumps(error)), error)  # noqa: S301 - what was just made
    except Exception as fault:  # noqa: BLE001 - any error of an error's own pickling
        return Unavailable(f"{type(error).__name__}: {error} ({fault})")


def _same(copy: Any, error: Exception) -> Exception:  # noqa: ANN401 - whatever pickle gave
    if type(copy) is not type(error):
        raise TypeError("it is not pickled as itself")
    return error
