"""A scheduler and ranks that die one by one, within simulated schedules. INV-6 INV-11 INV-17

`make soak-ranks` plays 200 seeds.
"""

import dataclasses
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import seeds
from blockyard.crane.traffic import Traffic
from blockyard.shared.plan import Cause, Outcome, Unreported
from blockyard.testing import Event, Scenario, Setup, simulate
from blockyard.yard.flights import Flights

# As in test_simulator.py, of which these are a part: BLOCKYARD_SEEDS=4000 plays 200 of them.
SEEDS = int(os.environ.get("BLOCKYARD_SEEDS", "400")) // 20

WANTED = (
    *("rank killed, wait", "rank killed, fail", "rank stopped", "rank slow", "scheduler killed"),
    *(f"outcome {fate}" for fate in ("late", "twice", "lost", "foreign", "asked for")),
    *("outcome of another yard", "plans of another yard", "copy dead"),
    *(f"plans {way}" for way in ("down", "up", "to disk", "from disk")),
    *("rank reset, memory lost", "engine died", "finished", "aborted", "failed"),
)


def test_whatever_dies_each_request_is_answered_once_as_undisturbed() -> None:
    seen: Counter[str] = Counter()
    seeds.play(Scenario.processes, range(SEEDS), seen)
    seeds.met(seen, WANTED)


@pytest.mark.parametrize("made", [Scenario.processes, Scenario.losing])
def test_a_scenario_is_played_again_from_what_it_prints(made: Callable[[int], Scenario]) -> None:
    seeds.plays_again(made, 2)


def test_of_outcomes_that_are_lost_to_the_end_each_is_known_where_somebody_asks() -> None:
    lost = asked = 0
    for seed in range(4):
        scenario = Scenario.losing(seed, percent=20)
        setup = dataclasses.replace(scenario.setup, asks=8)
        ran = simulate(Scenario(setup, scenario.events)).seen
        lost, asked = lost + ran["outcome lost"], asked + ran["outcome asked for"]
    assert asked >= lost > 20


ONE = Setup(
    device=10, host=24, ranks=2, processes=True, write="through", ahead=4, ends=False, asks=4
)


def add(tick: int, name: str, family: int = 0) -> Event:
    """A prompt of four blocks and a token, which samples three."""
    return Event(tick, "add", (name, family, 16, 1, 3, 0))


def test_a_rank_that_is_waited_for_costs_no_answer_and_one_given_up_those_that_ran() -> None:
    for how, states in (("wait", ["finished"]), ("fail", ["failed"])):
        events = add(1, "a"), Event(3, "kill", (1, 6, how)), add(4, "b")
        ran = simulate(Scenario(ONE, events))
        assert [str(ran.results[name].state) for name in "ab"] == [*states, "finished"]
        assert ran.seen["rank reset, memory lost"] == 1


def test_a_scheduler_that_comes_back_hears_of_the_one_before_and_believes_nothing() -> None:
    events = add(1, "a"), add(2, "b", 1), add(3, "c", 2), Event(12, "scheduler", (8, 1))
    ran = simulate(Scenario(ONE, (*events, add(13, "d"))))
    assert ran.seen["outcome of another yard"] > 0
    assert ran.seen["finished"] == 4


# -- what it would notice ----------------------------------------------------------------------


def noticed(monkeypatch: pytest.MonkeyPatch, verb: str, wrong: Any, tried: range) -> str:
    seeds.mistaken(monkeypatch, Traffic, verb, wrong)
    return seeds.noticed(Scenario.processes, tried)


def test_an_outcome_of_another_yard_that_is_believed_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wrong(self: Flights, _right: Any, outcome: Outcome) -> Any:
        return self._in_flight.get(outcome.flight)

    seeds.mistaken(monkeypatch, Flights, "_of", wrong)
    assert "the yard has counted copies" in seeds.noticed(Scenario.processes, range(7, 12))


def test_a_crane_that_ends_nothing_when_another_yard_comes_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wrong(self: Traffic, _right: Any, yard: int) -> None:
        self._yard = yard

    assert noticed(monkeypatch, "meet", wrong, range(2, 6)) != "nothing"


def test_reports_that_nobody_asks_for_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(_self: Traffic, _right: Any, _asked: Unreported) -> list[Outcome]:
        return []

    assert "left behind" in noticed(monkeypatch, "reconcile", wrong, range(1, 5))


def test_a_crane_that_calls_dead_what_moves_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: Traffic, _right: Any, asked: Unreported) -> list[Outcome]:
        return [Outcome(flight, self.rank, 0, Cause.DEAD, asked.yard) for flight in asked.flights]

    assert noticed(monkeypatch, "reconcile", wrong, range(56, 64)) != "nothing"
