"""Whatever comes in through the binding: an error that can be caught, and a cache that is sound."""

import array as arrays
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import blockyard as by
from blockyard import _core
from blockyard._typing import override
from yard import profile, text, unchanged

EXPECTED = (by.BlockyardError, TypeError, ValueError, OverflowError, MemoryError)
# What a single call may allocate for new slots.
LITTLE = 1 << 22
INTS = [0, 1, 2, 3, 5, 8, 40, -1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1, 10**30]


class House:
    """A cache with something of everything, and guests that meddle with it."""

    def __init__(self) -> None:
        self.cache: Any = _core.Cache(block_size=4, device=32, host=16, write="second-touch")
        other: Any = by.KVCache(block_size=4, device=32)
        self.lease = self.cache.begin(text(1, 10), reserve=4)
        self.cache.seal(self.lease, 10)
        self.second = self.cache.begin(text(2, 6))
        self.parked = self.cache.park(self.cache.begin(text(3, 6)), 6)
        self.spent = self.cache.begin(text(4, 5))
        self.cache.finish(self.spent)
        self.ready = self.cache.begin(self.cache.ready_keys(b"k" * 32, 5))
        self.ticket = self.cache.promise(2)
        self.below = self.cache.promise(2, tier="host")
        self.plan = self.cache.demote(1, of=self.lease)
        self.keys = self.cache.keys(text(1, 12))
        self.things = [
            *(self.lease, self.second, self.spent, self.ready, self.parked, self.ticket),
            *(self.below, self.plan, self.keys, other.begin(text(1, 10)), self.cache, other),
            *(other.promise(1), other.keys([1, 2, 3, 4, 5])),
        ]
        self.meddled = False

    def meddle(self, how: int) -> None:
        """Changes the cache under the feet of the call that is being made."""
        self.meddled = True
        acts: list[Callable[[], object]] = [
            lambda: self.cache.finish(self.lease),
            lambda: self.cache.finish([self.second, self.lease]),
            lambda: self.cache.begin(text(7, 9)),
            lambda: self.cache.begin(self.parked),
            lambda: self.cache.begin([1], ticket=self.ticket),
            lambda: self.cache.park(self.second, 6),
            lambda: self.cache.append([self.lease, self.second], [1, 2]),
            lambda: self.cache.grow([self.lease, self.second], 9),
            lambda: self.cache.trim(self.second, 5),
            self.cache.clear,
            lambda: self.cache.resize("device", 64),
            lambda: self.cache.resize("host", 0),
            lambda: self.cache.commit(self.plan),
            lambda: self.cache.abandon(self.parked),
            lambda: self.cache.release(self.ticket),
        ]
        try:
            acts[how % len(acts)]()
        except EXPECTED:
            return


class Index:
    """A number that does something first."""

    def __init__(self, value: int, act: Callable[[], object]) -> None:
        self.value, self.act = value, act

    def __index__(self) -> int:
        self.act()
        return self.value


class Whole(int):
    """A subclass of what is looked for."""


class Object:
    """What has methods that Python calls, and what they do."""

    def __init__(self, count: Any, items: list[Any], act: Callable[[], object]) -> None:
        self.count, self.items, self.act = count, items, act

    def __len__(self) -> Any:
        self.act()
        return self.count

    def __iter__(self) -> Iterator[Any]:
        for item in self.items:
            self.act()
            yield item

    def __index__(self) -> Any:
        self.act()
        return self.count

    @override
    def __repr__(self) -> str:
        self.act()
        return "Object"


class Grows(list[Any]):
    """A list that is longer whenever it is looked at, up to a point."""

    @override
    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            if len(self) < 50:
                self.append(item)
            yield item


def released() -> memoryview:
    view = memoryview(bytearray(8))
    view.release()
    return view


