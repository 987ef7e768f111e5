"""SGLang's storage over slot files: bytes, restarts, full disks, torn pages, threads, refusals."""

import gc
import hashlib
import logging
import os
import re
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import blockyard as by
import sglang_stub as stub
from blockyard._typing import override
from blockyard.engines.sglang import Storage
from sglang_stub import HiCacheStorageConfig, HiCacheStorageExtraInfo, Pool

PAGES = 24
EXTRA: dict[str, Any] = {
    "backend_name": "blockyard",
    "module_path": "blockyard.engines.sglang",
    "class_name": "Storage",
    "interface_v1": 1,
    "disk": 16,
    "namespace": {"weights": "v1"},
    "threads": 2,
}


def config(path: Path, *, extra: dict[str, Any] | None = None, **more: Any) -> HiCacheStorageConfig:
    given: dict[str, Any] = {
        "tp_rank": 0,
        "tp_size": 1,
        "pp_rank": 0,
        "pp_size": 1,
        "attn_cp_rank": 0,
        "attn_cp_size": 1,
        "is_mla_model": False,
        "enable_storage_metrics": False,
        "is_page_first_layout": True,
        "model_name": "a model",
    }
    words = EXTRA | {"disk_path": str(path)} | (extra or {})
    words = {name: word for name, word in words.items() if word is not None}
    return HiCacheStorageConfig(**(given | {"extra_config": words} | more))


def opened(path: Path, pool: Pool | None = None, **more: Any) -> Storage:
    storage = Storage(config(path, **more), {})
    storage.register_mem_pool_host(pool or Pool(PAGES))
    return storage


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Storage]:
    storage = opened(tmp_path)
    yield storage
    storage.close()


def keys(name: str, count: int) -> list[str]:
    """Keys of a sequence, each of all before it."""
    made, last = [], name
    for at in range(count):
        last = hashlib.sha256(f"{last} {at}".encode()).hexdigest()
        made.append(last)
    return made


def fill(pool: Pool, *pages: int, seed: int = 0) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    for page in pages:
        pool.kv_buffer[:, page] = rng.integers(0, 256, pool.kv_buffer[:, page].shape, np.uint8)
    return pool.kv_buffer[:, list(pages)].copy()


def put(storage: Storage, named: list[str], *pages: int, before: Any = ()) -> list[bool]:
    info = HiCacheStorageExtraInfo(prefix_keys=None if before is None else list(before))
    return storage.batch_set_v1(named, storage.mem_pool_host.rows(*pages), info)


def take(storage: Storage, named: list[str], *pages: int) -> list[bool]:
    return storage.batch_get_v1(named, storage.mem_pool_host.rows(*pages))


def whole(storage: Storage, name: str, count: int, first: int = 0) -> list[str]:
    """Writes a sequence of its own bytes."""
    named, pages = keys(name, count), range(first, first + count)
    fill(storage.mem_pool_host, *pages, seed=len(name) + ord(name[-1]))
    assert put(storage, named, *pages) == [True] * count
    return named


# -- bytes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["page_first", "page_first_direct"])
def test_pages_come_back_with_their_bytes_wherever_they_go(tmp_path: Path, layout: str) -> None:
    pool = Pool(PAGES, layout=layout)
    storage = opened(tmp_path, pool)
    named = keys("a", 6)
    wrote = fill(pool, 9, 2, 17, 0, 23, 4)
    assert storage.batch_exists(named) == 0
    assert put(storage, named, 9, 2, 17, 0, 23, 4) == [True] * 6
    assert storage.batch_exists(named) == 6
    assert storage.exists(named[3])
    pool.kv_buffer[...] = 0
    assert take(storage, named, 5, 6, 7, 20, 1, 3) == [True] * 6
    assert np.array_equal(pool.kv_buffer[:, [5, 6, 7, 20, 1, 3]], wrote)
    untouched = [page for page in range(PAGES) if page not in {5, 6, 7, 20, 1, 3}]
    assert not pool.kv_buffer[:, untouched].any()
    storage.close()


def test_one_page_of_many_can_be_asked_for(store: Storage) -> None:
    named = whole(store, "a", 5)
    wrote = store.mem_pool_host.kv_buffer[:, 3].copy()
    store.mem_pool_host.kv_buffer[...] = 0
    assert take(store, named[3:4], 11) == [True]
    assert np.array_equal(store.mem_pool_host.kv_buffer[:, 11], wrote)


def test_what_is_not_there_ends_a_load_and_a_count(store: Storage) -> None:
    named = whole(store, "a", 3)
    asked = [*named[:2], *keys("b", 1), named[2]]
    assert store.batch_exists(asked) == 2
    assert take(store, asked, 4, 5, 6, 7) == [True, True, False, False]
    assert not store.exists(keys("b", 1)[0])
    assert store.batch_exists([]) == 0
    assert take(store, []) == []
    assert put(store, []) == []


