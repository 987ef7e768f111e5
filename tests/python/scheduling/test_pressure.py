"""A full device: which request leaves it, and what is waited for first."""

from typing import Any

import pytest

import blockyard as by
from blockyard.scheduling.batch import Batch, Grown
from blockyard.scheduling.headroom import Adaptive
from blockyard.scheduling.request import RequestState
from loop import Loop, continuation, parked, sharing, squeezed
from yard import publish_below, text


@pytest.mark.law("INV-25")
def test_what_others_were_promised_is_no_room_to_grow() -> None:
    """Two blocks are free and two are needed, but they are promised to another (INV-25).

    A third request goes on meanwhile: nothing is stuck, so that the count alone decides.
    """
    loop = Loop(device=15)
    ticket = loop.cache.promise(2)
    for name, prompt in enumerate((14, 14, 13)):
        loop.add(name, text(name + 1, prompt), 12)
    loop.turn(3)
    loop.schedule()
    assert (loop.told("skipped"), loop.told("preempted")) == (2, 1)
    assert loop.cache.room().free == 2
    loop.cache.release(ticket)
    loop.finish()


@pytest.mark.law("INV-25")
def test_a_request_that_frees_nothing_is_no_victim_whatever_its_rank() -> None:
    """Another request holds all that it holds (INV-25)."""
    loop = sharing()
    assert [stop.request for stop in loop.schedule().stops] == ["shares"]
    loop.finish()


@pytest.mark.law("T7")
def test_the_last_come_is_the_victim_though_it_has_fewer_blocks() -> None:
    """More blocks decide only between requests that came together (T7)."""
    loop = Loop(device=9)
    loop.add("old", text(1, 19), 9)
    loop.turn()
    loop.add("new", text(2, 11), 9)
    while not loop.stops:
        loop.schedule()
        loop.output()
    assert [stop.request for stop in loop.stops] == ["new"]
    loop.finish()


@pytest.mark.law("T7", "R3-16")
@pytest.mark.parametrize(("rest", "victim"), [(3, "new"), (4, "old")])
def test_a_preempted_request_runs_some_steps_before_it_is_a_victim_again(
    rest: int, victim: str
) -> None:
    """ "new" has run three steps when both lack room (T7)."""
    loop = squeezed(preempt_cooldown=rest)
    loop.scheduler._lifecycle._requests["new"].preempted = 1
    loop.turn()
    assert [stop.request for stop in loop.schedule().stops] == [victim]
    loop.finish()


@pytest.mark.law("R1-5")
def test_after_a_preemption_all_that_was_kept_is_kept_again() -> None:
    """The scheduler tells the policy, which starts over (R1-5)."""
    reserve = Adaptive(0.1, 0.1, short=0)
    loop = squeezed(headroom=reserve)
    loop.turn()
    assert reserve.headroom(10) == 0
    assert len(loop.schedule().stops) == 1
    assert reserve.headroom(10) == 1
    loop.finish()


def short(budget: int = 64, **keywords: Any) -> Loop:
    """ "A" holds five of eight blocks and soon needs a sixth; it cannot be recomputed."""
    loop = Loop(device=9, host=32, recompute=False, max_num_batched_tokens=budget, **keywords)
    loop.add("A", text(2, 18), 9)
    while loop.state("A") is not RequestState.DECODE:
        loop.turn()
    return loop


@pytest.mark.law("INV-25")
def test_no_request_leaves_while_a_last_chunk_is_in_flight() -> None:
    """Its request stands in no list of the batch, and goes on all the same (INV-25)."""
    loop = short()
    loop.turn()
    loop.add("B", text(3, 9), 2)
    loop.schedule()
    loop.schedule()
    assert (loop.told("skipped"), loop.told("preempted")) == (1, 0)
    loop.finish()
    assert loop.results["A"].tokens.tolist() == continuation("A", 18, 9)


@pytest.mark.law("INV-25")
def test_no_resting_request_leaves_while_a_prompt_is_computed() -> None:
    """The prefill goes on, and makes room by its end (INV-25)."""
    loop = short(budget=5, preempt_cooldown=1000)
    loop.add("B", text(3, 12), 1)
    for request in loop.scheduler._lifecycle._requests.values():
        request.preempted = 1
    loop.turn(2)
    assert loop.state("B") is RequestState.PREFILL
    loop.schedule()
    assert (loop.told("skipped"), loop.told("preempted")) == (1, 0)
    loop.finish()


