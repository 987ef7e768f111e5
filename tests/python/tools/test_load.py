"""Load offered against load served: what is overloaded, and what is only a burst."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from blockyard.tools.replay.load import NEVER, offered, summed
from blockyard.tools.replay.result import Load

Times = NDArray[np.float64]


def queued(arrived: Times, each: Times) -> Times:
    """When each request begins at an engine that serves one after another."""
    began, free = np.zeros(len(arrived)), 0.0
    for request, (at, takes) in enumerate(zip(arrived, each, strict=True)):
        began[request] = max(at, free)
        free = began[request] + takes
    return began


def random_load(busy: float, requests: int, seed: int = 0) -> Load:
    """The load of an engine that is busy for that share of the time, with random arrivals."""
    random = np.random.default_rng(seed)
    arrived = np.cumsum(random.exponential(1.0, requests))
    return load(arrived, queued(arrived, random.exponential(busy, requests)))


def load(arrived: Times, began: Times, **more: Any) -> Load:
    tokens = np.full(len(arrived), 100)
    found = offered(arrived, began, tokens, now=more.pop("now", 1e9), **more)
    assert found is not None
    return found


def steady(requests: int, factor: float) -> Load:
    """Ten requests a second, with so many times the load that the engine can serve."""
    arrived = np.arange(requests) / 10
    return load(arrived, queued(arrived, np.full(requests, factor / 10)))


def test_what_is_served_of_a_steady_load_is_told_exactly() -> None:
    found = steady(2001, 2.5)
    assert found.offered_requests_per_second == pytest.approx(10)
    assert found.served_requests_per_second == pytest.approx(4)
    assert found.offered_tokens_per_second == pytest.approx(1000)
    assert found.served_tokens_per_second == pytest.approx(400)
    assert found.backlog_seconds == pytest.approx(300)
    assert found.overloaded


@pytest.mark.parametrize(
    ("factor", "overloaded"), [(0.5, False), (1.0, False), (1.04, False), (1.07, True), (3, True)]
)
def test_an_engine_that_just_keeps_up_is_not_overloaded(factor: float, *, overloaded: bool) -> None:
    assert steady(2000, factor).overloaded is overloaded


def test_random_arrivals_are_not_taken_for_an_overload() -> None:
    seeds = range(100)
    assert not any(random_load(0.5, 200, seed).overloaded for seed in seeds)
    assert sum(random_load(0.9, 200, seed).overloaded for seed in seeds) <= 10
    assert not any(random_load(0.9, 2000, seed).overloaded for seed in seeds[:20])
    assert all(random_load(1.5, 2000, seed).overloaded for seed in seeds[:20])


def test_a_burst_at_the_end_is_no_overload() -> None:
    arrived = np.minimum(np.arange(2000.0), 1800.0)
    found = load(arrived, queued(arrived, np.full(2000, 0.9)))
    assert found.backlog_seconds == pytest.approx(179.1 - 0.9, abs=1)
    assert found.served_requests_per_second < 0.95 * found.offered_requests_per_second
    assert not found.overloaded


def test_too_few_requests_tell_nothing() -> None:
    assert steady(100, 3).overloaded
    assert not steady(39, 3).overloaded
    arrived = np.zeros(50)
    assert offered(arrived, arrived, np.ones(50, np.int64), now=9.0) is None
    assert offered(arrived[:0], arrived[:0], np.ones(0, np.int64), now=9.0) is None


@pytest.mark.parametrize("factor", [0.5, 1.3, 3.0])
def test_after_an_interruption_what_waits_counts_as_offered(factor: float) -> None:
    arrived = np.arange(2000) / 10
    began = queued(arrived, np.full(2000, factor / 10))
    began[began > 120] = NEVER
    found = load(arrived, began, now=120.0)
    assert found.offered_requests_per_second == pytest.approx(10, rel=0.01)
    assert found.served_requests_per_second == pytest.approx(min(10 / factor, 10), rel=0.01)
    assert found.overloaded == (factor > 1)


def test_what_was_refused_is_not_said_to_wait() -> None:
    arrived = np.arange(2000) / 10
    began = arrived.copy()
    began[::3] = NEVER
    found = load(arrived, began, refused=667)
    assert found.served_requests_per_second == pytest.approx(10 * 2 / 3, rel=0.01)
    assert found.offered_requests_per_second == found.served_requests_per_second
    assert not found.overloaded


def test_engines_side_by_side_are_overloaded_if_one_of_them_is() -> None:
    whole = summed([steady(2001, 2.5), steady(2001, 0.5)])
    assert whole is not None
    assert whole.offered_requests_per_second == pytest.approx(20)
    assert whole.served_requests_per_second == pytest.approx(14)
    assert (whole.overloaded, summed([])) == (True, None)
