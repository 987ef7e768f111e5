"""LMCache's side of `disk.py`: `LocalDiskBackend`, and the native files of its server.

    python side_disk_lmcache.py WORK cached|direct|native FOLDER BLOCKS BLOCK_BYTES JOB

`cached` is what `local_disk` names, `direct` the same with `use_odirect`, each with its default of
four threads; `native` is the adapter `fs_native` in C++, with `use_odirect` and four threads too.
Memory is that of `LocalCPUBackend`. Only names are imported by hand: this project's own environment
has no LMCache.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import select
import sys
import threading
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from peers.disk_side import Asked, Store, override, serve, sync, unlink

torch: Any = import_module("torch")
Config: Any = import_module("lmcache.v1.config").LMCacheEngineConfig
Metadata: Any = import_module("lmcache.v1.metadata").LMCacheMetadata
memory: Any = import_module("lmcache.v1.memory_management")
backends: Any = import_module("lmcache.v1.storage_backend.local_cpu_backend")
disk: Any = import_module("lmcache.v1.storage_backend.local_disk_backend")
Key: Any = import_module("lmcache.utils").CacheEngineKey

HOW = sys.argv[2]


def bytes_of(one: Any) -> np.ndarray:
    """The bytes of a memory object."""
    return np.frombuffer(one.byte_array, np.uint8)


class Backed(Store):
    """What both stores have: blocks in the memory of a `LocalCPUBackend`."""

    def __init__(self, asked: Asked) -> None:
        super().__init__(asked)
        gib = 2 * asked.blocks * asked.block_bytes / (1 << 30)
        self.config = Config.from_defaults(
            local_cpu=False,
            max_local_cpu_size=gib + 1 / 64,
            local_disk=str(asked.folder),
            max_local_disk_size=gib,
            extra_config={"use_odirect": HOW == "direct"},
        )
        self.shape = torch.Size([2, 1, 16, asked.block_bytes // (2 * 16 * 2)])
        about = Metadata("a-model", 1, 1, 0, 0, torch.bfloat16, (1, 2, 16, 1, self.shape[3]))
        self.cpu = backends.LocalCPUBackend(self.config, about, "cpu")
        self.sources = [self.room() for _ in range(asked.blocks)]
        for number, one in enumerate(self.sources):
            bytes_of(one)[:] = asked.block(number)
        self.back: list[Any] = []
        # Memory is touched before it counts.
        self.blank()

    def room(self) -> Any:
        one = self.cpu.allocate(self.shape, torch.bfloat16, memory.MemoryFormat.KV_2LTD)
        if one is None or one.get_size() != self.asked.block_bytes:
            raise RuntimeError("no room, or of another size")
        return one

    @override
    def blank(self) -> None:
        for one in self.back:
            one.ref_count_down()
        self.back = [self.room() for _ in range(self.asked.blocks)]
        for one in self.back:
            bytes_of(one)[:] = 0

    @override
    def wrong(self) -> int:
        order = self.asked.read
        pairs = ((self.sources[number], one) for number, one in zip(order, self.back, strict=True))
        return sum(
            one is None or bytes_of(a).tobytes() != bytes_of(one).tobytes() for a, one in pairs
        )


class Local(Backed):
    """A file per block, written and read by four Python threads."""

    def __init__(self, asked: Asked) -> None:
        super().__init__(asked)
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        self.disk = disk.LocalDiskBackend(self.config, loop, self.cpu, "cpu")
        self.keys = [
            Key("a-model", 1, 0, number + (1 << 60), torch.bfloat16)
            for number in range(asked.blocks)
        ]

    @override
    def empty(self) -> None:
        # It writes no block that it has.
        for key in self.keys:
            if self.disk.contains(key):
                self.disk.current_cache_size -= self.asked.block_bytes
                self.disk.remove(key)
        sync([self.asked.folder])

    @override
    def write(self) -> None:
        landed = threading.Semaphore(0)
        for numbers in self.asked.jobs(self.asked.written):
            self.disk.batched_submit_put_task(
                [self.keys[number] for number in numbers],
                [self.sources[number] for number in numbers],
                on_complete_callback=lambda _: landed.release(),
            )
        for _ in self.keys:
            if not landed.acquire(timeout=120):
                raise RuntimeError("a block was not written")

    @override
    def blank(self) -> None:
        super().blank()
        # Reads take their memory themselves.
        for one in self.back:
            one.ref_count_down()
        self.back = []

    @override
    def read(self) -> None:
        # The call waits, so all are asked for at once.
        self.back = self.disk.batched_get_blocking([self.keys[n] for n in self.asked.read])


class Native(Backed):
    """A file per block, written and read by four threads of C++."""

    def __init__(self, asked: Asked) -> None:
        super().__init__(asked)
        name = "lmcache.v1.distributed.l2_adapters.fs_native_l2_adapter"
        adapter = import_module(name)
        given = {"base_path": str(asked.folder), "use_odirect": True}
        self.disk = adapter._create_fs_native_l2_adapter(
            adapter.FSNativeL2AdapterConfig.from_dict(given)
        )
        ObjectKey = import_module("lmcache.v1.distributed.api").ObjectKey  # noqa: N806
        hashes = (hashlib.sha256(str(number).encode()) for number in range(asked.blocks))
        self.keys = [ObjectKey(one.digest(), "a-model", 0) for one in hashes]

    @override
    def empty(self) -> None:
        unlink(self.files())

    @override
    def write(self) -> None:
        tasks = {
            self.disk.submit_store_task(
                [self.keys[number] for number in numbers],
                [self.sources[number] for number in numbers],
            )
            for numbers in self.asked.jobs(self.asked.written)
        }
        while tasks:
            self.wait(self.disk.get_store_event_fd())
            for task, said in self.disk.pop_completed_store_tasks().items():
                tasks.remove(task)
                if not said.is_successful():
                    raise RuntimeError(f"a block was not written: {said}")

    @override
    def read(self) -> None:
        tasks, first = [], 0
        for numbers in self.asked.jobs(self.asked.read):
            homes = self.back[first : first + len(numbers)]
            first += len(numbers)
            tasks.append(self.disk.submit_load_task([self.keys[n] for n in numbers], homes))
        while tasks:
            self.wait(self.disk.get_load_event_fd())
            tasks = [task for task in tasks if self.disk.query_load_result(task) is None]

    def wait(self, event: int) -> None:
        """Waits for an event, or for a moment: events of the past may have been taken together."""
        if select.select([event], [], [], 0.01)[0]:
            os.eventfd_read(event)


def main() -> None:
    asked = Asked()
    store = Native(asked) if HOW == "native" else Local(asked)
    serve({"": store}, {"lmcache": version("lmcache"), "torch": str(torch.__version__)})


if __name__ == "__main__":
    main()