def test_what_is_there_already_is_a_success_and_not_written_again(store: Storage) -> None:
    named = whole(store, "a", 4)
    before = store.stats()["disk_in"]
    fill(store.mem_pool_host, 8, 9, 10, 11, seed=99)
    assert put(store, named, 8, 9, 10, 11) == [True] * 4
    assert store.stats()["disk_in"] == before
    more = keys("a", 6)
    assert put(store, more, 8, 9, 10, 11, 12, 13) == [True] * 6
    assert store.stats()["disk_in"] == before + 2


def test_batches_of_one_sequence_are_one_chain(store: Storage) -> None:
    named = keys("a", 9)
    fill(store.mem_pool_host, *range(9))
    for first in range(0, 9, 3):
        pages = range(first, first + 3)
        assert put(store, named[first : first + 3], *pages, before=named[:first]) == [True] * 3
    assert store.batch_exists(named) == 9
    # A page goes before those that it follows, whichever call has brought it.
    whole(store, "b", 12)
    assert store.batch_exists(named) == 4


def test_what_is_added_to_known_pages_in_one_call_follows_them(store: Storage) -> None:
    named = whole(store, "a", 3)
    assert put(store, keys("a", 7), *range(7)) == [True] * 7
    whole(store, "b", 13)
    assert store.batch_exists(keys("a", 7)) == 3
    assert keys("a", 7)[:3] == named


@pytest.mark.parametrize("before", [None, (), "unknown"])
def test_pages_whose_parents_are_said_otherwise_the_next_time_are_taken_all_the_same(
    store: Storage, before: Any
) -> None:
    named = keys("a", 6)
    fill(store.mem_pool_host, *range(6))
    first = keys("z", 1) if before == "unknown" else before
    assert put(store, named[:3], 0, 1, 2, before=first) == [True] * 3
    for later in (None, (), keys("y", 1)):
        assert put(store, named[:4], 0, 1, 2, 3, before=later) == [True] * 4
    assert put(store, named[2:], 2, 3, 4, 5, before=None) == [True] * 4
    assert store.batch_exists(named) == 6


# -- restarts -------------------------------------------------------------------------------


def test_a_restart_finds_what_was_there(tmp_path: Path) -> None:
    first = opened(tmp_path)
    named = whole(first, "a", 6)
    wrote = first.mem_pool_host.kv_buffer[:, :6].copy()
    first.close()
    again = opened(tmp_path)
    assert again.batch_exists(named) == 6
    assert take(again, named, *range(10, 16)) == [True] * 6
    assert np.array_equal(again.mem_pool_host.kv_buffer[:, 10:16], wrote)
    # The chain is one chain again.
    assert put(again, keys("a", 8)[6:], 1, 2, before=named) == [True] * 2
    again.close()


DIFFERENT: list[tuple[str, dict[str, Any], Pool | None]] = [
    ("model", {"model_name": "another"}, None),
    ("weights", {"extra": {"namespace": {"weights": "v2"}}}, None),
    ("the operator's word", {"extra": {"namespace": {"weights": "v1", "tenant": "b"}}}, None),
    ("rank", {"tp_size": 2, "tp_rank": 1}, None),
    ("stage", {"pp_size": 2, "pp_rank": 1}, None),
    ("replica", {"dp_rank": 1}, None),
    ("page", {}, Pool(PAGES, page_size=2)),
    ("layout", {}, Pool(PAGES, layout="page_first_direct")),
    ("heads for layers", {}, Pool(PAGES, layers=2, heads=3)),
]


@pytest.mark.parametrize(("what", "more", "pool"), DIFFERENT, ids=[one[0] for one in DIFFERENT])
def test_another_one_is_never_served(
    tmp_path: Path, what: str, more: dict[str, Any], pool: Pool | None
) -> None:
    first = opened(tmp_path)
    named = whole(first, "a", 4)
    # Both at once: each has a folder of its own.
    other = opened(tmp_path, pool, **more)
    assert other.batch_exists(named) == 0, what
    fill(other.mem_pool_host, 0, 1, seed=77)
    assert put(other, named[:2], 0, 1) == [True] * 2
    other.close()
    first.mem_pool_host.kv_buffer[:, 4:] = 0
    assert take(first, named, 4, 5, 6, 7) == [True] * 4
    kept = first.mem_pool_host.kv_buffer
    assert np.array_equal(kept[:, 4:8], kept[:, :4])
    first.close()


def test_each_of_two_ranks_has_its_half_of_the_disk(tmp_path: Path) -> None:
    page = Pool(1).kv_buffer.nbytes
    words = {"disk": f"{32 * page / 2**10} KiB"}
    for rank in range(2):
        storage = opened(tmp_path, extra=words, tp_size=2, tp_rank=rank)
        assert storage._disk is not None
        assert storage._disk.slots == 16
        storage.close()
    assert {one.name for one in tmp_path.glob("*/*")} == {"rank-0", "rank-1"}


