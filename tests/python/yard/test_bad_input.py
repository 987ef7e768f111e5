"""Bad input: a typed error that names the value, and nothing is changed."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard import _core
from yard import array, begin, table, text, unchanged

Act = Callable[["House"], object]


class House:
    """A cache with something of everything, and another one."""

    def __init__(self) -> None:
        # Wrong on purpose: not for a type checker.
        self.cache: Any = by.KVCache(block_size=4, device=32, host=16)
        self.other: Any = by.KVCache(block_size=4, device=32, host=16)
        self.wide: Any = by.KVCache(block_size=8, device=32)
        self.lease = begin(self.cache, text(1, 10), reserve=4)
        self.cache.seal(self.lease, 10)
        self.second = begin(self.cache, text(2, 6))
        self.foreign = begin(self.other, text(1, 10))
        self.spent = begin(self.cache, text(3, 6))
        self.parked = self.cache.park(self.spent, 6)
        resting = self.cache.park(begin(self.cache, text(4, 6)), 6)
        self.cache.abandon(resting)
        self.abandoned = resting
        self.foreign_parked = self.other.park(begin(self.other, text(2, 6)), 6)
        self.ready = begin(self.cache, self.cache.ready_keys(b"k" * 32, 5))
        plan = self.cache.demote(2, of=self.lease)
        assert plan is not None
        self.plan = plan


MAKING: list[tuple[str, dict[str, Any], type[by.Misuse], str]] = [
    ("a block of no tokens", {"block_size": 0}, by.Misuse, "block_size = 0"),
    ("a negative block size", {"block_size": -4}, by.Misuse, "block_size = -4"),
    ("a device of nothing", {"device": 0}, by.Misuse, "device = 0"),
    ("a device of null slots", {"device": 3, "null_slots": 3}, by.Misuse, "device = 3"),
    ("a negative device", {"device": -1}, by.Misuse, "device = -1"),
    ("a device beyond int32", {"device": 2**31}, by.Misuse, "slots = 2147483648"),
    ("a device beyond int64", {"device": 2**70}, by.Misuse, f"device = {2**70}"),
    ("a host of half a slot", {"host": 0.5}, by.Misuse, "host = 0.5"),
    ("a host of True", {"host": True}, by.Misuse, "host = True"),
    ("two groups", {"groups": 2}, by.Unsupported, "groups = 2"),
    ("no group", {"groups": 0}, by.Unsupported, "groups = 0"),
    ("a thousand groups", {"groups": 1000}, by.Misuse, "groups = 1000"),
    ("an unknown policy", {"eviction": "lru"}, by.Misuse, "eviction = 'lru'"),
    ("nearly one", {"eviction": "learnt"}, by.Misuse, "'learnt': did you mean 'learned'"),
    ("copies second", {"host_copies": "frist"}, by.Misuse, "'frist': did you mean 'first'"),
    ("an unknown hash", {"key_hash": "md5"}, by.Misuse, "key_hash = 'md5'"),
    ("an unknown keyed tier", {"keyed": ["tape"]}, by.Misuse, "keyed = 'tape'"),
    ("an unknown name", {"namespace": {"modle": "x"}}, by.Misuse, '"modle"'),
    ("a name that is no text", {"namespace": {"model": 3}}, by.Misuse, "'model', 3"),
    ("an unknown keyword", {"banana": 1}, by.Misuse, "there is no 'banana'"),
    ("a namespace that is text", {"namespace": "llama"}, by.Misuse, "namespace"),
]


@pytest.mark.parametrize(
    ("keywords", "error", "says"), [pytest.param(*m, id=i) for i, *m in MAKING]
)
def test_a_cache_that_cannot_be_is_refused(
    keywords: dict[str, Any], error: type[by.Misuse], says: str
) -> None:
    with pytest.raises(error, match=re.escape(says)):
        by.KVCache(**{"device": 8} | keywords)


@pytest.mark.parametrize(
    ("keyed", "says"),
    [
        (["host", "tape"], 'keyed = "tape": did you mean "remote"? It must be one of "device"'),
        (["device"], "keyed = device: the device names its blocks by slot alone"),
        ("host", "keyed = host: pass names of tiers"),
        (7, "keyed = 7: pass names of tiers"),
        ([7], "keyed = [7]: pass names of tiers"),
    ],
)
def test_tiers_that_cannot_be_keyed_are_refused_by_the_core(keyed: Any, says: str) -> None:
    with pytest.raises(by.Misuse, match=re.escape(says)):
        _core.Cache(device=8, keyed=keyed)
    assert _core.Cache(device=8, keyed=(name for name in ("host", "disk"))).stats()["leases"] == 0


TOKENS: list[tuple[str, Any, str]] = [
    ("negative", [1, -1], "tokens[1] = -1"),
    ("negative in an array", array([1, -1]), "tokens[1] = -1"),
    ("beyond 32 bits", [2**32], "tokens[0] = 4294967296"),
    ("beyond 32 bits in an array", array([2**32]), "tokens[0] = 4294967296"),
    ("beyond 64 bits", [2**64], "tokens[0] = 18446744073709551616"),
    ("floats", [1.5], "tokens[0] = 1.5"),
    ("an array of floats", np.array([1.5]), "float64"),
    ("bools", [True], "tokens[0] = True"),
    ("an array of bools", np.array([True]), "bool"),
    ("bytes", b"abcd", "uint8"),
    ("text", "abc", "tokens[0] = a"),
    ("two dimensions", np.zeros((2, 3), np.int32), "[2, 3]"),
    ("nested lists", [[1]], "tokens[0] = [1]"),
    ("objects", np.array([1], object), "dtype"),
    ("the other byte order", np.array([1], ">i4"), "byte order"),
    ("not aligned", np.frombuffer(bytes(9), np.int32, 2, 1), "aligned"),
    ("None", None, "NoneType"),
    ("one number", 5, "int"),
]


@pytest.mark.parametrize(("tokens", "says"), [pytest.param(*t, id=i) for i, *t in TOKENS])
def test_tokens_that_are_none_are_refused_wherever_they_go(tokens: Any, says: str) -> None:
    house = House()
    verbs: list[Callable[[], object]] = [
        lambda: house.cache.keys(tokens),
        lambda: house.cache.begin(tokens),
        lambda: house.cache.append(house.lease, tokens),
    ]
    if tokens is not None:
        verbs.append(lambda: house.cache.probe(tokens))
    before = house.cache.stats()
    for verb in verbs:
        with pytest.raises(by.Misuse, match=re.escape(says)):
            verb()
    assert house.cache.stats() == before
    assert house.lease.appended == 10


def out(rows: int, columns: int, dtype: Any = np.int32) -> Any:
    return np.full((rows, columns), 7, dtype)


def read_only() -> Any:
    given = out(2, 8)
    given.flags.writeable = False
    return given


OUTS: list[tuple[str, Any, str]] = [
    ("a wrong width of the dtype", out(2, 8, np.int64), "int64"),
    ("floats", out(2, 8, np.float32), "float32"),
    ("unsigned", out(2, 8, np.uint32), "uint32"),
    ("the other byte order", out(2, 8, ">i4"), "byte order"),
    ("columns first", np.asfortranarray(out(2, 8)), "strides"),
    ("every second column", out(2, 16)[:, ::2], "strides"),
    ("read-only", read_only(), "read-only"),
    ("bytes", bytes(64), "shape"),
    ("one dimension", out(2, 8).ravel(), "[16]"),
    ("three dimensions", out(2, 8)[None], "[1, 2, 8]"),
    ("too few rows", out(1, 8), "1 rows"),
    ("too few columns", out(2, 2), "blocks = 3"),
    ("a list", [[0] * 8] * 2, "list"),
]


@pytest.mark.parametrize(("given", "says"), [pytest.param(*o, id=i) for i, *o in OUTS])
def test_an_out_that_does_not_fit_is_refused_and_not_written(given: Any, says: str) -> None:
    house = House()
    before = np.array(given)
    for cells in ("all", "changed"):
        with pytest.raises(by.Misuse, match=re.escape(says)):
            house.cache.block_tables([house.lease, house.second], given, cells=cells)
    assert (np.array(given) == before).all()
    row = np.zeros((1, 8), np.int32)
    house.cache.block_tables(house.lease, row, cells="changed")
    assert row[0, :3].tolist() == table(house.cache, house.lease), "nothing counts as shown"


HANDLES: list[tuple[str, Act, type[by.Misuse], str]] = [
    ("grow a parked lease", lambda h: h.cache.grow(h.spent), by.SpentLease, "lease"),
    ("seal one", lambda h: h.cache.seal(h.spent, 4), by.SpentLease, "is spent"),
    ("append to one", lambda h: h.cache.append(h.spent, [1]), by.SpentLease, "is spent"),
    ("fork one", lambda h: h.cache.fork(h.spent, 4), by.SpentLease, "is spent"),
    ("park one again", lambda h: h.cache.park(h.spent, 6), by.SpentLease, "is spent"),
    ("finish one", lambda h: h.cache.finish(h.spent), by.SpentLease, "is spent"),
    ("its table", lambda h: h.cache.block_tables(h.spent), by.SpentLease, "is spent"),
    ("its mapping", lambda h: h.cache.slot_mapping(h.spent, 0), by.SpentLease, "is spent"),
    ("trim one", lambda h: h.cache.trim(h.spent, 4), by.SpentLease, "is spent"),
    ("dedup one", lambda h: h.cache.dedup([h.lease, h.spent]), by.SpentLease, "is spent"),
    ("demote of one", lambda h: h.cache.demote(1, of=h.spent), by.SpentLease, "is spent"),
    ("a bad row", lambda h: h.cache.grow([h.lease, h.spent]), by.SpentLease, "is spent"),
    ("resume twice", lambda h: h.cache.begin(h.abandoned), by.SpentLease, "parked sequence"),
    ("abandon twice", lambda h: h.cache.abandon(h.abandoned), by.SpentLease, "is spent"),
    ("demote what went", lambda h: h.cache.demote(1, of=h.abandoned), by.SpentLease, "is spent"),
    ("grow another's", lambda h: h.cache.grow(h.foreign), by.ForeignLease, "another cache"),
    ("seal another's", lambda h: h.cache.seal(h.foreign, 4), by.ForeignLease, "another cache"),
    ("fork another's", lambda h: h.cache.fork(h.foreign, 4), by.ForeignLease, "another cache"),
    ("park another's", lambda h: h.cache.park(h.foreign, 4), by.ForeignLease, "another cache"),
    ("finish another's", lambda h: h.cache.finish(h.foreign), by.ForeignLease, "another cache"),
    ("resume there", lambda h: h.cache.begin(h.foreign_parked), by.ForeignLease, "another cache"),
    ("abandon there", lambda h: h.cache.abandon(h.foreign_parked), by.ForeignLease, "another"),
    ("a mixed batch", lambda h: h.cache.grow([h.lease, h.foreign]), by.ForeignLease, "another"),
]


VALUES: list[tuple[str, Act, type[by.BlockyardError], str]] = [
    ("no tokens", lambda h: h.cache.begin([]), by.Misuse, "tokens = 0"),
    ("reserve below 0", lambda h: h.cache.begin([1], reserve=-1), by.Misuse, "reserve = -1"),
    ("reserve a half", lambda h: h.cache.begin([1], reserve=0.5), by.Misuse, "reserve = 0.5"),
    ("load below 0", lambda h: h.cache.begin([1], load=-1), by.Misuse, "load = -1"),
    ("never fits", lambda h: h.cache.begin(text(8, 125)), by.TooLarge, "need 32"),
    ("never fits promised", lambda h: h.cache.begin([1], reserve=124), by.TooLarge, "need 32"),
    ("an endless promise", lambda h: h.cache.begin([1], reserve=2**64 - 1), by.TooLarge, "need"),
    ("a fork's promise", lambda h: h.cache.fork(h.second, 6, reserve=125), by.TooLarge, "need"),
    ("nothing of it", lambda h: h.cache.begin(text(8, 124)), by.NoRoom, "need 31"),
    ("a resume's promise", lambda h: h.cache.begin(h.parked, reserve=200), by.TooLarge, "need"),
    ("filling", lambda h: h.cache.begin([1], filling="wait"), by.Misuse, 'filling = "wait"'),
    ("keys and a salt", lambda h: h.cache.begin(h.cache.keys([1]), salt="s"), by.Misuse, "salt"),
    ("other blocks", lambda h: h.cache.begin(h.wide.keys([1])), by.Misuse, "blocks of 8"),
    ("probe others", lambda h: h.cache.probe(h.wide.keys([1])), by.Misuse, "blocks of 8"),
    ("promote others", lambda h: h.cache.promote(h.wide.keys([1])), by.Misuse, "blocks of 8"),
    ("lora of 3", lambda h: h.cache.keys([1], lora=3), by.Misuse, "lora"),
    ("crossed", lambda h: h.cache.keys([1] * 9, media=[(0, 4, ""), (3, 6, "")]), by.Misuse, "sort"),
    ("later", lambda h: h.cache.keys([1] * 9, media=[(5, 6, ""), (0, 2, "")]), by.Misuse, "sort"),
    ("empty media", lambda h: h.cache.keys([1], media=[(2, 2, "a")]), by.Misuse, "[2, 2)"),
    ("media below 0", lambda h: h.cache.keys([1], media=[(-2, 2, "a")]), by.Misuse, "-2"),
    ("media beyond", lambda h: h.cache.keys([1, 2], media=[(0, 3, "a")]), by.Misuse, "[0, 3)"),
    ("after", lambda h: h.cache.begin([1] * 2, media=[(0, 1, ""), (2, 3, "")]), by.Misuse, "2 to"),
    ("asked", lambda h: h.cache.dry_run([1], media=[(0, 2**63 - 1, "a")]), by.Misuse, "1 tokens"),
    ("many", lambda h: h.cache.keys([1], media=[(0, 1, "a")] * 2), by.Misuse, "more items than"),
    ("media 3", lambda h: h.cache.keys([1], media=3), by.Misuse, "media is <class 'int'>"),
    ("a pair", lambda h: h.cache.keys([1], media=[(0, 2)]), by.Misuse, "(0, 2)"),
    ("31 bytes", lambda h: h.cache.ready_keys(b"k" * 31, 4), by.Misuse, "31 bytes"),
    ("a short key", lambda h: h.cache.ready_keys([b"k"], 4), by.Misuse, "keys[0]"),
    ("no hex", lambda h: h.cache.ready_keys(["g" * 64], 4), by.Misuse, "keys[0]"),
    ("a key too few", lambda h: h.cache.ready_keys(b"k" * 32, 8), by.Misuse, "1 keys for 2"),
    ("tokens below 0", lambda h: h.cache.ready_keys(b"", -1), by.Misuse, "tokens = -1"),
    ("one ready row", lambda h: h.cache.append([h.lease, h.ready], [1, 2]), by.Misuse, "ready"),
    ("keys for tokens", lambda h: h.cache.append_ready(h.lease, 2, b"k" * 32), by.Misuse, "keys"),
    ("too few counted", lambda h: h.cache.append([h.lease], [1, 2], 1), by.Misuse, "2 tokens"),
    ("counts", lambda h: h.cache.grow([h.lease, h.second], [1]), by.Misuse, "1 values"),
    ("a negative count", lambda h: h.cache.grow(h.lease, -1), by.Misuse, "counts = -1"),
    ("a count of True", lambda h: h.cache.grow(h.lease, True), by.Misuse, "counts = True"),  # noqa: FBT003
    ("no lease", lambda h: h.cache.grow([h.lease, 3]), by.Misuse, "batch[1]"),
    ("no batch", lambda h: h.cache.finish(None), by.Misuse, "NoneType"),
    ("beyond appended", lambda h: h.cache.seal(h.lease, 11), by.Misuse, "computed = 11"),
    ("fork beyond", lambda h: h.cache.fork(h.lease, 12), by.Misuse, "computed = 12"),
    ("fork below", lambda h: h.cache.fork(h.lease, 3), by.Misuse, "computed = 3"),
    ("park beyond", lambda h: h.cache.park(h.second, 7), by.Misuse, "computed = 7"),
    ("park below", lambda h: h.cache.park(h.lease, 3), by.Misuse, "computed = 3"),
    ("park in the wide", lambda h: h.wide.park(begin(h.wide, [1]), 1), by.TooLarge, "host"),
    ("trim into sealed", lambda h: h.cache.trim(h.lease, 7), by.Misuse, "tokens = 7"),
    ("trim longer", lambda h: h.cache.trim(h.second, 7), by.Misuse, "tokens = 7"),
    ("trim twice", lambda h: h.cache.trim([h.second] * 2, 5), by.Misuse, "twice"),
    ("position", lambda h: h.cache.slot_mapping(h.second, 8), by.Misuse, "position = 8"),
    ("far", lambda h: h.cache.slot_mapping(h.second, 2**64 - 1, 2), by.Misuse, "position"),
    ("without out", lambda h: h.cache.block_tables(h.lease, cells="changed"), by.Misuse, "out"),
    ("cells", lambda h: h.cache.block_tables(h.lease, out(1, 8), cells="new"), by.Misuse, "cells"),
    ("retention", lambda h: h.cache.finish(h.lease, retention="keep"), by.Misuse, '"keep"'),
    ("after -1", lambda h: h.cache.finish(h.lease, after=-1), by.Misuse, "after = -1"),
    ("demote -1", lambda h: h.cache.demote(-1), by.Misuse, "blocks = -1"),
    ("demote two", lambda h: h.cache.demote(1, of=[h.lease]), by.Misuse, "of is"),
    ("promote -1", lambda h: h.cache.promote(h.cache.keys([1]), -1), by.Misuse, "blocks = -1"),
    ("flight 0", lambda h: h.cache.commit(0, 1), by.ForeignLease, "flight 0"),
    (
        "a flight that is not there",
        lambda h: h.cache.abort(h.plan.flight + 1),
        by.ForeignLease,
        "flight",
    ),
    ("unknown's", lambda h: h.cache.mark_unknown([h.plan, 77]), by.ForeignLease, "flight 77"),
    ("one of two", lambda h: h.cache.commit([h.plan.flight, 77], 1), by.ForeignLease, "flight 77"),
    ("flight -1", lambda h: h.cache.abort(-1), by.Misuse, "flight -1"),
    ("flight text", lambda h: h.cache.abort(["x"]), by.Misuse, "flight x"),
    ("too good", lambda h: h.cache.commit(h.plan, 3), by.Misuse, "good = 3"),
    ("good -1", lambda h: h.cache.commit(h.plan, -1), by.Misuse, "good = -1"),
    ("no good", lambda h: h.cache.commit(h.plan.flight), by.Misuse, "good is missing"),
    ("done -1", lambda h: h.cache.commit([], done=-1), by.Misuse, "done = -1"),
    ("below use", lambda h: h.cache.resize("device", 3), by.InUse, "cannot shrink the device"),
    ("below null", lambda h: h.cache.resize("device", 1), by.Misuse, "slots = 1"),
    ("to -1", lambda h: h.cache.resize("host", -1), by.Misuse, "slots = -1"),
    ("to 2**31", lambda h: h.cache.resize("host", 2**31), by.Misuse, "slots = 2147483648"),
    ("no such tier", lambda h: h.cache.resize("tape", 1), by.Misuse, 'tier = "tape"'),
    ("not this tier", lambda h: h.cache.resize("disk", 1), by.Misuse, "tier = disk"),
]


def named(rows: list[tuple[str, Act, Any, str]]) -> list[Any]:
    return [pytest.param(*row[1:], id=row[0].replace(" ", "_")) for row in rows]


@pytest.mark.parametrize(("act", "error", "says"), [*named(HANDLES), *named(VALUES)])
def test_it_is_refused_by_name_and_nothing_is_changed(
    act: Act, error: type[by.BlockyardError], says: str
) -> None:
    house = House()
    before, there = house.cache.stats(), house.other.stats()
    with pytest.raises(by.BlockyardError, match=re.escape(says)) as caught:
        act(house)
    assert type(caught.value) is error
    after = house.cache.stats()
    assert unchanged(after) == unchanged(before)
    assert after["rejected"] - before["rejected"] == issubclass(
        error, by.SpentLease | by.ForeignLease
    ) * ("flight" not in says)
    assert unchanged(house.other.stats()) == unchanged(there)
    assert house.lease.state == house.second.state == "ready"
    assert (house.lease.tokens, house.second.appended, house.ready.appended) == (10, 6, 5)
    assert house.parked.state == "kept"
    assert house.cache.audit() is None


def test_the_numbers_are_attributes_that_a_scheduler_can_act_on() -> None:
    house = House()
    stats = house.cache.stats()
    with pytest.raises(by.NoRoom) as caught:
        house.cache.begin(text(8, 124))
    no_room = caught.value
    assert (no_room.tier, no_room.need, no_room.free) == ("device", 31, stats["device_free"])
    assert (no_room.evictable, no_room.promised) == (stats["device_takeable"], 1)
    with pytest.raises(by.TooLarge) as large:
        house.cache.begin(text(8, 125))
    assert (large.value.tier, large.value.need, large.value.capacity) == ("device", 32, 31)
    with pytest.raises(by.InUse) as used:
        house.cache.resize("device", 3)
    assert (used.value.tier, used.value.want) == ("device", 2)
    assert used.value.used > 2


def test_wrong_kinds_of_arguments_are_type_errors_as_in_any_python_function() -> None:
    house = House()
    make: Any = by.KVCache
    lease: Any = by.Lease
    acts: list[tuple[Callable[..., object], tuple[Any, ...], dict[str, Any]]] = [
        (make, (8,), {}),
        (lease, (), {}),
        (house.cache.promote, ([1, 2],), {}),
        (house.cache.fork, ([house.lease], 4), {}),
        (house.cache.finish, (house.lease,), {"retention": None}),
        (house.cache.abandon, (house.lease,), {}),
    ]
    for act, given, named in acts:
        with pytest.raises(TypeError):
            act(*given, **named)
    assert house.cache.audit() is None


def test_sequences_of_other_kinds_are_batches_too() -> None:
    house = House()
    rows = (house.lease, house.second)
    assert house.cache.grow(rows).tolist() == []
    assert house.cache.grow(iter(rows)).tolist() == []
    assert house.cache.grow([]).tolist() == []
    assert house.cache.grow(rows, np.int64(2)).tolist() == []
    assert house.cache.grow(rows, np.array([0, 1], np.uint16)).tolist() == []
    assert (house.lease.tokens, house.second.tokens) == (14, 11)
