"""`CopyAhead`: what is copied ahead of need, dispatch by dispatch."""

from itertools import product
from typing import Any, Literal

import pytest

import blockyard as by
from blockyard.yard.copy_ahead import CopyAhead
from yard import begin, publish, publish_below, text, there

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


@pytest.mark.law("4.2-15")
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
    plan = there(cache.demote(2000))
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


@pytest.mark.law("4.2-15")
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


def test_the_next_victims_have_their_copies_with_their_paths_and_no_more() -> None:
    cache = small(ahead=8)
    for name in range(9):
        publish(cache, text(name, 16))
    assert idle_steps(cache, 3) == [8, 0, 0]
    assert sum(cache.probe(text(name, 16)).device for name in range(9)) == 36
    cache.finish(begin(cache, text(99, 24)))
    assert idle_steps(cache, 2) == [4, 0], "of the two that come after the eight the path, whole"


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


@pytest.mark.law("4.2-15")
@pytest.mark.parametrize("eviction", EVICTIONS)
def test_what_is_just_enough_room_is_enough_and_a_block_less_is_not(
    eviction: Literal["recency", "heap"],
) -> None:
    cache = small(ahead=8, eviction=eviction)
    publish(cache, text(1, 128))
    assert (cache.room().free, cache.dispatch()) == (8, [])
    publish(cache, text(2, 4))
    assert (cache.room().free, [len(plan) for plan in cache.dispatch()]) == (7, [8])


@pytest.mark.law("4.2-15")
@pytest.mark.parametrize("eviction", EVICTIONS)
def test_while_the_next_victims_are_in_flight_nothing_else_is_copied_ahead(
    eviction: Literal["recency", "heap"],
) -> None:
    cache = small(ahead=8, eviction=eviction)
    for name in range(9):
        publish(cache, text(name, 16))
    assert [len(plan) for plan in cache.dispatch()] == [8]
    assert cache.dispatch() == []


# -- with a third tier ---------------------------------------------------------------------------


def three(**more: Any) -> by.KVCache:
    return small(**({"device": 17, "host": 16, "disk": 64} | more))


def ways(cache: by.KVCache) -> dict[tuple[str, str], int]:
    """Blocks that one dispatch sends each way, with all of them landing at once."""
    moved: dict[tuple[str, str], int] = {}
    for plan in cache.dispatch():
        way = plan.source_tier, plan.destination_tier
        moved[way] = moved.get(way, 0) + len(plan)
        cache.commit(plan)
    return moved


DOWN, DEEPER = ("device", "host"), ("host", "disk")


@pytest.mark.parametrize("eviction", EVICTIONS)
def test_each_tier_has_a_watermark_of_its_own(eviction: Literal["recency", "heap"]) -> None:
    cache = three(ahead={"device": 4, "host": 6}, eviction=eviction)
    moved: list[dict[tuple[str, str], int]] = []
    for name in range(8):
        publish(cache, text(name, 16))
        free, below = cache.room().free, cache.room("host").free
        now = ways(cache)
        moved.append(now)
        assert now.get(DOWN, 0) == (4 if free < 4 else 0)
        below -= now.get(DOWN, 0)
        assert now.get(DEEPER, 0) == 0 or below < 6, "not above the watermark of the host"
    assert sum(now.get(DEEPER, 0) for now in moved) > 8
    probes = [cache.probe(text(name, 16)) for name in range(8)]
    assert sum(probe.device + probe.host + probe.disk for probe in probes) == 32, "none is lost"
    assert sum(probe.disk for probe in probes) > 0
    assert cache.audit() is None


def test_from_the_host_alone_blocks_go_down_where_the_device_has_no_watermark() -> None:
    cache = three(ahead={"device": 0, "host": 16})
    publish_below(cache, text(1, 16))
    assert (cache.room("host").free, ways(cache), ways(cache)) == (12, {DEEPER: 4}, {})


