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

from peers import frame
from peers import work as sizes
from peers.driver import Makers, Operation, override, serve
from peers.work import BLOCK

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
    """Returns tokens in the form of its requests."""
    return array("q", tokens)


def key(tokens: array[int]) -> Any:
    """Returns the key of a lookup."""
    return legacy.RadixKey(ids(tokens))


def row_of(tokens: array[int]) -> Any:
    """Returns the request's row of slots, which its scheduler makes before."""
    return torch.zeros(len(tokens), dtype=torch.int64)


class Held:
    """What a running request holds."""

    def __init__(self, node: Any, locked: Any, spare: Any) -> None:
        self.node, self.locked, self.spare = node, locked, spare


class Pool(frame.Pool):
    """A tree that holds every page of its allocator."""

    @override
    def open(self, blocks: int) -> None:
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

    def slots(self, tokens: int) -> Any:
        """Allocates slots, and evicts for them as `alloc_token_slots` does."""
        allocator = self.allocator
        tokens = -(-tokens // BLOCK) * BLOCK
        free = allocator.available_size()
        if free < tokens:
            self.tree.evict_for_alloc(Evict_(num_tokens=tokens - free))
        found = allocator.alloc(tokens)
        if found is None:
            raise RuntimeError("no room")
        return found

    @override
    def admit(self, ready: Any, row: Any) -> None:
        """Matches and locks, evicts and allocates, then does what `checkpoint` does."""
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

    @override
    def finish(self, one: Held) -> None:
        """Releases the lock, and the page that was not full."""
        self.tree.dec_lock_ref(one.node, one.locked.to_dec_params())
        if len(one.spare):
            self.allocator.free(one.spare)

    @override
    def ready(self, tokens: array[int]) -> tuple[Any, ...]:
        return key(tokens), row_of(tokens)

    @override
    def lookup(self, tokens: array[int]) -> Operation:
        return partial(self.tree.match_prefix, Match_(key=key(tokens)))

    def whole(self, tokens: array[int], row: Any) -> None:
        self.admit(legacy.RadixKey(tokens), row)

    @override
    def whole_admission(self, tokens: array[int]) -> Operation:
        return partial(self.whole, ids(tokens), row_of(tokens))


class Evict(Pool):
    """`evict` alone; nothing is allocated."""

    @override
    def prepare(self) -> Sequence[Operation]:
        few = Evict_(num_tokens=sizes.FEW * BLOCK)
        self.count = 20
        return [partial(self.tree.evict, few)] * self.count

    @override
    def restore(self) -> None:
        self.refill(self.count * sizes.FEW)


ROWS: Makers = {
    **frame.on_pool(Pool, lookups=4, turnovers=500),
    "evict": lambda work, _: Evict(work, sizes.LEAVES, 1),
}


if __name__ == "__main__":
    serve(ROWS, {"sglang": version("sglang"), "torch": torch.__version__})
