"""Jobs side by side: their order, their errors, Ctrl-C, and processes that die."""

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard._typing import override
from blockyard.tools.workers import Watch, _portable, cores, side_by_side

Tell = Callable[[Any], None]


class Heard(Watch[Any]):
    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []

    @override
    def began(self, job: int) -> None:
        self.said.append(("began", job))

    @override
    def on_progress(self, job: int, progress: Any) -> None:
        self.said.append(("told", job, progress))

    @override
    def ended(self, job: int, result: Any) -> None:
        self.said.append(("ended", job, result))


def scaled(shared: "np.ndarray[Any, Any]", factor: int, tell: Tell) -> tuple[int, int]:
    tell(f"times {factor}")
    return int(shared.sum()) * factor, os.getpid()


def failing(_shared: object, job: int, _tell: Tell) -> int:
    if job == 1:
        raise by.Misuse("the second one = 2: give another")
    return job


class Odd(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def dying(_shared: object, job: int, _tell: Tell) -> int:
    if job == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return job


def long(_shared: object, job: int, tell: Tell) -> str:
    """Goes on until it is interrupted, and tells without a pause: no message may be torn."""
    try:
        while True:
            tell((job, "x" * 100_000))
    except KeyboardInterrupt:
        return f"part of {job}"


@pytest.mark.parametrize("processes", [1, 2])
def test_results_keep_the_order_of_the_jobs_and_progress_comes_to_the_parent(
    processes: int,
) -> None:
    watch, data = Heard(), np.arange(100)
    done = side_by_side(scaled, data, [3, 2, 1], processes=processes, watch=watch)
    assert [value for value, _ in done.results.values()] == [14850, 9900, 4950]
    assert list(done.results) == [0, 1, 2]
    assert not done.interrupted
    ran = {process for _, process in done.results.values()}
    assert len(ran) <= processes
    assert (os.getpid() in ran) == (processes == 1)
    for job, factor in enumerate((3, 2, 1)):
        of = [what for what in watch.said if what[1] == job]
        told = ("told", job, f"times {factor}")
        assert of == [("began", job), told, ("ended", job, done.results[job])]


def test_one_job_needs_no_other_process() -> None:
    assert side_by_side(scaled, np.arange(2), [5]).results == {0: (5, os.getpid())}
    assert side_by_side(scaled, np.arange(2), []).results == {}
    assert cores() >= 1


@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_of_a_job_is_raised_as_it_is(processes: int) -> None:
    with pytest.raises(by.Misuse, match="the second one = 2: give another") as raised:
        side_by_side(failing, None, [0, 1, 2], processes=processes)
    # It says where in the other process it was raised.
    assert processes == 1 or "in failing" in str(raised.value.__cause__)


def test_an_error_that_cannot_be_pickled_is_told_by_its_words() -> None:
    error = _portable(Odd(1, 2))
    assert isinstance(error, by.Unavailable)
    assert "Odd: 1 and 2" in str(error)
    whole = pickle.loads(pickle.dumps(_portable(by.Misuse("one = 1"))))
    assert (type(whole), str(whole)) == (by.Misuse, "one = 1")


def test_a_process_that_dies_is_an_error_with_the_name_of_its_job() -> None:
    with pytest.raises(by.Unavailable, match="heap: its process died with signal 9, as for want"):
        side_by_side(dying, None, [0, 1], processes=2, names=["recency", "heap"])


CODE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from blockyard.tools.workers import Watch, side_by_side
from test_workers import {work}
class Said(Watch):
    def on_progress(self, job, progress):
        print("told", job, flush=True)
try:
    done = side_by_side({work}, None, [0, 1, 2], processes=2, watch=Said())
except KeyboardInterrupt:
    print("twice")
else:
    print(done.interrupted, done.results)
"""


def deaf(_shared: object, _job: int, tell: Tell) -> str:
    while True:
        try:
            tell("here")
            time.sleep(0.01)
        except KeyboardInterrupt:
            pass


@contextmanager
def started(work: str) -> "Iterator[subprocess.Popen[str]]":
    """Two jobs in a process group of their own, once both have told."""
    with subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", CODE.format(work=work)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
    ) as process:
        assert process.stdout is not None
        told: set[str] = set()
        while len(told) < 2:
            line = process.stdout.readline()
            assert line, "it ended too soon"
            told.add(line)
        yield process


@pytest.mark.parametrize(
    ("work", "presses", "said"),
    [("long", 1, "True {0: 'part of 0', 1: 'part of 1'}"), ("deaf", 2, "twice")],
)
def test_ctrl_c_brings_what_each_job_has_and_a_second_one_ends_them(
    work: str, presses: int, said: str
) -> None:
    with started(work) as process:
        for _ in range(presses):
            # A terminal signals the whole group, and `kill` the parent alone.
            (os.killpg if presses == 2 else os.kill)(process.pid, signal.SIGINT)
            time.sleep(0.3)
        last = process.communicate(timeout=30)[0].splitlines()[-1]
    assert (process.returncode, last) == (0, said)
    assert gone(process.pid, 20)


def test_processes_end_when_their_parent_is_killed() -> None:
    with started("deaf") as process:
        process.kill()
    assert gone(process.pid, 20)


def gone(group: int, seconds: float) -> bool:
    """Whether no process of a group is left; multiprocessing's own tracker goes last."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False