@pytest.mark.law("INV-20l")
@pytest.mark.parametrize("eviction", ["recency", "learned", "heap"])
@pytest.mark.parametrize("tier", ["device", "host"])
def test_what_is_being_copied_counts_among_the_next_victims(eviction: Any, tier: str) -> None:
    cache = three(
        eviction=eviction, host_copies="first", ahead={"device": 0, "host": 0} | {tier: 4}
    )
    for name in range(4):
        (publish if tier == "device" else publish_below)(cache, text(name, 16))
    # Nothing lands: each dispatch asks again.
    sent = [sum(map(len, cache.dispatch())) for _ in range(5)]
    assert sent == [4, 0, 0, 0, 0]


def test_through_from_the_host_copies_what_came_there_at_once() -> None:
    cache = three(write={"host": "through"}, ahead={"device": 0, "host": 3})
    publish(cache, text(1, 20))
    assert ways(cache) == {}
    plan = there(cache.demote(5))
    assert len(cache.dispatch()) == 1
    assert cache.dispatch() == [], "none has come there"
    cache.commit(plan)
    assert cache.room("host").free > 3, "above a watermark"
    (first,) = cache.dispatch()
    assert ((first.source_tier, first.destination_tier), len(first)) == (DEEPER, 3)
    assert cache.dispatch() == [], "the watermark bounds what is in flight"
    cache.commit(first)
    assert [ways(cache), ways(cache)] == [{DEEPER: 2}, {}]
    assert cache.stats()["disk_idle"] == 5


def test_through_both_tiers_all_that_is_published_comes_to_the_disk() -> None:
    cache = three(write={"device": "through", "host": "through"}, ahead=16)
    lease = begin(cache, text(1, 32))
    cache.seal(lease, 32)
    assert [ways(cache) for _ in range(3)] == [{DOWN: 8}, {DEEPER: 8}, {}]
    cache.finish(lease)
    assert cache.audit() is None


def test_a_disk_without_slots_is_passed_over_and_found_again_when_it_grows() -> None:
    cache = three(ahead={"device": 0, "host": 16})
    cache.resize("disk", 0)
    publish_below(cache, text(1, 16))
    assert ways(cache) == {}
    cache.resize("disk", 8)
    assert ways(cache) == {DEEPER: 4}


def test_what_is_due_is_asked_of_each_tier() -> None:
    config = by.Config(block_size=4, device=17, host=16, disk=64, ahead={"device": 2, "host": 14})
    cache, copies = by.KVCache(config), CopyAhead(config)
    assert not copies.due(cache)
    lease = begin(cache, text(1, 60))
    assert copies.due(cache), "on the device"
    cache.finish(lease)
    assert not copies.due(cache)
    cache.release(cache.promise(3, tier="host"))
    handle = cache.park(begin(cache, text(2, 12)), 12)
    plan = there(cache.demote(3, of=handle))
    assert copies.due(cache), "on the host"
    cache.commit(plan)
    cache.abandon(handle)


@pytest.mark.parametrize("flying", [0, 1, 3, 4])
@pytest.mark.parametrize("policy", [{"write": "through"}, {"eviction": "heap"}])
def test_what_flies_is_a_part_of_what_is_copied_ahead(policy: dict[str, Any], flying: int) -> None:
    """A dispatch asks for as many blocks as the watermark has beyond those in flight."""
    cache = small(device=9, ahead=4, **policy)
    for name in range(8):
        publish(cache, text(name, 4))
    if flying:
        cache.demote(flying)
    CopyAhead(cache.config).decide(cache)
    assert cache.blocks_in_flight("device") == (4, 0)
    for plan in cache.dispatch():
        cache.commit(plan)


def test_as_many_free_slots_as_the_watermark_says_are_enough() -> None:
    cache = small(device=9, ahead=4)
    publish(cache, text(1, 16))
    copies = CopyAhead(cache.config)
    assert (cache.room().free, copies.due(cache)) == (4, False)
    publish(cache, text(2, 4))
    assert (cache.room().free, copies.due(cache)) == (3, True)
