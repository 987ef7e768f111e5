"""Stops, acks, ends and resets: each request ends once; a seat is reused after its ack."""

from dataclasses import astuple, replace
from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard.scheduling.engine import Ack, Output
from blockyard.scheduling.request import RequestState
from interrupted import Interrupter
from loop import U32, Loop, column, parked, stopping
from yard import publish_below, text


@pytest.mark.law("INV-9")
def test_acks_that_come_with_an_output_are_taken_also_where_all_decode() -> None:
    """The output is plain but for its acks (INV-9)."""
    loop = Loop()
    for name in range(2):
        loop.add(name, text(name + 1, 6), 9)
    loop.turn(2)
    loop.scheduler.abort(0)
    loop.schedule()
    acks = tuple(Ack(*stop) for stop in loop.stops)
    loop.scheduler.on_output(replace(loop.compute(), acks=acks))
    loop.stops.clear()
    loop.bound.pop(0)
    loop.look()
    assert (loop.results[0].state, loop.told("seats")) == (RequestState.ABORTED, 1)
    loop.finish()


@pytest.mark.law("T8")
@pytest.mark.parametrize("drafts", [0, 2])
def test_a_first_token_and_drafts_that_come_before_the_ack_count(drafts: int) -> None:
    """Rows with drafts and rows without are alike (T8)."""
    loop = Loop(num_speculative_tokens=drafts, accept=1 + drafts)
    loop.add("one", 10, 20)
    if drafts:
        loop.turn()
    loop.schedule()
    loop.scheduler.update_weights()
    loop.schedule()
    loop.output()
    assert loop.state("one") is RequestState.STOPPING
    assert len(loop.scheduler._lifecycle._requests["one"].outputs) == (4 if drafts else 1)
    loop.finish()


@pytest.mark.law("T9")
def test_what_is_computed_while_it_stops_is_published_by_its_ack() -> None:
    """The second chunk was in flight when the stop was sent (T9)."""
    loop = Loop(max_num_batched_tokens=6)
    loop.add("one", text(1, 30), 4)
    loop.turn()
    loop.schedule()
    loop.scheduler.abort("one")
    loop.schedule()
    loop.output()
    loop.output()
    loop.ack()
    assert loop.cache.probe(text(1, 30)).device == 3
    loop.finish()


@pytest.mark.law("R4-2")
@pytest.mark.parametrize("token", [0, 1, 2**32 - 1, 2**32 - 3, 2**32 - 9, 2**31])
def test_no_token_value_is_an_end(token: int) -> None:
    """The output says nothing else of the row (R4-2)."""
    loop = Loop()
    loop.add("one", 6, 5)
    loop.asked.clear()
    for _ in range(5):
        loop.schedule()
        said = loop.compute()
        loop.scheduler.on_output(replace(said, tokens=np.full(len(said.tokens), token, U32)))
    loop.look()
    result = loop.results["one"]
    assert (result.reason, result.tokens.tolist()) == ("length", [token] * 5)
    loop.finish()


@pytest.mark.law("INV-11")
def test_a_request_that_reaches_its_length_while_it_is_aborted_ends_once() -> None:
    """The ack of the abort ends no request (INV-11)."""
    loop = Loop()
    loop.add("one", 10, 3)
    loop.turn(2)
    loop.schedule()
    loop.scheduler.abort("one")
    loop.schedule()
    loop.output()
    assert loop.results["one"].state is RequestState.FINISHED
    loop.finish()


@pytest.mark.law("T35")
def test_a_request_that_the_engine_ends_at_its_very_length_has_reached_its_length() -> None:
    """Its seat is free at once all the same (T35)."""
    loop = Loop()
    loop.add("one", 10, 3)
    loop.turn(2)
    loop.schedule()
    loop.output(ends=["one"])
    assert (loop.results["one"].reason, loop.told("seats")) == ("length", 0)
    loop.finish()


@pytest.mark.law("T28")
def test_what_is_computed_for_a_request_that_ended_before_its_ack_is_counted_and_dropped() -> None:
    """The next step, a plain one, was in flight when its end was seen (T28)."""
    loop = Loop()
    loop.add("one", 10, 9)
    loop.turn(2)
    loop.schedule()
    loop.schedule()
    loop.scheduler.update_weights()
    loop.output(ends=["one"])
    assert loop.results["one"].reason == "stop"
    step = loop.air.popleft()
    loop.scheduler.on_output(Output(step.number, step.decode, column(7, kind=U32)))
    assert loop.told("outputs_ignored") == 1
    loop.turn(lands=False)
    loop.finish()


@pytest.mark.law("T26")
def test_where_stops_hold_in_order_the_output_of_their_step_ends_the_stopped_request() -> None:
    """The step is a plain one, and the other rows decode on (T26)."""
    loop = Loop(stops="in-order")
    for name in range(2):
        loop.add(name, text(name + 1, 6), 9)
    loop.turn(2)
    loop.scheduler.abort(0)
    loop.schedule()
    loop.output()
    assert (loop.results[0].state, loop.told("seats")) == (RequestState.ABORTED, 1)
    loop.stops.clear()
    loop.bound.pop(0)
    loop.finish()