@pytest.mark.law("INV-25")
@pytest.mark.parametrize("landed", [False, True])
def test_no_request_leaves_while_another_loads_or_has_just_loaded(landed: bool) -> None:
    """The request starts in this very step (INV-25)."""
    loop = Loop(device=9, host=16, recompute=False)
    publish_below(loop.cache, text(1, 8))
    loop.add("A", text(2, 18), 9)
    loop.turn()
    loop.add("B", text(1, 9), 2)
    loop.schedule()
    loop.output()
    assert loop.state("B") is RequestState.LOADING
    loop.schedule()
    loop.output()
    if landed:
        loop.land()
    loop.schedule()
    assert (loop.told("skipped"), loop.told("preempted")) == (1, 0)
    assert loop.state("B") is (RequestState.PREFILL if landed else RequestState.LOADING)
    loop.output()
    loop.land()
    loop.finish()
    assert loop.results["A"].tokens.tolist() == continuation("A", 18, 9)


@pytest.mark.law("INV-25")
def test_no_request_leaves_for_slots_that_a_copy_still_writes() -> None:
    """The request that asked for the copy is gone, and its end makes room (INV-25)."""
    loop = Loop(device=9, host=16, recompute=False)
    publish_below(loop.cache, text(1, 12))
    gone = loop.cache.begin(text(1, 13))
    assert isinstance(gone, by.Lease)
    loop.cache.finish(gone)
    loop.add("one", text(2, 18), 12)
    for _ in range(6):
        # No plan is taken, so that none lands.
        loop.air.append(loop.scheduler.schedule())
        loop.output()
        loop.ack()
    assert (loop.state("one"), loop.told("preempted")) == (RequestState.DECODE, 0)
    assert loop.told("skipped") > 1
    loop.cache.commit(gone.plans)
    loop.finish()
    assert loop.results["one"].tokens.tolist() == continuation("one", 18, 12)


@pytest.mark.law("INV-25")
def test_a_request_alone_that_does_not_fit_beside_quarantined_slots_awaits_their_fence() -> None:
    """To leave would give it no room, and cost all that it has computed (INV-25)."""
    loop = Loop(device=9, host=8, preempt_mode="recompute")
    publish_below(loop.cache, text(1, 12))
    lost = loop.cache.begin(text(1, 13))
    assert lost.state == "loading"
    loop.cache.mark_unknown(lost.plans)
    loop.cache.finish(lost)
    assert loop.cache.stats()["device_quarantined"] == 3
    loop.add("one", text(2, 18), 12)
    loop.turn(8, lands=False)
    assert (loop.state("one"), loop.told("preempted"), loop.told("skipped")) == (
        RequestState.DECODE,
        0,
        5,
    )
    loop.cache.abort(lost.plans)
    loop.finish()
    assert loop.told("preempted") == 0


@pytest.mark.law("T35")
def test_blocks_come_back_after_the_last_step_that_computes_in_them() -> None:
    """Two more steps are in flight when the engine says that it has ended (T35)."""
    loop = Loop()
    loop.add("one", 10, 9)
    loop.turn(2)
    for _ in range(3):
        loop.schedule()
    loop.output(ends=["one"])
    loop.output()
    room = loop.cache.room()
    assert room.free + room.evictable < 32
    loop.output()
    room = loop.cache.room()
    assert room.free + room.evictable == 32
    loop.finish()


@pytest.mark.law("INV-25")
def test_what_comes_back_with_the_last_step_in_flight_counts_as_coming_until_then() -> None:
    """It computes in three steps in flight when the engine says that it has ended (INV-25)."""
    loop = Loop(device=9, max_num_seqs=3)
    loop.add("ends", text(1, 5), 9)
    loop.add("a", text(2, 9), 9)
    loop.add("b", text(3, 9), 9)
    loop.turn()
    for _ in range(3):
        loop.schedule()
    loop.output(ends=["ends"])
    for skipped in (2, 4):
        loop.schedule()
        assert (loop.told("preempted"), loop.told("skipped")) == (0, skipped)
        loop.output()
    assert loop.schedule().decode.tolist() == [1, 2]
    loop.finish()


