"""Long prompts in turn: a host that has room for all of them finds them again."""

import contextlib
from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest

import blockyard as by

pytestmark = pytest.mark.law("INV-39")


def land(cache: by.KVCache, steps: int) -> None:
    for _ in range(steps):
        cache.commit(cache.dispatch())


def run(cache: by.KVCache, tokens: Sequence[int], pause: int) -> int:
    """One request from its begin to its end, and what it has found."""
    lease = cache.begin(tokens)
    found = lease.cached
    land(cache, 4)
    cache.seal(lease, len(tokens))
    cache.finish(lease)
    land(cache, pause)
    return found


def found(prompt: int, pause: int, **options: Any) -> float:
    """The share of the tokens that is found after the first round."""
    cache = by.KVCache(**{"device": 500, "host": 1500, "block_size": 16} | options)
    prompts = [range(n * 10**6, n * 10**6 + 16 * prompt) for n in range(500 // prompt + 3)]
    rounds = [[run(cache, one, pause) for one in prompts] for _ in range(3)]
    assert cache.audit() is None
    return sum(map(sum, rounds[1:])) / (2 * len(prompts) * 16 * prompt)


@pytest.mark.parametrize("pause", [1, 20])
@pytest.mark.parametrize("prompt", [25, 70, 230])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"eviction": "learned"},
        {"eviction": "heap"},
        {"host_copies": "first"},
        {"host": 0, "disk": 1500},
        {"host": 600, "disk": 3000},
    ],
)
def test_defaults_find_what_through_finds(prompt: int, pause: int, options: dict[str, Any]) -> None:
    best = found(prompt, pause, write="through", **options)
    assert best > 0
    assert found(prompt, pause, **options) >= 0.95 * best


def test_what_is_lost_is_said() -> None:
    cache = by.KVCache(device=64, host=256, ahead=0)
    for name in range(3):
        run(cache, range(10_000 * name, 10_000 * name + 640), 1)
    stats = cache.stats()
    assert stats["device_dropped"] == stats["device_evicted"] > 0
    assert stats["largest_begin"] == 40
    said = str(cache.explain(cache.keys(range(640))))
    assert f"So far {stats['device_dropped']} blocks left the device without another copy" in said


def publish(cache: by.KVCache, tokens: Sequence[int]) -> None:
    """Computes a prompt, while no copy ends."""
    lease = cache.begin(tokens)
    cache.seal(lease, len(tokens))
    cache.finish(lease)


def has_begun(cache: by.KVCache, tokens: Sequence[int]) -> bool:
    try:
        cache.begin(tokens)
    except by.NoRoom:
        return False
    return True


@pytest.mark.law("INV-25")
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("blocks", [2, 20])
@pytest.mark.parametrize("share", [0.9, 0.95, 1])
@pytest.mark.parametrize(("ahead", "options"), [(16, {}), (64, {"eviction": "learned"})])
def test_a_large_begin_waits_for_no_copy_of_what_is_idle(
    share: float, ahead: int, options: dict[str, Any], blocks: int, *, known: bool
) -> None:
    steps = waited(share, blocks, known=known, **options)
    assert steps <= ahead + blocks, "what is about to go, with the path that it ends, and no more"


@pytest.mark.law("INV-25")
@pytest.mark.parametrize("known", [True, False])
def test_a_large_begin_finds_room_beside_what_through_writes(*, known: bool) -> None:
    assert waited(0.9, 2, known=known, write="through") == 0


def waited(share: float, blocks: int, *, known: bool, **options: Any) -> int:
    """Steps until a begin of that share of the device has room, behind prompts of so many blocks.

    Args:
        share: How much of the device it takes.
        blocks: What each of the others takes.
        known: Whether one as large has begun before.
        options: Of the cache.
    """
    device = 256
    cache = by.KVCache(block_size=1, device=device + 1, host=4 * device, **options)
    large = range(10**6, 10**6 + int(share * device))
    if known:
        cache.finish(cache.begin(large))
    air: deque[tuple[int, by.Plan]] = deque()
    ends = 0

    def step(now: int) -> None:
        """Lands what a lane of one block a step has carried, and plans more."""
        nonlocal ends
        while air and air[0][0] <= now:
            cache.commit([air.popleft()[1]])
        for plan in cache.dispatch():
            ends = max(ends, now) + len(plan)
            air.append((ends, plan))

    for now in range(device // 2):
        with contextlib.suppress(by.NoRoom):
            publish(cache, range(1000 * now, 1000 * now + blocks))
        step(now)
    steps = 0
    while not has_begun(cache, large):
        step(device // 2 + steps)
        steps += 1
    assert cache.audit() is None
    return steps
