"""`Offload`: what is copied ahead of need, dispatch by dispatch."""

from itertools import product
from typing import Any, Literal

import pytest

import blockyard as by
from yard import begin, publish, text

Write = Literal["on-evict", "through", "second-touch"]
POLICIES: list[Write] = ["on-evict", "through", "second-touch"]
EVICTIONS: list[Literal["recency", "heap"]] = ["recency", "heap"]


def small(**more: Any) -> by.KVCache:
    return by.KVCache(**{"block_size": 4, "device": 41, "host": 64, "ahead": 16} | more)


def idle_steps(cache: by.KVCache, steps: int) -> list[int]:
    """Blocks that each of so many dispatches copies, with all that is asked landing at once."""
    moved = []
    for _ in range(steps):
        plans = cache.dispatch()
        cache.commit(plans)
        moved.append(sum(len(plan) for plan in plans))
    return moved


@pytest.mark.parametrize("eviction", EVICTIONS)
def test_a_dispatch_that_found_nothing_idle_is_not_the_last_one(
    eviction: Literal["recency", "heap"],
) -> None:
    cache = small(device=1025, host=4096, ahead=64, eviction=eviction)
    leases = [begin(cache, text(name, 64)) for name in range(64)]
    for lease in leases:
        cache.seal(lease, 64)
    assert cache.dispatch() == []
    cache.finish(leases)
    assert sum(idle_steps(cache, 5)) == 64
    held = []
    for name in range(100, 160):
        held.append(begin(cache, text(name, 64)))
        cache.commit(cache.dispatch())
    assert cache.room().evicted > 900
    found = [cache.probe(text(name, 64)) for name in range(64)]
    assert [probe.device + probe.host for probe in found] == [16] * 64, "none was lost"
    cache.finish(held)


def test_a_dispatch_of_many_blocks_gives_each_plan_once() -> None:
    cache = small(device=3001, host=3000, ahead=0)
    publish(cache, text(1, 8000))
    plan = cache.demote(2000)
    assert plan is not None
    assert len(plan) == 2000
    assert cache.dispatch() == [plan]
    assert cache.dispatch() == []


@pytest.mark.parametrize("eviction", EVICTIONS)
def test_what_failed_is_copied_again(eviction: Literal["recency", "heap"]) -> None:
    cache = small(eviction=eviction, ahead=40)
    publish(cache, text(1, 40))
    (plan,) = cache.dispatch()
    assert cache.dispatch() == []
    cache.abort(plan)
    assert idle_steps(cache, 2) == [10, 0]
    assert cache.audit() is None


@pytest.mark.parametrize(("write", "eviction"), list(product(POLICIES, EVICTIONS)))
def test_a_host_smaller_than_the_look_ahead_comes_to_rest(
    write: Write, eviction: Literal["recency", "heap"]
) -> None:
    cache = small(host=8, write=write, eviction=eviction)
    for name in range(12):
        publish(cache, [*text(name % 5, 28), 0])
        cache.commit(cache.dispatch())
    idle_steps(cache, 5)
    assert idle_steps(cache, 100) == [0] * 100
    assert cache.stats()["host_idle"] == 8


def test_the_next_victims_have_their_copies_and_no_more() -> None:
    cache = small(ahead=8)
    for name in range(9):
        publish(cache, text(name, 16))
    assert idle_steps(cache, 3) == [8, 0, 0]
    assert sum(cache.probe(text(name, 16)).device for name in range(9)) == 36
    cache.finish(begin(cache, text(99, 24)))
    assert idle_steps(cache, 2) == [2, 0], "two were evicted, and two come after the eight"


def test_above_the_watermark_nothing_is_copied() -> None:
    cache = small(ahead=8)
    publish(cache, text(1, 64))
    assert cache.dispatch() == []


def test_through_copies_what_runs_and_keeps_the_watermark_in_flight() -> None:
    cache = small(write="through", ahead=8)
    lease = begin(cache, text(1, 64))
    cache.seal(lease, 64)
    (plan,) = cache.dispatch()
    assert len(plan) == 8
    assert cache.dispatch() == []
    cache.commit(plan)
    assert [len(plan) for plan in cache.dispatch()] == [8]


@pytest.mark.parametrize("eviction", EVICTIONS)
def test_what_is_just_enough_room_is_enough_and_a_block_less_is_not(
    eviction: Literal["recency", "heap"],
) -> None:
    cache = small(ahead=8, eviction=eviction)
    publish(cache, text(1, 128))
    assert (cache.room().free, cache.dispatch()) == (8, [])
    publish(cache, text(2, 4))
    assert (cache.room().free, [len(plan) for plan in cache.dispatch()]) == (7, [8])


@pytest.mark.parametrize("eviction", EVICTIONS)
def test_while_the_next_victims_are_in_flight_nothing_else_is_copied_ahead(
    eviction: Literal["recency", "heap"],
) -> None:
    cache = small(ahead=8, eviction=eviction)
    for name in range(9):
        publish(cache, text(name, 16))
    assert [len(plan) for plan in cache.dispatch()] == [8]
    assert cache.dispatch() == []
