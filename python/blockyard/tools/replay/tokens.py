"""Tokens for a trace that has none: each id becomes a seeded run of tokens."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from blockyard._core import Misuse
from blockyard.tools.traces.trace import Trace

__all__ = ["Tokens"]

_Words = NDArray[np.uint64]

# SplitMix64: https://prng.di.unimi.it/splitmix64.c
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)
_HALF: Final = np.uint64(32)


class Tokens:
    """The tokens of a trace's requests: equal ids become equal tokens.

    An id that stands for a partial block becomes the start of its run. The end of a prompt that no
    id covers is unique to the request, and so is its answer. The same seed gives the same tokens on
    every machine. Nothing is stored: every call computes the tokens.

    Args:
        trace: The requests.
        seed: From 0 to 2**64 - 1.
        vocab: Tokens are below it; by default the vocabulary of Llama 3.

    Raises:
        Misuse: An argument is out of range.
    """

    __slots__ = ("_answers", "_blocks", "_own", "_trace", "_vocab")

    def __init__(self, trace: Trace, seed: int = 0, *, vocab: int = 128_256) -> None:
        if not 0 <= seed < 2**64:
            raise Misuse(f"seed = {seed}: must be an integer from 0 to 2**64 - 1")
        if not 1 <= vocab <= 2**32:
            raise Misuse(f"vocab = {vocab}: must be an integer from 1 to 2**32")
        self._trace = trace
        self._vocab = np.uint64(vocab)
        # The three kinds of runs start from different words.
        kinds = _mix(np.array([seed], np.uint64) + np.arange(1, 4, dtype=np.uint64) * _GOLDEN)
        requests = np.arange(len(trace), dtype=np.uint64)
        self._blocks = _mix(trace.ids.astype(np.uint64) * _GOLDEN + kinds[0])
        self._own = _mix(requests * _GOLDEN + kinds[1])
        self._answers = _mix(requests * _GOLDEN + kinds[2])

    def prompt(self, request: int) -> NDArray[np.uint32]:
        """Returns the prompt's tokens, shape (input_length,)."""
        trace = self._trace
        length = int(trace.input_length[request])
        first, end = trace.offsets[request : request + 2]
        shared = self._runs(self._blocks[first:end], trace.trace_block)[:length]
        if len(shared) == length:
            return shared
        own = self._runs(self._own[request : request + 1], length - len(shared))
        return np.concatenate((shared, own))

    def output(self, request: int) -> NDArray[np.uint32]:
        """Returns the answer's tokens, shape (output_length,); no other request has them."""
        length = int(self._trace.output_length[request])
        return self._runs(self._answers[request : request + 1], length)

    def sampled(self, requests: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Returns the token at one place of each request's answer, also beyond its end."""
        steps = (places.astype(np.uint64) + np.uint64(1)) * _GOLDEN
        return self._scaled(_mix(self._answers[requests] + steps))

    def _runs(self, starts: _Words, length: int) -> NDArray[np.uint32]:
        """Returns a run of `length` tokens from each start, one after another."""
        steps = np.arange(1, length + 1, dtype=np.uint64) * _GOLDEN
        return self._scaled(_mix(starts[:, None] + steps)).reshape(-1)

    def _scaled(self, words: _Words) -> NDArray[np.uint32]:
        """Scales the upper halves below the vocabulary, which is cheaper than a remainder."""
        words >>= _HALF
        words *= self._vocab
        words >>= _HALF
        return words.astype(np.uint32)


def _mix(words: _Words) -> _Words:
    """Applies the last part of SplitMix64, in place."""
    words ^= words >> np.uint64(30)
    words *= _FIRST
    words ^= words >> np.uint64(27)
    words *= _SECOND
    words ^= words >> np.uint64(31)
    return words
