"""Traces made to defeat an order of eviction; the same for the same seed, on every machine.

Each is of prompts of 16 to 64 full blocks that share nothing.
"""

import math
from typing import Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from blockyard._core import Misuse
from blockyard.shared.validate import integer
from blockyard.tools.traces.trace import Trace

__all__ = ["ADVERSARIES", "AdversaryName", "flood", "loop", "shift"]

_BLOCK: Final = 16
"""Tokens per id."""
_SHORTEST, _LONGEST = 16, 64
"""Blocks of a prompt."""
AdversaryName = Literal["loop", "flood", "shift"]


def loop(seed: int, *, requests: int = 4_000, rate: float = 1.0, rounds: int = 8) -> Trace:
    """Returns prompts that come in turn, again and again: recency evicts each before its turn.

    Args:
        seed: 0 or more.
        requests: How many requests, 1 or more.
        rate: Requests per second, at equal distances.
        rounds: How often each prompt comes.

    Raises:
        Misuse: A value is out of range.
    """
    draw, requests = _begin(seed, requests)
    prompts = -(-requests // integer("rounds", rounds))
    return _trace(f"a loop, seed {seed}", draw, rate, np.arange(requests) % prompts)


def flood(
    seed: int,
    *,
    requests: int = 6_000,
    rate: float = 1.0,
    steady: int = 50,
    share: float = 0.3,
) -> Trace:
    """Returns a steady set of prompts that come at random, among others that come only once.

    Args:
        seed: 0 or more.
        requests: How many requests, 1 or more.
        rate: Requests per second, at equal distances.
        steady: Prompts of the steady set.
        share: The share of the requests that are of the steady set.

    Raises:
        Misuse: A value is out of range.
    """
    draw, requests = _begin(seed, requests)
    steady = integer("steady", steady)
    again = draw.random(requests) < share
    which = (draw.random(requests) * steady).astype(np.int64)
    prompt = np.where(again, which, steady + np.cumsum(~again) - 1)
    return _trace(f"a flood, seed {seed}", draw, rate, prompt)


def shift(
    seed: int,
    *,
    requests: int = 6_000,
    rate: float = 1.0,
    prompts: int = 1_000,
    zipf: float = 1.0,
) -> Trace:
    """Returns prompts with popular ones, which change half way through the trace.

    Args:
        seed: 0 or more.
        requests: How many requests, 1 or more.
        rate: Requests per second, at equal distances.
        prompts: How many prompts there are.
        zipf: The n-th prompt is n ** -zipf times as popular as the first.

    Raises:
        Misuse: A value is out of range.
    """
    draw, requests = _begin(seed, requests)
    prompts = integer("prompts", prompts)
    weights = np.cumsum(np.arange(1, prompts + 1, dtype=float) ** -zipf)
    rank = np.searchsorted(weights, draw.random(requests) * weights[-1], side="right")
    early, late = np.argsort(draw.random((2, prompts)), axis=1)
    first_half = np.arange(requests) < requests // 2
    return _trace(
        f"a shift, seed {seed}", draw, rate, np.where(first_half, early[rank], late[rank])
    )


class _Adversary(Protocol):
    def __call__(self, seed: int, *, requests: int = ..., rate: float = ...) -> Trace: ...


ADVERSARIES: Final[dict[AdversaryName, _Adversary]] = {
    "loop": loop,
    "flood": flood,
    "shift": shift,
}
"""The adversaries of `--workload`."""


def _begin(seed: int, requests: int) -> tuple[np.random.Generator, int]:
    draw = np.random.Generator(np.random.PCG64(integer("seed", seed, least=0)))
    return draw, integer("requests", requests)


def _trace(name: str, draw: np.random.Generator, rate: float, prompt: NDArray[np.int64]) -> Trace:
    """Returns the trace whose i-th request has this prompt."""
    if not 0 < rate < math.inf:
        raise Misuse(f"rate = {rate}: must be a number of requests per second > 0")
    spread = _LONGEST - _SHORTEST + 1
    lengths = _SHORTEST + (draw.random(int(prompt.max()) + 1) * spread).astype(np.int64)
    firsts = np.cumsum(lengths) - lengths
    blocks = lengths[prompt]
    offsets = np.concatenate(([0], np.cumsum(blocks)))
    depth = np.arange(offsets[-1]) - np.repeat(offsets[:-1], blocks)
    requests = len(prompt)
    return Trace(
        name=name,
        trace_block=_BLOCK,
        arrival=(np.arange(requests) * 1e3 / rate).astype(np.int64),
        input_length=blocks * _BLOCK,
        output_length=np.ones(requests, np.int64),
        ids=np.repeat(firsts[prompt], blocks) + depth,
        offsets=offsets,
        session=np.zeros(0, np.int64),
    )
