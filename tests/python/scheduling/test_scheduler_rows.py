"""The scheduler against the lists of known failures, and against callers and engines that err."""

import pickle
import threading
import time
from collections.abc import Hashable
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from typing_extensions import override

import blockyard as by
from blockyard.scheduling.engine import Ack, Output
from blockyard.scheduling.headroom import Adaptive, FullLength, NoHeadroom, Watermark
from blockyard.scheduling.request import RequestState
from blockyard.scheduling.scheduler import Scheduler
from blockyard.scheduling.victims import LeastComputed, Newest
from loop import U32, Loop, continuation, loading, stopping
from yard import profile, publish, publish_below, text

# -- R1 ------------------------------------------------------------------------------------------


@pytest.mark.law("R1-2")
def test_a_full_device_makes_room_for_what_comes_up_in_the_step_that_asks() -> None:
    """Evicting is part of a begin: nothing waits, and nothing fails without need (R1-2)."""
    loop = Loop(device=9, host=16)
    publish_below(loop.cache, text(1, 24))
    publish(loop.cache, text(2, 32))
    room = loop.cache.room()
    assert (room.free, room.evictable) == (0, 8)
    loop.add("one", text(1, 26), 3)
    loop.schedule()
    assert loop.state("one") is RequestState.LOADING
    assert sum(len(plan) for plan in loop.plans) == 6
    loop.land()
    loop.finish()


