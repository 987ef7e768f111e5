"""Which parked blocks move for which request, which requests wait, and which are given up."""

from typing import Any

import pytest

import blockyard as by
from blockyard._typing import override
from blockyard.scheduling.headroom import FullLength
from blockyard.scheduling.request import RequestState
from blockyard.scheduling.victims import Candidate, Newest
from blockyard.yard.parking import Parking
from loop import Loop, continuation, loading, parked, resuming, sharing, squeezed
from yard import free_for_all, publish, text, there


def stopped(*requests: str, **keywords: Any) -> Loop:
    """Requests of four blocks, of which those named are parked, with nothing moved."""
    loop = Loop(**({"device": 33, "host": 32} | keywords))
    names = ["old", "mid", "new"]
    for name in names:
        loop.add(name, text(names.index(name) + 1, 13), 12)
    loop.turn()
    for seat in loop.scheduler._shared.seats.bound():
        if seat.request.id in requests:
            loop.scheduler._lifecycle.stop(seat)
    loop.turn(lands=False)
    assert {loop.state(name) for name in requests} == {RequestState.PARKED}
    return loop


def sink(loop: Loop, request: str = "new") -> None:
    """All that is kept of a request goes down."""
    while loop.handle(request).on_device:
        loop.cache.demote(8, of=loop.handle(request))
        loop.plans += loop.cache.dispatch()
        loop.land()


@pytest.mark.law("R1-6")
def test_r1_6_full_blocks_alone_are_kept_also_where_the_last_is_not_full() -> None:
    loop = stopped("new", preempt_mode="full-blocks")
    assert (loop.handle().appended, loop.handle().computed, loop.told("lost")) == (14, 12, 1)
    loop.finish()


@pytest.mark.law("T12")
def test_t12_a_slot_that_a_step_in_flight_may_write_is_not_free_before_it_is_done() -> None:
    loop = Loop(device=33, host=32)
    loop.add("new", 5, 12)
    loop.turn(2)
    loop.schedule()
    loop.scheduler._lifecycle.stop(loop.scheduler._shared.seats.bound()[0])
    loop.schedule()
    loop.ack()
    sink(loop)
    assert (loop.handle().blocks, loop.handle().moving, free_for_all(loop.cache)) == (2, 0, 30)
    loop.output()
    assert free_for_all(loop.cache) == 32
    loop.finish()


@pytest.mark.law("INV-25")
def test_a_second_victim_is_not_chosen_while_the_first_is_parked_and_moves() -> None:
    loop = Loop(device=17, host=32)
    for name in range(4):
        loop.add(name, text(name + 1, 14), 12)
    while loop.told("parkings") == 0:
        loop.turn(lands=False)
    for _ in range(4):
        loop.schedule()
        loop.output()
        assert loop.told("preempted") == 1
    assert loop.handle(3).moving == 3
    loop.finish()


@pytest.mark.law("INV-25")
def test_the_last_to_come_back_moves_first_and_none_moves_for_those_behind_it() -> None:
    loop = stopped("mid", "new", ahead=0)
    line = loop.scheduler._lifecycle._requests
    loop.scheduler._pressure._preemptor.relieve(1, behind=line["new"])
    assert (loop.handle("mid").moving, loop.handle("new").moving) == (0, 0)
    loop.scheduler._pressure._preemptor.relieve(1)
    assert (loop.handle("mid").moving, loop.handle("new").moving) == (0, 1)
    loop.scheduler._pressure._preemptor.relieve(2, behind=line["mid"])
    assert (loop.handle("mid").moving, loop.handle("new").moving) == (0, 2)
    loop.finish()


@pytest.mark.law("INV-25")
def test_what_is_on_its_way_is_not_asked_for_twice() -> None:
    cache = by.KVCache(block_size=4, device=17, host=16)
    preempt = Parking(cache, cache.config)
    handle = there(preempt.park(cache.begin(text(1, 16)), 16))
    begun = [preempt.relieve(blocks, [handle]) for blocks in (2, 2, 3, 1)]
    assert (begun, handle.moving) == ([2, 0, 1, 0], 3)


