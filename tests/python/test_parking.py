"""Parking and resume, transition by transition: names and numbers are those of `docs/laws.md`."""

import logging
import pickle
import random
import time
from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard.preempt import Preempt
from blockyard.request import State
from blockyard.reserve import Full
from blockyard.scheduler import Scheduler
from loop import Loop, continuation, loading, squeezed, stopping
from yard import free_for_all, publish, publish_below, text


def parked(**keywords: Any) -> Loop:
    """ "new" was chosen, and the engine has answered: its work is kept."""
    loop = stopping(host=32, **keywords)
    loop.ack()
    assert loop.state("new") is State.PARKED
    return loop


def resuming(**keywords: Any) -> Loop:
    """ "new" has been wholly below, and its blocks are on their way up."""
    loop = parked(**keywords)
    while loop.told("parked") and loop.handle().on_device:
        loop.cache.demote(8, of=loop.handle())
        loop.plans += loop.cache.dispatch()
        loop.land()
    # What it left idle on the device goes for something else.
    publish(loop.cache, text(9, free_for_all(loop.cache) * 4))
    loop.scheduler.abort("old")
    for _ in range(20):
        if loop.state("new") is State.LOADING:
            return loop
        loop.schedule()
        loop.output()
        loop.ack()
    raise AssertionError(loop.scheduler.explain("new"))


# -- the way down --------------------------------------------------------------------------------


def test_t10_a_victim_is_parked_with_its_host_slots_promised_and_nothing_has_moved() -> None:
    loop = stopping(host=32)
    lease = loop.scheduler.lease("new")
    assert lease is not None
    blocks, before = lease.blocks, loop.cache.stats()
    loop.ack()
    assert (loop.state("new"), loop.told("parked"), loop.told("seats")) == (State.PARKED, 1, 1)
    after = loop.cache.stats()
    assert (after["parked"], after["host_promised"]) == (1, blocks)
    assert after["device_out"] == before["device_out"]
    assert (loop.told("parkings"), loop.told("lost")) == (1, 0)
    loop.finish()
    assert loop.results["new"].tokens.tolist() == continuation("new", 14, 12)


def test_t10_the_blocks_of_the_parked_leave_tail_first_and_only_as_the_need_asks() -> None:
    loop = parked()
    blocks = loop.handle().blocks
    loop.schedule()
    (plan,) = loop.plans
    assert len(plan) == 1
    loop.land()
    assert loop.handle().on_device == blocks - 1
    # One block is room for four tokens; the next moves two steps before it is wanted.
    moved = []
    while loop.state("old") is State.DECODE:
        moved.append(loop.told("relieved"))
        loop.turn()
    assert moved[0] == 1
    assert all(later - now <= 1 for now, later in zip(moved, moved[3:], strict=False))
    loop.finish()


def test_t12_when_a_copy_has_landed_its_slot_is_somebody_elses_and_it_stays_parked() -> None:
    loop = parked()
    for _ in range(30):
        loop.turn()
        if loop.handle().on_device < loop.handle().blocks:
            break
    assert loop.state("new") is State.PARKED
    assert loop.told("relieved") == loop.handle().blocks - loop.handle().on_device == 1
    loop.turn()
    assert loop.state("old") is State.DECODE
    loop.finish()


def test_t13_a_failed_copy_is_tried_again_and_then_the_keep_is_broken() -> None:
    loop = parked()
    for _ in range(4):
        assert loop.state("new") is State.PARKED
        loop.schedule()
        (plan,) = loop.plans
        loop.plans.clear()
        loop.cache.commit([plan], [0])
        loop.output()
    assert loop.handle().state == "broken"
    loop.finish()
    assert loop.told("kv_lost") == 1
    assert loop.results["new"].tokens.tolist() == continuation("new", 14, 12)


def test_t14_a_copy_that_never_ends_costs_its_destination_alone() -> None:
    loop = parked()
    loop.schedule()
    (plan,) = loop.plans
    loop.plans.clear()
    loop.cache.unknown(plan)
    loop.output()
    assert (loop.handle().state, loop.handle().on_device) == ("kept", loop.handle().blocks)
    assert loop.cache.stats()["host_quarantined"] == 1
    for _ in range(5):
        loop.turn()
    # The fence: what it read, and what stands above that, may leave now.
    loop.cache.commit(plan)
    assert loop.cache.stats()["host_quarantined"] == 0
    loop.finish()
    assert loop.results["new"].tokens.tolist() == continuation("new", 14, 12)


@pytest.mark.parametrize("host", [0, 2])
def test_t15_what_the_host_cannot_promise_is_computed_again(host: int) -> None:
    loop = stopping(host=host)
    loop.ack()
    assert loop.state("new") is State.RECOMPUTE
    assert (loop.told("no_host"), loop.cache.stats()["parked"]) == (int(host > 0), 0)
    loop.finish()
    assert loop.results["new"].tokens.tolist() == continuation("new", 14, 12)


def test_t15_idle_blocks_of_the_host_make_way_for_who_is_parked() -> None:
    loop = Loop(device=9, host=6)
    publish_below(loop.cache, text(7, 24))
    assert loop.cache.stats()["host_free"] == 0
    loop.add("old", text(1, 14), 12)
    loop.add("new", text(2, 14), 12)
    while loop.state("new") is not State.STOPPING:
        loop.schedule()
        loop.plans.clear()
        loop.output()
    loop.ack()
    assert loop.state("new") is State.PARKED
    loop.finish()


# -- the way up ----------------------------------------------------------------------------------


def test_t16_what_is_all_on_the_device_decodes_at_once() -> None:
    loop = parked()
    loop.scheduler.abort("old")
    loop.schedule()
    loop.output()
    loop.ack()
    step = loop.schedule()
    (start,) = step.starts
    assert start.request == "new"
    assert start.cached == len(start.tokens) - 1
    assert (loop.state("new"), loop.plans) == (State.DECODE, [])
    assert step.chunks == ((start.seat, start.cached, 1),)
    loop.finish()
    assert loop.results["new"].tokens.tolist() == continuation("new", 14, 12)


