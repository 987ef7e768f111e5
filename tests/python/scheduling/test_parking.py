"""Parking and resume, transition by transition; `docs/laws.md` has the names and numbers."""

import logging
import pickle
import random
import time
from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard.scheduling.options import SchedulerOptions
from blockyard.scheduling.request import RequestState
from blockyard.scheduling.scheduler import Scheduler
from blockyard.yard.parking import Parking
from loop import Loop, continuation, parked, resuming, squeezed, stopping
from yard import publish_below, text, there

# -- the way down --------------------------------------------------------------------------------


@pytest.mark.law("T10", "R3-14")
def test_t10_a_victim_is_parked_with_its_host_slots_promised_and_nothing_has_moved() -> None:
    loop = stopping(host=32)
    lease = there(loop.scheduler.lease("new"))
    blocks, before = lease.blocks, loop.cache.stats()
    loop.ack()
    assert (loop.state("new"), loop.told("parked"), loop.told("seats")) == (
        RequestState.PARKED,
        1,
        1,
    )
    after = loop.cache.stats()
    assert (after["parked"], after["host_promised"]) == (1, blocks)
    assert after["device_out"] == before["device_out"]
    assert (loop.told("parkings"), loop.told("lost")) == (1, 0)
    loop.finish()


@pytest.mark.law("T10")
def test_t10_the_blocks_of_the_parked_leave_tail_first_and_only_as_the_need_asks() -> None:
    loop = parked()
    blocks = loop.handle().blocks
    loop.schedule()
    (plan,) = loop.plans
    assert len(plan) == 1
    loop.land()
    assert loop.handle().on_device == blocks - 1
    # One block is room for four tokens; the next moves two steps before it is needed.
    moved = []
    while loop.state("old") is RequestState.DECODE:
        moved.append(loop.told("relieved"))
        loop.turn()
    assert moved[0] == 1
    assert all(later - now <= 1 for now, later in zip(moved, moved[3:], strict=False))
    loop.finish()


@pytest.mark.law("T12")
def test_t12_when_a_copy_has_landed_its_slot_goes_to_another_and_it_stays_parked() -> None:
    loop = parked()
    for _ in range(30):
        loop.turn()
        if loop.handle().on_device < loop.handle().blocks:
            break
    assert loop.state("new") is RequestState.PARKED
    assert loop.told("relieved") == loop.handle().blocks - loop.handle().on_device == 1
    loop.turn()
    assert loop.state("old") is RequestState.DECODE
    loop.finish()


@pytest.mark.law("T13")
def test_t13_a_failed_copy_is_tried_again_and_then_the_keep_is_broken() -> None:
    loop = parked()
    for _ in range(4):
        assert loop.state("new") is RequestState.PARKED
        loop.schedule()
        (plan,) = loop.plans
        loop.plans.clear()
        loop.cache.commit([plan], [0])
        loop.output()
    assert loop.handle().state == "broken"
    loop.finish()
    assert loop.told("kv_lost") == 1


@pytest.mark.law("T14", "R1-10", "R3-10")
def test_t14_a_copy_that_never_ends_costs_its_destination_alone() -> None:
    loop = parked()
    loop.schedule()
    (plan,) = loop.plans
    loop.plans.clear()
    loop.cache.mark_unknown(plan)
    loop.output()
    assert (loop.handle().state, loop.handle().on_device) == ("kept", loop.handle().blocks)
    assert loop.cache.stats()["host_quarantined"] == 1
    loop.turn(5)
    # The fence is passed: what the copy read, and what stands above that, may leave now.
    loop.cache.commit(plan)
    assert loop.cache.stats()["host_quarantined"] == 0
    loop.finish()


@pytest.mark.law("T15")
@pytest.mark.parametrize("host", [0, 2])
def test_t15_what_the_host_cannot_promise_is_computed_again(host: int) -> None:
    loop = stopping(host=host)
    loop.ack()
    assert loop.state("new") is RequestState.RECOMPUTE
    assert (loop.told("no_host"), loop.cache.stats()["parked"]) == (int(host > 0), 0)
    assert loop.told("lost") == 16
    loop.finish()


