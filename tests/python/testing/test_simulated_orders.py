"""Every eviction order in the simulator, and hints that are true, lies, or of nothing."""

from collections import Counter
from typing import Any, get_args

import pytest

import blockyard as by
from blockyard.scheduling.request import RequestState
from blockyard.testing import Event, Scenario, Setup, simulate
from blockyard.testing.eviction_seeds import hints_said
from blockyard.yard.config import Eviction

FIRST = Event(1, "add", ("a", 0, 8, 2, 6, 0))


def test_the_seeds_have_every_order_and_place_of_copies_and_the_others_none_of_them() -> None:
    setups = [Scenario.seeded(seed).setup for seed in range(200)]
    assert {setup.eviction for setup in setups} == set(get_args(Eviction))
    assert {setup.host_copies for setup in setups} == {"first", "last", None}
    old = [setup for seed, setup in enumerate(setups) if seed % 10 not in {0, 2, 7}]
    assert {setup.eviction for setup in old} == {"recency", "heap"}
    assert {setup.host_copies for setup in old} == {None}
    alike = [Scenario.alike(seed).setup for seed in range(200)]
    assert {setup.eviction for setup in alike} == set(get_args(Eviction))


def test_the_seeds_hint_all_there_is_and_of_samples_too() -> None:
    events = [event for seed in range(200) for event in Scenario.seeded(seed).events]
    hints = [event.what for event in events if event.verb == "hint"]
    assert {said[1] for said in hints} == {"ordinary", "session-ended", "retain"}
    for at in (2, 3, 4):
        assert {said[at] == "" for said in hints} == {True, False}
    assert any(str(said[0]).startswith("(") for said in hints)


@pytest.mark.parametrize("blocks", ["yard", "engine"])
@pytest.mark.parametrize("eviction", get_args(Eviction))
@pytest.mark.parametrize("host_copies", ["first", "last"])
def test_a_hint_is_heard_in_every_order(eviction: Any, host_copies: Any, blocks: Any) -> None:
    setup = Setup(host=12, blocks=blocks, eviction=eviction, host_copies=host_copies)
    hint = Event(2, "hint", ("a", "session-ended", 5, 90, 3))
    ran = simulate(Scenario(setup, (FIRST, hint, Event(40, "add", ("b", 0, 8, 4, 6, 0)))))
    assert ran.seen["hint"] == 1
    assert {result.state for result in ran.results.values()} == {RequestState.FINISHED}


def test_hints_of_requests_that_are_not_there_are_passed_over() -> None:
    late = Event(60, "hint", ("a", "retain", "", "", ""))
    for blocks in ("yard", "engine"):
        setup = Setup(host=12, blocks=blocks)
        assert simulate(Scenario(setup, (FIRST, late))).seen["hint"] == 0


def test_what_an_event_says_is_checked() -> None:
    assert hints_said(("retain", "", 0, "")) == ("retain", None, 0, None)
    with pytest.raises(by.Misuse, match="priority = 200"):
        hints_said(("retain", "", 200, ""))


def test_a_hint_changes_no_token() -> None:
    tokens: Counter[tuple[int, ...]] = Counter()
    for said in ("session-ended", "retain"):
        events = (FIRST, Event(2, "hint", ("a", said, 0, 0, 0)))
        ran = simulate(Scenario(Setup(host=12), events))
        tokens[tuple(ran.results["a"].tokens.tolist())] += 1
    assert [*tokens.values()] == [2]
