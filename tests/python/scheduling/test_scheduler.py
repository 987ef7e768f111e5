"""The scheduler, transition by transition; `docs/laws.md` has the names and numbers."""

from typing import Any

import pytest

import blockyard as by
from blockyard.scheduling.engine import Ack, Stop
from blockyard.scheduling.headroom import Adaptive, FullLength, Watermark
from blockyard.scheduling.request import RequestState
from loop import Loop, continuation, loading, squeezed, stopping
from yard import publish_below, text


def test_t1_a_request_that_fits_begins_at_once_and_has_a_seat() -> None:
    loop = Loop()
    loop.add("one", 10, 3)
    assert loop.state("one") is RequestState.WAITING
    step = loop.schedule()
    assert loop.state("one") is RequestState.PREFILL
    (start,) = step.starts
    assert (start.request, start.seat, start.epoch, start.cached) == ("one", 0, 1, 0)
    assert start.tokens.tolist() == text(1, 10)
    assert step.chunks == ((0, 0, 10),)
    loop.output()
    loop.finish()
    assert loop.results["one"].tokens.tolist() == continuation("one", 10, 3)


def test_t2_a_request_with_blocks_to_load_has_a_seat_unknown_to_the_engine() -> None:
    loop = loading()
    assert loop.told("seats") == 1
    assert loop.schedule().starts == ()
    assert loop.state("one") is RequestState.LOADING


def test_t3_when_the_loads_have_landed_it_computes_behind_the_longer_prefix() -> None:
    loop = loading()
    loop.land()
    step = loop.schedule()
    assert [(one.request, one.cached) for one in step.starts] == [("one", 12)]
    assert step.chunks == ((0, 12, 2),)
    assert loop.state("one") is RequestState.PREFILL
    loop.finish()


@pytest.mark.parametrize("end", ["fails", "is never known"])
def test_t4_when_a_load_fails_or_is_late_it_computes_from_the_last_good_block(end: str) -> None:
    loop = loading()
    (plan,) = loop.plans
    if end == "fails":
        loop.cache.commit([plan], [2])
    else:
        loop.cache.mark_unknown([plan])
    loop.plans.clear()
    step = loop.schedule()
    good = 8 if end == "fails" else 0
    assert [one.cached for one in step.starts] == [good]
    assert step.chunks == ((0, good, 14 - good),)
    if end != "fails":
        loop.cache.abort([plan])
    loop.finish()
    assert loop.results["one"].tokens.tolist() == continuation("one", 14, 3)


def test_t4_a_request_with_every_load_late_is_computed_in_the_end() -> None:
    # While a copy without an end holds its slots, it has no room to go on, and begins again.
    loop = Loop(device=6, host=16)
    publish_below(loop.cache, text(1, 12))
    loop.add("one", text(1, 14), 3)
    loads = 0
    while not loop.schedule().chunks:
        if loop.plans:
            (plan,) = loop.plans
            loop.plans.clear()
            loads += 1
            assert loads < 10, "it never stops loading"
            loop.cache.mark_unknown([plan])
            assert not loop.schedule().chunks
            loop.cache.abort([plan])
    assert loads == 3
    loop.finish()
    assert loop.results["one"].tokens.tolist() == continuation("one", 14, 3)
    # The next one is loaded as usual.
    publish_below(loop.cache, text(1, 12))
    loop.add("two", text(1, 14), 3)
    loop.schedule()
    assert loop.state("two") is RequestState.LOADING
    loop.land()
    loop.finish()


def test_t5_a_request_that_finds_no_room_waits_and_nothing_has_changed() -> None:
    loop = Loop(device=9)
    loop.add("big", 28, 4)
    loop.turn()
    loop.add("too much", text(2, 12), 4)
    before, digest = loop.cache.stats()["leases"], loop.cache.digest()
    loop.scheduler._admission.admit()
    assert loop.cache.digest() == digest
    assert (loop.state("too much"), loop.cache.stats()["leases"]) == (RequestState.WAITING, before)
    assert loop.told("seats") == 1
    loop.finish()