@pytest.mark.law("R1-2")
def test_sixteen_threads_that_need_each_others_room_are_served_or_refused_and_never_stuck() -> None:
    """The watchdog of the test run ends a hang (R1-2)."""
    cache = by.KVCache(block_size=4, device=33, host=64)
    for name in range(4):
        publish_below(cache, text(name, 24))
    errors: list[BaseException] = []
    needless: list[by.NoRoom] = []

    def run(name: int) -> None:
        try:
            for at in range(60):
                try:
                    lease = cache.begin(text((name + at) % 4, 25))
                except by.NoRoom as refusal:
                    spare = refusal.free + refusal.evictable - refusal.promised
                    needless.append(refusal) if refusal.need <= spare else None
                    continue
                for plan in cache.dispatch() if name == 0 else ():
                    cache.commit(plan)
                cache.finish(lease)
        except BaseException as error:  # noqa: BLE001 - told by the test
            errors.append(error)

    threads = [threading.Thread(target=run, args=(name,)) for name in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert needless == []
    assert (errors, [thread for thread in threads if thread.is_alive()]) == ([], [])
    for plan in cache.dispatch():
        cache.commit(plan)
    assert cache.audit() is None


@pytest.mark.law("R1-4")
@pytest.mark.parametrize("size", [1, 16])
def test_what_goes_to_cranes_is_as_long_as_its_blocks_whatever_the_tokens(size: int) -> None:
    """R1-4."""
    loop = Loop(device=129, host=128, size=size)
    publish_below(loop.cache, text(1, 100 * size))
    loop.add("one", text(1, 100 * size + 1), 2)
    loop.schedule()
    (plan,) = loop.plans
    assert len(plan) == 100
    assert len(plan.to_bytes()) <= 64 + 8 * 100
    assert len(pickle.dumps(plan)) <= 64 + 8 * 100 + 64
    loop.land()
    loop.finish()


# -- R3 ------------------------------------------------------------------------------------------


@pytest.mark.law("INV-12", "R3-1")
@pytest.mark.parametrize("how", ["abort", "finish"])
def test_a_request_that_ends_while_its_ack_is_awaited_leaves_every_registry(how: str) -> None:
    """A later ack is ignored and counted (R3-1)."""
    loop = Loop()
    loop.add("one", 10, 3)
    loop.turn(1)
    loop.schedule()
    loop.scheduler.update_weights()
    if how == "abort":
        loop.scheduler.abort("one")
    loop.schedule()
    loop.output()
    acks = [Ack(*stop) for stop in loop.stops]
    loop.output()
    loop.ack()
    while loop.state("one"):
        loop.turn()
    loop.finish()
    loop.scheduler.on_acks(acks)
    assert loop.told("acks_ignored") == 1
    loop.empty()


@pytest.mark.law("R3-4", "4.7-40")
def test_with_every_copy_stalled_the_others_go_on_within_a_millisecond() -> None:
    """Nothing waits for a copy; the clock is that of this thread (R3-4)."""
    loop = Loop(device=200, host=64, max_num_seqs=8)
    publish_below(loop.cache, text(1, 40))
    loop.add("stalled", text(1, 41), 2)
    for name in range(6):
        loop.add(name, text(10 + name, 12), 60)
    spent = []
    for _ in range(40):
        start = time.thread_time()
        loop.schedule()
        spent.append(time.thread_time() - start)
        loop.output()
    assert loop.state("stalled") is RequestState.LOADING
    assert all(len(loop.scheduler._lifecycle._requests[name].outputs) >= 39 for name in range(6))
    assert sorted(spent)[len(spent) // 2] < 1e-3
    loop.land()
    loop.finish()


@pytest.mark.law("INV-11", "R3-6", "4.5-33")
@pytest.mark.parametrize(
    "state", ["waiting", "loading", "prefill", "decode", "stopping", "recompute"]
)
def test_whatever_it_is_doing_an_abort_ends_it_once_and_leaves_nothing(state: str) -> None:
    """R3-6."""
    loop = loading(max_num_seqs=2) if state == "loading" else stopping()
    name = {"loading": "one", "decode": "old", "stopping": "new", "recompute": "new"}.get(
        state, "x"
    )
    if state in {"recompute", "prefill"}:
        loop.ack()
    if state in {"waiting", "prefill"}:
        if state == "prefill":
            loop.scheduler.abort("old")
            loop.scheduler.abort("new")
            loop.turn(2)
        loop.add("x", text(5, 24), 2)
        if state == "prefill":
            loop.schedule()
    assert loop.state(name) == state
    loop.scheduler.abort(name)
    loop.finish()
    loop.land()
    assert loop.results[name].state is RequestState.ABORTED
    assert loop.cache.stats()["device_pinned"] == 0


# -- R4 ------------------------------------------------------------------------------------------


@pytest.mark.law("INV-9", "R4-2", "4.6-39")
@pytest.mark.parametrize("token", [0, 1, 2**32 - 1, 2**32 - 3, 2**32 - 9, 2**31])
def test_no_token_value_means_anything(token: int) -> None:
    """R4-2."""
    loop = stopping()
    output = Output(
        loop.schedule().number,
        np.array([], np.int32),
        np.array([], np.uint32),
    )
    loop.air.pop()
    loop.scheduler.on_output(output)
    loop.ack()
    loop.add("one", text(4, 4), 3)
    loop.asked.clear()
    while not loop.state("one") or loop.state("one") is RequestState.WAITING:
        loop.turn()
    states = {name: loop.state(name) for name in ("old", "new", "one")}
    loop.schedule()
    said = loop.compute()
    said = Output(said.step, said.seats, np.full(len(said.tokens), token, np.uint32))
    loop.scheduler.on_output(said)
    for name, state in states.items():
        assert loop.state(name) in {state, RequestState.DECODE, RequestState.STOPPING, None}
    loop.finish()
    assert {result.state for result in loop.results.values()} == {RequestState.FINISHED}


@pytest.mark.law("INV-10", "R4-3")
def test_without_an_ack_nothing_moves_however_long_it_takes() -> None:
    """It is not in the queue either (R4-3)."""
    loop = stopping()
    loop.scheduler.abort("old")
    for _ in range(200):
        step = loop.schedule()
        assert (step.starts, len(step), loop.told("waiting")) == ((), 0, 0)
        loop.output()
    assert (loop.state("new"), loop.told("seats")) == (RequestState.STOPPING, 2)
    loop.finish()


@pytest.mark.law("R4-4")
def test_nothing_is_published_under_an_epoch_that_is_over() -> None:
    """The ack has overtaken the output of a step (R4-4)."""
    loop = Loop()
    loop.add("one", text(1, 15), 9)
    loop.turn()
    loop.schedule()
    loop.scheduler.abort("one")
    loop.schedule()
    loop.scheduler.on_acks([Ack(*stop) for stop in loop.stops])
    loop.stops.clear()
    sealed = loop.cache.stats()["sealed"]
    loop.output()
    loop.output()
    assert loop.cache.stats()["sealed"] == sealed
    assert loop.cache.probe([*text(1, 15), *continuation("one", 15, 1), 0]).device == 3
    loop.finish()


@pytest.mark.law("R4-5")
@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_between_two_chunks_a_stop_publishes_what_is_computed_and_no_more(chunks: int) -> None:
    """R4-5."""
    loop = Loop(max_num_batched_tokens=6)
    loop.add("one", text(1, 30), 4)
    for _ in range(chunks):
        loop.schedule()
        loop.output()
    loop.scheduler.abort("one")
    loop.turn(lands=False)
    assert loop.cache.probe(text(1, 30)).device == chunks * 6 // 4
    loop.finish()


@pytest.mark.law("R4-6", "4.6-39", "4.7-45")
@pytest.mark.parametrize("stops", ["acked", "in-order"])
def test_when_all_are_stopped_at_once_one_step_without_rows_is_enough(stops: Any) -> None:
    """R4-6 and 4.7-45."""
    loop = Loop(stops=stops)
    for name in range(4):
        loop.add(name, text(name + 1, 8), 9)
    loop.turn(2)
    loop.scheduler.update_weights()
    step = loop.schedule()
    assert (len(step.stops), len(step)) == (4, 0)
    loop.bound.clear()
    loop.output()
    if stops == "acked":
        assert loop.told("stopping") == 4
        loop.ack()
    loop.stops.clear()
    assert (loop.told("stopping"), loop.told("waiting"), loop.told("seats")) == (0, 4, 0)
    loop.finish()


@pytest.mark.law("R4-7")
def test_absence_counts_from_the_step_of_the_stop_on_and_for_a_stopping_request_alone() -> None:
    """R4-7."""
    loop = stopping()
    step = loop.scheduler._shared.seats.bound()[1].stopped_at
    loop.scheduler.reconcile([], step - 1)
    assert (loop.state("old"), loop.state("new")) == (RequestState.DECODE, RequestState.STOPPING)
    loop.scheduler.reconcile([], step)
    assert (loop.state("old"), loop.state("new")) == (RequestState.DECODE, RequestState.RECOMPUTE)
    with pytest.raises(by.Misuse, match="only"):
        loop.scheduler.reconcile([], loop.scheduler._batch.number + 1)
    loop.stops.clear()
    loop.bound.pop(1)
    loop.finish()


def test_an_engine_that_stops_in_order_needs_no_ack_and_one_that_comes_is_ignored() -> None:
    loop = Loop(stops="in-order", device=9)
    for name in range(3):
        loop.add(name, text(name + 1, 9), 12)
    loop.finish()
    assert loop.told("preempted") > 0
    assert loop.told("acks_ignored") > 0


# -- laws ----------------------------------------------------------------------------------------


@pytest.mark.law("INV-13")
@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_what_a_caller_does_with_a_prompt_later_changes_nothing(kind: Any) -> None:
    """INV-13."""
    prompt = kind(text(1, 14))
    loop = Loop(device=9)
    loop.add("old", text(2, 14), 12)
    loop.add("new", prompt, 12)
    before = list(prompt)
    if kind is not tuple:
        prompt[3] = 7
    loop.finish()
    assert loop.told("preempted") > 0
    if kind is not tuple:
        assert prompt[3] == 7
        prompt[3] = before[3]
    assert list(prompt) == text(1, 14)
    assert loop.cache.probe(text(1, 14)).device + loop.cache.probe(text(2, 14)).device > 0


@pytest.mark.law("INV-13")
def test_a_prompt_of_the_type_that_is_kept_is_copied_too() -> None:
    """It needs no conversion, but must not be the caller's array (INV-13)."""
    prompt = np.array(text(1, 14), U32)
    loop = Loop()
    loop.scheduler.add(by.NewRequest("one", prompt, max_tokens=3))
    prompt[3] = 7
    (start,) = loop.schedule().starts
    assert start.tokens.tolist() == text(1, 14)
    start.tokens[5] = 8
    assert prompt.tolist() == [*text(1, 3), 7, *text(1, 14)[4:]]
    loop.finish()


@pytest.mark.law("INV-16")
def test_questions_change_nothing() -> None:
    """A question reads all its numbers at once (INV-5, INV-16)."""
    loop = stopping()
    loop.add("waits", text(3, 20), 2)
    before = loop.cache.digest(), loop.scheduler.stats()
    for name in ("old", "new", "waits"):
        assert f"Request '{name}' is {loop.state(name)}." in str(loop.scheduler.explain(name))
    assert "waits for the ack" in str(loop.scheduler.explain("new"))
    assert "requests are before it" in str(loop.scheduler.explain("waits"))
    assert (loop.scheduler.idle, loop.scheduler.running) == (False, 1)
    assert (loop.scheduler.stalled(), loop.cache.undispatched()) == ((), None)
    assert (loop.cache.digest(), loop.scheduler.stats()) == before
    schema = {stat.name for stat in Scheduler.SCHEMA}
    assert schema == set(loop.scheduler.stats())
    loop.finish()


# -- all of it at once ---------------------------------------------------------------------------


class Machine(RuleBasedStateMachine):
    """In any order of events a request that ends has sampled the same as alone."""

    @initialize(
        device=st.integers(9, 20),
        host=st.sampled_from([0, 24]),
        headroom=st.sampled_from(
            [NoHeadroom, FullLength, lambda: Watermark(2), lambda: Adaptive(2.0, 0.2)]
        ),
        least=st.booleans(),
        max_num_seqs=st.integers(1, 4),
        max_num_batched_tokens=st.integers(2, 24),
        preempt_cooldown=st.integers(0, 6),
        max_overtakes=st.integers(0, 3),
        num_speculative_tokens=st.sampled_from([0, 0, 2]),
        accept=st.integers(1, 3),
    )
    def make(self, *, headroom: Any, least: bool, **chosen: Any) -> None:
        victims = LeastComputed() if least else Newest()
        self.loop = Loop(headroom=headroom(), victim_policy=victims, **chosen)
        self.asked: dict[Hashable, tuple[int, int]] = {}
        self.aborted: set[Hashable] = set()

    @rule(
        family=st.integers(0, 2),
        prompt=st.integers(1, 16),
        most=st.integers(1, 14),
        priority=st.integers(0, 2),
        n=st.sampled_from([1, 1, 2, 3]),
        read_prefix=st.booleans(),
        hints=st.builds(
            by.Hints,
            st.sampled_from(["ordinary", "session-ended", "retain"]),
            st.none() | st.floats(0, 1e6),
            st.none() | st.integers(0, 100),
            st.none() | st.integers(0, 50),
        ),
    )
    def add(self, family: int, prompt: int, most: int, **keywords: Any) -> None:
        name = len(self.asked)
        tokens = text(family, prompt)
        for sample in self.loop.scheduler.add(
            by.NewRequest(name, tokens, max_tokens=most, **keywords)
        ):
            self.asked[sample] = prompt, most

    def pick(self, which: int) -> list[Hashable]:
        there = list(self.loop.scheduler._lifecycle._requests)
        return [there[which % len(there)]] if there else []

    @rule(which=st.integers(0, 30))
    def abort(self, which: int) -> None:
        for name in self.pick(which):
            self.aborted.add(name)
            self.loop.scheduler.abort(name)

    @rule(which=st.integers(0, 30))
    def pause_decoding(self, which: int) -> None:
        for name in self.pick(which):
            self.loop.scheduler.pause_decoding(name)

    @rule(which=st.integers(0, 30))
    def resume_decoding(self, which: int) -> None:
        for name in self.pick(which):
            self.loop.scheduler.resume_decoding(name)

    @precondition(lambda self: len(self.loop.air) < 3)
    @rule()
    def schedule(self) -> None:
        self.loop.schedule()

    @precondition(lambda self: self.loop.air)
    @rule()
    def output(self) -> None:
        self.loop.output()

    @precondition(lambda self: self.loop.stops)
    @rule()
    def ack(self) -> None:
        while self.loop.air:
            self.loop.output()
        self.loop.ack()

    @rule(good=st.integers(0, 3))
    def copies_end(self, good: int) -> None:
        for plan in self.loop.plans:
            self.loop.cache.commit([plan], [min(good, len(plan))])
        self.loop.plans.clear()

    @rule()
    def land(self) -> None:
        self.loop.land()

    @rule()
    def new_weights(self) -> None:
        self.loop.scheduler.update_weights()

    @rule()
    def engine_reset(self) -> None:
        self.loop.air.clear()
        self.loop.stops.clear()
        self.loop.bound.clear()
        self.loop.scheduler.reset()

    @rule()
    def ask_each(self) -> None:
        for name in self.loop.scheduler._lifecycle._requests:
            assert str(self.loop.state(name)) in str(self.loop.scheduler.explain(name))

    @invariant()
    def whole(self) -> None:
        if not hasattr(self, "loop"):
            return
        self.loop.look()
        scheduler = self.loop.scheduler
        seats = scheduler._shared.seats.bound()
        assert len({seat.number for seat in seats}) == len(seats) == scheduler.stats()["seats"]
        there = [seat.request for seat in seats if not seat.ended]
        assert all(scheduler._lifecycle._requests[one.id] is one for one in there)
        assert len(scheduler._lifecycle._requests) == len(there) + scheduler.stats()["waiting"]

    @override
    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        self.loop.land()
        for name in self.loop.scheduler._lifecycle._requests:
            self.loop.scheduler.resume_decoding(name)
        self.loop.finish(3000)
        assert set(self.loop.results) == set(self.asked)
        for name, (prompt, most) in self.asked.items():
            result = self.loop.results[name]
            whole = continuation(name, prompt, most)
            assert result.tokens.tolist() == whole[: len(result.tokens)]
            assert result.state is RequestState.FINISHED or name in self.aborted
            assert result.state is not RequestState.FINISHED or len(result.tokens) == most


@pytest.mark.law("INV-11", "INV-25", "4.7-42", "4.7-43")
def test_any_order_of_events_ends_each_request_once_with_the_tokens_that_it_has_alone() -> None:
    run_state_machine_as_test(Machine, settings=profile(60))
