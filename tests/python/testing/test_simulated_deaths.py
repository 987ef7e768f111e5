"""Engines that die in the simulator, and tiers that become smaller and larger."""

from collections.abc import Callable
from typing import Any

import pytest

import blockyard as by
import seeds
from blockyard.scheduling.engine import Output
from blockyard.scheduling.lifecycle import Lifecycle
from blockyard.scheduling.request import RequestState
from blockyard.scheduling.scheduler import Scheduler
from blockyard.testing import Event, Scenario, Setup, simulate

DIES = Scenario(
    Setup(max_num_seqs=2, host=24, headroom="none", steps_in_flight=1),
    (
        Event(1, "add", ("a", 0, 4, 4, 8, 0)),
        Event(1, "add", ("b", 1, 4, 4, 8, 0)),
        Event(2, "add", ("c", 2, 4, 4, 8, 0)),
        Event(4, "abort", ("a", "")),
        Event(4, "stall", (3,)),
        Event(5, "fail", (6, "recompute")),
        Event(7, "add", ("d", 0, 4, 4, 8, 0)),
        Event(8, "abort", ("d", "")),
    ),
)


def test_what_a_dead_engine_had_fails_and_what_waits_goes_on() -> None:
    ran = simulate(DIES)
    ends = {name: str(result.state) for name, result in ran.results.items()}
    assert ends == {"a": "failed", "b": "failed", "c": "finished", "d": "aborted"}
    assert ran.seen["T29 dead"] == 1


def spares(self: Lifecycle, right: Any, reason: str, **more: Any) -> None:
    """A seat that is stopping is forgotten."""
    for seat in self._seats.bound():
        seat.ended = seat.stop is not None
    right(self, reason, **more)


def frees(self: Lifecycle, right: Any, reason: str, **more: Any) -> None:
    """What it had goes back."""
    right(self, reason, **more)
    for seat in self._seats.bound():
        self.release(seat)


def lives(self: Lifecycle, right: Any, reason: str, **more: Any) -> None:
    """It is taken for alive."""
    right(self, reason, **more)
    self._batch.dead = None


def loads(self: Lifecycle, right: Any, reason: str, **more: Any) -> None:
    """A seat that is loading waits for a load."""
    for seat in self._seats.bound():
        if seat.request.state is RequestState.LOADING:
            seat.ended = True
    self._batch.take_loading()
    right(self, reason, **more)


@pytest.mark.parametrize(
    ("wrong", "found", "likely"),
    [
        (spares, "only", 29),
        (frees, "INV-6: a begin is given slots", 14),
        (lives, "T29: a step for an engine that is dead", 2),
        (loads, "are not waiting", 60),
    ],
)
def test_a_death_that_is_taken_wrongly_is_noticed(
    monkeypatch: pytest.MonkeyPatch, wrong: Callable[..., Any], found: str, likely: int
) -> None:
    assert found in seeds.broken(monkeypatch, "fail", wrong, Lifecycle, range(600), likely)


def test_what_a_dead_engine_says_is_noticed_where_it_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wrong(self: Scheduler, right: Any, output: Output) -> None:
        dead, self._batch.dead = self._batch.dead, None
        right(self, output)
        self._batch.dead = dead

    assert seeds.broken(monkeypatch, "on_output", wrong, likely=92) != "nothing"


SIZES = (
    Event(1, "add", ("a", 0, 4, 4, 8, 0)),
    Event(2, "resize", ("device", 7)),
    Event(3, "resize", ("device", 2)),
    Event(4, "resize", ("host", 4)),
    Event(5, "add", ("b", 1, 4, 4, 8, 0)),
    Event(20, "resize", ("device", 20)),
    Event(21, "resize", ("host", 40)),
)


def test_tiers_become_smaller_and_larger_while_requests_run() -> None:
    seen = simulate(Scenario(Setup(device=16, host=12), SIZES)).seen
    names = [f"{tier} {way}" for tier in ("device", "host") for way in ("smaller", "larger")]
    assert [seen[name] for name in (*names, "2.7 in use")] == [1, 1, 1, 1, 1]
    assert (seen["stats device_capacity"], seen["stats host_capacity"]) == (19, 40)


def test_a_request_that_fits_no_more_when_its_turn_comes_waits_for_a_larger_device() -> None:
    scenario = Scenario(
        Setup(device=16, max_num_seqs=1, ends=False),
        (
            Event(1, "add", ("a", 0, 4, 0, 4, 0)),
            Event(2, "add", ("large", 1, 4, 40, 4, 0)),
            Event(2, "add", ("b", 2, 4, 0, 4, 0)),
            Event(3, "resize", ("device", 8)),
            Event(60, "resize", ("device", 16)),
        ),
    )
    ran = simulate(scenario)
    assert list(ran.results) == ["a", "b", "large"]
    assert {str(result.state) for result in ran.results.values()} == {"finished"}


def test_a_size_that_is_not_taken_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by.KVCache, "resize", lambda *_: None, raising=False)
    assert "2.7" in seeds.said(Scenario(Setup(device=16, host=12), SIZES))


def test_a_failure_that_has_no_cause_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: Scheduler, right: Any) -> Any:
        return [result._replace(state=RequestState.FAILED) for result in right(self)]

    assert "is failed" in seeds.broken(monkeypatch, "results", wrong)
