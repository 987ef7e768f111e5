"""A scheduler that starts again meets living ranks: each yard has its own flights there."""

import pickle
import random
from dataclasses import replace
from typing import TypeVar

import pytest

import blockyard as by
from blockyard._core import Misuse, Plan
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.crane.crane import Crane
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.shared.plan import Cause, Outcome, Unreported
from blockyard.testing import Action, ScriptedCopier, delay, deliver, fail, hang
from cranes import SMALL, filled, held, pair, plan, same
from yard import publish

_Value = TypeVar("_Value")
CONFIG = by.Config(layout=SMALL, device=12, host=9)


def crane(*script: Action, host: MemoryTier | None = None) -> Crane:
    device = MemoryTier(SMALL, 12, name="device")
    copier = ScriptedCopier(ThreadCopier(workers=0), list(script))
    return Crane(
        SMALL,
        device=device,
        host=host or MemoryTier(SMALL, 9),
        copier=copier,
        fingerprint=CONFIG.fingerprint,
    )


def sent(value: _Value) -> _Value:
    """As another process has it."""
    back: _Value = pickle.loads(pickle.dumps(value))
    return back


def below(cache: by.KVCache, first: int) -> by.Plan:
    """Publishes two blocks, and orders their copies down."""
    tokens = range(first, first + 2 * cache.block_size)
    publish(cache, tokens)
    plan = cache.demote(8)
    assert plan is not None
    assert [one.flight for one in cache.dispatch()] == [plan.flight]
    return plan


def shaken(hands: Crane) -> by.KVCache:
    """A yard that starts, as docs/cranes.md has it."""
    config = CONFIG.named()
    agreed = by.agree(config, [sent(hands.hello(config.yard))])
    return by.KVCache(replace(agreed, ahead=0))


def yard(number: int | None = None) -> by.KVCache:
    return by.KVCache(SMALL, device=12, host=9, ahead=0, yard=number)


def test_an_outcome_of_the_yard_before_is_not_taken_for_one_of_the_flight_of_that_number() -> None:
    hands = crane()
    old, new = yard(), yard()
    before, after = below(old, 0), below(new, 1000)
    assert before.flight == after.flight
    assert before.yard != after.yard
    hands.submit(sent(before))
    late = sent(hands.poll())
    assert late == [Outcome(before.flight, 0, 2, None, before.yard)]
    assert new.commit(late) == 0
    assert new.stats()["outcomes_ignored"] == 1
    assert new.stats()["flights"] == 1, "it is in flight still"
    hands.submit(sent(after))
    assert new.commit(sent(hands.poll())) == 1
    assert new.audit() is None
    with pytest.raises(by.ForeignLease):
        new.commit(before)


def test_an_outcome_of_another_yard_contradicts_no_plan_of_this_one() -> None:
    cache = yard()
    plan = below(cache, 0)
    with pytest.raises(Misuse, match="reports 99 good"):
        cache.commit([Outcome(plan.flight, 0, 99, None, plan.yard)])
    assert cache.commit([Outcome(plan.flight, 0, 99, None, plan.yard ^ 1)]) == 0
    assert cache.stats()["outcomes_ignored"] == 1
    with pytest.raises(Misuse, match="yard and group must be integers"):
        cache.commit([Outcome(plan.flight, 0, 2, None, "7")])  # type: ignore[arg-type]
    assert cache.commit([Outcome(plan.flight, 0, 2, None, plan.yard)]) == 1


@pytest.mark.parametrize("how", ["hello with its number", "hello", "a plan"])
def test_a_crane_that_meets_another_yard_ends_what_it_has_of_the_one_before(how: str) -> None:
    host = MemoryTier(SMALL, 9)
    hands = crane(hang(), delay(1), host=host)
    old, new = 5, 6
    # Of a yard that has said no number, the next one may say none either.
    hands.hello(None if how == "a plan" else old)
    hands.submit([plan(1, "down", (1,), (1,), old), plan(2, "down", (2,), (2,), old)])
    assert hands.poll() == []
    if how == "a plan":
        hands.submit(plan(1, "down", (3,), (3,), new))
    else:
        hands.hello(new if "number" in how else None)
    dead = [Outcome(1 << 32 | n, 0, 0, Cause.DEAD, old) for n in (1, 2)]
    assert hands.poll()[:2] == dead
    # What the one before has sent comes late: it is not carried out.
    before = held(host)
    hands.submit(plan(3, "down", (4,), (4,), old))
    assert Outcome(1 << 32 | 3, 0, 0, Cause.DEAD, old) in hands.poll()
    assert same(host, before)
    assert hands.stats()["crane_failed"] == 3
    hands.submit(plan(9, "down", (5,), (5,), new))
    assert Outcome(1 << 32 | 9, 0, 1, None, new) in hands.poll()
    with pytest.raises(Misuse, match=f"yard = {old}: another yard has taken over since"):
        hands.hello(old)
    hands.close()


