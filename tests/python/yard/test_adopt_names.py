"""Names of the tier `remote` through the binding: what is adopted, loaded, dropped or deleted."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import blockyard as by
from yard import at_rest, text


def house(**keywords: Any) -> by.KVCache:
    sizes: dict[str, Any] = {"block_size": 4, "device": 17, "host": 4, "remote": 12}
    named: dict[str, Any] = {"namespace": {"model": "m", "weights": "w"}, "ahead": 0}
    return by.KVCache(**(sizes | named | keywords))


@contextmanager
def unchanged(cache: by.KVCache) -> Iterator[None]:
    digest = cache.digest()
    yield
    assert cache.digest() == digest


def on_remote(cache: by.KVCache, keys: by.Keys) -> int:
    return cache.probe(keys).remote


def test_what_is_adopted_is_loaded_by_its_keys_and_counts_once_it_has_come() -> None:
    cache = house()
    keys = cache.keys([*text(1, 5 * 4), 7])
    assert [cache.adopt(keys, 2), cache.adopt(keys), cache.adopt(keys)] == [2, 5, 5]
    assert on_remote(cache, keys) == 5
    lease = cache.begin(keys)
    (plan,) = lease.plans
    assert bytes(np.asarray(plan.keys)) == bytes(keys)
    assert (lease.cached, cache.stats()["cached"], cache.stats()["remote_hits"]) == (20, 0, 0)
    cache.commit([plan], good=[3])
    stats = cache.stats()
    assert (stats["cached"], stats["remote_hits"], stats["missed_unproven"]) == (12, 3, 1 + 1)
    assert on_remote(cache, keys) == 0, "a begin ends at the one that was lost"
    cache.finish([lease])
    at_rest(cache)


def test_names_are_dropped_alone() -> None:
    cache = house()
    keys = cache.keys(text(1, 4 * 4))
    cache.adopt(keys)
    assert cache.forget(keys, tier="remote") == 4
    assert cache.forget(keys=keys.hex(), tier="remote") == 0
    assert (cache.dispatch(), cache.stats()["blocks"]) == ([], 0)


def test_a_forget_asks_the_store_to_delete_and_refuses_the_keys_until_it_has() -> None:
    cache = house()
    keys = cache.keys(text(1, 4 * 4))
    cache.adopt(keys, 2)
    forgotten = cache.forget(keys)
    (plan,) = cache.dispatch()
    assert (plan.source_tier, plan.destination_tier) == ("remote", "remote")
    assert (forgotten.blocks, forgotten.flights) == (2, [plan.flight])
    assert bytes(np.asarray(plan.keys)) == bytes(keys), "also what is not known here"
    assert (cache.adopt(keys), cache.stats()["voiding"]) == (0, 1)
    cache.commit([plan])
    assert (cache.adopt(keys), cache.stats()["voiding"]) == (4, 0)


def test_a_salted_prompt_that_was_adopted_is_forgotten_by_its_salt() -> None:
    cache = house()
    keys = cache.keys(text(1, 3 * 4), salt="tenant")
    cache.adopt(keys)
    forgotten = cache.forget(salt="tenant")
    (plan,) = cache.dispatch()
    assert (forgotten.blocks, bytes(np.asarray(plan.keys))) == (3, bytes(keys))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"tier": "host"}, "tier = host: a block is there by its slot"),
        ({"tier": "disk"}, "tier = disk"),
        ({"tier": "device"}, "tier = device"),
        ({"tier": "store"}, "store"),
        ({"tier": 3}, 'tier = 3: must be one of "device", "host", "disk", "remote"'),
        ({"blocks": -1}, "blocks = -1"),
        ({"blocks": 1.5}, "blocks"),
    ],
)
def test_what_cannot_be_adopted_is_refused_with_its_name(
    arguments: dict[str, Any], says: str
) -> None:
    cache = house()
    keys = cache.keys(text(1, 8))
    with unchanged(cache), pytest.raises(by.Misuse, match=says):
        cache.adopt(keys, **arguments)


def test_other_misuse_is_refused_with_what_to_do() -> None:
    cache = house()
    keys = cache.keys(text(1, 8))
    other = by.KVCache(block_size=8, device=4).keys(text(1, 8))
    with unchanged(cache):
        with pytest.raises(by.Misuse, match="keys of blocks of 8 tokens"):
            cache.adopt(other)
        for more in ({"salt": "a"}, {"force": True}, {"adapter": "a"}):
            with pytest.raises(by.Misuse, match="tier goes with keys= alone"):
                cache.forget(keys, tier="remote", **more)
        with pytest.raises(by.Misuse, match="tier goes with keys= alone"):
            cache.forget(tier="remote")  # type: ignore[call-overload]
        with pytest.raises(by.Misuse, match="tier = 3: must be one of"):
            cache.forget(keys, tier=3)  # type: ignore[call-overload]
        with pytest.raises(by.Misuse, match="what a store has is adopted"):
            cache.restore("remote", [0], bytes(keys)[:32], bytes(32))
        with pytest.raises(by.Misuse, match="a store is not flushed to"):
            cache.unwritten("remote")


def test_threads_may_adopt_beside_a_scheduler() -> None:
    cache = house(device=65, remote=200)
    prompts = [cache.keys([*text(name, 16 * 4), 1]) for name in range(8)]
    led: list[int] = []

    def adopt() -> None:
        for _ in range(20):
            led.extend(cache.adopt(keys) for keys in prompts)

    threads = [threading.Thread(target=adopt) for _ in range(3)]
    for thread in threads:
        thread.start()
    for keys in prompts:
        lease = cache.begin(keys)
        cache.commit(list(lease.plans))
        cache.finish([lease])
    for thread in threads:
        thread.join()
    assert set(led) == {16}
    assert on_remote(cache, prompts[0]) + cache.probe(prompts[0]).device == 16
    at_rest(cache)
