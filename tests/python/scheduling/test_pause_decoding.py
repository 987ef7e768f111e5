"""Requests that are held: they decode nothing until someone reads their tokens again."""

import pytest

import blockyard as by
from blockyard.scheduling.headroom import Watermark
from blockyard.scheduling.request import RequestState
from loop import Loop, continuation, parked
from yard import text


def held(**keywords: object) -> Loop:
    """ "one" decodes and is held; "two" decodes."""
    loop = Loop(**keywords)  # type: ignore[arg-type]
    loop.add("one", text(1, 9), 12)
    loop.add("two", text(2, 9), 12)
    loop.turn(2)
    loop.scheduler.pause_decoding("one")
    return loop


def test_a_held_request_is_in_no_step_and_goes_on_at_the_same_token() -> None:
    loop = held()
    seat = loop.scheduler._lifecycle._requests["one"].seat
    before = loop.scheduler.sampled("one")
    for _ in range(3):
        assert seat not in loop.turn().seats
    assert loop.scheduler.sampled("one") == before
    assert "is held" in str(loop.scheduler.explain("one"))
    loop.scheduler.resume_decoding("one")
    assert seat in loop.turn().seats
    loop.finish()


def test_what_is_in_flight_when_it_is_held_counts() -> None:
    loop = Loop()
    loop.add("one", text(1, 9), 12)
    loop.turn(2)
    loop.schedule()
    before = len(loop.scheduler.sampled("one"))
    loop.scheduler.pause_decoding("one")
    loop.output()
    assert len(loop.scheduler.sampled("one")) == before + 1
    assert len(loop.turn()) == 0
    loop.scheduler.resume_decoding("one")
    loop.finish()


def test_a_request_that_is_held_before_its_prompt_is_computed_decodes_nothing() -> None:
    loop = Loop(max_num_batched_tokens=8)
    loop.add("one", text(1, 13), 5)
    loop.turn()
    loop.scheduler.pause_decoding("one")
    loop.turn(3)
    assert (loop.state("one"), len(loop.scheduler.sampled("one"))) == (RequestState.DECODE, 1)
    loop.scheduler.resume_decoding("one")
    loop.finish()


def test_a_waiting_request_that_is_held_is_overtaken_and_keeps_its_place() -> None:
    loop = Loop(max_num_seqs=1)
    loop.add("runs", text(1, 5), 9)
    loop.turn()
    loop.add("held", text(2, 5), 2)
    loop.add("next", text(3, 5), 2)
    loop.scheduler.pause_decoding("held")
    loop.scheduler.abort("runs")
    loop.turn(2)
    assert loop.begun == ["runs", "next"]
    assert "is held" in str(loop.scheduler.explain("held"))
    loop.add("last", text(4, 5), 2)
    loop.scheduler.resume_decoding("held")
    loop.finish()
    assert loop.begun == ["runs", "next", "held", "last"]


def test_a_held_request_gives_its_room_to_one_that_waits_and_loses_no_work() -> None:
    loop = held(device=9, host=32)
    loop.scheduler.abort("two")
    loop.turn(2)
    loop.add("waits", text(3, 22), 4)
    loop.turn(12)
    assert loop.results["waits"].state is RequestState.FINISHED
    assert loop.state("one") is RequestState.PARKED
    assert (loop.told("parkings"), loop.told("lost")) == (1, 0)
    loop.scheduler.resume_decoding("one")
    loop.finish()
    assert loop.told("lost") == 0


def test_a_held_request_gives_its_seat_to_one_that_waits() -> None:
    loop = held(host=32, max_num_seqs=2)
    loop.add("waits", text(3, 5), 2)
    loop.turn(5)
    assert loop.results["waits"].state is RequestState.FINISHED
    assert loop.state("one") is RequestState.PARKED
    loop.scheduler.resume_decoding("one")
    loop.finish()


