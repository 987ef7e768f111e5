"""The next token: the likeliest, or one drawn by seed, request and position alone."""

from collections.abc import Hashable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from blockyard._core import Misuse
from blockyard.crane.devices import fetched
from blockyard.shared.validate import integer

__all__ = ["Sampling", "key_of"]

_STEPS: Final = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""The constants of splitmix64 (Steele et al. 2014)."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn.

    Args:
        temperature: 0 for the likeliest token; among equals, the first.
        seed: Seed of the draws, without effect at temperature 0.
        end: A token that ends its sequence; None for none.

    Raises:
        Misuse: A value is out of range.
    """

    temperature: float = 0.0
    seed: int = 0
    end: int | None = None

    def __post_init__(self) -> None:
        """Checks every field."""
        if not 0 <= self.temperature < float("inf"):
            raise Misuse(f"temperature = {self.temperature!r}: must be a finite number >= 0")
        object.__setattr__(self, "seed", integer("seed", self.seed, least=0))
        if self.end is not None:
            object.__setattr__(self, "end", integer("end", self.end, least=0))

    def draw(
        self,
        logits: NDArray[np.float32],
        keys: NDArray[np.uint64],
        positions: NDArray[np.integer[Any]],
        xp: Any = np,  # noqa: ANN401 - a module
    ) -> NDArray[np.uint32]:
        """Returns a token for each row, the same in every batch and step.

        It takes the largest of logits / temperature plus Gumbel noise, which draws a token with
        its softmax probability (Gumbel 1954; Maddison et al. 2014). The noise is a counter's hash.

        Args:
            logits: Shape (rows, vocabulary), an array of `xp`.
            keys: Keys of the rows' requests, from `key_of`, shape (rows,).
            positions: Positions of the tokens that are drawn, shape (rows,).
            xp: The array module of the logits.

        Returns:
            Shape (rows,), an array of NumPy.
        """
        chosen = logits
        if self.temperature:
            words = _mixed(keys ^ np.uint64(self.seed & 0xFFFFFFFFFFFFFFFF), xp)
            words = _mixed(words + xp.asarray(positions.astype(np.uint64)), xp)[:, None]
            words = _mixed(words + xp.arange(logits.shape[1], dtype=np.uint64), xp)
            uniform = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
            chosen = logits.astype(np.float64) / self.temperature - xp.log(-xp.log(uniform))
        return fetched(chosen.argmax(axis=1).astype(np.uint32))


def key_of(request: Hashable) -> int:
    """Returns 64 bits of a request's id, which depend on its `repr` alone."""
    return int.from_bytes(blake2b(repr(request).encode(), digest_size=8).digest())


def _mixed(words: Any, xp: Any) -> Any:  # noqa: ANN401 - arrays of `xp`
    """Returns one step of splitmix64 from each word."""
    step, first, second = (np.uint64(one) for one in _STEPS)
    words = xp.asarray(words) + step
    words = (words ^ (words >> np.uint64(30))) * first
    words = (words ^ (words >> np.uint64(27))) * second
    return words ^ (words >> np.uint64(31))
