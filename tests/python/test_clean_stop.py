"""What a clean stop puts on the disk where promises are in its way, or less room than it needs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import blockyard as by
from disks import BLOCKS, opened, settle
from test_flush import SIZE, found, publish


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
