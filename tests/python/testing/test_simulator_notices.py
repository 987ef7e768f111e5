"""The simulator notices what it is there to notice: mistakes in a verb, and tables that overlap."""

import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

import blockyard as by
import seeds
from blockyard import testing
from blockyard.scheduling.engine import Ack, Chunk, Output, Start, Step, Stop
from blockyard.scheduling.lifecycle import Lifecycle
from blockyard.scheduling.preemption import Preemptor
from blockyard.scheduling.scheduler import Scheduler
from blockyard.scheduling.seats import Seat
from blockyard.scheduling.stall import Fact, Stalls
from blockyard.testing import Broken, Event, Scenario, Setup, simulate
from blockyard.testing.checked_cache import CheckedCache
from blockyard.testing.simulated_replicas import Replicas
from blockyard.yard.copy_ahead import CopyAhead
from blockyard.yard.flights import Flights


def test_a_token_that_is_lost_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokens of stopping requests are dropped."""

    def wrong(self: Scheduler, right: Any, output: Output) -> Any:
        seats = [self._shared.seats.at(int(number)) for number in output.seats]
        if output.counts is not None:
            return right(self, output)
        keep = np.array([seat is None or seat.stop is None for seat in seats], np.bool_)
        ended = None if output.ended is None else output.ended[keep]
        kept = output.seats[keep], output.tokens[keep]
        return right(self, Output(output.step, *kept, output.counts, ended, output.acks))

    assert "INV-8" in seeds.broken(monkeypatch, "on_output", wrong)


def test_a_seat_that_is_free_before_its_ack_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: Lifecycle, right: Any, seat: Seat) -> None:
        right(self, seat)
        self._acked(seat)

    assert seeds.broken(monkeypatch, "stop", wrong, Lifecycle) != "nothing"


@pytest.mark.law("O10")
def test_a_rule_that_speaks_of_a_sound_loop_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step is always unanswered, though never the same for long."""

    def wrong(self: Stalls, right: Any, first: int) -> Fact | None:
        fact = right(self, first)
        return None if fact is None else fact._replace(identity="some step")

    noticed = seeds.broken(monkeypatch, "_unanswered", wrong, Stalls)
    assert re.search(r"O10: \d steps? (is|are) unanswered", noticed)


@pytest.mark.law("O10")
@pytest.mark.parametrize(("seed", "told"), [(146, "Flight"), (893, "Seat 0 waits")])
def test_what_a_fault_has_done_is_said_and_only_that_is_allowed(
    monkeypatch: pytest.MonkeyPatch, seed: int, told: str
) -> None:
    """A copy hangs, and an ack is lost, for longer than 64 steps and 2 seconds."""
    simulate(Scenario.seeded(seed))

    def wrong(self: Replicas, right: Any, *_: Any, **__: Any) -> None:
        right(self, (), hung=False)

    assert f"O10: {told}" in seeds.broken(monkeypatch, "check_stalls", wrong, Replicas, [seed])


def test_an_ack_of_another_epoch_that_is_taken_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: Lifecycle, right: Any, acks: Iterable[Ack]) -> None:
        for ack in acks:
            seat = self._seats.at(ack.seat)
            right(self, [ack if seat is None or seat.stop is None else Ack(*seat.stop)])

    assert seeds.broken(monkeypatch, "on_acks", wrong, Lifecycle) != "nothing"


def test_a_second_result_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: Scheduler, right: Any) -> Any:
        return [result for result in right(self) for _ in range(2)]

    assert "ended twice" in seeds.broken(monkeypatch, "results", wrong)


def test_a_request_that_is_forgotten_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acks that came late are ignored."""

    def wrong(self: Scheduler, right: Any, active: Iterable[int], step: int) -> None:
        del self, right, active, step

    assert "stuck" in seeds.broken(monkeypatch, "reconcile", wrong)


def test_replicas_that_differ_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second scheduler that is made gets no acks."""
    made: list[Lifecycle] = []

    def wrong(self: Lifecycle, right: Any, acks: Iterable[Ack]) -> None:
        if self not in made:
            made.append(self)
        right(self, [] if made.index(self) % 2 else acks)

    assert "replicas differ" in seeds.broken(monkeypatch, "on_acks", wrong, Lifecycle)


