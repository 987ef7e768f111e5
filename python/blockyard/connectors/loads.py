"""Loads: what comes up for the requests of an engine that owns its block ids, round by round."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockyard._core import BlockyardError, Keys, Parked, Plan, Soon
from blockyard.connectors.orders import Ids
from blockyard.shared.plan import Cause, Outcome
from blockyard.yard.cache import KVCache

__all__ = ["Load", "Loads", "drop_unsent"]


@dataclass(slots=True, eq=False)
class Load:
    """What comes up for a request."""

    what: Keys | Parked
    ids: NDArray[np.integer[Any]]
    first: int
    """The block that the first id is for."""
    most: int | None
    """Tokens of what is kept; None where only full blocks come."""
    good: int = 0
    """Leading blocks that have come."""
    failed: int = 0
    """Rounds in which a copy failed."""
    closes: bool = False
    """Whether nothing more is asked for: it ends with its flights."""
    flights: dict[int, int] = field(default_factory=dict)
    """The blocks of each flight of this round, in the order of the blocks."""
    landed: dict[int, int] = field(default_factory=dict)
    """Good blocks of those flights that have ended."""

    def tokens(self, block_size: int) -> int:
        """Returns the tokens that the request has now, with those that the engine had."""
        tokens = (self.first + self.good) * block_size
        return tokens if self.most is None or not self.good else min(tokens, self.most)

    def is_incomplete(self, block_size: int) -> bool:
        """Returns whether not all of what was kept of the request has come."""
        return self.most is not None and self.tokens(block_size) < self.most


class Loads:
    """Loads of many requests. Each takes as many rounds of flights as it needs.

    A round brings as many blocks as are ready below. The next one asks for the rest, or for what
    has failed. A load ends when no copy writes to its ids any more, also none that is late. What is
    interrupted goes on with the next call: the same flights may land twice.

    Args:
        cache: The bookkeeping.
        retries: How many rounds of a load may fail before it ends with what has come.
    """

    def __init__(self, cache: KVCache, retries: int) -> None:
        self._cache = cache
        self._retries = retries
        self._loads: dict[Hashable, Load] = {}
        self._by_flight: dict[int, Hashable] = {}
        self._waiting: dict[Hashable, None] = {}
        """Requests whose next blocks, or whose ids, are in the air."""
        self._done: list[tuple[Hashable, Load]] = []

    def __contains__(self, request: Hashable) -> bool:
        return request in self._loads

    @property
    def is_waiting(self) -> bool:
        """Whether `ask_again` has something to ask for."""
        return bool(self._waiting)

    def begin(self, request: Hashable, what: Keys | Parked, ids: Ids, first: int) -> None:
        """Asks for the blocks of a request from `first` on.

        Raises:
            Misuse: An id is out of range, or comes twice; nothing is loading then.
        """
        most = what.computed if isinstance(what, Parked) else None
        self._ask(request, Load(what, np.array(ids, np.int64), first, most))

    def end(self, request: Hashable) -> bool:
        """Asks for no more for a request; returns whether its copies still write to its ids."""
        load = self._loads.get(request)
        if load is None:
            # Another request may have this id before `done` is asked for again.
            self._done = [ended for ended in self._done if ended[0] != request]
            return False
        load.closes = True
        writes = bool(load.flights) or self._is_written(load)
        if not writes:
            self._drop(request)
        return writes

    def ask_again(self) -> None:
        """Asks again for what was in the air for others, or is late."""
        for request in list(self._waiting):
            self._ask(request, self._loads[request])

    def land(self, landed: Mapping[int, int]) -> None:
        """Takes flights that have ended, and the good blocks of each; others are passed over."""
        for flight, good in landed.items():
            request = self._by_flight.get(flight)
            load = self._loads.get(request)
            if load is not None and flight in load.flights:
                load.landed[flight] = good
                if len(load.landed) == len(load.flights):
                    self._count(request, load)
            self._by_flight.pop(flight, None)

    def done(self) -> list[tuple[Hashable, Load]]:
        """Returns the loads that have ended, until `take` is called."""
        return self._done

    def take(self) -> None:
        """Forgets the loads that `done` has returned, when its caller has noted them."""
        self._done.clear()

    def reset(self) -> None:
        """Forgets all loads: their flights have ended."""
        self._loads.clear()
        self._by_flight.clear()
        self._waiting.clear()
        self._done.clear()

    def _ask(self, request: Hashable, load: Load) -> None:
        """Asks for what a load lacks, or ends it where nothing more comes."""
        first, ids = load.first + load.good, load.ids[load.good : self._blocks(load)]
        answer: list[Plan] | Soon = []
        is_new = request not in self._loads
        # Before: one that is interrupted asks again, and waits for the copies that nobody knows.
        self._waiting[request], self._loads[request] = None, load
        if len(ids) and not load.closes:
            try:
                answer = self._cache.fetch(load.what, ids, first)
            except BlockyardError:
                if is_new:
                    self._drop(request)
                raise
            waits = isinstance(answer, Soon)
        else:
            waits = self._is_written(load)
        if not isinstance(answer, Soon):
            flights = {plan.flight: len(plan) for plan in answer}
            self._by_flight.update(dict.fromkeys(flights, request))
            load.flights, load.landed = flights, {}
        if load.flights:
            self._waiting.pop(request, None)
        elif not waits:
            load.closes = True
            self._done.append((request, load))
            self._drop(request)

    def _is_written(self, load: Load) -> bool:
        """Whether a copy that is late may still write to its ids."""
        return len(load.ids) > 0 and self._cache.must_finish(load.ids) is not None

    def _blocks(self, load: Load) -> int:
        """Returns how many of its ids there are blocks for: what is kept may have been cut."""
        what = load.what
        if isinstance(what, Parked):
            blocks = 0 if what.state in {"broken", "spent"} else what.blocks
        else:
            blocks = len(what)
        return max(blocks - load.first, 0)

    def _count(self, request: Hashable, load: Load) -> None:
        """Counts what a round has brought, as far as it is whole."""
        good, failed = load.good, load.failed
        for flight, blocks in load.flights.items():
            good += load.landed[flight]
            if load.landed[flight] < blocks:
                failed += 1
                break
        closes = load.closes or failed > self._retries
        self._waiting[request] = None
        load.good, load.failed, load.closes, load.flights = good, failed, closes, {}
        self._ask(request, load)

    def _drop(self, request: Hashable) -> None:
        self._waiting.pop(request, None)
        self._loads.pop(request, None)


def drop_unsent(cache: KVCache, now: int) -> bool:
    """Ends what was planned before a clear, and not ordered yet: the workers never hear of it.

    Args:
        cache: The bookkeeping that was cleared.
        now: The tick.

    Returns:
        Whether there was any.
    """
    ranks = range(cache.config.ranks)
    unsent = [
        Outcome.of(plan, rank, 0, Cause.FAILED) for plan in cache.dispatch() for rank in ranks
    ]
    if unsent:
        cache.commit(unsent, now=now)
    return bool(unsent)
