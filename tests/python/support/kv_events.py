"""The events of vLLM, as `vllm/distributed/kv_events.py` of 0.33 declares them."""

from typing import Any

import msgspec


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None


class KVCacheEvent(
    msgspec.Struct, omit_defaults=True, gc=False, tag=True, forbid_unknown_fields=True
):
    """vLLM's takes unknown fields, and forgets them: here there shall be none."""


class BlockStored(KVCacheEvent):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: list[list[int]] | None = None


class BlockRemoved(KVCacheEvent):
    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(KVCacheEvent):
    pass


class KVEventBatch(EventBatch):
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


def decode(payload: bytes) -> list[BlockStored | BlockRemoved | AllBlocksCleared]:
    """The events of a batch."""
    return msgspec.msgpack.decode(payload, type=KVEventBatch).events


class Router:
    """What a router knows: of each block where it is, and what stands before it."""

    def __init__(self) -> None:
        self.blocks: dict[tuple[int, str | None], tuple[int | None, tuple[int, ...]]] = {}

    def hear(self, payload: bytes) -> None:
        for event in decode(payload):
            if isinstance(event, AllBlocksCleared):
                self.blocks.clear()
            elif isinstance(event, BlockRemoved):
                for one in event.block_hashes:
                    known = self.blocks.pop((one, event.medium), None)
                    assert known is not None, "it goes and was not there"
            else:
                parent, size = event.parent_block_hash, event.block_size
                for at, one in enumerate(event.block_hashes):
                    tokens = tuple(event.token_ids[at * size : (at + 1) * size])
                    self.blocks[one, event.medium] = parent, tokens
                    parent = one

    def found(self, tokens: list[int], medium: str, size: int) -> int:
        """Leading blocks of a prompt that are on a medium."""
        parent: int | None = None
        for at in range(0, len(tokens) - size + 1, size):
            wanted = parent, tuple(tokens[at : at + size])
            names = [
                one
                for (one, where), block in self.blocks.items()
                if block == wanted and where == medium
            ]
            if not names:
                return at // size
            (parent,) = names
        return len(tokens) // size
