"""`restore`: what a tier has kept from before is found again, by rows and columns as arrays."""

import re
import tracemalloc
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import blockyard as by
from loop import Loop
from yard import at_rest, begin, text

BLOCKS = 8
Rows = dict[str, Any]


def house(**keywords: Any) -> by.KVCache:
    sizes = {"block_size": 4, "device": 13, "host": 8, "disk": 16, "ahead": 0}
    return by.KVCache(**(sizes | keywords))


def keys_of(cache: by.KVCache, tokens: list[int]) -> NDArray[np.uint8]:
    return np.frombuffer(bytes(cache.keys(tokens)), np.uint8).reshape(-1, 32)


def rows(**changed: Any) -> Rows:
    """A prompt of eight blocks, on the disk in the reverse order of its slots."""
    keys = keys_of(house(), text(1, 4 * BLOCKS)).copy()
    parents = np.zeros_like(keys)
    parents[1:] = keys[:-1]
    slots = np.arange(BLOCKS, dtype=np.int64)[::-1].copy()
    return {"tier": "disk", "slots": slots, "keys": keys, "parents": parents} | changed


def test_a_begin_finds_on_the_disk_what_was_restored_and_loads_it_from_its_slots() -> None:
    cache = house()
    given = rows()
    cache.restore(**given)
    assert cache.audit() is None
    probe = cache.probe(text(1, 33))
    assert (probe.device, probe.host, probe.disk, probe.stop) == (0, 0, BLOCKS, "whole")
    room = cache.room("disk")
    assert (room.free, room.evictable, room.available) == (8, 8, 16)
    lease = begin(cache, text(1, 33))
    assert (lease.hits, lease.cached) == ((0, 0, BLOCKS, 0), 4 * BLOCKS)
    (plan,) = lease.plans
    assert (plan.source_tier, plan.destination_tier) == ("disk", "device")
    assert plan.sources.tolist() == given["slots"].tolist()
    cache.commit(plan)
    cache.finish(lease)
    at_rest(cache)


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_each_tier_below_can_be_restored(tier: str) -> None:
    cache = house()
    cache.restore(**rows(tier=tier))
    lease = begin(cache, text(1, 33))
    assert lease.hits == ((0, BLOCKS, 0, 0) if tier == "host" else (0, 0, BLOCKS, 0))
    assert {plan.source_tier for plan in lease.plans} == {tier}
    cache.abort(lease.plans)
    cache.finish(lease)


FORMS: list[tuple[str, dict[str, Any]]] = [
    ("a list of slots", {"slots": rows()["slots"].tolist()}),
    ("a tuple of slots", {"slots": tuple(rows()["slots"].tolist())}),
    ("slots of 32 bits", {"slots": rows()["slots"].astype(np.int32)}),
    ("unsigned slots", {"slots": rows()["slots"].astype(np.uint64)}),
    ("keys as bytes", {"keys": rows()["keys"].tobytes()}),
    ("parents as bytes", {"parents": rows()["parents"].tobytes()}),
    ("keys as a bytearray", {"keys": bytearray(rows()["keys"].tobytes())}),
    ("keys as a memoryview", {"keys": memoryview(rows()["keys"])}),
    ("columns first", {"keys": np.asfortranarray(rows()["keys"])}),
    ("every second row of more", {"keys": np.repeat(rows()["keys"], 2, axis=0)[::2]}),
]


@pytest.mark.parametrize("form", [pytest.param(form, id=name) for name, form in FORMS])
def test_rows_may_be_arrays_or_bytes_and_say_the_same(form: dict[str, Any]) -> None:
    plain, other = house(), house()
    plain.restore(**rows())
    other.restore(**rows(**form))
    assert other.digest() == plain.digest()
    assert other.probe(text(1, 32)).disk == BLOCKS


