"""The digest: equal after the same calls, and different where an answer could be."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import blockyard as by
from yard import begin, profile, publish, publish_below, table, text

RANKS = 2


def make(**keywords: Any) -> by.KVCache:
    given = {"block_size": 4, "device": 60, "host": 60, "ahead": 0, "ranks": RANKS, "deadline": 5}
    return by.KVCache(**given | keywords)


def in_flight(**keywords: Any) -> tuple[by.KVCache, list[by.Lease], list[by.Plan]]:
    """A cache with flights up and down: of prefixes, of parked blocks, and of a partial block."""
    cache = make(**keywords)
    for name in (1, 2, 3):
        publish_below(cache, text(name, 4 * name + 4))
    publish(cache, text(5, 40))
    publish(cache, text(6, 8))
    cache.dispatch()
    leases = [begin(cache, [*text(name, 4 * name + 4), 0]) for name in (3, 1, 2)]
    leases.append(begin(cache, text(6, 8)))  # a full hit: its last block is copied
    assert cache.demote(2) is not None
    assert cache.demote(4) is not None  # two of them are in flight
    plans = cache.dispatch()
    assert len(plans) == 6
    assert {plan.destination_tier for plan in plans} == {"device", "host"}
    return cache, leases, plans


CAUSES = st.sampled_from([by.Cause.FAILED, by.Cause.CORRUPT, by.Cause.DEAD, by.Cause.LOST])


@st.composite
def reports(draw: st.DrawFn) -> tuple[list[tuple[int, int, float, by.Cause | None]], list[int]]:
    """Outcomes of some flights by some ranks, twice perhaps, and another order of them."""
    rows = []
    for flight in range(6):
        for rank in range(RANKS):
            for _ in range(draw(st.sampled_from([1, 1, 1, 0, 2]))):
                share = draw(st.sampled_from([1.0, 1.0, 0.5, 0.0]))
                cause = draw(CAUSES) if share < 1 else None
                rows.append((flight, rank, share, cause))
    return rows, draw(st.permutations(range(len(rows))))


def answers(cache: by.KVCache, leases: list[by.Lease]) -> list[Any]:
    """What is told of the leases, and then where blocks are put that come new."""
    said: list[Any] = [(one.state, one.cached, one.blocks, table(cache, one)) for one in leases]
    for lease in leases:
        cache.finish(lease)
    room = cache.room()
    said.append(room)
    said += [table(cache, begin(cache, text(20 + at, 4))) for at in range(room.available)]
    said.append([plan.to_bytes()[24:] for plan in cache.dispatch()])
    return said


@pytest.mark.law("INV-17")
@given(reports())
@profile(60)
def test_the_order_of_outcomes_within_a_commit_decides_nothing(
    drawn: tuple[list[tuple[int, int, float, by.Cause | None]], list[int]],
) -> None:
    rows, order = drawn
    seen = []
    for permuted in (range(len(rows)), order):
        cache, leases, plans = in_flight()
        outcomes = [
            by.Outcome(plans[flight].flight, rank, int(share * len(plans[flight])), cause)
            for flight, rank, share, cause in (rows[at] for at in permuted)
        ]
        cache.commit(outcomes, now=1)
        assert cache.audit() is None
        digest = cache.digest()
        seen.append((digest, answers(cache, leases)))
        assert cache.audit() is None
    assert seen[0] == seen[1]


@given(st.permutations(range(6)), st.lists(st.integers(0, 4), min_size=6, max_size=6))
@profile(40)
@pytest.mark.parametrize("verb", ["commit", "abort", "mark_unknown"])
def test_nor_does_that_of_flights_that_are_ended_by_hand(
    verb: str, order: list[int], good: list[int]
) -> None:
    seen = []
    for permuted in (range(6), order):
        cache, leases, plans = in_flight()
        some = [plans[at] for at in permuted]
        if verb == "commit":
            counts = [min(good[at], len(plans[at])) for at in permuted]
            assert cache.commit([plan.flight for plan in some], counts) == 6
        elif verb == "abort":
            assert cache.abort(some) == 6
        else:
            assert cache.mark_unknown(some) == 6
        assert cache.audit() is None
        seen.append((cache.digest(), answers(cache, leases)))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("rows", [[(0, 4), (0, 2)], [(0, 0), (0, 4)]])
def test_where_a_rank_contradicts_itself_in_one_commit_its_worst_word_counts(
    rows: list[tuple[int, int]],
) -> None:
    for order in (rows, rows[::-1]):
        cache, leases, plans = in_flight()
        outcomes = [
            by.Outcome(plans[0].flight, rank, good, None if good == 4 else by.Cause.FAILED)
            for rank, good in [*order, (1, 4)]
        ]
        cache.commit(outcomes)
        assert leases[0].cached == 4 * min(good for _, good in rows)
        assert cache.stats()["outcomes_ignored"] == 1


@pytest.mark.parametrize("order", [1, -1])
def test_where_a_rank_says_that_an_end_is_not_known_its_other_word_is_not_believed(
    order: int,
) -> None:
    cache, leases, plans = in_flight()
    said = [by.Outcome(plans[0].flight, 0, 0, by.Cause.LOST), by.Outcome(plans[0].flight, 0, 4)]
    cache.commit([*said[::order], by.Outcome(plans[0].flight, 1, 4)])
    assert (leases[0].cached, cache.stats()["outcomes_ignored"]) == (0, 1)


def test_yards_of_two_numbers_take_other_outcomes_and_have_other_digests() -> None:
    one, two = (by.KVCache(device=8, yard=number) for number in (5, 6))
    assert one.digest() != two.digest()
    assert one.digest() == by.KVCache(device=8, yard=5).digest()


# Each leaves another state than all others do, though the core of some knows no difference.
CHANGES: dict[str, Callable[[by.KVCache, list[int]], object]] = {
    "nothing": lambda _cache, _plans: None,
    "one rank": lambda cache, plans: cache.commit([by.Outcome(plans[0], 0, 4)]),
    "the other rank": lambda cache, plans: cache.commit([by.Outcome(plans[0], 1, 4)]),
    "of another flight": lambda cache, plans: cache.commit([by.Outcome(plans[1], 0, 2)]),
    "two are good": lambda cache, plans: cache.commit(
        [by.Outcome(plans[0], 0, 2, by.Cause.FAILED)]
    ),
    "the third is corrupt": lambda cache, plans: cache.commit(
        [by.Outcome(plans[0], 0, 2, by.Cause.CORRUPT)]
    ),
    "three are good": lambda cache, plans: cache.commit(
        [by.Outcome(plans[0], 0, 3, by.Cause.FAILED)]
    ),
    "lost": lambda cache, plans: cache.commit([by.Outcome(plans[0], 0, 0, by.Cause.LOST)]),
    "a later tick": lambda cache, _plans: cache.commit([], now=1),
    "a tick more": lambda cache, _plans: cache.commit([], now=2),
    "late": lambda cache, _plans: cache.commit([], now=5),
    "a step is done": lambda cache, _plans: cache.commit([], done=5),
    "a flight more": lambda cache, _plans: (cache.demote(8), cache.dispatch()),
    "one that was not dispatched": lambda cache, _plans: cache.demote(8),
    "rank 0 was reset": lambda cache, _plans: cache.reset(0, memory="kept"),
    "rank 1 was reset": lambda cache, _plans: cache.reset(1, memory="kept"),
    "by hand": lambda cache, plans: cache.commit(plans[0], 4),
}


@pytest.mark.law("INV-17")
def test_whatever_can_change_an_answer_changes_it_and_no_two_alike() -> None:
    seen: dict[int, str] = {}
    for name, change in CHANGES.items():
        cache, _leases, plans = in_flight()
        change(cache, [plan.flight for plan in plans])
        digest = cache.digest()
        assert digest not in seen, f"{name}, as after {seen[digest]}"
        seen[digest] = name
        twin, _leases, plans = in_flight()
        change(twin, [plan.flight for plan in plans])
        assert twin.digest() == digest, name


def test_when_a_flight_began_is_in_it_where_that_decides_when_it_is_late() -> None:
    digests = []
    for dispatched in (1, 2):
        cache = make()
        publish_below(cache, text(1, 16))
        cache.dispatch()
        begin(cache, [*text(1, 16), 0])
        cache.commit([], now=dispatched)
        cache.dispatch()
        cache.commit([], now=3)
        digests.append(cache.digest())
    assert digests[0] != digests[1]


@pytest.mark.parametrize(
    "keywords",
    [{"deadline": 6}, {"deadline": None}, {"ahead": 3}, {"ranks": 3}, {"write": "through"}],
    ids=str,
)
def test_what_another_configuration_decides_is_in_it(keywords: dict[str, Any]) -> None:
    assert make().digest() != make(**keywords).digest()
    assert make(**keywords).digest() == make(**keywords).digest()


def test_what_an_engine_has_not_been_told_is_in_it() -> None:
    def cache() -> by.KVCache:
        return by.KVCache(block_size=4, engine=16, host=16)

    one, two = cache(), cache()
    for yard in (one, two):
        keys = yard.keys(text(1, 8))
        yard.offload(keys, [1, 2])
        plans = yard.dispatch()
        yard.commit([by.Outcome(plan.flight, 0, len(plan)) for plan in plans])
    assert one.digest() == two.digest()
    assert one.ended()
    assert one.digest() != two.digest()
    assert two.ended()
    assert one.digest() == two.digest()


def test_what_decides_nothing_is_not_in_it() -> None:
    cache, _leases, plans = in_flight()
    before = cache.digest()
    cache.commit([by.Outcome(plans[0].flight + 1, 0, 1), by.Outcome(plans[0].flight, 7, 0)])
    cache.commit([by.Outcome(plans[0].flight, 0, 0, yard=77)])
    with pytest.raises(by.Misuse):
        cache.commit([by.Outcome(plans[0].flight, 0, 99)], now=4)
    cache.measure()
    cache.pending_copies()
    cache.unreported(0)
    assert cache.digest() == before
    assert cache.stats()["outcomes_ignored"] == 3


@pytest.mark.parametrize("calls", [1, 2])
def test_outcomes_over_several_commits_leave_the_digest_of_one(calls: int) -> None:
    """What a rank has said is in it, and not when: until a flight has ended."""
    cache, _leases, plans = in_flight()
    outcomes = [by.Outcome(plan.flight, 0, len(plan)) for plan in plans]
    cuts = [0, *range(1, calls), len(outcomes)]
    for start, stop in pairwise(cuts):
        cache.commit(outcomes[start:stop])
    digest = cache.digest()
    other, _leases, plans = in_flight()
    other.commit([by.Outcome(plan.flight, 0, len(plan)) for plan in plans][::-1])
    assert digest == other.digest()
