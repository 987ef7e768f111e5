"""vLLM's side: `KVCacheManager`, `BlockPool`, `Scheduler`, and the managers of its CPU offload.

    python side_vllm.py WORK sha256|xxhash lru|arc

Only names are imported by hand: this project's own environment has no vLLM.
"""

from __future__ import annotations

import sys
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from peers import frame
from peers import work as sizes
from peers.driver import Makers, Operation, override, serve
from peers.vllm_requests import config, hasher, request, torch
from peers.vllm_steps import Offload, Schedule
from peers.work import BLOCK

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence


class Pool(frame.Pool):
    """A `KVCacheManager`."""

    #: Whether it makes events.
    tells = False

    @override
    def open(self, blocks: int) -> None:
        self.manager: Any = import_module("vllm.v1.core.kv_cache_manager").KVCacheManager(
            config(blocks + 1),
            max_model_len=131_072,
            scheduler_block_size=BLOCK,
            hash_block_size=BLOCK,
            enable_kv_cache_events=self.tells,
        )

    @override
    def ready(self, tokens: array[int]) -> tuple[Any, ...]:
        return (request(tokens),)

    @override
    def lookup(self, tokens: array[int]) -> Operation:
        return partial(self.manager.get_computed_blocks, request(tokens))

    @override
    def admit(self, one: Any) -> None:
        """Makes its scheduler's calls for a new request."""
        manager = self.manager
        blocks, found, _ = manager.get_computed_blocks(one)
        if manager.allocate_slots(one, one.num_tokens - found, found, blocks) is None:
            raise RuntimeError("no room")
        one.num_computed_tokens = one.num_tokens
        self.held.append(one)

    def whole(self, tokens: list[int]) -> None:
        self.admit(request(tokens))

    @override
    def whole_admission(self, tokens: array[int]) -> Operation:
        return partial(self.whole, tokens.tolist())

    @override
    def finish(self, one: Any) -> None:
        self.manager.free(one)

    @override
    def ending(self, one: Any) -> Operation:
        return partial(self.manager.free, one)


class Told(Pool):
    """A `KVCacheManager` that makes events, and the encoding of its publisher."""

    tells = True

    @override
    def open(self, blocks: int) -> None:
        super().open(blocks)
        self.batch: Any = import_module("vllm.distributed.kv_events").KVEventBatch
        self.encoder: Any = import_module("msgspec").msgpack.Encoder()

    @override
    def take(self) -> object:
        return self.manager.take_events()

    @override
    def encode(self, taken: object) -> object:
        return self.encoder.encode(self.batch(ts=1.0, events=taken))


class Decode(frame.Decode):
    """Append and `allocate_slots`, as its scheduler calls them for each running request."""

    def __init__(self, pool: Pool, rows: int) -> None:
        self.manager = pool.manager
        self.admit = pool.admit
        super().__init__(pool, rows)

    @override
    def begin(self, prompts: list[array[int]]) -> None:
        for prompt in prompts:
            self.admit(request(prompt))
        self.held = self.pool.held

    @override
    def step(self) -> None:
        allocate = self.manager.allocate_slots
        for one in self.held:
            one.append_output_token_ids(7)
            allocate(one, 1)
            one.num_computed_tokens += 1


class Evict(Pool):
    """`BlockPool.get_new_blocks` alone, without a request around it."""

    def get(self) -> None:
        self.held.append(self.manager.block_pool.get_new_blocks(sizes.FEW))

    @override
    def prepare(self) -> Sequence[Operation]:
        return [self.get] * 100

    @override
    def restore(self) -> None:
        held, self.held = self.held, []
        for blocks in held:
            self.manager.block_pool.free_blocks(blocks)
        self.refill(len(held) * sizes.FEW)


ROWS: Makers = {
    "keys": lambda work, _: frame.Keys(work, lambda run: partial(hasher, request(run, None))),
    **frame.on_pool(Pool, lookups=4, turnovers=500),
    **frame.events(Pool, Told),
    "decode": lambda work, asked: Decode(Pool(work, 100_000), asked["rows"]),
    "schedule": lambda work, _: Schedule(work),
    "evict": lambda work, _: Evict(work, sizes.LEAVES, 1),
    "offload": lambda work, _: Offload(work),
}


if __name__ == "__main__":
    serve(ROWS, {"vllm": version("vllm"), "torch": torch.__version__})
