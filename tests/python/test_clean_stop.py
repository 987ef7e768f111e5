"""What a clean stop puts on the disk where promises are in its way, or less room than it needs."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import blockyard as by
from disks import BLOCKS, dies, opened, settle
from test_flush import SIZE, found, publish

EVICTIONS = ("recency", "learned", "heap")
WRITES: tuple[Any, ...] = ("on-evict", "through", "second-touch", {"host": "through"})


def ticket(cache: Any, tier: str) -> Any:
    return cache.promise(cache.room(tier).available, tier=tier)


def growth(cache: Any, tier: str) -> Any:
    room = cache.room(tier).available
    return cache.begin(range(9000, 9001), reserve=SIZE * (room - 1))


def headroom(cache: Any, tier: str) -> Any:
    lease = cache.begin(range(9000, 9001))
    assert cache.set_headroom(1000) == cache.room(tier).promised > 0
    return lease


def parked(cache: Any, tier: str) -> Any:
    room = cache.room(tier).available
    tokens = SIZE * (room - 1) + 1
    lease = cache.begin(range(9000, 9000 + tokens))
    held = cache.park(lease, tokens)
    assert cache.room(tier).available == 0
    return held


@pytest.mark.parametrize(
    ("promised", "tier", "options"),
    [
        (ticket, "device", {"device": 13}),
        (ticket, "device", {"device": 13, "host": 4}),
        (ticket, "host", {"device": 9, "host": 12}),
        (ticket, "disk", {"device": 13, "disk": 12}),
        (growth, "device", {"device": 14}),
        (headroom, "device", {"device": 14}),
        (parked, "host", {"device": 32, "host": 12}),
    ],
    ids=["device", "device-host", "host", "disk", "growth", "headroom", "parked"],
)
def test_promises_end_with_the_cache_and_keep_nothing_from_the_disk(
    tmp_path: Path,
    promised: Callable[[Any, str], Any],
    tier: str,
    options: dict[str, Any],
) -> None:
    given: dict[str, Any] = {"ahead": 0} | options
    with opened(tmp_path, **given) as cache:
        for talk in range(3):
            publish(cache, talk)
            if tier == "host":
                cache.demote(BLOCKS)
                settle(cache)
        held = promised(cache, tier)
        assert cache.flush(until=30) > 0, "a cache that goes on keeps its promises"
        assert cache.audit() is None
        assert cache.close() == 0
        assert cache.audit() is None
        # What was held can be ended.
        if promised is ticket:
            cache.release(held)
        elif promised is parked:
            cache.abandon(held)
        else:
            cache.finish(held)
        assert cache.audit() is None
    with opened(tmp_path, **given) as cache:
        assert [found(cache, talk) for talk in range(3)] == [BLOCKS] * 3


def newest(cache: Any, blocks: dict[int, tuple[int, int]], room: int) -> list[int]:
    """Returns how much of each talk has room where the device's last victims come first.

    Args:
        cache: Its device has evicted nothing.
        blocks: Talks and places in them, by their slots.
        room: Blocks.
    """
    kept = [0] * (max(talk for talk, _ in blocks.values()) + 1)
    for slot in reversed(cache.eviction_order("device")):
        talk, place = blocks[int(slot)]
        more = max(0, place + 1 - kept[talk])
        kept[talk] += min(more, room - sum(kept))
    return kept


@pytest.mark.law("INV-39")
@pytest.mark.parametrize("host", [0, 20, 64])
@pytest.mark.parametrize("write", WRITES, ids=str)
@pytest.mark.parametrize("eviction", EVICTIONS)
def test_a_disk_that_is_too_small_has_what_would_have_been_evicted_last(
    tmp_path: Path, eviction: str, write: Any, host: int
) -> None:
    if isinstance(write, dict) and not host:
        pytest.skip("there is no host")
    chance = random.Random(f"{eviction} {write} {host}")
    room = chance.randrange(4, 12)
    blocks: dict[int, tuple[int, int]] = {}
    given: dict[str, Any] = {"device": 80, "disk": room, "eviction": eviction, "write": write}
    given |= {"host": host, "host_copies": chance.choice(["first", "last"]) if host else None}
    with opened(tmp_path, **given) as cache:
        lengths = [chance.randrange(1, 6) for _ in range(12)]
        for talk, length in enumerate(lengths):
            slots = publish(cache, talk, length)
            blocks |= {slot: (talk, place) for place, slot in enumerate(slots)}
        for talk in (chance.randrange(12) for _ in range(12)):
            publish(cache, talk, lengths[talk])
            if chance.random() < 0.7:
                # Idle copies fill the disk with what is oldest.
                settle(cache)
        if chance.random() < 0.5:
            cache.flush(until=30)
            assert cache.audit() is None
        # What a copy reads may not go, and stands last.
        settle(cache)
        wanted = newest(cache, blocks, room)
        assert cache.close() == sum(lengths) - room
        assert cache.audit() is None
    with opened(tmp_path, **given) as cache:
        assert cache.restored == room
        assert [found(cache, talk, lengths[talk]) for talk in range(12)] == wanted


@pytest.mark.parametrize("seed", range(12))
def test_a_disk_keeps_what_is_newer_than_what_lies_above(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    given: dict[str, Any] = {
        "device": chance.choice([6, 9, 13]),
        "host": chance.choice([0, 4, 8, 16]),
        "disk": chance.choice([6, 10, 17, 24]),
        "write": chance.choice(WRITES[:3]),
        "ahead": chance.choice([0, 4]),
    }
    used: dict[int, None] = {}
    with opened(tmp_path, **given) as cache:
        for _ in range(30):
            talk = chance.randrange(16)
            publish(cache, talk)
            used.pop(talk, None)
            used[talk] = None
            settle(cache)
        before = [found(cache, talk) for talk in range(16)]
        cache.close()
        assert cache.audit() is None
    wanted, room = [0] * 16, given["disk"]
    for talk in reversed(used):
        wanted[talk] = min(before[talk], room)
        room -= wanted[talk]
    with opened(tmp_path, **given) as cache:
        assert [found(cache, talk) for talk in range(16)] == wanted


@pytest.mark.law("INV-32")
@pytest.mark.parametrize("free", [0, 2, 4])
def test_a_full_disk_that_dies_loses_one_block_of_what_it_had(tmp_path: Path, free: int) -> None:
    given: dict[str, Any] = {"device": 42, "disk": 5 * BLOCKS + free, "ahead": 0}
    with opened(tmp_path, **given) as cache:
        for talk in range(5):
            publish(cache, talk)
    with opened(tmp_path, **given) as cache:
        assert cache.restored == 5 * BLOCKS
        for talk in range(5, 10):
            publish(cache, talk)
        revive = dies(tmp_path)
        assert cache.flush(until=1000) == 5 * BLOCKS
        assert sum(found(cache, talk) for talk in range(10)) >= 10 * BLOCKS - (not free)
        assert cache.audit() is None
        revive()
        cache.close(flush=0)
    with opened(tmp_path, **given) as cache:
        assert cache.restored >= 5 * BLOCKS - (not free)


@pytest.mark.law("INV-22")
def test_a_scheduler_of_any_ranks_says_that_nothing_begins_behind_a_flush() -> None:
    cache = by.KVCache(device=5, host=4, block_size=SIZE, keyed=["host"])
    lease = cache.begin(range(2 * SIZE))
    cache.seal(lease, 2 * SIZE)
    cache.finish(lease)
    held = cache.promise(cache.room().available)
    for until, final, left in ((20, False, 2), (0, True, 2), (20, True, 0)):
        flush = cache.flushing(until=until, final=final, clock=lambda: 0.0)
        while flush.plan():
            cache.commit(cache.dispatch())
        assert flush.left() == left
        assert cache.room().promised == (4 if left else 0)
        assert cache.audit() is None
    cache.release(held)
