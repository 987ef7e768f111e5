"""The storage that SGLang makes: pages of its host pool, on a disk."""

import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from blockyard._core import Misuse, Unsupported
from blockyard._typing import override
from blockyard.connectors.sglang.disk_identity import identity_of
from blockyard.connectors.sglang.disk_pages import KEY_BYTES
from blockyard.connectors.sglang.host_pool import KV, HostPages, host_pages, page_ids
from blockyard.connectors.sglang.pool_disks import (
    PoolDisk,
    agreed,
    clear_all,
    close_all,
    of,
    open_all,
)
from blockyard.connectors.sglang.sglang_api import INTERFACE, HiCacheStorage, HiCacheStorageConfig
from blockyard.connectors.sglang.storage_settings import START, StorageSettings, check_config
from blockyard.connectors.sglang.store_pages import ANY, Pages
from blockyard.shared.log import Limited

__all__ = ["Storage"]

_BAGS = (
    *("get_model", "get_exec", "get_schedule", "get_memory", "get_spec", "get_lora", "get_mm"),
    *("get_disagg", "get_device"),
)
"""Where SGLang keeps its options, as it has settled them."""
_GB = 1e9
_log = Limited(__name__, 0)


class _Pages(NamedTuple):
    """Pages of a pool that are to be copied."""

    host: HostPages
    disk: Pages
    keys: bytes
    ids: NDArray[np.int64]