def test_what_begins_to_move_counts_of_whichever_sequence_it_is() -> None:
    cache = by.KVCache(block_size=4, device=17, host=16)
    preempt = Parking(cache, cache.config)
    handles = [preempt.park(cache.begin(text(name, 12)), 12) for name in (1, 2, 3)]
    kept = [handle for handle in handles if handle is not None]
    assert preempt.relieve(5, kept) == 5
    assert [handle.moving for handle in kept] == [3, 2, 0]
    cache.commit(cache.dispatch())
    assert (preempt.relieve_all(kept), preempt.stats()["relieved"]) == (4, 9)


def test_a_victim_policy_sees_what_each_row_has_computed() -> None:
    class Seen(Newest):
        @override
        def rank(self, candidate: Candidate) -> tuple[int, ...]:
            seen.add((candidate.order, candidate.blocks, candidate.computed))
            return super().rank(candidate)

    seen: set[tuple[int, int, int]] = set()
    loop = Loop(device=17, host=32, victim_policy=Seen())
    seen.clear()
    for name in range(4):
        loop.add(name, text(name + 1, 14), 12)
    while loop.told("preempted") == 0:
        loop.turn()
    assert seen == {(order, 4, 16) for order in range(4)}
    loop.finish()


@pytest.mark.law("INV-25")
def test_no_request_overtakes_a_preempted_one() -> None:
    loop = parked()
    sink(loop)
    loop.add("small", text(3, 1), 1)
    loop.schedule()
    loop.output()
    assert (loop.state("old"), loop.state("small")) == (RequestState.DECODE, RequestState.WAITING)
    assert free_for_all(loop.cache) > 0
    loop.finish()


@pytest.mark.law("INV-25")
def test_the_parked_move_for_a_request_that_waits_before_them() -> None:
    loop = parked()
    loop.add("first", text(3, 9), 1, priority=1)
    loop.turn(8)
    assert loop.results["first"].state is RequestState.FINISHED
    assert loop.state("old") is RequestState.DECODE
    loop.finish()


@pytest.mark.law("INV-25")
def test_a_request_that_must_come_back_does_not_wait_behind_one_without_room() -> None:
    loop = stopped("mid", "new", recompute=False, device=13, max_overtakes=0)
    sink(loop)
    loop.add("large", text(4, 45), 1, priority=1)
    loop.schedule()
    loop.output()
    states = [loop.state(name) for name in ("large", "mid")]
    assert states == [RequestState.WAITING, RequestState.DECODE]
    loop.finish()


@pytest.mark.law("INV-25")
def test_all_but_the_largest_can_be_parked_and_those_parked_count() -> None:
    loop = squeezed(host=7, recompute=False)
    loop.until_stopping("new")
    loop.ack()
    sink(loop)
    loop.add("small", text(3, 1), 1, priority=1)
    loop.schedule()
    loop.output()
    assert (loop.state("new"), loop.state("small")) == (RequestState.PARKED, RequestState.WAITING)
    assert free_for_all(loop.cache) > 0
    loop.finish()


@pytest.mark.law("INV-25")
def test_when_the_host_is_made_smaller_and_none_can_be_parked_one_fails() -> None:
    loop = squeezed(host=32, recompute=False)
    loop.cache.resize("host", 1)
    loop.finish()
    assert loop.results["new"].reason.startswith("kv_lost")
    assert loop.results["old"].tokens.tolist() == continuation("old", 14, 12)


@pytest.mark.law("INV-11")
def test_when_the_host_is_made_smaller_a_request_that_fits_is_parked_before_any_fails() -> None:
    """The host has no room for all that "new" may need, but for what it has."""
    loop = squeezed(host=32, recompute=False)
    loop.cache.resize("host", 6)
    loop.finish()
    assert loop.told("parkings") == 1
    assert {result.state for result in loop.results.values()} == {RequestState.FINISHED}


@pytest.mark.law("T7")
def test_t7_a_request_that_would_free_nothing_is_promised_nothing() -> None:
    loop = sharing(host=32, recompute=False)
    (first, second) = loop.scheduler._shared.seats.bound()
    assert [stop.request for stop in loop.schedule().stops] == ["shares"]
    assert (first.ticket, loop.cache.room("host").promised) == (None, second.lease.blocks)
    loop.finish()


