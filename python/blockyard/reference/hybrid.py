"""A small hybrid model: full attention, a sliding window, chunks, and recurrent states.

Its next token depends on every bit that it may read and on nothing else. So a byte that is lost,
stale or of another length changes the tokens almost surely, and no prompt chunk or batch does.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from blockyard._core import Misuse
from blockyard.reference.exact_matmul import product, weight
from blockyard.reference.weights import Floats
from blockyard.shared.groups import ChunkedAttention, Full, Group, RecurrentState, SlidingWindow
from blockyard.shared.layout import KVLayout, Plane
from blockyard.shared.validate import integer

__all__ = ["LAYER_TYPES", "HybridModel", "HybridRow"]

LAYER_TYPES: Final = (
    "full_attention",
    "sliding_attention",
    "linear_attention",
    "chunked_attention",
    "full_attention",
)
"""The layers of the model, in the words of a `config.json`."""
_WIDTH: Final = 16
"""Values of the residual stream, and of a layer's one head."""
_FADE: Final = np.float32(0.1)
"""By how much a score falls with a token of distance (ALiBi, Press et al. 2022)."""
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
"""By which the hash of a state is multiplied before a token is added."""


class HybridRow(NamedTuple):
    """The tokens of one request that a call computes."""

    tokens: Sequence[int]
    """The request's tokens, up to the last one to be computed."""
    start: int
    """How many of them are computed."""
    tables: Sequence[Sequence[int]]
    """Of each group the blocks of the sequence, shape (groups, blocks). Those that are neither read
    nor written may be any, and so may all of a state's group."""
    states: tuple[int, int]
    """The block that has the state after `start` tokens, and the one that the new state goes to."""


