"""How requests reach the scheduler: as they arrive, or with their KV from a prefill engine."""

import time
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass

from blockyard._core import Keys, NoRoom, TooLarge
from blockyard._typing import override
from blockyard.scheduling.headroom import HeadroomPolicy
from blockyard.scheduling.new_request import NewRequest, max_blocks
from blockyard.scheduling.reservations import Reservations
from blockyard.scheduling.scheduler import Scheduler
from blockyard.tools.replay.clock import LinkDirection
from blockyard.tools.replay.spec import RunSpec
from blockyard.tools.replay.tokens import Tokens
from blockyard.tools.traces.trace import Trace

__all__ = ["Arrivals", "Transfers"]

_spent = time.thread_time_ns


class Arrivals:
    """Adds requests to the scheduler when their time has come.

    Prompts take memory, so no more requests are queued than could run at once. The others wait
    outside; they count as arrived all the same.

    Args:
        spec: What is modelled.
        trace: The requests.
        tokens: Their tokens.
        scheduler: Where they are added.
    """

    def __init__(self, spec: RunSpec, trace: Trace, tokens: Tokens, scheduler: Scheduler) -> None:
        # The trace has milliseconds from any moment; here they are seconds from the first arrival.
        origin = trace.arrival[:1] if spec.origin_ms is None else spec.origin_ms
        self.times: list[float] = ((trace.arrival - origin) / 1000.0).tolist()
        self._tokens = tokens
        self._scheduler = scheduler
        self._places = spec.max_num_seqs
        self._answers = spec.answers(trace)
        self._taken = 0
        self.refused = 0
        """Requests too large ever to fit."""
        self.spent_ns = 0
        """CPU time spent on adding requests, measured."""

    def come(self, now: float, away: int) -> None:
        """Adds the requests that have arrived.

        Args:
            now: Modelled seconds.
            away: How many preempted requests are not running again.
        """
        del away
        if self._arrived(now) is None:
            return
        room = self._places - self._scheduler.stats()["waiting"]
        while room > 0 and (request := self._arrived(now)) is not None:
            self._taken += 1
            prompt = self._tokens.prompt(request)
            start = _spent()
            try:
                self._scheduler.add(
                    NewRequest(request, prompt, max_tokens=int(self._answers[request]))
                )
                room -= 1
            except TooLarge:
                self.refused += 1
            self.spent_ns += _spent() - start

    def _arrived(self, now: float) -> int | None:
        """Returns the first request that has arrived and is not taken, if there is one."""
        there = self._taken < len(self.times) and self.times[self._taken] <= now
        return self._taken if there else None

    @property
    def taken(self) -> int:
        """How many requests were added or refused."""
        return self._taken

    def outside(self, now: float) -> int:
        """Returns how many requests have arrived and are not taken."""
        return max(bisect_right(self.times, now) - self._taken, 0)

    def next(self, now: float) -> float | None:
        """Returns when the next request arrives; None where none is to come."""
        after = self._taken < len(self.times) and self.times[self._taken] > now
        return self.times[self._taken] if after else None


@dataclass(frozen=True, slots=True)
class _Sent:
    """A request whose KV is on its way, and the number of its reservation."""

    request: int
    reservation: int
    lands: float


class Transfers(Arrivals):
    """Reserves room for requests that arrive, and adds them when their KV is here.

    Blocks that are found here at the reservation are not sent. No request overtakes a refused one,
    and none reserves while a preempted request waits: the room goes to that one first.

    Args:
        spec: What is modelled.
        trace: The requests.
        tokens: Their tokens.
        scheduler: Where they are added, and in whose cache room is reserved.
        headroom: The scheduler's policy.
    """

    def __init__(
        self,
        spec: RunSpec,
        trace: Trace,
        tokens: Tokens,
        scheduler: Scheduler,
        headroom: HeadroomPolicy,
    ) -> None:
        super().__init__(spec, trace, tokens, scheduler)
        self._cache = cache = scheduler.cache
        self._headroom = headroom
        self._size = spec.block_size
        machine = spec.roofline.machine
        self._link = LinkDirection(
            spec.block_bytes / spec.ranks / machine.link_bytes_per_second, machine.link_latency
        )
        self._air: deque[_Sent] = deque()
        self._first: tuple[int, Keys] | None = None
        self.reservations = Reservations(cache, headroom={"decode": headroom})
        self.granted = 0
        """Reservations opened."""
        self.blocks = 0
        """Blocks that came over the link."""

    @override
    def come(self, now: float, away: int) -> None:
        """Adds requests whose KV is here, and reserves for arrivals unless one is preempted."""
        self._land(now)
        if away or self._arrived(now) is None:
            return
        room = self._places - self._scheduler.stats()["waiting"] - len(self._air)
        while room > 0 and (request := self._arrived(now)) is not None:
            start = _spent()
            done = self._try(request, now)
            self.spent_ns += _spent() - start
            if not done:
                return
            room -= 1

    @override
    def outside(self, now: float) -> int:
        """Returns how many wait outside, those whose KV is on its way included."""
        return super().outside(now) + len(self._air)

    @override
    def next(self, now: float) -> float | None:
        """Returns the next arrival of a request or of its KV."""
        events = [self._air[0].lands] if self._air else []
        arrival = super().next(now)
        return min(events if arrival is None else [*events, arrival], default=None)

    def _try(self, request: int, now: float) -> bool:
        """Tries to reserve; returns False where the request must try again."""
        if self._first is None or self._first[0] != request:
            self._first = request, self._cache.keys(self._tokens.prompt(request))
        keys = self._first[1]
        most = int(self._answers[request])
        if max_blocks(keys.tokens, most, self._size) > self._cache.limit():
            self.refused += 1
        elif not self._reserved(request, keys, most, now):
            return False
        self._taken += 1
        self._first = None
        return True

    def _reserved(self, request: int, keys: Keys, most: int, now: float) -> bool:
        """Opens a reservation and sends the KV; returns whether there was room."""
        probe = self._cache.probe(keys)
        missing = self._blocks(keys.tokens) - probe.device - probe.host - probe.disk
        lands = self._link.lands(missing, now)
        try:
            reservation = self.reservations.open(
                request,
                self._blocks(keys.tokens + min(self._headroom.reserve(most - 1), most - 1)),
                deadline=_tick(lands),
                running=self._scheduler.running,
            )
        except NoRoom:
            return False
        self._link.send(missing, now)
        self._air.append(_Sent(request, reservation.id, lands))
        self.granted += 1
        self.blocks += missing
        return True

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._size)

    def _land(self, now: float) -> None:
        while self._air and self._air[0].lands <= now:
            sent = self._air.popleft()
            prompt = self._tokens.prompt(sent.request)
            start = _spent()
            ticket = self.reservations.commit(sent.reservation)
            most = int(self._answers[sent.request])
            self._scheduler.add(NewRequest(sent.request, prompt, max_tokens=most, ticket=ticket))
            self.spent_ns += _spent() - start
        # No reservation is ever late, since nothing fails on this link.
        self.reservations.expire(_tick(now))


def _tick(seconds: float) -> int:
    """Returns modelled microseconds, by which reservations expire."""
    return int(seconds * 1e6)
