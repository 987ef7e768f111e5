"""The scheduler against wrong input, and against queues that are long or wait for each other."""

import gc
import itertools
import time
from typing import Any

import numpy as np
import pytest
from typing_extensions import override

import blockyard as by
from blockyard.scheduling.engine import Ack, Output
from blockyard.scheduling.headroom import Adaptive, NoHeadroom, Watermark
from blockyard.scheduling.options import SchedulerOptions
from blockyard.scheduling.request import RequestState
from blockyard.scheduling.reservations import Reservations
from blockyard.scheduling.scheduler import Scheduler
from blockyard.testing import Event, Scenario, Setup, simulate
from loop import Loop, stopping
from yard import publish_below, text

# -- what waits for what -------------------------------------------------------------------------


@pytest.mark.law("INV-25")
def test_many_small_tickets_in_the_queue_never_leave_the_device_idle() -> None:
    setup = Setup(device=13, host=0, max_num_seqs=4, headroom="none")
    names = [f"b{number}" for number in range(4)]
    asked = [Event(1, "promise", (name, 1, 50, "p")) for name in names]
    asked.append(Event(1, "add", ("A", 0, 36, 3, 2, 0)))
    asked += [Event(2, "add", (name, at, 36, 6, 2, 0)) for at, name in enumerate(names, 1)]
    ran = simulate(Scenario(setup, tuple(asked)))
    assert {result.state for result in ran.results.values()} == {RequestState.FINISHED}


@pytest.mark.law("INV-25")
@pytest.mark.parametrize("skip", [0, 1, 16])
def test_requests_that_wait_for_one_copy_hold_up_no_other(skip: int) -> None:
    """The copy hangs: requests with its prefix wait, and one without it begins at once."""
    loop = Loop(device=200, host=64, max_num_seqs=64, max_overtakes=skip)
    publish_below(loop.cache, text(1, 40))
    for name in range(20):
        loop.add(name, [*text(1, 40), name], 2)
    loop.add("other", text(2, 6), 2)
    loop.schedule()
    assert loop.state("other") is RequestState.PREFILL
    assert loop.told("waiting") == 19
    loop.finish()


def test_behind_hundreds_that_wait_for_one_prefix_others_come_soon() -> None:
    loop = Loop(device=400, host=64, max_num_seqs=8, max_num_batched_tokens=8)
    prompt = text(1, 600)
    for name in range(300):
        loop.add(name, [*prompt, name], 1)
    loop.add("other", text(2, 6), 2)
    steps = 0
    while loop.state("other") is RequestState.WAITING:
        loop.turn()
        steps += 1
        assert steps < 10
    assert loop.told("soon") <= 10 * 128
    for name in range(300):
        loop.scheduler.abort(name)
    loop.finish()


@pytest.mark.law("INV-6")
def test_a_second_scheduler_on_a_cache_counts_on_where_the_first_has_ended() -> None:
    """Blocks held back for its step 2 do not come back with the first one's step 30 (INV-6)."""
    loop = Loop(device=33)
    loop.add("one", 10, 20)
    loop.turn(12)
    loop.scheduler.abort("one")
    loop.finish()
    done = loop.cache.done
    second = Scheduler(loop.cache, SchedulerOptions(headroom=NoHeadroom()))
    second.add(by.NewRequest("two", text(2, 10), max_tokens=4))
    step = second.schedule()
    assert step.number == done + 1
    second.schedule()
    second.abort("two")
    stop = second.schedule().stops[0]
    free = loop.cache.room().free
    second.on_acks([Ack(*stop)])
    assert loop.cache.room().free == free
    for number in range(step.number, step.number + 3):
        seats = np.array([0] if number == step.number else [], np.int32)
        second.on_output(Output(number, seats, np.ones(len(seats), np.uint32)))
    assert loop.cache.room().free == 32 - loop.cache.stats()["device_idle"]