def test_no_rows_are_no_blocks() -> None:
    cache = house()
    cache.restore("disk", [], b"", b"")
    assert (cache.probe(text(1, 32)).disk, cache.room("disk").free) == (0, 16)
    cache.restore(**rows())
    assert cache.probe(text(1, 32)).disk == BLOCKS


def test_the_oldest_row_leaves_first_but_never_before_what_follows_it() -> None:
    cache = house(disk=BLOCKS)
    other = keys_of(cache, text(2, 16))
    given = rows()
    # The older sequence has four blocks, the newer one, of which the others are a part, four too.
    keys = np.concatenate([given["keys"][:4], other])
    parents = np.zeros_like(keys)
    parents[1:4], parents[5:] = keys[:3], keys[4:7]
    cache.restore("disk", np.arange(8), keys, parents)
    plan = cache.park(begin(cache, text(3, 8)), 8)
    down = cache.demote(2, of=plan, to="disk")
    assert down is not None
    assert sorted(down.destinations.tolist()) == [2, 3], "the tail of the older sequence"
    assert (cache.probe(text(1, 16)).disk, cache.probe(text(2, 16)).disk) == (2, 4)
    cache.commit(down)
    cache.abandon(plan)
    at_rest(cache)


def test_what_follows_a_block_that_did_not_come_back_is_found_when_it_is_there_again() -> None:
    cache = house()
    given = rows()
    cache.restore("disk", given["slots"][1:], keys=given["keys"][1:], parents=given["parents"][1:])
    assert cache.probe(text(1, 32)).disk == 0
    lease = begin(cache, text(1, 5))
    cache.seal(lease, 4)
    probe = cache.probe(text(1, 32))
    assert (probe.device, probe.disk) == (1, BLOCKS - 1)
    cache.finish(lease)
    assert begin(cache, text(1, 33)).hits == (1, 0, BLOCKS - 1, 0)


def changed(name: str, at: int, to: Any) -> dict[str, Any]:
    column = rows()[name]
    column[at] = to
    return {name: column}


KEYS = rows()["keys"]
BAD: list[tuple[str, dict[str, Any], str]] = [
    ("the device", {"tier": "device"}, "tier = device: name a tier below the device"),
    ("an unknown tier", {"tier": "tape"}, 'tier = "tape"'),
    ("fewer slots", {"slots": rows()["slots"][:7]}, "keys = 8: give as many as slots"),
    ("fewer keys", {"keys": KEYS[:7]}, "keys = 7: give as many as slots"),
    ("fewer parents", {"parents": KEYS[:7]}, "parents = 7: give as many as slots"),
    ("a slot twice", changed("slots", 3, 2), "slots = 2: it comes twice"),
    ("a slot beyond", changed("slots", 3, 16), "slots = 16: the tier has no such slot"),
    ("a slot below 0", changed("slots", 3, -1), "slots[3] = -1"),
    ("a slot beyond 32 bits", changed("slots", 3, 2**32), "slots[3] = 4294967296"),
    ("slots of floats", {"slots": rows()["slots"] / 1}, "slots has the dtype float64"),
    ("slots of 8 bits", {"slots": rows()["slots"].astype(np.uint8)}, "slots has the dtype uint8"),
    ("slots of bool", {"slots": [True] * 8}, "slots[0] = True"),
    ("slots in two dimensions", {"slots": rows()["slots"].reshape(2, 4)}, "slots has shape [2, 4]"),
    ("slots swapped", {"slots": rows()["slots"].astype(">i8")}, "byte order"),
    ("no slots", {"slots": None}, "slots is <class 'NoneType'>"),
    ("keys of 31 bytes", {"keys": KEYS[:, :31]}, "keys has 248 bytes"),
    ("keys of other rows", {"keys": KEYS.reshape(16, 16)}, "keys has shape [16, 16]"),
    ("keys in columns", {"keys": KEYS.T}, "keys has shape [32, 8]"),
    ("signed keys", {"keys": KEYS.astype(np.int8)}, "keys is <class 'numpy.ndarray'>"),
    ("wide keys", {"keys": KEYS.astype(np.int64)}, "keys is <class 'numpy.ndarray'>"),
    ("a list of keys", {"keys": [bytes(key) for key in KEYS]}, "keys is <class 'list'>"),
    ("a key cut short", {"keys": KEYS.tobytes()[:-1]}, "keys has 255 bytes"),
    ("no keys", {"keys": None}, "keys is <class 'NoneType'>"),
    ("no parents", {"parents": None}, "parents is <class 'NoneType'>"),
    ("parents cut short", {"parents": KEYS.tobytes()[1:]}, "parents has 255 bytes"),
    ("a key twice", changed("keys", 3, KEYS[2]), f"keys = {bytes(KEYS[2]).hex()}: it comes twice"),
    ("a key of zeros", changed("keys", 3, 0), f"keys = {'00' * 32}: no block has this key"),
    ("a key of ones", changed("keys", 3, 255), f"keys = {'ff' * 32}: no block has this key"),
    ("its own parent", changed("parents", 3, KEYS[3]), f"parents = {bytes(KEYS[3]).hex()}"),
    ("a circle", changed("parents", 0, KEYS[7]), "it is among its own parents"),
]


