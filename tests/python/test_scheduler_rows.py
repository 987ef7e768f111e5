"""The scheduler against the lists of known failures, and against callers and engines that err."""

import pickle
import threading
import time
from dataclasses import astuple, replace
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
from blockyard.engine import Ack, Output
from blockyard.request import State
from blockyard.reserve import Full, Growing, Nothing, Watermark
from blockyard.scheduler import Scheduler
from blockyard.victims import LeastWork
from loop import Loop, continuation, loading, squeezed, stopping
from yard import profile, publish, publish_below, text

# -- R1 ------------------------------------------------------------------------------------------


def test_a_full_device_makes_room_for_what_comes_up_in_the_step_that_asks() -> None:
    """R1-2: evicting is part of the begin; nothing waits, and nothing fails without need."""
    loop = Loop(device=9, host=16)
    publish_below(loop.cache, text(1, 24))
    publish(loop.cache, text(2, 32))
    room = loop.cache.room()
    assert (room.free, room.evictable) == (0, 8)
    loop.add("one", text(1, 26), 3)
    loop.schedule()
    assert loop.state("one") is State.LOADING
    assert sum(len(plan) for plan in loop.plans) == 6
    loop.land()
    loop.finish()


def test_sixteen_threads_that_need_each_others_room_are_served_or_refused_and_never_stuck() -> None:
    """R1-2, under the watchdog of the test run."""
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


@pytest.mark.parametrize("how", ["abort", "finish"])
def test_who_ends_while_its_ack_is_awaited_leaves_every_registry(how: str) -> None:
    """R3-1: and a later ack is ignored and counted."""
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


def test_with_every_copy_stalled_the_others_go_on_within_a_millisecond() -> None:
    """R3-4: nothing waits for a copy; the clock is that of this thread."""
    loop = Loop(device=200, host=64, seats=8)
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
    assert loop.state("stalled") is State.LOADING
    assert all(len(loop.scheduler._requests[name].outputs) >= 39 for name in range(6))
    assert sorted(spent)[len(spent) // 2] < 1e-3
    loop.land()
    loop.finish()


@pytest.mark.parametrize(
    "state", ["waiting", "loading", "prefill", "decode", "stopping", "recompute"]
)
def test_whatever_it_is_doing_an_abort_ends_it_once_and_leaves_nothing(state: str) -> None:
    """R3-6."""
    loop = loading(seats=2) if state == "loading" else stopping()
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
    assert loop.results[name].state is State.ABORTED
    assert loop.cache.stats()["device_pinned"] == 0


# -- R4 ------------------------------------------------------------------------------------------


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
    while not loop.state("one") or loop.state("one") is State.WAITING:
        loop.turn()
    states = {name: loop.state(name) for name in ("old", "new", "one")}
    loop.schedule()
    said = loop.compute()
    said = Output(said.step, said.seats, np.full(len(said.tokens), token, np.uint32))
    loop.scheduler.on_output(said)
    for name, state in states.items():
        assert loop.state(name) in {state, State.DECODE, State.STOPPING, None}
    loop.finish()
    assert {result.state for result in loop.results.values()} == {State.FINISHED}


def test_without_an_ack_nothing_moves_however_long_it_takes() -> None:
    """R4-3."""
    loop = stopping()
    loop.scheduler.abort("old")
    for _ in range(200):
        step = loop.schedule()
        assert (step.starts, len(step)) == ((), 0)
        loop.output()
    assert (loop.state("new"), loop.told("seats")) == (State.STOPPING, 2)
    loop.ack()
    loop.finish()


def test_nothing_is_published_under_an_epoch_that_is_over() -> None:
    """R4-4: output of a step that the ack has overtaken."""
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


@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_between_two_chunks_a_stop_publishes_what_is_computed_and_no_more(chunks: int) -> None:
    """R4-5."""
    loop = Loop(budget=6)
    loop.add("one", text(1, 30), 4)
    for _ in range(chunks):
        loop.schedule()
        loop.output()
    loop.scheduler.abort("one")
    loop.schedule()
    loop.output()
    loop.ack()
    assert loop.cache.probe(text(1, 30)).device == chunks * 6 // 4
    loop.finish()


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
    for name in range(4):
        assert loop.results[name].tokens.tolist() == continuation(name, 8, 9)


def test_absence_counts_from_the_step_of_the_stop_on_and_for_who_is_stopping_alone() -> None:
    """R4-7."""
    loop = stopping()
    step = loop.scheduler._seats.bound()[1].stopped_at
    loop.scheduler.reconcile([], step - 1)
    assert (loop.state("old"), loop.state("new")) == (State.DECODE, State.STOPPING)
    loop.scheduler.reconcile([], step)
    assert (loop.state("old"), loop.state("new")) == (State.DECODE, State.RECOMPUTE)
    with pytest.raises(by.Misuse, match="only"):
        loop.scheduler.reconcile([], loop.scheduler._batch.number + 1)
    loop.stops.clear()
    loop.bound.pop(1)
    loop.finish()


def test_an_engine_that_stops_in_order_needs_no_ack_and_one_that_comes_is_nobodys() -> None:
    loop = Loop(stops="in-order", device=9)
    for name in range(3):
        loop.add(name, text(name + 1, 9), 12)
    loop.finish()
    assert loop.told("preempted") > 0
    assert loop.told("acks_ignored") > 0
    for name in range(3):
        assert loop.results[name].tokens.tolist() == continuation(name, 9, 12)


# -- laws ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_a_prompt_is_the_callers_and_what_he_does_with_it_later_changes_nothing(kind: Any) -> None:
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


def test_questions_change_nothing() -> None:
    """INV-5 and INV-16: what is asked is one reading."""
    loop = stopping()
    loop.add("waits", text(3, 20), 2)
    before = loop.cache.digest(), loop.scheduler.stats()
    for name in ("old", "new", "waits"):
        assert f"Request '{name}' is {loop.state(name)}." in str(loop.scheduler.explain(name))
    assert "waits for the ack" in str(loop.scheduler.explain("new"))
    assert "requests stand before it" in str(loop.scheduler.explain("waits"))
    assert (loop.scheduler.idle, loop.scheduler.running) == (False, 1)
    assert (loop.cache.digest(), loop.scheduler.stats()) == before
    schema = {stat.name for stat in Scheduler.SCHEMA}
    assert schema == set(loop.scheduler.stats())
    loop.ack()
    loop.finish()


# -- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"request": "there"}, "'there' is there already"),
        ({"request": ["list"]}, "hashed"),
        ({"prompt": []}, "one token id or more"),
        ({"prompt": [[1], [2]]}, "one-dimensional"),
        ({"prompt": [[1], [2, 3]]}, "one-dimensional"),
        ({"prompt": 5}, "one-dimensional"),
        ({"prompt": None}, "prompt"),
        ({"prompt": "text"}, "prompt"),
        ({"prompt": [1.5]}, "integers"),
        ({"prompt": [True]}, "integers"),
        ({"prompt": [-1]}, "token -1"),
        ({"prompt": [2**32]}, "token 4294967296"),
        ({"prompt": [2**70]}, "prompt"),
        ({"most": 0}, "most = 0"),
        ({"most": True}, "most = True"),
        ({"priority": "high"}, "priority = 'high'"),
    ],
)
def test_a_bad_request_is_named_and_nobody_is_added(wrong: dict[str, Any], says: str) -> None:
    loop = Loop()
    loop.add("there", text(2, 6), 2)
    given = {"request": "new", "prompt": [1, 2], "most": 2, **wrong}
    request, prompt = given.pop("request"), given.pop("prompt")
    with pytest.raises(by.Misuse, match=says):
        loop.scheduler.add(request, prompt, **given)
    assert loop.told("waiting") == 1
    loop.finish()