def test_t6_it_decodes_when_its_last_chunk_is_acknowledged() -> None:
    loop = Loop(max_num_batched_tokens=6)
    loop.add("one", 10, 3)
    assert loop.schedule().chunks == ((0, 0, 6),)
    assert loop.schedule().chunks == ((0, 6, 4),)
    assert len(loop.schedule()) == 0
    loop.output()
    assert loop.state("one") is RequestState.PREFILL
    loop.output()
    assert loop.state("one") is RequestState.DECODE
    loop.output()
    assert loop.schedule().decode.tolist() == [0]


# -- preemption ----------------------------------------------------------------------------------


def test_t7_a_victim_has_no_new_work_and_keeps_its_blocks_and_its_seat() -> None:
    loop = stopping()
    lease = loop.scheduler._seats.bound()[1].lease
    held = lease.blocks
    assert loop.stops == [Stop("new", 1, 2)]
    for _ in range(3):
        step = loop.schedule()
        assert (step.stops, loop.rows(step).count(1)) == ((), 0)
        loop.output()
    assert (loop.told("seats"), loop.told("stopping"), lease.blocks) == (2, 1, held)
    loop.ack()
    loop.finish()


@pytest.mark.parametrize("flying", [0, 1, 2])
def test_t8_tokens_that_come_before_the_ack_count(flying: int) -> None:
    loop = Loop()
    loop.add("one", 10, 20)
    loop.turn(2)
    for _ in range(flying):
        loop.schedule()
    loop.scheduler.update_weights()
    loop.schedule()
    for at in range(flying):
        loop.output()
        assert loop.state("one") is RequestState.STOPPING
        assert len(loop.scheduler._lifecycle._requests["one"].outputs) == 2 + at + 1
    loop.output()
    loop.ack()
    loop.finish()
    assert loop.results["one"].tokens.tolist() == continuation("one", 10, 20)


@pytest.mark.parametrize("flying", [0, 1, 2, 3])
@pytest.mark.parametrize("prompt", [6, 7, 8, 9])
def test_t9_the_ack_freezes_n_and_both_sides_begin_again_with_the_same(
    flying: int, prompt: int
) -> None:
    """Tokens are in flight, at block boundaries and beside them (R4-1, 4.7-46)."""
    loop = Loop()
    loop.add("one", prompt, 9)
    loop.turn(2)
    for _ in range(flying):
        loop.schedule()
    loop.scheduler.update_weights()
    loop.schedule()
    for _ in range(flying + 1):
        loop.output()
    assert loop.state("one") is RequestState.STOPPING
    loop.ack()
    assert loop.state("one") is RequestState.RECOMPUTE
    (start,) = loop.schedule().starts
    assert len(start.tokens) == prompt + 2 + flying
    assert start.tokens[prompt:].tolist() == continuation("one", prompt, 2 + flying)
    lease = loop.scheduler._seats.bound()[0].lease
    assert lease.appended == prompt + 2 + flying
    loop.finish()
    assert loop.results["one"].tokens.tolist() == continuation("one", prompt, 9)


def test_t9_what_is_full_and_computed_is_published_and_the_last_token_is_not() -> None:
    loop = Loop(size=4)
    loop.add("one", 7, 9)
    loop.turn()
    assert len(loop.scheduler._lifecycle._requests["one"].outputs) == 1
    # Eight tokens exist, and the KV of seven.
    loop.scheduler._lifecycle.stop(loop.scheduler._seats.bound()[0])
    loop.schedule()
    loop.output()
    loop.ack()
    whole = text(1, 7) + continuation("one", 7, 1)
    assert loop.cache.probe([*whole, 0]).device == 1


