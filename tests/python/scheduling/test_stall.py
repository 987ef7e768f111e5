"""A loop that stands still is told which call is missing, and a sound one nothing (O10)."""

import dataclasses
import logging
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import blockyard as by
from blockyard._typing import override
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.scheduling.scheduler import Scheduler
from blockyard.scheduling.stall import Rule
from blockyard.shared.plan import Outcome
from blockyard.testing import Scenario, ScriptedCopier, delay, simulate
from loop import Loop, loading
from yard import begin, publish, text

SAID = {
    Rule.DEAD: r"The (engine failed|cache is closed).* \(\d+ steps, .* s\)",
    Rule.UNANSWERED: r"\d+ steps are unanswered, the oldest is step \d+, for .* s: call on_output",
    Rule.NO_ACK: r"Seat \d waits since step \d+ \(\d+ steps, .* s\) for the ack .*: call on_acks",
    Rule.UNDISPATCHED: r".* \(?\d+ steps, .* s\)?.*: call cache.step\(\) \(or dispatch\)",
    Rule.NOT_POLLED: r"\d+ flights? waits? on rank 0, which was not polled for \d+ steps",
    Rule.NO_OUTCOME: r"Flight \d+ waits for ranks? [\d, ]+ \(\d+ steps, .* s\).*: call commit",
    Rule.NO_ROOM: r"Request '.*' finds no room \(\d+ steps, .* s\), .*Holders of blocks",
}


def rules(sentences: tuple[str, ...]) -> list[Rule]:
    """The rule of each sentence, and a complaint where it is none's."""
    found = [
        [rule for rule, pattern in SAID.items() if re.match(pattern, said)] for said in sentences
    ]
    assert all(len(one) == 1 for one in found), sentences
    return [one[0] for one in found]