@pytest.mark.law("T17")
def test_t17_a_request_that_cannot_be_computed_again_waits_however_long() -> None:
    loop = parked(recompute=False)
    loop.scheduler._shared.parking._max_stalled_steps = 2
    loop.turn(8)
    assert (loop.state("new"), loop.told("aged")) == (RequestState.PARKED, 0)
    loop.finish()
    assert loop.results["new"].tokens.tolist() == continuation("new", 14, 12)


@pytest.mark.law("T17")
def test_t17_a_request_asked_for_room_that_gives_none_is_computed_again() -> None:
    loop = parked()
    loop.scheduler._shared.parking._max_stalled_steps = 2
    for _ in range(8):
        loop.schedule()
        loop.output()
    assert (loop.told("aged"), loop.told("parked")) == (1, 0)
    loop.finish()


@pytest.mark.law("T17")
def test_t17_a_request_that_gives_room_grows_no_older_by_it() -> None:
    loop = stopped("new")
    loop.scheduler._shared.parking._max_stalled_steps = 1
    for _ in range(3):
        loop.scheduler._pressure._preemptor.relieve(1)
        loop.plans += loop.cache.dispatch()
        loop.land()
    assert (loop.told("relieved"), loop.told("aged")) == (3, 0)
    loop.finish()


@pytest.mark.law("INV-25", "T12")
def test_t12_room_is_there_before_it_is_wanted() -> None:
    loop = parked()
    loop.turn(2)
    skipped = loop.told("skipped")
    while "old" not in loop.results:
        loop.turn()
    assert loop.told("relieved") > 1
    assert loop.told("skipped") == skipped
    loop.finish()


@pytest.mark.law("T11")
@pytest.mark.parametrize("recompute", [True, False])
def test_t11_what_is_computed_sooner_than_moved_is_not_parked(recompute: Any) -> None:
    cache = by.KVCache(
        block_size=4, device=17, host=16, block_costs=(1000, 10, 0), recompute=recompute
    )
    preempt = Parking(cache, cache.config)
    handles = [preempt.park(cache.begin(text(name, 16)), 16) for name in (1, 2)]
    assert [handle is None for handle in handles] == [recompute] * 2
    assert preempt.stats()["cheaper"] == 2 * recompute


@pytest.mark.law("R1-5")
def test_r1_5_a_request_that_comes_back_is_promised_its_growth() -> None:
    loop = stopped("new", headroom=FullLength())
    before = loop.cache.room().promised
    loop.turn()
    assert loop.state("new") is RequestState.DECODE
    assert loop.cache.room().promised > before
    loop.finish()


@pytest.mark.law("INV-25")
def test_no_request_fails_for_want_of_a_host_while_another_goes_on_and_ends() -> None:
    loop = Loop(device=13, host=32, recompute=False)
    loop.add("old", text(1, 14), 8)
    loop.add("ends", text(2, 12), 5)
    loop.add("new", text(3, 14), 8)
    loop.turn()
    loop.cache.resize("host", 1)
    loop.finish()
    assert loop.told("skipped") > 0
    assert {result.state for result in loop.results.values()} == {RequestState.FINISHED}


@pytest.mark.law("T17")
def test_t17_a_request_parked_again_is_as_young_as_at_first() -> None:
    loop = parked()
    loop.turn(3)
    assert loop.work().stalled_steps > 0
    loop.scheduler.abort("old")
    while loop.state("new") is not RequestState.DECODE:
        loop.turn()
    loop.scheduler._lifecycle.stop(loop.scheduler._shared.seats.bound()[0])
    loop.turn(lands=False)
    assert (loop.state("new"), loop.work().stalled_steps) == (RequestState.PARKED, 0)
    loop.finish()


@pytest.mark.law("T19")
def test_t19_a_request_that_has_come_back_has_all_its_tries_again() -> None:
    loop = resuming()
    entry = loop.scheduler._lifecycle._requests["new"]
    assert entry.waiting.resumes == 1
    loop.land()
    loop.schedule()
    assert (loop.state("new"), entry.waiting.resumes) == (RequestState.DECODE, 0)
    loop.finish()


