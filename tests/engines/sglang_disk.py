"""`make test-engines`: SGLang's real cache controllers and host pool over Blockyard's disk.

    python sglang_disk.py [--seeds 60]

It runs in an environment that has SGLang and this project's wheel, on a CPU, with a process group
of one. Keys are made by SGLang's own native hash. It prints what has happened, and ends with status
1 at a broken promise.
"""

import argparse
import dataclasses
import hashlib
import inspect
import json
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# What SGLang's native hash is compiled with is beside the interpreter, and there it is kept.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(Path(sys.executable).parents[1] / "extensions"))

import torch
import torch.distributed as dist
from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.mem_cache import hicache_storage
from sglang.srt.mem_cache import utils as sglang_keys
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.mem_cache.pool_host.group import HostPoolGroup, PoolEntry
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.utils import get_storage_hash_str
from sglang.srt.observability.metrics_collector import StorageMetrics
from sglang.srt.runtime_context import get_parallel

sys.path.append(str(Path(__file__).parents[1] / "python" / "support"))
import sglang_stub as stub

PAGE, LAYERS, PAGES = 4, 3, 256
WORDS = {
    "backend_name": "blockyard",
    "module_path": "blockyard.engines.sglang",
    "class_name": "Storage",
    "interface_v1": 1,
    "hicache_storage_pass_prefix_keys": True,
    "prefetch_threshold": PAGE,
    "disk": 96,
    "namespace": {"weights": "v1"},
}
RANKS = {
    **dict.fromkeys(("tp_rank", "pp_rank", "attn_tp_rank", "attn_dcp_rank"), 0),
    **dict.fromkeys(("tp_size", "pp_size", "attn_tp_size", "attn_cp_size", "attn_dcp_size"), 1),
}


class Wrong(Exception):
    """A promise was broken."""


def must(holds: object, what: str) -> None:
    """Raises unless it holds."""
    if not holds:
        raise Wrong(what)