@pytest.mark.law("INV-8", "T8")
def test_a_row_that_stops_and_was_not_computed_any_more_is_not_counted() -> None:
    """An engine that acks stops may leave a row out of a step that has it (INV-8)."""
    loop = Loop(host=32)
    for name in range(2):
        loop.add(name, text(name + 1, 6), 9)
    loop.turn(2)
    loop.schedule()
    loop.scheduler._lifecycle.stop(loop.scheduler._shared.seats.bound()[1])
    step = loop.air.popleft()
    loop.scheduler.on_output(Output(step.number, column(0), column(7, kind=U32)))
    loop.schedule()
    loop.ack()
    parked = loop.handle(1)
    assert (parked.computed, parked.appended) == (7, 8)


@pytest.mark.law("T35")
def test_the_scheduler_is_busy_while_a_step_computes_in_blocks_of_an_ended_request() -> None:
    """A loop that stopped now would leave its blocks held (T35)."""
    loop = Loop()
    loop.add("one", 10, 9)
    loop.turn(2)
    for _ in range(2):
        loop.schedule()
    loop.output(ends=["one"])
    assert (loop.told("seats"), loop.scheduler.idle) == (0, False)
    loop.output()
    assert loop.scheduler.idle
    loop.finish()


@pytest.mark.law("T29")
def test_absence_counts_from_the_first_time_that_a_stop_was_sent() -> None:
    """An ack from before the stop was repeated counts as well (T29)."""
    loop = stopping()
    loop.schedule()
    loop.output()
    number = loop.scheduler._batch.number
    loop.scheduler.reconcile([0, 1], number - 1)
    loop.schedule()
    loop.output()
    loop.scheduler.reconcile([0], number)
    assert loop.state("new") is RequestState.RECOMPUTE
    loop.stops.clear()
    loop.bound.pop(1)
    loop.finish()


@pytest.mark.law("INV-9")
def test_epochs_of_a_request_rise_from_seat_to_seat() -> None:
    """Acks of an earlier stay are older, whichever seat that was (INV-9)."""
    loop = Loop(max_num_seqs=2)
    loop.add("first", text(1, 6), 9)
    loop.add("moves", text(2, 6), 20)
    begun = []
    for _ in range(30):
        begun += [one[1:3] for one in map(astuple, loop.turn().starts) if one[0] == "moves"]
        bound = {seat.request.id: seat for seat in loop.scheduler._shared.seats.bound()}
        moves = bound.get("moves")
        if moves is not None and moves.stop is None and len(begun) < (4 if len(bound) < 2 else 3):
            loop.scheduler._lifecycle.stop(moves)
    assert begun[:4] == [(1, 1), (1, 3), (1, 5), (0, 7)]
    loop.finish()


@pytest.mark.law("T7")
def test_steps_that_ran_a_seat_are_those_of_the_request_in_it() -> None:
    """The cooldown counts from its own return, not from an earlier bind of the seat (T7)."""
    loop = Loop(max_num_seqs=1)
    loop.add("first", text(1, 6), 5)
    loop.add("second", text(2, 6), 5)
    while loop.state("second") is RequestState.WAITING:
        loop.turn()
    assert "1 steps ran it" in str(loop.scheduler.explain("second"))
    loop.finish()


@pytest.mark.law("T33")
@pytest.mark.parametrize("sent", [False, True])
def test_a_stop_of_before_a_reset_is_not_sent_after_it(sent: bool) -> None:
    """The engine has forgotten the seat, and another request may have it by then (T33)."""
    loop = Loop()
    loop.add("one", text(1, 10), 6)
    loop.turn(2)
    loop.scheduler.abort("one")
    if sent:
        number = loop.schedule().number
        loop.scheduler.reconcile([0], number)
    loop.scheduler.reset()
    loop.air.clear()
    loop.stops.clear()
    loop.bound.clear()
    loop.add("two", text(2, 10), 6)
    step = loop.schedule()
    assert (step.stops, [start.seat for start in step.starts]) == ((), [0])
    loop.finish()
    assert [loop.results[name].state for name in ("one", "two")] == [
        RequestState.ABORTED,
        RequestState.FINISHED,
    ]


@pytest.mark.law("T33")
def test_a_reset_gives_back_what_was_held_for_steps_that_are_never_done() -> None:
    """Their outputs come no more, and what they wrote is gone (T33)."""
    loop = Loop()
    loop.add("one", 10, 9)
    loop.turn(2)
    for _ in range(2):
        loop.schedule()
    loop.output(ends=["one"])
    room = loop.cache.room()
    assert room.free + room.evictable < 32
    assert not loop.scheduler.idle
    loop.scheduler.reset()
    loop.air.clear()
    room = loop.cache.room()
    assert (room.free + room.evictable, loop.scheduler.idle) == (32, True)
    loop.finish()