@pytest.mark.parametrize("wrong", [{"salt": 5}, {"lora": 1.5}])
def test_a_bad_salt_or_adapter_is_refused_when_it_is_given(wrong: dict[str, Any]) -> None:
    loop = Loop()
    with pytest.raises((by.Misuse, TypeError)):
        loop.scheduler.add("one", [1, 2], most=1, **wrong)
    assert loop.told("waiting") == 0


def test_what_the_device_can_never_hold_is_refused_at_once_and_what_it_just_can_is_served() -> None:
    loop = Loop(device=9)
    with pytest.raises(by.TooLarge, match="9 blocks and the device has 8"):
        loop.add("one", 20, 14)
    loop.add("one", 20, 13)
    loop.finish()
    assert len(loop.results["one"].tokens) == 13


def test_a_device_that_was_made_smaller_fails_who_fits_no_more() -> None:
    loop = Loop(device=9)
    loop.add("one", 30, 2)
    loop.cache.resize("device", 5)
    loop.schedule()
    loop.output()
    assert loop.results["one"].state is State.FAILED
    loop.finish()


@pytest.mark.parametrize("stops", ["acked", "in-order"])
def test_who_runs_and_has_outgrown_a_device_made_smaller_fails_with_its_tokens(stops: Any) -> None:
    loop = Loop(device=9, stops=stops)
    loop.add("one", 6, 20)
    loop.turn(3)
    loop.cache.resize("device", 5)
    loop.add("two", text(2, 6), 4)
    loop.finish()
    one = loop.results["one"]
    assert one.state is State.FAILED
    # It holds all 4 blocks, and has sampled the token that would be the first of a fifth.
    assert one.tokens.tolist() == continuation("one", 6, 20)[:11]
    assert "all 4 blocks" in one.reason
    assert loop.results["two"].state is State.FINISHED


def test_who_is_not_there_is_refused_by_name() -> None:
    loop = Loop()
    for verb in (loop.scheduler.abort, loop.scheduler.explain):
        with pytest.raises(by.Misuse, match="no request 'x'"):
            verb("x")


def array(*numbers: int, kind: Any = np.int32) -> Any:
    return np.array(numbers, kind)


