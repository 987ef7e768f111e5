"""The storage that SGLang makes: pages of its host pool, on a disk."""

import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NoReturn

from blockyard._core import Misuse, Unsupported
from blockyard._typing import override
from blockyard.connectors.sglang.disk_pages import KEY_BYTES, DiskPages
from blockyard.connectors.sglang.engine import INTERFACE, HiCacheStorage, HiCacheStorageConfig
from blockyard.connectors.sglang.host_pool import HostPages, host_pages, one_pool_alone, page_ids
from blockyard.connectors.sglang.identity import identity_of
from blockyard.connectors.sglang.settings import START, Settings, check_config
from blockyard.crane.tiers.disk import DiskTier
from blockyard.shared.log import Limited
from blockyard.yard.sizes import in_blocks

__all__ = ["Storage"]

_BAGS = (
    *("get_model", "get_exec", "get_schedule", "get_memory", "get_spec", "get_lora", "get_mm"),
    *("get_disagg", "get_device"),
)
"""Where SGLang keeps its options, as it has settled them."""
_GB = 1e9
_log = Limited(__name__, 0)


class Storage(HiCacheStorage):  # type: ignore[misc]
    """SGLang's storage: pages go from its host pool to slot files, and come back, without a copy.

    Any thread may call it. What a page is found by is SGLang's key of it; where it lies, and what
    goes when the disk is full, the core decides.

    Args:
        storage_config: What SGLang says, and the operator's words in `extra_config`.
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
            raise Misuse(f"kwargs = {kwargs!r}: SGLang gives none so far")
        extra = getattr(storage_config, "extra_config", None)
        self._settings = settings = Settings.of_extra(extra)
        INTERFACE.check(untested=settings.untested)
        check_config(storage_config)
        self._config = storage_config
        self._identity = identity_of(
            storage_config, _server(), settings.namespace, INTERFACE.version
        )
        self._pool: Any = None
        self._host: HostPages | None = None
        self._disk: DiskPages | None = None
        self._unlinked = False
        self._moved: dict[bool, list[tuple[int, float]]] = {True: [], False: []}
        """Pages and seconds of the calls since the last `get_stats`, up and down."""
        self._lock = threading.Lock()

    @override
    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Takes SGLang's host pool, and opens the disk.

        Raises:
            Misuse: Its layout must be another one.
            Unsupported: Its pages cannot be read from where they lie.
            Unavailable: There is no room, or another process owns the folder.
        """
        if self._pool is not None:
            if mem_pool_host is self._pool:
                return
            raise Misuse("another host pool: this storage has one already, make another one")
        config, settings = self._config, self._settings
        host = host_pages(mem_pool_host, ranks=config.tp_size)
        blocks = int(in_blocks("disk", settings.disk, host.layout))
        disk = DiskTier(
            host.layout,
            settings.disk_path,
            blocks=blocks,
            identity={**self._identity, "pages": host.meaning},
            rank=config.tp_rank,
            direct=settings.direct,
            threads=settings.threads,
            reclaim=settings.disk_reclaim,
        )
        try:
            self._disk = DiskPages(
                disk,
                pages=host.pages,
                page_tokens=host.page_tokens,
                planes=host.planes,
                memory=mem_pool_host,
                patience=settings.patience,
            )
        except BaseException:
            disk.close()
            raise
        self._pool, self._host = mem_pool_host, host
        super().register_mem_pool_host(mem_pool_host)
        _log.info(
            "Blockyard keeps %d pages of %d tokens and %d bytes in %s, and found %d there",
            *(blocks, host.page_tokens, host.layout.block_bytes, disk.path, self._disk.restored),
        )

    @override
    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Takes the host pool that it has already by its name.

        Raises:
            Unsupported: It is another one: the model keeps more than KV of full attention.
        """
        if host_pool is not self._pool:
            raise one_pool_alone(host_pool_name)

    @override
    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """Returns how many of the leading pages are on the disk, durable.

        Args:
            keys: 64 hexadecimal digits a page.
            extra_info: Not needed here.

        Raises:
            Misuse: A key is no such text, or the storage is closed.
        """
        disk, _ = self._opened()
        return disk.count(_bytes(keys))

    @override
    def exists(self, key: str) -> bool:
        """Tells whether a page is on the disk; see `batch_exists`."""
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
        disk, host = self._opened()
        named, ids = _bytes(keys), page_ids(host, host_indices, len(keys))
        begun = time.perf_counter()
        good = disk.read(named, ids)
        self._note(good, begun, up=True)
        return [True] * good + [False] * (len(keys) - good)

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
        disk, host = self._opened()
        named, ids = _bytes(keys), page_ids(host, host_indices, len(keys))
        begun = time.perf_counter()
        stored = disk.write(named, ids, above=self._above(extra_info))
        self._note(sum(stored), begun, up=False)
        return stored

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
            Unavailable: The disk refuses; nothing is forgotten then.
        """
        disk, _ = self._opened()
        disk.clear()

    def close(self) -> None:
        """Ends all copies and gives the folder to the next owner; what is durable stays.

        Pages that are being written are waited for, as `flush` says.
        """
        if self._disk is not None:
            left = self._disk.close(flush=self._settings.flush)
            if left:
                _log.warning("%d pages were not written: the next process does not find them", left)

    @override
    def get_stats(self) -> Any:
        """Returns SGLang's `StorageMetrics` of the calls since the last time; None without them."""
        if not self._config.enable_storage_metrics or self._host is None:
            return None
        with self._lock:
            up, down = self._moved[True], self._moved[False]
            self._moved = {True: [], False: []}
        size = self._host.layout.block_bytes / _GB
        return INTERFACE.get("StorageMetrics")(
            prefetch_pgs=[pages for pages, _ in up],
            backup_pgs=[pages for pages, _ in down],
            prefetch_bandwidth=[pages * size / seconds for pages, seconds in up],
            backup_bandwidth=[pages * size / seconds for pages, seconds in down],
        )

    def stats(self) -> dict[str, int]:
        """Returns the core's counters and sizes, as `KVCache.stats`: `disk_*` are the disk's.

        Raises:
            Misuse: No host pool was registered.
        """
        disk, _ = self._opened()
        return disk.stats()

    def _opened(self) -> tuple[DiskPages, HostPages]:
        if self._disk is None or self._host is None:
            raise Misuse("no host pool: call register_mem_pool_host first")
        return self._disk, self._host

    def _above(self, extra_info: Any) -> bytes | None:
        """Returns the key of the page before; b"" for none, None where SGLang does not say."""
        before = getattr(extra_info, "prefix_keys", None)
        if before is None:
            if not self._unlinked:
                self._unlinked = True
                _log.warning(
                    "SGLang does not say which pages follow which, so that the last pages of a "
                    "sequence may outlive its first; write %r: true in "
                    "--hicache-storage-backend-extra-config",
                    "hicache_storage_pass_prefix_keys",
                )
            return None
        return _bytes(before[-1:])

    def _note(self, pages: int, begun: float, *, up: bool) -> None:
        if self._config.enable_storage_metrics and pages:
            seconds = max(time.perf_counter() - begun, 1e-9)
            with self._lock:
                self._moved[up].append((pages, seconds))

    @staticmethod
    def _no_tensors(call: str) -> NoReturn:
        raise Unsupported(
            f"{call}: pages go straight from and to the host pool; write "
            f'"interface_v1": 1, as in {START}'
        )


def _server() -> dict[str, Any]:
    """Returns what SGLang says of its options; nothing outside a server."""
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
