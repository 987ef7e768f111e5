"""What a cache tells of its blocks, decoded as vLLM's own types would be (O1 to O5)."""

import contextlib
import itertools
import random
import threading
from typing import Any, Literal

import msgspec
import pytest

import blockyard as by
from kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch, Router, decode
from yard import publish

SIZE = 4
Event = AllBlocksCleared | BlockRemoved | BlockStored


def taken(cache: by.KVCache) -> list[Event]:
    events: list[Event] = []
    more = True
    while more:
        payload, more = cache.take_events()
        events += [] if payload is None else decode(payload)
    return events


def listening(**config: int) -> by.KVCache:
    cache = by.KVCache(block_size=SIZE, **({"device": 33, "host": 32, "ahead": 0} | config))  # type: ignore[arg-type]
    cache.listen()
    assert [type(one) for one in taken(cache)] == [AllBlocksCleared], "a start is a clear"
    return cache


def stored(events: list[Event]) -> list[BlockStored]:
    return [one for one in events if isinstance(one, BlockStored)]


def hear(payload: bytes | None, *routers: Router) -> None:
    if payload is not None:
        for router in routers:
            router.hear(payload)


def play(cache: by.KVCache, tokens: list[int], **extras: str) -> None:
    lease = cache.begin(tokens, **extras)  # type: ignore[call-overload]
    assert isinstance(lease, by.Lease)
    cache.commit(cache.dispatch())
    cache.seal(lease, len(tokens))
    cache.finish(lease)


def test_a_sealed_prompt_is_one_event_with_its_tokens_and_what_follows_names_it() -> None:
    cache = listening()
    play(cache, list(range(13)))
    (first,) = taken(cache)
    assert isinstance(first, BlockStored)
    assert first.token_ids == list(range(12))
    assert (first.block_size, first.medium, first.parent_block_hash) == (SIZE, "GPU", None)
    assert (first.lora_id, first.lora_name, first.extra_keys) == (None, None, None)
    keys = bytes(cache.keys(range(12)))
    numbers = [int.from_bytes(keys[at + 24 : at + 32], "big") for at in range(0, len(keys), 32)]
    assert first.block_hashes == numbers, "the last eight bytes of its keys"
    play(cache, [*range(12), 50, 51, 52, 53])
    (second,) = taken(cache)
    assert isinstance(second, BlockStored)
    assert second.parent_block_hash == first.block_hashes[-1]
    assert second.token_ids == [50, 51, 52, 53]


def test_a_copy_below_is_told_when_it_has_landed_and_an_eviction_when_it_has_gone() -> None:
    cache = listening()
    play(cache, list(range(12)))
    told = stored(taken(cache))[0].block_hashes
    plan = cache.demote(3)
    assert plan is not None
    assert taken(cache) == [], "in the air it is nowhere"
    cache.commit([plan])
    assert {name for one in stored(taken(cache)) for name in one.block_hashes} == set(told)
    cache.resize("device", 1 + 1)
    removed = [one for one in taken(cache) if isinstance(one, BlockRemoved)]
    assert {one.medium for one in removed} == {"GPU"}
    names = [name for one in removed for name in one.block_hashes]
    assert names == told[::-1][: len(names)], "the deepest first"


@pytest.mark.law("O5")
def test_a_salted_block_is_told_with_its_salt_or_not_at_all() -> None:
    hidden, told = listening(), by.KVCache(block_size=SIZE, device=33)
    told.listen(salts="tell")
    for cache in (hidden, told):
        play(cache, list(range(8)), salt="a tenant's")
    assert taken(hidden) == []
    assert hidden.event_stats()["salted"] == 2
    payload, _ = told.take_events()
    assert payload is not None
    *_, event = msgspec.msgpack.decode(payload)[1]
    assert event["cache_salt"] == "a tenant's", "so that no router takes it for another's"
    assert event["extra_keys"] == [["a tenant's"], None], "as vLLM says it"
    assert b"a tenant's" not in hidden.snapshot_events()[1]


def test_an_adapter_and_media_are_told_and_split_the_events() -> None:
    cache = listening()
    play(cache, list(range(8)), lora="an adapter")
    keys = cache.keys(range(8), media=[(1, 6, "an image")])
    lease = cache.begin(keys)
    assert isinstance(lease, by.Lease)
    cache.seal(lease, 8)
    named, shown = stored(taken(cache))
    assert (named.lora_name, named.extra_keys) == ("an adapter", None)
    assert shown.lora_name is None
    assert shown.extra_keys == [(["an image", 1],), (["an image", -3],)]


