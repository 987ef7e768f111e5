"""How requests come to the scheduler: as they arrive, or with their KV from a prefill instance."""

import time
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass

from blockyard._core import Keys, NoRoom, TooLarge
from blockyard._typing import override
from blockyard.scheduling.headroom import HeadroomPolicy
from blockyard.scheduling.request import max_blocks
from blockyard.scheduling.reservations import Reservations
from blockyard.scheduling.scheduler import Scheduler
from blockyard.tools.replay.clock import Queue
from blockyard.tools.replay.setup import Setup
from blockyard.tools.replay.tokens import Tokens
from blockyard.tools.replay.trace import Trace
from blockyard.yard.cache import KVCache

__all__ = ["Arrivals", "Transfers"]

_now = time.perf_counter_ns


class Arrivals:
    """Requests come into the line when their time is there.

    Prompts take memory, and so only as many stand in line as could run at once. The others wait
    outside: they have arrived all the same.

    Args:
        setup: What is modelled.
        trace: The requests.
        tokens: What they say.
        scheduler: Whose line.
    """

    def __init__(self, setup: Setup, trace: Trace, tokens: Tokens, scheduler: Scheduler) -> None:
        # Times in the trace are milliseconds, since whenever; here, seconds from the first arrival.
        self.times: list[float] = ((trace.arrival - trace.arrival[:1]) / 1000.0).tolist()
        self._tokens = tokens
        self._scheduler = scheduler
        self._places = setup.max_running
        self._answers = setup.answers(trace)
        self._taken = 0
        self.refused = 0
        """Too large to ever fit."""
        self.spent_ns = 0
        """Measured, on requests that came into the line."""

    def come(self, now: float, away: int) -> None:
        """Takes those whose time is there.

        Args:
            now: Modelled seconds.
            away: Requests that were preempted and are not back.
        """
        del away
        room = self._places - self._scheduler.stats()["waiting"]
        while room > 0 and (request := self._arrived(now)) is not None:
            self._taken += 1
            prompt = self._tokens.prompt(request)
            start = _now()
            try:
                self._scheduler.add(request, prompt, max_tokens=int(self._answers[request]))
                room -= 1
            except TooLarge:
                self.refused += 1
            self.spent_ns += _now() - start

    def _arrived(self, now: float) -> int | None:
        """The first that is there and was not taken."""
        there = self._taken < len(self.times) and self.times[self._taken] <= now
        return self._taken if there else None

    @property
    def taken(self) -> int:
        """How many came into the line, or were refused."""
        return self._taken

    def outside(self, now: float) -> int:
        """How many have arrived and are not in line."""
        return max(bisect_right(self.times, now) - self._taken, 0)

    def next(self, now: float) -> float | None:
        """When somebody comes, whatever happens meanwhile; None where nobody does."""
        after = self._taken < len(self.times) and self.times[self._taken] > now
        return self.times[self._taken] if after else None


@dataclass(frozen=True, slots=True)
class _Sent:
    """A request whose KV is on its way, and the room that was promised for it."""

    request: int
    ticket: int
    lands: float


class Transfers(Arrivals):
    """Requests ask for room when they arrive, and come into the line when their KV has come.

    What is found here when they ask is not sent. Nobody overtakes who was refused, and nobody asks
    while one that was preempted waits: the room goes to it first.

    Args:
        setup: What is modelled.
        trace: The requests.
        tokens: What they say.
        scheduler: Whose line.
        cache: Whose room.
        reserve: The scheduler's.
    """

    def __init__(
        self,
        setup: Setup,
        trace: Trace,
        tokens: Tokens,
        scheduler: Scheduler,
        cache: KVCache,
        reserve: HeadroomPolicy,
    ) -> None:
        super().__init__(setup, trace, tokens, scheduler)
        self._cache = cache
        self._reserve = reserve
        self._size = setup.block_size
        machine = setup.roofline.machine
        self._link = Queue(
            setup.block_bytes / setup.ranks / machine.link_bytes_per_second, machine.link_latency
        )
        self._air: deque[_Sent] = deque()
        self._first: tuple[int, Keys] | None = None
        self.tickets = Reservations(cache, headroom={"decode": reserve})
        self.granted = 0
        """Tickets given."""
        self.blocks = 0
        """Blocks that came over the link."""

    @override
    def come(self, now: float, away: int) -> None:
        """Takes whose KV is there, and lets the others ask, unless somebody is away."""
        self._land(now)
        if away:
            return
        room = self._places - self._scheduler.stats()["waiting"] - len(self._air)
        while room > 0 and (request := self._arrived(now)) is not None:
            start = _now()
            asked = self._ask(request, now)
            self.spent_ns += _now() - start
            if not asked:
                return
            room -= 1

    @override
    def outside(self, now: float) -> int:
        """With those whose KV is on its way."""
        return super().outside(now) + len(self._air)

    @override
    def next(self, now: float) -> float | None:
        """The next arrival, of a request or of its KV."""
        events = [self._air[0].lands] if self._air else []
        arrival = super().next(now)
        return min(events if arrival is None else [*events, arrival], default=None)

    def _ask(self, request: int, now: float) -> bool:
        """Whether it need not ask again."""
        if self._first is None or self._first[0] != request:
            self._first = request, self._cache.keys(self._tokens.prompt(request))
        keys = self._first[1]
        most = int(self._answers[request])
        if max_blocks(keys.tokens, most, self._size) > self._capacity:
            self.refused += 1
        elif not self._asked(request, keys, most, now):
            return False
        self._taken += 1
        self._first = None
        return True

    def _asked(self, request: int, keys: Keys, most: int, now: float) -> bool:
        """Whether it was given its ticket, and its KV is on its way."""
        probe = self._cache.probe(keys)
        missing = self._blocks(keys.tokens) - probe.device - probe.host
        lands = self._link.lands(missing, now)
        try:
            promise = self.tickets.open(
                request,
                self._blocks(keys.tokens + min(self._reserve.reserve(most - 1), most - 1)),
                deadline=_tick(lands),
                running=self._scheduler.running,
            )
        except NoRoom:
            return False
        self._link.send(missing, now)
        self._air.append(_Sent(request, promise.id, lands))
        self.granted += 1
        self.blocks += missing
        return True

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._size)

    @property
    def _capacity(self) -> int:
        return self._cache.config.device_blocks - self._cache.config.null_slots

    def _land(self, now: float) -> None:
        while self._air and self._air[0].lands <= now:
            sent = self._air.popleft()
            prompt = self._tokens.prompt(sent.request)
            start = _now()
            ticket = self.tickets.commit(sent.ticket)
            most = int(self._answers[sent.request])
            self._scheduler.add(sent.request, prompt, max_tokens=most, ticket=ticket)
            self.spent_ns += _now() - start
        # None is ever late: nothing fails on this link.
        self.tickets.expire(_tick(now))


def _tick(seconds: float) -> int:
    """Of the tickets: modelled microseconds."""
    return int(seconds * 1e6)
