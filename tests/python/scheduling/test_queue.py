"""The waiting queue: the order in which requests begin, and what they wait for."""

import pytest

import blockyard as by
from blockyard._typing import override
from blockyard.scheduling.headroom import Adaptive, FullLength, NoHeadroom, Watermark
from blockyard.scheduling.options import SchedulerOptions
from blockyard.scheduling.request import RequestState
from blockyard.scheduling.scheduler import Scheduler
from loop import Loop, stopping
from yard import begin, publish, publish_below, text


@pytest.mark.law("2.2-7")
def test_a_request_that_shares_what_is_there_already_is_not_waited_for() -> None:
    """The other request computes nothing of its prompt just now (table 2.2, row 7)."""
    loop = Loop(max_num_batched_tokens=8)
    publish(loop.cache, text(1, 8))
    loop.add("first", text(1, 8) + text(2, 24), 2)
    loop.add("second", text(1, 8) + text(3, 24), 2)
    starts = loop.schedule().starts
    assert [(one.request, one.cached) for one in starts] == [("first", 8), ("second", 8)]
    loop.finish()


@pytest.mark.law("2.2-7")
def test_of_several_that_compute_behind_one_prefix_each_is_waited_for() -> None:
    """The newest of those that compute is not the only one (table 2.2, row 7)."""
    loop = Loop(max_num_batched_tokens=8)
    publish(loop.cache, text(1, 8))
    for name in (2, 3):
        loop.add(name, text(1, 8) + text(name, 24), 2)
    loop.schedule()
    assert loop.begun == [2, 3]
    loop.output()
    for name in (2, 3):
        loop.add(f"as {name}", text(1, 8) + text(name, 24), 2)
    loop.schedule()
    assert loop.begun == [2, 3]
    for name in (2, 3):
        assert f"waits for request {name}," in str(loop.scheduler.explain(f"as {name}"))
    loop.finish()


def below(tokens: list[int], *, host: int, disk: int) -> Loop:
    """A prompt is below, where it costs more to load than to compute."""
    slow = (1000, 10, 0, 1000)
    cache = by.KVCache(block_size=4, device=33, host=host, disk=disk, ahead=0, block_costs=slow)
    publish_below(cache, tokens)
    return Loop(cache=cache, max_num_batched_tokens=8)


@pytest.mark.law("2.2-7")
@pytest.mark.parametrize(("host", "disk"), [(16, 0), (0, 16)])
def test_what_is_found_below_is_not_waited_for_either(host: int, disk: int) -> None:
    """Loading does not pay here, so both compute it (table 2.2, row 7)."""
    loop = below(text(1, 8), host=host, disk=disk)
    loop.add("first", text(1, 8) + text(2, 24), 2)
    loop.add("second", text(1, 8) + text(3, 24), 2)
    loop.schedule()
    assert (loop.begun, loop.plans) == (["first", "second"], [])
    loop.finish()


@pytest.mark.law("2.2-7")
@pytest.mark.parametrize(("host", "disk"), [(16, 0), (0, 16)])
def test_what_is_shared_beyond_what_is_below_is_waited_for(host: int, disk: int) -> None:
    loop = below(text(1, 8), host=host, disk=disk)
    loop.add("first", text(1, 16) + text(2, 24), 2)
    loop.add("second", text(1, 16) + text(3, 24), 2)
    loop.schedule()
    assert loop.begun == ["first"]
    loop.finish()


@pytest.mark.law("2.2-7")
def test_a_wait_for_a_prefix_ends_when_it_is_there_though_another_finds_no_room() -> None:
    """No request has come or gone, and there is no more room than before (table 2.2, row 7)."""
    loop = Loop(device=17, max_num_batched_tokens=8)
    loop.add("first", text(1, 24), 40)
    loop.add("second", [*text(1, 24), 7], 2)
    loop.add("large", text(2, 60), 1)
    loop.turn(2)
    assert [loop.state(name) for name in ("second", "large")] == [RequestState.WAITING] * 2
    loop.turn(2)
    assert loop.begun == ["first", "second"]
    assert "first" not in loop.results
    loop.finish()


