"""Measured or not, all is decided alike, whatever the clock says."""

import dataclasses
from typing import Any

import pytest

import blockyard as by
from blockyard.shared.timings import Histogram, StepTimes, timed
from blockyard.testing import Scenario, simulate
from busy import LAYOUT


@pytest.mark.law("O1", "O4", "O6")
@pytest.mark.parametrize("seed", [1, 4, 7, 11])
def test_a_replica_that_is_measured_by_a_lying_clock_and_asked_decides_as_one_that_is_not(
    seed: int,
) -> None:
    # The replicas' steps, plans, counters and digests are compared after every step.
    scenario = Scenario.seeded(seed)
    setup = dataclasses.replace(scenario.setup, replicas=2, watched=True)
    assert simulate(dataclasses.replace(scenario, setup=setup)).ticks > 40


@pytest.mark.law("O6")
def test_a_value_on_an_edge_is_below_it_and_what_a_clock_set_back_says_is_nothing() -> None:
    times = Histogram((1.0, 2.0))
    for value in (0.0, 1.0, 1.5, 2.0, 9.0, -5.0):
        times.add(value)
    assert times.read() == ((3, 2, 1), 13.5)


@pytest.mark.law("O6")
def test_what_is_no_number_or_has_no_end_is_counted_and_not_summed() -> None:
    times = Histogram((1.0, 2.0))
    for value in (float("inf"), float("nan"), -float("inf"), 1.5):
        times.add(value)
    assert times.read() == ((2, 1, 1), 1.5)


@pytest.mark.parametrize("clock", [3, None, lambda: None, lambda: "noon"])
def test_a_clock_that_returns_no_seconds_is_refused_before_it_is_read(clock: Any) -> None:
    cache = by.local(LAYOUT, device=9, host=9)
    for measure in (cache.measure, cache.crane.measure):
        with pytest.raises(by.Misuse, match=r"clock = .*must return seconds"):
            measure(clock)
    with pytest.raises(by.Misuse, match=r"clock = .*must return seconds"):
        by.Scheduler(cache, clock=clock, metrics=True)
    # Nothing is measured by it, and no verb fails of it.
    assert cache.step() == 0
    assert cache.step_times() == {}
    cache.close()


def test_a_verb_that_raises_is_not_counted() -> None:
    class Timed:
        _times: StepTimes | None = StepTimes(lambda: 0.0, "verb")

        @timed("verb")
        def verb(self, number: int) -> int:
            if number < 0:
                raise by.Misuse("below 0")
            return number

    own = Timed()
    assert own.verb(3) == 3
    with pytest.raises(by.Misuse):
        own.verb(-1)
    assert own._times is not None
    assert sum(own._times.read()["verb"].counts) == 1