@pytest.mark.law("T33")
def test_t33_a_loading_request_loses_nothing_where_nothing_can_be_recomputed() -> None:
    loop = loading(recompute=False)
    loop.scheduler.update_weights()
    loop.land()
    loop.finish()
    assert loop.results["one"].tokens.tolist() == continuation("one", 14, 3)


@pytest.mark.law("T16")
def test_t16_a_tail_that_is_not_full_comes_back_too() -> None:
    loop = stopped("new")
    (start,) = loop.turn().starts
    assert (start.request, len(start.tokens), start.cached) == ("new", 14, 13)
    assert loop.state("new") is RequestState.DECODE
    loop.finish()


@pytest.mark.law("INV-11")
def test_no_request_is_lost_for_room_promised_to_what_does_not_run() -> None:
    loop = Loop(device=8, size=1, recompute=False)
    loop.add("A", [1], 6)
    loop.turn(2)
    ticket = loop.cache.promise(3)
    loop.turn(6)
    assert loop.state("A") is RequestState.DECODE
    loop.cache.release(ticket)
    loop.finish()
    assert loop.results["A"].state is RequestState.FINISHED


@pytest.mark.law("INV-25")
def test_a_request_gives_promised_room_back_before_any_fails() -> None:
    loop = Loop(device=13, size=1, recompute=False)
    loop.add("A", [1], 6)
    loop.add("B", [2], 6)
    loop.turn(2)
    ticket = loop.cache.promise(min(8, loop.cache.room().free))
    loop.add("C", [3], 3, ticket=ticket)
    loop.finish()
    assert all(loop.results[name].state is RequestState.FINISHED for name in "ABC")


@pytest.mark.law("4.5-30")
def test_drafts_are_left_out_where_only_the_newest_token_has_room() -> None:
    """The device is made smaller than the request is long: it goes on to the last slot."""
    loop = Loop(device=33, size=1, num_speculative_tokens=2)
    loop.add("one", [1], 25)
    loop.turn(8)
    loop.cache.resize("device", 16)
    loop.turn(25)
    assert loop.state("one") is RequestState.RECOMPUTE
    assert loop.scheduler.sampled("one") == continuation("one", 1, 25)[:15]
    loop.cache.resize("device", 33)
    loop.finish()


def test_a_request_that_fills_a_device_made_smaller_waits_whatever_is_idle_beyond() -> None:
    loop = Loop(device=9, size=1)
    held = loop.cache.begin([5, 5, 5])
    publish(loop.cache, [7, 7])
    loop.cache.finish(held)
    loop.add("A", [101], 8)
    loop.turn(2)
    loop.cache.resize("device", 5)
    loop.turn(12)
    assert (loop.state("A"), loop.cache.limit()) == (RequestState.RECOMPUTE, 4)
    loop.cache.resize("device", 9)
    loop.finish()


@pytest.mark.parametrize(
    "call",
    [
        lambda preempt, _: preempt.park(None, 3),
        lambda preempt, lease: preempt.park(lease, 2.5),
        lambda preempt, _: preempt.promise(None),
        lambda preempt, lease: preempt.relieve(1, [lease]),
        lambda preempt, _: preempt.resume([1, 2, 3]),
        lambda preempt, _: preempt.resume_incomplete(None, 1),
        lambda preempt, _: Parking(preempt._cache, preempt._cache.config, resume_retries=-1),
        lambda preempt, _: Parking(preempt._cache, preempt._cache.config, max_stalled_steps="x"),  # type: ignore[arg-type]
    ],
)
def test_what_is_neither_a_lease_nor_parked_is_refused_and_not_counted(call: Any) -> None:
    cache = by.KVCache(block_size=4, device=17, host=16)
    preempt = Parking(cache, cache.config)
    lease = cache.begin(text(1, 9))
    before = cache.digest(), preempt.stats()
    with pytest.raises(by.Misuse):
        call(preempt, lease)
    assert (cache.digest(), preempt.stats()) == before
    cache.finish(lease)