@pytest.mark.law("T15")
def test_t15_idle_blocks_of_the_host_make_way_for_parked_ones() -> None:
    loop = Loop(device=9, host=6)
    publish_below(loop.cache, text(7, 24))
    assert loop.cache.stats()["host_free"] == 0
    loop.add("old", text(1, 14), 12)
    loop.add("new", text(2, 14), 12)
    while loop.state("new") is not RequestState.STOPPING:
        loop.schedule()
        loop.plans.clear()
        loop.output()
    loop.ack()
    assert loop.state("new") is RequestState.PARKED
    loop.finish()


# -- the way up ----------------------------------------------------------------------------------


@pytest.mark.law("T16")
def test_t16_what_is_all_on_the_device_decodes_at_once() -> None:
    loop = parked()
    loop.scheduler.abort("old")
    loop.turn(lands=False)
    step = loop.schedule()
    (start,) = step.starts
    assert start.request == "new"
    assert start.cached == len(start.tokens) - 1
    assert (loop.state("new"), loop.plans) == (RequestState.DECODE, [])
    assert step.chunks == ((start.seat, start.cached, 1),)
    loop.finish()


@pytest.mark.law("INV-25", "T17", "R3-15")
def test_t17_a_request_that_finds_no_room_stays_parked_and_ages() -> None:
    loop = parked()
    loop.turn()
    before = loop.work().stalled_steps
    loop.turn(2)
    assert loop.state("new") is RequestState.PARKED
    assert loop.work().stalled_steps > before
    loop.finish()


@pytest.mark.law("T17")
def test_t17_a_request_that_has_aged_is_computed_again() -> None:
    loop = parked()
    loop.scheduler._shared.parking._max_stalled_steps = 2
    loop.turn(8)
    assert loop.told("aged") == 1
    assert loop.told("kv_lost") == 0
    loop.finish()


@pytest.mark.law("T18")
def test_t18_when_its_loads_have_landed_it_goes_on_at_the_same_token_in_a_new_epoch() -> None:
    loop = resuming()
    entry = loop.scheduler._lifecycle._requests["new"]
    known = len(entry.new.prompt) + len(entry.outputs)
    epoch = entry.epoch
    loop.land()
    step = loop.schedule()
    (start,) = [one for one in step.starts if one.request == "new"]
    assert (len(start.tokens), start.cached) == (known, known - 1)
    assert start.epoch == epoch
    assert loop.state("new") is RequestState.DECODE
    assert loop.told("lost") == 0
    loop.finish()


@pytest.mark.law("T19", "T20", "R3-10")
@pytest.mark.parametrize("end", ["fails", "never ends"])
def test_t19_t20_a_resume_that_comes_short_is_parked_again_and_tried_again(end: str) -> None:
    loop = resuming()
    (plan,) = loop.plans
    loop.plans.clear()
    (loop.cache.mark_unknown if end == "never ends" else loop.cache.abort)(plan)
    loop.schedule()
    loop.output()
    assert (loop.told("retried"), loop.told("kv_lost")) == (1, 0)
    assert loop.state("new") in {RequestState.PARKED, RequestState.LOADING}
    if end == "never ends":
        loop.turn(5)
        assert loop.cache.stats()["device_quarantined"] == len(plan)
        assert loop.state("new") is RequestState.PARKED
        loop.cache.commit(plan)
    loop.finish()
    assert loop.told("lost") == 0


