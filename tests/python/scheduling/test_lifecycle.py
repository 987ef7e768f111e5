"""Aborts, acks, resets and seats: how a request stops, and when its seat is free."""

from typing import Any

import pytest

import blockyard as by
from blockyard.scheduling.engine import Ack
from blockyard.scheduling.request import RequestState
from busy import LAYOUT
from loop import Loop, continuation, loading, stopping
from yard import text

# -- abort ---------------------------------------------------------------------------------------


@pytest.mark.law("T23")
def test_t23_a_request_that_waits_for_its_first_or_second_turn_is_aborted_at_once() -> None:
    loop = stopping()
    loop.ack()
    loop.add("late", text(3, 30), 2)
    for request in ("new", "late"):
        loop.scheduler.abort(request)
        assert loop.state(request) is None
    loop.look()
    assert {loop.results[one].state for one in ("new", "late")} == {RequestState.ABORTED}
    assert loop.results["new"].tokens.tolist() == continuation("new", 14, 3)
    assert loop.told("waiting") == 0
    assert len(loop.scheduler._queue) == 0
    loop.finish()


@pytest.mark.law("T24")
@pytest.mark.parametrize("state", [RequestState.PREFILL, RequestState.DECODE])
def test_t24_a_running_request_is_stopped_first(state: RequestState) -> None:
    loop = Loop(max_num_batched_tokens=6)
    loop.add("one", 10, 6)
    loop.turn(1 if state is RequestState.PREFILL else 3)
    assert loop.state("one") is state
    loop.scheduler.abort("one")
    assert loop.state("one") is RequestState.STOPPING
    assert [stop.request for stop in loop.schedule().stops] == ["one"]
    loop.output()
    assert loop.results == {}
    loop.finish()
    assert loop.results["one"].state is RequestState.ABORTED


@pytest.mark.law("T25")
def test_t25_a_request_aborted_while_it_stops_needs_one_ack() -> None:
    loop = stopping()
    loop.scheduler.abort("new")
    assert loop.schedule().stops == ()
    loop.output()
    loop.ack()
    assert loop.results["new"].state is RequestState.ABORTED
    assert loop.told("acks_ignored") == 0
    loop.finish()


@pytest.mark.law("T26", "4.6-39")
def test_t26_the_ack_ends_an_aborted_request_with_one_result_and_frees_its_blocks() -> None:
    loop = Loop()
    loop.add("one", 10, 6)
    loop.turn(2)
    loop.scheduler.abort("one")
    loop.scheduler.abort("one")
    loop.schedule()
    loop.output()
    assert loop.cache.stats()["leases"] == 1
    loop.ack()
    assert loop.results["one"] == loop.results["one"]._replace(
        state=RequestState.ABORTED, reason="aborted"
    )
    assert (loop.cache.stats()["leases"], loop.told("seats")) == (0, 0)
    loop.finish()


@pytest.mark.law("INV-12", "T27")
def test_t27_a_loading_request_is_aborted_now_and_its_slots_return_at_the_fence_only() -> None:
    loop = loading()
    loop.scheduler.abort("one")
    loop.look()
    assert loop.results["one"].state is RequestState.ABORTED
    loop.empty()
    taken = loop.cache.stats()["device_pinned"]
    assert taken >= 3
    loop.land()
    assert loop.cache.stats()["device_pinned"] == 0
    loop.finish()


@pytest.mark.law("T28", "4.5-33")
@pytest.mark.parametrize(("reason", "most", "ends"), [("length", 3, []), ("stop", 9, ["one"])])
def test_t28_an_end_before_the_ack_is_a_finish_and_the_ack_frees_seat_and_blocks(
    reason: str, most: int, ends: list[str]
) -> None:
    """The stop is with the engine: freed at once, the seat's ack would belong to no request."""
    loop = Loop()
    loop.add("one", 10, most)
    loop.turn(2)
    loop.schedule()
    loop.scheduler.update_weights()
    loop.schedule()
    loop.output(ends=ends)
    result = loop.results["one"]
    assert (result.state, result.reason) == (RequestState.FINISHED, reason)
    assert loop.scheduler._lifecycle._requests == {}
    assert (loop.told("seats"), loop.cache.stats()["leases"]) == (1, 1)
    loop.output()
    assert loop.told("seats") == 1
    loop.ack()
    assert (loop.told("seats"), loop.cache.stats()["leases"]) == (0, 0)
    assert loop.told("acks_ignored") == 0
    loop.finish()


