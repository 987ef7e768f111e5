"""`make test-engines`: SGLang's hybrid cache controller and its host pools over Blockyard's disk.

    python sglang_pools.py [--seeds 20]

Full attention, sliding windows, Mamba's states and a draft model's pages of each token, on a CPU.
Pools, controller and the rule by which a load is taken are SGLang's own; what its tree asks of them
is played here, as the tree and its components ask it. At the end mistakes are planted into the
storage, each of which a case must notice.
"""

import argparse
import ctypes
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle
from sglang.srt.mem_cache.device_pool_info import MambaStateBufferInfo
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.mem_cache.memory_pool_host import DeepSeekV4PagedHostPool
from sglang.srt.mem_cache.pool_host.dsa import DSAIndexerPoolHost
from sglang.srt.mem_cache.pool_host.group import HostPoolGroup, PoolEntry
from sglang.srt.mem_cache.pool_host.host_pool_decl import HostPoolDecl, HostPoolStorageInfo
from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.mem_cache.utils import get_storage_hash_str
from sglang.srt.runtime_context import get_parallel

import sglang_disk as one_pool
from blockyard.connectors.sglang import pool_disks, storage
from blockyard.connectors.sglang.host_pool import host_pages
from sglang_disk import PAGE, PAGES, Wrong, must, prompt

KV, SWA, MAMBA, DRAFT = PoolName.KV, PoolName.SWA, PoolName.MAMBA, PoolName.DRAFT
LAST = PoolHitPolicy.TRAILING_PAGES
WINDOW = 3
"""Pages of a window."""
STATES = 64


class Found(NamedTuple):
    """What a prefetch has come to, in pages."""

    hit: int
    """What the storage has answered, agreed by all ranks."""
    taken: int
    """What the tree takes: all, or nothing."""


def host_of(device: Any, layout: str) -> Any:
    """Returns the host pool of a pool of KV."""
    return MHATokenToKVPoolHost(
        device.get_device_pool_infos()[0].buffer_info,
        1.0,
        0,
        PAGE,
        layout,
        pin_memory=False,
        device="cpu",
        device_capacity_tokens=device.size,
        start_layer=0,
        end_layer=device.layer_num,
    )


def device_of(pages: int, layers: int) -> Any:
    """Returns a pool of KV on the device."""
    tokens = pages * PAGE
    return MHATokenToKVPool(
        tokens, PAGE, torch.bfloat16, 2, 8, layers, "cpu", enable_memory_saver=False
    )


def states_of(layout: str, *, more: bool = False) -> Any:
    """Returns the host pool of states: a recurrent one in full precision, and a convolution's."""
    info = MambaStateBufferInfo(
        temporal=torch.zeros(2, STATES, 2, 4, 4, dtype=torch.float32),
        conv=(torch.zeros(2, STATES, 8, 3, dtype=torch.bfloat16),),
        extra_checkpoint_buffers=(torch.zeros(STATES, 4),) if more else (),
    )
    return MambaPoolHost(
        info, 1.0, 0, device_capacity=STATES, pin_memory=False, device="cpu", layout=layout
    )


