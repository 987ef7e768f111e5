"""Which waiting requests shared stores are asked about, and for how long each waits for that."""

from collections import deque
from collections.abc import Hashable, Iterable
from typing import Final

from blockyard._core import Keys
from blockyard.scheduling.queue import WaitingQueue
from blockyard.scheduling.request import Request, Result
from blockyard.shared.layout import TIERS
from blockyard.shared.timings import Clock
from blockyard.yard.asking import Asking
from blockyard.yard.cache import KVCache

__all__ = ["Lookups"]

_SAYS: Final = 2
"""Requests of which one step says that their blocks are here, as hundreds may begin in it."""


class Lookups:
    """Asks about requests, each once while it waits, and never waits itself.

    Args:
        cache: The cache, which adopts what stores have.
        asking: What asks.
        queue: Where requests wait.
        patience: Seconds for which a request waits for an answer at most.
        clock: Seconds.
    """

    def __init__(
        self,
        cache: KVCache,
        asking: Asking,
        queue: WaitingQueue,
        patience: float,
        clock: Clock,
    ) -> None:
        self._cache, self._asking, self._queue = cache, asking, queue
        self._purged = -1
        """The queue's changes when those that have ended were looked for last."""
        self._patience, self._clock = patience, clock
        self._out: dict[Request, float] = {}
        """Requests whose answer is out, and the second at which each was asked about."""
        self._taking: dict[Hashable, Request] = {}
        """Requests whose blocks are taken over, by id, until that is said to be over."""
        self._settled: deque[Request] = deque()
        """Those of them that wait and load no more."""

    @property
    def is_on(self) -> bool:
        """Whether there is anybody to be asked."""
        return self._asking.is_on

    @property
    def is_out(self) -> bool:
        """Whether an answer is out."""
        return bool(self._out)

    def waits(self, entry: Request) -> bool:
        """Whether a request waits for an answer."""
        return entry in self._out

    def changes(self) -> int | None:
        """Returns another number where an answer may have come; None where nobody knows."""
        return self._asking.changes()

    def explain(self, entry: Request) -> str:
        """Says what a request waits for."""
        return self._asking.explain(entry.id)

    def take(self, entry: Request, keys: Keys) -> bool:
        """Asks about a request, or adopts what the answer names.

        Args:
            entry: A request that was not asked about before, or one that waits.
            keys: The keys of what it begins with.

        Returns:
            Whether it waits for the answer.
        """
        since = self._out.get(entry)
        if since is None:
            if not self._asking.is_on or not self._is_worth_it(entry, keys):
                self._asking.over(entry.id)
                return False
            since = self._out[entry] = self._clock()
        said = self._asking.take(entry.id, keys)
        # One that takes blocks over has a patience of its own, for each request.
        if said is None and (self._asking.takes or 0 <= self._clock() - since < self._patience):
            return True
        self._end(entry)
        if said and self._asking.takes:
            self._taking[entry.id] = entry
        else:
            # Where there was no name for any of them, what was taken is not needed.
            self._asking.over(entry.id)
        return False

    def settle(self, entry: Request) -> None:
        """Notes that a request loads nothing, or no more."""
        if entry.id in self._taking:
            self._settled.append(entry)

    def give_up(self, entry: Request) -> None:
        """Forgets the question about a request that begins no more, and what is held for it."""
        if entry in self._out:
            self._end(entry)
        self._taking.pop(entry.id, None)
        self._asking.over(entry.id)

    def leave(self, *requests: Hashable) -> None:
        """Ends what is held for requests that have ended, whether they were asked about or not."""
        self.purge()
        for request in requests:
            # Another may have the id from now on.
            self._taking.pop(request, None)
            self._asking.over(request)

    def ended(self, results: Iterable[Result]) -> None:
        """Ends what is held for requests that have a result: others may have their ids now."""
        for result in results if self._taking else ():
            entry = self._taking.get(result.request)
            if entry is not None and entry.terminal:
                self.leave(entry.id)

    def purge(self) -> None:
        """Forgets requests that have ended, and ends what is held for some that load no more."""
        if self._out and self._purged != self._queue.changes:
            self._purged = self._queue.changes
            for entry in [entry for entry in self._out if entry.terminal]:
                self._end(entry)
        for _ in range(min(_SAYS, len(self._settled))):
            entry = self._settled[0]
            if self._taking.get(entry.id) is entry:
                self._asking.over(entry.id)
                del self._taking[entry.id]
            self._settled.popleft()

    def clear(self) -> None:
        """Ends what loads, for a reset, and forgets questions: who waits for an offer waits on."""
        for entry in list(self._out):
            if entry.terminal or not self._asking.takes:
                self._end(entry)
        self._settled.clear()
        while self._taking:
            self._asking.over(self._taking.popitem()[0])

    def stop(self) -> None:
        """Asks nobody any more: what stores have is of weights that this engine had."""
        self.clear()
        self._out.clear()
        self._asking.stop()

    def _is_worth_it(self, entry: Request, keys: Keys) -> bool:
        """Whether more could be found than there is."""
        probe = self._cache.probe(keys)
        there = sum(getattr(probe, tier) for tier in TIERS)
        return there < len(keys) or (probe.remote > 0 and self._asking.expects(entry.id))

    def _end(self, entry: Request) -> None:
        del self._out[entry]
        self._asking.end(entry.id)