def test_a_held_request_gives_its_room_to_a_parked_one_before_it() -> None:
    """What the parked one has on the device is no room that comes to itself."""
    loop = parked()
    loop.scheduler.pause_decoding("old")
    while loop.state("new") is not None:
        loop.turn()
    assert loop.told("aged") == 0
    assert loop.state("old") is RequestState.PARKED
    loop.scheduler.resume_decoding("old")
    loop.finish()


@pytest.mark.parametrize("host", [0, 2])
def test_a_held_request_without_a_place_below_is_computed_again_when_it_is_read(host: int) -> None:
    loop = held(device=9, host=host)
    loop.scheduler.abort("two")
    loop.turn(2)
    loop.add("waits", text(3, 22), 4)
    loop.turn(8)
    assert loop.results["waits"].state is RequestState.FINISHED
    assert (loop.state("one"), loop.told("preempted")) == (RequestState.RECOMPUTE, 1)
    loop.scheduler.resume_decoding("one")
    loop.finish()


WAYS: list[dict[str, object]] = [{}, {"host": 2}, {"host": 64, "preempt_mode": "recompute"}]


@pytest.mark.parametrize("keywords", [{"host": 64}, *WAYS])
def test_as_many_unread_requests_as_there_are_seats_stop_nobody(
    keywords: dict[str, object],
) -> None:
    loop = held(max_num_seqs=2, **keywords)
    loop.scheduler.pause_decoding("two")
    for name in ("three", "four"):
        loop.add(name, text(3, 9), 3)
        loop.turn(8)
        assert loop.results[name].state is RequestState.FINISHED
    for name in ("one", "two"):
        loop.scheduler.resume_decoding(name)
    loop.finish()


@pytest.mark.parametrize(("blocks", "leave"), [(10, 0), (11, 1), (13, 1), (14, 2), (16, 2)])
@pytest.mark.parametrize("host", [0, 64])
def test_as_many_held_rows_leave_as_are_needed_and_no_more(
    host: int, blocks: int, leave: int
) -> None:
    """Of 16 blocks each has 3, and 10 are free."""
    loop = held(device=17, host=host)
    loop.turn()
    loop.scheduler.pause_decoding("two")
    assert loop.cache.room().available == 10
    loop.add("waits", text(3, 4 * blocks), 1)
    loop.turn(8)
    assert loop.results["waits"].state is RequestState.FINISHED
    assert loop.told("preempted") == leave
    for name in ("one", "two"):
        loop.scheduler.resume_decoding(name)
    loop.finish()


@pytest.mark.parametrize("waiting", [1, 2])
def test_as_many_held_rows_give_up_their_seats_as_are_needed(waiting: int) -> None:
    loop = held(max_num_seqs=2)
    loop.scheduler.pause_decoding("two")
    for at in range(waiting):
        loop.add(at, text(at + 3, 5), 9)
    loop.turn(6)
    assert [loop.state(at) for at in range(waiting)] == [RequestState.DECODE] * waiting
    assert loop.told("preempted") == waiting
    for name in ("one", "two"):
        loop.scheduler.resume_decoding(name)
    loop.finish()


def test_of_two_held_rows_the_one_leaves_whose_work_is_kept() -> None:
    loop = Loop(host=3, max_num_seqs=2)
    loop.add("short", text(1, 9), 12)
    loop.add("long", text(2, 40), 12)  # it comes last, and does not fit below
    loop.turn(2)
    for name in ("short", "long"):
        loop.scheduler.pause_decoding(name)
    loop.add("waits", text(3, 5), 2)
    loop.turn(6)
    assert loop.results["waits"].state is RequestState.FINISHED
    assert (loop.state("short"), loop.state("long")) == (RequestState.PARKED, RequestState.DECODE)
    assert loop.told("lost") == 0
    for name in ("short", "long"):
        loop.scheduler.resume_decoding(name)
    loop.finish()


def test_a_host_full_of_parked_unread_requests_keeps_no_seat_and_no_room() -> None:
    loop = Loop(device=17, host=4, max_num_seqs=1)
    for at in range(4):
        loop.add(at, text(at + 1, 9), 12)
        loop.turn(9)
        loop.scheduler.pause_decoding(at)
    assert [loop.state(at) for at in range(4)].count(RequestState.PARKED) == 1
    loop.add("last", text(9, 50), 4)
    loop.turn(14)
    assert loop.results["last"].state is RequestState.FINISHED
    for at in range(4):
        loop.scheduler.resume_decoding(at)
    loop.finish()