@pytest.mark.parametrize(("wrong", "says"), [pytest.param(*bad, id=i) for i, *bad in BAD])
def test_bad_rows_are_named_and_nothing_is_changed(wrong: dict[str, Any], says: str) -> None:
    cache = house()
    before, digest = cache.stats(), cache.digest()
    with pytest.raises(by.Misuse, match=re.escape(says)):
        cache.restore(**rows(**wrong))
    assert (cache.digest(), cache.audit()) == (digest, None)
    assert cache.stats() == before | {"rejected": cache.stats()["rejected"]}
    cache.restore(**rows())
    assert cache.probe(text(1, 32)).disk == BLOCKS, "the right rows are taken after all"


def test_after_a_begin_or_another_restore_it_is_too_late() -> None:
    begun, restored = house(), house()
    begin(begun, text(2, 8))
    restored.restore(**rows())
    for cache in (begun, restored):
        digest = cache.digest()
        for tier in ("host", "disk"):
            with pytest.raises(by.Misuse, match="restore once, before the first begin"):
                cache.restore(**rows(tier=tier))
        assert cache.digest() == digest


def test_a_tier_that_is_not_there_cannot_be_restored() -> None:
    cache = house(disk=0)
    with pytest.raises(by.Misuse, match="tier = disk"):
        cache.restore(**rows())


def test_many_rows_are_taken_as_columns_without_an_object_for_each() -> None:
    many = 500_000
    keys = np.random.default_rng(5).integers(0, 256, (many, 32), np.uint8)
    parents = np.zeros_like(keys)
    inner = np.arange(many) % 100 > 0
    parents[inner] = keys[np.flatnonzero(inner) - 1]
    cache = by.KVCache(device=8, disk=many, ghosts=0)
    slots = np.arange(many)
    tracemalloc.start()
    try:
        cache.restore("disk", slots, keys, parents)
        _now, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 100_000, "bytes of objects of Python"
    assert cache.stats()["disk_idle"] == many
    chain = cache.ready_keys(keys[300:400], 1600)
    assert cache.probe(chain).disk == 100


def test_an_engine_goes_on_with_what_was_restored() -> None:
    cache = house()
    cache.restore(**rows())
    loop = Loop(cache=cache)
    loop.add("one", text(1, 34), 6)
    step = loop.schedule()
    assert (step.starts, [plan.source_tier for plan in loop.plans]) == ((), ["disk"])
    loop.land()
    loop.output()
    (start,) = loop.turn().starts
    assert (start.request, start.cached) == ("one", 32)
    loop.finish()
    assert cache.stats()["disk_hits"] == BLOCKS