ARRAYS: list[Callable[[], Any]] = [
    lambda: np.arange(3, dtype=np.int32),
    lambda: np.arange(6, dtype=np.int64)[::-2],
    lambda: np.array([1.5, np.nan]),
    lambda: np.array([1, 2], ">i4"),
    lambda: np.array([1, 2], np.int8),
    lambda: np.array([1, None], object),
    lambda: np.array(3),
    lambda: np.zeros((2, 3), np.int32),
    lambda: np.zeros((2, 9), np.int32),
    lambda: np.zeros(9, np.int64),
    lambda: np.zeros((0, 3), np.int32),
    lambda: np.array([], np.uint32),
    lambda: np.array([-1, 2**62]),
    lambda: np.array(["x"]),
    lambda: np.array([True, False]),
    lambda: np.frombuffer(bytes(9), np.int32, 2, 1),
    lambda: np.broadcast_to(np.int32(1), 10**13),
    lambda: np.broadcast_to(np.uint8(1), (10**12, 32)),
    lambda: np.zeros(3, [("a", np.int32), ("b", np.int32)]),
    lambda: arrays.array("i", [1, 2, 3]),
    lambda: arrays.array("d", [1.0]),
    lambda: bytearray(64),
    lambda: bytes(31),
    lambda: memoryview(bytes(64)),
    lambda: memoryview(bytearray(64))[::2],
    lambda: memoryview(bytearray(32)).cast("i"),
    released,
]

# What is passed for a word, a mapping, or nothing at all.
ODD: list[Any] = [
    None, True, False, 1.5, float("nan"), float("inf"), "", "x", "device", "host", "disk", "all",
    "changed", "stop", "soon", "retain", "\ud800", b"", b"k" * 32, "a" * 64, {}, {"model": "m"},
    {1: 2}, set(), object, Ellipsis, 1j, range(3), range(10**13), slice(3), np.int64(3),
    np.float32(2), np.bool_(1), [(0, 2, "a")], [(0, 10**9, b"a")], [(2, 1, "a"), (0, 1)],
    [[]], [[[1]]], Whole(2), Whole(2**40),
]  # fmt: skip


@st.composite
def guests(draw: st.DrawFn, deep: int = 2) -> Callable[[House], Any]:
    """How to make something to pass."""
    kind = draw(
        st.sampled_from(["int", "thing", "things", "array", "odd", "list", "object", "index"])
    )
    at, how = draw(st.integers(0, 99)), draw(st.integers(0, 99))
    number = INTS[at % len(INTS)]
    if kind == "list" and deep:
        inside = draw(st.lists(guests(deep - 1), max_size=4))
        forms: list[Callable[[list[Any]], Any]] = [list, tuple, iter, Grows]
        form = draw(st.sampled_from(forms))
        return lambda house: form([guest(house) for guest in inside])
    if kind == "object" and deep:
        inside = draw(st.lists(guests(deep - 1), max_size=4))
        count = draw(st.sampled_from([0, 1, 3, -1, 2**62, 2**80, None, "x"]))
        act = draw(st.sampled_from(["meddle", "raise", "nothing"]))
        return lambda house: Object(
            count, [guest(house) for guest in inside], acting(house, act, how)
        )
    makes: dict[str, Callable[[House], Any]] = {
        "int": lambda _: number,
        "thing": lambda house: house.things[at % len(house.things)],
        "things": lambda house: [house.lease, house.second, house.ready][: 1 + at % 3],
        "array": lambda _: ARRAYS[at % len(ARRAYS)](),
        "odd": lambda _: ODD[at % len(ODD)],
        "list": lambda _: [1, 2, 3][: at % 4],
        "object": lambda house: house.lease,
        "index": lambda house: Index(number, acting(house, ["meddle", "raise"][at % 2], how)),
    }
    return makes[kind]


def acting(house: House, act: str, how: int) -> Callable[[], object]:
    def fail() -> None:
        raise ValueError("on purpose")

    return {"meddle": lambda: house.meddle(how), "raise": fail, "nothing": lambda: None}[act]


