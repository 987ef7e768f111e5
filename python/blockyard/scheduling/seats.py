"""The rows of the engine's running batch: free, bound, or stopping until the ack."""

import heapq
from dataclasses import dataclass

import numpy as np

from blockyard._core import Lease, Ticket
from blockyard.scheduling.engine import Stop
from blockyard.scheduling.request import Request, RequestState

__all__ = ["Seat", "Seats"]


@dataclass(slots=True, eq=False)
class Seat:
    """A seat that is bound; `stop` is what was sent, once it is stopping."""

    number: int
    request: Request
    lease: Lease
    epoch: int
    limit: int
    """Token positions it may ever compute: prompt and all that is sampled but the last."""
    stop: Stop | None = None
    stopped_at: int = 0
    """Step that carried the stop first; 0 before."""
    end: tuple[RequestState, str] | None = None
    """How its ack ends the request, and why; None: only its stay here."""
    ticket: Ticket | None = None
    """Host slots promised to it, where a victim must be parked."""
    gone: bool = False
    """The request has ended; the seat waits for its ack alone."""
    last: int = 0
    """Last step that computes in it."""


class Seats:
    """All of them. What changes every step stands in arrays, one place per seat.

    Args:
        count: How many.
    """

    def __init__(self, count: int) -> None:
        self._seats: list[Seat | None] = [None] * count
        self._free = list(range(count))
        self._epochs = [0] * count
        self.stopping = 0
        """Seats that wait for their ack."""
        self.scheduled = np.zeros(count, np.int64)
        """Tokens whose KV is computed, or is being computed by a step in flight."""
        self.computed = np.zeros(count, np.int64)
        """Tokens whose KV the engine has acknowledged."""
        self.known = np.zeros(count, np.int64)
        """Tokens that are there: prompt and sampled."""
        self.most = np.zeros(count, np.int64)
        """Tokens that may ever be there."""
        self.ran = np.zeros(count, np.int64)
        """Steps that have computed in it since it was bound."""
        self.left = 0
        """How often a seat was given up, or its request had ended."""

    def __len__(self) -> int:
        """Seats that are not free."""
        return len(self._seats) - len(self._free)

    @property
    def full(self) -> bool:
        """Whether none is free."""
        return not self._free

    def at(self, number: int) -> Seat | None:
        """Who is bound to a seat."""
        return self._seats[number] if 0 <= number < len(self._seats) else None

    def lives(self, seat: Seat) -> bool:
        """Whether its request is there still, in this seat."""
        return self._seats[seat.number] is seat and not seat.gone

    def bound(self) -> list[Seat]:
        """All that are not free, by number."""
        return [seat for seat in self._seats if seat is not None]

    def requests(self) -> tuple[list[Request], list[Request]]:
        """Those that run, or leave; and those that are to be parked, with slots promised."""
        there: tuple[list[Request], list[Request]] = [], []
        for seat in self.bound():
            there[seat.ticket is not None].append(seat.request)
        return there

    def bind(self, request: Request, lease: Lease, limit: int) -> Seat:
        """Gives a request the lowest free seat."""
        number = heapq.heappop(self._free)
        # Later than any before of the request and of the seat: no ack is good twice.
        request.epoch = max(request.epoch, self._epochs[number]) + 1
        seat = Seat(number, request, lease, request.epoch, limit)
        self._seats[number] = seat
        self.scheduled[number] = self.computed[number] = lease.cached
        self.known[number] = lease.appended
        self.most[number] = limit + 1
        self.ran[number] = 0
        return seat

    def stop(self, seat: Seat) -> Stop:
        """A seat is stopping, and its epoch is a new one."""
        self.stopping += 1
        seat.epoch += 1
        seat.request.epoch = seat.epoch
        return Stop(seat.request.id, seat.number, seat.epoch)

    def free(self, seat: Seat) -> None:
        """The engine has nothing more to do with it."""
        self.left += 1
        self.stopping -= seat.stop is not None
        self._epochs[seat.number] = seat.epoch
        self._seats[seat.number] = None
        heapq.heappush(self._free, seat.number)
