"""Slots of the device that are kept free ahead of need, through the binding and in a scheduler."""

from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard.shared.layout import Hello
from yard import publish, text

SIZE = 4


def full(**keywords: Any) -> by.KVCache:
    """A device of 80 blocks, all of them idle."""
    cache = by.KVCache(block_size=SIZE, device=81, **keywords)
    for name in range(20):
        publish(cache, text(name, 4 * SIZE))
    assert cache.room().free == 0
    return cache


def told(cache: by.KVCache) -> tuple[int, int, int]:
    stats = cache.stats()
    return stats["device_free"], stats["device_evicted"], stats["evicted_ahead"]


@pytest.mark.law("R2-11")
@pytest.mark.parametrize(("spare", "made"), [(None, 0), (0, 0), (1, 1), (8, 8)])
def test_the_verb_makes_it_and_says_how_much(spare: int | None, made: int) -> None:
    cache = full(spare=spare)
    assert cache.config.spare_blocks == made
    assert (cache.make_spare(), told(cache)) == (made, (made, made, made))
    assert (cache.make_spare(), cache.audit()) == (0, None)


@pytest.mark.law("R2-11", "R2-7")
def test_each_step_makes_it_and_a_begin_takes_it() -> None:
    cache = full(spare=8)
    lease = cache.begin(text(50, 2 * SIZE))
    assert told(cache) == (0, 2, 0)
    assert not len(cache.grow([lease]))
    assert told(cache) == (8, 11, 8)
    cache.seal(other := cache.begin(text(51, 7 * SIZE)), 7 * SIZE)
    assert told(cache) == (1, 11, 8), "the begin has evicted nothing"
    batch = cache.batch([lease])
    cache.decode_step(batch, np.array([5]), np.array([2 * SIZE]), grow=0)
    assert told(cache) == (8, 18, 15)
    cache.finish([lease, other])
    assert cache.audit() is None


@pytest.mark.law("R2-11", "INV-20l")
def test_copies_ahead_and_spare_room_keep_up_with_each_other_and_lose_nothing() -> None:
    cache = full(spare=8, host=200, ahead=4)
    for _ in range(20):
        cache.commit(list(cache.dispatch()))
        cache.make_spare()
    stats = cache.stats()
    assert (stats["device_free"], stats["evicted_ahead"], stats["device_dropped"]) == (8, 8, 0)
    assert cache.pending_copies().ahead is not None, "what is kept free does not count"
    lease = cache.begin(text(60, 12 * SIZE))
    stats = cache.stats()
    assert (stats["device_evicted"], stats["device_dropped"]) == (12, 0), "four more had a copy"
    cache.finish(lease)


@pytest.mark.law("R2-11")
@pytest.mark.parametrize("eviction", ["recency", "learned", "heap"])
def test_a_block_that_is_being_read_counts_as_no_victim(eviction: Any) -> None:
    cache = by.KVCache(
        block_size=SIZE, device=65, host=200, write="second-touch", spare=8, eviction=eviction
    )
    parent = cache.begin(text(1, 2 * SIZE - 2))
    # Its last block is copied on the device, and is full and idle before the copy has ended.
    child = cache.fork(parent, 2 * SIZE - 2)
    cache.grow([parent], 2)
    cache.append(parent, text(2, 2), 2)
    cache.seal(parent, 2 * SIZE)
    cache.finish([parent, child])
    for name in range(4):
        once = cache.begin(text(10 + name, SIZE))
        cache.seal(once, SIZE)
        cache.finish(once)
    for _ in range(2):
        again = cache.begin([*text(20, 8 * SIZE), 1])
        cache.seal(again, 8 * SIZE)
        cache.finish(again)
    held = cache.begin(text(30, cache.room().free * SIZE))
    assert (cache.make_spare(), cache.audit()) == (4, None), "those that were used once"
    cache.finish(held)


def test_an_engine_of_its_own_blocks_has_none_to_keep() -> None:
    cache = by.KVCache(engine=6400, host=64)
    assert (cache.config.spare_blocks, cache.make_spare()) == (0, 0)


def test_a_smaller_rank_says_that_it_is_too_much() -> None:
    config = by.Config(device=6400, spare=100)
    hello = Hello(0, config.fingerprint, device=640, host=0)
    with pytest.raises(by.Misuse, match=r"spare = 100: .* give 10 at most"):
        by.agree(config, [hello])


@pytest.mark.law("R2-11")
def test_a_scheduler_makes_it_in_steps_that_only_prefill() -> None:
    cache = full(spare=8)
    scheduler = by.Scheduler(cache)
    scheduler.add(by.NewRequest("long", text(70, 16 * SIZE), max_tokens=1))
    step = scheduler.schedule()
    assert (told(cache)[2], len(step.decode)) == (0, 0)
    seats = step.seats[step.samples]
    scheduler.on_output(by.Output(step.number, seats, np.zeros(len(seats), np.uint32)))
    assert told(cache)[0] >= 8
    assert told(cache)[2] > 0