# -- no ack, or too many -------------------------------------------------------------------------


@pytest.mark.law("T29", "R4-6", "R4-7")
def test_t29_a_seat_that_the_engine_has_no_more_counts_as_acked() -> None:
    loop = stopping()
    at = loop.stops[0]
    step = loop.scheduler._shared.seats.bound()[1].stopped_at
    loop.scheduler.reconcile([0], step - 1)
    assert loop.state("new") is RequestState.STOPPING
    loop.scheduler.reconcile([0], step)
    assert loop.state("new") is RequestState.RECOMPUTE
    loop.scheduler.on_acks([Ack(*at)])
    assert loop.told("acks_ignored") == 1
    loop.stops.clear()
    loop.bound.pop(1)
    loop.finish()


@pytest.mark.law("T29")
def test_t29_a_seat_that_the_engine_still_has_is_told_again_with_the_same_epoch() -> None:
    loop = stopping()
    (stop,) = loop.stops
    number = loop.scheduler._batch.number
    loop.scheduler.reconcile([0, 1], number)
    loop.scheduler.reconcile([0, 1], number)
    assert loop.schedule().stops == (stop,)
    assert loop.state("new") is RequestState.STOPPING
    loop.output()
    loop.stops.pop()
    loop.finish()


@pytest.mark.law("INV-12", "T29")
def test_t29_a_stop_that_is_to_be_told_again_is_not_when_its_ack_comes_first() -> None:
    loop = stopping()
    loop.scheduler.reconcile([0, 1], loop.scheduler._batch.number)
    loop.ack()
    assert loop.schedule().stops == ()
    loop.finish()


@pytest.mark.law("T29")
def test_t29_when_the_engine_is_dead_its_requests_fail_and_their_slots_wait_for_its_reset() -> None:
    loop = stopping(max_num_seqs=3)
    loop.add("waits", text(3, 30), 2)
    loop.scheduler.abort("old")
    held = loop.cache.stats()["device_pinned"]
    loop.scheduler.fail("it burns")
    loop.scheduler.fail("it burns twice")
    loop.look()
    for request in ("old", "new"):
        assert loop.results[request].state is RequestState.FAILED
        assert loop.results[request].reason == "it burns"
    assert loop.state("waits") is RequestState.WAITING
    loop.ack()
    loop.scheduler.reconcile([], loop.scheduler._batch.number)
    assert (loop.cache.stats()["device_pinned"], loop.told("seats")) == (held, 2)
    # They are not quarantined, which is for copies: the scheduler counts them.
    stats = loop.cache.stats()
    pinned = stats["device_pinned"] + stats["device_claimed"]
    assert (stats["device_quarantined"], loop.told("pinned_until_reset")) == (0, pinned)
    with pytest.raises(by.Unavailable, match="it burns"):
        loop.scheduler.schedule()
    assert "it burns" in str(loop.scheduler.explain("waits"))
    loop.scheduler.reset()
    assert (loop.cache.stats()["leases"], loop.told("seats")) == (0, 0)
    assert loop.told("pinned_until_reset") == 0
    loop.bound.clear()
    loop.finish(failed=["new", "old"])
    assert loop.results["waits"].state is RequestState.FINISHED


@pytest.mark.law("O6")
def test_t29_to_ask_for_the_slots_of_a_dead_engine_changes_nothing() -> None:
    cache = by.local(LAYOUT, device=33)
    loop = Loop(cache=cache)
    loop.add("one", text(1, 9), 5)
    loop.turn()
    loop.schedule()
    loop.scheduler.fail("gone")
    before = cache.digest()
    assert loop.told("pinned_until_reset") == 3
    assert cache.digest() == before
    # It is said of a cache that was closed meanwhile, too.
    cache.close()
    assert loop.told("pinned_until_reset") == 3


def test_t29_an_engine_that_dies_after_its_cache_was_closed_holds_nothing() -> None:
    cache = by.local(LAYOUT, device=33)
    loop = Loop(cache=cache)
    loop.add("one", text(1, 9), 5)
    loop.turn()
    cache.close()
    loop.scheduler.fail("gone")
    assert loop.told("pinned_until_reset") == 0