@pytest.mark.law("INV-16")
def test_a_second_scheduler_is_refused_while_the_first_has_something_to_do() -> None:
    loop = Loop(device=33)
    loop.add("one", 10, 4)
    with pytest.raises(by.Misuse, match="another scheduler drives this cache, with 1 requests"):
        Scheduler(loop.cache)
    loop.turn(2)
    with pytest.raises(by.Misuse, match="another scheduler"):
        Scheduler(loop.cache)
    loop.finish()
    second = Scheduler(loop.cache)
    second.add(by.NewRequest("two", text(2, 10), max_tokens=4))
    assert [start.request for start in second.schedule().starts] == ["two"]
    before = loop.cache.stats()
    first = loop.scheduler
    for verb in (
        lambda: loop.add("two", 10, 4),
        first.schedule,
        lambda: first.on_output(Output(99, np.zeros(0, np.int32), np.zeros(0, np.uint32))),
        lambda: first.on_acks([]),
        lambda: first.reconcile([], 0),
        lambda: first.abort("two"),
        first.fail,
        first.reset,
        first.update_weights,
    ):
        with pytest.raises(by.Misuse, match="another scheduler has taken this cache over"):
            verb()
    assert (loop.cache.stats(), second.state("two")) == (before, RequestState.PREFILL)
    assert loop.cache.audit() is None


def test_acks_and_seats_without_an_end_are_refused() -> None:
    loop = Loop()
    loop.add("one", 10, 4)
    loop.turn()
    with pytest.raises(by.Misuse, match="acks has more than 1,048,576 values"):
        loop.scheduler.on_acks(itertools.repeat(Ack("one", 0, 1)))
    with pytest.raises(by.Misuse, match="active has more than 1,048,576 values"):
        loop.scheduler.reconcile(itertools.repeat(1), 1)
    loop.finish()


@pytest.mark.law("INV-16")
def test_on_a_closed_cache_no_step_is_half_done() -> None:
    layout = by.KVLayout.llama(layers=1, kv_heads=1, head_dim=8, block_size=4)
    with by.local(layout, device=16) as cache:
        scheduler = Scheduler(cache)
        scheduler.add(by.NewRequest("one", text(1, 10), max_tokens=4))
        step = scheduler.schedule()
    output = Output(step.number, np.zeros(1, np.int32), np.ones(1, np.uint32))
    for _ in range(2):
        with pytest.raises(by.Misuse, match="this cache is closed"):
            scheduler.on_output(output)
    with pytest.raises(by.Misuse, match="this cache is closed"):
        scheduler.schedule()
    with pytest.raises(by.Misuse, match="this cache is closed"):
        Scheduler(cache)
    with pytest.raises(by.Misuse, match="this cache is closed"):
        cache.set_headroom(2)
    scheduler.fail("it is closed")
    assert [result.reason for result in scheduler.results()] == ["it is closed"]
    assert cache.audit() is None


def test_a_scheduler_that_is_gone_leaves_its_cache_to_another() -> None:
    cache = by.KVCache(device=33)
    first = Scheduler(cache)
    first.add(by.NewRequest("one", text(1, 40), max_tokens=4))
    first.schedule()
    del first
    gc.collect()
    Scheduler(cache).add(by.NewRequest("one", text(1, 40), max_tokens=4))
    assert cache.audit() is None


def test_what_the_engine_does_to_a_step_changes_nothing_here() -> None:
    loop = Loop()
    for name in (1, 2):
        loop.add(name, text(name, 6), 4)
    loop.turn()
    step = loop.schedule()
    step.leases.reverse()
    with pytest.raises(ValueError, match="read-only"):
        step.counts[:] = 0
    loop.finish()


# -- speed ---------------------------------------------------------------------------------------