class Storage(HiCacheStorage):  # type: ignore[misc]
    """SGLang's storage: pages go from its host pools to slot files, and come back, without a copy.

    Any thread may call it. What a page is found by is SGLang's key of it, in the folder of its
    pool; where it lies, and what goes when the disk is full, the core decides.

    Args:
        storage_config: SGLang's configuration, with the operator's keys in `extra_config`.
        kwargs: Nothing, so far.

    Raises:
        Misuse: An option is unknown, or must be another one.
        Unsupported: SGLang's interface is another one than was tested, or what SGLang shall do
            cannot be served.
    """

    def __init__(
        self, storage_config: HiCacheStorageConfig, kwargs: Mapping[str, Any] | None = None
    ) -> None:
        if kwargs:
            raise Misuse(f"kwargs = {kwargs!r}: SGLang 0.5.23 passes none")
        extra = getattr(storage_config, "extra_config", None)
        self._settings = settings = StorageSettings.of_extra(extra)
        INTERFACE.check(untested=settings.untested)
        check_config(storage_config)
        self._config = storage_config
        self._identity = identity_of(
            storage_config, _server(), settings.namespace, INTERFACE.version
        )
        self._pools: dict[str, tuple[HostPages, Any]] = {}
        """What SGLang has registered, by name, the KV first."""
        self._disks: Mapping[str, PoolDisk] = {}
        """What is open, once all are registered."""
        self._unlinked = False
        self._moved: dict[bool, list[tuple[int, int, float]]] = {True: [], False: []}
        """Pages, bytes and seconds of the calls since the last `get_stats`, up and down."""
        self._lock = threading.Lock()

    @override
    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Takes SGLang's host pool of the KV; `on_host_pools_registered` opens its disk.

        Raises:
            Misuse: Its layout must be another one.
            Unsupported: Its pages cannot be read from where they lie.
        """
        self._take(KV, mem_pool_host)
        super().register_mem_pool_host(mem_pool_host)

    @override
    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Takes a host pool that lies beside the KV's, or that one once more, by its name.

        Raises:
            Misuse: Its layout must be another one.
            Unsupported: It is none that is kept, it comes after the others, or its pages cannot be
                read from where they lie.
        """
        self._take(str(host_pool_name), host_pool)

    @override
    def on_host_pools_registered(self) -> None:
        """Opens the disks of all pools, or none.

        Raises:
            Misuse: `disk` is too small, or not the size that a folder has.
            Unavailable: There is no room, or another process owns a folder.
        """
        if self._disks:
            return
        if KV not in self._pools:
            raise Misuse("no host pool: call register_mem_pool_host first")
        self._disks = open_all(
            self._pools, self._settings, self._identity, rank=self._config.tp_rank
        )
        for name, (host, disk) in self._disks.items():
            what = "pages" if name == KV else f"pages of {name}"
            _log.info(
                "Blockyard keeps %s of %d tokens and %d bytes in %s, and found %d there",
                *(what if disk.slots == ANY else f"{disk.slots} {what}", host.page_tokens),
                *(host.layout.block_bytes, disk.path, disk.restored),
            )

    def _take(self, name: str, pool: Any) -> None:
        known = self._pools.get(name)
        if known is not None:
            if pool is known[1]:
                return
            raise Misuse("another host pool: this storage has one already, make another one")
        if self._disks:
            raise Unsupported(
                f"host pool {name!r} comes when the disk is divided among {', '.join(self._disks)}"
                ": a draft model's does, at the start. Start without the draft model; or without "
                "--hicache-storage-backend, and attach it later, by PUT /hicache/storage-backend"
            )
        self._pools[name] = host_pages(pool, ranks=self._config.tp_size, name=name), pool

    @override
    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """Returns how many of the leading pages are on the disk, durable.

        Args:
            keys: 64 hexadecimal digits a page.
            extra_info: Not needed here.

        Raises:
            Misuse: A key is no such text, or the storage is closed.
        """
        return self._opened().disk.count(_bytes(keys))

    @override
    def batch_exists_v2(
        self, keys: list[str], pool_transfers: Any = None, extra_info: Any = None
    ) -> Any:
        """Returns how many of the leading pages are a hit: all that it reads is there, durable.

        Args:
            keys: 64 hexadecimal digits a page.
            pool_transfers: SGLang's `PoolTransfer` of each pool beside the KV: of `hit_policy`
                "all_pages" it has a page for each key, of "trailing_pages" for the last ones, as
                many as its `keys`.
            extra_info: Not needed here.

        Returns:
            SGLang's `PoolTransferResult`: the length, that of each pool, and all lengths that would
            do, on which ranks agree.

        Raises:
            Misuse: As in `batch_exists`; or there is no such pool.
            Unsupported: Another `hit_policy`.
        """
        self._opened()
        found = agreed(_bytes(keys), self._disks, pool_transfers or ())
        longest = found.lengths[-1] if found.lengths else 0
        return INTERFACE.get("PoolTransferResult")(longest, found.pools, found.lengths)

    @override
    def exists(self, key: str) -> bool:
        """Returns whether a page is on the disk; see `batch_exists`."""
        return self.batch_exists([key]) == 1

    @override
    def batch_get_v1(
        self, keys: list[str], host_indices: Any, extra_info: Any = None
    ) -> list[bool]:
        """Reads pages into the host pool.

        Args:
            keys: 64 hexadecimal digits a page.
            host_indices: Rows of the host pool, shape (pages * page_size,).
            extra_info: Not needed here.

        Returns:
            Of each page whether it is there. One that is torn or another's ends the load: it and
            all behind it are not, and it is never found again.

        Raises:
            Misuse: An argument has another form, or the storage is closed.
        """
        good = self._read(self._checked(KV, keys, host_indices))
        return [True] * good + [False] * (len(keys) - good)

    @override
    def batch_get_v2(self, transfers: Any, extra_info: Any = None) -> dict[Any, list[bool]]:
        """Reads pages of several pools into the host's memory.

        Args:
            transfers: SGLang's `PoolTransfer` of each pool: `keys` as in `batch_get_v1`, and
                `host_indices`, rows of this pool.
            extra_info: Not needed here.

        Returns:
            By the name of each pool, of each page whether it is there. Windows and states, of
            `hit_policy` "trailing_pages", come whole or not at all: a part of one is of no use.

        Raises:
            Misuse: As in `batch_get_v1`; or there is no such pool. Nothing is read then.
        """
        found = {}
        for transfer, one in self._transfers(transfers):
            good, pages = self._read(one), len(one.ids)
            if good < pages and transfer.hit_policy == "trailing_pages":
                good = 0
            found[transfer.name] = [True] * good + [False] * (pages - good)
        return found

    @override
    def batch_set_v1(
        self, keys: list[str], host_indices: Any, extra_info: Any = None
    ) -> list[bool]:
        """Writes pages from the host pool, those that are not there yet.

        Args:
            keys: 64 hexadecimal digits a page; they follow each other.
            host_indices: Rows of the host pool, shape (pages * page_size,).
            extra_info: `prefix_keys` in it are those before them.

        Returns:
            Of each page whether it is on the disk, durable.

        Raises:
            Misuse: An argument has another form, or the storage is closed.
        """
        return self._write(self._checked(KV, keys, host_indices), extra_info)

    @override
    def batch_set_v2(self, transfers: Any, extra_info: Any = None) -> dict[Any, list[bool]]:
        """Writes pages of several pools from the host's memory, those that are not there yet.

        Args:
            transfers: As in `batch_get_v2`.
            extra_info: As in `batch_set_v1`.

        Returns:
            By the name of each pool, of each page whether it is on the disk, durable.

        Raises:
            Misuse: As in `batch_get_v2`. Nothing is written then.
        """
        checked = self._transfers(transfers)
        return {transfer.name: self._write(one, extra_info) for transfer, one in checked}

    @override
    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> NoReturn:
        """Refuses: pages go straight to the host pool.

        Raises:
            Unsupported: Always; so do `batch_get`, `set` and `batch_set`.
        """
        self._no_tensors("get")

    @override
    def batch_get(
        self, keys: list[str], target_locations: Any = None, target_sizes: Any = None
    ) -> NoReturn:
        """Refuses, as `get`."""
        self._no_tensors("batch_get")

    @override
    def set(
        self,
        key: str,
        value: Any = None,
        target_location: Any = None,
        target_sizes: Any = None,
    ) -> NoReturn:
        """Refuses, as `get`."""
        self._no_tensors("set")

    @override
    def batch_set(
        self,
        keys: list[str],
        values: Any = None,
        target_locations: Any = None,
        target_sizes: Any = None,
    ) -> NoReturn:
        """Refuses, as `get`."""
        self._no_tensors("batch_set")

    @override
    def clear(self) -> None:
        """Forgets all pages, durably: no restart finds them either.

        Raises:
            Unavailable: The disk refuses; nothing is found, but a restart may find it.
        """
        self._opened()
        clear_all(self._disks)

    def close(self) -> None:
        """Ends all copies and releases the folders; durable pages stay.

        It waits for pages being written, for `flush` seconds at most.
        """
        left = close_all(self._disks, flush=self._settings.flush)
        if left:
            _log.warning(
                "%d pages were not written, and will not be found by the next process", left
            )

    @override
    def get_stats(self) -> Any:
        """Returns SGLang's `StorageMetrics` of the calls since the last time; None without them."""
        if not self._config.enable_storage_metrics or not self._disks:
            return None
        with self._lock:
            up, down = self._moved[True], self._moved[False]
            self._moved = {True: [], False: []}
        return INTERFACE.get("StorageMetrics")(
            prefetch_pgs=[pages for pages, _, _ in up],
            backup_pgs=[pages for pages, _, _ in down],
            prefetch_bandwidth=[nbytes / _GB / seconds for _, nbytes, seconds in up],
            backup_bandwidth=[nbytes / _GB / seconds for _, nbytes, seconds in down],
        )

    def stats(self, pool: str = KV) -> dict[str, int]:
        """Returns the core's counters and sizes, as `KVCache.stats`: `disk_*` are the disk's.

        Args:
            pool: SGLang's name of the host pool.

        Raises:
            Misuse: No such host pool was registered.
        """
        return self._opened(pool).disk.stats()

    def _opened(self, pool: str = KV) -> PoolDisk:
        if not self._disks:
            raise Misuse(
                "no host pool: call register_mem_pool_host and on_host_pools_registered first"
            )
        return of(self._disks, pool)

    def _checked(self, pool: str, keys: list[str], rows: Any) -> _Pages:
        host, disk = self._opened(pool)
        return _Pages(host, disk, _bytes(keys), page_ids(host, rows, len(keys)))

    def _transfers(self, transfers: Any) -> list[tuple[Any, _Pages]]:
        """Checks all before the first is copied."""
        return [
            (one, self._checked(str(one.name), one.keys or [], one.host_indices))
            for one in transfers
        ]

    def _read(self, what: _Pages) -> int:
        begun = time.perf_counter()
        good = what.disk.read(what.keys, what.ids)
        self._note(good, what, begun, up=True)
        return good

    def _write(self, what: _Pages, extra_info: Any) -> list[bool]:
        begun = time.perf_counter()
        stored = what.disk.write(what.keys, what.ids, above=self._above(extra_info))
        self._note(sum(stored), what, begun, up=False)
        return stored

    def _above(self, extra_info: Any) -> bytes | None:
        """Returns the key of the page before; b"" for none, None if SGLang does not pass it."""
        before = getattr(extra_info, "prefix_keys", None)
        if before is None:
            if not self._unlinked:
                self._unlinked = True
                _log.warning(
                    "SGLang does not pass prefix keys, so the first pages of a sequence may be "
                    "evicted before its last; write %r: true in "
                    "--hicache-storage-backend-extra-config",
                    "hicache_storage_pass_prefix_keys",
                )
            return None
        return _bytes(before[-1:])

    def _note(self, pages: int, what: _Pages, begun: float, *, up: bool) -> None:
        if self._config.enable_storage_metrics and pages:
            seconds = max(time.perf_counter() - begun, 1e-9)
            with self._lock:
                nbytes = pages * what.host.layout.block_bytes
                self._moved[up].append((pages, nbytes, seconds))

    @staticmethod
    def _no_tensors(call: str) -> NoReturn:
        raise Unsupported(
            f"{call}: pages are only copied in place, in the host pool; write "
            f'"interface_v1": 1, as in {START}'
        )


def _server() -> dict[str, Any]:
    """Returns SGLang's server options; empty outside a server."""
    said: dict[str, Any] = {}
    for getter in _BAGS:
        # Nobody has published them.
        with suppress(ValueError):
            said |= _leaves(INTERFACE.get(getter)())
    return said


def _leaves(bag: Any) -> dict[str, Any]:
    """Returns the options of a bag and of the bags in it."""
    found: dict[str, Any] = {}
    for name, value in vars(bag).items():
        if not name.startswith("_"):
            found |= _leaves(value) if type(value) is type(bag) else {name: value}
    return found


def _bytes(keys: Iterable[object]) -> bytes:
    """Returns keys of 64 hexadecimal digits as 32 bytes each."""
    return b"".join(map(_key, keys))


def _key(key: object) -> bytes:
    found = b""
    if isinstance(key, str) and len(key) == 2 * KEY_BYTES:
        with suppress(ValueError):
            found = bytes.fromhex(key)
    if len(found) != KEY_BYTES:
        raise Misuse(f"key {repr(key)[:80]}: must be 64 hexadecimal digits, as SGLang makes them")
    if not any(found[:24]) or found == b"\xff" * KEY_BYTES:
        raise Misuse(f"key {key!r}: no page can have it")
    return found