@pytest.mark.law("T19")
@pytest.mark.parametrize("recompute", [True, False])
def test_t19_after_enough_tries_a_request_is_computed_again_or_lost(recompute: Any) -> None:
    loop = resuming(recompute=recompute)
    for _ in range(3):
        for _ in range(6):
            if loop.state("new") is RequestState.LOADING:
                break
            loop.schedule()
            loop.output()
        plans, loop.plans = loop.plans, []
        loop.cache.abort(plans)
        loop.schedule()
        loop.output()
    if recompute:
        assert loop.state("new") in {
            RequestState.RECOMPUTE,
            RequestState.LOADING,
            RequestState.PREFILL,
        }
    loop.finish()
    result = loop.results["new"]
    tokens = continuation("new", 14, 12)
    if recompute:
        assert (result.state, result.tokens.tolist()) == (RequestState.FINISHED, tokens)
    else:
        assert result.state is RequestState.FAILED
        assert result.reason.startswith("kv_lost")
        assert result.tokens.tolist() == tokens[: len(result.tokens)]


@pytest.mark.law("T21")
@pytest.mark.parametrize("recompute", [True, False])
def test_t21_a_kept_copy_that_is_corrupt_is_not_used(recompute: Any) -> None:
    loop = resuming(recompute=recompute)
    plans, loop.plans = loop.plans, []
    loop.cache.commit(plans, [0], corrupt=True)
    loop.finish()
    result = loop.results["new"]
    if recompute:
        assert result.tokens.tolist() == continuation("new", 14, 12)
    else:
        assert (result.state, result.reason[:7]) == (RequestState.FAILED, "kv_lost")
    assert loop.told("kv_lost") == 1


@pytest.mark.law("T23", "R3-11")
def test_t23_a_parked_request_is_aborted_at_once_and_nothing_is_kept() -> None:
    loop = parked()
    loop.scheduler.abort("new")
    loop.look()
    assert loop.results["new"].state is RequestState.ABORTED
    stats = loop.cache.stats()
    assert (stats["parked"], stats["host_promised"], loop.told("parked")) == (0, 0, 0)
    loop.finish()


@pytest.mark.law("T27")
def test_t27_a_request_aborted_with_copies_in_flight_gives_its_slots_back_at_the_fence() -> None:
    loop = resuming()
    loop.scheduler.abort("new")
    loop.look()
    assert loop.results["new"].state is RequestState.ABORTED
    assert loop.cache.stats()["device_pinned"] > 0
    loop.land()
    assert loop.cache.stats()["device_pinned"] == 0
    loop.finish()


@pytest.mark.law("T27", "R3-11")
def test_t27_a_request_aborted_as_it_moves_down_gives_its_slots_back_at_the_fence() -> None:
    loop = parked()
    loop.schedule()
    (plan,) = loop.plans
    loop.scheduler.abort("new")
    loop.look()
    assert loop.results["new"].state is RequestState.ABORTED
    assert loop.cache.audit() is None
    loop.land()
    del plan
    loop.finish()


@pytest.mark.law("T32")
def test_t32_a_finish_that_the_engine_reports_of_a_parked_request_changes_nothing() -> None:
    """The ack of a row came before the output of a step in flight that has it."""
    loop = stopping(host=32)
    loop.schedule()
    loop.ack()
    assert loop.state("new") is RequestState.PARKED
    while loop.air:
        loop.output()
    assert loop.state("new") is RequestState.PARKED
    loop.finish()


@pytest.mark.law("T33")
def test_t33_new_weights_break_what_is_kept() -> None:
    loop = parked()
    loop.scheduler.update_weights()
    assert loop.handle().state == "broken"
    loop.finish()
    assert loop.told("kv_lost") == 1


# -- where the engine cannot recompute -----------------------------------------------------------


@pytest.mark.law("T7")
def test_t7_where_nothing_can_be_recomputed_a_victim_has_its_host_slots_promised_first() -> None:
    loop = squeezed(host=32, recompute=False)
    loop.until_stopping("new")
    seat = loop.scheduler._shared.seats.bound()[1]
    assert seat.ticket is not None
    assert (seat.ticket.tier, seat.ticket.blocks) == ("host", seat.lease.blocks)
    assert loop.cache.room("host").promised == seat.lease.blocks
    ticket = seat.ticket
    loop.ack()
    assert (loop.state("new"), ticket.state) == (RequestState.PARKED, "spent")
    loop.finish()
    assert loop.results["new"].tokens.tolist() == continuation("new", 14, 12)


