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
    """A seat that is bound to a request."""

    number: int
    request: Request
    lease: Lease
    epoch: int
    stop: Stop | None = None
    """The stop that was sent, once the seat is stopping."""
    stopped_at: int = 0
    """The step that carried the stop first; 0 before."""
    pending_end: tuple[RequestState, str] | None = None
    """How the ack ends the request, and why; None where only its stay in the seat ends."""
    ticket: Ticket | None = None
    """Host slots promised to it, where a victim must be parked."""
    ended: bool = False
    """Whether the request has ended: the seat only waits for its ack."""
    last_step: int = 0
    """The last step that computes in it."""


class Seats:
    """All seats. What changes in every step stands in arrays, with one place per seat.

    Args:
        count: How many there are.
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
        """Tokens that exist: prompt and sampled."""
        self.max_length = np.zeros(count, np.int64)
        """Most tokens that may ever exist: the prompt and `max_tokens`."""
        self.steps_run = np.zeros(count, np.int64)
        """Steps that have computed in it since it was bound."""
        self.arrivals = 0
        """How often a seat was given out."""
        self.departures = 0
        """How often a seat was given up, or its request had ended."""

    def __len__(self) -> int:
        """Seats that are not free."""
        return len(self._seats) - len(self._free)

    @property
    def full(self) -> bool:
        """Whether none is free."""
        return not self._free

    def at(self, number: int) -> Seat | None:
        """The bound seat of that number; None where it is free or does not exist."""
        return self._seats[number] if 0 <= number < len(self._seats) else None

    def lives(self, seat: Seat) -> bool:
        """Whether the request still runs in this seat."""
        return self._seats[seat.number] is seat and not seat.ended

    def bound(self) -> list[Seat]:
        """All seats that are not free, by number."""
        return [seat for seat in self._seats if seat is not None]

    def stopping_seats(self) -> list[Seat]:
        """All seats that wait for their ack, by number."""
        return [seat for seat in self._seats if seat is not None and seat.stop is not None]

    def requests(self) -> tuple[list[Request], list[Request]]:
        """Requests that run or leave, and requests with host slots promised, to be parked."""
        found: tuple[list[Request], list[Request]] = [], []
        for seat in self.bound():
            found[seat.ticket is not None].append(seat.request)
        return found

    def bind(self, request: Request, lease: Lease) -> Seat:
        """Gives a request the lowest free seat."""
        number = heapq.heappop(self._free)
        # An epoch above all earlier ones of the request and of the seat: no ack is good twice.
        request.epoch = max(request.epoch, self._epochs[number]) + 1
        seat = Seat(number, request, lease, request.epoch)
        request.seat, request.lease = number, lease
        self._seats[number] = seat
        self.arrivals += 1
        self.scheduled[number] = self.computed[number] = lease.cached
        self.known[number] = lease.appended
        self.max_length[number] = len(request.prompt) + request.max_tokens
        self.steps_run[number] = 0
        return seat

    def stop(self, seat: Seat) -> Stop:
        """Marks a seat as stopping, with a new epoch."""
        self.stopping += 1
        seat.epoch += 1
        seat.request.epoch = seat.epoch
        seat.stop = Stop(seat.request.id, seat.number, seat.epoch)
        return seat.stop

    def mark_ended(self, seat: Seat) -> None:
        """Notes that the request has ended while its seat waits for the ack."""
        seat.ended = True
        self.departures += 1

    def clear(self) -> None:
        """Frees all seats, also where an interrupt has left one half bound."""
        for seat in self.bound():
            self._epochs[seat.number] = max(self._epochs[seat.number], seat.epoch)
        self._seats = [None] * len(self._seats)
        self._free = list(range(len(self._seats)))
        self.stopping = 0
        self.departures += 1

    def free(self, seat: Seat) -> None:
        """Frees a seat: the engine has nothing more to do with it."""
        self.departures += 1
        self.stopping -= seat.stop is not None
        self._epochs[seat.number] = seat.epoch
        self._seats[seat.number] = None
        seat.request.seat = seat.request.lease = None
        heapq.heappush(self._free, seat.number)
