"""Tokens for a trace that has none: each id becomes a seeded run of them."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from blockyard._core import Misuse
from blockyard.tools.replay.trace import Trace

__all__ = ["Tokens"]

_Words = NDArray[np.uint64]

# SplitMix64: https://prng.di.unimi.it/splitmix64.c
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)
_HALF: Final = np.uint64(32)


class Tokens:
    """What the requests of a trace say: equal id and prefix, equal tokens.

    An id that stands for a partial block becomes the start of its run. What of a prompt no id
    covers is the request's own, and so are answers. The same seed gives the same tokens on every
    machine, and nothing is kept: asking again computes again.

    Args:
        trace: The requests.
        seed: From 0 to 2**64 - 1.
        vocab: Tokens are below it; by default what Llama-3 knows.

    Raises:
        Misuse: An argument is out of range.
    """

    __slots__ = ("_answers", "_blocks", "_own", "_trace", "_vocab")

    def __init__(self, trace: Trace, seed: int = 0, *, vocab: int = 128_256) -> None:
        if not 0 <= seed < 2**64:
            raise Misuse(f"seed = {seed}: give a number from 0 to 2**64 - 1")
        if not 1 <= vocab <= 2**32:
            raise Misuse(f"vocab = {vocab}: give a number from 1 to 2**32")
        self._trace = trace
        self._vocab = np.uint64(vocab)
        # Where the runs begin, of the three kinds apart.
        kinds = _mix(np.array([seed], np.uint64) + np.arange(1, 4, dtype=np.uint64) * _GOLDEN)
        requests = np.arange(len(trace), dtype=np.uint64)
        self._blocks = _mix(trace.ids.astype(np.uint64) * _GOLDEN + kinds[0])
        self._own = _mix(requests * _GOLDEN + kinds[1])
        self._answers = _mix(requests * _GOLDEN + kinds[2])

    def prompt(self, request: int) -> NDArray[np.uint32]:
        """The prompt's tokens, shape (input_length,)."""
        trace = self._trace
        length = int(trace.input_length[request])
        first, end = trace.offsets[request : request + 2]
        shared = self._runs(self._blocks[first:end], trace.trace_block)[:length]
        if len(shared) == length:
            return shared
        own = self._runs(self._own[request : request + 1], length - len(shared))
        return np.concatenate((shared, own))

    def output(self, request: int) -> NDArray[np.uint32]:
        """The answer's tokens, shape (output_length,): found again by nobody."""
        length = int(self._trace.output_length[request])
        return self._runs(self._answers[request : request + 1], length)

    def sampled(self, requests: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Of each request's answer the token at a place from 0 on; also behind its end."""
        steps = (places.astype(np.uint64) + np.uint64(1)) * _GOLDEN
        return self._scaled(_mix(self._answers[requests] + steps))

    def _runs(self, starts: _Words, length: int) -> NDArray[np.uint32]:
        """A run of `length` tokens from each start, one after another."""
        steps = np.arange(1, length + 1, dtype=np.uint64) * _GOLDEN
        return self._scaled(_mix(starts[:, None] + steps)).reshape(-1)

    def _scaled(self, words: _Words) -> NDArray[np.uint32]:
        """Below the vocabulary: the upper half, scaled, which is cheaper than a remainder."""
        words >>= _HALF
        words *= self._vocab
        words >>= _HALF
        return words.astype(np.uint32)


def _mix(words: _Words) -> _Words:
    """SplitMix64's finish, in place."""
    words ^= words >> np.uint64(30)
    words *= _FIRST
    words ^= words >> np.uint64(27)
    words *= _SECOND
    words ^= words >> np.uint64(31)
    return words