U32 = np.uint32
BAD: dict[str, tuple[Any, str]] = {
    "of a step that is not the oldest": (
        lambda step: Output(step + 1, array(0), array(5, kind=U32)),
        "the oldest in flight is",
    ),
    "of a seat that is not in it": (
        lambda step: Output(step, array(0, 3), array(5, 5, kind=U32)),
        "seat 3",
    ),
    "of a seat that does not exist": (
        lambda step: Output(step, array(0, -1), array(5, 5, kind=U32)),
        "seat -1",
    ),
    "of a seat twice": (lambda step: Output(step, array(0, 0), array(5, 5, kind=U32)), "seat 0"),
    "of a prompt that is not computed": (
        lambda step: Output(step, array(0, 1), array(5, 5, kind=U32)),
        "seat 1, which samples nothing",
    ),
    "without a row": (lambda step: Output(step, array(), array(kind=U32)), "has not"),
    "with too many tokens": (
        lambda step: Output(step, array(0), array(5, 6, kind=U32)),
        "2 tokens for 1",
    ),
    "with more tokens than drafts": (
        lambda step: Output(step, array(0), array(5, 6, kind=U32), array(2)),
        "from 1 to 1",
    ),
    "with no token": (
        lambda step: Output(step, array(0), array(kind=U32), array(0)),
        "from 1 to 1",
    ),
    "with tokens that are no token ids": (
        lambda step: Output(step, array(0), array(-9, kind=np.int64)),
        "give uint32",
    ),
    "with too few ends": (
        lambda step: Output(step, array(0), array(5, kind=U32), None, array(kind=np.bool_)),
        "0 ends",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_output_is_named_and_nothing_of_it_is_taken(what: str) -> None:
    loop = Loop(budget=6)
    loop.add("decodes", text(1, 4), 9)
    loop.turn()
    loop.add("computes", text(2, 12), 9)
    step = loop.schedule()
    assert loop.rows(step) == [0, 1]
    wrong, says = BAD[what]
    before = loop.cache.digest(), loop.scheduler.stats(), len(loop.scheduler._batch.flown)
    with pytest.raises(by.Misuse, match=says):
        loop.scheduler.on_output(wrong(step.number))
    assert (loop.cache.digest(), loop.scheduler.stats(), len(loop.scheduler._batch.flown)) == before
    loop.finish()
    for name, prompt in (("decodes", 4), ("computes", 12)):
        assert loop.results[name].tokens.tolist() == continuation(name, prompt, 9)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"seats": 0}, "seats = 0"),
        ({"budget": 0}, "budget = 0"),
        ({"rest": -1}, "rest = -1"),
        ({"skip": -1}, "skip = -1"),
        ({"drafts": -1}, "drafts = -1"),
        ({"stops": "perhaps"}, "'perhaps'"),
    ],
)
def test_a_bad_scheduler_is_named(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(by.Misuse, match=says):
        Loop(**wrong)


def test_a_reset_by_another_policy_is_refused() -> None:
    loop = Loop()
    with pytest.raises(by.Misuse, match="'forget'"):
        loop.scheduler.reset(requests="forget")  # type: ignore[arg-type]


# -- all of it at once ---------------------------------------------------------------------------


class Machine(RuleBasedStateMachine):
    """Any order of what callers, engine and cranes may do: who ends has said the same as alone."""

    @initialize(
        device=st.integers(9, 20),
        host=st.sampled_from([0, 24]),
        reserve=st.sampled_from([Nothing, Full, lambda: Watermark(2), lambda: Growing(2.0, 0.2)]),
        least=st.booleans(),
        seats=st.integers(1, 4),
        budget=st.integers(2, 24),
        rest=st.integers(0, 6),
        skip=st.integers(0, 3),
        drafts=st.sampled_from([0, 0, 2]),
        accept=st.integers(1, 3),
    )
    def make(self, *, reserve: Any, least: bool, **chosen: Any) -> None:
        victims = LeastWork() if least else None
        self.loop = Loop(reserve=reserve(), victims=victims, **chosen)
        self.asked: dict[int, tuple[int, int]] = {}
        self.aborted: set[int] = set()

    @rule(
        family=st.integers(0, 2),
        prompt=st.integers(1, 16),
        most=st.integers(1, 14),
        priority=st.integers(0, 2),
    )
    def add(self, family: int, prompt: int, most: int, priority: int) -> None:
        name = len(self.asked)
        self.asked[name] = prompt, most
        self.loop.add(name, text(family, prompt), most, priority=priority)

    @rule(which=st.integers(0, 30))
    def abort(self, which: int) -> None:
        there = sorted(int(str(name)) for name in self.loop.scheduler._requests)
        if there:
            self.aborted.add(there[which % len(there)])
            self.loop.scheduler.abort(there[which % len(there)])

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
        for name in self.loop.scheduler._requests:
            assert str(self.loop.state(name)) in str(self.loop.scheduler.explain(name))

    @invariant()
    def whole(self) -> None:
        if not hasattr(self, "loop"):
            return
        self.loop.look()
        scheduler = self.loop.scheduler
        seats = scheduler._seats.bound()
        assert len({seat.number for seat in seats}) == len(seats) == scheduler.stats()["seats"]
        there = [seat.request for seat in seats if not seat.gone]
        assert all(scheduler._requests[one.id] is one for one in there)
        assert len(scheduler._requests) == len(there) + scheduler.stats()["waiting"]

    @override
    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        self.loop.land()
        self.loop.finish(3000)
        assert set(self.loop.results) == set(self.asked)
        for name, (prompt, most) in self.asked.items():
            result = self.loop.results[name]
            whole = continuation(name, prompt, most)
            assert result.tokens.tolist() == whole[: len(result.tokens)]
            assert result.state is State.FINISHED or name in self.aborted
            assert result.state is not State.FINISHED or len(result.tokens) == most


def test_any_order_of_events_ends_each_request_once_with_the_tokens_that_it_has_alone() -> None:
    run_state_machine_as_test(Machine, settings=profile(60))


# -- what mutants have shown to be missing -------------------------------------------------------


def test_acks_that_come_with_an_output_are_taken_also_where_all_decode() -> None:
    """INV-9: an output that is like most others, but for its acks."""
    loop = Loop()
    for name in range(2):
        loop.add(name, text(name + 1, 6), 9)
    loop.turn(2)
    loop.scheduler.abort(0)
    loop.schedule()
    acks = tuple(Ack(*stop) for stop in loop.stops)
    loop.scheduler.on_output(replace(loop.compute(), acks=acks))
    loop.stops.clear()
    loop.bound.pop(0)
    loop.look()
    assert (loop.results[0].state, loop.told("seats")) == (State.ABORTED, 1)
    loop.finish()


@pytest.mark.parametrize("token", [0, 1, 2**32 - 1, 2**32 - 3, 2**32 - 9, 2**31])
def test_no_token_value_is_an_end(token: int) -> None:
    """R4-2: also where nothing else is said of the row."""
    loop = Loop()
    loop.add("one", 6, 5)
    for _ in range(5):
        loop.schedule()
        said = loop.compute()
        loop.scheduler.on_output(replace(said, tokens=np.full(len(said.tokens), token, U32)))
    loop.look()
    result = loop.results["one"]
    assert (result.reason, result.tokens.tolist()) == ("length", [token] * 5)
    loop.finish()


def test_a_prompt_of_the_type_that_is_kept_is_copied_too() -> None:
    """INV-13: it needs no conversion, and must not be the caller's array for that."""
    prompt = np.array(text(1, 14), U32)
    loop = Loop()
    loop.scheduler.add("one", prompt, most=3)
    prompt[3] = 7
    (start,) = loop.schedule().starts
    assert start.tokens.tolist() == text(1, 14)
    start.tokens[5] = 8
    assert prompt.tolist() == [*text(1, 3), 7, *text(1, 14)[4:]]
    loop.output()
    loop.finish()


def test_who_frees_nothing_is_no_victim_whatever_its_rank() -> None:
    """INV-25: all that it holds is held by another too."""
    loop = Loop(device=5)
    loop.add("shared", text(1, 7), 5)
    loop.turn()
    whole = text(1, 7) + continuation("shared", 7, 1)
    loop.add("shares", [*whole, 5], 3, priority=1)
    loop.turn()
    (first, second) = loop.scheduler._seats.bound()
    frees = [loop.cache.held_alone(seat.lease) for seat in (first, second)]
    assert (frees, loop.cache.room().free) == ([0, 2], 0)
    assert [stop.request for stop in loop.schedule().stops] == ["shares"]
    loop.output()
    loop.finish()


def test_who_reaches_its_length_while_it_is_aborted_has_ended_once() -> None:
    """INV-11: the ack of the abort ends nobody."""
    loop = Loop()
    loop.add("one", 10, 3)
    loop.turn(2)
    loop.schedule()
    loop.scheduler.abort("one")
    loop.schedule()
    loop.output()
    assert loop.results["one"].state is State.FINISHED
    loop.output()
    loop.ack()
    loop.finish()


def test_what_others_were_promised_is_no_room_for_who_grows() -> None:
    """INV-25: two blocks are free and two are needed, and they are promised to another.

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
    loop.output()
    loop.finish()


@pytest.mark.parametrize(("rest", "victim"), [(3, "new"), (4, "old")])
def test_who_was_preempted_runs_some_steps_before_it_is_a_victim_again(
    rest: int, victim: str
) -> None:
    """T7: "new" has run three steps when both lack room."""
    loop = squeezed(rest=rest)
    loop.scheduler._requests["new"].preempted = 1
    loop.turn()
    assert [stop.request for stop in loop.schedule().stops] == [victim]
    loop.output()
    loop.finish()


def test_after_a_preemption_all_that_was_kept_is_kept_again() -> None:
    """R1-5: the scheduler tells the policy, and the policy begins anew."""
    reserve = Growing(0.1, 0.1)
    loop = squeezed(reserve=reserve)
    loop.turn()
    assert reserve.headroom(10) == 0
    assert len(loop.schedule().stops) == 1
    assert reserve.headroom(10) == 1
    loop.output()
    loop.finish()


@pytest.mark.parametrize("drafts", [0, 3])
def test_chunks_have_of_the_budget_what_rows_that_decode_leave(drafts: int) -> None:
    """T6: and of a row with drafts, every position counts."""
    loop = Loop(budget=8, drafts=drafts)
    loop.add("decodes", text(1, 4), 12)
    loop.turn()
    loop.add("computes", text(2, 20), 2)
    step = loop.schedule()
    assert step.counts.tolist() == [1 + drafts, 7 - drafts]
    loop.output()
    loop.finish()


@pytest.mark.parametrize("drafts", [0, 2])
def test_a_first_token_and_drafts_that_come_before_the_ack_count(drafts: int) -> None:
    """T8: not only those of rows that decode one token."""
    loop = Loop(drafts=drafts, accept=1 + drafts)
    loop.add("one", 10, 20)
    if drafts:
        loop.turn()
    loop.schedule()
    loop.scheduler.update_weights()
    loop.schedule()
    loop.output()
    assert loop.state("one") is State.STOPPING
    assert len(loop.scheduler._requests["one"].outputs) == (4 if drafts else 1)
    loop.output()
    loop.ack()
    loop.finish()
    assert loop.results["one"].tokens.tolist() == continuation("one", 10, 20)


def test_what_is_computed_while_it_stops_is_published_by_its_ack() -> None:
    """T9: the second chunk was in flight when the stop was sent."""
    loop = Loop(budget=6)
    loop.add("one", text(1, 30), 4)
    loop.turn()
    loop.schedule()
    loop.scheduler.abort("one")
    loop.schedule()
    loop.output()
    loop.output()
    loop.ack()
    assert loop.cache.probe(text(1, 30)).device == 3
    loop.finish()


def test_who_is_ended_by_the_engine_before_its_ack_keeps_its_seat_for_it() -> None:
    """T28: the stop is with the engine, and its answer would be nobody's."""
    loop = Loop()
    loop.add("one", 10, 9)
    loop.turn(2)
    loop.schedule()
    loop.scheduler.update_weights()
    loop.schedule()
    loop.output(ends=["one"])
    assert loop.results["one"].reason == "stop"
    assert (loop.told("seats"), loop.cache.stats()["leases"]) == (1, 1)
    loop.output()
    loop.ack()
    assert (loop.told("seats"), loop.told("acks_ignored")) == (0, 0)
    loop.finish()


def test_blocks_come_back_after_the_last_step_that_computes_in_them() -> None:
    """T35: two more are in flight when the engine says that it has ended."""
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


def test_who_shares_what_is_there_already_is_not_waited_for() -> None:
    """Table 2.2, row 7: what the other computes just now is none of its prompt."""
    loop = Loop(budget=8)
    publish(loop.cache, text(1, 8))
    loop.add("first", text(1, 8) + text(2, 24), 2)
    loop.add("second", text(1, 8) + text(3, 24), 2)
    starts = loop.schedule().starts
    assert [(one.request, one.cached) for one in starts] == [("first", 8), ("second", 8)]
    loop.output()
    loop.finish()


def test_a_prompt_of_the_whole_device_is_published_under_its_own_salt() -> None:
    """INV-19: also where it begins without its last token."""
    loop = Loop(device=5)
    for request in ("one", "two"):
        loop.add(request, text(1, 16), 1, salt="a")
        loop.finish()
    assert loop.cache.probe(text(1, 16)).device == 0
    assert loop.cache.probe(loop.cache.keys(text(1, 16), salt="a")).device == 4


def test_who_was_promised_room_begins_though_the_first_in_line_was_overtaken_enough() -> None:
    loop = Loop(device=9, skip=0)
    ticket = loop.cache.promise(2)
    loop.add("first", 28, 4)
    loop.add("promised", text(2, 6), 2, ticket=ticket)
    loop.schedule()
    assert (loop.state("first"), loop.state("promised")) == (State.WAITING, State.PREFILL)
    loop.output()
    loop.finish()


def test_who_was_refused_begins_when_less_is_kept_for_growth_though_nobody_comes_or_goes() -> None:
    loop = Loop(device=9, reserve=Growing(4.0, 0.5))
    loop.add("runs", 3, 12)
    loop.turn()
    loop.add("waits", text(2, 19), 2)
    loop.turn()
    assert (loop.state("waits"), loop.told("headroom")) == (State.WAITING, 3)
    loop.turn(4)
    assert (loop.state("runs"), loop.state("waits")) == (State.DECODE, State.DECODE)
    loop.finish()


# -- what planted mistakes have shown to be missing ----------------------------------------------


def test_of_those_who_wait_for_one_anothers_tickets_the_last_in_line_gives_its_own_back() -> None:
    """INV-25: nobody can begin, and who came before keeps what it was promised."""
    loop = Loop(device=9)
    tickets = [loop.cache.promise(2) for _ in range(2)]
    loop.add("first", text(1, 28), 1)
    loop.add("second", text(2, 28), 1, ticket=tickets[0])
    loop.add("third", text(3, 28), 1, ticket=tickets[1])
    loop.turn()
    assert ([ticket.state for ticket in tickets], loop.begun) == (["open", "spent"], [])
    loop.finish()
    assert loop.begun == ["second", "first", "third"]


def test_who_is_in_line_again_may_be_overtaken_as_often_as_at_first() -> None:
    """INV-25: what was counted while it waited for its first turn is over with that turn."""
    loop = Loop(device=9, skip=1)
    loop.add("runs", text(1, 8), 4)
    loop.turn()
    loop.add("big", text(2, 28), 2)
    loop.add("small", text(3, 4), 1)
    loop.turn()
    assert (loop.begun, loop.state("big")) == (["runs", "small"], State.WAITING)
    assert "overtaken 1 times" in str(loop.scheduler.explain("big"))
    while loop.state("big") is State.WAITING:
        loop.turn()
    loop.scheduler.reset()
    loop.bound.clear()
    held = loop.cache.begin(text(9, 8))
    assert "overtaken 0 times" in str(loop.scheduler.explain("big"))
    loop.add("other", text(4, 4), 1)
    loop.add("another", text(5, 4), 1)
    loop.turn()
    assert loop.begun[-1] == "other"
    assert [loop.state(name) for name in ("big", "another")] == [State.RECOMPUTE, State.WAITING]
    loop.cache.finish(held)
    loop.finish()


def test_who_is_alone_and_would_not_fit_beside_quarantined_slots_waits_for_their_fence() -> None:
    """INV-25: to leave would give it no room, and cost all that it has computed."""
    loop = Loop(device=9, host=8, preempt="recompute")
    publish_below(loop.cache, text(1, 12))
    lost = loop.cache.begin(text(1, 13))
    assert lost.state == "loading"
    loop.cache.unknown(lost.plans)
    loop.cache.finish(lost)
    assert loop.cache.stats()["device_quarantined"] == 3
    loop.add("one", text(2, 18), 12)
    for _ in range(8):
        loop.schedule()
        loop.output()
        loop.ack()
    assert (loop.state("one"), loop.told("preempted"), loop.told("skipped")) == (State.DECODE, 0, 5)
    loop.cache.abort(lost.plans)
    loop.finish()
    assert loop.told("preempted") == 0
    assert loop.results["one"].tokens.tolist() == continuation("one", 18, 12)


@pytest.mark.parametrize("sent", [False, True])
def test_a_stop_of_before_a_reset_is_not_sent_after_it(sent: bool) -> None:
    """T33: the engine has forgotten the seat, and somebody else may have it by then."""
    loop = Loop()
    loop.add("one", text(1, 10), 6)
    loop.turn(2)
    loop.scheduler.abort("one")
    if sent:
        number = loop.schedule().number
        loop.scheduler.reconcile([0], number)
    loop.scheduler.reset()
    loop.air.clear()
    loop.stops.clear()
    loop.bound.clear()
    loop.add("two", text(2, 10), 6)
    step = loop.schedule()
    assert (step.stops, [start.seat for start in step.starts]) == ((), [0])
    loop.output()
    loop.finish()
    assert [loop.results[name].state for name in ("one", "two")] == [State.ABORTED, State.FINISHED]


def test_what_a_dead_engine_that_stops_in_order_still_says_gives_no_block_back() -> None:
    """T29: only its reset shows that it writes no more; and what it says may lack some steps."""
    loop = Loop(device=9, stops="in-order")
    for name in range(3):
        loop.add(name, text(name + 1, 6), 9)
    loop.turn(2)
    loop.schedule()
    loop.scheduler.abort(0)
    loop.schedule()
    loop.scheduler.fail()
    held, seats = loop.cache.stats()["device_pinned"], loop.told("seats")
    outputs = [loop.compute(), loop.compute()]
    for output in reversed(outputs):
        loop.scheduler.on_output(output)
    assert (loop.cache.stats()["device_pinned"], loop.told("seats")) == (held, seats)
    assert loop.told("outputs_ignored") == sum(len(output.seats) for output in outputs)
    loop.look()
    assert [len(loop.results[name].tokens) for name in range(3)] == [2, 2, 2]
    loop.scheduler.reset()
    assert (loop.cache.stats()["device_pinned"], loop.told("seats")) == (0, 0)
    loop.stops.clear()
    loop.bound.clear()
    loop.finish()


def test_the_last_come_is_the_victim_though_it_has_fewer_blocks() -> None:
    """T7: more blocks decide only between those that came together."""
    loop = Loop(device=9)
    loop.add("old", text(1, 19), 9)
    loop.turn()
    loop.add("new", text(2, 11), 9)
    while not loop.stops:
        loop.schedule()
        loop.output()
    assert [stop.request for stop in loop.stops] == ["new"]
    loop.finish()


def test_absence_counts_from_the_first_time_that_a_stop_was_sent() -> None:
    """T29: an answer of before it was sent again shows as much."""
    loop = stopping()
    loop.schedule()
    loop.output()
    number = loop.scheduler._batch.number
    loop.scheduler.reconcile([0, 1], number - 1)
    loop.schedule()
    loop.output()
    loop.scheduler.reconcile([0], number)
    assert loop.state("new") is State.RECOMPUTE
    loop.stops.clear()
    loop.bound.pop(1)
    loop.finish()


def test_whose_loads_were_late_before_it_ran_is_loaded_again_when_it_has_run() -> None:
    """T4: only so many failures in a row are a reason to compute what is there."""
    loop = Loop(device=6, host=16, preempt="recompute")
    publish_below(loop.cache, text(1, 12))
    loop.add("one", text(1, 14), 3)
    for _ in range(2):
        loop.schedule()
        (plan,) = loop.plans
        loop.plans.clear()
        loop.cache.unknown([plan])
        assert not loop.schedule().chunks
        loop.cache.abort([plan])
    loop.turn(2)
    assert loop.state("one") is State.PREFILL
    while loop.air:
        loop.output()
    loop.scheduler._stop(loop.scheduler._seats.bound()[0])
    loop.schedule()
    loop.output()
    loop.ack()
    assert loop.state("one") is State.RECOMPUTE
    publish(loop.cache, text(9, 20))
    loop.schedule()
    (plan,) = loop.plans
    loop.plans.clear()
    loop.cache.unknown([plan])
    assert not loop.schedule().chunks
    loop.cache.abort([plan])
    loop.schedule()
    assert loop.state("one") is State.LOADING
    loop.land()
    loop.finish()
    assert loop.results["one"].tokens.tolist() == continuation("one", 14, 3)


def test_who_finds_all_but_its_last_token_computes_its_prompt_all_the_same() -> None:
    """T1: it decodes when it has sampled something, T6, and not before."""
    loop = Loop()
    publish(loop.cache, text(1, 12))
    loop.add("one", text(1, 13), 3)
    (start,) = loop.schedule().starts
    assert (start.cached, loop.state("one")) == (12, State.PREFILL)
    loop.output()
    assert loop.state("one") is State.DECODE
    loop.finish()


def test_steps_without_room_and_begins_put_off_are_counted() -> None:
    """`no_room` counts steps, and `soon` requests."""
    loop = Loop(device=9, budget=8)
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


def test_who_alone_has_a_ticket_keeps_it_while_it_finds_no_room() -> None:
    """INV-25: what it was promised is in nobody's way but that of others in line."""
    loop = Loop(device=9)
    other, own = loop.cache.promise(4), loop.cache.promise(2)
    loop.add("one", text(1, 28), 1, ticket=own)
    loop.turn(2)
    assert (loop.state("one"), own.state) == (State.WAITING, "open")
    loop.cache.release(other)
    loop.finish()


def test_nobody_loses_a_ticket_while_somebody_runs_who_will_make_room() -> None:
    """INV-25."""
    loop = Loop(device=9)
    loop.add("runs", text(3, 4), 3)
    loop.turn()
    own = loop.cache.promise(2)
    loop.add("first", text(1, 28), 1)
    loop.add("second", text(2, 28), 1, ticket=own)
    loop.turn()
    assert (loop.state("first"), loop.state("second")) == (State.WAITING, State.WAITING)
    assert own.state == "open"
    loop.finish()


def test_where_stops_hold_in_order_the_output_of_their_step_ends_who_was_stopped() -> None:
    """T26: also where that step is like most others, and the rest decodes on."""
    loop = Loop(stops="in-order")
    for name in range(2):
        loop.add(name, text(name + 1, 6), 9)
    loop.turn(2)
    loop.scheduler.abort(0)
    loop.schedule()
    loop.output()
    assert (loop.results[0].state, loop.told("seats")) == (State.ABORTED, 1)
    loop.stops.clear()
    loop.bound.pop(0)
    loop.finish()


def test_who_is_ended_by_the_engine_at_its_very_length_has_reached_its_length() -> None:
    """T35: and its seat is free at once all the same."""
    loop = Loop()
    loop.add("one", 10, 3)
    loop.turn(2)
    loop.schedule()
    loop.output(ends=["one"])
    assert (loop.results["one"].reason, loop.told("seats")) == ("length", 0)
    loop.finish()


def test_what_an_engine_computes_for_who_has_ended_before_its_ack_is_counted_and_dropped() -> None:
    """T28: the next step was on its way when its end was seen, and it is like most others."""
    loop = Loop()
    loop.add("one", 10, 9)
    loop.turn(2)
    loop.schedule()
    loop.schedule()
    loop.scheduler.update_weights()
    loop.output(ends=["one"])
    assert loop.results["one"].reason == "stop"
    step = loop.air.popleft()
    loop.scheduler.on_output(Output(step.number, step.decode, array(7, kind=U32)))
    assert loop.told("outputs_ignored") == 1
    loop.schedule()
    loop.output()
    loop.ack()
    loop.finish()


def test_what_comes_back_with_the_last_step_in_flight_counts_as_coming_until_then() -> None:
    """INV-25: it computes in three steps when the engine says that it has ended."""
    loop = Loop(device=9, seats=3)
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


def test_what_has_come_back_is_not_waited_for_though_a_later_step_is_in_flight() -> None:
    """INV-25: the stop was answered before the output of the last step that computes in it."""
    loop = Loop(device=9, seats=3)
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


def test_a_reset_gives_back_what_was_held_for_steps_that_are_never_done() -> None:
    """T33: their outputs come no more, and what they wrote is gone."""
    loop = Loop()
    loop.add("one", 10, 9)
    loop.turn(2)
    for _ in range(2):
        loop.schedule()
    loop.output(ends=["one"])
    room = loop.cache.room()
    assert room.free + room.evictable < 32
    assert not loop.scheduler.idle
    loop.scheduler.reset()
    loop.air.clear()
    room = loop.cache.room()
    assert (room.free + room.evictable, loop.scheduler.idle) == (32, True)
    loop.finish()


def test_who_has_ended_while_a_step_computes_in_its_blocks_leaves_the_scheduler_busy() -> None:
    """T35: a loop that stopped now would leave them held."""
    loop = Loop()
    loop.add("one", 10, 9)
    loop.turn(2)
    for _ in range(2):
        loop.schedule()
    loop.output(ends=["one"])
    assert (loop.told("seats"), loop.scheduler.idle) == (0, False)
    loop.output()
    assert loop.scheduler.idle
    loop.finish()


def test_who_was_failing_when_the_engine_was_reset_fails_for_its_own_reason() -> None:
    """T33: a device made smaller, and not the reset, has ended it."""
    loop = Loop(device=9)
    loop.add("one", 6, 20)
    loop.turn(3)
    loop.cache.resize("device", 5)
    while loop.state("one") is not State.STOPPING:
        loop.schedule()
        loop.output()
    loop.scheduler.reset()
    loop.stops.clear()
    loop.bound.clear()
    loop.look()
    result = loop.results["one"]
    assert (result.state, "all 4 blocks" in result.reason) == (State.FAILED, True)
    loop.finish()


def test_as_soon_as_the_least_of_those_who_wait_fits_it_begins() -> None:
    """INV-25: nobody has come or gone, but a promise made to somebody else was given back."""
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


def test_who_waited_for_a_prefix_begins_when_it_is_there_though_another_finds_no_room() -> None:
    """Table 2.2, row 7: nobody has come or gone, and there is no more room than before."""
    loop = Loop(device=17, budget=8)
    loop.add("first", text(1, 24), 40)
    loop.add("second", [*text(1, 24), 7], 2)
    loop.add("large", text(2, 60), 1)
    loop.turn(2)
    assert [loop.state(name) for name in ("second", "large")] == [State.WAITING] * 2
    loop.turn(2)
    assert loop.begun == ["first", "second"]
    assert "first" not in loop.results
    loop.finish()


def test_behind_long_prompts_without_room_a_short_one_is_asked_in_the_next_step() -> None:
    """Keys of a part of the line are made in each step, and the rest is not forgotten."""
    cache = by.KVCache(block_size=16, device=2_000)
    held = cache.begin(range(1_600))
    scheduler = Scheduler(cache, reserve=Nothing())
    for name in range(4):
        scheduler.add(name, range(name, 31_000 + name), most=1)
    scheduler.add("short", [1, 2, 3], most=1)
    steps = 0
    while scheduler.state("short") is State.WAITING:
        scheduler.schedule()
        steps += 1
        assert steps < 4
    assert steps == 2
    cache.finish(held)


def test_who_begins_with_a_ticket_has_overtaken_nobody() -> None:
    """INV-25: the room was never that of who stands before it."""
    loop = Loop(device=9, skip=1)
    ticket = loop.cache.promise(2)
    loop.add("large", text(1, 28), 1)
    loop.add("promised", text(2, 6), 9, ticket=ticket)
    loop.schedule()
    assert loop.state("promised") is State.PREFILL
    assert "overtaken 0 times" in str(loop.scheduler.explain("large"))
    loop.output()
    loop.finish()


def test_those_with_tickets_begin_in_the_order_of_the_line() -> None:
    """INV-17: not in that of a set, which differs from rank to rank."""
    loop = Loop(device=33, seats=1, skip=0)
    names = list(range(8))
    for name in reversed(names):
        ticket = loop.cache.promise(2)
        loop.add(name, text(name + 1, 6), 1, priority=-name, ticket=ticket)
    loop.add("large", text(9, 128), 1, priority=1)
    loop.turn(2 * len(names))
    assert loop.begun[: len(names)] == names
    loop.finish()


def test_a_prefix_is_brought_up_ahead_of_its_turn_once() -> None:
    """What was evicted again while it waits comes up when its turn has come."""
    loop = Loop(device=9, host=16, prefetch=2)
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
    loop.output()
    loop.finish()


def test_who_computes_again_is_promised_what_it_has_still_to_sample() -> None:
    """R1-5: what it had sampled is a part of its tokens now."""
    loop = Loop(device=33, reserve=Full())
    loop.add("one", text(1, 8), 9)
    loop.turn(5)
    assert len(loop.scheduler._requests["one"].outputs) == 5
    loop.scheduler.reset()
    loop.bound.clear()
    loop.turn()
    # Sixteen positions in all, the last token has none: four blocks, of which it holds them all.
    lease = loop.scheduler.lease("one")
    assert lease is not None
    assert lease.blocks + loop.cache.room().promised == 4
    loop.finish()


class Lavish(Nothing):
    @override
    def promise(self, most: int) -> int:
        return most + 40


def test_a_policy_that_promises_too_much_promises_what_may_be_sampled() -> None:
    """R1-5: nobody grows beyond its length."""
    loop = Loop(device=9, reserve=Lavish())
    loop.add("one", text(1, 8), 9)
    loop.schedule()
    assert (loop.state("one"), loop.cache.room().promised) == (State.PREFILL, 2)
    loop.output()
    loop.finish()


def test_of_several_who_compute_behind_one_prefix_each_is_waited_for() -> None:
    """Table 2.2, row 7: who came last is not the only one."""
    loop = Loop(budget=8)
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
    loop.output()
    loop.finish()


def test_what_is_found_below_is_not_waited_for_either() -> None:
    """Table 2.2, row 7: it is not worth loading here, and so both compute it."""
    loop = Loop(budget=8)
    cache = by.KVCache(block_size=4, device=33, host=16, speeds=(1000, 10, 0))
    loop.cache, loop.scheduler = cache, Scheduler(cache, budget=8, reserve=Nothing())
    publish_below(cache, text(1, 8))
    loop.add("first", text(1, 8) + text(2, 24), 2)
    loop.add("second", text(1, 8) + text(3, 24), 2)
    loop.schedule()
    assert (loop.begun, loop.plans) == (["first", "second"], [])
    loop.output()
    loop.finish()


def short(budget: int = 64, **keywords: Any) -> Loop:
    """ "A" holds five of eight blocks and soon needs a sixth; it cannot be computed again."""
    loop = Loop(device=9, host=32, recompute=False, budget=budget, **keywords)
    loop.add("A", text(2, 18), 9)
    while loop.state("A") is not State.DECODE:
        loop.turn()
    return loop


def test_nobody_leaves_while_a_last_chunk_is_in_flight() -> None:
    """INV-25: whom it is of stands in no list, and goes on all the same."""
    loop = short()
    loop.turn()
    loop.add("B", text(3, 9), 2)
    loop.schedule()
    loop.schedule()
    assert (loop.told("skipped"), loop.told("preempted")) == (1, 0)
    loop.output()
    loop.output()
    loop.finish()
    assert loop.results["A"].tokens.tolist() == continuation("A", 18, 9)


def test_nobody_who_rests_leaves_while_a_prompt_is_computed() -> None:
    """INV-25: it goes on, and makes room by its end."""
    loop = short(budget=5, rest=1000)
    loop.add("B", text(3, 12), 1)
    for request in loop.scheduler._requests.values():
        request.preempted = 1
    loop.turn(2)
    assert loop.state("B") is State.PREFILL
    loop.schedule()
    assert (loop.told("skipped"), loop.told("preempted")) == (1, 0)
    loop.output()
    loop.finish()


@pytest.mark.parametrize("landed", [False, True])
def test_nobody_leaves_while_somebody_loads_or_has_just_loaded(landed: bool) -> None:
    """INV-25: it starts in this very step."""
    loop = Loop(device=9, host=16, recompute=False)
    publish_below(loop.cache, text(1, 8))
    loop.add("A", text(2, 18), 9)
    loop.turn()
    loop.add("B", text(1, 9), 2)
    loop.schedule()
    loop.output()
    assert loop.state("B") is State.LOADING
    loop.schedule()
    loop.output()
    if landed:
        loop.land()
    loop.schedule()
    assert (loop.told("skipped"), loop.told("preempted")) == (1, 0)
    assert loop.state("B") is (State.PREFILL if landed else State.LOADING)
    loop.output()
    loop.land()
    loop.finish()
    assert loop.results["A"].tokens.tolist() == continuation("A", 18, 9)


def test_nobody_leaves_for_slots_that_a_copy_still_writes() -> None:
    """INV-25: who asked for it is gone, and its end makes room."""
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
    assert (loop.state("one"), loop.told("preempted")) == (State.DECODE, 0)
    assert loop.told("skipped") > 1
    loop.cache.commit(gone.plans)
    loop.finish()
    assert loop.results["one"].tokens.tolist() == continuation("one", 18, 12)


@pytest.mark.parametrize("accept", [1, 3])
def test_a_row_that_decodes_samples_whatever_room_it_has_for_drafts(accept: int) -> None:
    loop = Loop(drafts=3, accept=accept)
    loop.add("one", 10, 12)
    loop.turn()
    step = loop.schedule()
    assert (step.counts.tolist(), step.samples.tolist()) == ([4], [True])
    loop.output()
    loop.finish()


def test_epochs_of_a_request_rise_from_seat_to_seat() -> None:
    """INV-9: what an engine says of an earlier stay is older, wherever that was."""
    loop = Loop(seats=2)
    loop.add("first", text(1, 6), 9)
    loop.add("moves", text(2, 6), 20)
    begun = []
    for _ in range(30):
        begun += [one[1:3] for one in map(astuple, loop.turn().starts) if one[0] == "moves"]
        bound = {seat.request.id: seat for seat in loop.scheduler._seats.bound()}
        moves = bound.get("moves")
        if moves is not None and moves.stop is None and len(begun) < (4 if len(bound) < 2 else 3):
            loop.scheduler._stop(moves)
    assert begun[:4] == [(1, 1), (1, 3), (1, 5), (0, 7)]
    loop.finish()


def test_steps_that_ran_a_seat_are_those_of_who_sits_in_it() -> None:
    """T7: who is back rests as long as it must, whoever sat there before."""
    loop = Loop(seats=1)
    loop.add("first", text(1, 6), 5)
    loop.add("second", text(2, 6), 5)
    while loop.state("second") is State.WAITING:
        loop.turn()
    assert "1 steps ran it" in str(loop.scheduler.explain("second"))
    loop.finish()


def test_who_stands_first_has_nobody_before_it() -> None:
    loop = Loop(device=9)
    loop.add("runs", text(1, 28), 4)
    loop.turn()
    for at, name in enumerate(("first", "second")):
        loop.add(name, text(2 + at, 28), 2)
    for at, name in enumerate(("first", "second")):
        assert f"{at} requests stand before it" in str(loop.scheduler.explain(name))
    loop.finish()


def test_tickets_are_taken_back_one_after_the_other_until_somebody_begins() -> None:
    """INV-25: who has given its own back is not asked for it again."""
    loop = Loop(device=9, skip=0)
    tickets = [loop.cache.promise(2) for _ in range(3)]
    loop.add("first", text(1, 28), 1)
    for at, ticket in enumerate(tickets):
        loop.add(at, text(2 + at, 28), 1, ticket=ticket)
    loop.turn(2)
    assert [ticket.state for ticket in tickets] == ["open", "spent", "spent"]
    loop.finish()
    assert loop.begun == [0, "first", 1, 2]


def test_whose_last_token_is_in_flight_computes_nothing_more() -> None:
    """T35: it has no position left, and asks for no room."""
    loop = Loop()
    loop.add("one", 8, 5)
    loop.turn()
    for _ in range(4):
        assert len(loop.schedule()) == 1
    lease = loop.scheduler.lease("one")
    assert lease is not None
    assert (len(loop.schedule()), lease.tokens, lease.blocks) == (0, 12, 3)
    loop.finish()


def test_who_grew_and_is_stopped_for_another_takes_its_drafts_along() -> None:
    """T7: counts are those of the rows that go on."""
    loop = Loop(device=13, drafts=1)
    loop.add("high", text(1, 16), 9, priority=1)
    loop.add("mid", text(2, 13), 9)
    loop.add("low", text(3, 13), 9)
    loop.turn()
    step = loop.schedule()
    assert [stop.request for stop in step.stops] == ["low"]
    assert (step.decode.tolist(), step.counts.tolist()) == ([1], [2])
    loop.output()
    loop.finish()


def test_a_row_that_stops_and_was_not_computed_any_more_is_not_counted() -> None:
    """INV-8: an engine that acks its stops may leave it out of a step that it had."""
    loop = Loop(host=32)
    for name in range(2):
        loop.add(name, text(name + 1, 6), 9)
    loop.turn(2)
    loop.schedule()
    loop.scheduler._stop(loop.scheduler._seats.bound()[1])
    step = loop.air.popleft()
    loop.scheduler.on_output(Output(step.number, array(0), array(7, kind=U32)))
    loop.schedule()
    loop.ack()
    parked = loop.handle(1)
    assert (parked.computed, parked.appended) == (7, 8)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"counts": array(2, 0)}, "from 1 to 1"),
        ({"ended": np.zeros(3, np.bool_)}, "3 ends for 2 rows"),
    ],
)
def test_what_does_not_fit_its_rows_is_refused_also_where_all_decode(
    wrong: dict[str, Any], says: str
) -> None:
    loop = Loop()
    for name in range(2):
        loop.add(name, text(name + 1, 6), 9)
    loop.turn(2)
    loop.schedule()
    said = loop.compute()
    with pytest.raises(by.Misuse, match=says):
        loop.scheduler.on_output(replace(said, **wrong))
    loop.scheduler.on_output(said)
    loop.finish()


def test_no_prefix_is_brought_up_for_who_has_left_the_line() -> None:
    """T23."""
    loop = Loop(device=17, host=16, prefetch=4, seats=1)
    publish_below(loop.cache, text(1, 12))
    loop.add("runs", text(3, 6), 9)
    loop.turn()
    loop.add("gone", text(1, 14), 2)
    loop.add("stays", text(2, 14), 2)
    loop.scheduler.abort("gone")
    loop.schedule()
    assert (loop.plans, loop.state("stays")) == ([], State.WAITING)
    loop.output()
    loop.finish()