def test_a_block_whose_twin_is_in_flight_is_published_in_the_step_after_its_landing() -> None:
    """The step that publishes it makes no block full (table 2.1, row 5)."""
    loop = Loop(device=33, host=16, max_num_seqs=1)
    prompt, said = text(1, 6), continuation("one", 6, 40)
    loop.add("one", prompt, 40)
    loop.turn()
    publish_below(loop.cache, prompt + said[:6])
    other = loop.cache.begin(prompt + said[:7])
    assert other.state == "loading"
    lease = loop.scheduler.lease("one")
    assert lease is not None
    for _ in range(4):
        loop.schedule()
        loop.output()
    assert (loop.scheduler._seats.computed[0], lease.sealed) == (10, 1)
    loop.turn()
    assert (loop.scheduler._seats.computed[0], lease.sealed) == (11, 2)
    loop.cache.finish(other)
    loop.finish()


def test_t11_a_victim_that_has_answered_waits_to_be_computed_again_and_holds_nothing() -> None:
    loop = stopping()
    loop.ack()
    assert loop.state("new") is RequestState.RECOMPUTE
    assert (loop.told("seats"), loop.cache.stats()["leases"]) == (1, 1)
    room = loop.cache.room()
    assert room.free + room.evictable >= 4
    loop.finish()


def test_t22_it_begins_again_with_what_it_had_sampled_and_finds_what_was_published() -> None:
    loop = stopping()
    loop.ack()
    said = list(loop.scheduler._lifecycle._requests["new"].outputs)
    step = loop.turn()
    while loop.state("new") is RequestState.RECOMPUTE:
        step = loop.turn()
    (start,) = step.starts
    assert start.tokens.tolist() == text(2, 14) + said
    assert (start.request, start.epoch) == ("new", 3)
    loop.finish()
    assert loop.results["new"].tokens.tolist() == continuation("new", 14, 12)


# -- abort ---------------------------------------------------------------------------------------


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
    assert loop.scheduler._queue._heap == []
    loop.finish()


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


def test_t25_a_request_aborted_while_it_stops_needs_one_ack() -> None:
    loop = stopping()
    loop.scheduler.abort("new")
    assert loop.schedule().stops == ()
    loop.output()
    loop.ack()
    assert loop.results["new"].state is RequestState.ABORTED
    assert loop.told("acks_ignored") == 0
    loop.finish()


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


def test_t28_an_end_before_the_ack_is_a_finish_and_the_ack_frees_seat_and_blocks() -> None:
    loop = Loop()
    loop.add("one", 10, 3)
    loop.turn(2)
    loop.schedule()
    loop.scheduler.update_weights()
    loop.schedule()
    loop.output()
    assert loop.results["one"].state is RequestState.FINISHED
    assert loop.scheduler._lifecycle._requests == {}
    assert (loop.told("seats"), loop.cache.stats()["leases"]) == (1, 1)
    loop.output()
    assert loop.told("seats") == 1
    loop.ack()
    assert (loop.told("seats"), loop.cache.stats()["leases"]) == (0, 0)
    loop.finish()


# -- no ack, or too many -------------------------------------------------------------------------


def test_t29_a_seat_that_the_engine_has_no_more_counts_as_acked() -> None:
    loop = stopping()
    at = loop.stops[0]
    step = loop.scheduler._seats.bound()[1].stopped_at
    loop.scheduler.reconcile([0], step - 1)
    assert loop.state("new") is RequestState.STOPPING
    loop.scheduler.reconcile([0], step)
    assert loop.state("new") is RequestState.RECOMPUTE
    loop.scheduler.on_acks([Ack(*at)])
    assert loop.told("acks_ignored") == 1
    loop.stops.clear()
    loop.bound.pop(1)
    loop.finish()


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
    loop.ack()
    loop.finish()


def test_t29_a_stop_that_is_to_be_told_again_is_not_when_its_ack_comes_first() -> None:
    loop = stopping()
    loop.scheduler.reconcile([0, 1], loop.scheduler._batch.number)
    loop.ack()
    assert loop.schedule().stops == ()
    loop.output()
    loop.finish()


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
    loop.finish()
    assert loop.results["waits"].state is RequestState.FINISHED


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
    loop.finish()


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
    loop.ack()
    loop.finish()


