"""The life of a sequence, by example."""

import copy
from typing import Any

import numpy as np
import pytest

import blockyard as by
from yard import at_rest, begin, free_for_all, publish, table, text, unchanged


def make(device: int = 33, host: int = 32, **keywords: Any) -> by.KVCache:
    return by.KVCache(block_size=4, device=device, host=host, **keywords)


def resume(cache: by.KVCache, parked: by.Parked, **keywords: Any) -> by.Lease:
    lease = cache.begin(parked, **keywords)
    assert isinstance(lease, by.Lease)
    return lease


def test_a_second_request_finds_the_prefix_of_the_first() -> None:
    cache = make()
    first = begin(cache, text(1, 14))
    assert (first.cached, first.hits, first.stop, first.plans) == (0, (0, 0, 0, 0), "missing", ())
    assert cache.seal(first, 14) == 3
    second = begin(cache, text(1, 14))
    assert (second.cached, second.hits, second.stop) == (12, (3, 0, 0, 0), "whole")
    assert table(cache, second)[:3] == table(cache, first)[:3]
    assert table(cache, second)[3] != table(cache, first)[3]
    cache.finish([first, second])
    assert begin(cache, [*text(1, 9), 5, 5, 5, 5]).cached == 8
    assert cache.probe().device == 0


def test_a_full_hit_computes_its_last_token_in_a_private_copy_of_the_last_block() -> None:
    cache = make()
    publish(cache, text(1, 12))
    lease = begin(cache, text(1, 12))
    (plan,) = lease.plans
    assert (lease.cached, lease.hits, lease.state) == (11, (3, 0, 0, 0), "loading")
    assert (plan.source_tier, plan.destination_tier, len(plan)) == ("device", "device", 1)
    assert plan.destinations.tolist() == table(cache, lease)[2:]
    with pytest.raises(by.Misuse, match="loading"):
        cache.seal(lease, 12)
    assert cache.commit(plan) == 1
    assert lease.state == "ready"
    assert (cache.seal(lease, 12), cache.stats()["duplicates"]) == (1, 1)
    cache.finish(lease)
    at_rest(cache)