@pytest.mark.law("O1")
def test_what_the_engine_has_made_the_keys_of_is_told_by_its_own_numbers() -> None:
    cache = by.KVCache(block_size=SIZE, engine=8, host=8)
    cache.listen(clears="own")
    keys = cache.ready_keys([bytes([at] * 32) for at in (1, 2, 3)], 12)
    cache.describe(keys, range(4), numbers=[101])
    plan = cache.offload(keys, [0, 1, 2])
    assert plan is not None
    cache.commit([plan])
    cache.describe(keys, range(4, 12), first=1, numbers=[101, 102, 1 << 63 | 103])
    events = stored(taken(cache))
    blocks = {name: one.medium for one in events for name in one.block_hashes}
    assert blocks == dict.fromkeys((101, 102, 1 << 63 | 103), "CPU")
    assert [one.token_ids for one in events] == [list(range(12))]
    assert [one.parent_block_hash for one in events] == [None]
    cache.clear()
    (gone,) = taken(cache)
    assert isinstance(gone, BlockRemoved), "what others tell of this rank stays"
    assert set(gone.block_hashes) == set(blocks)


@pytest.mark.law("O1")
def test_what_a_restart_has_found_is_told_when_a_prompt_brings_its_tokens() -> None:
    cache = by.KVCache(block_size=SIZE, device=33, host=8)
    cache.listen()
    keys = bytes(cache.keys(range(12)))
    rows = [keys[at : at + 32] for at in range(0, 96, 32)]
    both = [b"".join(rows), b"".join([bytes(32), *rows[:-1]])]
    own, parents = (memoryview(one).cast("B", (3, 32)) for one in both)
    cache.restore("host", [0, 1, 2], own, parents)
    assert stored(taken(cache)) == []
    assert cache.event_stats()["unknown_tokens"] == 3
    play(cache, list(range(13)))
    media = {(name, one.medium) for one in stored(taken(cache)) for name in one.block_hashes}
    assert len(media) == 6, "on both tiers"
    assert cache.event_stats()["unknown_tokens"] == 0


@pytest.mark.law("O3")
def test_a_ring_that_overflows_is_counted_and_all_is_told_again() -> None:
    cache = by.KVCache(block_size=SIZE, device=257, host=64)
    cache.listen(ring=16)
    router = Router()
    for name in range(12):
        play(cache, [name] * 40)
    more, batches = True, 0
    while more:
        payload, more = cache.take_events()
        batches += 1
        if payload is not None:
            router.hear(payload)
    told = cache.event_stats()
    assert told["lost"] > 0
    assert told["resyncs"] == 1
    assert batches > 3, "no slice is larger than the ring"
    assert all(router.found([name] * 40, "GPU", SIZE) == 10 for name in range(12))


@pytest.mark.law("O1")
@pytest.mark.parametrize("seed", range(4))
def test_a_router_knows_of_every_prompt_what_the_cache_knows(seed: int) -> None:
    chance = random.Random(seed)
    cache, router = listening(device=25, host=30, disk=40), Router()
    late: bytes | None = None
    for turn in range(150):
        stem = [chance.randrange(3)] * SIZE * chance.randrange(1, 4)
        prompt = stem + [chance.randrange(4)] * SIZE * chance.randrange(1, 3)
        play(cache, [*prompt, 99])
        for _ in range(chance.randrange(3)):
            tier = chance.choice(["device", "host"])
            plan = cache.demote(chance.randrange(1, 6), tier=tier)  # type: ignore[arg-type]
            if plan is not None:
                whole = chance.random() < 0.8
                cache.commit([plan], good=[len(plan) if whole else 0])
        if turn % 50 == 49:
            cache.clear()
        payload, _ = cache.take_events()
        if payload is not None:
            router.hear(payload)
        gone, late = cache.snapshot_events()
        assert gone is None, "all was taken"
        probe = cache.probe(prompt)
        assert router.found(prompt, "GPU", SIZE) == probe.device, "no block over or under"
    again = Router()
    assert late is not None
    again.hear(late)
    assert again.blocks == router.blocks, "who comes late knows the same"


