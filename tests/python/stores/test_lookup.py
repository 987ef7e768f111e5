"""A lookup asks stores on a thread of its own, and answers from memory."""

import threading
import time
from collections.abc import Iterator

import pytest

import blockyard as by
from blockyard.stores.address import block_address
from blockyard.stores.lookup import Found, StoreLookup
from memory_stores import MemoryStore, Turned

PLACE = 0x1234
CACHE = by.KVCache(block_size=4, device=8)


def keys(name: int, blocks: int) -> by.Keys:
    return CACHE.keys([name * 1000 + at for at in range(4 * blocks)])


def each(of: by.Keys) -> list[bytes]:
    data = bytes(of)
    return [data[at : at + 32] for at in range(0, len(data), 32)]


def put(store: MemoryStore, of: by.Keys, *, ranks: int = 1, place: int = PLACE) -> None:
    for key in each(of):
        for rank in range(ranks):
            store.values[block_address(place, rank, key)] = b"x"


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    one = MemoryStore()
    yield one
    one.go.set()


def answer(lookup: StoreLookup, name: object, of: by.Keys) -> Found | None:
    until = time.monotonic() + 60
    while (found := lookup.ask(name, of)) is None and time.monotonic() < until:
        time.sleep(0.001)
    return found


def test_it_says_how_many_leading_blocks_a_store_has(store: MemoryStore) -> None:
    lookup = StoreLookup([store], [PLACE], clock=Turned())
    wanted = keys(1, 6)
    put(store, wanted)
    assert answer(lookup, "all", wanted) == Found(6)
    del store.values[block_address(PLACE, 0, each(wanted)[3])]
    assert answer(lookup, "a gap", wanted) == Found(3)
    assert answer(lookup, "none", keys(2, 3)) == Found(0)
    assert store.callers != {threading.get_ident()}
    assert threading.get_ident() not in store.callers
    lookup.close()


def test_of_several_stores_the_union_counts(store: MemoryStore) -> None:
    other = MemoryStore("memory://two")
    wanted = keys(1, 4)
    put(store, wanted)
    put(other, wanted)
    del store.values[block_address(PLACE, 0, each(wanted)[1])]
    del other.values[block_address(PLACE, 0, each(wanted)[3])]
    lookup = StoreLookup([store, other], [PLACE], clock=Turned())
    assert answer(lookup, "one", wanted) == Found(4)
    lookup.close()


def test_one_rank_of_each_block_is_asked_for(store: MemoryStore) -> None:
    wanted = keys(1, 40)
    put(store, wanted, ranks=2)
    lookup = StoreLookup([store], [PLACE], 2, clock=Turned())
    assert answer(lookup, "one", wanted) == Found(40)
    asked = [block_address(PLACE, key[-1] % 2, key) for key in each(wanted)]
    assert len({address.split("/")[2] for address in asked}) == 2, "both ranks are asked"
    store.values.pop(asked[7])
    assert answer(lookup, "two", wanted) == Found(7)
    lookup.close()


def test_each_group_of_layers_has_an_answer_of_its_own(store: MemoryStore) -> None:
    wanted = keys(1, 3)
    put(store, wanted)
    for at in (0, 2):
        store.values[block_address(9, 0, each(wanted)[at], 1)] = b"x"
    lookup = StoreLookup([store], [PLACE, 9], clock=Turned())
    assert answer(lookup, "one", wanted) == Found(3, ((True, False, True),))
    lookup.close()


@pytest.mark.law("INV-35b")
def test_behind_a_store_that_hangs_nobody_waits(store: MemoryStore) -> None:
    clock = Turned()
    store.hangs = {"has"}
    lookup = StoreLookup([store], [PLACE], clock=clock)
    assert lookup.ask("one", keys(1, 3)) is None
    assert store.reached.acquire(timeout=60)
    assert lookup.ask("one", keys(1, 3)) is None
    clock.now += 0.02
    assert lookup.ask("one", keys(1, 3)) == Found(0), "its patience is over"
    assert lookup.ask("two", keys(2, 3)) == Found(0), "at once"
    assert lookup.ask("two", keys(2, 3), 9.0) == Found(0), "whatever the patience"
    assert store.calls == ["has"]
    begun = time.monotonic()
    lookup.close()
    assert time.monotonic() - begun < 30
    store.go.set()


