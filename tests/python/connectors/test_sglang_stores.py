"""SGLang's storage over shared stores: in place of a disk, behind one, and when they fail."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockyard import Misuse
from blockyard.connectors.sglang import Storage
from blockyard.connectors.sglang.storage_settings import StorageSettings
from blockyard.shared.log import Limited
from blockyard.stores import questions
from sglang_pages import PAGES, fill, keys, opened, put, take
from sglang_stub import Pool

NO_DISK = {"disk": None, "disk_path": None}


def shared(tmp_path: Path, pool: Pool | None = None, **extra: Any) -> Storage:
    """A storage over a store alone."""
    url = (tmp_path / "store").as_uri()
    return opened(tmp_path, pool, extra={**NO_DISK, "remote": url, **extra})


def values(tmp_path: Path) -> dict[str, Path]:
    """The values of pages, by their keys."""
    found = (tmp_path / "store").rglob("*")
    return {path.name: path for path in found if path.is_file() and path.name != "identity"}


def test_another_process_finds_the_pages_with_their_bytes(tmp_path: Path) -> None:
    pool = Pool(PAGES)
    first, second = shared(tmp_path, pool), shared(tmp_path)
    named = keys("a", 6)
    wrote = fill(pool, 9, 2, 17, 0, 23, 4)
    assert second.batch_exists(named) == 0
    assert put(first, named, 9, 2, 17, 0, 23, 4) == [True] * 6
    assert second.batch_exists(named) == 6
    assert take(second, named, 5, 6, 7, 20, 1, 3) == [True] * 6
    assert np.array_equal(second.mem_pool_host.kv_buffer[:, [5, 6, 7, 20, 1, 3]], wrote)
    assert first.stats()["remote_put_blocks"] == 6
    # What a store has is not written again.
    assert put(second, named, 5, 6, 7, 20, 1, 3) == [True] * 6
    assert second.stats()["remote_put_blocks"] == 0
    first.close()
    second.close()


def test_replicas_share_and_other_weights_do_not(tmp_path: Path) -> None:
    first = shared(tmp_path)
    fill(first.mem_pool_host, 0)
    assert put(first, keys("a", 1), 0) == [True]
    url = (tmp_path / "store").as_uri()
    extra = {**NO_DISK, "remote": url}
    replica = opened(tmp_path, extra=extra, dp_rank=1)
    other = opened(tmp_path, extra={**extra, "namespace": {"weights": "v2"}})
    assert replica.batch_exists(keys("a", 1)) == 1
    assert other.batch_exists(keys("a", 1)) == 0
    for storage in (first, replica, other):
        storage.close()


@pytest.mark.parametrize("change", ["flip", "cut", "lose", "swap"])
def test_a_page_that_is_wrong_or_gone_ends_the_load_there(tmp_path: Path, change: str) -> None:
    first, second = shared(tmp_path), shared(tmp_path)
    named = keys("a", 4)
    wrote = fill(first.mem_pool_host, *range(4))
    put(first, named, *range(4))
    path = values(tmp_path)[named[2]]
    raw = bytearray(path.read_bytes())
    if change == "lose":
        path.unlink()
    elif change == "swap":
        path.write_bytes(values(tmp_path)[named[3]].read_bytes())
    else:
        raw[-1] ^= 1
        path.write_bytes(raw if change == "flip" else raw[:-1])
    assert take(second, named, *range(4)) == [True, True, False, False]
    assert np.array_equal(second.mem_pool_host.kv_buffer[:, :2], wrote[:, :2])
    first.close()
    second.close()


def test_behind_a_disk_a_store_has_what_another_machine_has_computed(tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    near = opened(tmp_path / "one", extra={"remote": url})
    far = opened(tmp_path / "two", extra={"remote": url})
    named = keys("a", 4)
    wrote = fill(near.mem_pool_host, *range(4))
    assert put(near, named, *range(4)) == [True] * 4
    assert (near.stats()["disk_in"], near.stats()["remote_put_blocks"]) == (4, 4)
    assert far.batch_exists(named) == 4
    assert take(far, named, 8, 9, 10, 11) == [True] * 4
    assert np.array_equal(far.mem_pool_host.kv_buffer[:, 8:12], wrote)
    # Some on the disk, the rest in the store.
    assert put(far, named[:2], 8, 9) == [True] * 2
    assert far.batch_exists(named) == 4
    far.mem_pool_host.kv_buffer[...] = 0
    assert take(far, named, 3, 2, 1, 0) == [True] * 4
    assert np.array_equal(far.mem_pool_host.kv_buffer[:, [3, 2, 1, 0]], wrote)
    near.close()
    far.close()


def test_a_store_that_is_down_costs_misses_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("redis")
    # A line of another test may count against the limit.
    monkeypatch.setattr(questions, "_log", Limited(questions.__name__))
    with caplog.at_level(logging.WARNING):
        storage = shared(tmp_path, remote="redis://127.0.0.1:1")
        fill(storage.mem_pool_host, 0, 1)
        assert storage.batch_exists(keys("a", 2)) == 0
        assert put(storage, keys("a", 2), 0, 1) == [False] * 2
        assert take(storage, keys("a", 2), 0, 1) == [False] * 2
        storage.close()
    assert any("redis://127.0.0.1:1" in one for one in caplog.messages)
    with pytest.raises(Misuse, match="closed"):
        storage.batch_exists(keys("a", 1))


def test_a_clear_leaves_the_store_to_others(tmp_path: Path) -> None:
    first, second = shared(tmp_path), shared(tmp_path)
    fill(first.mem_pool_host, 0, 1)
    put(first, keys("a", 1), 0)
    first.clear()
    assert first.batch_exists(keys("a", 1)) == 0
    assert take(first, keys("a", 1), 3) == [False]
    assert put(first, keys("b", 1), 1) == [False]
    assert second.batch_exists(keys("a", 1)) == 1
    assert second.batch_exists(keys("b", 1)) == 0
    first.close()
    second.close()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"remote": "redis://:hidden@host"}, "password in it, and SGLang logs .*password_file"),
        ({"remote": "ftp://host"}, "scheme of a store's URL = 'ftp'"),
        ({"remote": []}, "give the URL of a store"),
        ({"remote": "file:///kv", "disk": 5}, "disk_path is missing"),
        ({"remote": None, "password_file": "/p", "disk": 5, "disk_path": "/d"}, "without remote"),
        ({"remote": None}, "disk is missing"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(Misuse, match=why) as refused:
        StorageSettings.of_extra({"interface_v1": 1, **given})
    assert "hidden" not in str(refused.value)