# Names of verbs, how many values they take in order, and by name.
VERBS: list[tuple[str, int, list[str]]] = [
    ("keys", 1, ["lora", "salt", "media"]),
    ("ready_keys", 2, []),
    ("probe", 1, []),
    ("begin", 1, ["reserve", "load", "filling", "lora", "salt", "media", "ticket"]),
    ("dry_run", 1, ["reserve", "load", "filling", "lora", "salt", "media"]),
    ("promise", 1, ["tier"]),
    ("release", 1, []),
    ("append", 2, ["counts"]),
    ("append_ready", 3, []),
    ("grow", 1, ["counts"]),
    ("trim", 2, []),
    ("block_tables", 1, ["out", "cells"]),
    ("slot_mapping", 2, ["counts", "out"]),
    ("seal", 2, []),
    ("park", 2, ["after", "ticket"]),
    ("abandon", 1, []),
    ("fork", 2, ["reserve"]),
    ("finish", 1, ["retention", "next_use", "priority", "ttl", "after"]),
    ("demote", 1, ["of"]),
    ("promote", 2, []),
    ("commit", 2, ["corrupt", "done"]),
    ("abort", 1, []),
    ("mark_unknown", 1, []),
    ("room", 1, []),
    ("exclusive_blocks", 1, []),
    ("worth_loading", 2, []),
    ("resize", 2, []),
]
# What is most often passed in the first place, so that the others are looked at at all.
FITTING: dict[str, Callable[[House], Any]] = {
    "abandon": lambda house: house.parked,
    "release": lambda house: house.ticket,
    "promote": lambda house: house.keys,
    "commit": lambda house: house.plan,
    "keys": lambda _: [1, 2, 3, 4, 5],
    "probe": lambda house: house.keys,
    "begin": lambda _: [1, 2, 3, 4, 5],
    "dry_run": lambda _: [1, 2, 3, 4, 5],
    "ready_keys": lambda _: b"k" * 32,
    "promise": lambda _: 1,
    "demote": lambda _: 3,
    "resize": lambda _: "host",
    "append_ready": lambda house: house.ready,
}


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, list[Any], dict[str, Any]]:
    name, count, words = draw(st.sampled_from(VERBS))
    values = [draw(guests()) for _ in range(count)]
    if draw(st.integers(0, 3)):
        values[0] = FITTING.get(name, lambda house: house.lease)
    given = draw(st.lists(st.sampled_from(words), unique=True, max_size=3)) if words else []
    return name, values, {word: draw(guests()) for word in given}


def check(house: House, name: str, values: list[Any], words: dict[str, Any]) -> None:
    """One call: it is served, or refused with nothing changed."""
    passed = [value(house) for value in values]
    named = {word: value(house) for word, value in words.items()}
    if name == "resize":
        named["memory"] = LITTLE
    house.meddled = False
    before = unchanged(house.cache.stats())
    try:
        getattr(house.cache, name)(*passed, **named)
    except EXPECTED as error:
        # Of a batch that is finished the good rows end, and a park seals what is full.
        seals = name == "park" and isinstance(error, by.NoRoom)
        if not (house.meddled or name == "finish" or seals):
            assert unchanged(house.cache.stats()) == before, (name, passed, named)
    assert house.cache.audit() is None, (name, passed, named)


@pytest.mark.law("R2-8")
@profile(150)
@given(st.lists(calls(), min_size=1, max_size=12))
def test_whatever_is_passed_is_served_or_refused_and_the_cache_is_sound(
    all_calls: list[tuple[str, list[Any], dict[str, Any]]],
) -> None:
    house = House()
    for call in all_calls:
        check(house, *call)


MAKING = ("block_size", "device", "host", "null_slots", "eviction", "host_copies", "write",
          "ghosts", "spare", "block_costs", "recompute", "copy_retries", "groups",
          "namespace", "key_hash", "keyed")  # fmt: skip


@profile(60)
@given(
    st.dictionaries(st.sampled_from(MAKING), guests(), max_size=4), st.lists(calls(), max_size=3)
)
def test_whatever_a_cache_is_made_of_it_is_one_or_none(
    keywords: dict[str, Any], all_calls: list[tuple[str, list[Any], dict[str, Any]]]
) -> None:
    house = House()
    made = {"device": 9} | {name: value(house) for name, value in keywords.items()}
    try:
        house.cache = _core.Cache(**made, memory=LITTLE)
    except EXPECTED:
        return
    for call in all_calls:
        check(house, *call)


@profile(80)
@given(st.lists(guests(), min_size=6, max_size=6))
def test_whatever_the_cranes_arithmetic_is_given_it_is_served_or_refused(guests: list[Any]) -> None:
    house = House()
    one, two, three, four, five, six = (guest(house) for guest in guests)
    marks = _core.Marks(8)
    for act in (
        lambda: _core.consecutive(one, two),
        lambda: _core.runs(one, two, (three, four), (five, six), 8),
        lambda: _core.runs([1, 2], [3, 4], (three, four), (five, six), one),
        lambda: _core.through(one, (two, three), four, five, six),
        lambda: _core.through([1, 2], (np.arange(2, dtype=np.uint64), 8), one, two, three),
        lambda: marks.touch(one, two),
        lambda: marks.latest(three),
        lambda: by.Plan.from_bytes(four),
    ):
        try:
            act()
        except EXPECTED:
            continue
    assert house.cache.audit() is None