def persistent(device: int) -> by.KVCache:
    """Its host is slot files, which outlive the ranks' processes."""
    return by.KVCache(block_size=4, device=device, host=32, keyed=("host",), ahead=0)


def was_reset(loop: Loop, **keywords: Any) -> None:
    loop.scheduler.reset(**keywords)
    for of_before in (loop.air, loop.stops, loop.bound, loop.plans):
        of_before.clear()


@pytest.mark.law("INV-24")
def test_where_the_disk_is_kept_what_ran_loads_from_it_after_a_reset() -> None:
    cache = persistent(33)
    publish_below(cache, text(1, 12))
    loop = Loop(cache=cache)
    loop.add("one", text(1, 14), 5)
    loop.add("two", text(2, 14), 9)
    loop.turn(3)
    assert loop.state("one") is RequestState.DECODE
    was_reset(loop, memory="disk kept")
    assert cache.probe(text(1, 12)).host == 3
    assert cache.stats()["device_free"] == 32
    loop.schedule()
    assert (loop.state("one"), loop.state("two")) == (RequestState.LOADING, RequestState.PREFILL)
    loop.land()
    loop.finish()


@pytest.mark.law("INV-24")
def test_where_the_disk_is_kept_what_is_parked_there_stays_so_through_a_reset() -> None:
    loop = parked(cache=persistent(9))
    while loop.handle().on_device:
        loop.cache.demote(8, of=loop.handle())
        loop.plans += loop.cache.dispatch()
        loop.land()
    was_reset(loop, memory="disk kept")
    assert (loop.state("new"), loop.handle().state) == (RequestState.PARKED, "kept")
    loop.finish()


def test_a_reset_with_another_word_for_memory_changes_nothing() -> None:
    loop = Loop()
    loop.add("one", 10, 3)
    loop.turn()
    for memory, why in (("kept", "memory = "), ("disk kept", "no tier is keyed")):
        with pytest.raises(by.Misuse, match=why):
            loop.scheduler.reset(memory=memory)  # type: ignore[arg-type]
    loop.finish()
    assert loop.results["one"].state is RequestState.FINISHED


@pytest.mark.law("T33")
def test_a_request_that_was_failing_at_a_reset_fails_for_its_own_reason() -> None:
    """That nobody has read it has ended it, not the reset (T33)."""
    loop = Loop(recompute=False, max_num_seqs=1, max_held_steps=0)
    loop.add("one", 6, 20)
    loop.turn(3)
    loop.scheduler.pause_decoding("one")
    loop.add("waits", 6, 2)
    loop.until_stopping("one")
    loop.scheduler.reset(requests="abort")
    loop.stops.clear()
    loop.bound.clear()
    loop.look()
    result = loop.results["one"]
    assert (result.state, result.reason[:6]) == (RequestState.FAILED, "unread")
    loop.finish()


@pytest.mark.law("T29")
def test_what_a_dead_engine_that_stops_in_order_still_says_gives_no_block_back() -> None:
    """Only a reset shows that the engine writes no more; its news may lack some steps (T29)."""
    loop = Loop(device=9, stops="in-order")
    for name in range(3):
        loop.add(name, text(name + 1, 6), 9)
    loop.turn(2)
    loop.schedule()
    loop.scheduler.abort(0)
    loop.schedule()
    loop.scheduler.fail()
    held, seats = loop.cache.stats()["device_pinned"], loop.told("seats")
    outputs = [loop.compute(), loop.compute()]
    for output in reversed(outputs):
        loop.scheduler.on_output(output)
    assert (loop.cache.stats()["device_pinned"], loop.told("seats")) == (held, seats)
    assert loop.told("outputs_ignored") == sum(len(output.seats) for output in outputs)
    loop.look()
    assert [len(loop.results[name].tokens) for name in range(3)] == [2, 2, 2]
    loop.scheduler.reset()
    assert (loop.cache.stats()["device_pinned"], loop.told("seats")) == (0, 0)
    loop.stops.clear()
    loop.bound.clear()
    loop.finish(failed=[0, 1, 2])


def test_results_that_an_interrupted_call_has_not_returned_come_once_with_the_next() -> None:
    """Whichever line it is interrupted at, but for its very last, behind which it has returned."""
    interrupter = Interrupter()
    short = []
    for lines in range(100):
        loop = Loop()
        loop.add("early", 10, 1)
        loop.add("late", 10, 1)
        loop.scheduler.abort("early")
        try:
            interrupter.during(lines, loop.scheduler.results)
        except KeyboardInterrupt:
            loop.scheduler.abort("late")
            if [one.request for one in loop.scheduler.results()] != ["early", "late"]:
                short.append(interrupter.where)
            assert loop.scheduler.results() == []
        else:
            break
    assert short in ([], interrupter.passed[-1:])
    assert lines == interrupter.times > 10