@pytest.mark.law("2.3-up-ok")
def test_a_prefix_is_brought_up_ahead_of_its_turn_once() -> None:
    """A prefix that was evicted again while it waits comes up in its turn."""
    loop = Loop(device=9, host=16, prefetch_depth=2)
    publish_below(loop.cache, text(1, 12))
    loop.add("runs", text(2, 13), 8)
    loop.turn()
    loop.add("waits", text(1, 30), 2)
    loop.schedule()
    assert [len(plan) for plan in loop.plans] == [3]
    loop.land()
    loop.output()
    publish(loop.cache, text(8, 16))
    assert loop.cache.probe(text(1, 12)).device < 3
    loop.add("changes the line", text(3, 30), 2)
    loop.schedule()
    assert loop.plans == []
    loop.finish()


@pytest.mark.law("T23")
def test_no_prefix_is_brought_up_for_a_request_that_has_left_the_queue() -> None:
    loop = Loop(device=17, host=16, ahead=0, prefetch_depth=4, max_num_seqs=1)
    publish_below(loop.cache, text(1, 12))
    loop.add("runs", text(3, 6), 9)
    loop.turn()
    loop.add("gone", text(1, 14), 2)
    loop.add("stays", text(2, 14), 2)
    loop.scheduler.abort("gone")
    loop.schedule()
    assert (loop.plans, loop.state("stays")) == ([], RequestState.WAITING)
    loop.finish()


@pytest.mark.law("INV-19")
def test_a_prompt_of_the_whole_device_is_published_under_its_own_salt() -> None:
    """It begins without its last token (INV-19)."""
    loop = Loop(device=5)
    for request in ("one", "two"):
        loop.add(request, text(1, 16), 1, salt="a")
        loop.finish()
    assert loop.cache.probe(text(1, 16)).device == 0
    assert loop.cache.probe(loop.cache.keys(text(1, 16), salt="a")).device == 4


@pytest.mark.law("T1")
def test_a_request_that_finds_all_but_its_last_token_still_computes_its_prompt() -> None:
    """It decodes when it has sampled something (T6), and not before (T1)."""
    loop = Loop()
    publish(loop.cache, text(1, 12))
    loop.add("one", text(1, 13), 3)
    (start,) = loop.schedule().starts
    assert (start.cached, loop.state("one")) == (12, RequestState.PREFILL)
    loop.output()
    assert loop.state("one") is RequestState.DECODE
    loop.finish()


@pytest.mark.law("T4")
def test_loads_that_were_late_before_a_request_ran_are_tried_again_when_it_has_run() -> None:
    """Only so many failed loads in a row are a reason to recompute a prefix (T4)."""
    loop = Loop(device=6, host=16, preempt_mode="recompute")
    publish_below(loop.cache, text(1, 12))
    loop.add("one", text(1, 14), 3)
    for _ in range(2):
        loop.schedule()
        (plan,) = loop.plans
        loop.plans.clear()
        loop.cache.mark_unknown([plan])
        assert not loop.schedule().chunks
        loop.cache.abort([plan])
    loop.turn(2)
    assert loop.state("one") is RequestState.PREFILL
    while loop.air:
        loop.output()
    loop.scheduler._lifecycle.stop(loop.scheduler._shared.seats.bound()[0])
    loop.turn(lands=False)
    assert loop.state("one") is RequestState.RECOMPUTE
    publish(loop.cache, text(9, 20))
    loop.schedule()
    (plan,) = loop.plans
    loop.plans.clear()
    loop.cache.mark_unknown([plan])
    assert not loop.schedule().chunks
    loop.cache.abort([plan])
    loop.schedule()
    assert loop.state("one") is RequestState.LOADING
    loop.land()
    loop.finish()


@pytest.mark.law("INV-16")
def test_the_first_request_has_none_before_it() -> None:
    loop = Loop(device=9)
    loop.add("runs", text(1, 28), 4)
    loop.turn()
    for at, name in enumerate(("first", "second")):
        loop.add(name, text(2 + at, 28), 2)
    for at, name in enumerate(("first", "second")):
        assert f"{at} requests are before it" in str(loop.scheduler.explain(name))
    loop.finish()


