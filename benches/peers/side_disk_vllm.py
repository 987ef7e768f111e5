"""vLLM's side of `disk.py`: the file-system tier of its offloading, driven as its manager does.

    python side_disk_vllm.py WORK FOLDER BLOCKS BLOCK_BYTES JOB

That is `FileSystemTierManager`, with its default of 16 and 16 threads, over the host memory that
the tier above it would have. Only names are imported by hand: this project's own environment has
no vLLM.
"""

from __future__ import annotations

import hashlib
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from peers.disk_side import Asked, Memory, Store, override, serve, unlink

if TYPE_CHECKING:
    import numpy as np

base: Any = import_module("vllm.v1.kv_offload.base")
config: Any = import_module("vllm.v1.kv_offload.config")
tiering: Any = import_module("vllm.v1.kv_offload.tiering.base")
factory: Any = import_module("vllm.v1.kv_offload.tiering.factory").SecondaryTierFactory


def spec(block_bytes: int) -> Any:
    """Returns what the tier asks of an `OffloadingSpec`, whose others are workers on a device."""
    parallel = config.OffloadingParallelConfig(
        0, 1, 1, 1, 1, 1, 0, 1, None, is_parallelism_agnostic=True
    )
    given = config.OffloadingConfig(
        groups=(config.OffloadingGroupConfig(16, ("layer",), 0),),
        worker_kv_bytes_per_block=block_bytes,
        enable_kv_cache_events=False,
        extra_config={},
        engine_id="a measurement",
        model=config.OffloadingModelConfig("a-model", "bfloat16"),
        cache=config.OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=1),
        parallel=parallel,
    )
    events = base.OffloadingKVEventsConfig(
        enable_kv_cache_events=False, self_describing_kv_events=False
    )
    return SimpleNamespace(config=given, blocks_per_chunk=1, kv_events_config=events)


class Files(Store):
    """A file per block."""

    def __init__(self, asked: Asked) -> None:
        super().__init__(asked)
        self.memory = Memory(asked)
        self.tier = factory.create_secondary_tier(
            {"type": "fs", "root_dir": str(asked.folder)},
            self.memory.all.data,
            spec(asked.block_bytes),
        )
        hashes = (hashlib.sha256(str(number).encode()) for number in range(asked.blocks))
        self.keys = [base.make_offload_key(one.digest(), 0) for one in hashes]
        self.context = base.ReqContext("a request")
        self.count = 0

    @override
    def files(self) -> list[Path]:
        names = (Path(self.tier.file_mapper.get_file_name(key)) for key in self.keys)
        return [name for name in names if name.exists()]

    @override
    def empty(self) -> None:
        # It writes no block whose file is there.
        unlink(self.files())

    def job(self, numbers: np.ndarray, first: int) -> Any:
        self.count += 1
        keys = [self.keys[number] for number in numbers]
        return tiering.TransferJob(
            self.count, keys, numbers.astype("int32") + first, first > 0, self.context
        )

    @override
    def write(self) -> None:
        for numbers in self.asked.jobs(self.asked.written):
            self.tier.submit_store(self.job(numbers, 0))
        self.land()

    @override
    def read(self) -> None:
        for numbers in self.asked.jobs(self.asked.read):
            self.tier.submit_load(self.job(numbers, self.asked.blocks))
        self.land()

    def land(self) -> None:
        self.tier.drain_jobs()
        if not all(job.success for job in self.tier.get_finished_jobs()):
            raise RuntimeError("a job has failed")


def main() -> None:
    store = Files(Asked())
    io: Any = import_module("vllm.v1.kv_offload.tiering.fs.io")
    how = "C" if io._HAS_FSIO_C else "Python"
    direct = "O_DIRECT" if store.tier._use_o_direct else "page cache"
    serve({"": store}, {"vllm": f"{version('vllm')} ({how}, {direct})"})


if __name__ == "__main__":
    main()