@pytest.mark.law("INV-25")
def test_what_has_come_back_is_not_waited_for_though_a_later_step_is_in_flight() -> None:
    """The ack came before the output of the last step that computes in the seat (INV-25)."""
    loop = Loop(device=9, max_num_seqs=3)
    loop.add("leaves", text(1, 5), 9)
    loop.add("a", text(2, 10), 9)
    loop.add("b", text(3, 10), 9)
    loop.turn()
    loop.schedule()
    loop.scheduler.abort("leaves")
    loop.schedule()
    loop.ack()
    loop.output()
    held = loop.cache.begin(text(4, 8))
    assert [stop.request for stop in loop.schedule().stops] == ["b"]
    assert isinstance(held, by.Lease)
    loop.cache.finish(held)
    loop.finish()


@pytest.mark.law("4.5-30")
def test_a_request_that_grew_and_is_stopped_for_another_takes_its_drafts_along() -> None:
    """The counts are those of the rows that go on (T7)."""
    loop = Loop(device=13, num_speculative_tokens=1)
    loop.add("high", text(1, 16), 9, priority=1)
    loop.add("mid", text(2, 13), 9)
    loop.add("low", text(3, 13), 9)
    loop.turn()
    step = loop.schedule()
    assert [stop.request for stop in step.stops] == ["low"]
    assert (step.decode.tolist(), step.counts.tolist()) == ([1], [2])
    loop.finish()


# -- no room to grow ------------------------------------------------------------------------------


@pytest.mark.law("T36", "4.5-32")
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
    loop.finish()


@pytest.mark.law("INV-25", "T36", "4.7-47")
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


@pytest.mark.law("INV-25", "T36", "4.7-47")
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


@pytest.mark.law("INV-25")
def test_progress_a_resting_request_is_chosen_when_no_other_can_go_on() -> None:
    """All were preempted before, and there is room for none (INV-25)."""
    loop = Loop(device=8, preempt_cooldown=1000, max_num_seqs=6)
    names = (1, 2, 3, 4, 5, 6)
    for name in names:
        loop.add(name, text(name, 5), 20)
    loop.finish(2000)
    assert loop.told("preempted") > len(names)


@pytest.mark.law("INV-25")
def test_progress_a_resting_request_is_chosen_before_a_promise_is_taken_back() -> None:
    loop = Loop(device=9, preempt_cooldown=1000)
    for name in (1, 2):
        loop.add(name, text(name, 5), 20)
    loop.turn()
    ticket = loop.cache.promise(2)
    loop.add("promised", text(3, 28), 1, ticket=ticket)
    for seat in loop.scheduler._shared.seats.bound():
        seat.request.preempted = 1
    while not loop.schedule().stops:
        loop.output()
        loop.ack()
    assert ticket.state == "open"
    loop.finish()
    assert {result.state for result in loop.results.values()} == {RequestState.FINISHED}


@pytest.mark.law("INV-25")
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
    assert (loop.told("preempted"), loop.cache.stats()["deduped"]) == (0, 3)


@pytest.mark.law("INV-25")
def test_progress_a_prompt_of_the_whole_device_that_is_all_there_begins_all_the_same() -> None:
    """A full hit computes its last token in a copy of its last block, and there is no room."""
    loop = Loop(device=5)
    for request in ("one", "two"):
        loop.add(request, text(1, 16), 1)
        loop.finish()


@pytest.mark.parametrize(
    ("lacks", "spare", "held_back", "asked"),
    [(5, 1, 2, [2]), (5, -3, 2, [3]), (3, 1, 2, []), (4, 0, 0, [4]), (5, 0, 4, [1])],
)
def test_parked_blocks_move_for_what_is_lacking_and_comes_from_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, lacks: int, spare: int, held_back: int, asked: list[int]
) -> None:
    """What is spare, and what comes back with the steps in flight, is not asked of them."""
    loop = parked()
    preemptor, moved = loop.scheduler._pressure._preemptor, list[int]()
    monkeypatch.setattr(Batch, "held_back", property(lambda _: held_back))
    monkeypatch.setattr(preemptor._parking, "relieve", lambda need, _: moved.append(need))
    preemptor.victims(Grown([], None, [], lacks), spare)
    assert moved == asked