def test_a_late_plan_of_a_dead_yard_is_dead_for_a_process_that_has_not_met_it() -> None:
    host = MemoryTier(SMALL, 9)
    hands = crane(host=host)
    hands.hello(6)
    before = held(host)
    hands.submit(plan(1, "down", (1,), (1,), 5))
    assert hands.poll() == [Outcome(1 << 32 | 1, 0, 0, Cause.DEAD, 5)]
    assert same(host, before)
    hands.submit(plan(1, "down", (2,), (2,), 6))
    assert hands.poll() == [Outcome(1 << 32 | 1, 0, 1, None, 6)]
    assert hands.hello(6).yard == 6
    # Who says no number is told by its first plan.
    hands.hello()
    hands.submit(plan(1, "down", (3,), (3,), 7))
    assert hands.poll() == [Outcome(1 << 32 | 1, 0, 1, None, 7)]
    hands.close()


def test_the_same_yard_may_shake_hands_again_and_nothing_ends() -> None:
    hands = crane(delay(1))
    hands.hello(5)
    hands.submit(plan(1, "down", (1,), (1,), 5))
    assert hands.hello(5).yard == 5
    assert hands.poll() + hands.poll() == [Outcome(1 << 32 | 1, 0, 1, None, 5)]
    hands.close()


def test_plans_of_two_yards_in_one_call_are_refused_and_none_is_taken() -> None:
    hands = crane()
    with pytest.raises(Misuse, match=r"plans of yards \[5, 6\] in one call"):
        hands.submit([plan(1, "down", (1,), (1,), 5), plan(1, "down", (2,), (2,), 6)])
    assert hands.in_flight == 0
    hands.close()


def test_a_refused_plan_of_another_yard_ends_nothing() -> None:
    hands = crane(delay(1))
    hands.submit(plan(1, "down", (1,), (1,), 5))
    with pytest.raises(Misuse, match="device slot 12"):
        hands.submit(plan(1, "down", (12,), (1,), 6))
    assert hands.poll() + hands.poll() == [Outcome(1 << 32 | 1, 0, 1, None, 5)]
    hands.close()


def test_the_handshake_gives_the_yard_its_number_and_replicas_the_same() -> None:
    config = CONFIG.named()
    assert config.yard != CONFIG.named().yard
    assert config.fingerprint == CONFIG.fingerprint
    said = [sent(crane().hello(config.yard))]
    one = by.KVCache(by.agree(config, said))
    replica = by.KVCache(by.agree(CONFIG, said))
    assert one.config.yard == replica.config.yard == config.yard
    other = by.KVCache(by.agree(CONFIG, [crane().hello()]))
    assert one.digest() == replica.digest() != other.digest()
    plans = [below(cache, 0) for cache in (one, replica)]
    assert plans[0] == plans[1]
    assert one.digest() == replica.digest()


def test_a_handshake_with_another_yard_or_none_is_refused() -> None:
    config = CONFIG.named()
    for told in (None, 5):
        with pytest.raises(Misuse, match=f"rank 0 shook hands with yard {told or 0}"):
            by.agree(config, [crane().hello(told)])
    for bad in (0, -1, 2**47, "5", True):
        with pytest.raises(Misuse, match="yard = "):
            crane().hello(bad)  # type: ignore[arg-type]
        with pytest.raises(Misuse, match="yard = "):
            by.Config(device=8, yard=bad)  # type: ignore[arg-type]


def test_a_plan_and_an_outcome_grow_by_8_bytes_at_most() -> None:
    named = below(yard(2**47 - 1), 0)
    assert len(named.to_bytes()) == 24 + 8 * len(named)
    assert len(pickle.dumps(named)) <= 72 + 8 * len(named)
    outcome = Outcome(named.flight, 0, 2, None, named.yard)
    # A number up to 255 takes 2.
    assert len(pickle.dumps(outcome)) - (len(pickle.dumps(outcome._replace(yard=1))) - 2) <= 8
    assert sent(outcome) == outcome


