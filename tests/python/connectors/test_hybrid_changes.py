"""What the naive model of groups lacks: drafts, salts, events, resizes, hints, deadlines."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import blockyard as by
from blockyard._typing import override
from hybrid_front import SIZE, Front, ids
from kv_events import EventBatch

if TYPE_CHECKING:
    from collections.abc import Sequence


def begins(front: Front, name: str, keys: by.Keys) -> int:
    """Admits a request, and loads all that lies below; returns these tokens."""
    found = front.ask.matched(name, keys)
    assert found is not None
    front.ask.allocated(name, front.tables(-(-found // SIZE)) if found else ())
    front.carry()
    assert front.ask.arrived() == ({name: found} if found else {})
    return found


# -- drafts and salts ----------------------------------------------------------------------------


@pytest.mark.law("G3", "G8")
@pytest.mark.parametrize("words", ["F W8", "F W8 S8"])
def test_with_drafts_a_hit_is_shorter_and_what_is_kept_is_not(words: str) -> None:
    front = Front(words, again=1)
    keys = front.keys(33)
    front.offloaded(keys, 24, 32)
    assert front.ask.matched("one", keys) == (24 if "S8" in words else 28)
    tables = front.tables(8)
    begins(front, "two", front.keys(33, 500))
    states = front.states(tables, 32)
    assert front.ask.preempted("two", front.keys(33, 500), tables, 32, states)
    front.carry()
    assert begins(front, "two", front.keys(33, 500)) == 32


@pytest.mark.law("G13")
def test_to_forget_one_salt_leaves_the_others_in_every_group() -> None:
    front = Front("F W8 S8")
    keys = [front.caches[0].keys(range(33), salt=salt) for salt in ("one", "two")]
    for own in keys:
        front.offloaded(own, 32)
    assert front.ask.forget(keys[0]).blocks == 8
    assert [front.ask.matched(str(n), own) for n, own in enumerate(keys)] == [0, 32]
    assert [len(cache.known_keys()) for cache in front.caches] == [8, 2, 1]


# -- events --------------------------------------------------------------------------------------


def test_events_are_of_the_spine_alone_and_promise_what_riders_may_lack() -> None:
    front = Front("F W8")
    spine, window = front.caches
    with pytest.raises(by.Misuse, match="listen to the cache of group 0"):
        window.listen()
    spine.listen()
    keys = front.keys(33)
    front.offloaded(keys, 16)

    def told() -> list[tuple[str, int]]:
        payload, more = spine.take_events()
        assert not more
        events = msgspec.msgpack.decode(payload, type=EventBatch).events if payload else []
        return [(one["type"], len(one.get("block_hashes", ()))) for one in events]

    assert told()[-1] == ("BlockStored", 8), "32 tokens are announced"
    assert front.ask.matched("one", keys) == 16, "and 16 are found: the window has a checkpoint"
    window.clear()
    assert front.ask.matched("one", keys) == 0
    assert told() == [], "what the window loses is not told"
    front.ask.clear()
    assert told() == [("AllBlocksCleared", 0)]


# -- resize --------------------------------------------------------------------------------------


@pytest.mark.law("G4")
@pytest.mark.parametrize("group", [0, 1, 2])
def test_a_group_that_shrinks_costs_hits_and_one_that_grows_has_them_again(group: int) -> None:
    front = Front("F W8 S8")
    keys, kept = front.keys(33), front.keys(33, 500)
    tables = front.tables(8)
    begins(front, "kept", kept)
    assert front.ask.preempted("kept", kept, tables, 32, front.states(tables, 32))
    front.carry()
    front.offloaded(keys, 32)
    cache = front.caches[group]
    pinned = cache.stats()["host_pinned"]
    cache.resize("host", pinned)
    assert front.ask.matched("one", keys) == 0
    front.ask.finished("one")
    front.offloaded(keys, 32)
    assert front.ask.matched("one", keys) == 0, "there is no room"
    front.ask.finished("one")
    cache.resize("host", 64)
    front.offloaded(keys, 32)
    assert begins(front, "one", keys) == 32
    front.ask.finished("one")
    assert begins(front, "kept", kept) == 32
    assert [one.stats()["parked"] for one in front.caches] == [0, 0, 0]


@pytest.mark.law("G8")
@pytest.mark.parametrize("group", [0, 1, 2])
@pytest.mark.parametrize("loads", [False, True])
def test_a_keep_that_a_resize_breaks_is_given_up_in_all_groups(group: int, loads: bool) -> None:
    front = Front("F W8 S8")
    keys, tables = front.keys(33), front.tables(8)
    begins(front, "one", keys)
    assert front.ask.preempted("one", keys, tables, 32, front.states(tables, 32))
    front.carry()
    new = front.tables(8)
    down: Sequence[by.Plan] = ()
    if loads:  # it waits until its ids are read no more, and has begun nowhere
        front.ask.offload("two", front.keys(33, 500), new, at=[32], states=front.states(new, 32))
        down = front.step().down
        assert front.ask.matched("one", keys) == 32
        front.ask.allocated("one", new)
    cache = front.caches[group]
    cache.resize("host", cache.stats()["host_pinned"] - 1)
    if loads:
        front.land(*down)
        for _ in range(3):
            front.carry()
        assert front.ask.arrived() == {"one": 0}
    assert front.ask.matched("one", keys) == 0
    assert [one.stats()["parked"] for one in front.caches] == [0, 0, 0]
    assert [one.stats()["host_pinned"] for one in front.caches] == [0, 0, 0]
    assert front.ask.stats()["kv_lost"] == 1
    front.carry()
    assert not front.ask.is_busy


# -- hints ---------------------------------------------------------------------------------------


def test_a_priority_decides_in_every_group_who_goes_first() -> None:
    front = Front("F W8 S8", host=[20, 5, 2], eviction="heap")
    rows = {name: front.keys(33, 100 * at) for at, name in enumerate(("first", "second"))}
    for name, priority in (("first", 90), ("second", 5)):
        begins(front, name, rows[name])
        tables = front.tables(8)
        states = front.states(tables, 32)
        front.ask.finished(name, rows[name], tables, states=states, priority=priority)
        for _ in range(3):
            front.carry()
    begins(front, "third", front.keys(33, 900))
    tables = front.tables(8)
    front.ask.finished("third", front.keys(33, 900), tables, states=front.states(tables, 32))
    front.carry()
    assert front.ask.matched("again", rows["first"]) == 32
    assert front.ask.matched("other", rows["second"]) == 0


# -- deadlines -----------------------------------------------------------------------------------


@pytest.mark.law("G8")
@pytest.mark.parametrize("late", [0, 1, 2])
def test_a_keep_of_which_a_copy_is_late_is_given_up_in_all_groups(late: int) -> None:
    front = Front("F W8 S8", deadline=3)
    keys, tables = front.keys(33), front.tables(8)
    begins(front, "one", keys)
    assert front.ask.preempted("one", keys, tables, 32, front.states(tables, 32))
    made = front.step()
    front.land(*(plan for plan in made.down if plan.group != late))
    assert front.ask.matched("one", keys) is None
    for _ in range(5):
        front.ask.commit([])
        front.step()
    assert front.ask.matched("one", keys) == 0
    assert not front.ask.is_busy
    assert [cache.stats()["parked"] for cache in front.caches] == [0, 0, 0]
    front.land(*(plan for plan in made.down if plan.group == late))
    assert [cache.stats()["host_quarantined"] for cache in front.caches] == [0, 0, 0]
    assert begins(front, "one", keys) == 0
    front.ask.offload("one", keys, tables, at=[32], states=front.states(tables, 32))
    front.carry()
    assert front.ask.matched("two", keys) == 32


class Counted(list[int]):
    """A table that counts how many of its ids are read."""

    reads = 0

    @override
    def __iter__(self) -> Iterator[int]:
        self.reads += len(self)
        return super().__iter__()

    @override
    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        self.reads += len(found) if isinstance(at, slice) else 1
        return found


def test_the_offload_of_a_block_more_reads_no_more_of_a_longer_request() -> None:
    read = []
    for blocks in (20, 60):
        front = Front("W10 F W4")
        keys = front.keys(blocks * SIZE + 1)
        tables = front.tables(blocks)
        front.ask.offload("one", keys, tables)
        front.carry()
        counted = [Counted(table) for table in tables]
        front.ask.offload("one", keys, counted, at=[blocks * SIZE], first=blocks - 1)
        read.append([table.reads for table in counted])
        assert ids(front.carry().down)
    assert read[0] == read[1]
    assert max(read[0]) < 20