class Engine:
    """A controller of SGLang's, its pools, and what its tree asks of it.

    Args:
        folder: Of the disk.
        hybrid: The controller that the server makes today, or the one below it.
        layout: Of the host pool.
        words: Words of the operator instead of `WORDS`.
    """

    def __init__(
        self, folder: Path, *, hybrid: bool = False, layout: str = "page_first", **words: Any
    ) -> None:
        said = json.dumps(WORDS | {"disk_path": str(folder)} | words)
        parsed = HybridCacheController.parse_storage_backend_extra_config(said)
        extra, threshold, *_, self.prefixes = parsed
        self.hybrid = hybrid
        self.device = MHATokenToKVPool(
            PAGES * PAGE, PAGE, torch.bfloat16, 2, 8, LAYERS, "cpu", enable_memory_saver=False
        )
        self.host = MHATokenToKVPoolHost(
            self.device.get_device_pool_infos()[0].buffer_info,
            1.0,
            0,
            PAGE,
            layout,
            pin_memory=False,
            device="cpu",
            device_capacity_tokens=PAGES * PAGE,
            start_layer=0,
            end_layer=LAYERS,
        )
        allocator = PagedTokenToKVPoolAllocator(
            size=PAGES * PAGE,
            page_size=PAGE,
            dtype=torch.bfloat16,
            device="cpu",
            kvcache=self.device,
            need_sort=False,
        )
        entry = PoolEntry(
            PoolName.KV, self.host, self.device, lambda layer: layer, is_primary_index_anchor=True
        )
        self.controller: Any = (HybridCacheController if hybrid else HiCacheController)(
            allocator,
            HostPoolGroup([entry]) if hybrid else self.host,
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

    def pages(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns the bytes of some pages of the host pool."""
        firsts = rows[::PAGE].tolist()
        return torch.stack([self.host.get_data_page(row).view(torch.int16) for row in firsts])

    def backup(self, key: RadixKey, *, first: int = 0) -> int:
        """Backs a sequence up from page `first` on, as the tree does; returns tokens stored."""
        hashes = get_storage_hash_str(key, None, page_size=PAGE)
        rows = self.host.alloc((len(hashes) - first) * PAGE)
        for row, named in zip(rows[::PAGE].tolist(), hashes[first:], strict=True):
            self.host.set_from_flat_data_page(row, bytes_of(named))
        before = hashes[:first] if self.prefixes else None
        self.controller.write_storage(rows, key, hashes[first:], before)
        operation = self.controller.ack_backup_queue.get(timeout=60)
        self.host.free(rows)
        return int(operation.completed_tokens)

    def prefetch(self, key: RadixKey, rid: str = "a request") -> tuple[int, int]:
        """Brings a sequence up; returns the tokens that were found, and those that came.

        Raises:
            Wrong: A page has other bytes than those of its tokens.
        """
        controller = self.controller
        before: list[str] | None = [] if self.prefixes else None
        whose: Any = SimpleNamespace(rid=rid) if self.hybrid else rid
        controller.prefetch(whose, key, None, before)
        operation = controller.prefetch_hit_queue.get(timeout=60)
        hit = int(operation.storage_hit_count)
        if hit == 0:
            return 0, 0
        rows = controller.alloc_prefetch_host_buffers(operation, hit)
        for row in rows[::PAGE].tolist():
            self.host.set_from_flat_data_page(row, torch.zeros_like(bytes_of("00" * 32)))
        operation.host_indices = rows
        controller.prefetch_buffer.put(operation)
        came = 0
        while True:
            ack = controller.ack_prefetch_queue.get(timeout=60)
            came = came if ack.completed_tokens is None else int(ack.completed_tokens)
            if ack.completed_req:
                break
        good = rows[:came]
        if came:
            wanted = torch.stack([bytes_of(one).view(torch.int16) for one in operation.hash_value])
            must(torch.equal(self.pages(good), wanted[: came // PAGE]), f"{rid}: wrong bytes")
        self.host.free(rows)
        return hit, came


def bytes_of(key: str) -> torch.Tensor:
    """Returns the KV of a page, which follows from its key: a page's bytes are checked by that."""
    made = torch.Generator().manual_seed(int(key[:15], 16))
    values = 2 * PAGE * LAYERS * 2 * 8
    bits = torch.randint(0, 1 << 15, (values,), dtype=torch.int16, generator=made)
    return bits.view(torch.bfloat16)


def prompt(number: int, pages: int, **namespace: str) -> RadixKey:
    """Returns a prompt of so many pages, and whose it is."""
    return RadixKey(array("q", range(number * 10_000, number * 10_000 + pages * PAGE)), **namespace)


@contextmanager
def engine(folder: Path, **how: Any) -> Iterator[Engine]:
    """Runs an engine and detaches its storage."""
    made = Engine(folder, **how)
    try:
        yield made
    finally:
        made.close()


def refused(kind: str, text: str, folder: Path, **how: Any) -> None:
    """Checks that SGLang's start ends with an error."""
    try:
        Engine(folder, **how).close()
    except Exception as error:  # noqa: BLE001 - its kind is compared
        must(type(error).__name__ == kind, f"{error!r} is no {kind}")
        must(text in str(error), f"{error} does not say {text!r}")
    else:
        raise Wrong(f"it was not refused: {text}")


def plain_hash(tokens: Any, prior: bytes | None, page_size: int) -> list[str]:
    """What SGLang's native hash gives, where there are no headers of OpenSSL to compile it with."""
    raw = list(tokens.raw_token_ids())
    hashes = []
    for first in range(0, len(raw), page_size):
        page = b"".join(token.to_bytes(4, "little") for token in raw[first : first + page_size])
        prior = hashlib.sha256((prior or b"") + page).digest()
        hashes.append(prior.hex())
    return hashes


def use_a_hash() -> str:
    """Takes SGLang's own hash, or the plain one where it cannot be compiled; says which."""
    key = prompt(3, 2, extra_key="a")
    native = sglang_keys.get_native_hash
    try:
        made = get_storage_hash_str(key, None, page_size=PAGE)
    except RuntimeError as error:
        sglang_keys.get_native_hash = plain_hash
        return f"hashlib, as SGLang's native hash cannot be compiled here: {error.__cause__}"
    sglang_keys.get_native_hash = plain_hash
    must(made == get_storage_hash_str(key, None, page_size=PAGE), "the plain hash is another")
    sglang_keys.get_native_hash = native
    return "SGLang's native hash, and hashlib gives the same"


# -- cases ----------------------------------------------------------------------------------


def the_stub_of_the_tests_is_as_sglang_is(_: Path) -> None:
    """What the ordinary tests run against has SGLang's calls and fields."""
    for mine, theirs in (
        (stub.HiCacheStorageConfig, hicache_storage.HiCacheStorageConfig),
        (stub.HiCacheStorageExtraInfo, hicache_storage.HiCacheStorageExtraInfo),
        (stub.PoolTransfer, hicache_storage.PoolTransfer),
        (stub.PoolTransferResult, hicache_storage.PoolTransferResult),
        (stub.StorageMetrics, StorageMetrics),
    ):
        said = [[one.name for one in dataclasses.fields(kind)] for kind in (mine, theirs)]
        must(said[0] == said[1], f"{mine.__name__}: {said}")
    theirs = hicache_storage.HiCacheStorage
    for name, call in vars(stub.HiCacheStorage).items():
        if not name.startswith("_"):
            both = (call, getattr(theirs, name))
            said = [list(inspect.signature(one).parameters) for one in both]
            must(said[0] == said[1], f"{name}: {said}")
    policies = [
        {one.name: one.value for one in kind} for kind in (stub.PoolHitPolicy, PoolHitPolicy)
    ]
    must(policies[0] == policies[1], f"{policies}")
    must(stub.HiCacheStorage.__abstractmethods__ == theirs.__abstractmethods__, "abstract methods")


def pages_go_down_and_come_back_with_their_bytes(folder: Path) -> None:
    """40 pages and more, in each layout and under both controllers."""
    for hybrid in (False, True):
        for layout in ("page_first", "page_first_direct"):
            with engine(folder / f"{hybrid}", hybrid=hybrid, layout=layout) as one:
                must(one.prefetch(prompt(1, 40)) == (0, 0), "found before it was there")
                must(one.backup(prompt(1, 40)) == 40 * PAGE, "not backed up")
                must(one.prefetch(prompt(1, 40)) == (40 * PAGE, 40 * PAGE), "did not come back")
                must(one.prefetch(prompt(1, 60)) == (40 * PAGE, 40 * PAGE), "a longer prompt")
                must(one.backup(prompt(1, 60), first=40) == 20 * PAGE, "the rest not backed up")
                must(one.prefetch(prompt(1, 60)) == (60 * PAGE, 60 * PAGE), "not the whole")
                figures = one.storage.get_stats()
                must(sum(figures.backup_pgs) == 60, f"{figures}")
                must(sum(figures.prefetch_pgs) == 140, f"{figures}")


def a_batch_is_longer_than_one_call(folder: Path) -> None:
    """Of 200 pages SGLang makes two calls, the second with the keys before it."""
    with engine(folder, disk=256) as one:
        must(one.backup(prompt(1, 200)) == 200 * PAGE, "not backed up")
        must(one.prefetch(prompt(1, 200)) == (200 * PAGE, 200 * PAGE), "did not come back")


def tear(folder: Path, key: RadixKey, page: int, *, rank: int = 0) -> None:
    """Flips a bit of a page, where it lies."""
    named = bytes.fromhex(get_storage_hash_str(key, None, page_size=PAGE)[page])
    (slots,) = folder.glob(f"*/rank-{rank}/slots")
    slot = slots.with_name("table").read_bytes().index(named) // 128
    with slots.open("r+b") as file:
        file.seek(slot * (slots.stat().st_size // WORDS["disk"]) + 11)
        (byte,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 4]))


def a_torn_page_ends_the_load_there(folder: Path) -> None:
    """SGLang takes the pages before it, and finds no more the next time."""
    with engine(folder, direct=False) as one:
        one.backup(prompt(1, 40))
        tear(folder, prompt(1, 40), 17)
        must(one.prefetch(prompt(1, 40)) == (40 * PAGE, 17 * PAGE), "not ended at the torn page")
        must(one.prefetch(prompt(1, 40)) == (17 * PAGE, 17 * PAGE), "the torn page is found again")
        must(one.backup(prompt(1, 40), first=17) == 23 * PAGE, "it is not written anew")
        must(one.prefetch(prompt(1, 40)) == (40 * PAGE, 40 * PAGE), "not whole again")


def two_ranks_agree_on_what_both_have(folder: Path) -> None:
    """A page that one of two tensor parallel ranks has torn is not brought up on either."""
    line = [sys.executable, "-W", "ignore", __file__, "--into", folder, "--rank"]
    ranks = [subprocess.Popen([*line, str(rank)]) for rank in range(2)]
    try:
        must([rank.wait(timeout=180) for rank in ranks] == [0, 0], "a rank has failed")
    finally:
        # One whose partner has failed waits for it.
        for rank in ranks:
            rank.kill()
    must(len(list(folder.glob("*/rank-*"))) == 2, "they do not have a folder each")


def be_a_rank(folder: Path, rank: int) -> None:
    """What each process of that case does."""
    with engine(folder, direct=False) as one:
        must(one.backup(prompt(1, 40)) == 40 * PAGE, "not backed up")
        must(one.prefetch(prompt(1, 40)) == (40 * PAGE, 40 * PAGE), "did not come back")
        dist.barrier()
        if rank == 1:
            tear(folder, prompt(1, 40), 17, rank=1)
        dist.barrier()
        must(one.prefetch(prompt(1, 40)) == (40 * PAGE, 17 * PAGE), "not ended at the torn page")
        must(one.prefetch(prompt(1, 40)) == (17 * PAGE, 17 * PAGE), "the ranks do not agree")
        dist.barrier()


def a_restart_finds_what_was_there(folder: Path) -> None:
    """After a detach, another engine has it; with other weights it has nothing."""
    with engine(folder, hybrid=True) as one:
        one.backup(prompt(1, 40))
    with engine(folder, hybrid=True) as one:
        must(one.prefetch(prompt(1, 40)) == (40 * PAGE, 40 * PAGE), "not found")
    with engine(folder, namespace={"weights": "v2"}) as one:
        must(one.prefetch(prompt(1, 40)) == (0, 0), "found with other weights")


def a_killed_process_leaves_what_it_has_said_is_stored(folder: Path) -> None:
    """What SGLang was told is stored outlives a kill."""
    line = [sys.executable, "-W", "ignore", __file__, "--into", folder]
    child = subprocess.run(line, check=False, timeout=180)
    must(child.returncode == -signal.SIGKILL, "the process has not stored it")
    with engine(folder) as one:
        must(one.prefetch(prompt(1, 40)) == (40 * PAGE, 40 * PAGE), "not found")


def store_and_die(folder: Path) -> None:
    """What the process of that case does."""
    if Engine(folder).backup(prompt(1, 40)) == 40 * PAGE:
        os.kill(os.getpid(), signal.SIGKILL)


def a_full_disk_goes_on_taking_pages(folder: Path) -> None:
    """The youngest are there, the oldest are gone, and nothing comes with wrong bytes."""
    with engine(folder) as one:
        for number in range(20):
            must(one.backup(prompt(number, 16)) == 16 * PAGE, f"prompt {number} was not taken")
        found = [one.prefetch(prompt(number, 16))[1] // PAGE for number in range(20)]
        must(found[15:] == [16] * 5, f"the youngest: {found}")
        must(sum(found) == WORDS["disk"], f"the disk is not full: {found}")


def adapters_and_salts_are_told_apart(folder: Path) -> None:
    """The same tokens, by SGLang's own hash of whose they are."""
    whose = ({}, {"extra_key": "a"}, {"cache_salt": "a"}, {"extra_key": "a", "cache_salt": "b"})
    with engine(folder) as one:
        for at, mine in enumerate(whose):
            must(one.prefetch(prompt(1, 8, **mine)) == (0, 0), f"{mine} finds another's")
            must(one.backup(prompt(1, 8, **mine)) == 8 * PAGE, f"{mine} was not taken")
            for other in whose[: at + 1]:
                must(one.prefetch(prompt(1, 8, **other))[1] == 8 * PAGE, f"{other} is lost")


def a_clear_lasts(folder: Path) -> None:
    """SGLang's own call clears, and a restart does not bring it back."""
    with engine(folder, hybrid=True) as one:
        one.backup(prompt(1, 8))
        must(one.controller.clear_storage_backend(), "SGLang has not cleared it")
        must(one.prefetch(prompt(1, 8)) == (0, 0), "found after a clear")
        one.backup(prompt(2, 8))
    with engine(folder, hybrid=True) as one:
        must(one.prefetch(prompt(1, 8)) == (0, 0), "found after a clear and a restart")
        must(one.prefetch(prompt(2, 8))[1] == 8 * PAGE, "what came after the clear is lost")


def another_machine_finds_in_a_store_what_its_disk_lacks(folder: Path) -> None:
    """Two engines have disks of their own and one store; a torn value ends a load there."""
    url = (folder / "store").as_uri()
    with engine(folder / "one", hybrid=True, remote=url) as one:
        one.backup(prompt(1, 40))
    with engine(folder / "two", hybrid=True, remote=url) as one:
        must(one.prefetch(prompt(1, 40)) == (40 * PAGE, 40 * PAGE), "not found in the store")
    named = get_storage_hash_str(prompt(1, 40), None, page_size=PAGE)[7]
    (value,) = (folder / "store").rglob(named)
    raw = bytearray(value.read_bytes())
    raw[-1] ^= 1
    value.write_bytes(raw)
    with engine(folder / "three", hybrid=True, remote=url) as one:
        must(one.prefetch(prompt(1, 40)) == (40 * PAGE, 7 * PAGE), "it does not end there")


def what_cannot_be_served_ends_the_start(folder: Path) -> None:
    """The operator sees the line to write."""
    refused("Misuse", "start with --hicache-mem-layout page_first", folder, layout="layer_first")
    refused("Misuse", 'write "interface_v1": 1', folder, interface_v1=0)
    refused("Misuse", "did you mean 'disk_path'", folder, diskpath="x")
    with engine(folder, hybrid=True) as one:
        refused("Unavailable", f"process {os.getpid()} owns it", folder)
        other = PoolEntry(PoolName.MAMBA, object(), None, lambda layer: layer)
        other.host_pool = type("Mamba", (), {"can_use_write_back_jit": False})()
        try:
            one.controller.register_host_pool_entry(other)
        except Exception as error:  # noqa: BLE001 - its text is compared
            must("host pool 'mamba' comes when the disk is divided" in str(error), f"{error}")
        else:
            raise Wrong("a pool was taken that comes too late")


CASES: tuple[Callable[[Path], None], ...] = (
    the_stub_of_the_tests_is_as_sglang_is,
    pages_go_down_and_come_back_with_their_bytes,
    a_batch_is_longer_than_one_call,
    a_torn_page_ends_the_load_there,
    two_ranks_agree_on_what_both_have,
    a_restart_finds_what_was_there,
    a_killed_process_leaves_what_it_has_said_is_stored,
    a_full_disk_goes_on_taking_pages,
    adapters_and_salts_are_told_apart,
    a_clear_lasts,
    another_machine_finds_in_a_store_what_its_disk_lacks,
    what_cannot_be_served_ends_the_start,
)


def play(seed: int, folder: Path) -> Counter[str]:
    """Random prompts that share prefixes, a small disk, flipped bits, restarts: bytes are checked.

    Backups and prefetches overlap, as they do in SGLang: a backup is not waited for before the next
    prefetch begins.
    """
    chance, seen = random.Random(seed), Counter[str]()
    how = {"hybrid": chance.random() < 0.5, "disk": chance.choice((24, 48, 96)), "direct": False}
    one = Engine(folder, **how)
    try:
        for turn in range(30):
            key = prompt(chance.randrange(6), chance.randint(1, 24), extra_key=chance.choice("ab"))
            act = chance.random()
            if act < 0.45:
                seen["tokens backed up"] += one.backup(key)
            elif act < 0.9:
                other = prompt(chance.randrange(6), chance.randint(1, 24), extra_key="a")
                beside = threading.Thread(target=one.backup, args=(other,))
                beside.start()
                hit, came = one.prefetch(key, f"seed {seed}, turn {turn}")
                beside.join()
                seen["tokens brought up"] += came
                seen["loads cut short"] += came < hit
            elif act < 0.95:
                (slots,) = folder.glob("*/rank-0/slots")
                with slots.open("r+b") as file:
                    at = chance.randrange(how["disk"]) * (slots.stat().st_size // how["disk"])
                    file.seek(at + chance.randrange(1536))
                    file.write(bytes([chance.randrange(256)]))
                seen["bytes overwritten"] += 1
            else:
                one.close()
                one = Engine(folder, **how)
                seen["restarts"] += 1
        left = one.storage.stats()
        must(left["flights"] == 0, f"copies are left: {left['flights']}")
        seen["pages evicted"] += left["disk_evicted"]
    finally:
        one.close()
    return seen


def run(name: str, act: Callable[[Path], Any]) -> Any:
    """Runs a part in a folder of its own; returns what it returns, or None where it is broken."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return act(Path(folder)) or True
        except Exception as error:  # noqa: BLE001 - whatever it is, the case shows it
            print(f"BROKEN  {name}: {error}")
            if not isinstance(error, Wrong):
                traceback.print_exc()
            return None


def main() -> int:
    """Runs all."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--seeds", type=int, default=60)
    asked.add_argument("--into", type=Path, help="the folder of a case with other processes")
    asked.add_argument("--rank", type=int, help="a rank of two, in that case")
    options = asked.parse_args()
    logging.disable(logging.CRITICAL)
    two = options.rank is not None
    get_parallel().override_permanently(**RANKS)
    if two:
        both = {"tp_rank": options.rank, "tp_size": 2}
        get_parallel().override_permanently(**both)
    keys = use_a_hash()
    broken = 0
    with tempfile.TemporaryDirectory() as folder:
        where = f"file://{options.into / 'group' if two else Path(folder) / 'group'}"
        rank, ranks = (options.rank, 2) if two else (0, 1)
        dist.init_process_group("gloo", init_method=where, rank=rank, world_size=ranks)
        if two:
            be_a_rank(options.into, rank)
            return 0
        if options.into:
            store_and_die(options.into)
            return 1
        print(f"keys    {keys}", flush=True)
        for case in CASES:
            name = case.__name__.replace("_", " ")
            done = run(name, case)
            broken += done is None
            if done:
                print(f"ok      {name}", flush=True)
        seen: Counter[str] = Counter()
        for seed in range(options.seeds):
            played = run(f"seed {seed}", lambda place, seed=seed: play(seed, place))
            broken += played is None
            seen += played or Counter()
        dist.destroy_process_group()
    for name, number in sorted(seen.items()):
        print(f"{number:10,}  {name}")
    few = [name for name in ("loads cut short", "restarts", "pages evicted") if not seen[name]]
    if options.seeds >= 60 and few:
        print(f"BROKEN  too few of {few}: the seeds show too little")
        broken += 1
    print(f"{len(CASES)} cases and {options.seeds} seeds: {broken} broken, 0 wrong bytes otherwise")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