def spent(scheduler: Scheduler, steps: int) -> float:
    """Median seconds of CPU of a step that changes the queue."""
    times = []
    for number in range(steps):
        scheduler.add(by.NewRequest(f"late {number}", [1, 2, 3], max_tokens=2))
        begun = time.thread_time()
        step = scheduler.schedule()
        times.append(time.thread_time() - begun)
        scheduler.on_output(Output(step.number, step.decode, np.ones(len(step), np.uint32)))
    return sorted(times)[steps // 2]


@pytest.mark.parametrize("how", ["tickets", "prefetch"])
def test_a_long_line_costs_no_step_a_walk_along_it(how: str) -> None:
    cache = by.KVCache(block_size=4, device=1_000)
    scheduler = Scheduler(
        cache,
        SchedulerOptions(
            max_num_seqs=64, headroom=NoHeadroom(), prefetch_depth=32 * (how == "prefetch")
        ),
    )
    scheduler.add(by.NewRequest("fills", range(2_000), max_tokens=1_900))
    step = scheduler.schedule()
    scheduler.on_output(Output(step.number, np.array([0], "i4"), np.ones(1, np.uint32)))
    for number in range(4_000):
        ticket = cache.promise(1) if how == "tickets" and number < 300 else None
        scheduler.add(
            by.NewRequest(number, range(900 + number, 3_800 + number), max_tokens=2, ticket=ticket)
        )
    assert spent(scheduler, 30) < 20e-3
    assert cache.audit() is None


def test_keys_of_many_long_prompts_are_made_over_several_steps() -> None:
    cache = by.KVCache(block_size=16, device=2_000)
    scheduler = Scheduler(cache, SchedulerOptions(max_num_seqs=64, headroom=NoHeadroom()))
    for number in range(20):
        scheduler.add(by.NewRequest(number, range(number, 31_000 + number), max_tokens=2))
    scheduler.schedule()
    keyed = [entry for entry in scheduler._lifecycle._requests.values() if entry.keys.raw]
    assert 1 <= len(keyed) <= 3


# -- bad input -----------------------------------------------------------------------------------


def refused(loop: Loop, says: str, call: Any) -> None:
    before = loop.cache.digest(), loop.scheduler.stats(), len(loop.scheduler._batch._in_flight)
    with pytest.raises(by.Misuse, match=says):
        call()
    assert (
        loop.cache.digest(),
        loop.scheduler.stats(),
        len(loop.scheduler._batch._in_flight),
    ) == before


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"tokens": np.ones((1, 1), np.uint32)}, "one-dimensional"),
        ({"tokens": [1]}, "must be an array of uint32"),
        ({"counts": np.array([1.0])}, "must be integers"),
        ({"seats": np.array([0.0])}, "must be integers"),
        ({"seats": np.array([True])}, "must be integers"),
        ({"step": 2.0}, "number of the step"),
        ({"step": True}, "number of the step"),
        ({"acks": (("new", 0, 1),)}, "must be an Ack"),
        ({"acks": Ack("new", 0, 1)}, "must be a list of Acks"),
        ({"ended": np.zeros((1, 1), np.bool_)}, "must be bools"),
        ({"ended": np.array(["no"])}, "must be bools"),
    ],
)
@pytest.mark.parametrize("plain", [True, False])
def test_of_a_bad_output_nothing_is_taken_and_the_right_one_still_is(
    wrong: dict[str, Any], says: str, plain: bool
) -> None:
    loop = Loop()
    loop.add("one", 6, 9)
    loop.turn(2)
    if not plain:
        loop.add("two", text(2, 6), 9)
    step = loop.schedule()
    good: dict[str, Any] = {
        "step": step.number,
        "seats": np.array([0], np.int32),
        "tokens": np.array([5], np.uint32),
    }
    refused(loop, says, lambda: loop.scheduler.on_output(Output(**good | wrong)))
    loop.finish()


def test_counts_of_any_width_are_counts() -> None:
    loop = Loop(num_speculative_tokens=2)
    loop.add("one", 6, 9)
    step = loop.schedule()
    loop.scheduler.on_output(
        Output(step.number, np.array([0], "i4"), np.array([5], "u4"), np.array([1], np.uint8))
    )
    assert loop.state("one") is RequestState.DECODE


@pytest.mark.parametrize("acks", [[("new", 1, 3)], None, Ack("new", 1, 3), [Ack("new", "1", 3)]])  # type: ignore[arg-type]
def test_what_is_no_ack_is_refused_and_none_beside_it_is_taken(acks: Any) -> None:
    loop = stopping()
    good = Ack(*loop.stops[0])
    given = [good, *acks] if isinstance(acks, list) else acks
    refused(loop, "Ack", lambda: loop.scheduler.on_acks(given))
    assert loop.state("new") is RequestState.STOPPING
    loop.finish()


@pytest.mark.parametrize("active", [["0"], "0", [None], None, np.zeros((2, 2)), [0.5]])
def test_seats_that_are_none_are_no_evidence(active: Any) -> None:
    loop = stopping()
    number = loop.scheduler._batch.number
    refused(loop, "seat", lambda: loop.scheduler.reconcile(active, number))
    loop.scheduler.reconcile(np.array([0, 1]), number)
    assert loop.state("new") is RequestState.STOPPING
    loop.finish()


