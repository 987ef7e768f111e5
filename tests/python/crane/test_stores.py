"""Copies between memory and shared stores: nothing wrong comes in, and nobody waits for a store."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard.crane.copiers import Landed
from blockyard.crane.copiers.store_copier import StoreCopier
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.crane.tiers.remote import RemoteTier
from blockyard.shared.plan import Cause
from cranes import LAYOUTS, SHARED, SMALL, landed, until
from disks import OURS, keys, slots
from memory_stores import MemoryStore, Turned
from store_rig import BLOCKS, Rig

pytestmark = pytest.mark.law("INV-35a", "INV-35b")


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.close()


@pytest.mark.parametrize("name", LAYOUTS)
def test_blocks_come_back_as_they_were(name: str) -> None:
    rig = Rig(layout=LAYOUTS[name])
    assert landed(rig.down(0, 1, 2)) == Landed(3)
    assert landed(rig.up(2, 0, 1, to=(8, 9, 10))) == Landed(3)
    assert rig.holds(8, 2)
    assert rig.holds(9, 0)
    assert rig.holds(10, 1)
    block = rig.tier.layout.block_bytes
    assert {len(value) for value in rig.store.blocks().values()} == {128 + block}
    stats = rig.stats()
    assert (stats["put_blocks"], stats["got_blocks"]) == (3, 3)
    assert (stats["put_bytes"], stats["got_bytes"]) == (3 * block, 3 * block)
    rig.close()
    assert rig.store.closed == rig.store.sessions


def test_addresses_are_of_identity_rank_and_group_and_the_identity_stands_in_clear_text() -> None:
    two = by.KVLayout.llama(2, 2, 8, block_size=4, ranks=2)
    store = MemoryStore()
    for more in ({}, {"rank": 1}, {"group": 3}, {"identity": OURS | {"weights": "v2"}}):
        rig = Rig(store, layout=two, **more)
        assert landed(rig.down(0)) == Landed(1)
        rig.close()
    names = sorted(name.split("/", 2)[2] for name in store.values)
    key = "01" + 62 * "0"
    assert names == [f"0-3/{key}", f"0/{key}", f"0/{key}", f"1/{key}", "identity", "identity"]
    texts = [value for name, value in store.values.items() if name.endswith("/identity")]
    assert all(b'"model": "a model"' in text for text in texts)


def test_a_block_without_a_key_is_for_this_process_and_for_a_time(rig: Rig) -> None:
    named = np.zeros((1, 32), np.uint8)
    named[0, 24:] = 7, 1, 0, 0, 0, 0, 0, 0
    ends = rig.memory, rig.tier, slots(0), slots(0)
    assert landed(rig.copier.start_keyed(*ends, keys=named, parents=named * 0)) == Landed(1)
    (name,) = rig.store.blocks()
    assert name.endswith(f"/0/tmp/{rig.tier.place.boot:016x}/263")
    assert rig.store.ttls[name] == 3600.0
    back = rig.tier, rig.memory, slots(0), slots(9)
    assert landed(rig.copier.start_keyed(*back, keys=named, parents=None)) == Landed(1)
    assert rig.holds(9, 0)
    assert landed(rig.down(1)) == Landed(1)
    assert rig.store.ttls[max(rig.store.blocks(), key=len)] is None


WRONG: dict[str, Callable[[bytes, bytes], Any]] = {
    "flipped in the record": lambda value, _: bytes([value[0] ^ 1]) + value[1:],
    "flipped in the bytes": lambda value, _: value[:-1] + bytes([value[-1] ^ 128]),
    "another block's": lambda _, other: other,
    "another version's": lambda value, _: b"BYD2" + value[4:],
    "empty": lambda _value, _: b"",
    "cut": lambda value, _: value[:-1],
    "longer": lambda value, _: value + b"\0",
    "zeros": lambda value, _: bytes(len(value)),
    "a record alone": lambda value, _: value[:128],
    "of another length": lambda value, _: memoryview(bytearray(2 * len(value))),
    "not contiguous": lambda value, _: memoryview(bytes(2 * len(value)))[::2],
    "no bytes": lambda _value, _: "text",
}


@pytest.mark.parametrize("what", WRONG)
def test_what_a_store_gives_wrongly_is_corrupt_and_never_in_memory(rig: Rig, what: str) -> None:
    assert landed(rig.down(0, 1, 2)) == Landed(3)
    first, second, _ = sorted(rig.store.blocks())
    made: Any = WRONG[what](rig.store.values[second], rig.store.values[first])
    rig.store.values[second] = made
    assert landed(rig.up(0, 1, 2, to=(8, 9, 10))) == Landed(1, Cause.CORRUPT)
    assert rig.holds(8, 0)
    assert rig.holds(9, 9)
    assert rig.stats()["corrupt"] == 1
    assert landed(rig.up(2, to=(10,))) == Landed(1), "its thread goes on"


@pytest.mark.parametrize("keeps", [False, True])
def test_a_wrong_value_does_not_live_for_ever(keeps: bool) -> None:
    store = MemoryStore()
    store.keeps = keeps
    rig = Rig(store)
    assert landed(rig.down(0)) == Landed(1)
    (name,) = store.blocks()
    store.values[name] = store.values[name][:-1] + b"?"
    assert landed(rig.up(0, to=(8,))) == Landed(0, Cause.CORRUPT)
    assert landed(rig.down(0)) == Landed(1)
    assert landed(rig.up(0, to=(8,))) == Landed(1)
    assert rig.holds(8, 0)
    assert store.calls.count("delete") == keeps
    rig.close()


def test_a_value_of_two_gib_is_refused_by_its_length(rig: Rig) -> None:
    assert landed(rig.down(0)) == Landed(1)
    (name,) = rig.store.blocks()
    huge: Any = np.broadcast_to(np.zeros(1, np.uint8), 1 << 31)
    rig.store.values[name] = huge.data
    assert landed(rig.up(0, to=(8,))) == Landed(0, Cause.CORRUPT)
    assert rig.holds(8, 8)


def test_what_is_not_there_is_missing_and_not_to_be_asked_for_again(rig: Rig) -> None:
    assert landed(rig.down(0)) == Landed(1)
    assert landed(rig.up(0, 1, to=(8, 9))) == Landed(1, Cause.CORRUPT)
    assert (rig.stats()["missing"], rig.stats()["corrupt"]) == (1, 0)


@pytest.mark.parametrize("seed", range(4))
def test_a_store_that_lies_in_two_of_five_answers_brings_no_wrong_byte(seed: int) -> None:
    rig = Rig(MemoryStore(seed=seed))
    assert landed(rig.down(*range(8))) == Landed(8)
    rig.store.lies = 0.4
    good = 0
    for _ in range(60):
        for slot in range(8, 12):
            for plane, was in zip(rig.memory.planes, rig.was, strict=True):
                plane[slot] = was[slot]
        answer = landed(rig.up(0, 1, 2, 3, to=(8, 9, 10, 11)))
        for at in range(4):
            assert rig.holds(8 + at, at) or (at >= answer.good and rig.holds(8 + at, 8 + at))
        good += answer.good
    assert 0 < good < 240
    stats = rig.stats()
    assert stats["corrupt"] + stats["missing"] > 20
    assert stats["held"] == 0
    rig.close()


def test_a_put_goes_to_the_first_store_that_takes_it_and_a_get_asks_them_in_order() -> None:
    first, second = MemoryStore("memory://first"), MemoryStore("memory://second")
    rig = Rig(first, second)
    assert landed(rig.down(0)) == Landed(1)
    assert (len(first.blocks()), len(second.blocks())) == (1, 0)
    first.full = True
    assert landed(rig.down(1)) == Landed(1)
    assert (len(first.blocks()), len(second.blocks())) == (1, 1)
    assert landed(rig.up(0, 1, to=(8, 9))) == Landed(2)
    # What one has wrongly, another may have.
    (name,) = first.blocks()
    second.values[name] = first.values[name]
    first.values[name] = b"wrong"
    assert landed(rig.up(0, to=(10,))) == Landed(1)
    assert rig.holds(10, 0)
    # Where one does not answer, nobody knows that it is nowhere.
    first.down = "it is down"
    assert landed(rig.up(2, to=(11,))) == Landed(0, Cause.FAILED)
    rig.close()


def test_a_put_counts_when_a_store_has_acknowledged_it_and_not_before(rig: Rig) -> None:
    rig.store.hangs = {"put"}
    receipt = rig.down(0)
    assert rig.store.reached.acquire(timeout=30)
    for _ in range(100):
        assert receipt.poll() is None
    rig.store.hangs.clear()
    rig.store.go.set()
    assert landed(receipt) == Landed(1)
    assert len(rig.store.blocks()) == 1


@pytest.mark.law("INV-32")
def test_a_get_that_is_late_writes_no_memory_and_its_buffer_comes_back_with_its_end() -> None:
    clock = Turned()
    rig = Rig(clock=clock, patience=5.0)
    assert landed(rig.down(0)) == Landed(1)
    rig.store.hangs = {"get"}
    receipt = rig.up(0, to=(8,))
    assert rig.store.reached.acquire(timeout=30)
    assert receipt.poll() is None
    clock.now += 5.1
    assert receipt.poll() == Landed(0, Cause.FAILED)
    stats = rig.stats()
    assert (stats["held"], stats["hung"], stats["given_up"]) == (1, 1, 1)
    for plane in rig.memory.planes:
        plane[8] = 0
    rig.store.go.set()
    until(lambda: rig.stats()["held"] == 0)
    assert not any(plane[8].any() for plane in rig.memory.planes)
    rig.close()


def test_a_clock_that_is_set_back_makes_nobody_wait_longer() -> None:
    clock = Turned(1e6)
    rig = Rig(clock=clock, patience=5.0)
    assert landed(rig.down(0)) == Landed(1)
    rig.store.hangs = {"get"}
    receipt = rig.up(0, to=(8,))
    clock.now = 100.0
    assert receipt.poll() is None
    clock.now += 5.1
    assert receipt.poll() == Landed(0, Cause.FAILED)
    rig.close()


@pytest.mark.law("INV-32")
def test_a_store_that_never_answers_holds_a_few_buffers_and_is_then_left_alone() -> None:
    clock = Turned()
    rig = Rig(clock=clock, patience=5.0)
    assert landed(rig.down(0)) == Landed(1)
    rig.store.hangs = {"get"}
    for _ in range(20):
        receipts = [rig.up(0, to=(slot,)) for slot in (8, 9, 10)]
        for _ in range(50):
            time.sleep(1e-5)
        clock.now += 5.1
        assert [landed(one).cause for one in receipts] == [Cause.FAILED] * 3
    assert rig.stats()["held"] <= 2, "each thread has one"
    assert rig.stats()["up_rests"] == 1
    asked = len(rig.store.calls)
    assert landed(rig.up(0, to=(8,))) == Landed(0, Cause.FAILED)
    assert len(rig.store.calls) == asked
    assert landed(rig.down(1)) == Landed(1), "puts go on"
    assert any("takes no gets" in line for line in rig.tier.troubles())
    assert any("held by calls" in line for line in rig.tier.troubles())
    begun = time.monotonic()
    rig.copier.close()
    rig.tier.close()
    assert time.monotonic() - begun < 20
    rig.store.go.set()


@pytest.mark.law("INV-32")
def test_a_copy_that_hangs_ends_also_where_others_are_answered() -> None:
    clock = Turned()
    rig = Rig(clock=clock, patience=5.0)
    assert landed(rig.down(0)) == Landed(1)
    rig.store.hangs = {"put"}
    hung = rig.down(1)
    assert rig.store.reached.acquire(timeout=30)
    rig.store.hangs = set()
    for _ in range(5):
        clock.now += 3.9
        assert landed(rig.down(2)) == Landed(1)
        assert hung.poll() is None
    clock.now += 0.6
    assert hung.poll() == Landed(0, Cause.FAILED)
    rig.close()


def test_a_turn_asks_once_for_all_receipts(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    receipts = [rig.down(number) for number in range(4)]
    until(lambda: rig.stats()["put_blocks"] == 4)
    asked = []
    collect = rig.copier._flights.collect

    def counted() -> set[str]:
        asked.append(1)
        return collect()

    monkeypatch.setattr(rig.copier._flights, "collect", counted)
    with rig.copier.turn():
        assert [one.poll() for one in receipts] == [Landed(1)] * 4
    assert len(asked) == 1


def test_refusals_name_what_is_wrong(rig: Rig) -> None:
    some, named = slots(0), keys(1)
    with pytest.raises(by.Misuse, match=r'without keys: give the yard keyed=\("remote",\)'):
        rig.copier.start(rig.memory, rig.tier, some, some)
    with pytest.raises(by.Misuse, match="without parents"):
        rig.copier.start_keyed(rig.memory, rig.tier, some, some, keys=named, parents=None)
    with pytest.raises(by.Misuse, match="no planes in memory"):
        rig.copier.start_keyed(rig.tier, rig.tier, some, some, keys=named, parents=named)
    with pytest.raises(by.Misuse, match="have a StoreCopier already"):
        StoreCopier(rig.tier)
    for patience in (0, -1.0, float("nan")):
        with pytest.raises(by.Misuse, match="patience"):
            StoreCopier(RemoteTier(SMALL, 1, [rig.store], identity=OURS), patience=patience)
    for given, says in {
        "redis://one": "give a list",
        (): "give one or more",
        ("redis://one",): "stores have 'redis://one'",
        7: "give a list",
    }.items():
        stores: Any = given
        with pytest.raises(by.Misuse, match=says):
            RemoteTier(SMALL, 10, stores, identity=OURS)
    for missing in ("model", "weights"):
        other = {name: one for name, one in OURS.items() if name != missing}
        with pytest.raises(by.Misuse, match=f"names no {missing}"):
            RemoteTier(SMALL, 10, [rig.store], identity=other)
    with pytest.raises(by.Misuse, match="rank = 1"):
        RemoteTier(SMALL, 10, [rig.store], identity=OURS, rank=1)
    rig.copier.close()
    with pytest.raises(by.Misuse, match="closed"):
        rig.down(0)
    with pytest.raises(by.Misuse, match="closed"):
        rig.forget(0)


def test_weights_that_change_leave_the_stores_alone(rig: Rig) -> None:
    assert landed(rig.down(0)) == Landed(1)
    rig.tier.forget()
    assert landed(rig.down(1)) == Landed(0, Cause.FAILED)
    assert landed(rig.up(0, to=(8,))) == Landed(0, Cause.FAILED)
    assert len(rig.store.blocks()) == 1


def test_staging_is_bounded_and_two_values_fit_at_least() -> None:
    for staging, buffers in ((1, 2), (10 * (128 + SMALL.block_bytes), 10), (64 << 20, 64)):
        tier = RemoteTier(SMALL, 10, [MemoryStore()], identity=OURS, staging=staging)
        assert tier.stats()["remote_buffers"] == buffers
        tier.close()


def test_each_plane_that_ranks_share_is_written_by_one_of_them() -> None:
    store = MemoryStore()
    rigs = [_shared(store, rank) for rank in range(SHARED.ranks)]
    for rig in rigs:
        assert landed(rig.down(0, 1, 2)) == Landed(3)
    for rank, rig in enumerate(rigs):
        assert landed(rig.up(0, 1, 2, to=(8, 9, 10))) == Landed(3)
        own, same = rig.memory.planes
        assert (own[8:11] == rig.was[0][:3]).all()
        for slot, number in ((8, 0), (9, 1), (10, 2)):
            expected = rig.was[1][number if slot % 2 == rank else slot]
            assert (same[slot] == expected).all()
        (gone,) = [name for name in store.blocks() if f"/{rank}/02" in name]
        del store.values[gone]
        assert landed(rig.up(0, 1, 2, to=(8, 9, 10))) == Landed(1, Cause.CORRUPT)
        rig.close()


def _shared(store: MemoryStore, rank: int) -> Rig:
    """A rank's rig over memory that is its own here, so that what it writes can be seen."""
    memory: Any = MemoryTier.__new__(MemoryTier)
    memory.name, memory.layout, memory.blocks, memory.nbytes = "host", SHARED, BLOCKS, 0
    memory.planes = tuple(
        np.empty((BLOCKS, plane.pieces, plane.piece_bytes), np.uint8) for plane in SHARED.planes
    )
    return Rig(store, layout=SHARED, memory=memory, rank=rank)
