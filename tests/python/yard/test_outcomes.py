"""Outcomes of several ranks: a flight ends when all have spoken, with the least that is good."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import blockyard as by
from blockyard.yard.flights import Flights
from yard import at_rest, begin, plan_of, publish, publish_below, text

FLIGHT = 1 << 32 | 7


def no_deadline(_tier: str) -> None:
    """Every flight may take as long as it likes."""


def launched(flights: Flights, blocks: int = 4, now: int = 0) -> by.Plan:
    plan = plan_of(blocks, flight=FLIGHT)
    flights.launch(plan, now)
    return plan


def overdue(flights: Flights, now: int) -> list[int]:
    """What is late now, which counts as unknown from here on."""
    late = flights.overdue(now)
    flights.unknown(late, now)
    return late


def test_what_is_late_comes_again_until_it_is_noted() -> None:
    """An interrupt may come before the core is told."""
    flights = Flights(1, lambda _tier: 10)
    launched(flights)
    assert flights.overdue(10) == flights.overdue(10) == [FLIGHT]
    flights.report([by.Outcome(FLIGHT, 0, 0, by.Cause.LOST)])
    assert flights.overdue(9) == flights.overdue(9) == [FLIGHT]
    flights.unknown([FLIGHT], 9)
    assert flights.overdue(10) == []
    assert flights.stats()["flights_unknown"] == 1


def test_a_flight_ends_when_the_last_rank_has_spoken_and_not_before() -> None:
    flights = Flights(3, no_deadline)
    launched(flights)
    assert flights.report([by.Outcome(FLIGHT, 2, 4), by.Outcome(FLIGHT, 0, 4)]).flights == []
    assert flights.report([by.Outcome(FLIGHT, 1, 4)]) == ([FLIGHT], [4], [False])
    flights.forget([FLIGHT])
    assert len(flights) == 0


@given(st.permutations([0, 1, 2]), st.lists(st.integers(0, 4), min_size=3, max_size=3))
def test_the_least_that_is_good_counts_in_any_order(order: list[int], good: list[int]) -> None:
    flights = Flights(3, no_deadline)
    launched(flights)
    ended = [
        flights.report(
            [by.Outcome(FLIGHT, rank, good[rank], None if good[rank] == 4 else by.Cause.FAILED)]
        )
        for rank in order
    ][-1]
    assert ended == ([FLIGHT], [min(good)], [False])


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_source_is_corrupt_only_if_the_first_bad_block_failed_its_checksum(
    order: tuple[int, int],
) -> None:
    for good, corrupt in (([2, 3], True), ([3, 2], False), ([2, 2], True)):
        flights = Flights(2, no_deadline)
        launched(flights)
        reports = [
            by.Outcome(FLIGHT, 0, good[0], by.Cause.CORRUPT),
            by.Outcome(FLIGHT, 1, good[1], by.Cause.FAILED),
        ]
        ended = flights.report([reports[at] for at in order])
        assert ended == ([FLIGHT], [2], [corrupt])


def test_duplicate_late_and_foreign_outcomes_are_counted_and_change_nothing() -> None:
    flights = Flights(2, no_deadline)
    launched(flights)
    flights.report([by.Outcome(FLIGHT, 0, 4)])
    for stray in (
        by.Outcome(FLIGHT, 0, 0),
        by.Outcome(FLIGHT + 1, 0, 4),
        by.Outcome(FLIGHT, 2, 0),
    ):
        assert flights.report([stray]).flights == []
    assert flights.report([by.Outcome(FLIGHT, 1, 4)]) == ([FLIGHT], [4], [False])
    flights.forget([FLIGHT])
    assert flights.report([by.Outcome(FLIGHT, 1, 4)]).flights == []
    assert flights.stats()["outcomes_ignored"] == 4
    assert flights.stats()["outcomes"] == 6


@pytest.mark.parametrize("good", [-1, 5])
def test_an_outcome_that_contradicts_its_plan_takes_nothing_of_its_call(good: int) -> None:
    flights = Flights(2, no_deadline)
    launched(flights)
    with pytest.raises(
        by.Misuse, match=f"reports {good} good blocks of flight 4294967303, which has 4"
    ):
        flights.report([by.Outcome(FLIGHT, 0, 4), by.Outcome(FLIGHT, 1, good)])
    assert flights.report([by.Outcome(FLIGHT, 0, 4), by.Outcome(FLIGHT, 1, 4)]).flights == [FLIGHT]


def test_a_deadline_names_a_flight_once_and_its_late_end_still_counts() -> None:
    flights = Flights(1, lambda _tier: 10)
    launched(flights, now=5)
    assert overdue(flights, 14) == []
    assert overdue(flights, 15) == [FLIGHT]
    assert overdue(flights, 99) == []
    assert flights.report([by.Outcome(FLIGHT, 0, 4)]).flights == [FLIGHT]


def test_a_rank_that_was_reset_ends_what_it_had_in_flight() -> None:
    flights = Flights(2, no_deadline)
    launched(flights)
    flights.report([by.Outcome(FLIGHT, 0, 4)])
    assert flights.reset(1) == ([FLIGHT], [0], [False])
    flights.forget([FLIGHT])
    assert flights.reset(1) == ([], [], [])
    with pytest.raises(by.Misuse, match="rank = 2"):
        flights.reset(2)


def two_ranks(**keywords: Any) -> by.KVCache:
    return by.KVCache(block_size=4, device=32, host=32, ahead=0, ranks=2, **keywords)


def loading(cache: by.KVCache) -> tuple[by.Lease, by.Plan]:
    """A prompt of which four blocks come up from the host, by one plan."""
    publish_below(cache, text(1, 16))
    cache.dispatch()  # what the test's own commits have ended is not given again
    lease = begin(cache, [*text(1, 16), 0])
    (plan,) = cache.dispatch()
    return lease, plan


@pytest.mark.law("R1-11")
def test_a_load_is_there_only_when_both_ranks_have_it() -> None:
    cache = two_ranks()
    lease, plan = loading(cache)
    assert plan == lease.plans[0]
    assert cache.dispatch() == []
    assert cache.commit([by.Outcome(plan.flight, 0, 4)]) == 0
    assert lease.state == "loading"
    assert cache.commit([by.Outcome(plan.flight, 1, 2, by.Cause.FAILED)]) == 1
    assert (lease.state, lease.cached) == ("ready", 8)
    cache.finish(lease)
    at_rest(cache)


def test_what_no_rank_ends_in_time_is_quarantined_and_given_back_after_a_reset() -> None:
    cache = two_ranks(deadline=3)
    publish_below(cache, text(1, 16))
    cache.dispatch()
    cache.commit([], now=10)
    lease = begin(cache, [*text(1, 16), 0])
    (plan,) = cache.dispatch()
    cache.commit([by.Outcome(plan.flight, 0, 4)], now=12)
    assert lease.state == "loading"
    cache.commit([], now=13)
    assert lease.cached == 0
    assert cache.stats()["device_quarantined"] == 4
    assert cache.stats()["flights_unknown"] == 1
    assert cache.audit() is None
    assert cache.reset(1, memory="kept") == 1
    assert cache.stats()["device_quarantined"] == 0
    assert cache.probe(cache.keys(text(1, 16))).host == 4
    cache.finish(lease)
    at_rest(cache)


def test_time_does_not_go_back() -> None:
    cache = two_ranks()
    cache.commit([], now=5)
    with pytest.raises(by.Misuse, match="now = 4: must be an integer >= 5"):
        cache.commit([], now=4)
    cache.commit([], now=5)


@pytest.mark.parametrize(
    "bad",
    [
        {"done": -1},
        {"good": 3},
        {"corrupt": True},
        {"now": 1.5},
        {"outcomes": [by.Outcome(1, 0, 3.5)]},  # type: ignore[arg-type]
        {"outcomes": [by.Outcome(1, "x", 3)]},  # type: ignore[arg-type]
    ],
)
def test_a_commit_that_is_refused_has_taken_nothing(bad: dict[str, Any]) -> None:
    cache = by.KVCache(block_size=4, device=32, host=32, ahead=0)
    lease, plan = loading(cache)
    outcome = by.Outcome(plan.flight, 0, 4)
    outcomes = [outcome, *bad.pop("outcomes", [])]
    with pytest.raises((by.Misuse, TypeError)):
        cache.commit(outcomes, **bad)
    assert lease.state == "loading"
    assert cache.commit(outcome) == 1
    assert lease.cached == 16


def test_one_outcome_needs_no_list() -> None:
    cache = by.KVCache(block_size=4, device=32, host=32, ahead=0)
    lease, plan = loading(cache)
    assert cache.commit(by.Outcome(plan.flight, 0, 4)) == 1
    assert lease.cached == 16


def test_plans_ended_by_hand_are_not_waited_for() -> None:
    cache = two_ranks(deadline=1)
    lease, plan = loading(cache)
    cache.commit([plan])
    cache.commit([], now=50)
    assert cache.stats()["flights_unknown"] == 0
    assert lease.cached == 16
    cache.finish(lease)
    lease = begin(cache, text(2, 4))
    cache.finish(lease)
    at_rest(cache)


def test_a_plan_that_ended_before_it_was_dispatched_is_not_given_out() -> None:
    cache = two_ranks()
    publish_below(cache, text(1, 16))
    assert cache.dispatch() == []
    cache.finish(begin(cache, [*text(1, 16), 0]))
    (plan,) = cache.dispatch()  # its lease is gone; its slots wait for its end all the same
    assert cache.commit([by.Outcome(plan.flight, rank, 4) for rank in range(2)]) == 1
    at_rest(cache)


@pytest.mark.law("INV-6")
@pytest.mark.parametrize("landed", [False, True])
def test_a_step_that_is_done_stays_done_whatever_is_told_later(landed: bool) -> None:
    """A second scheduler numbers its steps behind it. (INV-6)"""
    cache = by.KVCache(block_size=4, device=32, host=32, ahead=0)
    lease, plan = loading(cache)
    cache.commit([], done=7)
    assert cache.commit([plan] if landed else [], done=3) == int(landed)
    assert cache.done == 7
    cache.commit([], done=8)
    assert cache.done == 8
    cache.commit(lease.plans)
    cache.finish(lease)
    at_rest(cache)


@pytest.mark.law("2.3-up-failed")
def test_what_is_all_good_is_not_corrupt_whatever_its_rank_says() -> None:
    flights = Flights(2, no_deadline)
    launched(flights)
    flights.report([by.Outcome(FLIGHT, 0, 4, by.Cause.CORRUPT)])
    assert flights.report([by.Outcome(FLIGHT, 1, 4)]) == ([FLIGHT], [4], [False])


@pytest.mark.law("INV-6")
@pytest.mark.parametrize("first", ["deadline", "one rank", "both ranks"])
def test_a_flight_whose_end_is_unknown_for_two_reasons_is_named_once(first: str) -> None:
    """Its deadline passes, or its device is lost, and then the other. (INV-6)"""
    flights = Flights(2, lambda _tier: 10)
    launched(flights)
    lost = [by.Outcome(FLIGHT, rank, 0, by.Cause.LOST) for rank in range(2)]
    if first == "deadline":
        assert overdue(flights, 10) == [FLIGHT]
        flights.report(lost)
    else:
        flights.report(lost[: 1 if first == "one rank" else 2])
        assert overdue(flights, 1) == [FLIGHT]
    assert overdue(flights, 20) == []
    assert flights.stats()["flights_unknown"] == 1


STRAYS: dict[str, dict[str, Any]] = {
    "another yard": {"yard": 77},
    "another yard, and too many": {"yard": 77, "good": 99},
    "a rank that is not there": {"rank": 2},
    "a rank that is not there, and too many": {"rank": 2, "good": 99},
    "a negative rank": {"rank": -1},
    "a rank beyond all": {"rank": 2**70},
    "a flight that never was": {"flight": 1},
    "a negative flight": {"flight": -1, "good": -1},
    "a flight beyond all": {"flight": 2**80, "good": 99},
    "a rank that has spoken": {"rank": 0, "good": 0},
    "a rank that has spoken, and too many": {"rank": 0, "good": 99},
}


@pytest.mark.parametrize("stray", STRAYS.values(), ids=STRAYS)
def test_an_outcome_of_nothing_that_is_awaited_is_counted_and_the_others_are_taken(
    stray: dict[str, Any],
) -> None:
    cache = two_ranks()
    lease, plan = loading(cache)
    cache.commit(by.Outcome(plan.flight, 0, 4))
    before = cache.digest()
    outcome = by.Outcome(plan.flight, 1, 4)
    assert cache.commit([outcome._replace(**stray)]) == 0
    assert (cache.digest(), cache.stats()["outcomes_ignored"]) == (before, 1)
    assert cache.commit([outcome._replace(**stray), outcome, outcome._replace(**stray)]) == 1
    assert (lease.cached, cache.stats()["outcomes_ignored"]) == (16, 3)
    cache.finish(lease)
    at_rest(cache)


@pytest.mark.parametrize("good", [-1, 5, 2**70])
def test_a_count_that_no_plan_has_is_refused_with_what_to_do_and_nothing_is_taken(
    good: int,
) -> None:
    cache = two_ranks()
    lease, plan = loading(cache)
    before = cache.digest()
    good_one, bad_one = by.Outcome(plan.flight, 0, 4), by.Outcome(plan.flight, 1, good)
    with pytest.raises(by.Misuse, match=f"rank 1 reports {good} good.*has 4: leave it out, and re"):
        cache.commit([good_one, bad_one], now=9, done=3)
    assert (cache.digest(), cache.done, lease.state) == (before, 0, "loading")
    assert cache.commit([good_one]) + cache.reset(1, memory="kept") == 1
    assert lease.cached == 0
    cache.finish(lease)
    at_rest(cache)


@pytest.mark.law("INV-6")
@pytest.mark.parametrize("rank", [0, 1])
def test_what_a_copy_down_read_whose_report_is_lost_is_to_be_had_after_its_deadline(
    rank: int,
) -> None:
    cache = two_ranks(deadline=5)
    publish(cache, text(1, 4 * 31))
    plan = cache.demote(8)
    assert plan is not None
    assert cache.dispatch() == [plan]
    cache.commit([by.Outcome(plan.flight, rank, 8)], now=1)
    with pytest.raises(by.NoRoom):
        begin(cache, text(2, 4))
    cache.commit([], now=5)
    lease = begin(cache, text(2, 4 * 31))
    # What it read is another's now: whatever is said of it later, nothing of it is found.
    cache.commit([by.Outcome(plan.flight, 1 - rank, 8)], now=6)
    cache.finish(lease)
    probe = cache.probe(text(1, 4 * 31))
    assert (probe.device, probe.host, cache.stats()["host_free"]) == (0, 0, 32)
    at_rest(cache)