def test_an_outcome_that_names_no_yard_does_not_leave_its_process() -> None:
    with pytest.raises(Misuse, match="names no yard; to send it"):
        pickle.dumps([Outcome(1, 0, 2)])


def test_plans_of_an_earlier_version_are_refused() -> None:
    whole = plan(1, "down", (1,), (1,), 5).to_bytes()
    for magic in (b"Y1", b"Y2"):
        old = magic + whole[2:16] + whole[24:]
        with pytest.raises(Misuse, match="not a plan of this version"):
            Plan.from_bytes(old)


def test_of_a_flight_whose_outcome_was_lost_the_crane_tells_it_again() -> None:
    hands = crane(deliver(), fail(1), delay(9))
    cache = shaken(hands)
    plans = [below(cache, first) for first in (0, 1000)]
    hands.submit(sent(plans))
    assert len(hands.poll()) == 2, "and nobody hears of it"
    moving = below(cache, 2000)
    hands.submit(sent(moving))
    asked = sent(cache.unreported(0))
    assert asked.flights == [one.flight for one in (*plans, moving)]
    said = sent(hands.reconcile(asked))
    assert [(one.good, one.cause) for one in said] == [(2, None), (1, Cause.FAILED)]
    assert cache.commit(said) == 2
    assert cache.commit(hands.reconcile(asked)) == 0, "what comes twice changes nothing"
    assert cache.unreported(0).flights == [moving.flight]
    assert cache.audit() is None
    with pytest.raises(Misuse, match="rank = 1"):
        cache.unreported(1)
    with pytest.raises(Misuse, match="asked = "):
        hands.reconcile([1])  # type: ignore[arg-type]
    hands.close()


def test_a_plan_that_never_came_is_dead_and_not_carried_out_when_it_comes_late() -> None:
    hands = crane()
    cache = shaken(hands)
    lost = below(cache, 0)
    dead = Outcome(lost.flight, 0, 0, Cause.DEAD, lost.yard)
    assert hands.reconcile(cache.unreported(0)) == [dead]
    assert cache.commit([dead]) == 1
    hands.submit(sent(lost))
    assert hands.poll() == [dead]
    assert hands.stats()["crane_failed"] == 1
    assert hands.stats()["crane_flights"] == 0
    hands.close()


def test_of_a_lost_device_reconcile_says_no_end_before_the_reset() -> None:
    hands = crane()
    cache = shaken(hands)
    plan_ = below(cache, 0)
    hands.submit(plan_)
    (outcome,) = hands.poll()
    hands.traffic._past[plan_.flight] = lost = outcome._replace(good=0, cause=Cause.LOST)
    assert hands.reconcile(cache.unreported(0)) == [lost]
    hands.reset()
    (said,) = hands.reconcile(cache.unreported(0))
    assert said.cause is Cause.DEAD
    hands.close()


def test_what_another_yard_asks_for_is_none_of_the_flights_of_those_numbers() -> None:
    hands = crane(delay(9))
    old = shaken(hands)
    before = below(old, 0)
    hands.submit(before)
    new = shaken(hands)
    after = below(new, 0)
    dead = Outcome(before.flight, 0, 0, Cause.DEAD, before.yard)
    assert hands.poll() == [dead]
    assert hands.reconcile(old.unreported(0)) == [dead]
    hands.submit(after)
    assert hands.poll() == [Outcome(after.flight, 0, 2, None, after.yard)]
    hands.close()


@pytest.mark.parametrize("seed", range(60))
def test_with_one_outcome_in_twenty_lost_nothing_stands_still(seed: int) -> None:
    draw = random.Random(seed)
    hands = crane()
    config = CONFIG.named()
    said = by.agree(config, [hands.hello(config.yard)])
    cache = by.KVCache(replace(said, ahead=0, deadline=4))
    size = cache.block_size
    for turn in range(40):
        publish(cache, range(100 * turn, 100 * turn + 3 * size))
        cache.demote(3)
        outcomes = [one for one in hands.poll() if draw.random() >= 0.05]
        if turn % 4 == 3:
            outcomes += hands.reconcile(cache.unreported(0))
        cache.commit(outcomes, now=turn)
        hands.submit(cache.dispatch())
    cache.commit(hands.poll())
    cache.commit(hands.reconcile(cache.unreported(0)))
    assert cache.unreported(0).flights == []
    assert cache.audit() is None
    assert cache.room().evictable + cache.room().free == 11
    hands.close()