@pytest.mark.law("T29")
def test_t29_what_a_dead_engine_still_says_is_counted_and_a_loading_request_waits_again() -> None:
    loop = loading()
    loop.add("two", text(2, 4), 4)
    loop.schedule()
    loop.output()
    late = loop.compute()
    loop.scheduler.fail()
    assert loop.state("one") is RequestState.RECOMPUTE
    loop.scheduler.on_output(late)
    assert loop.told("outputs_ignored") == 1
    loop.look()
    assert loop.results["two"].tokens.tolist() == []
    loop.scheduler.reset()
    loop.land()
    loop.bound.clear()
    loop.finish(failed=["two"])


@pytest.mark.law("T30", "4.5-36")
def test_t30_a_second_ack_is_counted_and_changes_nothing() -> None:
    loop = stopping()
    acks = [Ack(*stop) for stop in loop.stops]
    loop.ack()
    while loop.state("new") is RequestState.RECOMPUTE:
        loop.turn()
    loop.scheduler.on_acks(acks)
    assert loop.told("acks_ignored") == 1
    assert loop.state("new") in {RequestState.PREFILL, RequestState.DECODE}
    loop.finish()


@pytest.mark.law("INV-9", "T30")
def test_t30_no_ack_is_good_for_a_later_request_of_the_same_name_in_the_same_seat() -> None:
    loop = Loop()
    loop.add("one", 10, 6)
    loop.turn()
    loop.scheduler.abort("one")
    loop.schedule()
    (stop,) = loop.stops
    loop.output()
    loop.ack()
    del loop.results["one"]
    loop.add("one", 10, 6)
    loop.turn()
    loop.scheduler.abort("one")
    loop.schedule()
    loop.scheduler.on_acks([Ack(*stop)])
    assert (loop.told("acks_ignored"), loop.state("one")) == (1, RequestState.STOPPING)
    loop.finish()


@pytest.mark.law("INV-9", "T31", "4.6-39")
@pytest.mark.parametrize(
    "ack",
    [
        Ack("new", 1, 1),
        Ack("new", 1, 3),
        Ack("old", 0, 2),
        Ack("old", 1, 2),
        Ack("nobody", 7, 1),
        Ack("new", -1, 2),
    ],
)
def test_t31_a_late_or_foreign_ack_is_counted_and_neither_queues_nor_frees(ack: Ack) -> None:
    loop = stopping()
    before = loop.cache.digest()
    loop.scheduler.on_acks([ack])
    assert loop.told("acks_ignored") == 1
    assert (loop.state("new"), loop.state("old")) == (RequestState.STOPPING, RequestState.DECODE)
    assert loop.cache.digest() == before
    loop.finish()


@pytest.mark.law("T31")
def test_t31_an_ack_before_its_stop_was_sent_is_ignored() -> None:
    loop = Loop()
    loop.add("one", 10, 6)
    loop.turn()
    loop.scheduler.abort("one")
    loop.scheduler.on_acks([Ack("one", 0, 2)])
    assert (loop.told("acks_ignored"), loop.state("one")) == (1, RequestState.STOPPING)
    loop.finish()


@pytest.mark.law("T32")
def test_t32_a_finish_after_the_ack_is_counted_and_changes_nothing() -> None:
    loop = Loop()
    loop.add("one", 10, 9)
    loop.turn(2)
    loop.schedule()
    loop.scheduler.update_weights()
    loop.schedule()
    loop.scheduler.on_acks([Ack(*stop) for stop in loop.stops])
    assert loop.state("one") is RequestState.RECOMPUTE
    loop.scheduler.on_output(loop.compute(ends=["one"]))
    assert loop.state("one") is RequestState.RECOMPUTE
    assert len(loop.scheduler._lifecycle._requests["one"].outputs) == 2
    assert loop.told("outputs_ignored") == 1
    loop.stops.clear()
    loop.finish()


# -- reset, and new weights ----------------------------------------------------------------------


@pytest.mark.law("T33")
@pytest.mark.parametrize("policy", ["recompute", "abort"])
def test_t33_a_reset_frees_all_seats_and_the_policy_says_what_becomes_of_what_ran(
    policy: Any,
) -> None:
    loop = stopping(max_num_seqs=3)
    loop.add("waits", text(3, 30), 2)
    loop.schedule()
    loop.scheduler.reset(requests=policy)
    loop.look()
    assert loop.told("seats") == 0
    assert loop.cache.probe(text(1, 14)).device == 0
    loop.air.clear()
    loop.stops.clear()
    loop.bound.clear()
    if policy == "abort":
        assert {loop.results[one].state for one in ("old", "new")} == {RequestState.ABORTED}
    else:
        assert {loop.state(one) for one in ("old", "new")} == {RequestState.RECOMPUTE}
    assert loop.state("waits") is RequestState.WAITING
    loop.finish()
    assert loop.results["waits"].state is RequestState.FINISHED


