"""Requests of a higher priority: they take seats and room, and no work of others is lost."""

from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard.scheduling.displacement import Displacement
from blockyard.scheduling.headroom import Adaptive
from blockyard.scheduling.options import SchedulerOptions
from blockyard.scheduling.request import RequestState
from blockyard.scheduling.victims import Candidate
from loop import Loop, continuation
from yard import text

pytestmark = pytest.mark.law("INV-41")


def first_token(loop: Loop, request: str = "high", most: int = 20) -> int:
    """Runs until a request has a token; returns after how many steps."""
    for turns in range(1, most + 1):
        loop.turn()
        if loop.scheduler.sampled(request) or request in loop.results:
            return turns
    raise AssertionError(str(loop.scheduler.explain(request)))


def full(lows: int = 2, **keywords: Any) -> Loop:
    """Every seat is taken by requests with long answers and a priority of 0."""
    loop = Loop(**{"device": 200, "host": 200, "max_num_seqs": lows, **keywords})
    for name in range(lows):
        loop.add(name, text(name + 1, 8), 60)
    while any(loop.state(name) is not RequestState.DECODE for name in range(lows)):
        loop.turn()
    return loop


def crowded(lows: int = 2, prompt: int = 72, most: int = 60, **keywords: Any) -> Loop:
    """Seats are free, and requests with a priority of 0 hold nearly all of 40 blocks."""
    sizes = {"device": 41, "host": 200, "max_num_seqs": lows + 4, "max_num_batched_tokens": 256}
    loop = Loop(**{**sizes, **keywords})
    for name in range(lows):
        loop.add(name, text(name + 1, prompt), most)
    while any(loop.state(name) is not RequestState.DECODE for name in range(lows)):
        loop.turn()
    return loop


def ends_whole(loop: Loop, lows: int = 2, *, prompt: int = 8, most: int = 60) -> None:
    """All requests end with the tokens that they sample alone."""
    loop.finish(2000)
    for name in range(lows):
        assert loop.results[name].tokens.tolist() == continuation(name, prompt, most)


@pytest.mark.parametrize("stops", ["acked", "in-order"])
def test_a_higher_priority_takes_a_seat_and_nothing_is_lost(stops: Any) -> None:
    loop = full(stops=stops)
    loop.add("high", text(9, 10), 4, priority=5)
    assert first_token(loop) <= 3
    assert (loop.told("displaced"), loop.told("preempted"), loop.told("parkings")) == (1, 1, 1)
    assert loop.state(1) is RequestState.PARKED
    ends_whole(loop)
    assert loop.told("lost") == 0


@pytest.mark.parametrize("priority", [0, -1])
def test_no_request_takes_anything_of_its_equals_or_of_those_above(priority: int) -> None:
    loop = full()
    loop.add("late", text(9, 10), 4, priority=priority)
    loop.turn(20)
    assert (loop.told("displaced"), loop.state("late")) == (0, RequestState.WAITING)
    ends_whole(loop)
    loop = crowded()
    loop.add("late", text(9, 60), 4, priority=priority)
    loop.turn(3)
    assert (loop.told("displaced"), loop.state("late")) == (0, RequestState.WAITING)
    ends_whole(loop, prompt=72)


def test_where_it_is_switched_off_all_wait_their_turn() -> None:
    loop = full(priority_preemption=False)
    loop.add("high", text(9, 10), 4, priority=5)
    loop.turn(20)
    assert (loop.told("displaced"), loop.state("high")) == (0, RequestState.WAITING)
    ends_whole(loop)


@pytest.mark.parametrize("blocks", [0.0, 2.0])
def test_a_higher_priority_takes_room_and_nothing_is_lost(blocks: float) -> None:
    loop = crowded(headroom=Adaptive(blocks))
    loop.add("high", text(9, 60), 4, priority=5)
    assert first_token(loop) <= 8
    assert loop.told("displaced") >= 1
    ends_whole(loop, prompt=72)
    assert loop.told("lost") == 0


def test_no_more_leave_than_make_the_room() -> None:
    loop = crowded(6, 20, 5)
    loop.add("high", text(9, 40), 2, priority=5)
    assert first_token(loop) <= 8
    assert loop.told("displaced") == 1
    ends_whole(loop, 6, prompt=20, most=5)


def test_several_of_a_higher_priority_take_their_seats_together() -> None:
    loop = full(8, max_num_batched_tokens=256)
    for name in range(8):
        loop.add(f"high {name}", text(20 + name, 10), 4, priority=5)
    loop.turn(3)
    assert all(len(loop.scheduler.sampled(f"high {name}")) > 0 for name in range(8))
    assert loop.told("displaced") == 8
    ends_whole(loop, 8)


def test_several_of_a_higher_priority_take_their_room_together() -> None:
    loop = crowded(6, 20, 5)
    for name in range(4):
        loop.add(f"high {name}", text(20 + name, 24), 2, priority=5)
    loop.turn(12)
    tokens = [loop.scheduler.sampled(f"high {name}") for name in range(4)]
    assert all(tokens[at] or f"high {at}" in loop.results for at in range(4))
    ends_whole(loop, 6, prompt=20, most=5)