def test_t31_an_ack_before_its_stop_was_sent_is_ignored() -> None:
    loop = Loop()
    loop.add("one", 10, 6)
    loop.turn()
    loop.scheduler.abort("one")
    loop.scheduler.on_acks([Ack("one", 0, 2)])
    assert (loop.told("acks_ignored"), loop.state("one")) == (1, RequestState.STOPPING)
    loop.finish()


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
    loop.output()
    loop.finish()


# -- reset, and new weights ----------------------------------------------------------------------


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
    for request in ("decodes", "computes"):
        assert loop.results[request].tokens.tolist() == continuation(request, 8, 9)


def test_t33_new_weights_send_loading_requests_back_to_the_queue() -> None:
    loop = loading()
    loop.scheduler.update_weights()
    assert (loop.state("one"), loop.told("seats")) == (RequestState.RECOMPUTE, 0)
    loop.land()
    (start,) = loop.schedule().starts
    assert start.cached == 0
    loop.finish()


# -- the end, and no room to grow ----------------------------------------------------------------


def test_t35_a_request_the_engine_ended_frees_its_seat_and_after_the_step_its_blocks() -> None:
    loop = Loop()
    loop.add("one", 10, 9)
    loop.turn(2)
    loop.schedule()
    loop.schedule()
    loop.output(ends=["one"])
    result = loop.results["one"]
    assert (result.state, result.reason, len(result.tokens)) == (RequestState.FINISHED, "stop", 3)
    assert loop.told("seats") == 0
    room = loop.cache.room()
    assert room.free + room.evictable < 32
    loop.output()
    room = loop.cache.room()
    assert (room.free + room.evictable, loop.told("outputs_ignored")) == (32, 1)
    assert loop.schedule().stops == ()
    loop.finish()


def test_t35_a_request_at_its_length_is_finished_and_its_seat_waits_for_the_ack() -> None:
    loop = Loop()
    loop.add("one", 10, 2)
    loop.turn(1)
    loop.schedule()
    loop.output()
    result = loop.results["one"]
    assert (result.state, result.reason, len(result.tokens)) == (RequestState.FINISHED, "length", 2)
    assert (loop.told("seats"), loop.told("stopping")) == (1, 1)
    assert [stop.request for stop in loop.schedule().stops] == ["one"]
    loop.output()
    loop.ack()
    assert loop.told("seats") == 0
    loop.finish()


def test_t36_a_request_that_finds_no_room_stays_and_skips_the_step() -> None:
    loop = squeezed()
    step = loop.schedule()
    while not loop.stops:
        loop.output()
        step = loop.schedule()
    loop.output()
    assert loop.told("skipped") == 2
    assert (loop.state("old"), len(step)) == (RequestState.DECODE, 0)
    loop.ack()
    assert loop.schedule().decode.tolist() == [0]
    loop.output()
    loop.finish()
    for request in ("old", "new"):
        assert loop.results[request].tokens.tolist() == continuation(request, 14, 12)


def test_t36_no_victim_is_chosen_while_what_is_coming_is_enough() -> None:
    """What comes is a victim without its ack, then blocks held for a step (INV-25, 4.7-47)."""
    loop = squeezed(max_num_seqs=3)
    loop.schedule()
    loop.schedule()
    while loop.told("preempted") == 0:
        loop.output()
        loop.schedule()
    for _ in range(4):
        loop.output()
        loop.schedule()
    assert (loop.told("preempted"), loop.told("skipped") >= 1) == (1, True)
    # The ack comes while a step that was told to compute in it is in flight.
    loop.ack()
    loop.schedule()
    assert loop.told("preempted") == 1
    loop.finish()


def test_t36_no_second_victim_is_chosen_while_the_first_one_stops() -> None:
    """What the first frees at its ack is enough, though two others still run (INV-25)."""
    loop = Loop(device=12)
    for name in (1, 2, 3):
        loop.add(name, text(name, 14 if name < 3 else 10), 12)
    loop.turn(2)
    while loop.told("preempted") == 0:
        loop.schedule()
        loop.output()
    for _ in range(3):
        loop.schedule()
        loop.output()
    assert loop.told("preempted") == 1
    states = [loop.state(name) for name in (1, 2, 3)]
    assert states == [RequestState.DECODE, RequestState.STOPPING, RequestState.DECODE]
    loop.finish()


