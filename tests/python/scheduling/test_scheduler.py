"""The scheduler, transition by transition; `docs/laws.md` has the names and numbers."""

import pytest

from blockyard.scheduling.engine import Stop
from blockyard.scheduling.headroom import FullLength
from blockyard.scheduling.request import RequestState
from loop import Loop, continuation, loading, stopping
from yard import publish_below, text


@pytest.mark.law("T1", "4.5-31")
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
    loop.finish()


@pytest.mark.law("T2")
def test_t2_a_request_with_blocks_to_load_has_a_seat_unknown_to_the_engine() -> None:
    loop = loading()
    assert loop.told("seats") == 1
    assert loop.schedule().starts == ()
    assert loop.state("one") is RequestState.LOADING


@pytest.mark.law("T3", "T4")
def test_t3_when_the_loads_have_landed_it_computes_behind_the_longer_prefix() -> None:
    loop = loading()
    loop.land()
    step = loop.schedule()
    assert [(one.request, one.cached) for one in step.starts] == [("one", 12)]
    assert step.chunks == ((0, 12, 2),)
    assert loop.state("one") is RequestState.PREFILL
    loop.finish()


@pytest.mark.law("T4")
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


@pytest.mark.law("T4")
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
    # The next one is loaded as usual.
    publish_below(loop.cache, text(1, 12))
    loop.add("two", text(1, 14), 3)
    loop.schedule()
    assert loop.state("two") is RequestState.LOADING
    loop.land()
    loop.finish()


@pytest.mark.law("T5")
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


@pytest.mark.law("T6", "4.5-31")
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


@pytest.mark.law("T7", "4.5-32")
def test_t7_a_victim_has_no_new_work_and_keeps_its_blocks_and_its_seat() -> None:
    loop = stopping()
    lease = loop.scheduler._shared.seats.bound()[1].lease
    held = lease.blocks
    assert loop.stops == [Stop("new", 1, 2)]
    for _ in range(3):
        step = loop.schedule()
        assert (step.stops, loop.rows(step).count(1)) == ((), 0)
        loop.output()
    assert (loop.told("seats"), loop.told("stopping"), lease.blocks) == (2, 1, held)
    loop.finish()


@pytest.mark.law("T8")
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
    loop.finish()


@pytest.mark.law("INV-8", "INV-11", "T9", "R3-12", "R4-1", "4.7-46")
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
    lease = loop.scheduler._shared.seats.bound()[0].lease
    assert lease.appended == prompt + 2 + flying
    loop.finish()


@pytest.mark.law("T9", "R1-7")
def test_t9_what_is_full_and_computed_is_published_and_the_last_token_is_not() -> None:
    loop = Loop(size=4)
    loop.add("one", 7, 9)
    loop.turn()
    assert len(loop.scheduler._lifecycle._requests["one"].outputs) == 1
    # Eight tokens exist, and the KV of seven.
    loop.scheduler._lifecycle.stop(loop.scheduler._shared.seats.bound()[0])
    loop.turn(lands=False)
    whole = text(1, 7) + continuation("one", 7, 1)
    assert loop.cache.probe([*whole, 0]).device == 1


@pytest.mark.law("2.1-5")
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
    assert (loop.scheduler._shared.seats.computed[0], lease.sealed) == (10, 1)
    loop.turn()
    assert (loop.scheduler._shared.seats.computed[0], lease.sealed) == (11, 2)
    loop.cache.finish(other)
    loop.finish()


@pytest.mark.law("T11", "4.5-38")
def test_t11_a_victim_that_has_answered_waits_to_be_computed_again_and_holds_nothing() -> None:
    loop = stopping()
    loop.ack()
    assert loop.state("new") is RequestState.RECOMPUTE
    assert (loop.told("seats"), loop.cache.stats()["leases"]) == (1, 1)
    room = loop.cache.room()
    assert room.free + room.evictable >= 4
    loop.finish()


@pytest.mark.law("INV-8", "T22", "R1-7", "4.5-31")
def test_t22_it_begins_again_with_what_it_had_sampled_and_finds_what_was_published() -> None:
    loop = stopping()
    loop.ack()
    said = loop.scheduler._lifecycle._requests["new"].outputs.since()
    step = loop.turn()
    while loop.state("new") is RequestState.RECOMPUTE:
        step = loop.turn()
    (start,) = step.starts
    assert start.tokens.tolist() == text(2, 14) + said
    assert (start.request, start.epoch) == ("new", 3)
    loop.finish()


# -- the end --------------------------------------------------------------------------------------


@pytest.mark.law("T35")
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


@pytest.mark.law("INV-10", "T35")
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


# -- drafts --------------------------------------------------------------------------------------


@pytest.mark.law("4.5-30")
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
                computed = int(loop.scheduler._shared.seats.computed[seat.number])
                flying = any(seat.number in one.decode for one in loop.air)
                assert flying or seat.lease.tokens == computed == seat.lease.appended - 1
        assert steps < 200
    loop.finish()
    assert rows == -(-20 // accept) + -(-19 // accept)


@pytest.mark.law("INV-7")
def test_drafts_are_never_published_and_never_go_past_the_length() -> None:
    loop = Loop(num_speculative_tokens=7, accept=1)
    loop.add("one", text(1, 6), 4)
    loop.turn()
    step = loop.schedule()
    assert (step.positions.tolist(), step.counts.tolist()) == ([6], [3])
    loop.output()
    lease = loop.scheduler._shared.seats.bound()[0].lease
    assert (lease.sealed, lease.tokens) == (1, 7)
    loop.finish()


@pytest.mark.parametrize("accept", [1, 3])
def test_a_request_preempted_with_drafts_loses_none_of_its_tokens(accept: int) -> None:
    loop = Loop(device=9, num_speculative_tokens=2, accept=accept)
    for name in range(4):
        loop.add(name, text(name + 1, 9), 15)
    loop.finish()
    assert loop.told("preempted") > 0
