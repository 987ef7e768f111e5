"""A small Llama-shaped decoder: a token has the same bits, whatever is computed beside it.

Nothing here depends on the number of rows, or on the contents of other rows:

- No sum of a product is rounded (`exact`), so a library may add in any order.
- Other sums are trees of additions of two, and everything else is elementwise.
- Sums that are divided over ranks are divided on one rank, too: `ModelConfig.shards` partial sums
  are added, first to last.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from blockyard._core import Misuse
from blockyard.crane.tiers import Mapped
from blockyard.reference.exact_matmul import check, product, weight
from blockyard.reference.weights import PAGE, Floats, ModelConfig, rotations, weights
from blockyard.shared.layout import Order
from blockyard.shared.validate import integer

__all__ = ["Gather", "Model", "ModelInput"]

_WIDE: Final = 128
"""The most columns of a product with the vocabulary, for the reason that `exact` limits rows."""
_MOST: Final = 1 << 20
"""The most values of a product in attention, unless one row has more."""

Ints = NDArray[np.integer[Any]]
Gather = Callable[[Floats], Floats]
"""Takes the partial sums of this rank's shards, and returns all: (shards, rows, hidden)."""


class ModelInput(NamedTuple):
    """Rows of tokens to compute: sequence after sequence, each with consecutive positions."""

    tokens: Ints
    """Shape (rows,)."""
    positions: Ints
    """Shape (rows,)."""
    slots: Ints
    """The places of the rows' KV, from `KVCache.slot_mapping`, shape (rows,)."""
    tables: NDArray[np.int32]
    """From `KVCache.block_tables`, shape (sequences, columns)."""
    counts: Ints
    """Rows of each sequence, shape (sequences,)."""