class HybridModel:
    """A few layers over numbered blocks that all groups of layers share. It is for one thread.

    The layers of one type are one group. A state is a matrix of the delta rule, beside a hash of
    all tokens so far.

    Args:
        blocks: Blocks of the memory.
        block_size: Tokens per block.
        window: Tokens of the sliding window, that which is computed included.
        chunk: Tokens of a chunk.
        layer_types: The type of each layer, one of `LAYER_TYPES`.

    Raises:
        Misuse: A value is out of range, or there is no such type.
    """

    VOCABULARY: Final = 1024
    """Token ids, from 0."""

    def __init__(
        self,
        blocks: int,
        *,
        block_size: int = 16,
        window: int = 24,
        chunk: int = 40,
        layer_types: Sequence[str] = LAYER_TYPES,
    ) -> None:
        blocks = integer("blocks", blocks)
        types = list(dict.fromkeys(layer_types))
        state = Plane("matrix", 1, 4 * _WIDTH * _WIDTH), Plane("hash", 1, 8)

        def group(kind: str) -> Group:
            if kind == "linear_attention":
                return RecurrentState(KVLayout(state, block_size=block_size, dtype="float32"))
            layers = list(layer_types).count(kind)
            layout = KVLayout.llama(layers, 1, _WIDTH, dtype="float32", block_size=block_size)
            if kind == "sliding_attention":
                return SlidingWindow(layout, tokens=window)
            if kind == "chunked_attention":
                return ChunkedAttention(layout, tokens=chunk)
            if kind == "full_attention":
                return Full(layout)
            raise Misuse(f"layer_types: there is no {kind!r}; give some of {LAYER_TYPES[:-1]}")

        self.groups = tuple(map(group, types))
        """The groups of the layers, in the order of their first ones."""
        largest = max(one.layout.block_bytes for one in self.groups)
        self.pages = np.zeros((blocks, largest), np.uint8)
        """The memory, shape (blocks, bytes of the largest block of a group)."""
        self.tensors = [self._tensors(one.layout) for one in self.groups]
        """Of each group the bytes of each plane, shape (blocks, bytes), for `Worker.adopt`."""
        self._size = block_size
        self._layers = [
            (types.index(kind), list(layer_types[:number]).count(kind))
            for number, kind in enumerate(layer_types)
        ]
        draw, square = np.random.default_rng(0).normal, (_WIDTH, _WIDTH)
        self._embedding: Floats = draw(size=(self.VOCABULARY, _WIDTH)).astype(np.float32)
        drawn = draw(size=(len(layer_types), 4, *square)).astype(np.float32) / np.float32(4)
        self._weights = [[weight(one) for one in layer] for layer in drawn]

    def forward(self, row: HybridRow) -> int:
        """Computes tokens: writes their KV, and the state behind them; returns the next token.

        Args:
            row: The tokens: at least one is to be computed.
        """
        at = np.arange(row.start, len(row.tokens))
        stream, bits = self._embedding[np.array(row.tokens)[at]], np.zeros(1, np.uint64)
        for (group, layer), weights in zip(self._layers, self._weights, strict=True):
            normed = stream / abs(stream).max(axis=1, keepdims=True)  # no sum is rounded
            heads = product(np, normed[None], weights[:3])  # queries, keys and values
            if isinstance(self.groups[group], RecurrentState):
                mixed, bits = self._recur(row, self.tensors[group], heads)
            else:
                mixed = self._attend(row, group, layer, heads)
            stream = stream + product(np, np.array(mixed)[None], weights[3:])[0]
        bits = bits + stream[-1].view(np.uint32)
        return crc32(bits.tobytes()) % self.VOCABULARY

    def _tensors(self, layout: KVLayout) -> dict[str, NDArray[np.uint8]]:
        """Returns the planes of a layout, which lie one behind the other in each block."""
        ends = np.cumsum([plane.block_bytes for plane in layout.planes])
        pairs = zip(layout.planes, ends, strict=True)
        return {plane.name: self.pages[:, end - plane.block_bytes : end] for plane, end in pairs}

    def _attend(self, row: HybridRow, group: int, layer: int, heads: Floats) -> list[Floats]:
        """Writes keys and values, and attends to those that this kind of layer reads."""
        size, table, kind = self._size, np.array(row.tables[group]), self.groups[group]
        kv = self.tensors[group]["kv"].view(np.float32)
        kv = kv.reshape(len(kv), -1, 2, size, _WIDTH)[:, layer]
        at = np.arange(row.start, len(row.tokens))
        kv[table[at // size], :, at % size] = heads[1:].swapaxes(0, 1)
        mixed: list[Floats] = []
        for query, last in zip(heads[0], at.tolist(), strict=True):
            first = 0
            if isinstance(kind, SlidingWindow):
                first = max(0, last - kind.tokens + 1)
            elif isinstance(kind, ChunkedAttention):
                first = last // kind.tokens * kind.tokens
            read = np.arange(first, last + 1)
            keys, values = kv[table[read // size], :, read % size].swapaxes(0, 1)
            scores = (keys * query).sum(axis=1) - _FADE * (last - read).astype(np.float32)
            shares = np.exp(scores - scores.max())
            mixed.append((shares[:, None] * values).sum(axis=0) / shares.sum())
        return mixed

    def _recur(
        self, row: HybridRow, tensors: dict[str, Any], heads: Floats
    ) -> tuple[list[Floats], NDArray[np.uint64]]:
        """Applies the delta rule (Schlag et al. 2021) and the hash, one token at a time."""
        matrices = tensors["matrix"].view(np.float32).reshape(-1, _WIDTH, _WIDTH)
        hashes = tensors["hash"].view(np.uint64)
        old, new = row.states
        matrix, total = np.zeros_like(matrices[0]), np.zeros_like(hashes[0])
        if row.start:
            matrix, total = matrices[old].copy(), hashes[old].copy()
        mixed: list[Floats] = []
        for token, query, key, value in zip(row.tokens[row.start :], *heads, strict=True):
            unit = key / np.sqrt((key * key).sum())
            matrix += (value - (matrix * unit).sum(axis=1))[:, None] * unit
            total = total * _FACTOR + np.uint64(token)
            mixed.append((matrix * query).sum(axis=1))
        matrices[new], hashes[new] = matrix, total
        return mixed, total