@pytest.mark.parametrize(("seed", "ring"), [(1, 9), (4, 9), (6, 12), (28, 12)])
def test_while_all_is_told_again_what_goes_is_told_too(seed: int, ring: int) -> None:
    chance = random.Random(seed)
    cache = by.KVCache(block_size=SIZE, device=60, host=50, disk=40, write="through")
    cache.listen(ring=ring)
    router, running = Router(), []
    for _ in range(1500):
        prompt = [chance.randrange(4)] * SIZE * chance.randrange(1, 5)
        prompt += [*[chance.randrange(6)] * SIZE * chance.randrange(5), 1]
        with contextlib.suppress(by.NoRoom):
            running.append((cache.begin(prompt), len(prompt)))
        if running and chance.random() < 0.6:
            lease, length = running.pop(chance.randrange(len(running)))
            if lease.state == "ready":
                cache.seal(lease, length)
                assert cache.audit() is None
            cache.finish(lease)
        if chance.random() < 0.2:
            cache.demote(chance.randrange(1, 20), tier=chance.choice(["device", "host"]))
        if chance.random() < 0.2 and (plans := cache.dispatch()):
            good = [chance.choice([len(plan), chance.randrange(len(plan) + 1)]) for plan in plans]
            cache.commit(plans, good=good)
        assert cache.audit() is None
        if chance.random() < 0.1:
            payload, _ = cache.take_events()
            if payload is not None:
                router.hear(payload)


def change(cache: by.KVCache, chance: random.Random, prompt: list[int]) -> None:
    """Copies, and now and then something rare."""
    cache.demote(chance.randrange(1, 9), tier=chance.choice(["device", "host"]))
    if chance.random() < 0.5 and (plans := cache.dispatch()):
        good = [chance.choice([len(plan), chance.randrange(len(plan) + 1)]) for plan in plans]
        cache.commit(plans, good=good)
    match chance.randrange(60):
        case 0:
            cache.clear()
        case 1:
            cache.forget(keys=cache.keys(prompt))
        case 2:
            cache.resize("host", chance.choice([9, 18]))


@pytest.mark.parametrize(("size", "blocks"), [(1, 1000), (16, 1000), (256, 60), (1024, 20)])
def test_the_lock_is_held_for_few_blocks_and_few_tokens_at_a_time(size: int, blocks: int) -> None:
    cache = by.KVCache(block_size=size, device=blocks + 1)
    cache.listen()
    play(cache, list(range(blocks * size)))
    slices, more = [], True
    while more:
        payload, more = cache.take_events()
        assert payload is not None
        (event,) = stored(decode(payload))
        slices.append(len(event.block_hashes))
    assert sum(slices) == blocks
    assert max(slices) <= 384
    assert max(slices) * size <= 6144


@pytest.mark.law("O1")
@pytest.mark.parametrize("clears", ["all", "own"])
@pytest.mark.parametrize("ring", [9, 24, 4096])
@pytest.mark.parametrize("seed", range(6))
def test_whoever_follows_from_any_snapshot_knows_what_the_first_one_knows(
    seed: int, ring: int, clears: Literal["all", "own"]
) -> None:
    chance = random.Random(seed)
    cache = by.KVCache(block_size=SIZE, device=21, host=18, disk=12, write="through")
    cache.listen(ring=ring, clears=clears)
    first, late, running, most = Router(), Router(), [], 0
    for turn in range(400):
        prompt = [chance.randrange(3)] * SIZE * chance.randrange(1, 4)
        prompt += [*[chance.randrange(5)] * SIZE * chance.randrange(4), 1]
        extras: dict[str, Any] = chance.choice(
            [{}, {}, {"salt": "s"}, {"lora": "own"}, {"media": [(1, 3, "i")]}]
        )
        with contextlib.suppress(by.NoRoom):
            running.append((cache.begin(prompt, **extras), len(prompt)))
        if running and chance.random() < 0.7:
            lease, length = running.pop(chance.randrange(len(running)))
            if lease.state == "ready":
                cache.seal(lease, length)
            cache.finish(lease)
        change(cache, chance, prompt)
        assert cache.audit() is None
        if turn % 97 == 50:
            # Some of what has happened is in no batch yet.
            gone, snapshot = cache.snapshot_events()
            hear(gone, first)
            late = Router()
            late.hear(snapshot)
        if chance.random() < 0.2:
            payload, _ = cache.take_events()
            hear(payload, first, late)
            most = max(most, len(first.blocks))
    more = True
    while more:
        payload, more = cache.take_events()
        hear(payload, first, late)
    gone, snapshot = cache.snapshot_events()
    assert gone is None
    last = Router()
    last.hear(snapshot)
    assert first.blocks == late.blocks == last.blocks
    assert most > 5, "it knows some"


