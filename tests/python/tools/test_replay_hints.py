"""What is said of the future: true to the trace, and wrong by as much as was asked."""

from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard.tools.replay.hints import Hints
from blockyard.tools.traces.trace import Trace
from blockyard.tools.traces.workload import generate
from traces import made

PERFECT = Hints(end=1, next=1)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return generate(0, requests=4_000)


def test_the_truth_is_when_the_last_full_block_is_used_next() -> None:
    # A second apart. The last id of the first and the fourth stands for part of a block.
    prompts = [(10, [0, 1, 9]), (8, [0, 2]), (3, [7]), (14, [0, 1, 3, 8]), (8, [0, 2]), (4, [0])]
    said = PERFECT.of(made(prompts, 4), seed=1)
    ended: dict[str, Any] = {"retention": "session-ended"}
    assert said == [{"next_use": 3.0}, {"next_use": 3.0}, {}, ended, ended, ended]


def test_a_trace_without_a_full_block_has_no_hints() -> None:
    assert PERFECT.of(made([(3, [0]), (2, [])], 4), seed=0) == [{}, {}]


def test_hints_are_right_and_wrong_as_often_as_asked(trace: Trace) -> None:
    truth = PERFECT.of(trace, seed=0)
    ends = np.array(["retention" in hint for hint in truth])
    seconds = np.array([hint.get("next_use", np.nan) for hint in truth])
    assert 0.1 < ends.mean() < 0.9
    said = Hints(end=0.7, end_false=0.1, next=0.6, factor=3).of(trace, seed=5)
    told = np.array(["retention" in hint for hint in said])
    wrong = np.array([hint.get("next_use", np.nan) for hint in said]) / seconds
    assert told[ends].mean() == pytest.approx(0.7, abs=0.04)
    assert told[~ends].mean() == pytest.approx(0.1, abs=0.03)
    # Nothing is said of the next use where the end is said, and none of what has ended.
    assert np.isnan(wrong[told | ends]).all()
    assert np.isfinite(wrong[~told & ~ends]).mean() == pytest.approx(0.6, abs=0.04)
    errors = np.log(wrong[np.isfinite(wrong)]) / np.log(3)
    assert -1 <= errors.min() < -0.95
    assert 0.95 < errors.max() <= 1
    assert errors.mean() == pytest.approx(0, abs=0.05)


def test_lies_know_nothing_of_the_truth(trace: Trace) -> None:
    truth = np.array(["retention" in hint for hint in PERFECT.of(trace, seed=0)])
    lies = Hints(lies=True).of(trace, seed=0)
    told = np.array(["retention" in hint for hint in lies])
    assert told[truth].mean() == pytest.approx(0.5, abs=0.04)
    assert told[~truth].mean() == pytest.approx(0.5, abs=0.04)
    times = [hint["next_use"] for hint in lies if "next_use" in hint]
    assert len(times) == (~told).sum()
    assert 1 <= min(times) < 2
    assert 2_048 < max(times) <= 4_096


def test_a_seed_says_the_same_again_and_another_seed_does_not(trace: Trace) -> None:
    hints = Hints(end=0.5, end_false=0.2, next=0.5, factor=2)
    assert hints.of(trace, seed=7) == hints.of(trace, seed=7) != hints.of(trace, seed=8)


@pytest.mark.parametrize(
    ("text", "hints", "shown"),
    [
        ("none", None, "None"),
        ("lies", Hints(lies=True), "lies"),
        ("end=0.8:0.02,next=0.8:2", Hints(end=0.8, end_false=0.02, next=0.8, factor=2), ""),
        ("next=1:4,end=0.5:0", Hints(end=0.5, next=1, factor=4), "end=0.5:0,next=1:4"),
        ("end=0.5", Hints(end=0.5, end_false=0.02), "end=0.5:0.02"),
        ("next=0.8", Hints(next=0.8, factor=2), "next=0.8:2"),
        ("end=0", Hints(end_false=0.02), "end=0:0.02"),
    ],
)
def test_text_gives_hints_and_hints_give_text(text: str, hints: Hints | None, shown: str) -> None:
    assert Hints.parse(text) == hints
    assert str(hints) == (shown or text)
    assert Hints.parse(str(hints).lower()) == hints


@pytest.mark.parametrize(
    "text", ["", "lie", "end", "end=", "end=x", "end=0.5:", "end=0.5,end=0.6", "end=0.5;next=1"]
)
def test_other_text_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(by.Misuse, match=r"give end=RECALL\[:FALSE\],next=RECALL\[:FACTOR\]"):
        Hints.parse(text)


@pytest.mark.parametrize("wrong", ["end=1.1", "end=-1", "end=nan", "next=1:0.5", "next=1:inf"])
def test_a_share_or_a_factor_out_of_range_is_refused(wrong: str) -> None:
    with pytest.raises(by.Misuse, match=r"must be a (share from 0 to 1|finite number >= 1)"):
        Hints.parse(wrong)
