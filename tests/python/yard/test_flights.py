"""Flights: copies up, down and across, and what becomes of those that fail or never end."""

from typing import Any

import numpy as np
import pytest

import blockyard as by
from yard import at_rest, begin, publish, publish_below, text


def make(device: int = 33, host: int = 32, **keywords: Any) -> by.KVCache:
    return by.KVCache(block_size=4, device=device, host=host, **keywords)


def test_a_failed_private_copy_costs_its_block_and_nothing_else() -> None:
    cache = make()
    publish(cache, text(1, 12))
    lease = begin(cache, text(1, 12))
    assert cache.abort(lease.plans) == 1
    assert (lease.state, lease.cached, lease.blocks) == ("ready", 8, 3)
    cache.finish(lease)
    at_rest(cache)


def test_a_resume_waits_for_a_promotion_of_its_path_and_holds_nothing_meanwhile() -> None:
    cache = make(device=9)
    publish_below(cache, text(1, 8))
    keys = cache.keys(text(1, 8))
    (plan,) = cache.promote(keys)
    before = cache.stats()
    soon = cache.begin(text(1, 9), filling="soon")
    assert isinstance(soon, by.Soon)
    assert soon.flight == cache.probe(keys).flight == plan.flight
    assert cache.stats() == before
    assert begin(cache, text(1, 9), filling="stop").stop == "filling"
    cache.commit(plan)
    assert begin(cache, text(1, 9), filling="soon").hits == (2, 0, 0, 0)


def test_a_prefix_on_the_host_is_loaded_and_a_load_can_be_bounded() -> None:
    cache = make(device=9)
    publish_below(cache, text(1, 16))
    assert (cache.probe(text(1, 16)).host, cache.probe(text(1, 16)).device) == (4, 0)
    slow = begin(cache, text(1, 17), load=1)
    assert (slow.cached, slow.hits, slow.stop) == (4, (0, 1, 0, 0), "slow")
    assert cache.commit(slow.plans) == 1
    cache.finish(slow)
    lease = begin(cache, text(1, 17))
    assert (lease.cached, lease.hits) == (16, (1, 3, 0, 0))
    assert cache.commit(lease.plans[0], 2) == 1, "the third has failed"
    assert (lease.cached, lease.state, lease.blocks) == (12, "ready", 5)
    cache.finish(lease)
    at_rest(cache)


def test_a_copy_that_fails_its_checksum_is_dropped_below() -> None:
    cache = make(device=9)
    publish_below(cache, text(1, 16))
    lease = begin(cache, text(1, 17))
    cache.commit(lease.plans, 2, corrupt=np.array([True]))
    assert (lease.cached, cache.stats()["corrupt"]) == (8, 1)
    cache.finish(lease)
    assert cache.probe(text(1, 16)).device == 2
    assert cache.audit() is None


def test_slots_of_a_flight_whose_end_is_unknown_stay_in_quarantine_until_its_fence() -> None:
    cache = make(device=9)
    publish_below(cache, text(1, 16))
    lease = begin(cache, text(1, 17))
    assert cache.mark_unknown(lease.plans) == 1
    assert (lease.cached, lease.blocks) == (0, 0)
    assert cache.stats()["device_quarantined"] == 4
    with pytest.raises(by.NoRoom):
        cache.begin(text(2, 20))
    assert cache.commit(lease.plans) == 1
    assert cache.stats()["device_quarantined"] == 0
    for verb in (cache.commit, cache.abort, cache.mark_unknown):
        assert verb(lease.plans) == 0, "a late outcome"
    assert cache.stats()["late"] == 3
    cache.finish(lease)
    at_rest(cache)


def test_with_a_step_in_flight_slots_are_held_back_until_it_is_done() -> None:
    cache = make(device=9)
    first, second = begin(cache, text(1, 16)), begin(cache, text(2, 8))
    cache.finish(first, after=7)
    parked = cache.park(second, 8, after=9)
    assert first.state == second.state == "spent"
    with pytest.raises(by.NoRoom):
        cache.begin(text(3, 12))
    cache.commit([], done=6)
    assert cache.stats()["device_free"] == 2
    cache.commit([], done=8)
    assert cache.stats()["device_free"] == 6
    cache.abandon(parked)
    cache.commit([], done=9)
    at_rest(cache)


def test_promote_brings_a_prefix_up_ahead_of_its_request() -> None:
    cache = make(device=9)
    publish_below(cache, text(1, 16))
    keys = cache.keys(text(1, 16))
    (plan,) = cache.promote(keys, 3)
    assert (len(plan), plan.source_tier) == (3, "host")
    cache.commit(plan)
    assert (cache.probe(keys).device, cache.probe(keys).host) == (3, 1)
    assert cache.promote(cache.keys(text(2, 16))) == []
    assert begin(cache, text(1, 13)).plans == ()


def test_the_plan_of_another_cache_is_refused() -> None:
    ours, other = (by.KVCache(block_size=4, device=16, host=16) for _ in range(2))
    for cache, name in ((ours, 1), (other, 2)):
        publish(cache, text(name, 12 if cache is ours else 8))
    mine, foreign = ours.demote(3), other.demote(2)
    assert mine is not None
    assert foreign is not None
    assert mine.flight == foreign.flight
    before = ours.stats()
    for verb in (ours.commit, ours.abort, ours.mark_unknown):
        with pytest.raises(by.ForeignLease, match=str(foreign.flight)):
            verb(foreign)
    assert ours.stats() == before
    assert ours.commit(mine) == 1


def test_padding_needs_a_null_slot() -> None:
    cache = by.KVCache(block_size=4, device=8, null_slots=0)
    lease = cache.begin(range(6))
    exact = np.zeros(2, dtype=np.int64)
    assert cache.slot_mapping([lease], 4, 2, exact) == 2
    with pytest.raises(by.Misuse, match="no null slot"):
        cache.slot_mapping([lease], 4, 2, np.zeros(3, dtype=np.int64))
