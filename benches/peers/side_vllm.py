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

from peers import work as sizes
from peers.driver import Makers, Operation, Row, override, serve
from peers.vllm_requests import config, hasher, request, torch
from peers.vllm_steps import Offload, Schedule
from peers.work import BLOCK, Work

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence


class Pool(Row):
    """A manager whose pool is full of idle chains."""

    def __init__(self, work: Work, blocks: int, chain: int = sizes.CHAIN) -> None:
        self.work = work
        self.manager: Any = import_module("vllm.v1.core.kv_cache_manager").KVCacheManager(
            config(blocks + 1),
            max_model_len=131_072,
            scheduler_block_size=BLOCK,
            hash_block_size=BLOCK,
        )
        self.held: list[Any] = []
        for _ in range(blocks // chain):
            self.visit(work.fresh(chain))

    def visit(self, tokens: array[int]) -> None:
        """Leaves a chain behind."""
        one = request(tokens)
        self.admit(one)
        self.manager.free(one)
        self.held.clear()

    def admit(self, one: Any) -> None:
        """What its scheduler calls for a request that comes in."""
        manager = self.manager
        blocks, found, _ = manager.get_computed_blocks(one)
        if manager.allocate_slots(one, one.num_tokens - found, found, blocks) is None:
            raise RuntimeError("no room")
        one.num_computed_tokens = one.num_tokens
        self.held.append(one)

    @override
    def restore(self) -> None:
        for one in self.held:
            self.manager.free(one)
        self.held = []


class Keys(Row):
    unit = sizes.OFFLOAD

    def __init__(self, work: Work) -> None:
        self.work = work

    @override
    def prepare(self) -> Sequence[Operation]:
        made = [request(self.work.fresh(sizes.OFFLOAD), None) for _ in range(20)]
        return [partial(hasher, one) for one in made]


class Match(Pool):
    again = True

    def __init__(self, work: Work, blocks: int) -> None:
        super().__init__(work, blocks)
        chains = [work.fresh(sizes.MATCH, 1) for _ in range(50)]
        for chain in chains:
            self.visit(chain)
        self.ready = [request(chain) for chain in chains]

    @override
    def prepare(self) -> Sequence[Operation]:
        return [partial(self.manager.get_computed_blocks, one) for one in self.ready] * 4


class Admit(Pool):
    def __init__(self, work: Work, blocks: int, what: str) -> None:
        super().__init__(work, blocks)
        self.what = what

    def whole(self, tokens: list[int]) -> None:
        self.admit(request(tokens))

    @override
    def prepare(self) -> Sequence[Operation]:
        made: list[Operation] = []
        for _ in range(sizes.REQUESTS):
            before, whole = self.work.turn()
            self.visit(before)
            if self.what == "tokens":
                made.append(partial(self.whole, whole.tolist()))
            else:
                made.append(partial(self.admit, request(whole)))
        if self.what != "finish":
            return made
        for operation in made:
            operation()
        held, self.held = self.held, []
        return [partial(self.manager.free, one) for one in held]


class Turnover(Pool):
    def turn(self, one: Any) -> None:
        self.admit(one)
        self.manager.free(one)
        self.held.clear()

    @override
    def prepare(self) -> Sequence[Operation]:
        return [partial(self.turn, request(self.work.fresh(sizes.SHORT, 1))) for _ in range(500)]


class Decode(Pool):
    """Append and `allocate_slots`, as its scheduler does for each running request."""

    def __init__(self, work: Work, blocks: int, rows: int) -> None:
        super().__init__(work, blocks)
        self.rows = rows
        self.begin()

    def begin(self) -> None:
        super().restore()
        for row in range(self.rows):
            self.admit(request(self.work.fresh(sizes.PROMPT // BLOCK, row % BLOCK)))
        self.steps = 0

    def step(self) -> None:
        allocate = self.manager.allocate_slots
        for one in self.held:
            one.append_output_token_ids(7)
            allocate(one, 1)
            one.num_computed_tokens += 1

    @override
    def prepare(self) -> Sequence[Operation]:
        if self.steps >= sizes.MOST:
            self.begin()
        self.steps += sizes.STEPS
        return [self.step] * sizes.STEPS

    @override
    def restore(self) -> None:
        pass


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
        for _ in range(len(held) * sizes.FEW):
            self.visit(self.work.fresh(1))


ROWS: Makers = {
    "keys": lambda work, _: Keys(work),
    "match": lambda work, asked: Match(work, asked["blocks"]),
    "admit": lambda work, asked: Admit(work, asked["blocks"], asked["what"]),
    "turnover": lambda work, asked: Turnover(work, asked["blocks"]),
    "decode": lambda work, asked: Decode(work, 100_000, asked["rows"]),
    "schedule": lambda work, _: Schedule(work),
    "evict": lambda work, _: Evict(work, sizes.LEAVES, 1),
    "offload": lambda work, _: Offload(work),
    "memory": lambda work, asked: Pool(work, asked["blocks"]),
}


if __name__ == "__main__":
    serve(ROWS, {"vllm": version("vllm"), "torch": torch.__version__})
