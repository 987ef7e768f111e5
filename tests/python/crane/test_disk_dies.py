"""One of several disks dies for good: it takes its slots with it, and no others. INV-32"""

import functools
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import blockyard as by
from blockyard._core import DiskLane
from blockyard._typing import override
from blockyard.crane.tiers import disk as disk_tier
from blockyard.yard import dead_disks
from blockyard.yard.dead_disks import withdraw_dead
from disks import BLOCKS, TALKS, dies, opened, settle, talks

HALF = 32
"""Slots on each of two disks."""


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk is dead after eight rests in a row: here after an eighth of a second."""
    hasty = functools.partial(DiskLane, rest=5e-4)
    monkeypatch.setattr(disk_tier, "DiskLane", hasty)


def capacity(cache: Any) -> int:
    return int(cache.stats()["disk_capacity"])


def until(cache: Any, done: Callable[[], bool]) -> None:
    """Plays talks that nobody has seen until something is done."""
    end, talk = time.monotonic() + 30, 1000
    while not done():
        assert time.monotonic() < end
        talks(cache, [talk])
        talk += 1
        time.sleep(1e-3)


@pytest.mark.law("INV-32")
@pytest.mark.parametrize("dead", [0, 1])
def test_inv_32_a_disk_that_dies_takes_its_slots_with_it_and_no_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, dead: int
) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.mkdir()
    with opened(tmp_path, disk_path=paths) as cache:
        talks(cache)
        before = set(cache.eviction_order("disk").tolist())
        assert len(before) == TALKS * BLOCKS
        revive = dies(paths[dead])
        with caplog.at_level(logging.WARNING, "blockyard"):
            until(cache, lambda: capacity(cache) == HALF)
        assert "a disk has died: its 32 slots" in caplog.text
        assert cache.stats()["disk_dead"] == 1
        assert "1 disk has failed at each try" in str(cache.explain(range(8)))
        after = set(cache.eviction_order("disk").tolist())
        ours = {slot for slot in before if slot % 2 != dead}
        assert ours <= after
        assert {slot % 2 for slot in after} == {1 - dead}
        # What works is worked with: nothing is asked of the dead one any more.
        failed = cache.stats()["disk_failed"]
        talks(cache, range(2000, 2000 + TALKS))
        assert cache.stats()["disk_failed"] == failed
        # All of a talk is found where all of it lies on the other one.
        assert talks(cache, [2000 + TALKS - 1]) == {2000 + TALKS - 1: 4 * BLOCKS - 1}
        # Somebody mends it: it is for the next start.
        revive()
        talks(cache, range(3000, 3002))
        assert capacity(cache) == HALF
    with opened(tmp_path, disk_path=paths) as cache:
        assert cache.stats()["disk_capacity"] == 2 * HALF
        assert set(talks(cache, [2000 + TALKS - 1]).values()) == {4 * BLOCKS - 1}


def test_a_disk_that_keeps_no_order_costs_the_others_nothing(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    for path in paths:
        path.mkdir()
    with opened(tmp_path, disk_path=paths) as cache:
        talks(cache)
        cache.crane.persistent.keep_order(cache.eviction_order("disk"))
        first, second, third = (next(path.glob("*/*/order")) for path in paths)
        for order in (first, second, third):
            order.unlink()
        first.mkdir()
        dies(paths[1])
        until(cache, lambda: cache.stats()["disk_dead"] == 1)
    assert (second.exists(), third.is_file()) == (False, True)


@pytest.mark.law("INV-32")
def test_inv_32_requests_that_are_parked_go_on(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.mkdir()
    with opened(tmp_path, disk_path=paths) as cache:

        def park(talk: int) -> by.Parked:
            lease = cache.begin(range(100 * talk, 100 * talk + 16))
            settle(cache)
            parked: by.Parked = cache.park(lease, 16)
            while cache.demote(64, of=parked):
                settle(cache)
            return parked

        kept = park(1)
        dies(paths[1])
        until(cache, lambda: capacity(cache) == HALF)
        assert kept.state == "broken", "it kept blocks there, and is computed again"
        cache.abandon(kept)
        again = cache.begin(range(100, 116))
        settle(cache)
        later = park(2)
        assert cache.audit() is None
        lease = cache.begin(later)
        settle(cache)
        assert lease.cached == 16
        cache.finish([again, lease])


@pytest.mark.law("INV-32")
def test_the_last_disk_that_works_is_not_given_up(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.mkdir()
    with opened(tmp_path, disk_path=paths) as cache:
        talks(cache)
        mend = [dies(path) for path in paths]
        until(cache, lambda: cache.stats()["disk_dead"] == 2)
        assert cache.crane.persistent.dead() == frozenset()
        # One may have been given up before the other counted as dead.
        assert capacity(cache) >= HALF
        for revive in mend:
            revive()
        written = cache.stats()["disk_written_blocks"]
        until(cache, lambda: cache.stats()["disk_written_blocks"] > written)


@pytest.mark.law("INV-32")
def test_ranks_that_each_name_another_disk_give_not_all_up() -> None:
    """Once a rank has named a disk, the others ask it nothing: they may never count it as dead."""
    cache = by.KVCache(device=8, disk=64)
    gone = withdraw_dead(cache, frozenset({(0, 2)}), frozenset())
    assert (gone, capacity(cache)) == (frozenset({(0, 2)}), HALF)
    assert withdraw_dead(cache, frozenset({(1, 2)}), gone) == gone
    assert capacity(cache) == HALF
    both = frozenset({(0, 2), (1, 2)})
    assert not withdraw_dead(by.KVCache(device=8, disk=64), both, frozenset())


def test_a_disk_of_more_slots_than_a_call_takes_is_given_up_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dead_disks, "MOST_ROWS", 10)
    asked: list[int] = []

    class Cache(by.KVCache):
        @override
        def withdraw(self, tier: Any, slots: Any) -> int:
            asked.append(len(slots))
            return super().withdraw(tier, slots)

    cache = Cache(device=8, disk=64)
    withdraw_dead(cache, frozenset({(1, 2)}), frozenset())
    assert (asked, capacity(cache)) == ([10, 10, 10, 2], HALF)


def test_a_disk_alone_is_never_given_up(tmp_path: Path) -> None:
    with opened(tmp_path) as cache:
        talks(cache)
        revive = dies(tmp_path)
        until(cache, lambda: cache.stats()["disk_dead"] == 1)
        assert capacity(cache) == 2 * HALF
        revive()
        written = cache.stats()["disk_written_blocks"]
        until(cache, lambda: cache.stats()["disk_written_blocks"] > written)
        assert cache.stats()["disk_dead"] == 0