def test_t36_what_comes_back_with_the_step_in_flight_counts_as_coming() -> None:
    loop = Loop(device=9, max_num_seqs=3)
    loop.add("ends", text(1, 6), 9)
    loop.add("a", text(2, 10), 9)
    loop.add("b", text(3, 10), 9)
    loop.schedule()
    loop.output()
    loop.schedule()
    # It is in the step in flight too, so its blocks come back when that is done.
    loop.schedule()
    loop.output(ends=["ends"])
    assert loop.results["ends"].state is RequestState.FINISHED
    assert loop.told("seats") == 2
    loop.schedule()
    assert (loop.told("preempted"), loop.told("skipped")) == (0, 2)
    loop.output()
    assert loop.schedule().decode.tolist() == [1, 2]
    loop.finish()


def test_progress_a_resting_request_is_chosen_when_no_other_can_go_on() -> None:
    """All were preempted before, and there is room for none (INV-25)."""
    loop = Loop(device=8, preempt_cooldown=1000, max_num_seqs=6)
    names = (1, 2, 3, 4, 5, 6)
    for name in names:
        loop.add(name, text(name, 5), 20)
    loop.finish(2000)
    assert loop.told("preempted") > len(names)
    for name in names:
        assert loop.results[name].tokens.tolist() == continuation(name, 5, 20)


def test_progress_a_resting_request_is_chosen_before_a_promise_is_taken_back() -> None:
    loop = Loop(device=9, preempt_cooldown=1000)
    for name in (1, 2):
        loop.add(name, text(name, 5), 20)
    loop.turn()
    ticket = loop.cache.promise(2)
    loop.add("promised", text(3, 28), 1, ticket=ticket)
    for seat in loop.scheduler._seats.bound():
        seat.request.preempted = 1
    while not loop.schedule().stops:
        loop.output()
        loop.ack()
    assert ticket.state == "open"
    loop.finish()
    assert {result.state for result in loop.results.values()} == {RequestState.FINISHED}


def test_progress_a_request_alone_with_two_copies_of_its_blocks_makes_room_for_itself() -> None:
    """Blocks that two computed at once exist twice while one of them runs."""
    loop = Loop(device=9, max_num_batched_tokens=4)
    prompt = text(1, 12)
    # They begin before either has computed anything, as under an earlier scheduler.
    twin = loop.cache.begin(prompt)
    loop.add("one", prompt, 20)
    loop.schedule()
    loop.cache.seal(twin, 12)
    for _ in range(2):
        loop.output()
        loop.schedule()
    loop.cache.finish(twin)
    loop.finish()
    assert loop.results["one"].tokens.tolist() == continuation("one", 12, 20)
    assert (loop.told("preempted"), loop.cache.stats()["deduped"]) == (0, 3)


def test_progress_a_prompt_of_the_whole_device_that_is_all_there_begins_all_the_same() -> None:
    """A full hit computes its last token in a copy of its last block, and there is no room."""
    loop = Loop(device=5)
    for request in ("one", "two"):
        loop.add(request, text(1, 16), 1)
        loop.finish()
        assert loop.results[request].tokens.tolist() == continuation(request, 16, 1)


# -- seats: table 2.5 ----------------------------------------------------------------------------


def test_a_seat_is_bound_to_one_request_and_epoch() -> None:
    loop = Loop(max_num_seqs=2)
    for name in range(3):
        loop.add(name, text(name + 1, 6), 5)
    starts = loop.schedule().starts
    assert [(one.request, one.seat, one.epoch) for one in starts] == [(0, 0, 1), (1, 1, 1)]
    assert loop.state(2) is RequestState.WAITING
    loop.finish()


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