@pytest.mark.usefixtures("store")
def test_a_folder_has_one_owner(tmp_path: Path) -> None:
    with pytest.raises(by.Unavailable, match=f"process {os.getpid()} owns it"):
        opened(tmp_path)


# -- a full disk ----------------------------------------------------------------------------


def test_a_full_disk_goes_on_and_what_was_used_last_longest_ago_goes(store: Storage) -> None:
    old, used = whole(store, "a", 8), whole(store, "b", 8, 8)
    assert take(store, old, *range(16, 24)) == [True] * 8
    new = whole(store, "c", 4)
    assert store.batch_exists(new) == 4
    assert store.batch_exists(old) == 8
    # The last pages of a sequence go first, so that its beginning is of use.
    assert store.batch_exists(used) == 4
    for turn in range(6):
        whole(store, f"d{turn}", 8)
    assert store.batch_exists(keys("d5", 8)) == 8
    assert store.stats()["disk_evicted"] > 30


def test_pages_beyond_the_disk_are_not_said_to_be_there(store: Storage) -> None:
    named = keys("a", 20)
    fill(store.mem_pool_host, *range(20))
    stored = put(store, named, *range(20))
    assert stored == [True] * 16 + [False] * 4
    assert store.batch_exists(named) == 16


def test_after_a_restart_a_full_disk_goes_on_in_the_same_order(tmp_path: Path) -> None:
    first = opened(tmp_path)
    old, newer = whole(first, "a", 8), whole(first, "b", 8, 8)
    first.close()
    again = opened(tmp_path)
    whole(again, "c", 4)
    assert (again.batch_exists(old), again.batch_exists(newer)) == (4, 8)
    again.close()


# -- torn and foreign pages -----------------------------------------------------------------


def at_slot(storage: Storage, key: str) -> int:
    """The slot of a page, by its record."""
    (table,) = Path(storage._config.extra_config["disk_path"]).glob("*/rank-0/table")
    return table.read_bytes().index(bytes.fromhex(key)) // 128


def slot_file(storage: Storage) -> tuple[Path, int]:
    (slots,) = Path(storage._config.extra_config["disk_path"]).glob("*/rank-0/slots")
    return slots, slots.stat().st_size // 16