def test_old_weights_that_are_used_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: Scheduler, right: Any) -> None:
        del self, right

    assert "holds something else" in seeds.broken(monkeypatch, "update_weights", wrong)


def dropped(self: by.KVCache, right: Any, batch: Any, **named: Any) -> None:
    """Blocks go back at once, whatever step in flight may write them."""
    right(self, batch, **named | {"after": None})


@pytest.mark.parametrize("cranes", ["here", "elsewhere"])
def test_blocks_that_go_back_before_the_fence_are_noticed(
    monkeypatch: pytest.MonkeyPatch, cranes: str
) -> None:
    setups = {seed: Scenario.seeded(seed).setup for seed in range(200)}
    # With a disk more is computed, and the engine is the first to notice.
    tried = [seed for seed, one in setups.items() if one.cranes == cranes and not one.disk]
    found = seeds.broken(monkeypatch, "finish", dropped, by.KVCache, tried)
    assert "INV-6: a begin is given slots" in found


def test_the_engine_too_notices_a_slot_that_is_given_out_before_the_fence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No check is made of the slots of a begin."""
    monkeypatch.delattr(CheckedCache, "begin")
    found = seeds.broken(monkeypatch, "finish", dropped, by.KVCache, range(2, 60))
    assert "a step in flight writes it for another" in found


def step(number: int, *leases: by.Lease) -> Step:
    """A step in which each lease computes its first three tokens."""
    firsts = np.zeros(len(leases), np.int64)
    chunks = tuple(Chunk(seat, 0, 3) for seat in range(len(leases)))
    rows = np.zeros(0, np.int32), list(leases), firsts, firsts + 3
    return Step(number, (), (), chunks, *rows)


def test_a_slot_that_is_in_two_tables_while_it_is_written_is_noticed() -> None:
    engine = testing.SimulatedEngine([], block_size=4, stops="acked", ending=False, eager=False)
    cache = by.KVCache(block_size=4, device=8)
    with cache.begin([1, 2, 3]) as one, cache.begin([4, 5, 6]) as two:
        engine.tables(np.full((2, 1), 3, np.int32))
        with pytest.raises(Broken, match="two rows of step 1"):
            engine.submit(step(1, one, two))
        engine.submit(step(1, one))
        assert engine.writing == {3: one.id}
        engine.submit(step(2, one))
        with pytest.raises(Broken, match="slot 3 is in a table of step 3"):
            engine.submit(step(3, two))
        engine.reset()
        engine.submit(step(4, two))


@pytest.mark.parametrize(("source", "destination"), [(1, 9), (9, 1)])
def test_a_copy_from_or_to_a_slot_that_a_step_in_flight_writes_is_noticed(
    monkeypatch: pytest.MonkeyPatch, source: int, destination: int
) -> None:
    """The first block of the first request is slot 1."""
    other = by.KVCache(block_size=4, device=12)
    with other.begin(range(4)) as lease:
        other.seal(lease, 4)
        with other.begin(range(4)) as twin:
            data = bytearray(twin.plans[0].to_bytes())
    data[24:] = np.array([source, destination], "<u4").tobytes()
    plan = by.Plan.from_bytes(bytes(data))
    right = by.KVCache.dispatch
    monkeypatch.setattr(
        by.KVCache, "dispatch", lambda cache: [*right(cache), plan] if len(cache.holders()) else []
    )
    scenario = Scenario(Setup(cranes="elsewhere"), (Event(1, "add", ("a", 0, 4, 0, 4, 0)),))
    assert ("INV-7" if source == 1 else "INV-6: a copy") in seeds.said(scenario)


def test_a_refused_begin_that_changes_something_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: by.KVCache, right: Any, *what: Any, **named: Any) -> Any:
        try:
            return right(self, *what, **named)
        except by.NoRoom:
            self.clear()
            raise

    assert "T5" in seeds.broken(monkeypatch, "begin", wrong, by.KVCache)


@pytest.mark.parametrize("part", ["salt", "lora"])
def test_tenants_that_share_kv_are_noticed(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    def wrong(self: by.KVCache, right: Any, tokens: Any, **named: Any) -> Any:
        return right(self, tokens, **named | {part: None})

    assert "holds something else" in seeds.broken(monkeypatch, "keys", wrong, by.KVCache)


def test_a_tenant_computes_what_another_has_and_finds_what_is_its_own() -> None:
    setup = Setup(device=32, max_num_seqs=1, ends=False)
    two = [Event(1, "add", ("a", 0, 8, 0, 2, 0)), Event(20, "add", ("b", 0, 8, 0, 2, 0, "x", ""))]
    assert simulate(Scenario(setup, tuple(two))).seen["stats device_hits"] == 0
    two[0] = Event(1, "add", ("a", 0, 8, 0, 2, 0, "x", ""))
    assert simulate(Scenario(setup, tuple(two))).seen["stats device_hits"] > 0
    two[0] = Event(1, "add", ("a", 0, 8, 0, 2, 0, "", "x"))
    assert simulate(Scenario(setup, tuple(two))).seen["stats device_hits"] == 0


def test_copies_ahead_that_never_stop_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The private copy of a full hit, at every dispatch."""

    def wrong(_self: CopyAhead, cache: by.KVCache) -> None:
        if not cache.holders():
            cache.finish(cache.begin(range(1000, 1008)))

    scenario = Scenario(Setup(cranes="elsewhere"), (Event(1, "add", ("a", 0, 8, 0, 2, 0)),))
    assert simulate(scenario).results
    monkeypatch.setattr(CopyAhead, "decide", wrong)
    assert "never does" in seeds.said(scenario)


