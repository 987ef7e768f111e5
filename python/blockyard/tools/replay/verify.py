"""Real bytes under a replay: blocks are written when computed and compared when reused."""

import numpy as np
from numpy.typing import NDArray

from blockyard.scheduling.engine import Step
from blockyard.tools.replay.engine import VirtualEngine
from blockyard.tools.replay.real_memory import RankMemory
from blockyard.tools.replay.step_tables import Tables
from blockyard.tools.replay.tokens import Tokens
from blockyard.yard.cache import KVCache

__all__ = ["Verifier"]


class Verifier:
    """Writes and compares the bytes of blocks, which are derived from their keys.

    Args:
        cache: Makes the keys.
        memory: Has the bytes.
        tokens: The requests' tokens.
        answers: The most tokens that each request samples here.
    """

    def __init__(
        self, cache: KVCache, memory: RankMemory, tokens: Tokens, answers: NDArray[np.int64]
    ) -> None:
        self._cache = cache
        self._memory = memory
        self._tokens = tokens
        self._answers = answers
        self.keys: dict[int, NDArray[np.uint64]] = {}
        """The keys of each request that has begun and not ended, folded to 64 bits."""
        self.written = 0
        self.checked = 0
        self.wrong = 0
        self.wrong_answers = 0

    def starts(self, request: int, slots: NDArray[np.int32]) -> None:
        """Compares the blocks that a request reuses, before it computes."""
        if request not in self.keys:
            whole = np.concatenate((self._tokens.prompt(request), self._tokens.output(request)))
            words = np.frombuffer(bytes(self._cache.keys(whole)), np.uint64).reshape(-1, 4)
            self.keys[request] = np.bitwise_xor.reduce(words, axis=1)
        if len(slots):
            self.wrong += self._memory.wrong(slots, self.keys[request][: len(slots)])
            self.checked += len(slots)

    def stops(self, request: int, computed: int, slots: NDArray[np.int32]) -> None:
        """Writes the last block of a stopped request, which may be parked though not full."""
        block, filled = divmod(computed, self._cache.block_size)
        if filled and block < len(self.keys[request]):
            self._memory.write(slots[block : block + 1], self.keys[request][block : block + 1])

    def computed(self, step: Step, engine: VirtualEngine, tables: Tables) -> None:
        """Writes the blocks that a step has filled."""
        size = self._cache.block_size
        seats = [*step.decode.tolist(), *(chunk.seat for chunk in step.chunks)]
        olds = (step.positions // size).tolist()
        news = ((step.positions + step.counts) // size).tolist()
        slots, keys = [], []
        for seat, old, new in zip(seats, olds, news, strict=True):
            if new > old:
                slots.append(tables.slots(seat, old, new))
                keys.append(self.keys[engine.request(seat)][old:new])
        if slots:
            self._memory.write(np.concatenate(slots), np.concatenate(keys))
            self.written += sum(map(len, slots))

    def ended(self, request: int, answer: NDArray[np.uint32]) -> None:
        """Compares an answer with the trace's, as far as it is sampled here."""
        del self.keys[request]
        expected = self._tokens.output(request)[: self._answers[request]]
        self.wrong_answers += not np.array_equal(answer, expected)