@pytest.mark.law("T7")
def test_t7_a_victim_that_is_aborted_gives_its_host_slots_back() -> None:
    loop = squeezed(host=32, recompute=False)
    loop.until_stopping("new")
    loop.scheduler.abort("new")
    loop.ack()
    assert loop.cache.room("host").promised == 0
    loop.finish()


@pytest.mark.law("INV-25")
def test_a_request_that_could_not_be_parked_beside_the_others_waits() -> None:
    """All running requests but one find room on the host, however long they grow."""
    loop = Loop(device=9, host=4, recompute=False)
    loop.add("old", text(1, 14), 12)
    loop.add("new", text(2, 14), 12)
    loop.turn()
    assert (loop.state("old"), loop.state("new")) == (RequestState.DECODE, RequestState.WAITING)
    loop.finish()
    assert loop.told("preempted") == 0


def test_without_a_host_such_an_engine_admits_no_more_than_the_device_can_end() -> None:
    loop = Loop(device=9, recompute=False)
    for name in range(4):
        loop.add(name, text(name + 1, 9), 8)
    loop.finish()
    assert loop.told("preempted") == 0
    assert all(result.state is RequestState.FINISHED for result in loop.results.values())


@pytest.mark.parametrize("way", ["recompute", "full-blocks"])
def test_what_such_an_engine_cannot_do_is_refused(way: Any) -> None:
    with pytest.raises(by.Misuse, match="cannot recompute"):
        Scheduler(by.KVCache(device=9, host=9, recompute=False), SchedulerOptions(preempt_mode=way))


# -- the lists of known failures -----------------------------------------------------------------


