"""Who runs in the next step: first come, first served, each with its full length promised."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from blockyard._core import Keys, Lease, NoRoom, Soon, TooLarge
from blockyard.cache import KVCache

__all__ = ["FirstCome", "Running", "Waiting"]


@dataclass(slots=True, eq=False)
class Waiting:
    """A request in line."""

    request: int
    arrival: float
    keys: Keys
    outputs: NDArray[np.uint32]
    prefetched: bool = False


@dataclass(slots=True, eq=False)
class Running:
    """A request with a lease."""

    request: int
    arrival: float
    keys: Keys
    outputs: NDArray[np.uint32]
    lease: Lease
    computed: int
    """Tokens whose KV is there."""
    sampled: int = 0
    """Output tokens so far."""
    loading: set[int] = field(default_factory=set)
    """Flights it waits for."""

    @property
    def prompt(self) -> int:
        """Tokens of its prompt."""
        return self.keys.tokens


class FirstCome:
    """The line and the running batch.

    A request is admitted only with room for all it may ever need, so that nobody who runs is ever
    in need; nobody overtakes the first in line.

    Args:
        cache: Whose blocks are admitted to.
        seats: Most requests that run.
        budget: Most tokens computed in one step; decodes come first.
    """

    def __init__(self, cache: KVCache, *, seats: int, budget: int) -> None:
        self._cache = cache
        self._seats = seats
        self._budget = budget
        self.line: deque[Waiting] = deque()
        self.running: list[Running] = []
        self.no_room = 0
        self.filling = 0
        self.refused = 0

    def admit(self) -> Iterator[Running]:
        """Begins the requests that fit now, in order."""
        while self.line and len(self.running) < self._seats:
            first = self.line[0]
            try:
                lease = self._cache.begin(
                    first.keys, reserve=max(len(first.outputs) - 1, 0), filling="soon"
                )
            except TooLarge:
                self.refused += 1
                self.line.popleft()
                continue
            except NoRoom:
                self.no_room += 1
                return
            if isinstance(lease, Soon):
                self.filling += 1
                return
            self.line.popleft()
            runs = Running(
                first.request, first.arrival, first.keys, first.outputs, lease, lease.cached
            )
            runs.loading.update(plan.flight for plan in lease.plans)
            self.running.append(runs)
            yield runs

    def prefetch(self, ahead: int, promote: Callable[[Keys], object]) -> None:
        """Asks for the prefixes of the next in line to be brought up, each once."""
        for waiting, _ in zip(self.line, range(ahead), strict=False):
            if not waiting.prefetched:
                waiting.prefetched = True
                promote(waiting.keys)

    def step(self) -> tuple[list[Running], list[tuple[Running, int]]]:
        """Rows that decode, and prompts as they came, with the tokens of them to compute next."""
        ready = [row for row in self.running if not row.loading]
        decode = [row for row in ready if row.computed >= row.prompt]
        left = self._budget - len(decode)
        chunks = []
        # Seats are no order: who came last may sit where one has left.
        prompts = (row for row in ready if row.computed < row.prompt)
        for row in sorted(prompts, key=attrgetter("request")):
            if left <= 0:
                break
            chunks.append((row, min(row.prompt - row.computed, left)))
            left -= chunks[-1][1]
        return decode, chunks