def test_a_request_that_stood_aside_gets_the_seat_of_a_held_one() -> None:
    """It was set aside while another one computed their prefix, and so stands in no line."""
    loop = Loop(device=17, host=40, max_num_seqs=2)
    shared = text(9, 4)
    for at, name in enumerate("abc"):
        loop.add(name, shared + text(at + 1, 5), 12)
    loop.turn(2)
    for name in "ab":
        loop.scheduler.pause_decoding(name)
    loop.turn(20)
    assert loop.results["c"].state is RequestState.FINISHED
    assert loop.told("preempted") == 1
    for name in "ab":
        loop.scheduler.resume_decoding(name)
    loop.finish()


def test_while_another_one_computes_its_prefix_no_held_row_leaves_for_it() -> None:
    loop = Loop(device=49, host=40, max_num_seqs=3, max_num_batched_tokens=9)
    loop.add("held", text(1, 5), 12)
    loop.turn(2)
    loop.scheduler.pause_decoding("held")
    loop.add("computes", text(2, 40), 4)
    loop.add("aside", text(2, 40), 4)
    loop.add("runs", text(3, 5), 20)
    loop.turn(3)
    assert (loop.state("computes"), loop.state("aside")) == ("prefill", "waiting")
    assert loop.told("preempted") == 0
    loop.turn(6)
    assert loop.told("preempted") == 1
    assert loop.begun[-1] == "aside"
    loop.scheduler.resume_decoding("held")
    loop.finish()


def test_a_held_row_keeps_no_headroom() -> None:
    loop = held(device=17, headroom=Watermark(8))
    loop.scheduler.abort("two")
    loop.turn(2)
    assert (loop.scheduler.headroom, loop.scheduler.running) == (0, 0)
    loop.add("waits", text(3, 40), 4)
    loop.turn()
    assert loop.begun[-1] == "waits"
    loop.scheduler.resume_decoding("one")
    assert loop.scheduler.running == 2
    loop.turn()
    assert loop.scheduler.headroom > 0
    loop.finish()
    assert loop.told("no_room") == 0


def test_a_prompt_computed_for_a_held_request_takes_its_headroom_away() -> None:
    loop = Loop(device=17, headroom=Watermark(8))
    loop.add("one", text(1, 9), 12)
    loop.schedule()
    loop.scheduler.pause_decoding("one")
    loop.output()
    assert (loop.scheduler.headroom, loop.scheduler.running) == (0, 0)
    loop.scheduler.resume_decoding("one")
    loop.finish()


def test_a_held_request_that_waits_gives_its_ticket_back_where_others_lack_room() -> None:
    loop = Loop(device=9)
    loop.add("runs", text(2, 3), 25)
    loop.add("one", text(1, 9), 3, ticket=loop.cache.promise(6))
    loop.scheduler.pause_decoding("one")
    loop.turn()
    loop.add("two", text(2, 12), 2)
    loop.turn(5)
    assert loop.results["two"].state is RequestState.FINISHED
    loop.turn(12)  # the row grows beyond what the ticket had left
    assert loop.told("skipped") == 0
    loop.scheduler.resume_decoding("one")
    loop.finish()


def test_other_samples_do_not_wait_for_a_leader_that_is_held_and_was_preempted() -> None:
    loop = Loop(max_num_batched_tokens=8)
    loop.scheduler.add(by.NewRequest("a", text(1, 21), max_tokens=3, n=4))
    loop.turn()
    for at in (0, 1):
        loop.scheduler.pause_decoding(("a", at))
    loop.scheduler.update_weights()  # it is stopped in the midst of its prompt
    loop.turn(12)
    assert {("a", 2), ("a", 3)} <= set(loop.results)
    for at in (0, 1):
        loop.scheduler.resume_decoding(("a", at))
    loop.finish()
    for at in range(4):
        assert loop.results["a", at].tokens.tolist() == continuation(("a", at), 21, 3)


