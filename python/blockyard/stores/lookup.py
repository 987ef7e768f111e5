"""Asks shared stores what they have of a request, on a thread of its own."""

import threading
import time
import weakref
from collections.abc import Callable, Hashable, Sequence
from queue import SimpleQueue
from typing import Final, NamedTuple

from blockyard._core import Keys
from blockyard.shared.log import Limited
from blockyard.stores import PATIENCE, Store
from blockyard.stores.address import block_address
from blockyard.stores.questions import Questions

__all__ = ["Found", "StoreLookup"]

_KEY: Final = 32
"""Bytes of a key."""
_MOST: Final = 8192
"""Blocks of a request that are asked for, from the first on."""
_MISSED: Final = 2.0
"""Seconds for which a first block that no store has is remembered."""
_REMEMBERED: Final = 4096
"""First blocks that are remembered."""
_log = Limited(__name__, 60.0)


class Found(NamedTuple):
    """What stores say that they have of a request."""

    blocks: int
    """Leading blocks of the first group of layers."""
    others: Sequence[Sequence[bool]] = ()
    """For each further group which of these blocks."""


_NOTHING: Final = Found(0)


class StoreLookup:
    """Asks for requests, and never lets one wait longer than its patience.

    Its verbs are for one thread. Where the stores rest, or do not answer another question, where
    there is no thread, and after its close, the answer comes at once: that they have nothing.

    Args:
        stores: The stores.
        places: The identity of the values of each group of layers, the first one's first.
        ranks: Ranks that have values of a block. One of them is asked for, by the block's key.
        patience: Seconds that a question may take, where who asks has no patience of its own.
        clock: Seconds, for the patience.
    """

    def __init__(
        self,
        stores: Sequence[Store],
        places: Sequence[int],
        ranks: int = 1,
        *,
        patience: float = PATIENCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._patience, self._clock = patience, clock
        self._open: dict[Hashable, _Question] = {}
        self._missed: dict[bytes, float] = {}
        self._desk = _Desk(Questions(stores), tuple(places), ranks)
        self._thread: threading.Thread | None = None
        weakref.finalize(self, self._desk.close).atexit = True

    def ask(self, request: Hashable, keys: Keys, patience: float | None = None) -> Found | None:
        """Returns what the stores have; asked again, it is the same question.

        Args:
            request: Who asks.
            keys: The keys of its full blocks.
            patience: Seconds that the question may take; None for the lookup's own.

        Returns:
            None while the answer may still come.
        """
        now = self._clock()
        question = self._open.get(request)
        if question is None:
            raw = bytes(keys)
            first = raw[:_KEY]
            missed = 0 <= now - self._missed.get(first, float("-inf")) < _MISSED
            if not first or missed or self._desk.is_late(now):
                return _NOTHING
            if not self._start():
                return _NOTHING
            until = now + (self._patience if patience is None else patience)
            question = _Question(raw[: _MOST * _KEY], now, until)
            self._open[request] = question
            self._desk.put(question)
        answer = question.answer
        if answer is None and question.is_open(now):
            return None
        self.drop(request)
        if answer is not None and not answer.blocks:
            self._remember(question.keys[:_KEY], now)
        return answer or _NOTHING

    def drop(self, request: Hashable) -> None:
        """Forgets a question: nobody waits for its answer."""
        question = self._open.pop(request, None)
        if question is not None:
            question.is_over = True

    def close(self) -> None:
        """Ends its thread, when that comes back from a store; it is not waited for."""
        for request in list(self._open):
            self.drop(request)
        self._desk.close()

    def _start(self) -> bool:
        """Starts its thread, and returns whether there is one."""
        if self._thread is None:
            # It has the desk alone, so that who drops this ends it.
            thread = threading.Thread(
                target=self._desk.run, name="blockyard-store-ask", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:
                _log.warning("stores are not asked about requests: %s", error)
                return False
            self._thread = thread
        return True

    def _remember(self, first: bytes, now: float) -> None:
        if len(self._missed) >= _REMEMBERED:
            self._missed.clear()
        self._missed[first] = now


class _Question:
    __slots__ = ("answer", "asked", "is_over", "keys", "until")

    def __init__(self, keys: bytes, asked: float, until: float) -> None:
        self.keys, self.asked, self.until = keys, asked, until
        self.answer: Found | None = None
        self.is_over = False
        """Whether nobody waits for it any more."""

    def is_open(self, now: float) -> bool:
        """Whether its patience lasts; a clock that was set back ends it, too."""
        return self.asked <= now < self.until


class _Desk:
    """What the thread has: it takes one question after the other."""

    def __init__(self, questions: Questions, places: tuple[int, ...], ranks: int) -> None:
        self._questions, self._places, self._ranks = questions, places, ranks
        self._queue: SimpleQueue[_Question | None] = SimpleQueue()
        self._current: _Question | None = None
        self._closed = False

    def is_late(self, now: float) -> bool:
        """Whether a new question would wait for a store that does not answer the last one."""
        current = self._current
        if current is not None and not current.is_open(now):
            return True
        return self._closed or self._questions.is_resting

    def put(self, question: _Question) -> None:
        self._queue.put(question)

    def close(self) -> None:
        self._closed = True
        self._queue.put(None)

    def run(self) -> None:
        while (question := self._queue.get()) is not None and not self._closed:
            self._current = question
            if not question.is_over:
                question.answer = self._answer(question.keys)
            self._current = None
        self._questions.close()

    def _answer(self, keys: bytes) -> Found:
        every = [keys[at : at + _KEY] for at in range(0, len(keys), _KEY)]
        spine = self._has(every, 0)
        blocks = spine.index(False) if False in spine else len(spine)
        others = [self._has(every[:blocks], group) for group in range(1, len(self._places))]
        return Found(blocks, tuple(map(tuple, others)))

    def _has(self, keys: list[bytes], group: int) -> list[bool]:
        identity = self._places[group]
        return self._questions.has(
            [block_address(identity, key[-1] % self._ranks, key, group) for key in keys]
        )