@pytest.mark.parametrize(
    ("verb", "wrong"),
    [
        ("overdue", lambda _self, _right, _now: []),
        ("take", lambda self, right, outcomes: right(self, list(outcomes)[:1])),
    ],
)
def test_outcomes_that_are_counted_wrongly_are_noticed(
    monkeypatch: pytest.MonkeyPatch, verb: str, wrong: Callable[..., Any]
) -> None:
    # Where a flight that never ends is past no deadline, the drain may notice it first; where there
    # is another rank, whatever waits for it.
    setups = {seed: Scenario.seeded(seed).setup for seed in range(200)}
    plain = (seed for seed, setup in setups.items() if not setup.disk and not setup.unread)
    tried = [seed for seed in plain if setups[seed].ranks == 1]
    found = seeds.broken(monkeypatch, verb, wrong, Flights, tried, likely=15)
    assert "the yard has counted copies as" in found


def test_an_ack_that_is_not_counted_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: Lifecycle, right: Any, acks: Iterable[Ack]) -> None:
        before = self._counters.acks_ignored
        right(self, acks)
        self._counters.acks_ignored = before

    assert "T30" in seeds.broken(monkeypatch, "on_acks", wrong, Lifecycle)


def test_the_engine_notices_work_for_a_seat_that_is_stopped() -> None:
    """A `Step` that no scheduler should give."""
    engine = testing.SimulatedEngine([], block_size=4, stops="acked", ending=False, eager=False)
    cache = by.KVCache(device=8)
    with cache.begin([1, 2, 3]) as lease:
        start = Start("a", 0, 1, np.arange(3, dtype=np.uint32), 0)
        rows = np.zeros(0, np.int32), [lease], np.zeros(1, np.int64), np.array([3])
        engine.tables(cache.block_tables([lease]))
        engine.submit(Step(1, (Stop("a", 0, 1),), (start,), (Chunk(0, 0, 3),), *rows))
        with pytest.raises(Broken, match="stops seat 0, and runs it"):
            engine.poll()


@pytest.mark.law("INV-11")
def test_a_request_lost_without_a_fault_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Preemptor, "dedup", lambda _: False)
    monkeypatch.setattr(Preemptor, "last_resort", lambda _: None)
    scenario = Scenario(
        Setup(device=8, host=6, block_size=1, headroom="none", recompute=False, ends=False),
        (Event(1, "add", ("a", 0, 3, 0, 4, 0)), Event(1, "add", ("b", 0, 3, 0, 4, 0))),
    )
    with pytest.raises(Broken, match="is lost, and nothing has failed"):
        simulate(scenario)