def test_t17_who_finds_no_room_stays_parked_and_ages() -> None:
    loop = parked()
    loop.turn()
    before = loop.scheduler._requests["new"].refused
    loop.turn(2)
    assert loop.state("new") is State.PARKED
    assert loop.scheduler._requests["new"].refused > before
    loop.finish()


def test_t17_who_has_aged_is_computed_again() -> None:
    loop = parked()
    loop.scheduler._preempt._patience = 2
    for _ in range(8):
        loop.turn()
    assert loop.told("aged") == 1
    assert loop.told("kv_lost") == 0
    loop.finish()
    assert loop.results["new"].tokens.tolist() == continuation("new", 14, 12)


def test_t18_when_its_loads_have_landed_it_goes_on_at_the_same_token_in_a_new_epoch() -> None:
    loop = resuming()
    entry = loop.scheduler._requests["new"]
    known = len(entry.prompt) + len(entry.outputs)
    epoch = entry.epoch
    loop.land()
    step = loop.schedule()
    (start,) = [one for one in step.starts if one.request == "new"]
    assert (len(start.tokens), start.cached) == (known, known - 1)
    assert start.epoch == epoch
    assert loop.state("new") is State.DECODE
    assert loop.told("lost") == 0
    loop.finish()
    assert loop.results["new"].tokens.tolist() == continuation("new", 14, 12)


@pytest.mark.parametrize("end", ["fails", "never ends"])
def test_t19_t20_a_resume_that_comes_short_is_parked_again_and_tried_again(end: str) -> None:
    loop = resuming()
    (plan,) = loop.plans
    loop.plans.clear()
    (loop.cache.unknown if end == "never ends" else loop.cache.abort)(plan)
    loop.schedule()
    loop.output()
    assert (loop.told("retried"), loop.told("kv_lost")) == (1, 0)
    assert loop.state("new") in {State.PARKED, State.LOADING}
    if end == "never ends":
        for _ in range(5):
            loop.turn()
        assert loop.cache.stats()["device_quarantined"] == len(plan)
        assert loop.state("new") is State.PARKED
        loop.cache.commit(plan)
    loop.finish()
    assert loop.told("lost") == 0
    assert loop.results["new"].tokens.tolist() == continuation("new", 14, 12)


@pytest.mark.parametrize("recompute", [True, False])
def test_t19_who_has_tried_often_enough_is_computed_again_or_lost(recompute: Any) -> None:
    loop = resuming(recompute=recompute)
    for _ in range(3):
        for _ in range(6):
            if loop.state("new") is State.LOADING:
                break
            loop.schedule()
            loop.output()
        plans, loop.plans = loop.plans, []
        loop.cache.abort(plans)
        loop.schedule()
        loop.output()
    if recompute:
        assert loop.state("new") in {State.RECOMPUTE, State.LOADING, State.PREFILL}
    loop.finish()
    result = loop.results["new"]
    tokens = continuation("new", 14, 12)
    if recompute:
        assert (result.state, result.tokens.tolist()) == (State.FINISHED, tokens)
    else:
        assert result.state is State.FAILED
        assert result.reason.startswith("kv_lost")
        assert result.tokens.tolist() == tokens[: len(result.tokens)]


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
        assert (result.state, result.reason[:7]) == (State.FAILED, "kv_lost")
    assert loop.told("kv_lost") == 1


def test_t23_who_is_parked_is_aborted_at_once_and_nothing_is_kept() -> None:
    loop = parked()
    loop.scheduler.abort("new")
    loop.look()
    assert loop.results["new"].state is State.ABORTED
    stats = loop.cache.stats()
    assert (stats["parked"], stats["host_promised"], loop.told("parked")) == (0, 0, 0)
    loop.finish()


def test_t27_who_is_aborted_while_its_copies_are_in_the_air_gives_its_slots_back_at_the_fence() -> (
    None
):
    loop = resuming()
    loop.scheduler.abort("new")
    loop.look()
    assert loop.results["new"].state is State.ABORTED
    assert loop.cache.stats()["device_pinned"] > 0
    loop.land()
    assert loop.cache.stats()["device_pinned"] == 0
    loop.finish()


def test_t27_who_is_aborted_while_it_moves_down_gives_its_slots_back_at_the_fence() -> None:
    loop = parked()
    loop.schedule()
    (plan,) = loop.plans
    loop.scheduler.abort("new")
    loop.look()
    assert loop.results["new"].state is State.ABORTED
    assert loop.cache.audit() is None
    loop.land()
    del plan
    loop.finish()


def test_t32_a_finish_that_the_engine_reports_of_who_is_parked_changes_nothing() -> None:
    """A row of a step in flight, whose ack came before its output."""
    loop = stopping(host=32)
    loop.schedule()
    loop.ack()
    assert loop.state("new") is State.PARKED
    while loop.air:
        loop.output()
    assert loop.state("new") is State.PARKED
    loop.finish()


def test_t33_new_weights_break_what_is_kept() -> None:
    loop = parked()
    loop.scheduler.update_weights()
    assert loop.handle().state == "broken"
    loop.finish()
    assert loop.told("kv_lost") == 1
    assert loop.results["new"].tokens.tolist() == continuation("new", 14, 12)


# -- where the engine cannot recompute -----------------------------------------------------------


