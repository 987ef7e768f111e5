"""One side of the comparison: a process that makes rows and plays rounds, controlled by lines.

Asked `{"do": "make", "row": "admit", …}` and then `{"do": "round"}`, it answers with what the
round took. A round is `prepare`, the timed operations, and `restore`; only the middle is timed.
"""

import gc
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peers.work import Work

if TYPE_CHECKING:
    from typing_extensions import override
else:

    def override(function: Any) -> Any:
        """Stands in for `typing.override`, which Python 3.11 lacks."""
        return function


__all__ = ["Makers", "Operation", "Row", "answered", "override", "play", "serve"]

Operation = Callable[[], object]


class Row:
    """A row's work on one side."""

    #: What an operation is counted as: blocks, keys, …
    unit: float = 1
    #: Whether the operations of a round may be repeated.
    again = False

    def prepare(self) -> Sequence[Operation]:
        """Returns the operations of a round; this is not timed."""
        raise NotImplementedError

    def restore(self) -> None:
        """Restores the state after a round; this is not timed."""


class Control(Row):
    """Python that never leaves the interpreter: the most that a call keeps beside a busy thread."""

    again = True

    @override
    def prepare(self) -> Sequence[Operation]:
        return [partial(sum, range(100))] * 1000


#: Nanoseconds after which a round beside a busy thread ends.
MOST = 1e9

Makers = Mapping[str, Callable[[Work, dict[str, Any]], Row]]


def _alone(operations: Sequence[Operation]) -> dict[str, Any]:
    cpu, wall = time.thread_time_ns(), time.perf_counter_ns()
    for operation in operations:
        operation()
    return {"cpu": time.thread_time_ns() - cpu, "wall": time.perf_counter_ns() - wall}


def _each(operations: Sequence[Operation], clock: Callable[[], int]) -> dict[str, Any]:
    """Times every operation, for the tail rather than the median."""
    took = []
    for operation in operations:
        begun = clock()
        operation()
        took.append(clock() - begun)
    return {"each": took}


def _told(operations: Sequence[Operation]) -> dict[str, Any]:
    """Asks every operation for the nanoseconds that it has measured itself."""
    return {"each": [operation() for operation in operations]}


def _beside(operations: Sequence[Operation]) -> dict[str, Any]:
    """Runs beside one busy Python thread, for at most a second."""
    stop, runs = threading.Event(), threading.Event()

    def spin() -> None:
        runs.set()
        while not stop.is_set():
            sum(range(100))

    thread = threading.Thread(target=spin)
    thread.start()
    runs.wait()
    try:
        cpu, wall = time.thread_time_ns(), time.perf_counter_ns()
        done, now = 0, wall
        while done < len(operations) and now - wall < MOST:
            for operation in operations[done : done + 16]:
                operation()
            done = min(done + 16, len(operations))
            now = time.perf_counter_ns()
        return {"cpu": time.thread_time_ns() - cpu, "wall": now - wall, "operations": done}
    finally:
        stop.set()
        thread.join()


def _two(lists: Sequence[Sequence[Operation]]) -> dict[str, Any]:
    """Runs two threads on one cache, and reports what they raised."""
    gate = threading.Barrier(len(lists) + 1)
    errors: list[str] = []

    def run(operations: Sequence[Operation]) -> None:
        gate.wait()
        try:
            for operation in operations:
                operation()
        except Exception as error:  # noqa: BLE001 - it is the finding
            errors.append(repr(error))

    threads = [threading.Thread(target=run, args=(one,)) for one in lists]
    for thread in threads:
        thread.start()
    gate.wait()
    wall = time.perf_counter_ns()
    for thread in threads:
        thread.join()
    return {"cpu": 0, "wall": time.perf_counter_ns() - wall, "errors": errors}


WAYS: Mapping[str, Callable[[Sequence[Operation]], dict[str, Any]]] = {
    "alone": _alone,
    "long": _alone,
    "each": partial(_each, clock=time.thread_time_ns),
    "each-wall": partial(_each, clock=time.perf_counter_ns),
    "told": _told,
    "beside": _beside,
}
#: Least nanoseconds of warming up and of timing, and the most passes for each.
WARM, TIMED, PASSES = 5e6, 1e7, 8
#: Least nanoseconds where threads alternate: many of the interpreter's switch intervals.
LONG = 1e8


def play(row: Row, how: str) -> dict[str, Any]:
    """Plays a round: `alone` or `long`, `each` on one of two clocks, `told`, `beside` or `two`.

    `control` and `control-beside` play the control in the row's place.

    The same operations run untimed first, since another process has just used the caches.
    """
    if how.startswith("control"):
        row, how = Control(), "beside" if how.endswith("beside") else "long"
    spent = took = 0.0
    for _ in range(PASSES):
        operations = row.prepare()
        took = _alone(operations)["wall"]
        spent += took
        row.restore()
        if spent > WARM:
            break
    if how in {"long", "beside", "two"}:
        times = math.ceil(LONG / took) if row.again else 1
        lists = [list(row.prepare()) * times for _ in range(2 if how == "two" else 1)]
        said = _two(lists) if how == "two" else WAYS[how](lists[0])
        row.restore()
        return {"operations": sum(map(len, lists)), **said}
    total: dict[str, Any] = {"cpu": 0, "wall": 0, "each": [], "operations": 0}
    begun = time.perf_counter_ns()
    for _ in range(PASSES):
        operations = row.prepare()
        for what, value in WAYS[how](operations).items():
            total[what] += value
        total["operations"] += len(operations)
        row.restore()
        if max(total["wall"], sum(total["each"])) > TIMED:
            break
        if time.perf_counter_ns() - begun > 100 * TIMED:
            break
    return total


def resident() -> int:
    """Returns the resident bytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Side:
    """Answers the lines of the bench."""

    def __init__(self, makers: Makers, about: dict[str, Any], work: Work) -> None:
        self.makers, self.about, self.work = makers, about, work
        self.row: Row | None = None

    def make(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Makes a row, and freezes its objects for the garbage collector, as engines do."""
        self.row = None
        gc.unfreeze()
        gc.collect()
        self.work.at = self.work.runs = 0
        maker = self.makers.get(asked["row"])
        if maker is None:
            return {"lacks": asked["row"]}
        before = resident()
        self.row = maker(self.work, asked)
        gc.collect()
        after = resident()
        gc.freeze()
        return {"unit": self.row.unit, "grew": after - before}

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Returns the answer to one line."""
        if asked["do"] == "about":
            return self.about
        if asked["do"] == "make":
            return self.make(asked)
        if self.row is None:
            raise RuntimeError("there is no row")
        return play(self.row, asked["how"])


def serve(makers: Makers, about: dict[str, Any]) -> None:
    """Answers the lines of `bench.py`."""
    answered(Side(makers, about, Work(Path(sys.argv[1]))).answer)


def answered(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answers lines until the input ends; a peer's own output goes to stderr."""
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            said = answer(json.loads(line))
        except Exception as error:  # noqa: BLE001 - told, and the others go on
            said = {"error": repr(error)}
        print(json.dumps(said), file=lines, flush=True)
    # Some peers have threads that do not end.
    lines.flush()
    os._exit(0)