class Model:
    """One rank's shards of the decoder, with weights drawn by seed.

    Args:
        config: Its figures.
        seed: Seed of the weights, the same on all ranks.
        rank: The rank whose shards these are, from 0.
        ranks: How many ranks share the shards.
        xp: The array module: NumPy, or CuPy.

    Raises:
        Misuse: The shards do not divide over the ranks.
        Unavailable: With this module's arithmetic a token's bits would depend on other rows.

    Example:
        >>> import numpy as np
        >>> from blockyard.reference.weights import ModelConfig
        >>> from blockyard.crane.tiers.memory import MemoryTier
        >>> model = Model(ModelConfig())
        >>> kv = model.view(MemoryTier(model.config.layout(), 4, name="device"))
        >>> rows = np.arange(3)
        >>> batch = ModelInput(rows + 7, rows, 16 + rows, np.array([[1]], np.int32), np.array([3]))
        >>> model.forward(batch, kv, np.array([2])).shape
        (1, 512)
    """

    def __init__(
        self,
        config: ModelConfig,
        seed: int = 0,
        *,
        rank: int = 0,
        ranks: int = 1,
        xp: Any = np,  # noqa: ANN401 - a module
    ) -> None:
        ranks = integer("ranks", ranks)
        rank = integer("rank", rank, least=0)
        seed = integer("seed", seed, least=0)
        if config.shards % ranks or rank >= ranks:
            raise Misuse(
                f"rank {rank} of {ranks}: ranks must divide the model's {config.shards} shards, "
                "and rank must be below ranks"
            )
        self.config = config
        self.seed = seed
        self.rank = rank
        self.ranks = ranks
        self.xp = xp
        """The array module that it computes with."""
        mine = config.shards // ranks
        drawn = weights(config, seed)
        self._embedding = xp.asarray(drawn["embedding"])
        self._norm = xp.asarray(drawn["norm"])
        self._layers = [
            _layer(config, drawn, f"layers.{layer}.", range(rank * mine, (rank + 1) * mine), xp)
            for layer in range(config.layers)
        ]
        self._output = [
            xp.asarray(weight(drawn["output"][:, first : first + _WIDE]))
            for first in range(0, config.vocabulary, _WIDE)
        ]
        used = [*self._output, *(one for layer in self._layers for one in layer.products)]
        check(xp, tuple(sorted({one.shape for one in used})))
        # Queries include the 1 / sqrt(head_dim) of the scores (Vaswani et al. 2017, 3.2.1).
        self._scale = np.float32(config.head_dim**-0.5)
        self._rotations = np.zeros((2, 0, config.head_dim // 2), np.float32)

    def view(self, tier: Mapped) -> Floats:
        """Returns a device's memory as this rank's KV.

        Returns:
            Shape (blocks, 2 * layers, block_size, heads, head_dim), with the rank's KV heads; the
            keys of layer i are at 2 * i, its values at 2 * i + 1.

        Raises:
            Misuse: Its layout is not one of `ModelConfig.layout` for as many ranks.
        """
        config, layout = self.config, tier.layout
        size = layout.block_size
        orders: tuple[Order, ...] = get_args(Order)
        fits = [config.layout(block_size=size, ranks=self.ranks, order=one) for one in orders]
        if (layout.planes, layout.ranks, layout.dtype) not in [
            (one.planes, one.ranks, one.dtype) for one in fits
        ]:
            raise Misuse(
                f"layout {layout.name!r} of {layout.block_bytes} bytes a block in {layout.dtype} "
                f"on {layout.ranks} ranks: the model needs {fits[0].block_bytes} in float32 on "
                f"{self.ranks}; make it with ModelConfig.layout"
            )
        (plane,) = tier.planes
        whole = plane[:, 0] if plane.shape[1] == 1 else plane
        # The reshape only splits axes, so it is a view, whatever the order of pieces.
        floats: Floats = whole.view(np.float32).reshape(
            len(plane), 2 * config.layers, size, config.kv_heads // self.ranks, config.head_dim
        )
        return floats

    def forward(
        self, batch: ModelInput, kv: Floats, rows: Ints | None = None, gather: Gather | None = None
    ) -> Floats:
        """Computes tokens: writes their KV, and returns logits.

        Args:
            batch: The tokens.
            kv: The memory from `view`.
            rows: The rows whose logits are wanted; None for all.
            gather: Collects the ranks' partial sums; None where one rank has all shards.

        Returns:
            Logits, shape (rows wanted, vocabulary).

        Raises:
            Misuse: Other ranks have a part of the model's sums, and there is no `gather`.
        """
        if gather is None and self.ranks > 1:
            raise Misuse(
                f"rank {self.rank} of {self.ranks} has partial sums: give a gather function"
            )
        xp, count = self.xp, len(batch.tokens)
        groups = list(self._groups(batch, kv.shape[2]))
        cosines, sines = self._rotated(batch.positions)
        places = xp.asarray(batch.slots)
        blocks, offsets = places // kv.shape[2], places % kv.shape[2]
        stream = self._embedding[xp.asarray(batch.tokens)]
        for number, layer in enumerate(self._layers):
            keys, values = kv[:, 2 * number], kv[:, 2 * number + 1]
            fused = product(xp, self._normed(stream, layer.attention_norm)[None], layer.qkv)
            q, k, v = self._heads(fused)
            keys[blocks, offsets] = _turned(xp, k, cosines, sines)
            values[blocks, offsets] = v
            q = _turned(xp, q, cosines, sines) * self._scale
            mixed = xp.empty((len(fused), count, len(layer.attended[0])), np.float32)
            for group in groups:
                attended = self._attend(q[group.rows], keys, values, group)
                shape = (len(attended), len(fused), -1)
                mixed[:, group.rows] = attended.reshape(shape).transpose(1, 0, 2)
            stream = stream + self._summed(product(xp, mixed, layer.attended), gather)
            fused = product(xp, self._normed(stream, layer.mlp_norm)[None], layer.gate_up)
            gate, up = xp.split(fused, 2, axis=2)
            # SwiGLU (Shazeer 2020): silu(gate) * up.
            inner = gate / (1 + xp.exp(-gate)) * up
            stream = stream + self._summed(product(xp, inner, layer.down), gather)
        wanted = np.arange(count) if rows is None else rows
        last = self._normed(stream[xp.asarray(wanted)], self._norm)
        logits: Floats = xp.concatenate(
            [product(xp, last[None], [part])[0] for part in self._output], axis=1
        )
        return logits

    def _normed(self, stream: Floats, weight: Floats) -> Floats:
        """Applies RMSNorm (Zhang and Sennrich 2019)."""
        xp, config = self.xp, self.config
        mean = _sum(xp, stream * stream, 1)[:, None] / np.float32(config.hidden)
        normed: Floats = stream / xp.sqrt(mean + np.float32(config.eps)) * weight
        return normed

    def _heads(self, fused: Floats) -> tuple[Floats, Floats, Floats]:
        """Returns queries (rows, KV heads, query heads of each, head_dim), keys and values."""
        config = self.config
        shards, rows, _ = fused.shape
        kv_heads, size = config.kv_heads // config.shards, config.head_dim
        heads = config.heads // config.shards
        each = fused.reshape(shards, rows, -1, size).transpose(1, 0, 2, 3)
        q = each[:, :, :heads].reshape(rows, shards * kv_heads, heads // kv_heads, size)
        k = each[:, :, heads : heads + kv_heads].reshape(rows, -1, size)
        v = each[:, :, heads + kv_heads :].reshape(rows, -1, size)
        return q, k, v

    def _rotated(self, positions: Ints) -> tuple[Any, Any]:
        """Returns cosines and sines of the rows' positions, each (rows, head_dim / 2)."""
        known = self._rotations.shape[1]
        if int(positions.max()) >= known:
            pages = range(known // PAGE, int(positions.max()) // PAGE + 1)
            new = [rotations(self.config, page) for page in pages]
            self._rotations = np.concatenate((self._rotations, *new), axis=1)
        cosines, sines = self.xp.asarray(self._rotations[:, positions])
        return cosines, sines

    def _groups(self, batch: ModelInput, size: int) -> Iterator["_Group"]:
        """Yields rows that attend together; the grouping affects speed alone."""
        ends = np.cumsum(batch.counts)
        alone = np.flatnonzero(batch.counts == 1)
        shares = [(ends[alone] - 1, alone)] if len(alone) else []
        shares += [
            (np.arange(ends[at] - batch.counts[at], ends[at]), np.array([at]))
            for at in np.flatnonzero(batch.counts > 1)
        ]
        width = self.config.heads // self.ranks * self.config.head_dim
        for rows, tables in shares:
            at = 0
            while at < len(rows):
                most = int(batch.positions[rows[at:]].max()) + 1
                taken = rows[at : at + max(1, _MOST // (most * width))]
                lengths = batch.positions[taken] + 1
                which = tables if len(tables) == 1 else tables[at : at + len(taken)]
                columns = -(-int(lengths.max()) // size)
                seen = np.arange(columns * size) < lengths[:, None]
                xp = self.xp
                yield _Group(
                    xp.asarray(taken),
                    xp.asarray(batch.tables[which, :columns]),
                    xp.asarray(seen[..., None, None]),
                    xp.asarray(seen[-1:] if len(which) == 1 else seen)[..., None, None],
                )
                at += len(taken)

    def _attend(self, q: Floats, keys: Floats, values: Floats, group: "_Group") -> Floats:
        """Computes grouped-query attention (Ainslie et al. 2023) over the blocks of a table.

        Shorter rows are padded at their end with weights of 0. These leave the sums as they are,
        since pairs of neighbours are added, and then pairs of pairs.
        """
        xp = self.xp
        shape = (len(group.tables), group.seen.shape[1], *keys.shape[2:])
        # Memory that was never written may hold anything, so it must not enter the sums.
        nothing = np.float32(0)
        k = xp.where(group.valid, keys[group.tables].reshape(shape), nothing)
        v = xp.where(group.valid, values[group.tables].reshape(shape), nothing)
        scores = _sum(xp, q[:, None] * k[:, :, :, None], 4)
        scores = xp.where(group.seen, scores, np.float32(-np.inf))
        shares = xp.exp(scores - scores.max(axis=1, keepdims=True))
        mixed = _sum(xp, shares[..., None] * v[:, :, :, None], 1)
        # Adding 0 makes every zero positive, with padding and without.
        attended: Floats = mixed / _sum(xp, shares, 1)[..., None] + nothing
        return attended

    def _summed(self, parts: Floats, gather: Gather | None) -> Floats:
        """Returns the sum over all shards, first to last."""
        if gather is not None:
            parts = gather(parts)
        total: Floats = parts[0].copy()
        for part in parts[1:]:
            total += part
        return total


class _Layer(NamedTuple):
    """The weights of one layer, (in, out) for each of the rank's shards."""

    attention_norm: Any
    qkv: list[Any]
    attended: list[Any]
    mlp_norm: Any
    gate_up: list[Any]
    down: list[Any]

    @property
    def products(self) -> list[Any]:
        """The weights that rows are multiplied by."""
        return [*self.qkv, *self.attended, *self.gate_up, *self.down]


class _Group(NamedTuple):
    """Rows that attend together: each to its own table, or all to one."""

    rows: Any
    tables: Any
    """Shape (rows or 1, columns)."""
    seen: Any
    """The positions that each row attends to, shape (rows, positions, 1, 1)."""
    valid: Any
    """The positions that each table has, shape (rows or 1, positions, 1, 1)."""


def _layer(
    config: ModelConfig,
    drawn: dict[str, Floats],
    prefix: str,
    shards: range,
    xp: Any,  # noqa: ANN401 - a module
) -> _Layer:
    def columns(*names: str) -> list[Any]:
        """Returns each shard's columns of these weights, side by side."""
        cut = [np.split(drawn[prefix + name], config.shards, axis=1) for name in names]
        sides = [np.concatenate([one[shard] for one in cut], axis=1) for shard in shards]
        return [xp.asarray(weight(side)) for side in sides]

    def rows(name: str) -> list[Any]:
        cut = np.split(drawn[prefix + name], config.shards)
        return [xp.asarray(weight(cut[shard])) for shard in shards]

    return _Layer(
        xp.asarray(drawn[prefix + "attention_norm"]),
        columns("query", "key", "value"),
        rows("attended"),
        xp.asarray(drawn[prefix + "mlp_norm"]),
        columns("gate", "up"),
        rows("down"),
    )


def _sum(xp: Any, values: Floats, axis: int) -> Floats:  # noqa: ANN401 - a module
    """Adds neighbours, then pairs of neighbours, so zeros at the end change nothing."""
    head: tuple[Any, ...] = (slice(None),) * axis
    while (count := values.shape[axis]) > 1:
        pairs = values[(*head, slice(0, count - 1, 2))] + values[(*head, slice(1, count, 2))]
        if count % 2:
            pairs = xp.concatenate((pairs, values[(*head, slice(count - 1, count))]), axis=axis)
        values = pairs
    total: Floats = values[(*head, 0)]
    return total


def _turned(xp: Any, values: Floats, cosines: Floats, sines: Floats) -> Floats:  # noqa: ANN401 - a module
    """Turns the halves of each head, as pairs, by the angles of their row."""
    middle = (1,) * (values.ndim - 2)
    cosines = cosines.reshape(len(values), *middle, -1)
    sines = sines.reshape(len(values), *middle, -1)
    one, two = xp.split(values, 2, axis=-1)
    turned: Floats = xp.concatenate(
        (one * cosines - two * sines, two * cosines + one * sines), axis=-1
    )
    return turned