@pytest.mark.law("T33")
def test_t33_new_weights_first_stop_what_runs_even_with_its_last_chunk_in_flight() -> None:
    loop = Loop()
    loop.add("decodes", text(1, 8), 9)
    loop.turn(2)
    loop.add("computes", text(2, 8), 9)
    loop.schedule()
    loop.scheduler.update_weights()
    assert {loop.state(one) for one in ("decodes", "computes")} == {RequestState.STOPPING}
    assert loop.cache.probe(text(1, 8)).device == 0
    assert {stop.request for stop in loop.schedule().stops} == {"decodes", "computes"}
    loop.finish()


@pytest.mark.law("T33")
def test_t33_new_weights_send_loading_requests_back_to_the_queue() -> None:
    loop = loading()
    loop.scheduler.update_weights()
    assert (loop.state("one"), loop.told("seats")) == (RequestState.RECOMPUTE, 0)
    loop.land()
    (start,) = loop.schedule().starts
    assert start.cached == 0
    loop.finish()


# -- seats: table 2.5 ----------------------------------------------------------------------------


@pytest.mark.law("2.5-1")
def test_a_seat_is_bound_to_one_request_and_epoch() -> None:
    loop = Loop(max_num_seqs=2)
    for name in range(3):
        loop.add(name, text(name + 1, 6), 5)
    starts = loop.schedule().starts
    assert [(one.request, one.seat, one.epoch) for one in starts] == [(0, 0, 1), (1, 1, 1)]
    assert loop.state(2) is RequestState.WAITING
    loop.finish()


@pytest.mark.law("2.5-2", "4.5-38")
def test_a_seat_that_stops_is_free_on_the_ack() -> None:
    loop = stopping(max_num_seqs=2)
    loop.add("next", 2, 1, priority=1)
    for _ in range(4):
        assert loop.schedule().starts == ()
        loop.output()
    loop.ack()
    (start, *_) = loop.schedule().starts
    assert (start.seat, start.epoch) == (1, 3)
    loop.finish()


@pytest.mark.law("2.5-2")
def test_a_seat_that_stops_is_free_when_reconcile_finds_it_gone() -> None:
    loop = stopping(max_num_seqs=2)
    loop.bound.pop(1)
    loop.stops.clear()
    loop.scheduler.reconcile([0], loop.scheduler._batch.number)
    assert loop.told("seats") == 1
    loop.finish()


@pytest.mark.law("2.5-3")
def test_a_seat_that_the_engine_has_ended_is_free_at_once() -> None:
    loop = Loop(max_num_seqs=1)
    loop.add("one", text(1, 6), 9)
    loop.add("two", text(2, 6), 2)
    loop.schedule()
    loop.output(ends=["one"])
    (start,) = loop.schedule().starts
    assert (start.request, start.seat) == ("two", 0)
    loop.finish()


@pytest.mark.law("INV-10", "2.5-4", "R4-8")
def test_a_seat_that_stops_is_never_bound() -> None:
    """Loading, running, stopping and aborting seats together are all seats (R4-8)."""
    loop = Loop(max_num_seqs=2)
    for name in range(5):
        loop.add(name, text(name + 1, 6), 5)
    loop.turn(2)
    loop.scheduler.abort(0)
    loop.scheduler.abort(1)
    for _ in range(5):
        assert loop.schedule().starts == ()
        loop.output()
    assert loop.told("seats") == 2
    with pytest.raises(IndexError):
        loop.scheduler._shared.seats.bind(loop.scheduler._lifecycle._requests[2], None, 0)  # type: ignore[arg-type]
    loop.finish()


def test_a_request_that_ends_while_it_waits_leaves_no_time_behind() -> None:
    loop = Loop(max_num_seqs=1, metrics=True)
    for name in ("runs", "waits"):
        loop.add(name, 6, 3)
    loop.turn()
    loop.scheduler.abort("waits")
    loop.finish()
