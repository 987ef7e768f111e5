"""What is copied down and what is loaded: write policies, ghosts, costs, and the questions."""

from typing import Any, Literal

import pytest

from blockyard._core import Cache, Misuse, Room, stats_schema
from yard import there

Write = Literal["on-evict", "through", "second-touch"]
POLICIES: list[Write] = ["on-evict", "through", "second-touch"]


def text(name: int, blocks: int) -> list[int]:
    return [name * 1000 + at for at in range(4 * blocks)]


def small(**more: Any) -> Cache:
    """Sixteen blocks of four tokens on the device and as many on the host."""
    return Cache(**{"block_size": 4, "device": 17, "host": 16} | more)


def publish(cache: Cache, prompt: list[int]) -> None:
    with cache.begin(prompt) as lease:
        cache.commit(lease.plans)
        cache.seal(lease, len(prompt))


def squeeze(cache: Cache) -> None:
    """Evicts all that is idle."""
    room = cache.room()
    cache.finish(cache.begin(text(999, room.free + room.evictable)))


def put_below(cache: Cache, prompt: list[int]) -> None:
    """Leaves a prompt's blocks on the host alone."""
    with cache.begin(prompt) as lease:
        cache.seal(lease, len(prompt))
        plan = there(cache.demote(len(prompt), of=lease))
        cache.commit(plan)
    squeeze(cache)


def found(cache: Cache, prompt: list[int]) -> tuple[int, int]:
    probe = cache.probe(prompt)
    return probe.device, probe.host


@pytest.mark.law("4.2-15")
@pytest.mark.parametrize(
    ("write", "kept"),
    [
        ("on-evict", {"once": 3, "twice": 3, "running": 0}),
        ("through", {"once": 3, "twice": 3, "running": 3}),
        ("second-touch", {"once": 0, "twice": 3, "running": 0}),
    ],
)
def test_each_policy_copies_its_own_blocks_down(write: Write, kept: dict[str, int]) -> None:
    cache = small(write=write)
    prompts = {"once": text(1, 3), "twice": text(2, 3), "running": text(3, 3)}
    publish(cache, prompts["once"])
    publish(cache, prompts["twice"])
    publish(cache, [*prompts["twice"], 7])
    with cache.begin(prompts["running"]) as lease:
        cache.seal(lease, 12)
        while plan := cache.demote(16):
            cache.commit(plan)
    squeeze(cache)
    assert {name: found(cache, prompt)[1] for name, prompt in prompts.items()} == kept
    assert cache.audit() is None


def test_through_copies_in_the_order_of_publication_whatever_publishes() -> None:
    cache = small(write="through")
    first, second = cache.begin(text(1, 2)), cache.begin(text(2, 1))
    cache.seal(first, 4)
    cache.seal(second, 4)
    cache.seal(first, 8)
    slots = [cache.block_tables(lease)[0] for lease in (first, second)]
    plan = there(cache.demote(16))
    assert list(plan.sources) == [slots[0][0], slots[1][0], slots[0][1]]


def test_a_block_that_comes_back_after_it_was_dropped_counts_as_used_twice() -> None:
    cache = small(write="second-touch")
    assert cache.probe(text(1, 2)).evicted is False
    publish(cache, text(1, 2))
    assert cache.probe(text(1, 2)).evicted is None
    assert cache.demote(16) is None
    squeeze(cache)
    assert cache.probe(text(1, 2)).evicted is True
    publish(cache, text(1, 2))
    plan = there(cache.demote(16))
    assert len(plan) == 2


@pytest.mark.parametrize("more", [{}, {"write": "through"}, {"write": "second-touch", "ghosts": 0}])
def test_without_ghosts_it_is_not_known_what_was_dropped(more: dict[str, Any]) -> None:
    cache = small(**more)
    publish(cache, text(1, 2))
    squeeze(cache)
    assert cache.probe(text(1, 2)).evicted is None


def test_a_load_is_taken_only_where_it_takes_less_time_than_computing() -> None:
    # Three blocks at the start of a sequence: 100 + 110 + 120 to compute.
    for load, loaded, stop in ((109, 3, "whole"), (110, 0, "slow")):
        cache = small(block_costs=(load, 100, 10))
        put_below(cache, text(1, 3))
        assert cache.worth_loading(3) is (loaded == 3)
        lease = cache.begin([*text(1, 3), 7])
        assert (lease.hits, lease.stop) == ((0, loaded, 0, 0), stop)
        assert lease.cached == 4 * loaded
        assert cache.stats()["slow"] == 3 - loaded
        cache.commit(lease.plans)
        cache.finish(lease)


def test_what_is_in_flight_upward_and_what_comes_before_count() -> None:
    cache = small(block_costs=(100, 100, 10))
    put_below(cache, text(1, 3))
    # 2 * 100 against 100 + 110; with three more in flight 5 * 100 against the same.
    assert cache.worth_loading(2)
    assert not cache.worth_loading(1)
    assert cache.worth_loading(1, after=1)
    (plan,) = cache.promote(cache.keys(text(1, 3)))
    assert cache.blocks_in_flight() == (0, 3)
    assert not cache.worth_loading(2)
    assert cache.worth_loading(2, after=15)
    assert not cache.worth_loading(2, after=14)
    cache.mark_unknown(plan)
    assert cache.blocks_in_flight() == (0, 0)
    assert cache.worth_loading(2)


def test_without_speeds_every_load_is_taken_and_the_bound_of_a_begin_holds_with_them() -> None:
    assert small().worth_loading(1_000_000, after=0)
    cache = small(block_costs=(0, 1, 0))
    put_below(cache, text(1, 3))
    lease = cache.begin([*text(1, 3), 7], load=2)
    assert (lease.hits, lease.stop) == ((0, 2, 0, 0), "slow")
    assert cache.stats()["slow"] == 1


