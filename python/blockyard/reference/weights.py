"""The figures of a model, and its weights, drawn by seed and the same on every machine."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from blockyard._core import Misuse
from blockyard.shared.layout import KVLayout, Order
from blockyard.shared.validate import integer

__all__ = ["PAGE", "Floats", "ModelConfig", "rotations", "weights"]

PAGE: Final = 1024
"""Positions whose rotations are computed together, always the same ones."""

Floats = NDArray[np.float32]
"""Values of the model, of any shape."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The figures of a model.

    Args:
        layers: Layers.
        vocabulary: Token ids, from 0.
        hidden: Width of the residual stream.
        heads: Query heads.
        kv_heads: KV heads; `heads` is a multiple.
        head_dim: Values per head, an even number.
        intermediate: Width of the MLP.
        theta: Base of the rotary embedding.
        eps: Added to the mean square in RMSNorm.
        shards: Parts that heads and MLP are cut into, whatever the number of ranks; a constant of
            the model, since its partial sums depend on it.

    Raises:
        Misuse: A value is out of range, or does not divide.
    """

    layers: int = 4
    vocabulary: int = 512
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    intermediate: int = 128
    theta: float = 10_000.0
    eps: float = 1e-5
    shards: int = 2

    def __post_init__(self) -> None:
        """Checks every field."""
        whole = ("layers", "vocabulary", "hidden", "heads", "kv_heads", "head_dim", "intermediate")
        for name in (*whole, "shards"):
            object.__setattr__(self, name, integer(name, getattr(self, name)))
        for name, part in (
            ("heads", self.kv_heads),
            ("kv_heads", self.shards),
            ("intermediate", self.shards),
            ("head_dim", 2),
        ):
            if getattr(self, name) % part:
                raise Misuse(f"{name} = {getattr(self, name)}: must be a multiple of {part}")
        for name in ("theta", "eps"):
            if not getattr(self, name) > 0:
                raise Misuse(f"{name} = {getattr(self, name)!r}: must be a number > 0")

    def layout(
        self, *, block_size: int = 16, ranks: int = 1, order: Order = "page-first"
    ) -> KVLayout:
        """Returns the layout of its KV: float32, keys before values in each layer.

        Args:
            block_size: Tokens per block.
            ranks: Tensor-parallel ranks; `shards` is a multiple.
            order: As in `KVLayout.llama`.

        Raises:
            Misuse: A value is out of range.
        """
        ranks = integer("ranks", ranks)
        if self.shards % ranks:
            raise Misuse(f"ranks = {ranks}: must divide the model's {self.shards} shards")
        return KVLayout.llama(
            self.layers,
            self.kv_heads,
            self.head_dim,
            dtype="float32",
            block_size=block_size,
            ranks=ranks,
            order=order,
            name="reference",
        )


def weights(config: ModelConfig, seed: int) -> dict[str, Floats]:
    """Returns all weights of a model, by name; "layers.0.query" and the like are (in, out).

    They are raw words of PCG64, which NumPy never changes, made into uniform numbers.
    Query head i reads KV head i // (heads / kv_heads).

    Args:
        config: The model's figures.
        seed: 0 or more.
    """
    inner, kv_inner = config.heads * config.head_dim, config.kv_heads * config.head_dim
    hidden, wide = config.hidden, config.intermediate
    # With these deviations every part counts, and a distant token can change the next one.
    shapes: dict[str, tuple[tuple[int, ...], float]] = {
        "embedding": ((config.vocabulary, hidden), 0.5),
        "output": ((hidden, config.vocabulary), hidden**-0.5),
    }
    for layer in range(config.layers):
        shapes |= {
            f"layers.{layer}.query": ((hidden, inner), 2 * hidden**-0.5),
            f"layers.{layer}.key": ((hidden, kv_inner), 2 * hidden**-0.5),
            f"layers.{layer}.value": ((hidden, kv_inner), 2 * hidden**-0.5),
            f"layers.{layer}.attended": ((inner, hidden), 2 * inner**-0.5),
            f"layers.{layer}.gate": ((hidden, wide), hidden**-0.5),
            f"layers.{layer}.up": ((hidden, wide), hidden**-0.5),
            f"layers.{layer}.down": ((wide, hidden), wide**-0.5),
        }
    norms = ["norm"]
    for layer in range(config.layers):
        norms += [f"layers.{layer}.attention_norm", f"layers.{layer}.mlp_norm"]
    drawn = {}
    for number, (name, (shape, deviation)) in enumerate(shapes.items()):
        drawn[name] = _uniform(seed, number, shape) * np.float32(deviation * 12**0.5)
    for number, name in enumerate(norms, start=len(shapes)):
        drawn[name] = 1 + _uniform(seed, number, (hidden,))
    return drawn


def rotations(config: ModelConfig, page: int) -> Floats:
    """Returns cosines and sines of the rotary embedding (Su et al. 2021) of a page of positions.

    Args:
        config: The model's figures.
        page: Number of the page, from 0.

    Returns:
        Shape (2, positions, head_dim / 2).
    """
    positions = np.arange(page * PAGE, (page + 1) * PAGE, dtype=np.float64)
    powers = np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim
    angles = positions[:, None] * config.theta**-powers
    return np.stack((np.cos(angles), np.sin(angles))).astype(np.float32)


def _uniform(seed: int, number: int, shape: tuple[int, ...]) -> Floats:
    """Returns numbers from -0.5 to 0.5, in steps of 2**-24."""
    words = np.random.PCG64([seed, number]).random_raw(int(np.prod(shape)))
    return ((words >> 40).astype(np.float32) * np.float32(2**-24) - np.float32(0.5)).reshape(shape)
