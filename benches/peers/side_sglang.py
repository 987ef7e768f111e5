"""SGLang's side: its radix trees, over its paged allocator.

    python side_sglang.py WORK rust|python|legacy

`rust` is what 0.5.23 takes by default, `python` the same tree in Python, `legacy` `RadixCache`.
Only names are imported by hand: this project's own environment has no SGLang.
"""

from __future__ import annotations

import sys
from array import array
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from peers import work as sizes
from peers.driver import Makers, Operation, Row, override, serve
from peers.work import BLOCK, Work

if TYPE_CHECKING:
    from collections.abc import Sequence

torch: Any = import_module("torch")
base: Any = import_module("sglang.srt.mem_cache.base_prefix_cache")
legacy: Any = import_module("sglang.srt.mem_cache.radix_cache")
unified: Any = import_module("sglang.srt.mem_cache.unified_radix_cache")
Params: Any = import_module("sglang.srt.mem_cache.cache_init_params").CacheInitParams
Allocator: Any = import_module("sglang.srt.mem_cache.allocator.paged").PagedTokenToKVPoolAllocator
Component: Any = import_module("sglang.srt.mem_cache.unified_cache.component_type").ComponentType
Match_, Insert, Evict_ = base.MatchPrefixParams, base.InsertParams, base.EvictParams

TREE = sys.argv[2]


def ids(tokens: array[int]) -> array[int]:
    """As its requests carry them."""
    return array("q", tokens)


def key(tokens: array[int]) -> Any:
    """What its trees are asked for."""
    return legacy.RadixKey(ids(tokens))


class Held:
    """What a request keeps until it ends."""

    def __init__(self, node: Any, locked: Any, spare: Any) -> None:
        self.node, self.locked, self.spare = node, locked, spare


class Pool(Row):
    """A tree that holds every page of its pool."""

    def __init__(self, work: Work, blocks: int, chain: int = sizes.CHAIN) -> None:
        self.work = work
        self.allocator: Any = Allocator(
            size=blocks * BLOCK,
            page_size=BLOCK,
            dtype=torch.int8,
            device="cpu",
            kvcache=None,
            need_sort=False,
        )
        params = Params(
            disable=False,
            req_to_token_pool=None,
            token_to_kv_pool_allocator=self.allocator,
            page_size=BLOCK,
            tree_components=(Component.FULL,),
            tree_core_backend=None if TREE == "legacy" else TREE,
        )
        made = legacy.RadixCache if TREE == "legacy" else unified.UnifiedRadixCache
        self.tree: Any = made(params)
        if getattr(self.tree, "_tree_core_backend", "legacy") != TREE:
            raise RuntimeError(f"not the {TREE} tree")
        self.held: list[Held] = []
        for _ in range(blocks // chain):
            self.visit(work.fresh(chain))

    def slots(self, tokens: int) -> Any:
        """Room for so many tokens, evicting what it takes, as `alloc_token_slots` does."""
        allocator = self.allocator
        tokens = -(-tokens // BLOCK) * BLOCK
        free = allocator.available_size()
        if free < tokens:
            self.tree.evict_for_alloc(Evict_(num_tokens=tokens - free))
        found = allocator.alloc(tokens)
        if found is None:
            raise RuntimeError("no room")
        return found

    def admit(self, ready: Any, row: Any) -> None:
        """Match and lock; evict and allocate; then what `checkpoint` does when it is computed."""
        tree = self.tree
        match = tree.match_prefix(Match_(key=ready))
        found, node = match.device_prefix_len, match.last_device_node
        before = tree.inc_lock_ref(node)
        slots = self.slots(len(ready) - found)
        full = len(row) - len(row) % BLOCK
        row[found:] = slots[: len(row) - found]
        said = tree.insert(
            Insert(key=ready.page_aligned(BLOCK), value=row[:full], prev_prefix_len=found)
        )
        after = tree.inc_lock_ref(said.last_device_node)
        tree.dec_lock_ref(node, before.to_dec_params())
        self.held.append(Held(said.last_device_node, after, slots[full - found :]))

    def finish(self, one: Held) -> None:
        """The lock goes, and the page that was not full."""
        self.tree.dec_lock_ref(one.node, one.locked.to_dec_params())
        if len(one.spare):
            self.allocator.free(one.spare)

    def visit(self, tokens: array[int]) -> None:
        """Leaves a chain behind."""
        self.admit(key(tokens), torch.zeros(len(tokens), dtype=torch.int64))
        self.finish(self.held.pop())

    @override
    def restore(self) -> None:
        for one in self.held:
            self.finish(one)
        self.held = []


class Match(Pool):
    again = True

    def __init__(self, work: Work, blocks: int) -> None:
        super().__init__(work, blocks)
        chains = [work.fresh(sizes.MATCH, 1) for _ in range(50)]
        for chain in chains:
            self.visit(chain)
        self.ready = [Match_(key=key(chain)) for chain in chains]

    @override
    def prepare(self) -> Sequence[Operation]:
        return [partial(self.tree.match_prefix, one) for one in self.ready] * 4


class Admit(Pool):
    def __init__(self, work: Work, blocks: int, what: str) -> None:
        super().__init__(work, blocks)
        self.what = what

    def whole(self, tokens: array[int], row: Any) -> None:
        self.admit(legacy.RadixKey(tokens), row)

    @override
    def prepare(self) -> Sequence[Operation]:
        made: list[Operation] = []
        for _ in range(sizes.REQUESTS):
            before, whole = self.work.turn()
            self.visit(before)
            row = torch.zeros(len(whole), dtype=torch.int64)
            if self.what == "tokens":
                made.append(partial(self.whole, ids(whole), row))
            else:
                made.append(partial(self.admit, key(whole), row))
        if self.what != "finish":
            return made
        for operation in made:
            operation()
        held, self.held = self.held, []
        return [partial(self.finish, one) for one in held]


class Turnover(Pool):
    def turn(self, ready: Any, row: Any) -> None:
        self.admit(ready, row)
        self.finish(self.held.pop())

    @override
    def prepare(self) -> Sequence[Operation]:
        made: list[Operation] = []
        for _ in range(500):
            run = self.work.fresh(sizes.SHORT, 1)
            row = torch.zeros(len(run), dtype=torch.int64)
            made.append(partial(self.turn, key(run), row))
        return made


class Evict(Pool):
    """`evict` alone: nothing is allocated."""

    @override
    def prepare(self) -> Sequence[Operation]:
        few = Evict_(num_tokens=sizes.FEW * BLOCK)
        self.count = 20
        return [partial(self.tree.evict, few)] * self.count

    @override
    def restore(self) -> None:
        for _ in range(self.count * sizes.FEW):
            self.visit(self.work.fresh(1))


ROWS: Makers = {
    "match": lambda work, asked: Match(work, asked["blocks"]),
    "admit": lambda work, asked: Admit(work, asked["blocks"], asked["what"]),
    "turnover": lambda work, asked: Turnover(work, asked["blocks"]),
    "evict": lambda work, _: Evict(work, sizes.LEAVES, 1),
    "memory": lambda work, asked: Pool(work, asked["blocks"]),
}


if __name__ == "__main__":
    serve(ROWS, {"sglang": version("sglang"), "torch": torch.__version__})