def test_t7_where_nothing_can_be_recomputed_a_victim_has_its_host_slots_promised_first() -> None:
    loop = squeezed(host=32, recompute=False)
    while loop.state("new") is not State.STOPPING:
        loop.schedule()
        loop.output()
    seat = loop.scheduler._seats.bound()[1]
    assert seat.ticket is not None
    assert (seat.ticket.tier, seat.ticket.blocks) == ("host", seat.lease.blocks)
    assert loop.cache.room("host").promised == seat.lease.blocks
    ticket = seat.ticket
    loop.ack()
    assert (loop.state("new"), ticket.state) == (State.PARKED, "spent")
    loop.finish()
    assert loop.results["new"].tokens.tolist() == continuation("new", 14, 12)


def test_t7_a_victim_that_is_aborted_gives_its_host_slots_back() -> None:
    loop = squeezed(host=32, recompute=False)
    while loop.state("new") is not State.STOPPING:
        loop.schedule()
        loop.output()
    loop.scheduler.abort("new")
    loop.ack()
    assert loop.cache.room("host").promised == 0
    loop.finish()


def test_who_could_not_be_parked_beside_the_others_waits_in_line() -> None:
    """All but one of those that run find room on the host, however long they grow."""
    loop = Loop(device=9, host=4, recompute=False)
    loop.add("old", text(1, 14), 12)
    loop.add("new", text(2, 14), 12)
    loop.turn()
    assert (loop.state("old"), loop.state("new")) == (State.DECODE, State.WAITING)
    loop.finish()
    assert loop.told("preempted") == 0


def test_without_a_host_such_an_engine_admits_no_more_than_the_device_can_end() -> None:
    loop = Loop(device=9, recompute=False)
    for name in range(4):
        loop.add(name, text(name + 1, 9), 8)
    loop.finish()
    assert loop.told("preempted") == 0
    assert all(result.state is State.FINISHED for result in loop.results.values())


@pytest.mark.parametrize("way", ["recompute", "full-blocks"])
def test_what_such_an_engine_cannot_do_is_refused(way: Any) -> None:
    with pytest.raises(by.Misuse, match="cannot recompute"):
        Scheduler(by.KVCache(device=9, host=9, recompute=False), preempt=way)


# -- the lists of known failures -----------------------------------------------------------------


def test_r1_1_a_stalled_tier_holds_up_nobody_and_gives_no_slot_away() -> None:
    loop = Loop(device=41, host=64, seats=8)
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


@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_r1_3_three_stays_in_the_yard_change_neither_the_prompt_nor_its_keys(kind: Any) -> None:
    prompt = kind(text(2, 14))
    before = pickle.dumps(prompt)
    loop = Loop(device=9, host=32)
    loop.add("old", text(1, 14), 16)
    loop.scheduler.add("new", prompt, most=12)
    stays = 0
    while loop.scheduler.state("new") is not None:
        loop.turn()
        seat = next((one for one in loop.scheduler._seats.bound() if one.request.id == "new"), None)
        if seat is not None and seat.request.state is State.DECODE and stays < 3:
            loop.scheduler._stop(seat)
            stays += 1
    assert stays == 3
    assert pickle.dumps(prompt) == before
    keys = bytes(loop.cache.keys(text(2, 14)))
    whole = loop.cache.keys([*text(2, 14), *continuation("new", 14, 12)])
    assert bytes(whole)[: len(keys)] == keys
    assert loop.results["new"].tokens.tolist() == continuation("new", 14, 12)
    loop.finish()


def test_r1_6_what_a_victim_keeps_is_said_and_all_of_it_by_default() -> None:
    for host, way, told in ((8, None, 2), (8, "full-blocks", 1), (8, "recompute", 0), (0, None, 0)):
        scheduler = Scheduler(by.KVCache(device=9, host=host), preempt=way)  # type: ignore[arg-type]
        assert scheduler.stats()["way"] == told


def test_a_host_of_no_size_is_said_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert Scheduler(by.KVCache(device=9), preempt="park").stats()["way"] == 0
    assert "no host" in caplog.text


def test_full_blocks_alone_are_kept_and_the_tail_is_computed_again() -> None:
    loop = stopping(host=32, preempt="full-blocks")
    seat = loop.scheduler._seats.bound()[1]
    computed = int(loop.scheduler._seats.computed[seat.number])
    loop.ack()
    assert loop.handle().computed == computed - computed % 4
    assert loop.told("lost") == computed % 4
    loop.finish()
    assert loop.results["new"].tokens.tolist() == continuation("new", 14, 12)