class Engine:
    """A hybrid controller of SGLang's, its pools, and what its tree asks of it.

    Args:
        folder: Of the disks.
        layout: Of the host pools.
        states: The pool of states in place of the usual one.
        words: Words of the operator instead of those of `sglang_disk`.
    """

    def __init__(
        self, folder: Path, *, layout: str = "page_first", states: Any = None, **words: Any
    ) -> None:
        said = json.dumps(one_pool.WORDS | {"disk_path": str(folder)} | words)
        extra, threshold, *_ = HybridCacheController.parse_storage_backend_extra_config(said)
        devices = {
            KV: device_of(PAGES, 3),
            SWA: device_of(PAGES // 2, 3),
            DRAFT: device_of(PAGES, 1),
        }
        self.pools: dict[PoolName, Any] = {
            name: host_of(device, layout) for name, device in devices.items()
        }
        self.pools[MAMBA] = states or states_of(layout)
        entries = [
            PoolEntry(
                name, pool, devices.get(name), lambda _: 0, is_primary_index_anchor=name == KV
            )
            for name, pool in self.pools.items()
        ]
        allocator = PagedTokenToKVPoolAllocator(
            size=PAGES * PAGE,
            page_size=PAGE,
            dtype=torch.bfloat16,
            device="cpu",
            kvcache=devices[KV],
            need_sort=False,
        )
        self.controller: Any = HybridCacheController(
            allocator,
            HostPoolGroup(entries),
            PAGE,
            dist.group.WORLD,
            threading.Event(),
            io_backend="kernel",
            storage_backend="dynamic",
            prefetch_threshold=threshold,
            model_name="a model",
            storage_backend_extra_config=extra,
            enable_storage_metrics=True,
        )

    @property
    def storage(self) -> Any:
        """The storage that SGLang has made."""
        return self.controller.storage_backend

    def close(self) -> None:
        """Detaches the storage."""
        self.controller.detach_storage_backend()

    def starts(self, name: PoolName, rows: torch.Tensor) -> list[int]:
        """Returns the first row of each page."""
        return [int(row) for row in rows[:: self.pools[name].page_size]]

    def fill(self, name: PoolName, keys: list[str]) -> torch.Tensor:
        """Allocates pages, whose bytes follow from pool and key."""
        pool = self.pools[name]
        rows = pool.alloc(len(keys) * pool.page_size)
        for row, key in zip(self.starts(name, rows), keys, strict=True):
            pool.set_from_flat_data_page(row, self.content(name, key))
        return rows

    def content(self, name: PoolName, key: str) -> torch.Tensor:
        """Returns the bytes of a page of a pool."""
        if name == KV:
            return one_pool.bytes_of(key)
        empty = self.pools[name].get_dummy_flat_data_page()
        made = torch.Generator().manual_seed(int(key[:12], 16) + sum(name.value.encode()))
        count = empty.numel() * empty.element_size()
        # As floats that are equal to themselves.
        noise = torch.randint(0, 120, (count,), dtype=torch.uint8, generator=made)
        return noise.view(empty.dtype).reshape(empty.shape)

    def check(self, name: PoolName, rows: torch.Tensor, keys: list[str], whose: str) -> None:
        """Raises unless pages have the bytes of their keys."""
        for row, key in zip(self.starts(name, rows), keys, strict=True):
            found = self.pools[name].get_data_page(row, flat=True)
            as_bytes = [
                one.contiguous().view(torch.uint8) for one in (found, self.content(name, key))
            ]
            must(torch.equal(*as_bytes), f"{whose}: wrong bytes of {name}")

    def backup(
        self, key: RadixKey, *, first: int = 0, window: int = WINDOW, state: bool = True
    ) -> dict[str, int]:
        """Backs a node up from page `first` on, as the tree does; returns pages by pool.

        Args:
            key: All tokens up to its end.
            first: Where it begins.
            window: Pages of its end that are still in the pool of windows.
            state: Whether it has a state, that of its end.
        """
        hashes = get_storage_hash_str(key, None, page_size=PAGE)
        own = hashes[first:]
        kept = {KV: own, SWA: own[len(own) - min(window, len(own)) :], MAMBA: own[-1:] * state}
        rows = {name: self.fill(name, keys) for name, keys in kept.items() if keys}
        # A draft model's pages are in the rows of the KV, in a pool of its own.
        for row, named in zip(self.starts(DRAFT, rows[KV]), own, strict=True):
            self.pools[DRAFT].set_from_flat_data_page(row, self.content(DRAFT, named))
        transfers = [
            PoolTransfer(name, host_indices=rows[name], keys=kept[name], hit_policy=LAST)
            for name in (SWA, MAMBA)
            if name in rows
        ]
        transfers.append(PoolTransfer(DRAFT, keys=own, indices_from_pool=KV))
        self.controller.write_storage(rows[KV], key, own, hashes[:first], extra_pools=transfers)
        operation = self.controller.ack_backup_queue.get(timeout=60)
        for name, taken in rows.items():
            self.pools[name].free(taken)
        beside = operation.pool_storage_result.extra_pool_hit_pages
        found = {str(name): int(pages) for name, pages in beside.items()}
        return found | {"kv": operation.completed_tokens // PAGE}

    def prefetch(self, key: RadixKey, rid: str = "a request") -> Found:
        """Brings a sequence up, as the tree does.

        Raises:
            Wrong: What the tree takes has other bytes than those of its tokens.
        """
        controller = self.controller
        asked = [
            PoolTransfer(SWA, keys=["__placeholder__"] * WINDOW, hit_policy=LAST),
            PoolTransfer(MAMBA, keys=["__placeholder__"], hit_policy=LAST),
            PoolTransfer(DRAFT, indices_from_pool=KV),
        ]
        controller.prefetch(CacheRequestHandle(rid, 0), key, None, [], extra_pools=asked)
        operation = controller.prefetch_hit_queue.get(timeout=60)
        hit = int(operation.storage_hit_count) // PAGE
        if hit == 0:
            return Found(0, 0)
        rows = controller.alloc_prefetch_host_buffers(operation, hit * PAGE)
        taken = {KV: rows}
        for transfer in asked[:2]:
            pool = self.pools[transfer.name]
            pages = min(len(transfer.keys or ()), hit)
            transfer.host_indices = taken[transfer.name] = pool.alloc(pages * pool.page_size)
        nothing = "00" * 32
        for name, some in [*taken.items(), (DRAFT, rows)]:
            for row in self.starts(name, some):
                self.pools[name].set_from_flat_data_page(row, self.content(name, nothing))
        operation.host_indices = rows
        controller.prefetch_buffer.put(operation)
        self.wait_for(operation)
        good = is_taken(operation, rows)
        if good:
            keys = operation.hash_value
            self.check(KV, rows, keys, rid)
            self.check(DRAFT, rows, keys, rid)
            self.check(SWA, taken[SWA], keys[-WINDOW:], rid)
            self.check(MAMBA, taken[MAMBA], keys[-1:], rid)
        for name, some in taken.items():
            self.pools[name].free(some)
        return Found(hit, hit if good else 0)

    def wait_for(self, operation: Any) -> None:
        """Takes what the controller says of a load, until its end."""
        done = False
        while not done:
            ack = self.controller.ack_prefetch_queue.get(timeout=60)
            if ack.completed_tokens is not None:
                operation.completed_tokens = int(ack.completed_tokens)
            if ack.pool_hits is not None:
                operation.pool_storage_result.update_extra_pool_hit_pages(ack.pool_hits)
                operation.pool_transfers_done = True
            done = bool(ack.completed_req)


def is_taken(operation: Any, rows: torch.Tensor) -> bool:
    """Whether SGLang's tree takes what has come, by its own rule."""
    tree = SimpleNamespace(
        page_size=PAGE,
        storage_existence_cache=None,
        prefetch_loaded_tokens_by_reqid={},
        prefetch_loaded_storage_start_by_reqid={},
        _finish_storage_prefetch=lambda *_, **__: None,
        _retire_ongoing_prefetch=lambda *_, **__: None,
    )
    # So that it notes nothing of what is missing: that is of another mode of the host's memory.
    operation.deadline_expired = True
    request = operation.handle
    rule = UnifiedRadixCache._check_hybrid_prefetch_result
    return bool(rule(tree, request, operation, operation.hash_value, rows))


@contextmanager
def engine(folder: Path, **how: Any) -> Iterator[Engine]:
    """Runs an engine and detaches its storage."""
    made = Engine(folder, **how)
    try:
        yield made
    finally:
        made.close()


def stored(one: Engine, key: RadixKey, pages: int, **how: Any) -> None:
    """Backs a sequence up and checks that every pool was taken."""
    window = min(how.get("window", WINDOW), pages)
    wanted = {"kv": pages, "draft": pages, "swa": window, "mamba": int(how.get("state", True))}
    found = one.backup(key, **how)
    must(found == {name: one for name, one in wanted.items() if one}, f"backed up: {found}")


def flip(one: Engine, name: PoolName, key: RadixKey, page: int) -> None:
    """Flips a bit of a page of a pool, where it lies."""
    named = bytes.fromhex(get_storage_hash_str(key, None, page_size=PAGE)[page])
    pages = one.storage._disks[name.value].disk
    slot = (pages.path / "table").read_bytes().index(named) // 128
    with (pages.path / "slots").open("r+b") as file:
        file.seek(slot * (os.fstat(file.fileno()).st_size // pages.slots) + 11)
        (byte,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 4]))


# -- cases ----------------------------------------------------------------------------------


def all_pools_go_down_and_come_back_with_their_bytes(folder: Path) -> None:
    """150 pages and more, of which the windows and states of ends alone, in each layout."""
    for layout in ("page_first", "page_first_direct"):
        with engine(folder / layout, layout=layout, disk=256) as one:
            must(one.prefetch(prompt(1, 40)) == (0, 0), "found before it was there")
            stored(one, prompt(1, 40), 40)
            must(one.prefetch(prompt(1, 40)) == (40, 40), "did not come back")
            must(one.prefetch(prompt(1, 60)) == (40, 40), "a longer prompt")
            stored(one, prompt(1, 150), 110, first=40)
            must(one.prefetch(prompt(1, 150)) == (150, 150), "the longer one")
            # The window and state of its 40th page are still there; those of the 100th never were.
            must(one.prefetch(prompt(1, 100)) == (40, 40), "a shorter one")


def a_hit_has_its_window_and_its_state(folder: Path) -> None:
    """KV without a state, or without a whole window, is no hit; the node before it is."""
    with engine(folder) as one:
        stored(one, prompt(1, 10), 10)
        stored(one, prompt(1, 20), 10, first=10, state=False)
        stored(one, prompt(1, 30), 10, first=20, window=2)
        must(one.storage.batch_exists(keys_of(prompt(1, 30))) == 30, "the KV is not all there")
        must(one.prefetch(prompt(1, 30)) == (10, 10), "a hit without its window or its state")
        # Windows go on over the end of a node.
        stored(one, prompt(1, 31), 1, first=30, window=1)
        must(one.prefetch(prompt(1, 31)) == (31, 31), "a window over two nodes")


def keys_of(key: RadixKey) -> list[str]:
    return list(get_storage_hash_str(key, None, page_size=PAGE))


def a_flipped_bit_in_any_pool_is_noticed(folder: Path) -> None:
    """The tree takes nothing of that load, the next one finds what is whole, and it heals."""
    for name in (KV, SWA, MAMBA, DRAFT):
        with engine(folder / name.value, direct=False) as one:
            stored(one, prompt(1, 10), 10)
            stored(one, prompt(1, 20), 10, first=10)
            flip(one, name, prompt(1, 20), 19)
            must(one.prefetch(prompt(1, 20)) == (20, 0), f"{name}: taken with a flipped bit")
            must(one.prefetch(prompt(1, 20)) == (10, 10), f"{name}: what is before it is lost")
            stored(one, prompt(1, 20), 10, first=10)
            must(one.prefetch(prompt(1, 20)) == (20, 20), f"{name}: not whole again")


def a_restart_finds_all_pools(folder: Path) -> None:
    """After a detach another engine has them; one with other weights, or states, has nothing."""
    with engine(folder) as one:
        stored(one, prompt(1, 40), 40)
    with engine(folder) as one:
        must(one.prefetch(prompt(1, 40)) == (40, 40), "not found")
    with engine(folder, namespace={"weights": "v2"}) as one:
        must(one.prefetch(prompt(1, 40)) == (0, 0), "found with other weights")
    with one_pool.engine(folder, hybrid=True) as alone:
        must(alone.prefetch(prompt(1, 40))[1] == 40 * PAGE, "KV alone is in another folder")


def a_clear_lasts_in_all_pools(folder: Path) -> None:
    """SGLang's own call clears: KV that is written again finds no state of before."""
    with engine(folder) as one:
        stored(one, prompt(1, 8), 8)
        must(one.controller.clear_storage_backend(), "SGLang has not cleared it")
        stored(one, prompt(1, 8), 8, state=False)
        must(one.prefetch(prompt(1, 8)) == (0, 0), "a state of before the clear")
    with engine(folder) as one:
        must(one.prefetch(prompt(1, 8)) == (0, 0), "a state of before the clear, and a restart")


def full_disks_go_on_taking_pages(folder: Path) -> None:
    """The youngest are there whole, the oldest are gone, and nothing comes in part."""
    with engine(folder) as one:
        for number in range(30):
            stored(one, prompt(number, 16), 16)
        found = [one.prefetch(prompt(number, 16)) for number in range(30)]
        must(found[26:] == [Found(16, 16)] * 4, f"the youngest: {found}")
        must(found[:20] == [Found(0, 0)] * 20, f"the oldest: {found}")


def two_ranks_agree_on_a_state_that_both_have(folder: Path) -> None:
    """Where one has lost the state of the end, both take the one before it."""
    line = [sys.executable, "-W", "ignore", __file__, "--into", folder, "--rank"]
    ranks = [subprocess.Popen([*line, str(rank)]) for rank in range(2)]
    try:
        must([rank.wait(timeout=180) for rank in ranks] == [0, 0], "a rank has failed")
    finally:
        # One whose partner has failed waits for it.
        for rank in ranks:
            rank.kill()


def be_a_rank(folder: Path, rank: int) -> None:
    """What each process of that case does."""
    with engine(folder, direct=False) as one:
        for pages in (10, 20, 30):
            stored(one, prompt(1, pages), 10, first=pages - 10)
        must(one.prefetch(prompt(1, 30)) == (30, 30), "did not come back")
        dist.barrier()
        # Each has lost another one: the longest of each is what the other has not.
        flip(one, MAMBA, prompt(1, 30), 29 if rank else 19)
        if rank == 0:
            one.storage.batch_get_v2([state_of(one, keys_of(prompt(1, 20))[19])])
        dist.barrier()
        must(one.prefetch(prompt(1, 30)) == (30, 0), "taken with a flipped bit")
        must(one.prefetch(prompt(1, 30)) == (10, 10), "the ranks do not agree")
        dist.barrier()


def state_of(one: Engine, key: str) -> PoolTransfer:
    """What reads one state."""
    return PoolTransfer(MAMBA, host_indices=one.pools[MAMBA].alloc(1), keys=[key], hit_policy=LAST)


def pages_of_indexers_lie_where_they_say(_: Path) -> None:
    """The pools of sparse attention, of which this makes no device's."""
    device = SimpleNamespace(
        store_dtype=torch.uint8,
        start_layer=0,
        end_layer=3,
        layer_num=3,
        layer_shard_enabled=False,
        device="cpu",
        index_k_with_scale_buffer=[torch.zeros(8, PAGE * 132, dtype=torch.uint8)] * 3,
    )
    decl = HostPoolDecl(
        pool_name=PoolName.INDEXER,
        device_pool=device,
        indices_from_pool=KV,
        layout_source=KV,
        storage_info=HostPoolStorageInfo(bytes_per_token_per_layer=132, dtype=torch.uint8),
        host_pool_builder=None,
    )
    anchor: Any = SimpleNamespace(page_size=PAGE, layout="page_first", size=64, page_num=16)
    buffers = [torch.zeros(8, 64, dtype=torch.uint8) for _ in range(3)]
    pools = (
        DSAIndexerPoolHost(decl, anchor, pin_memory=False),
        # That of QSA, and the parent of its class.
        DeepSeekV4PagedHostPool(
            "qsa_indexer", buffers, 64, 16, PAGE, "page_first", pin_memory=False
        ),
    )
    for pool in pools:
        host = host_pages(pool, ranks=1, name="indexer")
        empty = pool.get_dummy_flat_data_page()
        pool.set_from_flat_data_page(5 * PAGE, torch.arange(empty.numel()).to(empty.dtype))
        ((places, stride, size),) = host.planes
        found = ctypes.string_at(int(places[0]) + 5 * stride, size)
        written = pool.get_data_page(5 * PAGE, flat=True).contiguous().view(torch.uint8)
        must(found == written.numpy().tobytes() and any(found), f"{type(pool).__name__}")


def what_cannot_be_served_ends_the_start(folder: Path) -> None:
    """The operator sees which pool it is, and what to do."""
    try:
        Engine(folder, states=states_of("page_first", more=True)).close()
    except Exception as error:  # noqa: BLE001 - its text is compared
        must(type(error).__name__ == "Unsupported", f"{error!r}")
        must(
            "host pool 'mamba', MambaPoolHost: SGLang does not say where" in str(error), f"{error}"
        )
    else:
        raise Wrong("states with side states were taken")
    must(not list(folder.iterdir()), "it has made a folder")
    with engine(folder) as one:
        late = PoolEntry(PoolName.INDEXER, host_of(device_of(PAGES, 1), "page_first"), None, id)
        try:
            one.controller.register_host_pool_entry(late)
        except Exception as error:  # noqa: BLE001 - its text is compared
            must("host pool 'indexer' comes when the disk is divided" in str(error), f"{error}")
        else:
            raise Wrong("a pool was taken that comes too late")


CASES: tuple[Callable[[Path], None], ...] = (
    all_pools_go_down_and_come_back_with_their_bytes,
    a_hit_has_its_window_and_its_state,
    a_flipped_bit_in_any_pool_is_noticed,
    a_restart_finds_all_pools,
    a_clear_lasts_in_all_pools,
    full_disks_go_on_taking_pages,
    two_ranks_agree_on_a_state_that_both_have,
    pages_of_indexers_lie_where_they_say,
    what_cannot_be_served_ends_the_start,
)


def play(seed: int, folder: Path) -> Counter[str]:
    """Random nodes that share prefixes, small disks, flipped bits, restarts: bytes are checked."""
    chance, seen = random.Random(seed), Counter[str]()
    how = {"disk": chance.choice((24, 48, 96)), "direct": False}
    one = Engine(folder, **how)
    try:
        for turn in range(30):
            key = prompt(chance.randrange(3), chance.choice((4, 9, 10, 16, 24)))
            act = chance.random()
            if act < 0.5:
                pages = len(keys_of(key))
                first = chance.choice((0, 0, chance.randrange(pages)))
                window, state = chance.choice((1, WINDOW, 8)), chance.random() < 0.8
                one.backup(key, first=first, window=window, state=state)
                seen["nodes backed up"] += 1
            elif act < 0.88:
                found = one.prefetch(key, f"seed {seed}, turn {turn}")
                kv = one.storage.batch_exists(keys_of(key))
                must(found.hit <= kv or not found.taken, f"seed {seed}: {found} of {kv}")
                seen["loads"] += found.hit > 0
                seen["pages brought up"] += found.taken
                seen["loads that were dropped"] += found.taken < found.hit
                seen["hits that another pool has shortened"] += found.hit < kv
            elif act < 0.95:
                pool = chance.choice(list(one.storage._disks.values())).disk
                with (pool.path / "slots").open("r+b") as file:
                    stride = os.fstat(file.fileno()).st_size // pool.slots
                    for slot in chance.sample(range(pool.slots), pool.slots // 3):
                        file.seek(slot * stride + chance.randrange(192))
                        file.write(bytes([chance.randrange(256)]))
                        seen["bytes overwritten"] += 1
            else:
                one.close()
                one = Engine(folder, **how)
                seen["restarts"] += 1
        left = {name: one.storage.stats(name)["flights"] for name in one.storage._disks}
        must(not any(left.values()), f"copies are left: {left}")
        for name in ("kv", "swa", "mamba"):
            seen[f"pages of {name} evicted"] += one.storage.stats(name)["disk_evicted"]
    finally:
        one.close()
    return seen


# -- planted mistakes -----------------------------------------------------------------------


def kv_alone(keys: bytes, pools: Any, _: Any) -> Any:
    """A hit is what is there of the KV."""
    count = pools["kv"].disk.count(keys)
    return pool_disks.Agreed(list(range(1, count + 1)), {"kv": count})


def longest_of_each(keys: bytes, pools: Any, wanted: Any) -> Any:
    """A hit is the least of the longest lengths of the pools, at which one may have nothing."""
    found = pool_disks.agreed(keys, pools, wanted)
    least = min(found.pools.get(str(one), 0) for one in ["kv", *(one.name for one in wanted)])
    return pool_disks.Agreed(list(range(1, least + 1)), found.pools)


def last_alone(there: Any, _: int) -> Any:
    """Of a window only the last page is looked for."""
    return there


def clear_kv_alone(pools: Any) -> None:
    """A clear leaves what lies beside the KV."""
    pools["kv"].disk.clear()


def torn_or_not(disk: Any, keys: bytes, ids: Any) -> int:
    """What was torn is given out as it is."""
    READ(disk, keys, ids)
    return len(ids)


READ = pool_disks.DiskPages.read
MISTAKES: tuple[tuple[Any, str, Any, Callable[[Path], None]], ...] = (
    (storage, "agreed", kv_alone, a_hit_has_its_window_and_its_state),
    (storage, "agreed", longest_of_each, a_hit_has_its_window_and_its_state),
    (pool_disks, "_whole", last_alone, a_hit_has_its_window_and_its_state),
    (storage, "clear_all", clear_kv_alone, a_clear_lasts_in_all_pools),
    (pool_disks.DiskPages, "read", torn_or_not, a_flipped_bit_in_any_pool_is_noticed),
)
"""Where each is planted, what, and the case that notices it."""


def plant(mistake: tuple[Any, str, Any, Callable[[Path], None]], folder: Path) -> None:
    """Raises unless the case notices the mistake."""
    where, what, instead, case = mistake
    with mock.patch.object(where, what, instead):
        try:
            case(folder)
        except Wrong:
            return
    raise Wrong(f"{case.__name__} has not noticed it")


def main() -> int:
    """Runs all."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--seeds", type=int, default=20)
    asked.add_argument("--into", type=Path, help="the folder of a case with other processes")
    asked.add_argument("--rank", type=int, help="a rank of two, in that case")
    options = asked.parse_args()
    logging.disable(logging.CRITICAL)
    get_parallel().override_permanently(**one_pool.RANKS)
    two = options.rank is not None
    if two:
        get_parallel().override_permanently(tp_rank=options.rank, tp_size=2)
    keys, broken = one_pool.use_a_hash(), 0
    with tempfile.TemporaryDirectory() as folder:
        where = f"file://{options.into / 'group' if two else Path(folder) / 'group'}"
        rank, ranks = (options.rank, 2) if two else (0, 1)
        dist.init_process_group("gloo", init_method=where, rank=rank, world_size=ranks)
        if two:
            be_a_rank(options.into, rank)
            return 0
        print(f"keys    {keys}", flush=True)
        for case in CASES:
            name = case.__name__.replace("_", " ")
            done = one_pool.run(name, case)
            broken += done is None
            if done:
                print(f"ok      {name}", flush=True)
        seen: Counter[str] = Counter()
        for seed in range(options.seeds):
            played = one_pool.run(f"seed {seed}", lambda place, seed=seed: play(seed, place))
            broken += played is None
            seen += played or Counter()
        for mistake in MISTAKES:
            name = f"planted: {mistake[2].__doc__}"
            done = one_pool.run(name, lambda place, one=mistake: plant(one, place))
            broken += done is None
            if done:
                print(f"ok      {name}", flush=True)
        dist.destroy_process_group()
    for name, number in sorted(seen.items()):
        print(f"{number:10,}  {name}")
    few = [name for name in ("loads that were dropped", "restarts") if not seen[name]]
    if options.seeds >= 20 and few:
        print(f"BROKEN  too few of {few}: the seeds show too little")
        broken += 1
    print(f"{len(CASES)} cases and {options.seeds} seeds: {broken} broken, 0 wrong bytes otherwise")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