def test_other_samples_do_not_wait_for_a_held_one_that_leads_them_in_place_of_one_that_ended() -> (
    None
):
    loop = Loop()
    loop.scheduler.add(by.NewRequest("a", text(1, 9), max_tokens=3, n=3))
    loop.scheduler.pause_decoding(("a", 1))
    loop.scheduler.abort(("a", 0))
    loop.turn(6)
    assert loop.results["a", 2].state is RequestState.FINISHED
    loop.scheduler.resume_decoding(("a", 1))
    loop.finish()


# -- where nothing can be recomputed


def bound(most: int, **keywords: object) -> Loop:
    """Two requests of an engine that cannot recompute are held, and there is no room to park."""
    loop = held(recompute=False, max_num_seqs=2, max_held_steps=most, **keywords)
    loop.scheduler.pause_decoding("two")
    return loop


def test_where_nothing_is_recomputed_one_fails_when_it_has_kept_others_waiting_too_long() -> None:
    loop = bound(5)
    for _ in range(20):
        loop.turn()  # nobody waits
    loop.add("waits", text(3, 9), 3)
    loop.turn(5)
    assert loop.results == {}
    loop.turn()
    assert loop.state("waits") is RequestState.WAITING
    result = loop.results["two"]
    assert (result.state, result.tokens.tolist()) == ("failed", continuation("two", 9, 3)[:2])
    assert result.reason.startswith("unread: it was held, and kept others waiting for 6 steps")
    loop.turn(5)
    assert loop.results["waits"].state is RequestState.FINISHED
    assert loop.state("one") is RequestState.DECODE
    loop.scheduler.resume_decoding("one")
    loop.finish()
    assert loop.results["one"].tokens.tolist() == continuation("one", 9, 12)


def test_one_that_was_read_in_between_has_all_its_steps_again() -> None:
    loop = bound(5)
    loop.add("waits", text(3, 9), 3)
    loop.turn(3)
    loop.scheduler.resume_decoding("two")
    loop.turn()
    loop.scheduler.pause_decoding("two")
    loop.turn()
    assert loop.results == {}
    loop.turn()
    assert list(loop.results) == ["one"]
    loop.scheduler.resume_decoding("two")
    loop.finish()
    assert loop.results["two"].state is RequestState.FINISHED


def test_parked_unread_requests_fail_where_others_may_not_begin_beside_them() -> None:
    """What is parked keeps its claim below: nobody may begin beside it that could not be parked."""
    loop = Loop(device=9, host=8, recompute=False, max_held_steps=3)
    loop.add("one", text(1, 9), 12)
    loop.turn(2)
    loop.scheduler.pause_decoding("one")
    loop.add("two", text(2, 9), 12)
    loop.turn(2)
    loop.scheduler.pause_decoding("two")
    loop.add("three", text(3, 22), 4)
    loop.turn(16)
    assert loop.results["three"].state is RequestState.FINISHED
    assert any(result.reason.startswith("unread") for result in loop.results.values())
    for name in set(loop.scheduler.requests):
        loop.scheduler.resume_decoding(name)
    loop.finish()


def test_while_one_fails_no_other_does_until_its_ack_has_come() -> None:
    """What it gives back may be enough; its claim counts until then."""
    loop = Loop(device=9, host=3, recompute=False, max_held_steps=2)
    for at in (1, 2):
        loop.add(at, text(at, 5), 4)
    loop.turn(2)
    for at in (1, 2):
        loop.scheduler.pause_decoding(at)
    loop.add("waits", text(3, 22), 4)
    for _ in range(12):
        loop.schedule()
        loop.land()
        loop.output()
    assert [loop.state(at) for at in (1, 2)] == [RequestState.DECODE, RequestState.STOPPING]
    loop.scheduler.resume_decoding(1)
    loop.finish()
    assert loop.results[1].state is RequestState.FINISHED
    assert loop.results["waits"].state is RequestState.FINISHED