@pytest.mark.parametrize("computed", range(5, 10))
@pytest.mark.parametrize("flying", range(4))
def test_4_7_46_with_tokens_in_flight_around_a_block_n_is_one_number(
    computed: int, flying: int
) -> None:
    """R1-9 too: what is published is full and computed, and the tail leaves as what it is."""
    loop = Loop(device=33, host=32)
    loop.add("one", 3, 20)
    while int(loop.scheduler._seats.computed[0]) < computed:
        loop.turn()
    for _ in range(flying):
        loop.schedule()
    loop.scheduler._stop(loop.scheduler._seats.bound()[0])
    loop.schedule()
    lease = loop.scheduler.lease("one")
    assert lease is not None
    while loop.air:
        loop.output()
    loop.ack()
    parked = loop.handle("one")
    tokens = 3 + len(loop.scheduler._requests["one"].outputs)
    assert (parked.computed, parked.appended) == (computed + flying, tokens)
    assert tokens == parked.computed + 1
    assert parked.blocks == -(-parked.computed // 4)
    said = continuation("one", 3, 20)
    probe = loop.cache.probe([*text(1, 3), *said])
    assert probe.device == parked.computed // 4
    loop.finish()
    assert loop.results["one"].tokens.tolist() == said


def test_r1_12_a_sequence_may_have_several_copies_in_the_air() -> None:
    loop = parked()
    loop.cache.demote(1, of=loop.handle())
    loop.cache.demote(1, of=loop.handle())
    plans = loop.cache.dispatch()
    assert len({plan.flight for plan in plans}) == 2
    loop.cache.commit(plans[1])
    loop.cache.commit(plans[0])
    assert loop.handle().on_device == loop.handle().blocks - 2
    loop.finish()


def test_r3_7_whatever_is_parked_the_host_never_holds_more_than_it_has() -> None:
    """4.7-44: budgets and squeezes by seed; what is too much is computed again."""
    chance = random.Random(7)
    for _ in range(30):
        host = chance.randint(1, 24)
        loop = Loop(device=chance.randint(9, 17), host=host, seats=6)
        names = range(chance.randint(3, 7))
        for name in names:
            loop.add(name, text(name + 1, chance.randint(1, 14)), chance.randint(4, 16))
        while not loop.scheduler.idle:
            loop.turn()
            stats = loop.cache.stats()
            held = stats["host_pinned"] + stats["host_idle"] + stats["host_promised"]
            assert held - stats["host_takeable"] <= host
        loop.finish()
        assert all(loop.results[name].state is State.FINISHED for name in names)


def test_r3_9_a_late_outcome_of_the_first_copy_is_none_of_the_second() -> None:
    loop = parked()
    loop.schedule()
    (first,) = loop.plans
    loop.plans.clear()
    loop.cache.unknown(first)
    loop.output()
    loop.cache.demote(1, of=loop.handle())
    (second,) = loop.cache.dispatch()
    on_device = loop.handle().on_device
    loop.cache.commit(first)
    assert (loop.handle().on_device, loop.handle().moving) == (on_device, len(second))
    loop.cache.commit(second)
    assert loop.handle().on_device == on_device - 1
    loop.finish()


def test_r3_13_whatever_was_parked_comes_back_when_there_is_room() -> None:
    for computed in range(1, 13):
        cache = by.KVCache(block_size=4, device=17, host=16)
        lease = cache.begin(text(1, computed))
        preempt = Preempt(cache, cache.config)
        handle = preempt.park(lease, computed)
        assert handle is not None
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


def test_4_7_45_when_all_are_parked_and_nobody_comes_they_come_back() -> None:
    loop = Loop(device=17, host=64)
    names = range(3)
    for name in names:
        loop.add(name, text(name + 1, 12), 12)
    loop.turn(3)
    for seat in loop.scheduler._seats.bound():
        loop.scheduler._stop(seat)
    loop.turn()
    assert loop.told("parkings") == 3
    loop.finish()
    for name in names:
        assert loop.results[name].tokens.tolist() == continuation(name, 12, 12)


def test_4_7_48_who_comes_back_while_its_tail_is_on_its_way_down_takes_its_slot_back() -> None:
    loop = parked()
    loop.schedule()
    (down,) = loop.plans
    loop.plans.clear()
    loop.scheduler.abort("old")
    loop.output()
    loop.schedule()
    loop.output()
    loop.ack()
    step = loop.schedule()
    assert [start.request for start in step.starts] == ["new"]
    loop.output()
    loop.cache.commit(down)
    loop.finish()
    assert loop.results["new"].tokens.tolist() == continuation("new", 14, 12)


# -- bad input -----------------------------------------------------------------------------------


def test_parking_what_is_not_ready_and_resuming_what_has_ended_is_refused() -> None:
    cache = by.KVCache(block_size=4, device=17, host=16)
    preempt = Preempt(cache, cache.config)
    publish_below(cache, text(1, 12))
    loading = cache.begin(text(1, 13))
    assert loading.state == "loading"
    with pytest.raises(by.Misuse, match="loading"):
        preempt.park(loading, 12)
    cache.finish(loading)
    lease = cache.begin(text(2, 8))
    handle = preempt.park(lease, 8)
    assert handle is not None
    with pytest.raises(by.SpentLease):
        preempt.park(lease, 8)
    cache.abandon(handle)
    with pytest.raises(by.SpentLease):
        preempt.resume(handle)
    with pytest.raises(by.Misuse, match="preempt"):
        Preempt(cache, cache.config, way="swap")  # type: ignore[arg-type]
    assert cache.audit() is None


def test_what_a_step_in_flight_may_write_still_is_not_copied_before_it_is_done() -> None:
    """An ack may overtake the output of a step before it."""
    loop = squeezed(host=32)
    while loop.state("new") is not State.STOPPING:
        loop.schedule()
        loop.output()
    loop.schedule()
    number = loop.scheduler._batch.number
    entry = loop.scheduler._requests["new"]
    loop.scheduler._seats.bound()[1].last = number
    loop.ack()
    assert (loop.state("new"), entry.settled) == (State.PARKED, number)
    loop.schedule()
    assert loop.plans == []
    loop.output()
    loop.output()
    loop.schedule()
    assert len(loop.plans) == 1
    loop.finish()


# -- who moves, who waits, who is given up -------------------------------------------------------


def stopped(*requests: str, **keywords: Any) -> Loop:
    """Requests of four blocks, of which those named are parked, with nothing moved."""
    loop = Loop(**({"device": 33, "host": 32} | keywords))
    names = ["old", "mid", "new"]
    for name in names:
        loop.add(name, text(names.index(name) + 1, 13), 12)
    loop.turn()
    for seat in loop.scheduler._seats.bound():
        if seat.request.id in requests:
            loop.scheduler._stop(seat)
    loop.schedule()
    loop.output()
    loop.ack()
    assert {loop.state(name) for name in requests} == {State.PARKED}
    return loop


def sink(loop: Loop, request: str = "new") -> None:
    """All that is kept of a request goes down."""
    while loop.handle(request).on_device:
        loop.cache.demote(8, of=loop.handle(request))
        loop.plans += loop.cache.dispatch()
        loop.land()


def test_r1_6_full_blocks_alone_are_kept_also_where_the_last_is_not_full() -> None:
    loop = stopped("new", preempt="full-blocks")
    assert (loop.handle().appended, loop.handle().computed, loop.told("lost")) == (14, 12, 1)
    loop.finish()
    assert loop.results["new"].tokens.tolist() == continuation("new", 13, 12)


def test_t12_a_slot_that_a_step_in_flight_may_write_is_not_free_before_it_is_done() -> None:
    loop = Loop(device=33, host=32)
    loop.add("new", 5, 12)
    loop.turn(2)
    loop.schedule()
    loop.scheduler._stop(loop.scheduler._seats.bound()[0])
    loop.schedule()
    loop.ack()
    sink(loop)
    assert (loop.handle().blocks, loop.handle().moving, free_for_all(loop.cache)) == (2, 0, 30)
    loop.output()
    assert free_for_all(loop.cache) == 32
    loop.finish()


def test_a_second_victim_is_not_chosen_while_the_first_is_parked_and_moves() -> None:
    loop = Loop(device=17, host=32)
    for name in range(4):
        loop.add(name, text(name + 1, 14), 12)
    while loop.told("parkings") == 0:
        loop.schedule()
        loop.output()
        loop.ack()
    for _ in range(4):
        loop.schedule()
        loop.output()
        assert loop.told("preempted") == 1
    assert loop.handle(3).moving == 3
    loop.finish()


def test_who_comes_back_last_moves_first_and_nobody_for_who_stands_behind() -> None:
    loop = stopped("mid", "new")
    line = loop.scheduler._requests
    loop.scheduler._relief.move(1, behind=line["new"])
    assert (loop.handle("mid").moving, loop.handle("new").moving) == (0, 0)
    loop.scheduler._relief.move(1)
    assert (loop.handle("mid").moving, loop.handle("new").moving) == (0, 1)
    loop.scheduler._relief.move(2, behind=line["mid"])
    assert (loop.handle("mid").moving, loop.handle("new").moving) == (0, 2)
    loop.finish()


def test_what_is_on_its_way_is_not_asked_for_twice() -> None:
    cache = by.KVCache(block_size=4, device=17, host=16)
    preempt = Preempt(cache, cache.config)
    handle = preempt.park(cache.begin(text(1, 16)), 16)
    assert handle is not None
    begun = [preempt.relieve(blocks, [handle]) for blocks in (2, 2, 3, 1)]
    assert (begun, handle.moving) == ([2, 0, 1, 0], 3)


def test_nobody_overtakes_who_was_preempted() -> None:
    loop = parked()
    sink(loop)
    loop.add("small", text(3, 1), 1)
    loop.schedule()
    loop.output()
    assert (loop.state("old"), loop.state("small")) == (State.DECODE, State.WAITING)
    assert free_for_all(loop.cache) > 0
    loop.finish()


def test_the_parked_move_for_who_stands_before_them_and_waits() -> None:
    loop = parked()
    loop.add("first", text(3, 9), 1, priority=1)
    for _ in range(8):
        loop.turn()
    assert loop.results["first"].state is State.FINISHED
    assert loop.state("old") is State.DECODE
    loop.finish()


def test_who_must_come_back_does_not_wait_behind_who_finds_no_room() -> None:
    loop = stopped("mid", "new", recompute=False, device=13, skip=0)
    sink(loop)
    loop.add("large", text(4, 45), 1, priority=1)
    loop.schedule()
    loop.output()
    states = [loop.state(name) for name in ("large", "mid")]
    assert states == [State.WAITING, State.DECODE]
    loop.finish()


def test_all_but_the_largest_can_be_parked_and_who_is_parked_counts() -> None:
    loop = squeezed(host=7, recompute=False)
    while loop.state("new") is not State.STOPPING:
        loop.schedule()
        loop.output()
    loop.ack()
    sink(loop)
    loop.add("small", text(3, 1), 1, priority=1)
    loop.schedule()
    loop.output()
    assert (loop.state("new"), loop.state("small")) == (State.PARKED, State.WAITING)
    assert free_for_all(loop.cache) > 0
    loop.finish()


def test_when_the_host_is_made_smaller_and_nobody_can_be_parked_one_fails() -> None:
    loop = squeezed(host=32, recompute=False)
    loop.cache.resize("host", 1)
    loop.finish()
    assert loop.results["new"].reason.startswith("kv_lost")
    assert loop.results["old"].tokens.tolist() == continuation("old", 14, 12)


def test_when_the_host_is_made_smaller_who_fits_there_is_parked_before_anybody_fails() -> None:
    """All that "new" may need does not fit on the host any more; what it has does."""
    loop = squeezed(host=32, recompute=False)
    loop.cache.resize("host", 6)
    loop.finish()
    assert loop.told("parkings") == 1
    assert {result.state for result in loop.results.values()} == {State.FINISHED}


def test_of_two_pairs_that_hold_the_same_one_leaves_though_it_frees_nothing() -> None:
    """What two hold is free when both have left: nobody frees a block by leaving alone."""
    loop = Loop(device=16, host=32, size=1)
    leases = []
    for family in (1, 2):
        pair = [loop.cache.begin(texts(family, 5)) for _ in range(2)]
        loop.cache.seal(pair, 5)
        assert loop.cache.dedup(pair) == 5
        leases += pair
    kept = loop.cache.promise(5)
    seats = loop.scheduler._seats
    for name, lease in enumerate(leases):
        loop.add(name, texts(1 + name // 2, 5), 5)
        entry = loop.scheduler._line.pop()
        assert entry is not None
        loop.scheduler._batch.decodes(seats.bind(entry, lease, 9))
    seats.scheduled[:4] = seats.computed[:4] = 5
    assert [loop.cache.held_alone(lease) for lease in leases] == [0] * 4
    grown = loop.scheduler._batch.grow()
    assert (grown.seats, len(grown.short)) == ([], 4)
    assert loop.scheduler._relief.victims(grown, 0) == []
    victim = loop.scheduler._relief.last_resort()
    assert victim is not None
    assert victim.request.id == 3
    loop.cache.release(kept)
    loop.cache.finish(leases)


def test_t7_who_would_free_nothing_is_promised_nothing() -> None:
    loop = Loop(device=5, host=32, recompute=False)
    loop.add("shared", text(1, 7), 5)
    loop.turn()
    whole = text(1, 7) + continuation("shared", 7, 1)
    loop.add("shares", [*whole, 5], 3, priority=1)
    loop.turn()
    (first, second) = loop.scheduler._seats.bound()
    assert [loop.cache.held_alone(seat.lease) for seat in (first, second)] == [0, 2]
    assert [stop.request for stop in loop.schedule().stops] == ["shares"]
    assert (first.ticket, loop.cache.room("host").promised) == (None, second.lease.blocks)
    loop.output()
    loop.finish()


def test_t17_who_cannot_be_computed_again_waits_however_long() -> None:
    loop = parked(recompute=False)
    loop.scheduler._preempt._patience = 2
    for _ in range(8):
        loop.turn()
    assert (loop.state("new"), loop.told("aged")) == (State.PARKED, 0)
    loop.finish()
    assert loop.results["new"].tokens.tolist() == continuation("new", 14, 12)


def test_t17_who_is_asked_for_room_and_gives_none_is_computed_again() -> None:
    loop = parked()
    loop.scheduler._preempt._patience = 2
    for _ in range(8):
        loop.schedule()
        loop.output()
    assert (loop.told("aged"), loop.told("parked")) == (1, 0)
    loop.finish()
    assert loop.results["new"].tokens.tolist() == continuation("new", 14, 12)


def test_t17_who_gives_room_grows_no_older_by_it() -> None:
    loop = stopped("new")
    loop.scheduler._preempt._patience = 1
    for _ in range(3):
        loop.scheduler._relief.move(1)
        loop.plans += loop.cache.dispatch()
        loop.land()
    assert (loop.told("relieved"), loop.told("aged")) == (3, 0)
    loop.finish()


def test_t12_room_is_there_before_it_is_wanted() -> None:
    loop = parked()
    loop.turn(2)
    skipped = loop.told("skipped")
    while "old" not in loop.results:
        loop.turn()
    assert loop.told("relieved") > 1
    assert loop.told("skipped") == skipped
    loop.finish()


@pytest.mark.parametrize("recompute", [True, False])
def test_t11_what_is_computed_sooner_than_moved_is_not_parked(recompute: Any) -> None:
    cache = by.KVCache(block_size=4, device=17, host=16, speeds=(1000, 10, 0), recompute=recompute)
    preempt = Preempt(cache, cache.config)
    handle = preempt.park(cache.begin(text(1, 16)), 16)
    assert (handle is None, preempt.stats()["cheaper"]) == (recompute, int(recompute))


def test_r1_5_who_comes_back_is_promised_its_growth() -> None:
    loop = stopped("new", reserve=Full())
    before = loop.cache.room().promised
    loop.turn()
    assert loop.state("new") is State.DECODE
    assert loop.cache.room().promised > before
    loop.finish()


def test_nobody_fails_for_want_of_a_host_while_somebody_goes_on_and_ends() -> None:
    loop = Loop(device=13, host=32, recompute=False)
    loop.add("old", text(1, 14), 8)
    loop.add("ends", text(2, 12), 5)
    loop.add("new", text(3, 14), 8)
    loop.turn()
    loop.cache.resize("host", 1)
    loop.finish()
    assert loop.told("skipped") > 0
    assert {result.state for result in loop.results.values()} == {State.FINISHED}


def test_t17_who_is_parked_again_is_as_young_as_at_first() -> None:
    loop = parked()
    loop.turn(3)
    entry = loop.scheduler._requests["new"]
    assert entry.refused > 0
    loop.scheduler.abort("old")
    while loop.state("new") is not State.DECODE:
        loop.turn()
    loop.scheduler._stop(loop.scheduler._seats.bound()[0])
    loop.schedule()
    loop.output()
    loop.ack()
    assert (loop.state("new"), entry.refused) == (State.PARKED, 0)
    loop.finish()


def test_t19_who_has_come_back_has_all_its_tries_again() -> None:
    loop = resuming()
    entry = loop.scheduler._requests["new"]
    assert entry.resumes == 1
    loop.land()
    loop.schedule()
    assert (loop.state("new"), entry.resumes) == (State.DECODE, 0)
    loop.finish()


def test_t33_who_was_loading_loses_nothing_where_nothing_can_be_recomputed() -> None:
    loop = loading(recompute=False)
    loop.scheduler.update_weights()
    loop.land()
    loop.finish()
    assert loop.results["one"].tokens.tolist() == continuation("one", 14, 3)


def test_t16_a_tail_that_is_not_full_comes_back_too() -> None:
    loop = stopped("new")
    (start,) = loop.turn().starts
    assert (start.request, len(start.tokens), start.cached) == ("new", 14, 13)
    assert loop.state("new") is State.DECODE
    loop.finish()
    assert loop.results["new"].tokens.tolist() == continuation("new", 13, 12)


def texts(first: int, most: int) -> list[int]:
    """All whose prompts begin alike sample alike."""
    return [(first * 31 + at) % 900 for at in range(most)]


@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("way", [(9, 20, (8, 8)), (13, 30, (11, 10)), (13, 5, (5, 12))])
def test_who_holds_blocks_twice_that_a_parked_one_keeps_makes_room_for_itself(
    way: Any, recompute: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that say the same hold each other's blocks beside their own: INV-25."""
    device, host, (first, second) = way
    monkeypatch.setattr("loop.continuation", lambda _one, at, most: texts(1, at + most)[at:])
    loop = Loop(device=device, host=host, size=1, recompute=recompute)
    loop.add("A", [1], first)
    loop.turn()
    loop.add("B", [1], second, priority=5)
    if device == 13 and host == 30:
        loop.add("C", [9], 5, priority=-1)
    loop.finish(600)
    for name, most in (("A", first), ("B", second)):
        result = loop.results[name]
        assert result.tokens.tolist() == texts(1, 1 + most)[1 : 1 + len(result.tokens)]
        assert result.state is State.FINISHED or result.reason.startswith("kv_lost")
        assert not recompute or result.state is State.FINISHED


@pytest.fixture
def same(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that begin alike sample alike."""
    monkeypatch.setattr("loop.continuation", lambda _one, at, most: texts(1, at + most)[at:])


@pytest.mark.usefixtures("same")
@pytest.mark.parametrize("stops", ["acked", "in-order"])
def test_inv_11_of_two_that_sample_alike_neither_is_lost(stops: Any) -> None:
    """Each needs 6 blocks of 7, and one of them fits on the host: held twice they would not."""
    loop = Loop(device=8, host=6, size=1, recompute=False, stops=stops)
    for name in "AB":
        loop.add(name, texts(1, 3), 4)
    loop.finish()
    for name in "AB":
        result = loop.results[name]
        assert (result.state, result.tokens.tolist()) == (State.FINISHED, texts(1, 7)[3:])
    assert (loop.told("parkings"), loop.cache.stats()["deduped"]) == (1, 2)


@pytest.mark.usefixtures("same")
@pytest.mark.parametrize("spare", range(4))
@pytest.mark.parametrize("size", range(1, 5))
@pytest.mark.parametrize("many", [2, 3, 5])
def test_inv_11_of_many_that_sample_alike_none_is_lost(many: int, size: int, spare: int) -> None:
    each = -(-(3 + 9 * size - 1) // size)
    loop = Loop(device=1 + each + spare, host=each * (many - 1), size=size, recompute=False)
    for name in range(many):
        loop.add(name, texts(1, 3), 9 * size)
    loop.finish(2000)
    assert {result.state for result in loop.results.values()} == {State.FINISHED}


def test_inv_11_the_largest_is_not_parked_where_the_others_then_could_not_be() -> None:
    """Of 12, 7 and 7 blocks the host holds 14: beside 10 of the 12 neither of the others fits."""
    loop = Loop(device=13, host=14, size=1, recompute=False)
    loop.add("large", [1], 12)
    loop.turn(9)
    for name in (2, 3):
        loop.add(name, [name], 7, priority=1)
    loop.finish(1000)
    assert loop.told("preempted") > 0
    assert {result.state for result in loop.results.values()} == {State.FINISHED}


def test_inv_25_blocks_that_only_parked_ones_keep_leave_where_nobody_runs() -> None:
    """Two keep one path and two another, and none has room to come back: none frees any alone."""
    loop = Loop(device=12, host=32, size=1, recompute=False)
    names = (1, 2, 3, 4)
    for name in names:
        loop.add(name, texts((name + 1) // 2, 6), 2)
    for entry in [loop.scheduler._line.pop() for _ in names]:
        assert entry is not None
        lease = loop.cache.begin(entry.prompt)
        loop.cache.seal(lease, 5)
        loop.scheduler._parked(entry, loop.cache.park(lease, 5))
    kept = loop.cache.promise(1)
    handles = [loop.handle(name) for name in names]
    assert [(handle.on_device, handle.alone) for handle in handles] == [(5, 0)] * 4
    loop.turn(3)
    assert loop.state(1) is not State.PARKED
    loop.cache.release(kept)
    loop.finish()
    assert {result.state for result in loop.results.values()} == {State.FINISHED}


def test_nobody_is_lost_for_room_that_is_promised_to_who_does_not_run() -> None:
    loop = Loop(device=8, size=1, recompute=False)
    loop.add("A", [1], 6)
    loop.turn(2)
    ticket = loop.cache.promise(3)
    loop.turn(6)
    assert loop.state("A") is State.DECODE
    loop.cache.release(ticket)
    loop.finish()
    assert loop.results["A"].state is State.FINISHED


def test_who_was_promised_room_gives_it_back_before_anybody_fails() -> None:
    loop = Loop(device=13, size=1, recompute=False)
    loop.add("A", [1], 6)
    loop.add("B", [2], 6)
    loop.turn(2)
    ticket = loop.cache.promise(min(8, loop.cache.room().free))
    loop.add("C", [3], 3, ticket=ticket)
    loop.finish()
    assert all(loop.results[name].state is State.FINISHED for name in "ABC")


def test_drafts_are_left_out_where_only_the_newest_token_has_room() -> None:
    """The device is made smaller than it is long: it goes on to the last slot."""
    loop = Loop(device=33, size=1, drafts=2)
    loop.add("one", [1], 25)
    loop.turn(8)
    loop.cache.resize("device", 16)
    loop.finish()
    result = loop.results["one"]
    assert (result.state, "all 15 blocks" in result.reason) == (State.FAILED, True)
    assert result.tokens.tolist() == continuation("one", 1, 25)[:15]


def test_who_fills_a_device_made_smaller_fails_whatever_is_idle_beyond_its_size() -> None:
    loop = Loop(device=9, size=1)
    held = loop.cache.begin([5, 5, 5])
    publish(loop.cache, [7, 7])
    loop.cache.finish(held)
    loop.add("A", [101], 8)
    loop.turn(2)
    loop.cache.resize("device", 5)
    loop.finish()
    result = loop.results["A"]
    assert (result.state, loop.cache.limit()) == (State.FAILED, 4)
    assert "all 4 blocks" in result.reason


@pytest.mark.parametrize(
    "call",
    [
        lambda preempt, _: preempt.park(None, 3),
        lambda preempt, lease: preempt.park(lease, 2.5),
        lambda preempt, _: preempt.promise(None),
        lambda preempt, lease: preempt.relieve(1, [lease]),
        lambda preempt, _: preempt.resume([1, 2, 3]),
        lambda preempt, _: preempt.came_short(None, 1),
        lambda preempt, _: Preempt(preempt._cache, preempt._cache.config, retries=-1),
        lambda preempt, _: Preempt(preempt._cache, preempt._cache.config, patience="x"),  # type: ignore[arg-type]
    ],
)
def test_what_is_neither_a_lease_nor_parked_is_refused_and_not_counted(call: Any) -> None:
    cache = by.KVCache(block_size=4, device=17, host=16)
    preempt = Preempt(cache, cache.config)
    lease = cache.begin(text(1, 9))
    before = cache.digest(), preempt.stats()
    with pytest.raises(by.Misuse):
        call(preempt, lease)
    assert (cache.digest(), preempt.stats()) == before
    cache.finish(lease)


@pytest.mark.parametrize("most", [10, 11, 12])
def test_t10_a_parked_block_leaves_two_steps_before_it_is_wanted_and_none_for_nobody(
    most: int,
) -> None:
    """Not a step later, for a copy takes some; nor sooner, for "old" may have ended by then."""
    loop = Loop(device=9, host=32)
    loop.add("old", text(1, 14), most)
    loop.add("new", text(2, 14), 12)
    while loop.state("new") is not State.PARKED:
        loop.turn()
    moved = []
    while "old" not in loop.results:
        before = loop.told("relieved")
        step = loop.schedule()
        if len(step) and loop.told("relieved") > before:
            moved.append(int(step.positions[0]))
        loop.land()
        loop.output()
        loop.ack()
    # It computes the positions up to 12 + most, and its blocks begin with the 20th and the 24th.
    assert moved == [position for position in (18, 22) if position + 2 <= 12 + most]
    loop.finish()


def test_full_blocks_alone_are_kept_but_never_less_than_was_found() -> None:
    """A full hit begins in the middle of a block: what it found there was computed by another."""
    cache = by.KVCache(block_size=4, device=17, host=16)
    preempt = Preempt(cache, cache.config, way="full-blocks")
    publish(cache, text(1, 8))
    lease = cache.begin(text(1, 8))
    assert isinstance(lease, by.Lease)
    cache.commit(lease.plans)
    assert lease.cached == 7
    handle = preempt.park(lease, 7)
    assert handle is not None
    assert (handle.computed, handle.blocks) == (7, 2)
    cache.abandon(handle)
    assert cache.audit() is None


def test_what_has_computed_nothing_is_not_parked() -> None:
    """T11: there is nothing to keep, and nothing is counted."""
    cache = by.KVCache(block_size=4, device=17, host=16)
    preempt = Preempt(cache, cache.config)
    lease = cache.begin(text(1, 8))
    assert isinstance(lease, by.Lease)
    assert preempt.park(lease, 0) is None
    assert (lease.state, preempt.stats()["parkings"], preempt.stats()["cheaper"]) == ("ready", 0, 0)
    cache.finish(lease)


def test_a_tail_is_a_block_to_move_and_what_is_kept_is_counted() -> None:
    """T11: less than a block is worth what a block is."""
    cache = by.KVCache(block_size=4, device=17, host=16, speeds=(10, 1000, 0))
    preempt = Preempt(cache, cache.config)
    handle = preempt.park(cache.begin(text(1, 3)), 3)
    assert handle is not None
    assert (handle.blocks, preempt.stats()["kept_blocks"]) == (1, 1)
    cache.abandon(handle)


def test_patience_is_what_may_be_and_one_more_is_too_much() -> None:
    """T17: a request finds no room that often in a row and is kept."""
    cache = by.KVCache(block_size=4, device=17, host=16)
    preempt = Preempt(cache, cache.config, patience=3)
    handle = preempt.park(cache.begin(text(1, 8)), 8)
    assert handle is not None
    assert [preempt.given_up(handle, refused) for refused in (0, 3, 4)] == [False, False, True]
    assert preempt.stats()["aged"] == 1
    cache.abandon(handle)


@pytest.mark.parametrize("recompute", [True, False])
def test_loads_that_fail_are_given_up_only_where_they_can_be_computed(recompute: Any) -> None:
    """T4."""
    cache = by.KVCache(block_size=4, device=17, host=16, recompute=recompute)
    preempt = Preempt(cache, cache.config, retries=2)
    assert [preempt.loads(failed) for failed in (2, 3)] == [None, 0 if recompute else None]


def test_what_another_holds_too_is_not_moved_for_who_needs_room() -> None:
    """T10: a copy of it would free nothing."""
    cache = by.KVCache(block_size=4, device=17, host=16)
    preempt = Preempt(cache, cache.config)
    publish(cache, text(1, 8))
    other = cache.begin(text(1, 9))
    lease = cache.begin([*text(1, 8), 1, 2, 3, 4, 5])
    handle = preempt.park(lease, 13)
    assert handle is not None
    assert (handle.blocks, handle.alone, preempt.relieve(4, [handle])) == (4, 2, 2)
    cache.commit(cache.dispatch())
    assert handle.on_device == 2
    cache.abandon(handle)
    cache.finish(other)


@pytest.mark.parametrize(("size", "prompt", "most"), [(1, 7, 1), (4, 28, 1), (4, 24, 5)])
def test_inv_25_a_prompt_that_fills_the_device_begins_again_where_nothing_is_recomputed(
    size: int, prompt: int, most: int
) -> None:
    """Its last block has no room beside the copy that its last token is computed in."""
    loop = Loop(device=8, host=8, size=size, recompute=False)
    for name in ("first", "second"):
        loop.add(name, text(1, prompt), most)
        loop.finish()
    assert {result.state for result in loop.results.values()} == {State.FINISHED}