def test_of_three_priorities_the_lowest_leaves_first() -> None:
    loop = Loop(device=200, host=200, max_num_seqs=2)
    loop.add("low", text(1, 8), 60)
    loop.add("middle", text(2, 8), 60, priority=1)
    loop.turn(3)
    loop.add("high", text(3, 8), 4, priority=2)
    assert [stop.request for stop in loop.schedule().stops] == ["low"]
    loop.finish()


@pytest.mark.parametrize("rest", [0, 3, 12])
def test_who_was_displaced_runs_some_steps_before_it_is_so_again(rest: int) -> None:
    loop = full(lows=1, preempt_cooldown=rest)
    resumed = None
    for number in range(3):
        loop.add(number + 10, text(30 + number, 4), 1, priority=5)
        while number + 10 not in loop.results:
            loop.turn()
        tokens = len(loop.scheduler.sampled(0))
        assert resumed is None or tokens - resumed >= rest
        while loop.state(0) is not RequestState.DECODE:
            loop.turn()
        resumed = len(loop.scheduler.sampled(0)) - 1
    assert loop.told("displaced") == 3
    ends_whole(loop, 1)


def test_where_nothing_can_be_parked_it_is_recomputed() -> None:
    loop = full(host=0)
    loop.add("high", text(9, 10), 4, priority=5)
    assert first_token(loop) <= 3
    assert (loop.told("displaced"), loop.state(1)) == (1, RequestState.RECOMPUTE)
    ends_whole(loop)


@pytest.mark.parametrize("lows", [full, crowded])
def test_an_engine_that_cannot_recompute_parks_it_or_keeps_it(lows: Any) -> None:
    loop = lows(recompute=False)
    loop.add("high", text(9, 40), 4, priority=5)
    assert first_token(loop) <= 8
    assert loop.told("displaced") >= 1
    ends_whole(loop, prompt=8 if lows is full else 72)


@pytest.mark.parametrize("lows", [full, crowded])
def test_who_could_be_lost_stays(lows: Any) -> None:
    """The host has no room to park one: nobody is stopped, and the high one waits."""
    loop = lows(recompute=False, lows=1, device=41, host=1)
    loop.add("high", text(9, 60), 4, priority=5)
    loop.turn(6)
    assert (loop.told("displaced"), loop.state("high")) == (0, RequestState.WAITING)
    loop.finish(2000)
    assert all(result.state == "finished" for result in loop.results.values())


def test_nobody_leaves_where_that_would_not_make_the_room() -> None:
    """Most of the device is held by one of the same priority."""
    loop = Loop(device=41, host=200)
    loop.add("large", text(1, 110), 8, priority=5)
    loop.add("low", text(2, 30), 8)
    while loop.state("low") is not RequestState.DECODE:
        loop.turn()
    loop.add("high", text(3, 100), 4, priority=5)
    loop.turn(3)
    assert (loop.told("displaced"), loop.state("high")) == (0, RequestState.WAITING)
    loop.finish()


def test_rows_that_hold_the_same_blocks_leave_together() -> None:
    loop = Loop(device=41, host=200, max_num_seqs=6)
    loop.add("first", text(1, 120), 30)
    loop.turn(4)
    for name in ("second", "third"):
        loop.add(name, text(1, 120), 30)
    while loop.state("third") is not RequestState.DECODE:
        loop.turn()
    loop.add("high", text(9, 60), 4, priority=5)
    assert first_token(loop) <= 12
    loop.finish(1000)


def test_none_of_a_lower_priority_overtakes_while_room_is_made() -> None:
    """What was parked is on the device still, and could come back at once."""
    loop = crowded()
    loop.add("high", text(9, 90), 4, priority=5)
    loop.add("small", text(8, 4), 4)
    while not loop.told("displaced"):
        loop.turn()
    begun = len(loop.begun)
    assert first_token(loop) <= 8
    assert loop.begun[begun] == "high"
    ends_whole(loop, prompt=72)


@pytest.mark.parametrize("drafts", [0, 2])
def test_with_steps_in_flight_each_token_that_comes_counts(drafts: int) -> None:
    loop = full(num_speculative_tokens=drafts)
    loop.schedule()
    loop.schedule()
    loop.add("high", text(9, 10), 4, priority=5)
    loop.schedule()
    assert loop.told("stopping") == 1
    for _ in range(3):
        loop.output()
        loop.schedule()
    loop.ack()
    ends_whole(loop)


@pytest.mark.parametrize("when", ["stopping", "parked"])
def test_who_made_way_for_one_that_is_gone_goes_on(when: str) -> None:
    loop = full()
    loop.add("high", text(9, 10), 40, priority=5)
    loop.schedule()
    loop.output()
    if when == "parked":
        loop.ack()
        loop.turn(2)
    loop.scheduler.abort("high")
    ends_whole(loop)