@pytest.mark.law("INV-25")
def test_a_request_queued_again_may_be_overtaken_as_often_as_at_first() -> None:
    """Overtakes that were counted before its first turn end with that turn (INV-25)."""
    loop = Loop(device=9, max_overtakes=1)
    loop.add("runs", text(1, 8), 4)
    loop.turn()
    loop.add("big", text(2, 28), 2)
    loop.add("small", text(3, 4), 1)
    loop.turn()
    assert (loop.begun, loop.state("big")) == (["runs", "small"], RequestState.WAITING)
    assert "overtaken 1 times" in str(loop.scheduler.explain("big"))
    while loop.state("big") is RequestState.WAITING:
        loop.turn()
    loop.scheduler.reset()
    loop.bound.clear()
    held = loop.cache.begin(text(9, 8))
    assert "overtaken 0 times" in str(loop.scheduler.explain("big"))
    loop.add("other", text(4, 4), 1)
    loop.add("another", text(5, 4), 1)
    loop.turn()
    assert loop.begun[-1] == "other"
    assert [loop.state(name) for name in ("big", "another")] == [
        RequestState.RECOMPUTE,
        RequestState.WAITING,
    ]
    loop.cache.finish(held)
    loop.finish()


@pytest.mark.law("INV-25")
def test_a_request_that_begins_with_a_ticket_has_overtaken_none() -> None:
    """The room was never that of the request before it (INV-25)."""
    loop = Loop(device=9, max_overtakes=1)
    ticket = loop.cache.promise(2)
    loop.add("large", text(1, 28), 1)
    loop.add("promised", text(2, 6), 9, ticket=ticket)
    loop.schedule()
    assert loop.state("promised") is RequestState.PREFILL
    assert "overtaken 0 times" in str(loop.scheduler.explain("large"))
    loop.finish()


@pytest.mark.law("INV-17")
def test_those_with_tickets_begin_in_the_order_of_the_queue() -> None:
    """The order is not that of a set, which differs from rank to rank (INV-17)."""
    loop = Loop(device=33, max_num_seqs=1, max_overtakes=0)
    names = list(range(8))
    for name in reversed(names):
        ticket = loop.cache.promise(2)
        loop.add(name, text(name + 1, 6), 1, priority=-name, ticket=ticket)
    loop.add("large", text(9, 128), 1, priority=1)
    loop.turn(2 * len(names))
    assert loop.begun[: len(names)] == names
    loop.finish()


@pytest.mark.law("INV-25")
def test_behind_long_prompts_without_room_a_short_one_is_asked_in_the_next_step() -> None:
    """Keys of a part of the queue are made in each step, and the rest is not forgotten."""
    cache = by.KVCache(block_size=16, device=2_000)
    held = cache.begin(range(1_600))
    scheduler = Scheduler(cache, SchedulerOptions(headroom=NoHeadroom()))
    for name in range(4):
        scheduler.add(by.NewRequest(name, range(name, 31_000 + name), max_tokens=1))
    scheduler.add(by.NewRequest("short", [1, 2, 3], max_tokens=1))
    steps = 0
    while scheduler.state("short") is RequestState.WAITING:
        scheduler.schedule()
        steps += 1
        assert steps < 4
    assert steps == 2
    cache.finish(held)


@pytest.mark.law("INV-25")
def test_as_soon_as_the_smallest_waiting_request_fits_it_begins() -> None:
    """No request has come or gone, but a promise to another was given back (INV-25)."""
    loop = Loop(device=9)
    held, ticket = loop.cache.begin(text(9, 24)), loop.cache.promise(1)
    loop.add("large", text(1, 28), 1)
    loop.add("small", text(2, 8), 1)
    loop.turn(2)
    assert loop.begun == []
    loop.cache.release(ticket)
    loop.turn()
    assert loop.begun == ["small"]
    loop.cache.finish(held)
    loop.finish()


@pytest.mark.law("INV-25")
def test_a_request_promised_room_begins_though_the_first_was_overtaken_enough() -> None:
    loop = Loop(device=9, max_overtakes=0)
    ticket = loop.cache.promise(2)
    loop.add("first", 28, 4)
    loop.add("promised", text(2, 6), 2, ticket=ticket)
    loop.schedule()
    assert (loop.state("first"), loop.state("promised")) == (
        RequestState.WAITING,
        RequestState.PREFILL,
    )
    loop.finish()


