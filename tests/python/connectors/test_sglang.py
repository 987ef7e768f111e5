"""SGLang's storage over slot files: bytes, restarts, full disks, torn pages, clears and ends."""

import gc
import os
import signal
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard.connectors.sglang import Storage
from sglang_pages import PAGES, config, disk_of, fill, keys, opened, put, store, take, whole
from sglang_stub import Pool

__all__ = ["store"]


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
        assert disk_of(storage).slots == 16
        storage.close()
    assert {one.name for one in tmp_path.glob("*/*")} == {"rank-0", "rank-1"}


@pytest.mark.usefixtures("store")
def test_a_folder_has_one_owner(tmp_path: Path) -> None:
    with pytest.raises(by.Unavailable, match=f"process {os.getpid()} owns it"):
        opened(tmp_path)


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
    disk = disk_of(store)
    monkeypatch.setattr(disk._disk, "clear", lambda **_: False)
    with pytest.raises(by.Unavailable, match="a clear is not durable after 30"):
        store.clear()
    assert store.batch_exists(named) == 0
    assert put(store, keys("a", 5)[4:], 5, before=named) == [True]


def test_what_is_written_while_it_is_cleared_is_not_kept(
    store: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = disk_of(store)
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
    named, disk = whole(store, "a", 2), disk_of(store)
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
    disk, pool = disk_of(storage), weakref.ref(storage.mem_pool_host)
    del storage
    gc.collect()
    assert pool() is not None
    disk.close()
    gc.collect()
    assert pool() is None