def test_unread_requests_that_keep_others_waiting_are_named() -> None:
    loop = bound(1000)
    loop.add("waits", text(3, 9), 3)
    for _ in range(90):
        loop.now += 1.0
        loop.turn()
    (sentence,) = loop.scheduler.stalled()
    assert sentence.startswith("Request 'waits' waits (76 steps, 76.0 s) for held requests, whose")
    assert (
        "tokens are not read: 'two', 'one'. Read their tokens and call resume_decoding" in sentence
    )
    assert "one fails after 1,000 steps in which others wait" in sentence
    said = str(loop.scheduler.explain("waits"))
    assert "kept by held requests, whose tokens are not read: 'two', 'one'." in said
    loop.scheduler.abort("one")
    loop.turn(2)
    assert loop.scheduler.stalled() == ()
    loop.scheduler.resume_decoding("two")
    loop.finish()


def test_a_parked_request_that_is_read_does_not_fail_as_the_device_is_full() -> None:
    """Nothing is counted against those that are parked where others wait for rows that compute."""
    loop = Loop(device=17, host=64, recompute=False, max_held_steps=2, max_num_seqs=2)
    loop.add("one", text(1, 9), 12)
    loop.turn(2)
    loop.scheduler.pause_decoding("one")
    for at in range(2, 5):
        loop.add(at, text(at, 30), 20)
    loop.turn(80)
    assert loop.state("one") is RequestState.PARKED
    assert {loop.results[at].state for at in range(2, 5)} == {RequestState.FINISHED}
    loop.scheduler.resume_decoding("one")
    loop.finish()
    assert loop.results["one"].tokens.tolist() == continuation("one", 9, 12)


def test_under_pressure_a_held_request_is_the_first_victim() -> None:
    loop = Loop(device=9, host=32)
    for name in ("old", "new"):
        loop.add(name, text(len(name) + (name == "new"), 14), 12)
    loop.turn(2)
    loop.scheduler.pause_decoding("old")
    while not loop.told("preempted"):
        loop.turn()
    assert loop.state("old") in {RequestState.STOPPING, RequestState.PARKED}
    loop.scheduler.resume_decoding("old")
    loop.finish()


def test_a_parked_request_that_is_held_comes_back_when_it_is_let_go() -> None:
    loop = parked()
    loop.scheduler.pause_decoding("new")
    while loop.state("old") is not None:
        loop.turn()
    loop.turn(3)
    assert loop.state("new") is RequestState.PARKED
    loop.scheduler.resume_decoding("new")
    loop.finish()


def test_a_held_request_can_be_aborted_anywhere() -> None:
    loop = held()
    loop.scheduler.abort("one")
    loop.add("later", text(3, 5), 3)
    loop.scheduler.pause_decoding("later")
    loop.scheduler.abort("later")
    loop.finish()
    assert {loop.results[name].state for name in ("one", "later")} == {RequestState.ABORTED}


def test_holding_twice_is_holding_once_and_of_no_request_is_refused() -> None:
    loop = held()
    loop.scheduler.pause_decoding("one")
    loop.scheduler.resume_decoding("one")
    loop.scheduler.resume_decoding("one")
    for verb in (loop.scheduler.pause_decoding, loop.scheduler.resume_decoding):
        with pytest.raises(by.Misuse, match="there is no request 'none'"):
            verb("none")
    loop.finish()


def test_other_samples_do_not_wait_for_one_that_is_held_before_its_turn() -> None:
    loop = Loop()
    loop.scheduler.add(by.NewRequest("a", text(1, 9), max_tokens=3, n=3))
    loop.scheduler.pause_decoding(("a", 0))
    loop.turn(6)
    assert {("a", 1), ("a", 2)} <= set(loop.results)
    assert loop.told("forked") == 1
    loop.scheduler.resume_decoding(("a", 0))
    loop.finish()
    assert loop.results["a", 0].tokens.tolist() == continuation(("a", 0), 9, 3)
