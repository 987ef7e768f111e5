"""Requests that are held: they decode nothing until someone reads their tokens again."""

import pytest

import blockyard as by
from blockyard.scheduling.request import RequestState
from loop import Loop, continuation, parked
from yard import text


def held(**keywords: object) -> Loop:
    """ "one" decodes and is held; "two" decodes."""
    loop = Loop(**keywords)  # type: ignore[arg-type]
    loop.add("one", text(1, 9), 12)
    loop.add("two", text(2, 9), 12)
    loop.turn(2)
    loop.scheduler.hold("one")
    return loop


def test_a_held_request_is_in_no_step_and_goes_on_at_the_same_token() -> None:
    loop = held()
    seat = loop.scheduler._lifecycle._requests["one"].seat
    before = loop.scheduler.sampled("one")
    for _ in range(3):
        assert seat not in loop.turn().seats
    assert loop.scheduler.sampled("one") == before
    assert "is held" in str(loop.scheduler.explain("one"))
    loop.scheduler.unhold("one")
    assert seat in loop.turn().seats
    loop.finish()
    assert loop.results["one"].tokens.tolist() == continuation("one", 9, 12)


def test_what_is_in_flight_when_it_is_held_counts() -> None:
    loop = Loop()
    loop.add("one", text(1, 9), 12)
    loop.turn(2)
    loop.schedule()
    before = len(loop.scheduler.sampled("one"))
    loop.scheduler.hold("one")
    loop.output()
    assert len(loop.scheduler.sampled("one")) == before + 1
    assert len(loop.turn()) == 0
    loop.scheduler.unhold("one")
    loop.finish()
    assert loop.results["one"].tokens.tolist() == continuation("one", 9, 12)


def test_a_request_that_is_held_before_its_prompt_is_computed_decodes_nothing() -> None:
    loop = Loop(max_num_batched_tokens=8)
    loop.add("one", text(1, 13), 5)
    loop.turn()
    loop.scheduler.hold("one")
    loop.turn(3)
    assert (loop.state("one"), len(loop.scheduler.sampled("one"))) == (RequestState.DECODE, 1)
    loop.scheduler.unhold("one")
    loop.finish()
    assert loop.results["one"].tokens.tolist() == continuation("one", 13, 5)


def test_a_waiting_request_that_is_held_is_overtaken_and_keeps_its_place() -> None:
    loop = Loop(max_num_seqs=1)
    loop.add("runs", text(1, 5), 9)
    loop.turn()
    loop.add("held", text(2, 5), 2)
    loop.add("next", text(3, 5), 2)
    loop.scheduler.hold("held")
    loop.scheduler.abort("runs")
    loop.turn(2)
    assert loop.begun == ["runs", "next"]
    assert "is held" in str(loop.scheduler.explain("held"))
    loop.add("last", text(4, 5), 2)
    loop.scheduler.unhold("held")
    loop.finish()
    assert loop.begun == ["runs", "next", "held", "last"]


def test_a_held_request_gives_its_room_to_one_that_waits_and_loses_no_work() -> None:
    loop = held(device=9, host=32)
    loop.scheduler.abort("two")
    loop.turn(2)
    loop.add("waits", text(3, 22), 4)
    for _ in range(12):
        loop.turn()
    assert loop.results["waits"].state is RequestState.FINISHED
    assert loop.state("one") is RequestState.PARKED
    assert (loop.told("parkings"), loop.told("lost")) == (1, 0)
    loop.scheduler.unhold("one")
    loop.finish()
    assert loop.results["one"].tokens.tolist() == continuation("one", 9, 12)
    assert loop.told("lost") == 0


def test_a_held_request_gives_its_seat_to_one_that_waits() -> None:
    loop = held(host=32, max_num_seqs=2)
    loop.add("waits", text(3, 5), 2)
    for _ in range(5):
        loop.turn()
    assert loop.results["waits"].state is RequestState.FINISHED
    assert loop.state("one") is RequestState.PARKED
    loop.scheduler.unhold("one")
    loop.finish()
    assert loop.results["one"].tokens.tolist() == continuation("one", 9, 12)


def test_a_held_request_gives_its_room_to_a_parked_one_before_it() -> None:
    """What the parked one has on the device is no room that comes to itself."""
    loop = parked()
    loop.scheduler.hold("old")
    while loop.state("new") is not None:
        loop.turn()
    assert loop.told("aged") == 0
    assert loop.state("old") is RequestState.PARKED
    loop.scheduler.unhold("old")
    loop.finish()
    for name in ("old", "new"):
        assert loop.results[name].tokens.tolist() == continuation(name, 14, 12)


@pytest.mark.parametrize("host", [0, 2])
def test_a_held_request_stays_where_its_work_would_be_lost(host: int) -> None:
    """Without a host, or with one too small, it could only be computed again."""
    loop = held(device=9, host=host)
    loop.scheduler.abort("two")
    loop.turn(2)
    loop.add("waits", text(3, 22), 4)
    loop.turn(8)
    assert (loop.state("one"), loop.state("waits")) == ("decode", "waiting")
    assert loop.told("preempted") == 0
    loop.scheduler.unhold("one")
    loop.finish()


def test_under_pressure_a_held_request_is_the_first_victim() -> None:
    loop = Loop(device=9, host=32)
    for name in ("old", "new"):
        loop.add(name, text(len(name) + (name == "new"), 14), 12)
    loop.turn(2)
    loop.scheduler.hold("old")
    while not loop.told("preempted"):
        loop.turn()
    assert loop.state("old") in {RequestState.STOPPING, RequestState.PARKED}
    loop.scheduler.unhold("old")
    loop.finish()
    for name in ("old", "new"):
        assert loop.results[name].tokens.tolist() == continuation(name, 14, 12)


def test_a_parked_request_that_is_held_comes_back_when_it_is_let_go() -> None:
    loop = parked()
    loop.scheduler.hold("new")
    while loop.state("old") is not None:
        loop.turn()
    loop.turn(3)
    assert loop.state("new") is RequestState.PARKED
    loop.scheduler.unhold("new")
    loop.finish()
    assert loop.results["new"].tokens.tolist() == continuation("new", 14, 12)


def test_a_held_request_can_be_aborted_anywhere() -> None:
    loop = held()
    loop.scheduler.abort("one")
    loop.add("later", text(3, 5), 3)
    loop.scheduler.hold("later")
    loop.scheduler.abort("later")
    loop.finish()
    assert {loop.results[name].state for name in ("one", "later")} == {RequestState.ABORTED}


def test_holding_twice_is_holding_once_and_of_no_request_is_refused() -> None:
    loop = held()
    loop.scheduler.hold("one")
    loop.scheduler.unhold("one")
    loop.scheduler.unhold("one")
    for verb in (loop.scheduler.hold, loop.scheduler.unhold):
        with pytest.raises(by.Misuse, match="there is no request 'none'"):
            verb("none")
    loop.finish()


def test_other_samples_do_not_wait_for_one_that_is_held_before_its_turn() -> None:
    loop = Loop()
    loop.scheduler.add("a", text(1, 9), max_tokens=3, n=3)
    loop.scheduler.hold(("a", 0))
    for _ in range(6):
        loop.turn()
    assert {("a", 1), ("a", 2)} <= set(loop.results)
    assert loop.told("forked") == 1
    loop.scheduler.unhold(("a", 0))
    loop.finish()
    assert loop.results["a", 0].tokens.tolist() == continuation(("a", 0), 9, 3)
