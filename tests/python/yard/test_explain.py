"""`explain`: why a prefix missed, why a request waits, what is held, what would make room."""

import re
from typing import Any

import pytest

import blockyard as by
from yard import begin, publish, publish_below, text


@pytest.fixture
def cache() -> by.KVCache:
    return by.KVCache(block_size=4, device=17, host=16, ahead=0)


def test_a_prefix_that_ends_says_where_and_why(cache: by.KVCache) -> None:
    publish(cache, text(1, 8))
    said = str(cache.explain(text(1, 8) + text(2, 8)))
    assert "Of 4 full blocks, 2 are on the device, 0 on the host: 8 of 16 tokens." in said
    assert "The prefix ends at block 2: the next block is on no tier." in said
    assert "16 slots free" not in said
    assert re.search(r"14 slots free, 2 evictable, 0 promised. Holders of blocks: 0\.", said)


def test_what_is_to_be_had_is_what_is_free_or_evictable_and_not_promised(
    cache: by.KVCache,
) -> None:
    publish(cache, text(1, 8))
    room, asked = cache.room(), cache.dry_run([*text(1, 8), 0])
    assert (room.free, room.evictable, room.promised, room.available) == (14, 2, 0, 16)
    assert (asked.need, asked.available, asked.fits) == (1, 14, True)
    lease = begin(cache, text(2, 4), reserve=60)
    room, asked = cache.room(), cache.dry_run([*text(1, 8), 0])
    assert (room.free, room.evictable, room.promised, room.available) == (13, 2, 15, 0)
    assert (asked.need, asked.available, asked.fits) == (1, -2, False), "it would hold the two"
    with pytest.raises(by.NoRoom) as refused:
        begin(cache, [*text(1, 8), 0])
    error = refused.value
    assert (error.need, error.available) == (1, -2)
    assert error.available == error.free + error.evictable - error.promised
    with pytest.raises(by.TooLarge) as never:
        cache.promise(17)
    assert never.value.available == 0
    cache.finish(lease)


def test_a_whole_prefix_has_no_end_to_explain(cache: by.KVCache) -> None:
    publish(cache, text(1, 8))
    assert "ends" not in str(cache.explain(cache.keys(text(1, 8))))


def test_what_is_in_flight_is_named_with_its_flight(cache: by.KVCache) -> None:
    publish_below(cache, text(1, 8))
    lease = begin(cache, [*text(1, 8), 0])
    (plan,) = lease.plans
    said = str(cache.explain(text(1, 8)))
    assert f"the next block is in flight, in flight {plan.flight}." in said
    said = str(cache.explain(lease))
    assert f"Lease {lease.id} is loading: 3 blocks, 2 of them published" in said
    assert "0 blocks were on the device and 2 below" in said
    assert f"It waits for its plans: flights {plan.flight}." in said


def test_blocks_that_are_slow_to_load_are_said_to_be_skipped() -> None:
    cache = by.KVCache(block_size=4, device=17, host=16, ahead=0, block_costs=(10, 5, 0))
    publish_below(cache, text(1, 8))
    said = str(cache.explain(text(1, 8)))
    assert "Now 2 blocks on the host would be skipped: loading them would take longer" in said


def test_a_cache_that_cannot_recompute_skips_nothing() -> None:
    cache = by.KVCache(
        block_size=4, device=17, host=16, ahead=0, block_costs=(10, 5, 0), recompute=False
    )
    publish_below(cache, text(1, 8))
    assert "skipped" not in str(cache.explain(text(1, 8)))


def test_a_bounded_load_is_not_said_to_be_slow(cache: by.KVCache) -> None:
    publish_below(cache, text(1, 8))
    lease = begin(cache, [*text(1, 8), 0], load=0)
    assert "the rest was bounded, or is slower than computing it" in str(cache.explain(lease))


def test_what_a_prompt_finds_idle_is_not_evicted_for_it(cache: by.KVCache) -> None:
    publish(cache, text(1, 8))
    held = begin(cache, text(2, 52))
    with pytest.raises(by.NoRoom):
        cache.begin(text(1, 20))
    said = str(cache.explain(text(1, 20)))
    assert "It waits: it needs 3 slots, and 1 are available beside its cached blocks." in said
    assert f"The end of lease {held.id} would make room." in said


def test_a_full_hit_does_not_wait_for_a_slot_for_the_copy_of_its_last_block(
    cache: by.KVCache,
) -> None:
    publish(cache, text(1, 8))
    held = begin(cache, text(2, 56))
    assert "waits" not in str(cache.explain(text(1, 8)))
    lease = begin(cache, text(1, 8))
    assert (lease.cached, lease.stop) == (4, "promised")
    cache.finish([lease, held])


