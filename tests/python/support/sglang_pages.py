"""SGLang's storage over slot files and pools that look like its own, and pages of known bytes."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockyard.connectors.sglang import Storage
from blockyard.connectors.sglang.disk_pages import DiskPages
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


def opened(
    path: Path, pool: Pool | None = None, *, beside: Mapping[str, Any] | None = None, **more: Any
) -> Storage:
    """A storage whose pools SGLang has registered: the KV's twice, as it does."""
    storage, pool = Storage(config(path, **more), {}), pool or Pool(PAGES)
    storage.register_mem_pool_host(pool)
    for name, one in {"kv": pool, **(beside or {})}.items():
        storage.register_mem_host_pool_v2(one, name)
    storage.on_host_pools_registered()
    return storage


def disk_of(storage: Storage, pool: str = "kv") -> DiskPages:
    """The pages of a pool on its disk."""
    found = storage._disks[pool].disk
    assert isinstance(found, DiskPages)
    return found


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


def refused(path: Path, kind: type[Exception], text: str, **more: Any) -> None:
    with pytest.raises(kind, match=re.escape(text)):
        Storage(config(path, **more), {})
    assert not list(path.iterdir()), "nothing was made"