@pytest.mark.parametrize("when", ["stopping", "parked"])
def test_who_made_way_can_be_aborted(when: str) -> None:
    loop = full()
    loop.add("high", text(9, 10), 4, priority=5)
    loop.schedule()
    loop.output()
    if when == "parked":
        loop.ack()
        loop.turn()
    loop.scheduler.abort(1)
    loop.finish()
    assert (loop.results[1].state, loop.results["high"].state) == ("aborted", "finished")


def test_a_held_row_leaves_first_and_a_held_request_takes_nothing() -> None:
    loop = full()
    loop.scheduler.pause_decoding(0)
    loop.turn()
    loop.add("high", text(9, 10), 4, priority=5)
    loop.scheduler.pause_decoding("high")
    loop.turn(3)
    assert loop.told("displaced") == 0
    loop.scheduler.resume_decoding("high")
    assert first_token(loop) <= 3
    assert (loop.state(0), loop.state(1)) == (RequestState.PARKED, RequestState.DECODE)
    loop.scheduler.resume_decoding(0)
    ends_whole(loop)


def test_samples_of_a_lower_priority_give_way_and_go_on() -> None:
    loop = Loop(device=200, host=200, max_num_seqs=3)
    loop.add("low", text(1, 8), 30, n=3)
    loop.turn(4)
    loop.add("high", text(9, 10), 4, priority=5, n=2)
    assert first_token(loop, ("high", 0), 5) <= 5  # type: ignore[arg-type]
    loop.finish()
    assert {result.state for result in loop.results.values()} == {"finished"}
    assert len(loop.results) == 5


def test_a_prompt_of_a_higher_priority_is_computed_first() -> None:
    loop = Loop(device=400, max_num_batched_tokens=16)
    loop.add("low", text(1, 400), 4)
    loop.turn()
    loop.add("high", text(9, 30), 4, priority=5)
    assert first_token(loop) <= 3
    assert loop.state("low") is RequestState.PREFILL
    loop.finish()


@pytest.mark.parametrize("drafts", [0, 1])
def test_rows_leave_half_the_budget_to_a_prompt_of_a_higher_priority(drafts: int) -> None:
    """Eight rows that decode have the whole budget."""
    budget = 8 * (1 + drafts)
    loop = full(8, max_num_batched_tokens=budget, num_speculative_tokens=drafts, max_num_seqs=9)
    loop.add("high", text(9, 12), 4, priority=5)
    assert first_token(loop) <= 4
    assert loop.told("displaced") == 0
    before = [len(loop.scheduler.sampled(name)) for name in range(8)]
    loop.turn(8)
    assert all(len(loop.scheduler.sampled(at)) > tokens for at, tokens in enumerate(before))
    ends_whole(loop, 8)


def test_it_is_said_who_gives_way_to_whom() -> None:
    loop = full()
    loop.add("high", text(9, 10), 4, priority=5)
    loop.schedule()
    assert "It gives way to request 'high', which has a higher priority." in str(
        loop.scheduler.explain(1)
    )
    assert "Requests of a lower priority that were preempted for it: 1." in str(
        loop.scheduler.explain("high")
    )
    loop.output()
    loop.ack()
    assert "It was preempted for request 'high', which has a higher priority." in str(
        loop.scheduler.explain(1)
    )
    loop.finish()


def test_who_finds_nobody_to_stop_looks_again_only_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All rest; each look takes time for every row."""
    looks = []
    right = Displacement._rows

    def rows(self: Displacement, highest: int) -> Any:
        looks.append(highest)
        return right(self, highest)

    monkeypatch.setattr(Displacement, "_rows", rows)
    loop = full(preempt_cooldown=1000)
    for request in loop.scheduler._lifecycle._requests.values():
        request.preempted = 1
    loop.add("high", text(9, 10), 4, priority=5)
    loop.turn(16)
    assert len(looks) == 2
    assert loop.told("displaced") == 0
    loop.finish()


def test_a_policy_that_raises_loses_nothing() -> None:
    class Raises:
        bad = False

        def rank(self, candidate: Candidate) -> tuple[int, ...]:
            if self.bad:
                raise ValueError(candidate)
            return (candidate.priority,)

    policy = Raises()
    loop = full(victim_policy=policy)
    loop.add("high", text(9, 10), 4, priority=5)
    policy.bad = True
    with pytest.raises(by.Misuse, match="raised ValueError"):
        loop.scheduler.schedule()
    policy.bad = False
    ends_whole(loop)


@pytest.mark.parametrize("priority", [1.5, "high", None, True, 2**31, np.float32(1)])
def test_a_priority_that_is_no_integer_is_refused_by_name(priority: Any) -> None:
    loop = full()
    with pytest.raises(by.Misuse, match="priority"):
        loop.add("high", text(9, 10), 4, priority=priority)
    assert loop.state("high") is None
    ends_whole(loop)


@pytest.mark.parametrize("value", ["yes", None, 2])
def test_the_option_is_a_yes_or_no(value: Any) -> None:
    with pytest.raises(by.Misuse, match="priority_preemption"):
        SchedulerOptions(priority_preemption=value)