def test_a_ticket_is_one_of_the_device_that_is_open_and_for_one_request() -> None:
    loop = Loop(device=33, host=8)
    promises = Reservations(loop.cache)
    promise = promises.open("z", 2, deadline=5)
    refused(loop, "Reservations.commit", lambda: loop.add("z", 9, 3, ticket=promise))
    refused(loop, "must be what", lambda: loop.add("z", 9, 3, ticket=5))
    below = loop.cache.promise(2, tier="host")
    refused(loop, "of the host", lambda: loop.add("z", 9, 3, ticket=below))
    ticket = promises.commit(promise.id)
    loop.add("z", 9, 3, ticket=ticket)
    refused(loop, "another request's", lambda: loop.add("y", 9, 3, ticket=ticket))
    loop.cache.release(below)
    loop.finish()


@pytest.mark.parametrize("request_id", [[1], {}, {1: 2}])
def test_an_id_that_cannot_be_hashed_is_refused_everywhere(request_id: Any) -> None:
    loop = Loop()
    for verb in (loop.scheduler.abort, loop.scheduler.state, loop.scheduler.lease):
        refused(loop, "hashed", lambda verb=verb: verb(request_id))
    refused(loop, "hashed", lambda: loop.scheduler.explain(request_id))
    with pytest.raises(by.Misuse, match="hashed"):
        Reservations(loop.cache).open(request_id, 1, deadline=3)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"headroom": 5}, "must be a policy"),
        ({"headroom": NoHeadroom}, "must be a policy"),
        ({"victim_policy": 5}, "must be a policy"),
        ({"num_speculative_tokens": 10**30}, "num_speculative_tokens"),
        ({"role": "nonsense", "headroom": NoHeadroom()}, "role"),
        ({"stops": ["acked"]}, "stops"),
        ({"max_stalled_steps": -1}, "max_stalled_steps"),
        ({"preempt_mode": "swap"}, "preempt_mode"),
    ],
)
def test_what_no_step_could_do_is_refused_when_it_is_made(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(by.Misuse, match=says):
        Scheduler(by.KVCache(device=9), SchedulerOptions(**wrong))


class Odd(NoHeadroom):
    @override
    def reserve(self, max_tokens: int) -> int:
        return -max_tokens


@pytest.mark.parametrize(
    "make",
    [
        lambda: Watermark(2.5),  # type: ignore[arg-type]
        lambda: Watermark(blocks=True),
        lambda: Adaptive(float("inf")),
        lambda: Adaptive("x"),  # type: ignore[arg-type]
        lambda: Scheduler(by.KVCache(device=9), SchedulerOptions(headroom=Odd())),
        lambda: Reservations(by.KVCache(device=9), headroom=5),  # type: ignore[arg-type]
        lambda: Reservations(by.KVCache(device=9)).open("x", 1, deadline=1, role=[]),  # type: ignore[arg-type]
    ],
)
def test_a_policy_that_is_none_is_refused_when_it_is_made(make: Any) -> None:
    with pytest.raises(by.Misuse):
        make()


def test_an_engine_that_stops_otherwise_is_refused() -> None:
    class Engine:
        stops = "in-order"

    scheduler = Scheduler(by.KVCache(device=9), SchedulerOptions(stops="acked"))
    with pytest.raises(by.Misuse, match="stops='in-order'"):
        scheduler.check(Engine())  # type: ignore[arg-type]
    Scheduler(by.KVCache(device=9), SchedulerOptions(stops="in-order")).check(Engine())  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers_and_truths_are_none() -> None:
    loop = Loop()
    loop.scheduler.add(by.NewRequest("one", range(4), max_tokens=np.int64(3), priority=np.int32(1)))  # type: ignore[arg-type]
    refused(loop, "max_tokens", lambda: loop.add("two", 4, max_tokens=True))
    refused(loop, "priority", lambda: loop.add("two", 4, 2, priority=True))
    loop.finish()
    assert len(loop.results["one"].tokens) == 3


def test_a_salt_that_is_no_text_is_refused() -> None:
    loop = Loop()
    refused(loop, "salt", lambda: loop.add("one", 4, 2, salt="\ud800"))


def test_a_device_that_was_made_larger_takes_larger_requests() -> None:
    loop = Loop(device=9)
    loop.cache.resize("device", 17)
    loop.add("one", 40, 4)
    loop.finish()
    assert loop.results["one"].state is RequestState.FINISHED


@pytest.mark.parametrize(
    "event",
    [
        Event(1, "ack", ("lste", 2)),
        Event(1, "abort", ("r1", "waitng")),
        Event(1, "copy", (0, "sideways", "fail", 1)),
    ],
)
def test_a_word_that_no_event_knows_is_refused(event: Event) -> None:
    with pytest.raises(by.Misuse, match="must be one of"):
        Scenario(Setup(), (event,))
