"""SGLang's storage over a disk that fails or hangs, and calls of several threads."""

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockyard.connectors.sglang import Storage
from sglang_pages import disk_of, fill, keys, opened, put, store, take, whole
from sglang_stub import Pool

__all__ = ["store"]


class Lane:
    """A lane of which calls can be replaced."""

    def __init__(self, lane: Any, **instead: Any) -> None:
        self._lane = lane
        vars(self).update(instead)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lane, name)


def test_pages_that_could_not_be_written_are_not_found(store: Storage) -> None:
    disk = disk_of(store)
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
    disk = disk_of(storage)
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
    store = opened(tmp_path, extra={"flush": 0.1})
    named, more = whole(store, "a", 4), keys("b", 4)
    disk = disk_of(store)
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


def test_a_close_waits_for_pages_that_are_being_written(tmp_path: Path) -> None:
    store = opened(tmp_path)
    disk = disk_of(store)
    fill(store.mem_pool_host, *range(4))
    _, go = hanging(store)
    said: list[list[bool]] = []
    thread = threading.Thread(target=lambda: said.append(put(store, keys("a", 4), *range(4))))
    thread.start()
    until = time.monotonic() + 20
    while not disk._copies:
        assert time.monotonic() < until
    threading.Timer(0.05, go.set).start()
    store.close()
    assert not disk._copies
    thread.join()
    assert said == [[True] * 4]
    again = opened(tmp_path)
    assert again.batch_exists(keys("a", 4)) == 4
    again.close()


def test_a_copy_that_hangs_is_given_up_and_its_pages_are_not_there(store: Storage) -> None:
    storage, disk = store, disk_of(store)
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
    disk = disk_of(storage)
    assert not disk._copies
    assert not disk._numbers
    assert disk._cache.audit() is None
    storage.close()