@pytest.mark.parametrize("when", ["waits to be told", "was told", "was lost", "was reset"])
def test_a_plan_that_comes_again_when_it_has_ended_is_not_carried_out_twice(when: str) -> None:
    host = MemoryTier(SMALL, 9)
    hands = crane(hang() if when == "was reset" else deliver(), host=host)
    cache = shaken(hands)
    twice, other = below(cache, 0), below(cache, 1000)
    hands.submit(sent(twice))
    if when == "was reset":
        hands.reset()
    if when != "waits to be told":
        hands.poll()
    if when == "was lost":
        hands.traffic._past[twice.flight] = Outcome(twice.flight, 0, 0, Cause.LOST, twice.yard)
    # Its slots are others' by now.
    filled(host, 1)
    before = held(host)
    with pytest.raises(Misuse, match=rf"flight = {twice.flight}: .* already.*; submit it once"):
        hands.submit([sent(other), sent(twice)])
    assert same(host, before)
    hands.submit(other)
    assert hands.stats()["crane_flights"] == 2
    hands.close()


def test_a_closed_crane_meets_no_other_yard_and_says_that_nothing_of_it_writes() -> None:
    hands = crane(hang())
    hands.hello(5)
    hands.submit(plan(1, "down", (1,), (1,), 5))
    hands.close()
    with pytest.raises(Misuse, match="closed, and accepts no other yard"):
        hands.hello(6)
    assert hands.hello(5).yard == 5
    dead = Outcome(1 << 32 | 1, 0, 0, Cause.DEAD, 6)
    assert hands.reconcile(Unreported(6, [dead.flight])) == [dead]
    (outcome,) = hands.poll()
    assert (outcome.yard, outcome.good) == (5, 0)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ((5, [1]), r"asked = \(5, \[1\]\): give what KVCache.unreported"),
        (Unreported("5", [1]), r"asked.yard = '5': must be an integer"),  # type: ignore[arg-type]
        (Unreported(-1, [1]), "asked.yard = -1"),
        (Unreported(2**47, [1]), f"asked.yard = {2**47}"),
        (Unreported(5, None), "asked.flights = None: must be the numbers"),  # type: ignore[arg-type]
        (Unreported(5, [1], 2), "asked.group = 2, and this crane has group 0: ask the crane"),
        (Unreported(5, ["1"]), r"asked.flights = \['1'\]: must be the numbers"),  # type: ignore[list-item]
    ],
)
def test_a_question_that_no_yard_asks_is_refused_and_the_crane_has_met_nobody(
    asked: Unreported, says: str
) -> None:
    hands = crane(delay(1))
    with pytest.raises(Misuse, match=says):
        hands.reconcile(asked)
    hands.submit(plan(1, "down", (1,), (1,), 7))
    assert hands.poll() + hands.poll() == [Outcome(1 << 32 | 1, 0, 1, None, 7)]
    hands.close()


@pytest.mark.law("G12")
def test_a_crane_carries_out_the_plans_of_its_own_group_and_reports_its_number() -> None:
    device, host = pair(SMALL)
    hands = Crane(SMALL, device=device, host=host, group=3)
    assert hands.hello(5).group == 3
    own, other = (
        by.KVCache(engine=12, host=9, block_size=4, linked=False, group=group, yard=5, ahead=0)
        for group in (3, 4)
    )
    for cache in (own, other):
        cache.offload(cache.keys(range(8)), [1, 2])
    (mine,), (theirs,) = own.dispatch(), other.dispatch()
    for plans in ([theirs], [mine, theirs]):
        with pytest.raises(Misuse, match=r"group = 4, and this crane has group 3: give the plan"):
            hands.submit(plans)
    with pytest.raises(Misuse, match=r"asked\.group = 4"):
        hands.reconcile(other.unreported(0))
    assert (hands.in_flight, hands.poll()) == (0, [])
    hands.submit(mine)
    outcomes: list[Outcome] = []
    while hands.in_flight:
        outcomes += hands.poll()
    assert outcomes == [Outcome(mine.flight, 0, 2, None, 5, 3)]
    with pytest.raises(Misuse, match="of group 3, and this cache has group 4"):
        other.commit(sent(outcomes))
    assert own.commit(sent(outcomes)) == 1
    assert hands.reconcile(own.unreported(0)) == []
    assert hands.reconcile(Unreported(5, [99 << 32], 3)) == [
        Outcome(99 << 32, 0, 0, Cause.DEAD, 5, 3)
    ]
    hands.close()
    for group in (-1, 256, "1"):
        with pytest.raises(Misuse, match="group = "):
            Crane(SMALL, device=device, host=host, group=group)  # type: ignore[arg-type]
