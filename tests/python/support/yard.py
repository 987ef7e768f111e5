"""What the tests share: small caches, and what must be true of one at rest."""

import os
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
from hypothesis import HealthCheck, settings
from numpy.typing import NDArray

import blockyard as by

# More, and random: BLOCKYARD_EXAMPLES=2000 python -m pytest tests/python/yard/test_machine.py
EXAMPLES = int(os.environ.get("BLOCKYARD_EXAMPLES", "0"))

_T = TypeVar("_T")

# What a refused call may change.
REFUSALS = {"rejected", "no_room", "unserved", "late"}


def profile(examples: int, steps: int = 50) -> settings:
    return settings(
        max_examples=EXAMPLES or examples,
        stateful_step_count=steps,
        derandomize=not EXAMPLES,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )


def text(name: int, tokens: int) -> list[int]:
    """Tokens that share no block with those of another name."""
    return [1000 * name + at for at in range(tokens)]


def at_last(measure: Callable[[], _T], good: Callable[[_T], bool], tries: int = 20) -> None:
    """Measures until it is good: a busy machine spoils a try or some, what is broken spoils all."""
    seen: list[_T] = []
    while not seen or not good(seen[-1]):
        assert len(seen) < tries, seen
        seen.append(measure())


def there(value: _T | None) -> _T:
    """A value that must not be None."""
    assert value is not None
    return value


def array(tokens: Iterable[int]) -> NDArray[np.int64]:
    return np.fromiter(tokens, np.int64)


def begin(cache: by.KVCache, prompt: Any, **keywords: Any) -> by.Lease:
    lease = cache.begin(prompt, **keywords)
    assert isinstance(lease, by.Lease)
    return lease


def publish(cache: by.KVCache, tokens: Sequence[int], **keywords: Any) -> None:
    """Computes a prompt, publishes its full blocks, and leaves them idle."""
    lease = begin(cache, tokens, **keywords)
    cache.commit(lease.plans)
    cache.seal(lease, len(tokens))
    cache.finish(lease)


def publish_below(cache: by.KVCache, tokens: list[int]) -> None:
    """Leaves a prompt's full blocks on the host alone."""
    publish(cache, tokens)
    plan = cache.demote(1_000)
    assert plan is not None
    cache.commit(plan)
    cache.finish(begin(cache, text(9, free_for_all(cache) * cache.block_size)))


def free_for_all(cache: by.KVCache) -> int:
    stats = cache.stats()
    return stats["device_free"] + stats["device_takeable"]


def table(cache: by.KVCache, lease: by.Lease) -> list[int]:
    """Returns its slots, of a lease that loads too: nothing is read there."""
    return [int(slot) for slot in cache.block_tables(lease, loading="joined")[0]]


def unchanged(stats: dict[str, int]) -> dict[str, int]:
    return {name: value for name, value in stats.items() if name not in REFUSALS}


def at_rest(cache: by.KVCache) -> None:
    """Nothing is held, promised or in flight."""
    assert cache.audit() is None
    stats = cache.stats()
    for name in ("leases", "parked", "flights"):
        assert stats[name] == 0, name
    for tier in ("device", "host", "disk"):
        for name in ("claimed", "pinned", "quarantined", "promised"):
            assert stats[f"{tier}_{name}"] == 0, (tier, name)
        assert stats[f"{tier}_free"] + stats[f"{tier}_idle"] == stats[f"{tier}_capacity"]


def plan_of(
    sources: int | list[int],
    destinations: list[int] | None = None,
    *,
    flight: int,
    way: str = "device host",
    yard: int = 0,
) -> by.Plan:
    """A plan that no cache made; see `rust/core/src/copies/plan.rs` for its bytes."""
    first = list(range(sources)) if isinstance(sources, int) else sources
    second = first if destinations is None else destinations
    tiers = ("device", "host", "disk", "remote")
    start, end = (tiers.index(tier) for tier in way.split())
    slots = struct.pack(f"<{2 * len(first)}I", *first, *second)
    return by.Plan.from_bytes(
        struct.pack("<2sBBIQQ", b"Y3", 0, start << 4 | end, len(first), flight, yard) + slots
    )
