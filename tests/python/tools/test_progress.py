"""What is said during the runs: how far they are, and how long they still take."""

import io
import itertools

import pytest
from rich.console import Console

import traces
from blockyard.tools.replay import hardware
from blockyard.tools.replay.comparison import Job
from blockyard.tools.replay.progress import ReplayDisplay, names
from blockyard.tools.replay.spec import Policy, Progress, RunSpec


def spec_of(policy: Policy) -> RunSpec:
    return RunSpec(
        preset="llama-3-8b/h100",
        roofline=hardware.preset("llama-3-8b/h100"),
        trace_block=16,
        block_size=16,
        device_blocks=100,
        host_blocks=0,
        policy=policy,
    )


class Shown:
    """A display whose clock and console are at hand."""

    def __init__(self, *, terminal: bool = False, quiet: bool = False) -> None:
        self.now = 0.0
        self.file = io.StringIO()
        parts = [traces.made([(16, [1])] * 1000, block=16)]
        jobs = [Job(spec_of("recency"), 0), Job(spec_of("learned"), 0)]
        console = Console(file=self.file, force_terminal=terminal, width=100)
        self.display = ReplayDisplay(
            jobs, parts, names(jobs, 1), None if quiet else console, lambda: self.now
        )

    def at(self, now: float, job: int, done: int) -> list[str]:
        """The lines that come of a job's progress at a moment."""
        before = len(self.file.getvalue())
        self.now = now
        self.display.on_progress(job, Progress(done, 1000, 0.0, 0.5, 50, 0, 0, 0))
        return self.file.getvalue()[before:].splitlines()


def test_lines_come_every_ten_seconds_or_each_tenth_and_say_how_long_is_left() -> None:
    shown = Shown()
    shown.display.began(0)
    shown.display.began(1)
    assert shown.at(0.5, 0, 150) == []
    assert shown.at(1.0, 0, 190) == []
    assert shown.at(1.1, 0, 200) == ["blockyard: 200 of 2,000 requests, 10%"]
    assert shown.at(1.5, 1, 250) == []
    assert shown.at(4.5, 1, 300) == ["blockyard: 500 of 2,000 requests, 25%, about 14 s left"]
    assert shown.at(14.4, 1, 301) == []
    assert shown.at(14.5, 1, 302) == ["blockyard: 502 of 2,000 requests, 25%, about 43 s left"]
    assert shown.at(300, 1, 303) == [
        "blockyard: 503 of 2,000 requests, 25%, about 14 min 53 s left"
    ]


def test_nothing_is_guessed_at_the_beginning_and_nothing_said_at_the_end() -> None:
    shown = Shown()
    shown.display.began(0)
    shown.display.began(1)
    assert shown.at(11, 0, 5) == ["blockyard: 5 of 2,000 requests, 0%"]
    shown.at(20, 0, 1000)
    assert shown.at(40, 1, 1000) == []


def test_each_run_is_named_by_what_varies() -> None:
    shown = Shown()
    shown.display.began(1)
    (line,) = shown.file.getvalue().splitlines()
    assert line == "blockyard: replaying 1,000 requests of made up: learned, 100 + 0 blocks"
    specs = [spec_of("recency"), spec_of("heap")]
    jobs = [Job(spec, replica) for spec, replica in itertools.product(specs, (0, 1))]
    assert names(jobs, 2)[1:3] == ["recency, replica 2 of 2", "heap, replica 1 of 2"]


def test_on_a_terminal_each_run_has_a_bar_with_the_time_left() -> None:
    shown = Shown(terminal=True)
    with shown.display:
        shown.display.began(0)
        shown.display.began(1)
        shown.at(10, 0, 500)
        shown.at(10, 1, 500)
    said = shown.file.getvalue()
    for part in ("recency", "learned", "500/1,000", "hits 50%", "device 50%", "10 s left"):
        assert part in said


@pytest.mark.parametrize("done", [100, 999])
def test_quiet_says_nothing(done: int) -> None:
    shown = Shown(quiet=True)
    shown.display.began(0)
    assert shown.at(100, 0, done) == []
    assert shown.file.getvalue() == ""