def test_a_decode_loop_sees_the_whole_table_by_its_changed_cells() -> None:
    cache = make(device=200)
    batch = [begin(cache, text(row, 3 + 2 * row), reserve=40) for row in range(1, 9)]
    tables = np.zeros((8, 16), np.int32)
    cache.block_tables(batch, tables)
    mapping = np.full(10, 7, np.int64)
    for step in range(40):
        cache.append(batch, [step] * 8)
        assert cache.grow(batch).tolist() == []
        new = sum(lease.tokens % 4 == 1 for lease in batch)
        assert cache.block_tables(batch, tables, cells="changed") == new
        whole = np.zeros_like(tables)
        cache.block_tables(batch, whole)
        assert (tables == whole).all()
        last = [lease.tokens - 1 for lease in batch]
        assert cache.slot_mapping(batch, last, None, mapping) == 8
        naive = [tables[row, at // 4] * 4 + at % 4 for row, at in enumerate(last)]
        assert mapping.tolist() == [*naive, 0, 0], "the rest is in the null slot"
        cache.seal(batch, [lease.appended for lease in batch])
    assert [lease.sealed for lease in batch] == [lease.appended // 4 for lease in batch]
    cache.finish(batch)
    at_rest(cache)


def test_a_slot_mapping_of_ranges_is_the_naive_one() -> None:
    cache = make()
    batch = [begin(cache, text(1, 18)), begin(cache, text(2, 7)), begin(cache, text(3, 5))]
    first, counts = [3, 0, 4], [12, 7, 0]
    slots = [table(cache, lease) for lease in batch]
    naive = [
        slots[row][at // 4] * 4 + at % 4
        for row in range(3)
        for at in range(first[row], first[row] + counts[row])
    ]
    mapping = cache.slot_mapping(batch, first, counts)
    assert (mapping.tolist(), mapping.dtype.name) == (naive, "int64")
    assert cache.slot_mapping(batch, 0, 0).tolist() == []


def test_tables_are_padded_with_the_null_slot_that_is_never_given() -> None:
    cache = make(device=12, null_slots=2)
    batch = [begin(cache, text(1, 13)), begin(cache, text(2, 5))]
    tables = cache.block_tables(batch)
    assert tables.shape == (2, 4)
    assert tables[1, 2:].tolist() == [0, 0]
    held = [*tables[0].tolist(), *tables[1, :2].tolist()]
    assert len(set(held)) == 6
    assert min(held) == 2
    given = np.full((3, 6), 7, np.int32)
    assert cache.block_tables(batch, given) == 12
    assert given[2].tolist() == [7] * 6, "a row that no sequence has"


def test_growth_inside_a_promise_never_fails_and_beyond_it_names_the_rows() -> None:
    cache = make(device=11)
    promised, other = begin(cache, text(1, 4), reserve=12), begin(cache, text(2, 4))
    assert (promised.promised, other.promised) == (3, 0)
    unserved = cache.grow([other, promised, other], [16, 12, 24])
    assert (unserved.tolist(), unserved.dtype.name) == ([2], "int32")
    assert (other.tokens, promised.tokens, promised.promised) == (20, 16, 0)
    assert cache.stats()["unserved"] == 1
    cache.finish([promised, other])
    at_rest(cache)


def test_drafts_that_were_not_accepted_are_trimmed_and_promised_again() -> None:
    cache = make()
    lease = begin(cache, text(1, 4), reserve=8)
    cache.grow(lease, 8)
    assert (lease.blocks, lease.promised) == (3, 0)
    cache.append(lease, [1])
    cache.trim(lease, 5)
    assert (lease.blocks, lease.tokens, lease.promised) == (2, 5, 1)
    cache.finish(lease)
    at_rest(cache)


def test_what_is_held_twice_is_given_up_in_place() -> None:
    cache = make()
    first, second = begin(cache, text(1, 10)), begin(cache, text(1, 10))
    for lease in (first, second):
        cache.seal(lease, 8)
    own = table(cache, second)[2]
    assert cache.dedup([first, second]) == 2
    assert table(cache, second) == [*table(cache, first)[:2], own]
    assert (cache.dedup(second), cache.stats()["deduped"]) == (0, 2)
    cache.finish([first, second])
    at_rest(cache)


def test_forks_share_full_blocks_and_copy_the_partial_one() -> None:
    cache = make()
    parent = begin(cache, text(1, 10))
    children = [cache.fork(parent, 10, reserve=4) for _ in range(3)]
    for child in children:
        (plan,) = child.plans
        assert plan.sources.tolist() == table(cache, parent)[2:]
        assert table(cache, child)[:2] == table(cache, parent)[:2]
        assert (child.cached, child.promised, child.state) == (10, 1, "loading")
    cache.commit([child.plans[0] for child in children])
    family = [parent, *children]
    cache.append(family, range(8), 2)
    cache.grow(family, 2)
    assert cache.seal(family, 12) == 12, "each has three, of which the first two are the same"
    assert cache.stats()["blocks"] == 2 + 4
    cache.finish(family)
    at_rest(cache)


def test_park_demote_and_resume_go_on_at_exactly_the_same_token() -> None:
    cache = make(device=7)
    lease = begin(cache, text(1, 10))
    cache.append(lease, [5, 6, 7])
    cache.grow(lease, 3)
    parked = cache.park(lease, 12)
    assert (parked.computed, parked.appended, parked.blocks) == (12, 13, 3)
    assert (parked.on_device, parked.state, lease.state) == (3, "kept", "spent")
    plan = cache.demote(2, of=parked)
    assert plan is not None
    cache.commit(plan)
    prompt = [*text(1, 10), 5, 6]
    assert cache.probe(prompt).device == 3, "nothing leaves before its slot is needed"
    other = begin(cache, text(2, 16))
    assert cache.probe(prompt).device == 2, "tail first, as far as the need goes"
    cache.grow(other, 4)
    assert (cache.probe(prompt).device, parked.on_device, parked.state) == (1, 1, "kept")
    assert cache.grow(other, 1).tolist() == [0], "what is kept on the device alone stays there"
    cache.finish(other)
    again = resume(cache, parked, reserve=4)
    assert (again.cached, again.appended, again.hits) == (12, 13, (1, 2, 0, 0))
    cache.commit(again.plans)
    assert (again.state, parked.state) == ("ready", "spent")
    cache.append(again, [8])
    cache.grow(again)
    cache.seal(again, 14)
    assert cache.probe([*text(1, 10), 5, 6, 7, 8]).device == 3
    cache.finish(again)
    at_rest(cache)


def test_two_that_compute_the_same_prompt_keep_their_own_slots_and_publish_one() -> None:
    cache = make()
    first, second = begin(cache, text(1, 9)), begin(cache, text(1, 9))
    own = table(cache, second)
    assert (cache.seal(first, 9), cache.seal(second, 9)) == (2, 2)
    assert table(cache, second) == own
    assert not set(own) & set(table(cache, first))
    stats = cache.stats()
    assert (stats["duplicates"], stats["blocks"]) == (2, 2)
    cache.finish(first)
    assert cache.probe(text(1, 8)).device == 2, "the other one pins it"
    cache.finish(second)
    assert cache.stats()["device_idle"] == 2
    at_rest(cache)


@pytest.mark.parametrize("eviction", ["recency", "heap"])
def test_ended_sessions_go_first_and_retained_ones_last(eviction: Any) -> None:
    cache = make(device=13, eviction=eviction)
    for name, retention in ((1, "retain"), (2, "ordinary"), (3, "session-ended")):
        lease = begin(cache, text(name, 16))
        cache.seal(lease, 16)
        words: Any = retention
        cache.finish(lease, retention=words)
    left = []
    for tokens in (16, 32, 40):
        cache.finish(begin(cache, text(9, tokens)))
        left.append([cache.probe(text(name, 16)).device for name in (1, 2, 3)])
    assert left == [[4, 4, 0], [4, 0, 0], [2, 0, 0]]


def test_clear_detaches_what_runs_and_never_waits() -> None:
    cache = make()
    publish(cache, text(1, 8))
    lease, loading = begin(cache, text(2, 9)), begin(cache, text(1, 8))
    parked = cache.park(begin(cache, text(3, 8)), 8)
    cache.clear()
    assert cache.draining()
    assert cache.probe(text(1, 8)).device == 0
    assert (lease.state, loading.state, parked.state) == ("detached", "loading", "broken")
    assert cache.seal(lease, 8) == 0
    with pytest.raises(by.Misuse, match="detached"):
        cache.park(lease, 9)
    cache.commit(loading.plans)
    cache.grow([lease, loading], 3)
    cache.finish([lease, loading])
    assert not cache.draining()
    again = resume(cache, parked)
    assert (again.cached, again.appended) == (0, 8)
    cache.finish(again)
    at_rest(cache)


def test_a_batch_with_a_lease_named_twice_ends_all_of_them_once() -> None:
    cache = make(device=301)
    leases = [begin(cache, text(name, 8)) for name in range(99)]
    batch = [*leases[:50], leases[7], *leases[50:]]
    with pytest.raises(by.SpentLease, match=f"1 of 100 rows rejected.*lease {leases[7].id} "):
        cache.finish(batch)
    stats = cache.stats()
    assert (stats["finished"], stats["rejected"]) == (99, 1)
    at_rest(cache)


def test_giving_back_what_one_does_not_hold_changes_nothing_else() -> None:
    cache, other = make(), make()
    good, gone, foreign = begin(cache, [1]), begin(cache, [2]), begin(other, [3])
    cache.finish(gone)
    with pytest.raises(by.ForeignLease, match="2 of 3 rows") as caught:
        cache.finish([foreign, good, gone])
    assert f"lease {foreign.id} belongs" in str(caught.value)
    assert f"lease {gone.id} is spent" in str(caught.value)
    before = cache.stats()
    assert (before["finished"], before["rejected"], good.state) == (2, 2, "spent")
    for _ in range(2):
        with pytest.raises(by.SpentLease):
            cache.finish(good)
    assert unchanged(cache.stats()) == unchanged(before)
    assert cache.stats()["rejected"] == 4
    assert (foreign.state, other.stats()["rejected"]) == ("ready", 0)
    at_rest(cache)


def test_a_lease_ends_with_its_block_or_is_taken_back_and_counted_when_dropped() -> None:
    cache = make()
    with begin(cache, text(1, 8)) as lease:
        cache.seal(lease, 8)
    assert lease.state == "spent"
    with begin(cache, text(2, 8)) as lease:
        cache.finish(lease)
    with pytest.raises(RuntimeError, match="mine"), begin(cache, text(2, 8)):
        raise RuntimeError("mine")
    assert cache.stats()["leaked"] == 0
    begin(cache, text(3, 8))
    cache.park(begin(cache, text(4, 8)), 8)
    assert cache.stats()["leaked"] == 2
    del lease
    at_rest(cache)


def test_handles_are_not_copied_keys_are_themselves_and_none_is_changed() -> None:
    cache = make()
    lease, keys = begin(cache, [1]), cache.keys([1])
    for owner in (lease, cache):
        with pytest.raises(TypeError):
            copy.copy(owner)
    assert copy.copy(keys) is keys
    for handle in (lease, cache, keys):
        with pytest.raises(AttributeError):
            handle.id = 3  # type: ignore[union-attr, misc]


def test_stats_are_named_in_the_order_of_their_schema() -> None:
    from blockyard._core import stats_schema  # noqa: PLC0415

    own, per_tier = stats_schema()
    names = [name for name, *_ in own]
    names += [f"{tier}_{name}" for tier in ("device", "host", "disk") for name, *_ in per_tier]
    cache = make()
    assert list(cache.stats())[: len(names)] == names
    assert list(cache.stats()) == [stat.name for stat in cache.schema()]
    assert all(all(field) for field in own + per_tier)
    assert free_for_all(cache) == cache.stats()["device_capacity"] == 32