@pytest.mark.law("O1")
def test_while_a_snapshot_is_made_whoever_begins_with_it_hears_of_no_other_block_go() -> None:
    blocks, sequence = 6000, 50
    cache = by.KVCache(block_size=SIZE, device=blocks + 1)
    cache.listen()
    stop, went = threading.Event(), 0

    def compute() -> None:
        for name in itertools.count():
            if stop.is_set():
                break
            play(cache, [name] * sequence * SIZE)

    engine = threading.Thread(target=compute)
    engine.start()
    try:
        routers = [Router()]
        while went < 3 and engine.is_alive():
            payload, _ = cache.take_events()
            hear(payload, *routers)
            if len(routers[0].blocks) < blocks // 2:
                continue
            gone, snapshot = cache.snapshot_events()
            if gone is not None:
                went += 1
                routers[0].hear(gone)
            late = Router()
            late.hear(snapshot)
            assert late.blocks == routers[0].blocks
            routers[1:] = [late]
    finally:
        stop.set()
        engine.join()
    assert went == 3


def test_of_a_place_that_is_used_again_before_anybody_asks_each_block_has_its_own_tokens() -> None:
    cache = listening(device=7, host=0)
    play(cache, [1] * 3 * SIZE)
    (old,) = stored(taken(cache))
    for name in (2, 3, 4):
        # The places of all blocks are used again, of some twice.
        play(cache, [name] * 6 * SIZE)
    removed, new = taken(cache)
    assert isinstance(removed, BlockRemoved)
    assert removed.block_hashes == old.block_hashes[::-1], "the deepest first"
    assert isinstance(new, BlockStored)
    assert (new.token_ids, new.parent_block_hash) == ([4] * 6 * SIZE, None)
    assert cache.event_stats()["stored"] == 3 + 6, "what came and went meanwhile is not told"


def test_what_is_told_again_names_its_parent_by_the_number_that_it_had() -> None:
    cache = by.KVCache(block_size=SIZE, engine=64, host=64)
    cache.listen(ring=16)
    keys = cache.ready_keys([bytes([at] * 32) for at in (1, 2)], 2 * SIZE)
    # Of the first block nobody says the tokens.
    cache.describe(keys, range(SIZE), first=1, numbers=[101, 102])
    cache.offload(keys, [0, 1])
    cache.commit(cache.dispatch())
    assert [(one.block_hashes, one.parent_block_hash) for one in stored(taken(cache))] == [
        ([102], 101)
    ]
    for name in range(3, 30):
        cache.offload(cache.ready_keys([bytes([name] * 32)], SIZE), [name])
        cache.commit(cache.dispatch())
    again = stored(taken(cache))
    assert cache.event_stats()["resyncs"] == 1
    assert [(one.block_hashes, one.parent_block_hash) for one in again] == [([102], 101)]


def test_a_block_that_has_gone_lacks_nothing() -> None:
    cache = by.KVCache(block_size=SIZE, device=33, host=8)
    cache.listen()
    keys = memoryview(bytes(cache.keys(range(3 * SIZE)))).cast("B", (3, 32))
    cache.restore("host", [0, 1, 2], keys, memoryview(bytes(96)).cast("B", (3, 32)))
    taken(cache)
    assert cache.event_stats()["unknown_tokens"] == 3
    assert cache.withdraw("host", [0, 1, 2]) == 3
    taken(cache)
    assert cache.event_stats()["unknown_tokens"] == 0


@pytest.mark.law("O4")
def test_who_listens_changes_no_answer_and_no_digest() -> None:
    caches = [by.KVCache(block_size=SIZE, device=17, host=16) for _ in range(2)]
    caches[0].listen(ring=64)
    chance = random.Random(1)
    for _ in range(60):
        prompt = [chance.randrange(3)] * SIZE * chance.randrange(1, 4) + [9]
        for cache in caches:
            play(cache, prompt)
        caches[0].take_events()
        assert caches[0].digest() == caches[1].digest()