def test_a_prompt_that_can_never_fit_does_not_wait(cache: by.KVCache) -> None:
    said = str(cache.explain(text(1, 100)))
    assert "It never fits" in said
    assert "It waits" not in said


def test_an_evicted_prefix_is_told_from_one_never_seen() -> None:
    cache = by.KVCache(block_size=4, device=17, host=0, write="second-touch")
    publish(cache, text(1, 8))
    assert "it was not seen lately" in str(cache.explain(text(2, 8)))
    cache.finish(begin(cache, text(3, 64)))
    assert "it was evicted" in str(cache.explain(text(1, 8)))


def test_a_refused_begin_learns_what_is_missing_and_what_holds_it(cache: by.KVCache) -> None:
    small, large = begin(cache, text(1, 8), reserve=4), begin(cache, text(2, 40))
    with pytest.raises(by.NoRoom) as refused:
        cache.begin(text(3, 20))
    said = cache.explain(refused.value)
    assert "The device had no room: 5 slots were needed, 3 were available" in str(said)
    assert f"The end of lease {large.id} would make room." in str(said)
    assert said.holders == (
        ("lease", large.id, 10, 0, 10, (0, 0, 0)),
        ("lease", small.id, 2, 1, 2, (0, 0, 0)),
    )
    assert "It waits: it needs 5 slots, and 3 are available now." in str(cache.explain(text(3, 20)))


def test_what_can_never_fit_is_said_so(cache: by.KVCache) -> None:
    with pytest.raises(by.TooLarge) as refused:
        cache.begin(text(1, 100))
    said = cache.explain(refused.value)
    assert said.lines[0] == "It never fits: 25 slots are needed, and the device has 16."


def test_a_shrink_that_is_refused_says_what_is_in_use(cache: by.KVCache) -> None:
    lease = begin(cache, text(1, 20))
    with pytest.raises(by.InUse) as refused:
        cache.resize("device", 4)
    said = cache.explain(refused.value)
    assert said.lines[0].startswith("The device cannot have 3 slots: 5 are held, promised")
    cache.finish(lease)


def test_ends_that_free_nothing_are_not_said_to_make_room(cache: by.KVCache) -> None:
    publish(cache, text(1, 32))
    shared = [begin(cache, [*text(1, 32), 0]) for _ in range(3)]
    with pytest.raises(by.NoRoom) as refused:
        cache.begin(text(2, 40))
    said = cache.explain(refused.value)
    assert "no single end is sure to make room" in str(said)
    assert [row[4] for row in said.holders] == [1, 1, 1]
    cache.finish(shared)
    cache.finish(begin(cache, text(2, 40)))


def test_what_a_parked_sequence_was_promised_is_no_room_on_the_device(cache: by.KVCache) -> None:
    lease = begin(cache, text(1, 24))
    parked = cache.park(lease, 24)
    held = begin(cache, text(2, 32))
    with pytest.raises(by.NoRoom) as refused:
        cache.begin(text(3, 40))
    # 2 slots are free: with the 6 of the parked one there are 8, and not the 14 of its promise.
    said = str(cache.explain(refused.value))
    assert f"The end of lease {held.id} would make room." in said
    with pytest.raises(by.NoRoom) as refused:
        cache.begin(text(3, 60))
    said = str(cache.explain(refused.value))
    assert f"The end of lease {held.id}, parked {parked.id} would make room." in said
    cache.finish(held)
    cache.abandon(parked)
    cache.finish(begin(cache, text(3, 60)))


def test_a_refusal_of_the_host_names_no_end(cache: by.KVCache) -> None:
    cache.resize("host", 3)
    parked = cache.park(begin(cache, text(1, 8)), 8)
    lease = begin(cache, text(2, 8))
    with pytest.raises(by.NoRoom) as refused:
        cache.park(lease, 8)
    said = str(cache.explain(refused.value))
    assert "The host had no room: 2 slots were needed, 1 were available" in said
    assert "The end of" not in said
    cache.finish(lease)
    cache.abandon(parked)


def test_parked_and_spent_handles_are_explained(cache: by.KVCache) -> None:
    lease = begin(cache, text(1, 10))
    parked = cache.park(lease, 10)
    assert f"Lease {lease.id} is spent." in str(cache.explain(lease))
    said = str(cache.explain(parked))
    assert f"Parked sequence {parked.id} is kept whole: 10 tokens in 3 blocks, 3 of them" in said
    cache.abandon(parked)
    assert f"Parked sequence {parked.id} is spent." in str(cache.explain(parked))