def test_room_is_one_reading_of_a_tier() -> None:
    cache = small()
    publish(cache, text(1, 2))
    lease = cache.begin(text(2, 3), reserve=8)
    room = cache.room()
    assert (room.free, room.evictable, room.promised) == (11, 2, 2)
    assert repr(room) == (
        "Room(free=11, evictable=2, promised=2, available=11, headroom=0, evicted=0)"
    )
    assert room == cache.room("device") != cache.room("host")
    assert isinstance(cache.room("host"), Room)
    cache.finish(lease)


def test_holders_are_told_the_largest_first() -> None:
    cache = small()
    lease = cache.begin(text(1, 2), reserve=4)
    other = cache.begin(text(2, 3))
    cache.seal(other, 12)
    parked = cache.park(other, 12)
    assert cache.holders() == [
        ("parked", parked.id, 3, 3, 3, (0, 0, 0)),
        ("lease", lease.id, 2, 1, 2, (0, 0, 0)),
    ]
    plan = there(cache.demote(2, of=parked))
    assert cache.blocks_in_flight() == (2, 0)
    cache.commit(plan)
    assert cache.holders() == [
        ("lease", lease.id, 2, 1, 2, (0, 0, 0)),
        ("parked", parked.id, 1, 1, 1, (2, 0, 0)),
    ]
    cache.finish(lease)
    cache.abandon(parked)
    assert cache.holders() == []


@pytest.mark.law("INV-5")
def test_to_ask_is_to_know_what_a_begin_answers() -> None:
    cache = small()
    publish(cache, text(1, 3))
    put_below(cache, text(2, 2))
    publish(cache, text(1, 3))
    before = cache.digest()
    need = cache.dry_run(text(1, 3), reserve=4)
    assert (need.need, need.fits, need.ever, need.stop) == (2, True, True, "whole")
    assert (need.device, need.loads, need.slow, need.waits) == (3, 0, 0, None)
    assert repr(need).startswith("Need(need=2, free=")
    need = cache.dry_run(cache.keys([*text(2, 2), 7]), load=1)
    assert (need.device, need.loads, need.slow, need.stop) == (0, 1, 1, "slow")
    huge = cache.dry_run(text(3, 17))
    assert (huge.fits, huge.ever, huge.need) == (False, False, 17)
    assert cache.digest() == before
    (plan,) = cache.promote(cache.keys(text(2, 2)))
    waits = cache.dry_run([*text(2, 2), 7], filling="soon")
    assert (waits.fits, waits.waits) == (False, plan.flight)
    assert cache.dry_run([*text(2, 2), 7]).fits
    assert waits != huge


def test_a_bad_prompt_is_refused_as_by_a_begin() -> None:
    cache = small()
    with pytest.raises(Misuse, match="tokens = 0"):
        cache.dry_run([])
    with pytest.raises(Misuse, match="are in the keys already"):
        cache.dry_run(cache.keys(text(1, 1)), lora="a")


@pytest.mark.law("2.3-up-unknown")
def test_a_lease_with_too_few_slots_after_a_load_of_unknown_end_is_short() -> None:
    cache = small()
    put_below(cache, text(1, 3))
    lease = cache.begin([*text(1, 3), 7])
    cache.mark_unknown(lease.plans)
    assert (lease.state, lease.cached, lease.tokens, lease.blocks) == ("incomplete", 0, 13, 0)
    assert cache.seal(lease, 0) == 0
    assert lease.state == "incomplete"
    assert cache.grow(lease, 0).size == 0
    assert (lease.state, lease.blocks) == ("ready", 4)
    cache.commit(lease.plans)
    cache.finish(lease)
    assert cache.audit() is None


def test_what_begins_leave_has_a_unit_and_a_meaning() -> None:
    assert ("slow", "blocks") in {(name, unit) for name, unit, *_ in stats_schema()[0]}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"write": "back"}, r'write = "back": did you mean .* one of .*"second-touch"'),
        ({"ghosts": -1}, "ghosts = -1"),
        ({"ghosts": "many"}, "ghosts"),
        ({"ghosts": 2**30 + 1}, "ghosts = 1073741825"),
        ({"block_costs": (1, 2)}, r"block_costs = \(1, 2\): pass three counts of nanoseconds"),
        ({"block_costs": (1, 2, -3)}, "block_costs.*-3"),
        ({"block_costs": 5}, "block_costs"),
        ({"block_costs": (1, 2, 3.5)}, "block_costs"),
    ],
)
def test_a_bad_value_is_named(more: dict[str, Any], said: str) -> None:
    with pytest.raises(Misuse, match=said):
        small(**more)


def test_a_bad_question_is_refused() -> None:
    cache = small()
    with pytest.raises(Misuse, match='tier = "moon"'):
        cache.room("moon")  # type: ignore[arg-type]
    with pytest.raises(Misuse, match="tier"):
        cache.room("disk")
    with pytest.raises(Misuse, match="after = -1"):
        cache.worth_loading(1, after=-1)


@pytest.mark.parametrize("write", POLICIES)
def test_the_same_calls_copy_the_same_blocks(write: Write) -> None:
    def history() -> list[bytes]:
        cache, plans = small(write=write, ghosts=16), []
        for turn in range(40):
            publish(cache, text(turn * 7 % 5, 1 + turn % 3))
            plan = cache.demote(2)
            if plan is not None:
                plans.append(plan.to_bytes())
                cache.commit(plan)
        assert cache.audit() is None
        return plans

    assert history() == history() != []