@pytest.mark.law("T5")
def test_a_refused_request_begins_when_less_is_kept_for_growth_though_none_comes_or_goes() -> None:
    loop = Loop(device=9, headroom=Adaptive(4.0, 0.5, short=0))
    loop.add("runs", 3, 28)
    loop.turn()
    loop.add("waits", text(2, 19), 2)
    loop.turn()
    assert (loop.state("waits"), loop.told("headroom")) == (RequestState.WAITING, 3)
    loop.turn(4)
    assert (loop.state("runs"), loop.state("waits")) == (RequestState.DECODE, RequestState.DECODE)
    loop.finish()


@pytest.mark.law("T5", "2.2-7")
def test_steps_without_room_and_begins_put_off_are_counted() -> None:
    """`no_room` counts steps, and `soon` requests."""
    loop = Loop(device=9, max_num_batched_tokens=8)
    loop.add("first", text(1, 24), 2)
    for name in ("second", "third"):
        loop.add(name, [*text(1, 24), len(name)], 2)
    loop.schedule()
    assert (loop.told("soon"), loop.told("no_room")) == (2, 0)
    for name in ("fourth", "fifth"):
        loop.add(name, text(len(name), 28), 2)
    loop.schedule()
    assert (loop.told("soon"), loop.told("no_room")) == (4, 1)
    loop.finish()


def test_a_step_is_without_room_also_where_nothing_has_changed_since_the_last() -> None:
    loop = Loop(device=33)
    held = begin(loop.cache, text(9, 80))
    loop.add("large", text(1, 60), 2)
    loop.turn(20)
    # Nobody was asked again, and each step was one more.
    assert (loop.told("no_room"), loop.cache.stats()["no_room"]) == (20, 1)
    loop.cache.finish(held)
    loop.turn()
    assert loop.told("no_room") == 20
    loop.finish()


@pytest.mark.law("R1-5")
def test_a_request_computed_again_is_promised_what_it_has_still_to_sample() -> None:
    """The tokens that it had sampled are a part of its prompt now (R1-5)."""
    loop = Loop(device=33, headroom=FullLength())
    loop.add("one", text(1, 8), 9)
    loop.turn(5)
    assert len(loop.scheduler._lifecycle._requests["one"].outputs) == 5
    loop.scheduler.reset()
    loop.bound.clear()
    loop.turn()
    # It has sixteen positions, as the last token has none: four blocks, and it holds all of them.
    lease = loop.scheduler.lease("one")
    assert lease is not None
    assert lease.blocks + loop.cache.room().promised == 4
    loop.finish()


class Lavish(NoHeadroom):
    @override
    def reserve(self, max_tokens: int) -> int:
        return max_tokens + 40


@pytest.mark.law("R1-5")
def test_a_policy_that_promises_too_much_promises_what_may_be_sampled() -> None:
    """No request grows beyond its length (R1-5)."""
    loop = Loop(device=9, headroom=Lavish())
    loop.add("one", text(1, 8), 9)
    loop.schedule()
    assert (loop.state("one"), loop.cache.room().promised) == (RequestState.PREFILL, 2)
    loop.finish()


@pytest.mark.law("INV-25")
def test_of_requests_that_wait_for_one_anothers_tickets_the_last_gives_its_own_back() -> None:
    """No request can begin, and the one that came first keeps its promise (INV-25)."""
    loop = Loop(device=9)
    tickets = [loop.cache.promise(2) for _ in range(2)]
    loop.add("first", text(1, 28), 1)
    loop.add("second", text(2, 28), 1, ticket=tickets[0])
    loop.add("third", text(3, 28), 1, ticket=tickets[1])
    loop.turn()
    assert ([ticket.state for ticket in tickets], loop.begun) == (["open", "spent"], [])
    loop.finish()
    assert loop.begun == ["second", "first", "third"]


@pytest.mark.law("INV-25")
def test_tickets_are_taken_back_one_after_the_other_until_a_request_begins() -> None:
    """A request that has given its ticket back is not asked for it again (INV-25)."""
    loop = Loop(device=9, max_overtakes=0)
    tickets = [loop.cache.promise(2) for _ in range(3)]
    loop.add("first", text(1, 28), 1)
    for at, ticket in enumerate(tickets):
        loop.add(at, text(2 + at, 28), 1, ticket=ticket)
    loop.turn(2)
    assert [ticket.state for ticket in tickets] == ["open", "spent", "spent"]
    loop.finish()
    assert loop.begun == [0, "first", 1, 2]