def test_a_seat_that_stops_is_free_when_reconcile_finds_it_gone() -> None:
    loop = stopping(max_num_seqs=2)
    loop.bound.pop(1)
    loop.stops.clear()
    loop.scheduler.reconcile([0], loop.scheduler._batch.number)
    assert loop.told("seats") == 1
    loop.finish()


def test_a_seat_that_the_engine_has_ended_is_free_at_once() -> None:
    loop = Loop(max_num_seqs=1)
    loop.add("one", text(1, 6), 9)
    loop.add("two", text(2, 6), 2)
    loop.schedule()
    loop.output(ends=["one"])
    (start,) = loop.schedule().starts
    assert (start.request, start.seat) == ("two", 0)
    loop.finish()


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
        loop.scheduler._seats.bind(loop.scheduler._lifecycle._requests[2], None)  # type: ignore[arg-type]
    loop.finish()


# -- reservation ---------------------------------------------------------------------------------


def test_with_full_length_reserved_no_request_is_ever_preempted() -> None:
    loop = Loop(device=9, headroom=FullLength())
    for name in range(6):
        loop.add(name, text(name + 1, 6), 14)
    loop.finish()
    assert (loop.told("preempted"), loop.told("skipped")) == (0, 0)


def test_a_watermark_keeps_blocks_from_a_begin_and_gives_them_for_growth() -> None:
    loop = Loop(device=9, headroom=Watermark(4))
    loop.add("one", text(1, 12), 9)
    loop.turn()
    loop.add("two", text(2, 8), 2)
    loop.turn()
    assert (loop.state("two"), loop.scheduler.headroom) == (RequestState.WAITING, 4)
    loop.finish()


def test_what_is_kept_for_growth_decays_with_every_step_and_is_whole_again_on_preemption() -> None:
    reserve = Adaptive(8.0, 0.5)
    loop = Loop(device=33, headroom=reserve)
    loop.add("one", text(1, 12), 40)
    loop.turn(5)
    assert reserve.headroom(2) == int(2 * (8.0 - 5 * 0.5))
    reserve.preempted()
    assert reserve.headroom(2) == 16
    loop.finish()


# -- the order of the queue ----------------------------------------------------------------------


def test_the_larger_priority_comes_first_and_is_the_last_to_be_preempted() -> None:
    loop = Loop(max_num_seqs=1)
    for name, priority in (("low", 0), ("high", 5), ("mid", 3)):
        loop.add(name, text(len(name), 6), 2, priority=priority)
    assert loop.schedule().starts[0].request == "high"
    loop.finish()
    assert list(loop.results) == ["high", "mid", "low"]
    loop = Loop(device=9)
    loop.add("high", text(1, 14), 12, priority=1)
    loop.add("low", text(2, 14), 12)
    while not loop.stops:
        loop.schedule()
        loop.output()
    assert loop.stops[0].request == "low"
    loop.finish()


def test_a_victim_comes_back_before_those_that_came_after_it() -> None:
    loop = stopping(max_num_seqs=2, max_overtakes=0)
    loop.add("later", text(3, 2), 1)
    loop.ack()
    loop.scheduler.abort("old")
    loop.turn(3)
    assert loop.begun == ["old", "new", "new", "later"]
    loop.finish()


def test_a_request_that_does_not_fit_is_overtaken_a_bounded_number_of_times() -> None:
    loop = Loop(device=9, max_overtakes=3, max_num_seqs=3)
    loop.add("runs", text(1, 8), 20)
    loop.turn()
    loop.add("big", text(2, 28), 2)
    for name in range(10):
        loop.add(name, text(10 + name, 4), 1)
    loop.finish()
    assert loop.begun[:6] == ["runs", 0, 1, 2, "big", 3]


def test_an_abort_while_waiting_leaves_nothing_behind_however_long_the_queue_stands() -> None:
    loop = Loop(device=9)
    loop.add("runs", text(1, 28), 4)
    loop.turn()
    loop.add("stands", text(2, 28), 2)
    for name in range(1000):
        loop.add(name, text(3, 28), 2)
        loop.scheduler.abort(name)
    assert len(loop.scheduler._queue._heap) < 10
    loop.finish()