def flip(storage: Storage, key: str) -> None:
    path, stride = slot_file(storage)
    with path.open("r+b") as file:
        file.seek(at_slot(storage, key) * stride + 100)
        (byte,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


def test_a_torn_page_ends_the_load_and_is_not_found_again(tmp_path: Path) -> None:
    storage = opened(tmp_path, extra={"direct": False})
    named = whole(storage, "a", 6)
    wrote = storage.mem_pool_host.kv_buffer[:, :6].copy()
    flip(storage, named[2])
    storage.mem_pool_host.kv_buffer[...] = 0
    assert storage.batch_exists(named) == 6
    assert take(storage, named, *range(6, 12)) == [True, True, False, False, False, False]
    assert np.array_equal(storage.mem_pool_host.kv_buffer[:, 6:8], wrote[:, :2])
    assert not storage.mem_pool_host.kv_buffer[:, 8].any(), "no torn byte is given out"
    assert storage.batch_exists(named) == 2
    assert storage.stats()["corrupt"] == 1
    # It is written anew, and the chain is whole.
    storage.mem_pool_host.kv_buffer[:, :6] = wrote
    assert put(storage, named, *range(6)) == [True] * 6
    assert take(storage, named, *range(12, 18)) == [True] * 6
    assert np.array_equal(storage.mem_pool_host.kv_buffer[:, 12:18], wrote)
    storage.close()


def test_a_foreign_page_is_none(tmp_path: Path) -> None:
    storage = opened(tmp_path, extra={"direct": False})
    named = whole(storage, "a", 3)
    path, stride = slot_file(storage)
    (table,) = path.parent.glob("table")
    bytes_, records = bytearray(path.read_bytes()), bytearray(table.read_bytes())
    mine, other = at_slot(storage, named[1]), at_slot(storage, named[2])
    # Its payload and record both: whole, and another page's.
    bytes_[mine * stride :][:stride] = bytes_[other * stride :][:stride]
    bytes_[mine * stride : (mine + 1) * stride] = bytes_[other * stride : (other + 1) * stride]
    records[mine * 128 : (mine + 1) * 128] = records[other * 128 : (other + 1) * 128]
    path.write_bytes(bytes_)
    table.write_bytes(records)
    assert take(storage, named, 6, 7, 8) == [True, False, False]
    assert storage.batch_exists(named) == 1
    storage.close()
    again = opened(tmp_path, extra={"direct": False})
    assert again.batch_exists(named) == 1
    again.close()


# -- clear, close, fork ---------------------------------------------------------------------


def test_a_clear_is_not_undone_by_a_restart(tmp_path: Path) -> None:
    storage = opened(tmp_path)
    old = whole(storage, "a", 4)
    storage.clear()
    assert storage.batch_exists(old) == 0
    assert take(storage, old, 4, 5, 6, 7) == [False] * 4
    new = whole(storage, "b", 3)
    storage.close()
    again = opened(tmp_path)
    assert (again.batch_exists(old), again.batch_exists(new)) == (0, 3)
    again.close()


def test_a_clear_that_is_not_durable_in_time_says_so_and_finds_nothing(
    store: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = whole(store, "a", 4)
    disk = store._disk
    assert disk is not None
    monkeypatch.setattr(disk._disk, "clear", lambda **_: False)
    with pytest.raises(by.Unavailable, match="a clear is not durable after 30"):
        store.clear()
    assert store.batch_exists(named) == 0
    assert put(store, keys("a", 5)[4:], 5, before=named) == [True]


def test_what_is_written_while_it_is_cleared_is_not_kept(
    store: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = store._disk
    assert disk is not None
    clear, said = disk._disk.clear, []

    def slow(**more: Any) -> bool:
        done = clear(**more)
        said.append(put(store, keys("a", 2), 0, 1))
        return done

    monkeypatch.setattr(disk._disk, "clear", slow)
    store.clear()
    assert said == [[False, False]]
    assert store.batch_exists(keys("a", 2)) == 0


def test_a_closed_one_says_so_and_can_be_closed_again(tmp_path: Path) -> None:
    storage = opened(tmp_path)
    named = whole(storage, "a", 2)
    storage.close()
    storage.close()
    for call in (
        lambda: storage.batch_exists(named),
        lambda: take(storage, named, 0, 1),
        lambda: put(storage, named, 0, 1),
        storage.clear,
    ):
        with pytest.raises(by.Misuse, match="the disk is closed: open it again"):
            call()
    Storage(config(tmp_path), {}).close()


def test_in_a_forked_process_it_refuses_and_leaves_the_folder_to_its_owner(store: Storage) -> None:
    named, disk = whole(store, "a", 2), store._disk
    assert disk is not None
    read, write = os.pipe()
    # As if another thread were in a call just then: nobody in the child ever lets it go.
    with disk._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            said = ""
            try:
                store.batch_exists(named)
            except by.Misuse as error:
                said = str(error)
            store.close()
            os.write(write, said.encode())
            os._exit(0)
    os.close(write)
    assert os.waitpid(child, 0)[1] == 0
    with os.fdopen(read) as pipe:
        assert pipe.read() == (
            f"process {os.getpid()} owns this disk: a process that was forked must open its own"
        )
    assert take(store, named, 4, 5) == [True, True]


def test_an_opening_that_fails_leaves_no_folder_with_an_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise by.Unavailable("no memory")

    with monkeypatch.context() as patched:
        patched.setattr(by.KVCache, "restore", fails)
        with pytest.raises(by.Unavailable, match="no memory") as caught:
            opened(tmp_path)
    opened(tmp_path).close()
    # Its frames have kept the disk.
    assert caught.tb is not None


def test_memory_is_held_until_all_copies_have_ended(tmp_path: Path) -> None:
    storage = opened(tmp_path)
    disk, pool = storage._disk, weakref.ref(storage.mem_pool_host)
    assert disk is not None
    del storage
    gc.collect()
    assert pool() is not None
    disk.close()
    gc.collect()
    assert pool() is None


# -- a disk that fails, or hangs ------------------------------------------------------------


class Lane:
    """A lane of which calls can be replaced."""

    def __init__(self, lane: Any, **instead: Any) -> None:
        self._lane = lane
        vars(self).update(instead)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lane, name)


def test_pages_that_could_not_be_written_are_not_found(store: Storage) -> None:
    disk = store._disk
    assert disk is not None
    real = disk._lane

    def poll() -> list[tuple[int, int, str]]:
        return [(number, min(good, 2), "failed") for number, good, _ in real.poll()]

    disk._lane = Lane(real, poll=poll)  # type: ignore[assignment]
    named = keys("a", 5)
    fill(store.mem_pool_host, *range(5))
    assert put(store, named, *range(5)) == [True, True, False, False, False]
    assert store.batch_exists(named) == 2
    disk._lane = real
    assert put(store, named, *range(5)) == [True] * 5
    assert store.batch_exists(named) == 5


def hanging(storage: Storage) -> tuple[Any, threading.Event]:
    """Has copies wait until the event, and reports nothing before it."""
    disk = storage._disk
    assert disk is not None
    real, go = disk._lane, threading.Event()
    ended: list[tuple[int, int, str]] = []
    given_up: set[int] = set()

    def wait(number: int, seconds: float) -> bool:
        return go.wait(seconds) and bool(real.wait(number, 30.0))

    def poll() -> list[tuple[int, int, str]]:
        ended.extend(real.poll())
        out = [(n, 0, "given up") if n in given_up else (n, g, w) for n, g, w in ended]
        keep = [] if go.is_set() else [one for one in ended if one[0] not in given_up]
        out = out if go.is_set() else [one for one in out if one[0] in given_up]
        ended[:] = keep
        return out

    def give_up(number: int, *, late: bool) -> None:
        assert late, "the disk did not answer in time"
        real.wait(number, 30.0)
        given_up.add(number)

    disk._lane = Lane(real, wait=wait, poll=poll, give_up=give_up)  # type: ignore[assignment]
    return real, go


def test_nothing_is_found_before_it_is_durable(store: Storage) -> None:
    _, go = hanging(store)
    named = keys("a", 4)
    fill(store.mem_pool_host, *range(4))
    said: list[list[bool]] = []
    writer = threading.Thread(target=lambda: said.append(put(store, named, *range(4))))
    writer.start()
    until = time.monotonic() + 20
    while store.stats()["flights"] == 0:
        assert time.monotonic() < until
    assert store.batch_exists(named) == 0
    # Another call with the same pages waits for that copy, and makes none of its own.
    other = threading.Thread(target=lambda: said.append(put(store, named, *range(8, 12))))
    other.start()
    go.set()
    writer.join()
    other.join()
    assert said == [[True] * 4] * 2
    assert store.batch_exists(named) == 4
    assert store.stats()["disk_in"] == 4


def test_a_page_that_somebody_reads_is_there_for_others(store: Storage) -> None:
    named = whole(store, "a", 4)
    _, go = hanging(store)
    said: list[list[bool]] = []
    readers = [
        threading.Thread(target=lambda: said.append(take(store, named, 8, 9, 10, 11))),
        threading.Thread(target=lambda: said.append(take(store, named, 12, 13, 14, 15))),
    ]
    for reader in readers:
        reader.start()
    until = time.monotonic() + 20
    while store.stats()["flights"] == 0:
        assert time.monotonic() < until
    assert store.batch_exists(named) == 4
    go.set()
    for reader in readers:
        reader.join()
    assert said == [[True] * 4] * 2


@pytest.mark.parametrize("end", ["clear", "close"])
def test_calls_under_way_end_with_it_and_say_no_more_than_is_so(tmp_path: Path, end: str) -> None:
    store = opened(tmp_path)
    named, more = whole(store, "a", 4), keys("b", 4)
    disk = store._disk
    assert disk is not None
    _, go = hanging(store)
    said: dict[str, list[bool]] = {}
    calls = (
        lambda: said.update(up=take(store, named, 8, 9, 10, 11)),
        lambda: said.update(down=put(store, more, *range(4))),
    )
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 20
    while len(disk._copies) < 2:
        assert time.monotonic() < until
    getattr(store, end)()
    go.set()
    for thread in threads:
        thread.join()
    assert not disk._copies
    if end == "clear":
        assert said == {"up": [False] * 4, "down": [False] * 4}
        assert (store.batch_exists(named), store.batch_exists(more)) == (0, 0)
        store.close()
    # What was copied before the end came is there, and nothing else is said to be.
    again = opened(tmp_path)
    assert again.batch_exists(named) == (4 if end == "close" else 0)
    assert again.batch_exists(more) >= sum(said["down"])
    assert end == "close" or again.batch_exists(more) == 0
    again.close()


def test_a_copy_that_hangs_is_given_up_and_its_pages_are_not_there(store: Storage) -> None:
    storage, disk = store, store._disk
    assert disk is not None
    named = whole(storage, "a", 3)
    real, go = hanging(storage)
    disk._patience = 0.02
    assert take(storage, named, 6, 7, 8) == [False] * 3
    assert storage.batch_exists(named) == 3, "nothing is known against them"
    more = keys("b", 3)
    fill(storage.mem_pool_host, 0, 1, 2)
    assert put(storage, more, 0, 1, 2) == [False] * 3
    assert storage.batch_exists(more) == 0
    go.set()
    disk._lane, disk._patience = real, 30.0
    # The lane itself holds slots that a thread may still write.
    assert disk._cache.room("disk").available == 16
    assert disk._cache.stats()["disk_quarantined"] == 0
    assert take(storage, named, 6, 7, 8) == [True] * 3


def test_threads_at_once_read_only_what_was_written(tmp_path: Path) -> None:
    pool = Pool(4 * 16)
    storage = opened(tmp_path, pool, extra={"disk": 40})
    names = [keys(f"talk {talk}", 8) for talk in range(9)]
    wrong: list[str] = []
    found = [0]

    def worker(number: int) -> None:
        rng = np.random.default_rng(number)
        pages = range(16 * number, 16 * number + 8)
        for _ in range(40):
            talk = int(rng.integers(len(names)))
            count = storage.batch_exists(names[talk])
            pool.kv_buffer[:, pages] = 0
            good = sum(take(storage, names[talk], *pages))
            if good > len(names[talk]) or count > 8:
                wrong.append("counts")
            for block, page in enumerate(pages):
                value = 16 * talk + block + 1
                if block < good and not (pool.kv_buffer[:, page] == value).all():
                    wrong.append(f"{talk} {block}")
                pool.kv_buffer[:, page] = value
            found[0] += good
            stored = put(storage, names[talk], *pages)
            if sorted(stored, reverse=True) != stored:
                wrong.append("a hole")

    threads = [threading.Thread(target=worker, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert found[0] > 100
    disk = storage._disk
    assert disk is not None
    assert not disk._copies
    assert not disk._numbers
    assert disk._cache.audit() is None
    storage.close()


# -- what is refused ------------------------------------------------------------------------


def refused(path: Path, kind: type[Exception], text: str, **more: Any) -> None:
    with pytest.raises(kind, match=re.escape(text)):
        Storage(config(path, **more), {})
    assert not list(path.iterdir()), "nothing was made"


WORDS: list[tuple[dict[str, Any], str]] = [
    ({"disk": None}, 'disk is missing: give it, as "disk": "200 GiB"'),
    ({"disk_path": None}, 'disk_path is missing: give it, as "disk_path": "/data/kv"'),
    ({"disk_path": 3}, "disk_path = 3: must be the path of a folder"),
    ({"interface_v1": None}, 'write "interface_v1": 1, as in --hicache-storage-backend-extra'),
    ({"interface_v1": 0}, "interface_v1 is missing"),
    ({"thread": 2}, "there is no 'thread' in --hicache-storage-backend-extra-config: did you mean"),
    ({"threads": 0}, "threads = 0: must be an integer from 1 to 64"),
    ({"patience": 0}, "patience = 0: must be seconds, more than 0"),
    ({"patience": True}, "patience = True: must be seconds"),
    ({"patience": "long"}, "patience = 'long': must be seconds"),
    ({"direct": 1}, "direct = 1: must be one of True, False"),
    ({"namespace": "v1"}, "namespace = 'v1': give a mapping of names to text"),
    ({"namespace": {"weights": 1}}, "namespace = {'weights': 1}: give a mapping of names to text"),
    ({"namespace": {}}, 'give "namespace": {"weights": "v1"}'),
    ({"namespace": None}, "nothing tells these weights from others, and a disk outlives them"),
]


@pytest.mark.parametrize(("words", "text"), WORDS, ids=[str(one[0]) for one in WORDS])
def test_a_word_that_is_wrong_is_named(tmp_path: Path, words: dict[str, Any], text: str) -> None:
    refused(tmp_path, by.Misuse, text, extra=words)


def test_words_of_sglang_itself_are_no_concern_of_ours(tmp_path: Path) -> None:
    opened(tmp_path, extra={"prefetch_threshold": 4, "prefetch_timeout_base": 2}).close()


SHAPES: list[tuple[dict[str, Any], str]] = [
    ({"is_mla_model": True, "tp_size": 2}, "start with --enable-dp-attention"),
    ({"attn_cp_size": 2}, "attn_cp_size = 2: a page's tokens must lie on one rank"),
    ({"dcp_size": 2}, "dcp_size = 2: a page's tokens must lie on one rank"),
    ({"should_split_heads": True}, "leave tp_lcm_size out"),
]


@pytest.mark.parametrize(("more", "text"), SHAPES, ids=[str(one[0]) for one in SHAPES])
def test_ranks_that_cannot_be_served_are_refused(
    tmp_path: Path, more: dict[str, Any], text: str
) -> None:
    refused(tmp_path, by.Unsupported, text, **more)


def test_latent_kv_of_one_rank_is_served(tmp_path: Path) -> None:
    storage = opened(tmp_path, is_mla_model=True)
    whole(storage, "a", 3)
    storage.close()


def test_a_model_without_a_name_is_refused_unless_the_operator_gives_one(tmp_path: Path) -> None:
    refused(tmp_path, by.Misuse, 'give "namespace": {"model": …}', model_name=None)
    named = {"namespace": {"weights": "v1", "model": "mine"}}
    opened(tmp_path, model_name=None, extra=named).close()


def test_keys_that_do_not_name_adapter_and_salt_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sglang.srt.mem_cache.utils as keys_of  # noqa: PLC0415

    monkeypatch.delattr(keys_of, "storage_namespace_seed")
    refused(tmp_path, by.Unsupported, "storage keys do not name adapter and salt (sglang#38577)")


def test_another_version_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sglang.__version__", "0.6.0")
    Storage(config(tmp_path), {})
    assert "SGLang 0.6.0 was not tested with this storage" in caplog.text


@pytest.mark.parametrize("layout", ["layer_first", "page_head", "page_unified"])
def test_other_layouts_of_the_host_are_refused_with_the_option(tmp_path: Path, layout: str) -> None:
    with pytest.raises(by.Misuse, match="start with --hicache-mem-layout page_first"):
        opened(tmp_path, Pool(PAGES, layout=layout))


POOLS: list[tuple[dict[str, Any], str]] = [
    ({"shared_allocation_domain": object()}, "start without --enable-unified-memory"),
    ({"dcp_size": 2}, "Pool of 2 ranks: a page's tokens must lie on one rank"),
    ({"kv_buffer": None}, "Pool: it has no memory of its own"),
]


@pytest.mark.parametrize(("fields", "text"), POOLS, ids=[str(one[1]) for one in POOLS])
def test_pools_whose_pages_do_not_stay_in_place_are_refused(
    tmp_path: Path, fields: dict[str, Any], text: str
) -> None:
    pool = Pool(PAGES)
    vars(pool).update(fields)
    with pytest.raises(by.Unsupported, match=re.escape(text)):
        opened(tmp_path, pool)


def test_a_pool_with_uneven_pages_is_refused(tmp_path: Path) -> None:
    class Uneven(Pool):
        @override
        def get_page_buffer_meta(self, indices: Any) -> tuple[list[int], list[int]]:
            places, sizes = super().get_page_buffer_meta(indices)
            return [place + (int(indices[0]) > self.page_size) for place in places], sizes

    with pytest.raises(by.Unsupported, match="Uneven: its pages do not lie at even distances"):
        opened(tmp_path, Uneven(PAGES))


def test_a_second_pool_is_refused_and_the_first_by_its_name_is_not(store: Storage) -> None:
    store.register_mem_pool_host(store.mem_pool_host)
    store.register_mem_host_pool_v2(store.mem_pool_host, "kv")
    store.on_host_pools_registered()
    with pytest.raises(by.Unsupported, match="host pool 'mamba': only models with one pool"):
        store.register_mem_host_pool_v2(Pool(4), "mamba")
    with pytest.raises(by.Misuse, match="another host pool"):
        store.register_mem_pool_host(Pool(4))


@pytest.mark.parametrize("call", ["get", "set", "batch_get", "batch_set"])
def test_calls_with_tensors_are_refused_with_the_line(store: Storage, call: str) -> None:
    with pytest.raises(by.Unsupported, match=f'{call}: pages go .* write "interface_v1": 1'):
        getattr(store, call)(keys("a", 1)[0])


def test_before_there_is_a_pool_it_says_so(tmp_path: Path) -> None:
    storage = Storage(config(tmp_path), {})
    with pytest.raises(by.Misuse, match="no host pool: call register_mem_pool_host first"):
        storage.batch_exists(keys("a", 1))
    assert storage.get_stats() is None
    storage.close()
    with pytest.raises(by.Misuse, match="kwargs"):
        Storage(config(tmp_path), {"more": 1})


def test_a_disk_smaller_than_a_page_is_refused(tmp_path: Path) -> None:
    with pytest.raises(by.Misuse, match="disk = '1 KiB' is smaller than one block of 1536 bytes"):
        opened(tmp_path, extra={"disk": "1 KiB"})
    with pytest.raises(by.Misuse, match="blocks = 0"):
        opened(tmp_path, extra={"disk": 0})


def test_another_size_of_a_disk_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    first = opened(tmp_path)
    named = whole(first, "a", 3)
    first.close()
    with pytest.raises(by.Unavailable, match="it has 65536 bytes, and 131072 are wanted"):
        opened(tmp_path, extra={"disk": 32})
    again = opened(tmp_path)
    assert again.batch_exists(named) == 3
    again.close()


KEYS: list[tuple[Any, str]] = [
    ("ab", "key 'ab': must be 64 hexadecimal digits"),
    ("x" * 64, "must be 64 hexadecimal digits, as SGLang makes them"),
    (" " * 32 + "a" * 32, "must be 64 hexadecimal digits"),
    (b"a" * 64, "must be 64 hexadecimal digits"),
    (None, "key None: must be 64"),
    ("0" * 64, "no page can have it"),
    ("F" * 64, "no page can have it"),
]


@pytest.mark.parametrize(("key", "text"), KEYS, ids=[str(one[0])[:9] for one in KEYS])
def test_a_key_that_is_none_is_refused(store: Storage, key: Any, text: str) -> None:
    for call in (
        lambda: store.batch_exists([key]),
        lambda: take(store, [key], 0),
        lambda: put(store, [key], 0),
        lambda: put(store, keys("a", 1), 0, before=[key]),
    ):
        with pytest.raises(by.Misuse, match=re.escape(text)):
            call()
    assert store.stats()["disk_in"] == 0


def test_rows_that_are_no_pages_are_refused(store: Storage) -> None:
    named, pool = keys("a", 2), store.mem_pool_host
    for rows, text in (
        (pool.rows(0), "host_indices has shape (4,): 2 keys of pages of 4 tokens need (8,)"),
        (pool.rows(0, 1)[::-1], "host_indices are no whole pages of 4 tokens"),
        (pool.rows(0, 1) + 1, "host_indices are no whole pages of 4 tokens"),
        (pool.rows(0, 1)[[0, 2, 1, 3, 4, 5, 6, 7]], "host_indices are no whole pages of 4 tokens"),
        (pool.rows(0, PAGES), f"ids = {PAGES}: the engine has no such block"),
        (pool.rows(0, -1), "ids"),
        (pool.rows(3, 3), "ids = 3: it comes twice"),
    ):
        for call in (store.batch_set_v1, store.batch_get_v1):
            with pytest.raises(by.Misuse, match=re.escape(text)):
                call(named, rows)
    assert put(store, named, 0, 1) == [True, True]


# -- what the server says -------------------------------------------------------------------


def published(monkeypatch: pytest.MonkeyPatch, **leaves: Any) -> None:
    import sglang.srt.runtime_context as context  # noqa: PLC0415

    for getter in ("get_model", "get_lora", "get_spec"):
        monkeypatch.setattr(context, getter, lambda: SimpleNamespace(**leaves))


def test_files_of_weights_stand_for_them_and_changed_ones_are_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, disk = tmp_path / "model", tmp_path / "disk"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    published(monkeypatch, model_path=str(folder), dtype="auto")
    bare = {"namespace": None}
    storage = opened(disk, extra=bare)
    named = whole(storage, "a", 3)
    storage.close()
    storage = opened(disk, extra=bare)
    assert storage.batch_exists(named) == 3
    storage.close()
    for changed in (
        {"dtype": "float16"},
        {"kv_cache_dtype": "fp8_e5m2"},
        {"quantization": "fp8"},
        {"load_format": "dummy"},
        {"json_model_override_args": '{"rope_theta": 1}'},
        {"quantization_param_path": "scales.json"},
        {"speculative_algorithm": "EAGLE"},
    ):
        published(monkeypatch, **({"model_path": str(folder), "dtype": "auto"} | changed))
        storage = opened(disk, extra=bare)
        assert storage.batch_exists(named) == 0, changed
        storage.close()
    published(monkeypatch, model_path=str(folder), dtype="auto")
    (folder / "model.safetensors").write_bytes(b"others")
    storage = opened(disk, extra=bare)
    assert storage.batch_exists(named) == 0
    storage.close()


def test_a_commit_stands_for_weights_and_a_branch_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = {"namespace": None}
    published(monkeypatch, model_path="of/a-hub", revision="main")
    refused(tmp_path, by.Misuse, "or --revision with a commit", extra=bare)
    published(monkeypatch, model_path="of/a-hub", revision="0123456789" * 4)
    opened(tmp_path, extra=bare).close()


def test_adapters_of_the_start_are_told_by_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter, disk = tmp_path / "adapter", tmp_path / "disk"
    adapter.mkdir()
    weights = adapter / "adapter_model.safetensors"
    weights.write_bytes(b"one")
    refs = [SimpleNamespace(lora_name="sql", lora_path=str(adapter))]
    published(monkeypatch, enable_lora=True, lora_paths=refs)
    storage = opened(disk)
    named = whole(storage, "a", 3)
    storage.close()
    storage = opened(disk)
    assert storage.batch_exists(named) == 3
    storage.close()
    weights.write_bytes(b"another")
    storage = opened(disk)
    assert storage.batch_exists(named) == 0
    storage.close()
    refs[0].lora_path = "of/a-hub"
    text = "adapter 'sql' at 'of/a-hub': its files are not to be seen"
    with pytest.raises(by.Unsupported, match=text):
        Storage(config(disk), {})
    published(monkeypatch, enable_lora=False, lora_paths=refs)
    Storage(config(disk), {})


def test_sglangs_own_metrics_have_pages_and_bandwidth(tmp_path: Path) -> None:
    storage = opened(tmp_path, enable_storage_metrics=True)
    named = whole(storage, "a", 5)
    assert take(storage, [*named, *keys("b", 1)], *range(6, 12)) == [True] * 5 + [False]
    figures = storage.get_stats()
    assert type(figures) is stub.StorageMetrics
    assert (figures.prefetch_pgs, figures.backup_pgs) == ([5], [5])
    assert figures.prefetch_bandwidth[0] > 0
    assert figures.backup_bandwidth[0] > 0
    assert storage.get_stats() == stub.StorageMetrics()
    storage.close()


def test_the_log_says_what_was_opened_and_warns_once_of_unknown_parents(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    storage = opened(tmp_path)
    assert re.search(
        r"Blockyard keeps 16 pages of 4 tokens and 1536 bytes in .*rank-0, and found 0 there",
        caplog.text,
    )
    fill(storage.mem_pool_host, 0, 1)
    for name in "ab":
        assert put(storage, keys(name, 2), 0, 1, before=None) == [True, True]
    assert caplog.text.count("'hicache_storage_pass_prefix_keys': true") == 1
    storage.close()