def test_to_explain_changes_nothing(cache: by.KVCache) -> None:
    publish(cache, text(1, 8))
    before = cache.stats()
    cache.explain(text(1, 8))
    assert cache.stats() == before


@pytest.mark.parametrize("eviction", ["recency", "heap"])
def test_misses_of_evicted_blocks_are_counted_where_keys_are_remembered(eviction: Any) -> None:
    for ghosts, counted in ((None, 0), (0, 0), (64, 2)):
        cache = by.KVCache(block_size=4, device=17, host=0, eviction=eviction, ghosts=ghosts)
        publish(cache, text(1, 8))
        cache.finish(begin(cache, text(3, 64)))
        cache.finish(begin(cache, text(1, 8)))
        assert cache.stats()["missed_evicted"] == counted
        assert cache.stats()["missed_unseen"] == 2 + 16 + 2 - counted


def test_headroom_is_named_where_it_is_what_lacks(cache: by.KVCache) -> None:
    held = begin(cache, text(1, 8))
    free = cache.room().available
    cache.set_headroom(free - 2)
    wants = text(2, 4 * free)
    said = str(cache.explain(wants))
    assert f"{free - 2} slots are headroom, kept for the growth of running sequences." in said
    assert "They would be enough" in said
    with pytest.raises(by.NoRoom) as refused:
        cache.begin(wants)
    assert "They would be enough" in str(cache.explain(refused.value))
    said = str(cache.explain(text(2, 4 * free + 4)))
    assert f"{free - 2} slots are headroom" in said
    assert f"The end of lease {held.id} would make room." in said
    cache.finish(held)


def test_idle_blocks_that_a_copy_holds_are_named_with_the_rank_that_has_not_spoken() -> None:
    cache = by.KVCache(
        block_size=4, device=9, host=8, disk=8, ahead=0, ranks=2, deadline=3, keyed=("disk",)
    )
    publish(cache, text(1, 24))
    plan, later = cache.demote(2), cache.demote(4)
    assert plan is not None
    assert later is not None
    said = str(cache.explain(text(2, 32)))
    held = "Copies hold 6 idle blocks of the device until flights end: "
    named = f"flight {plan.flight} waits to be dispatched, flight {later.flight} waits to be"
    assert held + named in said
    cache.dispatch()
    cache.commit([by.Outcome(plan.flight, 0, 2), by.Outcome(later.flight, 1, 2)])
    with pytest.raises(by.NoRoom) as refused:
        begin(cache, text(2, 32))
    for asked in (refused.value, text(2, 32)):
        named = f"flight {plan.flight} waits for rank 1, flight {later.flight} waits for rank 0."
        assert held + named in str(cache.explain(asked))
    # Past the deadline nothing is held, but for what would be kept on a disk.
    cache.commit([], now=3)
    assert "Nobody" not in str(cache.explain(refused.value))
    assert cache.room().evictable == 6


def test_what_goes_to_a_disk_that_lasts_is_named_past_its_deadline_too() -> None:
    cache = by.KVCache(
        block_size=4, device=9, disk=8, ahead=0, ranks=2, deadline=3, keyed=("disk",)
    )
    publish(cache, text(1, 24))
    plan = cache.demote(6)
    assert plan is not None
    cache.dispatch()
    cache.commit([by.Outcome(plan.flight, 0, 6)])
    cache.commit([], now=3)
    with pytest.raises(by.NoRoom) as refused:
        begin(cache, text(2, 32))
    held = "Copies hold 6 idle blocks of the device until flights end: "
    named = f"flight {plan.flight} waits for rank 1."
    assert held + named in str(cache.explain(refused.value))
    assert cache.idle_in_flight() == {"device": (6, [plan.flight])}
    cache.commit([by.Outcome(plan.flight, 1, 0, by.Cause.DEAD)])
    assert cache.idle_in_flight() == {}
    cache.finish(begin(cache, text(2, 32)))


def test_what_stores_have_is_said_and_no_word_of_them_where_there_are_none() -> None:
    cache = by.KVCache(block_size=4, device=9, remote=9)
    assert "stores" not in str(cache.explain(text(1, 12)))
    assert cache.adopt(cache.keys(text(1, 12))) == 3
    said = str(cache.explain(text(1, 12)))
    assert "0 are on the device, 0 on the host, 3 in stores: 12 of 12 tokens" in said