@pytest.mark.law("R1-1")
def test_r1_1_a_stalled_tier_holds_up_no_request_and_gives_no_slot_away() -> None:
    loop = Loop(device=41, host=64, ahead=0, max_num_seqs=8)
    for name in range(6):
        loop.add(name, text(name + 1, 20), 40)
    spent, moving = [], set[int]()
    for _ in range(200):
        begun = time.thread_time()
        step = loop.schedule()
        spent.append(time.thread_time() - begun)
        tables = loop.cache.block_tables(step.leases)
        moving |= {int(slot) for plan in loop.plans for slot in plan.sources}
        assert not moving & set(tables.ravel().tolist())
        loop.output()
        loop.ack()
    assert loop.told("parked") > 0
    assert moving
    assert sorted(spent)[len(spent) // 2] < 1e-3
    loop.finish()


@pytest.mark.law("R1-3")
@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_r1_3_three_stays_in_the_yard_change_neither_the_prompt_nor_its_keys(kind: Any) -> None:
    prompt = kind(text(2, 14))
    before = pickle.dumps(prompt)
    loop = Loop(device=9, host=32)
    loop.add("old", text(1, 14), 16)
    loop.scheduler.add(by.NewRequest("new", prompt, max_tokens=12))
    stays = 0
    while loop.scheduler.state("new") is not None:
        loop.turn()
        seat = next(
            (one for one in loop.scheduler._shared.seats.bound() if one.request.id == "new"), None
        )
        if seat is not None and seat.request.state is RequestState.DECODE and stays < 3:
            loop.scheduler._lifecycle.stop(seat)
            stays += 1
    assert stays == 3
    assert pickle.dumps(prompt) == before
    keys = bytes(loop.cache.keys(text(2, 14)))
    whole = loop.cache.keys([*text(2, 14), *continuation("new", 14, 12)])
    assert bytes(whole)[: len(keys)] == keys
    assert loop.results["new"].tokens.tolist() == continuation("new", 14, 12)
    loop.finish()


@pytest.mark.law("R1-6")
def test_r1_6_what_a_victim_keeps_is_said_and_all_of_it_by_default() -> None:
    for host, way, told in ((8, None, 2), (8, "full-blocks", 1), (8, "recompute", 0), (0, None, 0)):
        scheduler = Scheduler(by.KVCache(device=9, host=host), SchedulerOptions(preempt_mode=way))  # type: ignore[arg-type]
        assert scheduler.stats()["preempt_mode"] == told


@pytest.mark.law("R1-6")
def test_a_host_of_no_size_is_said_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        scheduler = Scheduler(by.KVCache(device=9), SchedulerOptions(preempt_mode="park"))
        assert scheduler.stats()["preempt_mode"] == 0
    assert "no host" in caplog.text


@pytest.mark.law("R1-6")
def test_full_blocks_alone_are_kept_and_the_tail_is_computed_again() -> None:
    loop = stopping(host=32, preempt_mode="full-blocks")
    seat = loop.scheduler._shared.seats.bound()[1]
    computed = int(loop.scheduler._shared.seats.computed[seat.number])
    loop.ack()
    assert loop.handle().computed == computed - computed % 4
    assert loop.told("lost") == computed % 4
    loop.finish()


@pytest.mark.law("T10", "R1-9", "R3-12", "R3-14", "4.7-46")
@pytest.mark.parametrize("computed", range(5, 10))
@pytest.mark.parametrize("flying", range(4))
def test_4_7_46_with_tokens_in_flight_around_a_block_n_is_one_number(
    computed: int, flying: int
) -> None:
    """Published blocks are full and computed, and the tail leaves as it is (R1-9 too)."""
    loop = Loop(device=33, host=32)
    loop.add("one", 3, 20)
    while int(loop.scheduler._shared.seats.computed[0]) < computed:
        loop.turn()
    for _ in range(flying):
        loop.schedule()
    loop.scheduler._lifecycle.stop(loop.scheduler._shared.seats.bound()[0])
    loop.schedule()
    there(loop.scheduler.lease("one"))
    while loop.air:
        loop.output()
    loop.ack()
    parked = loop.handle("one")
    tokens = 3 + len(loop.scheduler._lifecycle._requests["one"].outputs)
    assert (parked.computed, parked.appended) == (computed + flying, tokens)
    assert tokens == parked.computed + 1
    assert parked.blocks == -(-parked.computed // 4)
    said = continuation("one", 3, 20)
    probe = loop.cache.probe([*text(1, 3), *said])
    assert probe.device == parked.computed // 4
    loop.finish()
    assert loop.results["one"].tokens.tolist() == said


@pytest.mark.law("R1-12")
def test_r1_12_a_sequence_may_have_several_copies_in_flight() -> None:
    loop = parked()
    loop.cache.demote(1, of=loop.handle())
    loop.cache.demote(1, of=loop.handle())
    plans = loop.cache.dispatch()
    assert len({plan.flight for plan in plans}) == 2
    loop.cache.commit(plans[1])
    loop.cache.commit(plans[0])
    assert loop.handle().on_device == loop.handle().blocks - 2
    loop.finish()


@pytest.mark.law("INV-14", "R3-7", "4.7-44")
def test_r3_7_whatever_is_parked_the_host_never_holds_more_than_it_has() -> None:
    """Budgets and squeezes by seed: what does not fit is recomputed (4.7-44)."""
    chance = random.Random(7)
    for _ in range(30):
        host = chance.randint(1, 24)
        loop = Loop(device=chance.randint(9, 17), host=host, max_num_seqs=6)
        names = range(chance.randint(3, 7))
        for name in names:
            loop.add(name, text(name + 1, chance.randint(1, 14)), chance.randint(4, 16))
        while not loop.scheduler.idle:
            loop.turn()
            stats = loop.cache.stats()
            held = stats["host_pinned"] + stats["host_idle"] + stats["host_promised"]
            assert held - stats["host_takeable"] <= host
        loop.finish()
        assert all(loop.results[name].state is RequestState.FINISHED for name in names)


@pytest.mark.law("R3-9")
def test_r3_9_a_late_outcome_of_the_first_copy_is_none_of_the_second() -> None:
    loop = parked()
    loop.schedule()
    (first,) = loop.plans
    loop.plans.clear()
    loop.cache.mark_unknown(first)
    loop.output()
    loop.cache.demote(1, of=loop.handle())
    (second,) = loop.cache.dispatch()
    on_device = loop.handle().on_device
    loop.cache.commit(first)
    assert (loop.handle().on_device, loop.handle().moving) == (on_device, len(second))
    loop.cache.commit(second)
    assert loop.handle().on_device == on_device - 1
    loop.finish()


@pytest.mark.law("R3-13", "R3-15")
def test_r3_13_whatever_was_parked_comes_back_when_there_is_room() -> None:
    for computed in range(1, 13):
        cache = by.KVCache(block_size=4, device=17, host=16)
        lease = cache.begin(text(1, computed))
        preempt = Parking(cache, cache.config)
        handle = there(preempt.park(lease, computed))
        assert (handle.computed, preempt.stats()["parkings"]) == (computed, 1)
        assert preempt.relieve(16, [handle]) == handle.blocks
        for plan in cache.dispatch():
            cache.commit(plan)
        back = preempt.resume(handle)
        assert isinstance(back, by.Lease)
        for plan in cache.dispatch():
            cache.commit(plan)
        assert (back.state, back.cached) == ("ready", computed)
        cache.finish(back)
        assert cache.audit() is None


@pytest.mark.law("4.7-45")
def test_4_7_45_when_all_are_parked_and_none_arrives_they_come_back() -> None:
    loop = Loop(device=17, host=64)
    names = range(3)
    for name in names:
        loop.add(name, text(name + 1, 12), 12)
    loop.turn(3)
    for seat in loop.scheduler._shared.seats.bound():
        loop.scheduler._lifecycle.stop(seat)
    loop.turn()
    assert loop.told("parkings") == 3
    loop.finish()


@pytest.mark.law("4.7-48")
def test_4_7_48_a_resume_while_its_tail_is_on_its_way_down_takes_the_slot_back() -> None:
    loop = parked()
    loop.schedule()
    (down,) = loop.plans
    loop.plans.clear()
    loop.scheduler.abort("old")
    loop.output()
    loop.turn(lands=False)
    step = loop.schedule()
    assert [start.request for start in step.starts] == ["new"]
    loop.output()
    loop.cache.commit(down)
    loop.finish()


# -- bad input -----------------------------------------------------------------------------------


def test_parking_what_is_not_ready_and_resuming_what_has_ended_is_refused() -> None:
    cache = by.KVCache(block_size=4, device=17, host=16)
    preempt = Parking(cache, cache.config)
    publish_below(cache, text(1, 12))
    loading = cache.begin(text(1, 13))
    assert loading.state == "loading"
    with pytest.raises(by.Misuse, match="loading"):
        preempt.park(loading, 12)
    cache.finish(loading)
    lease = cache.begin(text(2, 8))
    handle = there(preempt.park(lease, 8))
    with pytest.raises(by.SpentLease):
        preempt.park(lease, 8)
    cache.abandon(handle)
    with pytest.raises(by.SpentLease):
        preempt.resume(handle)
    with pytest.raises(by.Misuse, match="mode = 'swap'"):
        Parking(cache, cache.config, mode="swap")  # type: ignore[arg-type]
    assert cache.audit() is None


@pytest.mark.law("INV-7")
def test_what_a_step_in_flight_may_write_still_is_not_copied_before_it_is_done() -> None:
    """An ack may overtake the output of an earlier step."""
    loop = squeezed(host=32)
    loop.until_stopping("new")
    loop.schedule()
    number = loop.scheduler._batch.number
    entry = loop.scheduler._lifecycle._requests["new"]
    seats = loop.scheduler._shared.seats
    seats.last_step[seats.bound()[1].number] = number
    loop.ack()
    assert (loop.state("new"), entry.last_write) == (RequestState.PARKED, number)
    loop.schedule()
    assert loop.plans == []
    loop.output()
    loop.output()
    loop.schedule()
    assert len(loop.plans) == 1
    loop.finish()