class Turns(Loop):
    """A loop around a local cache, under traffic of every kind, which forgets some calls.

    Args:
        forgets: "output", "acks", "dispatch", "outcomes", "poll" or "reset".
        seconds: Between two turns.
        device: Slots of the device.
    """

    def __init__(
        self, *forgets: str, seconds: float = 0.05, device: int = 33, **keywords: Any
    ) -> None:
        layout = by.KVLayout.llama(layers=1, kv_heads=1, head_dim=2, block_size=4)
        self.local = by.local(
            layout, device=device, host=64, ahead=4, copier=ThreadCopier(workers=0)
        )
        super().__init__(cache=self.local, max_num_seqs=6, **keywords)
        self.forgets = set(forgets)
        self.seconds = seconds
        self.turns = 0
        self.said: dict[int, list[Rule]] = {}

    def once(self) -> None:
        """One turn: new requests, some of which find their prompt, load it, or are preempted."""
        self.turns += 1
        self.now += self.seconds
        if self.turns % 3 == 0 and self.told("waiting") < 4:
            self.add(self.turns, [*text(self.turns // 3 % 7, 16), self.turns], 12)
        try:
            step = self.scheduler.schedule()
        except by.Unavailable:
            if "reset" not in self.forgets:
                self.scheduler.reset()
        else:
            self.air.append(step)
            self.stops += step.stops
        self.copy()
        while self.air and "output" not in self.forgets:
            self.output()
        if "acks" not in self.forgets:
            self.ack()
        if sentences := self.scheduler.stalled():
            self.said[self.turns] = rules(sentences)

    def copy(self) -> None:
        if "dispatch" in self.forgets:
            return
        crane = self.local.crane
        if "poll" not in self.forgets:
            outcomes = crane.poll()
            self.cache.commit([] if "outcomes" in self.forgets else outcomes)
        crane.submit(self.cache.dispatch())

    def run(self, turns: int) -> None:
        for _ in range(turns):
            self.once()


def looks_at(loop: Loop, turns: int, seconds: float, turn: Callable[[], Any]) -> Iterator[Any]:
    """Yields what is said after each of the turns."""
    for _ in range(turns):
        loop.now += seconds
        turn()
        yield loop.scheduler.stalled()


# -- each forgetful loop, and no other rule --------------------------------------------------------

FORGETFUL = {
    "output": Rule.UNANSWERED,
    "acks": Rule.NO_ACK,
    "dispatch": Rule.UNDISPATCHED,
    "poll": Rule.NOT_POLLED,
    "outcomes": Rule.NO_OUTCOME,
}


@pytest.mark.law("O10")
@pytest.mark.parametrize(("call", "rule"), FORGETFUL.items())
def test_a_loop_that_forgets_a_call_is_told_that_one_and_no_other(call: str, rule: Rule) -> None:
    loop = Turns(call)
    loop.run(200)
    assert {one for said in loop.said.values() for one in said} == {rule}
    # It goes on: what is missing is said until it is no more.
    assert list(loop.said) == list(range(min(loop.said), 201))
    # The first stop comes with the end of the first request, in turn 15.
    assert min(loop.said) <= 64 + 16


@pytest.mark.law("O10")
@pytest.mark.parametrize("call", ["output", "acks", "dispatch"])
def test_the_loops_of_every_beginner_are_told_in_the_log_within_a_hundred_steps(
    call: str, caplog: pytest.LogCaptureFixture
) -> None:
    loop = Turns(call)
    # It never asks; the log is all that it sees.
    loop.scheduler.stalled = tuple  # type: ignore[method-assign]
    # An ack is missing from turn 15 on.
    loop.run(100 + 15 * (call == "acks"))
    (line,) = [one for one in caplog.records if "stalled" in one.message]
    assert (line.name, line.levelname) == ("blockyard.scheduling.stall", "WARNING")
    assert line.message.startswith(f"stalled, {FORGETFUL[call]}: ")


@pytest.mark.law("O10")
def test_a_loop_that_forgets_a_call_after_a_while_is_told_just_that() -> None:
    for call, rule in FORGETFUL.items():
        loop = Turns()
        loop.run(50)
        loop.forgets.add(call)
        loop.run(120)
        assert {one for said in loop.said.values() for one in said} == {rule}, call


@pytest.mark.law("O10")
def test_a_dead_engine_that_is_not_reset_is_told_with_its_reason_and_nothing_else() -> None:
    loop = Turns("reset")
    loop.run(20)
    # Steps are in flight, and a seat has its stop.
    loop.air.append(loop.scheduler.schedule())
    loop.scheduler.fail("worker 3 is gone")
    loop.air.clear()
    loop.forgets |= {"acks", "dispatch"}
    loop.run(200)
    assert {one for said in loop.said.values() for one in said} == {Rule.DEAD}
    (said,) = loop.scheduler.stalled()
    assert "worker 3 is gone" in said
    assert min(loop.said) == 20 + 65
    loop.forgets.clear()
    loop.scheduler.reset()
    assert loop.scheduler.stalled() == ()


@pytest.mark.law("O10")
def test_a_closed_cache_is_told_for_what_it_is() -> None:
    loop = Turns()
    loop.run(20)
    loop.local.close()
    for _ in range(70):
        loop.now += 1
        with pytest.raises(by.Misuse, match="closed"):
            loop.scheduler.schedule()
        loop.scheduler.stalled()
    assert rules(loop.scheduler.stalled()) == [Rule.DEAD]


@pytest.mark.law("O10")
def test_without_room_those_are_told_that_hold_it_and_a_lease_that_no_request_has() -> None:
    loop = Loop(device=33)
    leaked = begin(loop.cache, text(9, 80))
    ticket = loop.cache.promise(2)
    loop.add("large", text(1, 60), 2)
    said = [*looks_at(loop, 66, 1.0, loop.turn)]
    assert said[:64] == [()] * 64
    (sentence,) = said[-1]
    assert rules(said[-1]) == [Rule.NO_ROOM]
    assert "Request 'large' finds no room" in sentence
    assert f"lease {leaked.id}: 20 blocks and 0 promised" in sentence
    assert f"A lease that no request has: {leaked.id}; call finish" in sentence
    assert f"Promised to tickets: {ticket.id}; call release" in sentence
    loop.cache.finish(leaked)
    assert loop.scheduler.stalled() == ()
    loop.cache.release(ticket)
    loop.finish()


@pytest.mark.law("O10")
def test_a_stall_that_was_over_begins_anew() -> None:
    # All is as it was the first time, to the last block.
    loop = Loop(device=33)
    leaked = begin(loop.cache, text(9, 80))
    loop.add("large", text(1, 60), 2)
    assert not any(looks_at(loop, 50, 1.0, loop.turn))
    loop.scheduler.abort("large")
    loop.turn()
    assert loop.scheduler.stalled() == ()
    loop.add("another", text(1, 60), 2)
    said = [*looks_at(loop, 66, 1.0, loop.turn)]
    assert said[:64] == [()] * 64
    assert rules(said[-1]) == [Rule.NO_ROOM]
    loop.cache.finish(leaked)
    loop.finish()


def test_slots_in_quarantine_are_told_where_they_are_why_nothing_fits() -> None:
    loop = loading()
    (plan,) = loop.plans
    loop.plans.clear()
    loop.cache.mark_unknown([plan])
    loop.cache._flights.forget([plan.flight])
    loop.finish()
    loop.add("large", text(2, 60), 2)
    *_, said = looks_at(loop, 70, 1.0, loop.turn)
    assert rules(said) == [Rule.NO_ROOM]
    assert "3 slots are quarantined: report their copies, or reset" in said[0]
    loop.cache.abort([plan])


@pytest.mark.law("O10")
def test_while_a_row_computes_there_is_room_to_come() -> None:
    # It grows within its block, so that its steps alone show that it goes on.
    loop = Loop(device=3, size=128)
    loop.add("long", text(1, 20), 100)
    loop.turn()
    loop.add("large", text(2, 200), 2)
    assert not any(looks_at(loop, 80, 1.0, loop.turn))
    assert loop.state("large") == "waiting"
    loop.finish()


@pytest.mark.law("O10")
def test_a_stop_whose_step_is_not_answered_waits_for_no_ack() -> None:
    loop = Loop()
    loop.add("one", text(1, 20), 90)
    loop.turn()
    loop.scheduler.abort("one")
    *_, said = looks_at(loop, 70, 1.0, loop.schedule)
    assert rules(said) == [Rule.UNANSWERED]
    while loop.air:
        loop.output()

    def turn() -> None:
        loop.schedule()
        loop.output()

    *_, said = looks_at(loop, 70, 1.0, turn)
    assert rules(said) == [Rule.NO_ACK]


@pytest.mark.law("O10")
def test_the_rank_that_has_not_spoken_is_named() -> None:
    layout = by.KVLayout.llama(layers=1, kv_heads=4, head_dim=2, block_size=4, ranks=4)
    loop = Loop(cache=by.KVCache(layout, device=17))
    publish(loop.cache, text(1, 12))
    loop.add("one", text(1, 12), 3)
    loop.schedule()
    loop.output()
    (plan,) = loop.plans
    loop.plans = []
    loop.cache.commit([Outcome(plan.flight, rank, 1) for rank in (0, 3)])
    *_, said = looks_at(loop, 70, 1.0, loop.turn)
    assert rules(said) == [Rule.NO_OUTCOME]
    assert f"Flight {plan.flight} waits for ranks 1, 2 (" in said[0]
    assert "; ranks 0, 3 have reported" in said[0]
    assert "; copies hold 1 idle block of the device until flights end: call commit" in said[0]
    loop.cache.commit([Outcome(plan.flight, rank, 1) for rank in (1, 2)])
    assert loop.scheduler.stalled() == ()
    loop.finish()


@pytest.mark.law("O10")
@pytest.mark.parametrize("speaks", [True, False], ids=["speaks", "is mute"])
def test_of_a_late_flight_the_rank_that_has_not_spoken_is_told(speaks: bool) -> None:
    # Its outcome may be lost: what it reads is held until a rank says how it has ended.
    layout = by.KVLayout.llama(layers=1, kv_heads=1, head_dim=2, block_size=4)
    cache = by.KVCache(layout, device=33, host=33, deadline=3)
    loop = Loop(cache=cache)
    publish(cache, text(1, 4))
    publish(cache, text(2, 4))
    hangs, other = cache.demote(1), cache.demote(2)
    assert hangs is not None
    assert other is not None
    assert cache.dispatch() == [hangs, other]
    if speaks:
        cache.commit([Outcome(other.flight, 0, 1)])
    said = []
    for tick in range(100):
        loop.now += 1.0
        cache.commit([], now=tick)
        loop.turn()
        said.append(loop.scheduler.stalled())
    assert cache.stats()["flights_unknown"] == 2 - speaks
    assert [rules(one) for one in said[70:]] == [[Rule.NO_OUTCOME]] * 30
    assert "waits for rank 0" in said[-1][0]
    assert "commit(crane.reconcile(cache.unreported(rank)))" in said[-1][0]


def test_a_deadline_whose_ticks_are_not_told_takes_care_of_nothing() -> None:
    layout = by.KVLayout.llama(layers=1, kv_heads=1, head_dim=2, block_size=4)
    cache = by.KVCache(layout, device=33, host=33, deadline=3)
    loop = Loop(cache=cache)
    publish(cache, text(1, 8))
    hangs = cache.demote(1)
    assert cache.dispatch() == [hangs]
    later = cache.demote(2)
    assert later is not None
    cache.dispatch()
    cache.commit([Outcome(later.flight, 0, 1)])
    *_, said = looks_at(loop, 70, 1.0, loop.turn)
    assert rules(said) == [Rule.NO_OUTCOME]


def test_where_nothing_is_copied_ahead_the_missing_dispatch_is_told_without_a_plan() -> None:
    loop = Loop(cache=by.KVCache(block_size=4, device=17, host=16, ahead=4))
    publish(loop.cache, text(1, 56))
    loop.plans = loop.cache.dispatch()
    loop.land()

    def turn() -> None:
        loop.air.append(loop.scheduler.schedule())
        loop.output()

    *_, said = looks_at(loop, 70, 1.0, turn)
    assert rules(said) == [Rule.UNDISPATCHED]
    assert "nothing is copied to the host ahead of need" in said[0]
    loop.cache.dispatch()
    assert loop.scheduler.stalled() == ()


# -- silence ---------------------------------------------------------------------------------------


@pytest.mark.law("O10")
@pytest.mark.parametrize("call", FORGETFUL)
def test_nothing_is_said_before_64_steps_however_long_they_are(call: str) -> None:
    loop = Turns(call, seconds=1000.0)
    loop.run(64)
    assert loop.said == {}
    loop.run(70)
    assert loop.said
    assert min(loop.said) == 65 or call != "output"


@pytest.mark.law("O10")
@pytest.mark.parametrize("call", FORGETFUL)
def test_nothing_is_said_before_2_seconds_however_many_steps(call: str) -> None:
    loop = Turns(call, seconds=0.0)
    loop.run(200)
    loop.now = 1.99
    loop.once()
    assert loop.said == {}
    loop.now = 2.05
    loop.once()
    assert list(loop.said.values()) == [[FORGETFUL[call]]]


@pytest.mark.law("O10")
@pytest.mark.parametrize("call", ["output", "acks", "dispatch", "poll"])
def test_a_loop_that_mends_its_ways_is_told_nothing_more(call: str) -> None:
    loop = Turns(call)
    loop.run(100)
    assert loop.said
    loop.forgets.clear()
    loop.once()
    before = len(loop.said)
    loop.run(80)
    assert len(loop.said) == before
    # The time before counts for nothing.
    loop.forgets.add(call)
    loop.run(60)
    assert len(loop.said) == before


@pytest.mark.law("O10")
@pytest.mark.parametrize("seconds", [1e-6, 0.1, 30.0])
def test_a_sound_loop_is_told_nothing_whether_it_spins_or_crawls(seconds: float) -> None:
    loop = Turns(seconds=seconds, device=30)
    loop.run(300)
    assert loop.said == {}
    stats = loop.scheduler.stats() | loop.cache.stats()
    # It has had everything that a rule could take for a stall.
    assert min(stats[name] for name in ("preempted", "no_room", "outcomes", "host_hits")) > 0


@pytest.mark.law("O10")
def test_a_row_that_computes_for_long_in_few_steps_is_no_stall() -> None:
    # Two steps in flight, each of which takes a minute.
    loop = Loop(device=33)
    loop.add("one", text(1, 20), 90)
    loop.schedule()

    def turn() -> None:
        loop.schedule()
        loop.output()
        loop.land()

    assert not any(looks_at(loop, 80, 60.0, turn))
    loop.finish()


@pytest.mark.law("O10")
def test_time_decides_nothing() -> None:
    scenario = Scenario.seeded(4)
    setups = [dataclasses.replace(scenario.setup, tick_ms=ms) for ms in (0, 10_000)]
    first, second = (simulate(dataclasses.replace(scenario, setup=one)) for one in setups)
    assert (first.ticks, first.seen) == (second.ticks, second.seen)


# -- where it is said ------------------------------------------------------------------------------


def test_a_rule_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    loop = Turns("acks", seconds=0.5)
    leaked = begin(loop.cache, text(99, 4))
    loop.run(600)
    lines = [one.message for one in caplog.records if one.message.startswith("stalled")]
    # In 300 s, from second 40 or so on; all 500 answers but these are counted in the next line.
    assert 4 <= len(lines) <= 5
    assert {line.split(":")[0] for line in lines} == {"stalled, no ack"}
    assert all("more like it" in line for line in lines[1:])
    loop.cache.finish(leaked)


def test_an_explanation_has_it() -> None:
    loop = Turns("acks")
    loop.run(100)
    loop.add("waits", text(50, 20), 2)
    (said,) = loop.scheduler.stalled()
    explanation = loop.scheduler.explain("waits")
    assert explanation.lines[-1] == said
    loop.ack()
    assert said not in loop.scheduler.explain("waits").lines


def test_other_threads_may_ask_while_the_loop_runs() -> None:
    loop = Turns("reset")
    over, errors = threading.Event(), list[BaseException]()

    def ask() -> None:
        try:
            while not over.is_set():
                loop.scheduler.stalled()
                loop.scheduler.stats()
        except BaseException as error:  # noqa: BLE001 - it is what the test is about
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(30):
        loop.run(4)
        loop.scheduler.fail("it is gone")
        loop.air.clear()
        loop.stops.clear()
        loop.bound.clear()
        loop.run(2)
        loop.scheduler.reset()
    over.set()
    for thread in threads:
        thread.join()
    assert errors == []
    assert loop.cache.audit() is None


# -- what it is made of ----------------------------------------------------------------------------


@pytest.mark.law("O10")
def test_a_crane_that_always_has_flights_and_is_polled_is_no_stall() -> None:
    layout = by.KVLayout.llama(layers=1, kv_heads=1, head_dim=2, block_size=4)
    copier = ScriptedCopier(ThreadCopier(workers=0), [delay(3)] * 80)
    cache = by.local(layout, device=90, host=90, ahead=0, copier=copier)
    loop = Loop(cache=cache)
    publish(cache, text(1, 340))

    def turn() -> None:
        loop.turn()
        cache.demote(cache.pending_copies().unpolled[1] + 1)
        cache.step()
        assert cache.pending_copies().unpolled[0]

    assert not any(looks_at(loop, 80, 1.0, turn))
    cache.close()


@pytest.mark.law("O10")
def test_a_scheduler_of_ones_own_asks_the_cache_for_the_numbers() -> None:
    cache = by.KVCache(block_size=4, device=17)
    publish(cache, text(1, 8))
    lease = begin(cache, text(1, 8))
    (plan,) = lease.plans
    assert cache.pending_copies() == ((1, plan.flight), None, None, (0, 0))
    cache.dispatch()
    assert cache.pending_copies() == (None, None, (plan.flight, [0], [], 0), (0, 0))
    cache.commit([plan])
    assert cache.pending_copies() == (None, None, None, (0, 0))


@pytest.mark.law("O10")
def test_an_effect_that_is_older_than_its_cause_waits_for_it() -> None:
    loop = Turns("outcomes")
    loop.run(45)
    assert loop.cache.pending_copies().unreported
    # Copies ahead wait for those in the air: this one does not.
    loop.cache.demote(4)
    loop.forgets.add("poll")
    loop.run(80)
    assert {one for said in loop.said.values() for one in said} == {Rule.NOT_POLLED}
    # The flight that lacks its outcome would have been reported before.
    assert min(loop.said) > 45 + 64


@pytest.mark.law("O10")
def test_whoever_is_asked_from_a_log_handler_answers() -> None:
    loop, said = Turns("acks"), list[tuple[str, ...]]()

    class Asks(logging.Handler):
        @override
        def emit(self, record: logging.LogRecord) -> None:
            del record
            said.append(loop.scheduler.stalled())

    logger, handler = logging.getLogger("blockyard.scheduling.stall"), Asks()
    logger.addHandler(handler)
    try:
        loop.run(100)
    finally:
        logger.removeHandler(handler)
    assert [rules(one) for one in said] == [[Rule.NO_ACK]]


@pytest.mark.parametrize("clock", [3, None, lambda: "noon", lambda: None])
def test_a_clock_must_return_seconds(clock: Any) -> None:
    with pytest.raises(by.Misuse, match=r"clock = .*: must return seconds"):
        Scheduler(by.KVCache(device=9), clock=clock)


# -- steps without an end --------------------------------------------------------------------------


@pytest.mark.law("O10")
def test_beyond_1024_unanswered_steps_none_is_scheduled_and_nothing_changes() -> None:
    loop = Loop()
    loop.add("one", text(1, 20), 4)
    for _ in range(1024):
        loop.schedule()
    loop.add("two", text(2, 20), 4)
    before = loop.cache.digest(), loop.cache.stats(), loop.scheduler.stats()
    for _ in range(2):
        with pytest.raises(
            by.Misuse,
            match=r"1,024 steps are unanswered, the oldest is step 1: call on_output once for",
        ):
            loop.scheduler.schedule()
    assert (loop.cache.digest(), loop.cache.stats(), loop.scheduler.stats()) == before
    loop.output()
    assert loop.schedule().starts[0].request == "two"
    loop.finish()
