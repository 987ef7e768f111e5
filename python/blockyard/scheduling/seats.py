"""The seats of the running batch, and how far each of them is."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from blockyard._core import Lease, Ticket
from blockyard._typing import NDArray
from blockyard.scheduling.engine import Stop
from blockyard.scheduling.request import Request, RequestState
from blockyard.scheduling.sampled import EMPTIED, TokenRows

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
    limit: int = 0
    """The blocks that the device might hold when it was bound."""


class Seats:
    """All seats. Values that change in every step are in arrays, with one place per seat.

    Args:
        count: How many there are.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        """How many there are."""
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
        self._tokens = TokenRows(self.known)
        self._last = self._due = 0
        """The seat whose row of tokens was emptied last; `EMPTIED` times the rows that are due."""
        self.max_length = np.zeros(count, np.int64)
        """Most tokens that may ever exist: the prompt and `max_tokens`."""
        self.steps_run = np.zeros(count, np.int64)
        """Steps that have computed in it since it was bound."""
        self.last_step = np.zeros(count, np.int64)
        """The last step that computes in it."""
        self.begun_with = np.zeros(count, np.int64)
        """Blocks that it had and was promised when it was bound."""
        self.grows = np.zeros(count, np.bool_)
        """Whether its request runs or loads, and is neither held nor stopping: see `let_grow`."""
        self.growing = 0
        """How many do."""
        self.flips = 0
        """How often one of them began or ceased to."""
        self.arrivals = 0
        """How often a seat was given out."""
        self.departures = 0
        """How often a seat was given up, or its request had ended."""
        self.priorities: dict[int, int] = {}
        """The number of seats by priority of their request."""

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

    def bind(self, request: Request, lease: Lease, limit: int) -> Seat:
        """Gives a request the lowest free seat, where the device may hold `limit` blocks."""
        number = heapq.heappop(self._free)
        # An epoch above all earlier ones of the request and of the seat: no ack is good twice.
        request.epoch = max(request.epoch, self._epochs[number]) + 1
        seat = Seat(number, request, lease, request.epoch, limit=limit)
        self.known[number] = lease.appended
        self._tokens.sit(number, request.outputs)
        request.seat, request.lease = number, lease
        self._seats[number] = seat
        self.priorities[request.new.priority] = self.priorities.get(request.new.priority, 0) + 1
        self.arrivals += 1
        self.set_cached(number, lease.cached)
        self.max_length[number] = len(request.new.prompt) + request.new.max_tokens
        self.steps_run[number] = self.last_step[number] = 0
        self.begun_with[number] = lease.blocks + lease.promised
        self.let_grow(number, grows=True)
        return seat

    def stop(self, seat: Seat) -> Stop:
        """Marks a seat as stopping, with a new epoch."""
        self.stopping += 1
        self.let_grow(seat.number, grows=False)
        seat.epoch += 1
        seat.request.epoch = seat.epoch
        seat.stop = Stop(seat.request.id, seat.number, seat.epoch)
        return seat.stop

    def mark_ended(self, seat: Seat) -> None:
        """Notes that the request has ended while its seat waits for the ack."""
        # First: an interrupt in between must not have outputs count for what has ended.
        self.departures += 1
        seat.ended = True

    def clear(self) -> None:
        """Frees all seats, also where an interrupt has left one half bound."""
        for seat in self.bound():
            self._epochs[seat.number] = max(self._epochs[seat.number], seat.epoch)
        self._seats = [None] * len(self._seats)
        self._free = list(range(len(self._seats)))
        self.priorities.clear()
        self.end_growth()
        self.stopping = 0
        self.departures += 1

    def free(self, seat: Seat) -> None:
        """Frees a seat: the engine has nothing more to do with it."""
        self.departures += 1
        self.stopping -= seat.stop is not None
        self._epochs[seat.number] = seat.epoch
        self._seats[seat.number] = None
        self.let_grow(seat.number, grows=False)
        self._drop_priority(seat.request.new.priority)
        self.unbind(seat.request)
        heapq.heappush(self._free, seat.number)

    @staticmethod
    def unbind(request: Request) -> None:
        """Takes a request's seat and lease away, also where an interrupt has left it half bound."""
        request.outputs.leave()
        request.seat = request.lease = None

    def set_cached(self, number: int, tokens: int) -> None:
        """Notes how many tokens of a seat need not be computed."""
        self.scheduled[number] = self.computed[number] = tokens

    def add_scheduled(
        self,
        numbers: NDArray[np.int64],
        once: NDArray[np.int64],
        tokens: NDArray[np.int64],
        step: int,
    ) -> NDArray[np.int64]:
        """Notes tokens whose KV a step computes.

        Args:
            numbers: The seats.
            once: 1 in the place of each of them.
            tokens: Tokens, in the place of each seat.
            step: The number of the step.

        Returns:
            The position of the first token of each, in the order of `numbers`.
        """
        firsts = self.scheduled[numbers]
        self.scheduled += tokens
        self.steps_run += once
        self.last_step[numbers] = step
        return firsts

    def add_computed(self, tokens: NDArray[np.int64]) -> None:
        """Notes tokens whose KV the engine has acknowledged, in the place of each seat."""
        self.computed += tokens

    def add_sampled(
        self,
        numbers: NDArray[np.int64],
        tokens: NDArray[np.uint32],
        once: NDArray[np.int64] | None = None,
    ) -> None:
        """Takes a token that was sampled in each of some seats.

        Args:
            numbers: The seats.
            tokens: Their tokens, in the same order.
            once: 1 in the place of each of them, where that is at hand.
        """
        if once is None:
            once = np.zeros(self.count, np.int64)
            once[numbers] = 1
        self._tokens.add(numbers, tokens, once)
        # In turn, so that no step empties many.
        self._due += self.count
        while self._due >= EMPTIED:
            self._due -= EMPTIED
            self._last = (self._last + 1) % self.count
            seat = self._seats[self._last]
            if seat is not None:
                self._tokens.sit(seat.number, seat.request.outputs)

    def add_accepted(self, seat: Seat, tokens: NDArray[np.uint32]) -> None:
        """Takes a token that was sampled in a seat, and drafts before it that are right."""
        outputs = seat.request.outputs
        outputs.leave()
        outputs.extend(tokens)
        self.known[seat.number] += len(tokens)
        self._tokens.sit(seat.number, outputs)

    def reject_drafts(self, numbers: NDArray[np.int64]) -> None:
        """Notes that scheduled tokens without an output are not computed."""
        self.scheduled[numbers] = self.computed[numbers]

    def let_grow(self, number: int, *, grows: bool) -> None:
        """Notes whether the request of a seat runs or loads, and is neither held nor stopping."""
        if bool(self.grows[number]) is not grows:
            self.grows[number] = grows
            self.growing += 1 if grows else -1
            self.flips += 1

    def end_growth(self) -> None:
        """Notes that nothing runs or loads in any seat."""
        self.grows[:] = False
        self.growing = 0
        self.flips += 1

    def growth(self, block_size: int, without: Sequence[Seat] = ()) -> int:
        """Blocks that the running requests may still need and were not promised.

        Args:
            block_size: Tokens per block.
            without: Seats that do not count.
        """
        grows = self.grows
        if without:
            grows = grows.copy()
            grows[[seat.number for seat in without]] = False
        tokens = np.maximum(self.known, self.scheduled)
        have = np.maximum(-(-tokens // block_size), self.begun_with)
        more = -(-(self.max_length - 1) // block_size) - have
        return int(np.maximum(more, 0)[grows].sum())

    def _drop_priority(self, priority: int) -> None:
        """Notes that one request less of a priority has a seat."""
        self.priorities[priority] -= 1
        if not self.priorities[priority]:
            del self.priorities[priority]