@pytest.mark.law("T10")
@pytest.mark.parametrize("most", [10, 11, 12])
def test_t10_a_parked_block_leaves_two_steps_before_it_is_wanted_and_none_in_vain(
    most: int,
) -> None:
    """A step later is too late, as a copy takes some; earlier, "old" may have ended by then."""
    loop = Loop(device=9, host=32)
    loop.add("old", text(1, 14), most)
    loop.add("new", text(2, 14), 12)
    while loop.state("new") is not RequestState.PARKED:
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


@pytest.mark.law("R1-6")
def test_full_blocks_alone_are_kept_but_never_less_than_was_found() -> None:
    """A full hit begins in the middle of a block, whose first part another request computed."""
    cache = by.KVCache(block_size=4, device=17, host=16)
    preempt = Parking(cache, cache.config, mode="full-blocks")
    publish(cache, text(1, 8))
    lease = cache.begin(text(1, 8))
    assert isinstance(lease, by.Lease)
    cache.commit(lease.plans)
    assert lease.cached == 7
    handle = there(preempt.park(lease, 7))
    assert (handle.computed, handle.blocks) == (7, 2)
    cache.abandon(handle)
    assert cache.audit() is None


@pytest.mark.law("T11")
def test_what_has_computed_nothing_is_not_parked() -> None:
    """There is nothing to keep, and nothing is counted (T11)."""
    cache = by.KVCache(block_size=4, device=17, host=16)
    preempt = Parking(cache, cache.config)
    lease = cache.begin(text(1, 8))
    assert isinstance(lease, by.Lease)
    assert preempt.park(lease, 0) is None
    assert (lease.state, preempt.stats()["parkings"], preempt.stats()["cheaper"]) == ("ready", 0, 0)
    cache.finish(lease)


@pytest.mark.law("T10", "T11")
def test_a_tail_is_a_block_to_move_and_what_is_kept_is_counted() -> None:
    """Less than a block counts as a block (T11)."""
    cache = by.KVCache(block_size=4, device=17, host=16, block_costs=(10, 1000, 0))
    preempt = Parking(cache, cache.config)
    handle = there(preempt.park(cache.begin(text(1, 3)), 3))
    assert (handle.blocks, preempt.stats()["kept_blocks"]) == (1, 1)
    cache.abandon(handle)


@pytest.mark.law("T17")
def test_patience_is_what_may_be_and_one_more_is_too_much() -> None:
    """A request finds no room that often in a row, and is kept (T17)."""
    cache = by.KVCache(block_size=4, device=17, host=16)
    preempt = Parking(cache, cache.config, max_stalled_steps=3)
    handle = there(preempt.park(cache.begin(text(1, 8)), 8))
    assert [preempt.gives_up(handle, refused) for refused in (0, 3, 4)] == [False, False, True]
    assert preempt.stats()["aged"] == 1
    cache.abandon(handle)


@pytest.mark.law("T4")
@pytest.mark.parametrize("recompute", [True, False])
def test_loads_that_fail_are_given_up_only_where_they_can_be_computed(recompute: Any) -> None:
    """Only so many failed loads in a row limit the next one (T4)."""
    cache = by.KVCache(block_size=4, device=17, host=16, recompute=recompute)
    preempt = Parking(cache, cache.config, resume_retries=2)
    assert [preempt.load_limit(failed) for failed in (2, 3)] == [None, 0 if recompute else None]


@pytest.mark.law("T10")
def test_what_another_holds_too_is_not_moved_for_want_of_room() -> None:
    """A copy of a shared block would free nothing (T10)."""
    cache = by.KVCache(block_size=4, device=17, host=16)
    preempt = Parking(cache, cache.config)
    publish(cache, text(1, 8))
    other = cache.begin(text(1, 9))
    lease = cache.begin([*text(1, 8), 1, 2, 3, 4, 5])
    handle = there(preempt.park(lease, 13))
    assert (handle.blocks, handle.alone, preempt.relieve(4, [handle])) == (4, 2, 2)
    cache.commit(cache.dispatch())
    assert handle.on_device == 2
    cache.abandon(handle)
    cache.finish(other)