# -- prompts that another is just computing ------------------------------------------------------


def test_a_request_with_the_prompt_of_one_in_prefill_waits_for_it_and_finds_it() -> None:
    loop = Loop(max_num_batched_tokens=8)
    loop.add("first", text(1, 24), 4)
    loop.add("second", text(1, 24) + text(2, 3), 4)
    loop.add("other", text(3, 4), 2)
    step = loop.schedule()
    assert [one.request for one in step.starts] == ["first", "other"]
    assert "It waits for request 'first'" in str(loop.scheduler.explain("second"))
    loop.output()
    while loop.state("second") is RequestState.WAITING:
        step = loop.turn()
    assert [(one.request, one.cached) for one in step.starts] == [("second", 24)]
    loop.finish()


def test_it_waits_no_longer_than_that_prefill() -> None:
    loop = Loop(max_num_batched_tokens=8)
    loop.add("first", text(1, 24), 4)
    loop.add("second", text(1, 24), 4)
    loop.turn()
    loop.scheduler.abort("first")
    assert [one.request for one in loop.schedule().starts] == ["second"]
    loop.finish()


def test_a_prompt_of_another_tenant_is_not_waited_for() -> None:
    loop = Loop(max_num_batched_tokens=8)
    loop.add("first", text(1, 24), 4, salt="a")
    loop.add("second", text(1, 24), 4, salt="b")
    assert len(loop.schedule().starts) == 2
    loop.finish()


# -- drafts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("accept", [1, 2, 3, 4])
@pytest.mark.parametrize("lag", [0, 1])
def test_a_row_has_room_for_its_drafts_and_what_was_not_accepted_is_trimmed(
    accept: int, lag: int
) -> None:
    loop = Loop(num_speculative_tokens=3, accept=accept, headroom=FullLength())
    loop.add("one", text(1, 10), 21)
    loop.add("two", text(2, 7), 20)
    loop.turn()
    rows = steps = 0
    while loop.told("seats"):
        step = loop.schedule()
        for lease, first, count in zip(step.leases, step.positions, step.counts, strict=True):
            assert lease.tokens >= first + count
        rows += len(step.decode)
        steps += 1
        if len(loop.air) > lag:
            loop.output()
            loop.ack()
            for seat in loop.scheduler._batch._decode:
                computed = int(loop.scheduler._seats.computed[seat.number])
                flying = any(seat.number in one.decode for one in loop.air)
                assert flying or seat.lease.tokens == computed == seat.lease.appended - 1
        assert steps < 200
    loop.finish()
    assert loop.results["one"].tokens.tolist() == continuation("one", 10, 21)
    assert loop.results["two"].tokens.tolist() == continuation("two", 7, 20)
    assert rows == -(-20 // accept) + -(-19 // accept)


def test_drafts_are_never_published_and_never_go_past_the_length() -> None:
    loop = Loop(num_speculative_tokens=7, accept=1)
    loop.add("one", text(1, 6), 4)
    loop.turn()
    step = loop.schedule()
    assert (step.positions.tolist(), step.counts.tolist()) == ([6], [3])
    loop.output()
    lease = loop.scheduler._seats.bound()[0].lease
    assert (lease.sealed, lease.tokens) == (1, 7)
    loop.finish()
    assert loop.results["one"].tokens.tolist() == continuation("one", 6, 4)


@pytest.mark.parametrize("accept", [1, 3])
def test_a_request_preempted_with_drafts_loses_none_of_its_tokens(accept: int) -> None:
    loop = Loop(device=9, num_speculative_tokens=2, accept=accept)
    for name in range(4):
        loop.add(name, text(name + 1, 9), 15)
    loop.finish()
    assert loop.told("preempted") > 0
    for name in range(4):
        assert loop.results[name].tokens.tolist() == continuation(name, 9, 15)