@pytest.mark.law("INV-35b")
def test_who_asks_may_have_a_patience_of_its_own(store: MemoryStore) -> None:
    clock = Turned()
    store.hangs = {"has"}
    lookup = StoreLookup([store], [PLACE], clock=clock)
    assert lookup.ask("one", keys(1, 3), 9.0) is None
    assert store.reached.acquire(timeout=60)
    clock.now += 8.9
    assert lookup.ask("one", keys(1, 3), 9.0) is None
    assert lookup.ask("two", keys(2, 3), 1.0) is None, "the first question may still be answered"
    clock.now += 0.1
    assert lookup.ask("one", keys(1, 3), 9.0) == Found(0)
    lookup.close()
    store.go.set()


@pytest.mark.law("INV-35b")
def test_a_store_that_rests_answers_at_once_and_a_dead_one_ends_nothing(
    store: MemoryStore,
) -> None:
    store.down = "it is down"
    lookup = StoreLookup([store], [PLACE], clock=Turned())
    assert answer(lookup, "one", keys(1, 3)) == Found(0)
    sessions = store.sessions
    assert lookup.ask("two", keys(2, 3)) == Found(0), "it rests"
    assert store.sessions == sessions
    lookup.close()


def test_a_first_block_that_is_missing_is_remembered_for_two_seconds(store: MemoryStore) -> None:
    clock = Turned()
    lookup = StoreLookup([store], [PLACE], clock=clock)
    wanted = keys(1, 3)
    assert answer(lookup, "one", wanted) == Found(0)
    put(store, wanted)
    clock.now += 1.9
    assert lookup.ask("two", wanted) == Found(0)
    clock.now += 0.2
    assert answer(lookup, "three", wanted) == Found(3)
    assert store.calls == ["has", "has"]
    lookup.close()


def test_what_is_dropped_is_not_asked_any_more(store: MemoryStore) -> None:
    store.hangs = {"has"}
    lookup = StoreLookup([store], [PLACE], clock=Turned(), patience=1e6)
    assert lookup.ask("one", keys(1, 3)) is None
    assert store.reached.acquire(timeout=60)
    assert lookup.ask("two", keys(2, 3)) is None
    assert lookup.ask("three", keys(3, 3)) is None
    lookup.drop("two")
    lookup.drop("never asked")
    store.hangs = set()
    store.go.set()
    assert answer(lookup, "three", keys(3, 3)) == Found(0)
    assert store.calls == ["has", "has"]
    lookup.close()


def test_its_session_is_closed_by_its_own_thread(store: MemoryStore) -> None:
    lookup = StoreLookup([store], [PLACE], clock=Turned())
    put(store, keys(1, 2))
    assert answer(lookup, "one", keys(1, 2)) == Found(2)
    lookup.close()
    until = time.monotonic() + 60
    while not store.closed and time.monotonic() < until:
        time.sleep(0.001)
    assert (store.sessions, store.closed) == (1, 1)


@pytest.mark.law("INV-35b")
def test_a_closed_one_answers_at_once(store: MemoryStore) -> None:
    lookup = StoreLookup([store], [PLACE], clock=Turned())
    put(store, keys(1, 2))
    assert answer(lookup, "one", keys(1, 2)) == Found(2)
    lookup.close()
    assert lookup.ask("two", keys(1, 2)) == Found(0)
    assert store.calls == ["has"]


@pytest.mark.law("INV-35b")
def test_without_a_thread_it_answers_at_once_and_asks_when_there_is_one(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    lookup = StoreLookup([store], [PLACE], clock=Turned())
    put(store, keys(1, 2))
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", none)
        assert lookup.ask("one", keys(1, 2)) == Found(0)
        assert lookup.ask("two", keys(1, 2)) == Found(0)
    assert answer(lookup, "three", keys(1, 2)) == Found(2)
    lookup.close()


@pytest.mark.law("INV-35b")
def test_a_clock_that_goes_back_ends_patience_and_memory(store: MemoryStore) -> None:
    clock = Turned()
    store.hangs = {"has"}
    lookup = StoreLookup([store], [PLACE], clock=clock)
    assert lookup.ask("one", keys(1, 2)) is None
    assert store.reached.acquire(timeout=60)
    clock.now -= 50
    assert lookup.ask("one", keys(1, 2)) == Found(0), "its patience is over"
    store.hangs = set()
    store.go.set()
    clock.now += 50
    assert answer(lookup, "none", keys(2, 2)) == Found(0)
    put(store, keys(2, 2))
    clock.now -= 50
    assert answer(lookup, "again", keys(2, 2)) == Found(2), "that it had none was no time ago"
    lookup.close()


def test_no_key_is_no_question(store: MemoryStore) -> None:
    lookup = StoreLookup([store], [PLACE], clock=Turned())
    assert lookup.ask("one", CACHE.keys([1])) == Found(0)
    assert not store.calls