@pytest.mark.law("INV-25")
def test_the_only_request_with_a_ticket_keeps_it_while_it_finds_no_room() -> None:
    """Its promise is in the way only of other waiting requests (INV-25)."""
    loop = Loop(device=9)
    other, own = loop.cache.promise(4), loop.cache.promise(2)
    loop.add("one", text(1, 28), 1, ticket=own)
    loop.turn(2)
    assert (loop.state("one"), own.state) == (RequestState.WAITING, "open")
    loop.cache.release(other)
    loop.finish()


@pytest.mark.law("INV-25")
def test_no_request_loses_a_ticket_while_one_runs_that_will_make_room() -> None:
    """INV-25."""
    loop = Loop(device=9)
    loop.add("runs", text(3, 4), 3)
    loop.turn()
    own = loop.cache.promise(2)
    loop.add("first", text(1, 28), 1)
    loop.add("second", text(2, 28), 1, ticket=own)
    loop.turn()
    assert (loop.state("first"), loop.state("second")) == (
        RequestState.WAITING,
        RequestState.WAITING,
    )
    assert own.state == "open"
    loop.finish()


class _Broken(Watermark):
    """A policy that raises for one request."""

    @override
    def reserve(self, max_tokens: int) -> int:
        if max_tokens == 6:
            raise ZeroDivisionError("by design")
        return 0


def test_a_policy_that_raises_fails_its_request_alone_and_gives_its_ticket_back() -> None:
    loop = Loop(headroom=_Broken(0))
    ticket = loop.cache.promise(2)
    loop.add("broken", text(1, 4), 7, ticket=ticket)
    loop.add("good", text(2, 4), 3)
    loop.finish(failed=["broken"])
    assert loop.results["broken"].state is RequestState.FAILED
    assert "ZeroDivisionError('by design')" in loop.results["broken"].reason
    assert loop.results["good"].state is RequestState.FINISHED
    assert ticket.state == "spent"


# -- the order of the queue ----------------------------------------------------------------------


@pytest.mark.law("T7", "4.5-32")
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


@pytest.mark.law("4.5-36")
def test_a_victim_comes_back_before_those_that_came_after_it() -> None:
    loop = stopping(max_num_seqs=2, max_overtakes=0)
    loop.add("later", text(3, 2), 1)
    loop.ack()
    loop.scheduler.abort("old")
    loop.turn(3)
    assert loop.begun == ["old", "new", "new", "later"]
    loop.finish()


@pytest.mark.law("INV-25")
def test_a_request_that_does_not_fit_is_overtaken_a_bounded_number_of_times() -> None:
    loop = Loop(device=9, max_overtakes=3, max_num_seqs=3)
    loop.add("runs", text(1, 8), 20)
    loop.turn()
    loop.add("big", text(2, 28), 2)
    for name in range(10):
        loop.add(name, text(10 + name, 4), 1)
    loop.finish()
    assert loop.begun[:6] == ["runs", 0, 1, 2, "big", 3]


@pytest.mark.law("INV-12")
def test_an_abort_while_waiting_leaves_nothing_behind_however_long_the_queue_stands() -> None:
    loop = Loop(device=9)
    loop.add("runs", text(1, 28), 4)
    loop.turn()
    loop.add("stands", text(2, 28), 2)
    for name in range(1000):
        loop.add(name, text(3, 28), 2)
        loop.scheduler.abort(name)
    assert list(loop.scheduler._queue._in_line) == [loop.scheduler._lifecycle.get("stands")]
    loop.finish()


# -- prompts that another is just computing ------------------------------------------------------


@pytest.mark.law("2.2-7")
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


@pytest.mark.law("2.2-7")
def test_it_waits_no_longer_than_that_prefill() -> None:
    loop = Loop(max_num_batched_tokens=8)
    loop.add("first", text(1, 24), 4)
    loop.add("second", text(1, 24), 4)
    loop.turn()
    loop.scheduler.abort("first")
    assert [one.request for one in loop.schedule().starts] == ["second"]
    loop.finish()


@pytest.mark.law("INV-19")
def test_a_prompt_of_another_tenant_is_not_waited_for() -> None:
    loop = Loop(max_num_batched_tokens=8)
    loop.add("first", text(1, 24), 4, salt="a")
    loop.add("second", text(1, 24), 4, salt="b")
    assert len(loop.schedule().starts) == 2
    loop.finish()