def test_what_is_refused_says_what_to_do() -> None:
    cache = by.KVCache(block_size=SIZE, device=9)
    for call in (cache.take_events, cache.snapshot_events, cache.event_stats):
        with pytest.raises(by.Misuse, match="call listen first"):
            call()
    with pytest.raises(by.Misuse, match="salts"):
        cache.listen(salts="some")  # type: ignore[arg-type]
    with pytest.raises(by.Misuse, match="ring = 3"):
        cache.listen(ring=3)
    cache.listen()
    with pytest.raises(by.Misuse, match="has a listener"):
        cache.listen()
    keys = cache.ready_keys([bytes([1] * 32)], 4)
    with pytest.raises(by.Misuse, match="tokens = 3"):
        cache.describe(keys, range(3))
    with pytest.raises(by.Misuse, match="numbers = 2"):
        cache.describe(keys, range(4), numbers=[1, 2])


def test_a_batch_carries_its_time_and_rank() -> None:
    cache = by.KVCache(device=9)
    cache.listen()
    payload, more = cache.take_events(now=12.5, rank=3)
    assert payload is not None
    assert not more
    batch = msgspec.msgpack.decode(payload, type=KVEventBatch)
    assert (batch.ts, batch.data_parallel_rank) == (12.5, 3)


def unheard(ring: int, **config: int) -> by.KVCache:
    """A cache that tells of what comes from now on, and that nobody asks for a while."""
    cache = by.KVCache(block_size=SIZE, **({"device": 64} | config))  # type: ignore[arg-type]
    cache.listen(ring=ring)
    taken(cache)
    return cache


def test_blocks_that_a_prompt_has_found_take_no_room_from_those_that_are_new() -> None:
    cache = unheard(4096, device=512)
    prefix = list(range(300 * SIZE))
    play(cache, prefix)
    for one in range(200):
        play(cache, [*prefix, *[5000 + one] * SIZE])
    assert sum(len(one.block_hashes) for one in stored(taken(cache))) == 500
    assert (cache.event_stats()["lost"], cache.event_stats()["unknown_tokens"]) == (0, 0)


def test_seals_that_publish_nothing_take_no_room_either() -> None:
    cache = unheard(16)
    running = cache.begin(list(range(20 * SIZE)))
    assert isinstance(running, by.Lease)
    cache.clear()
    for _ in range(100):
        cache.seal(running, 20 * SIZE)
    cache.finish(running)
    for one in range(20):
        play(cache, [1000 + one] * SIZE)
    assert sum(len(one.block_hashes) for one in stored(taken(cache))) == 20
    assert cache.event_stats()["unknown_tokens"] == 0


def test_a_block_whose_parent_was_dropped_is_told_behind_it_however_long_nobody_asks() -> None:
    cache = by.KVCache(block_size=SIZE, device=16, host=64, write="through")
    cache.listen(ring=16)
    taken(cache)

    def publish(tokens: list[int]) -> None:
        lease = cache.begin(tokens, read_prefix=False)
        assert isinstance(lease, by.Lease)
        cache.seal(lease, len(tokens))
        cache.finish(lease)
        while plans := cache.dispatch():
            cache.commit(plans)

    prompt = list(range(4 * SIZE))
    publish(prompt)
    for one in range(6):
        publish([500 + one] * 3 * SIZE)
    assert cache.withdraw("host", [0]) == 1
    assert cache.probe(prompt).host == 0, "its first block is gone"
    for one in range(200):
        publish([1000 + one % 6] * 3 * SIZE)
    keys = bytes(cache.keys(prompt))
    numbers = [int.from_bytes(keys[at + 24 : at + 32], "big") for at in range(0, len(keys), 32)]
    events = [one for one in stored(taken(cache)) if one.block_hashes[0] in numbers]
    told = [one for event in events for one in event.block_hashes]
    assert sorted(told) == sorted(numbers[1:])
    for event in events:
        assert event.parent_block_hash == numbers[numbers.index(event.block_hashes[0]) - 1]


@pytest.mark.parametrize("salt", [None, "a tenant's"])
def test_a_block_that_others_wait_for_is_no_more_unknown_once_its_tokens_are(
    salt: str | None,
) -> None:
    cache = by.KVCache(block_size=SIZE, device=33)
    before = cache.keys(range(SIZE), salt=salt)
    cache.listen()
    taken(cache)
    lease = cache.begin(before)
    cache.seal(lease, SIZE)
    cache.finish(lease)
    publish(cache, range(2 * SIZE + 1), salt=salt)
    taken(cache)
    for _ in range(3):
        cache.finish(cache.begin(range(2 * SIZE + 1), salt=salt))
        taken(cache)
    assert cache.event_stats()["unknown_tokens"] == 0
    assert cache.audit() is None
