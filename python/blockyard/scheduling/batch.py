"""The running batch: who decodes, whose prompt is computed, and the steps in flight."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from blockyard._core import Lease
from blockyard.scheduling.engine import Chunk, Start, Step, Stop
from blockyard.scheduling.seats import Seat, Seats
from blockyard.yard.cache import KVCache

__all__ = ["Batch", "Grown", "InFlightStep"]


class InFlightStep(NamedTuple):
    """A step in flight: who computes how much in it."""

    number: int
    seats: list[Seat]
    numbers: NDArray[np.int64]
    counts: NDArray[np.int64]
    leases: list[Lease]
    decodes: int
    """Rows that decode; those behind are chunks."""
    lasts: frozenset[int]
    """Seats whose chunk is their last: they sample."""
    left: int
    """`Seats.left` when it took off."""


class Grown(NamedTuple):
    """Rows that decode and have room for more."""

    seats: list[Seat]
    counts: NDArray[np.int64] | None
    """Positions of each; None for one each."""
    short: list[Seat]
    """T36: rows that found no room, and skip the step."""
    need: int
    """Blocks that those want."""

    def going(self) -> "Grown":
        """Without those who were stopped since."""
        goes = [at for at, seat in enumerate(self.seats) if seat.stop is None]
        if len(goes) == len(self.seats):
            return self
        counts = None if self.counts is None else self.counts[goes]
        return self._replace(seats=[self.seats[at] for at in goes], counts=counts)


class Batch:
    """Who runs. A seat stands in one of three lists, or in none when nothing more is computed.

    Args:
        cache: Where their blocks are.
        seats: Where they sit, and how far each is.
        budget: Most tokens computed in a step; rows that decode are never left out for it.
        drafts: Draft tokens in each row that decodes.
    """

    def __init__(self, cache: KVCache, seats: Seats, budget: int, drafts: int) -> None:
        self._cache = cache
        self._seats = seats
        self._budget = budget
        self._drafts = drafts
        self._rows: tuple[list[Lease], NDArray[np.int64]] | None = None
        self.loading: list[Seat] = []
        # Ordered, as dictionaries are, and left in constant time.
        self.prefill: dict[Seat, None] = {}
        self.decode: dict[Seat, None] = {}
        self.in_flight: deque[InFlightStep] = deque()
        self.number = cache.done
        """Of the newest step; what is held back for others' steps has come back already."""

    def start(self, seat: Seat) -> Start:
        """The engine hears of a seat only now that it can compute in it."""
        cached = seat.lease.cached
        self._seats.scheduled[seat.number] = self._seats.computed[seat.number] = cached
        self.prefill[seat] = None
        entry = seat.request
        return Start(entry.id, seat.number, seat.epoch, entry.tokens(), cached)

    def decodes(self, seat: Seat) -> None:
        """T6: its prompt is computed, and its first token is there."""
        self.decode[seat] = None
        self._rows = None

    def leave(self, seat: Seat) -> None:
        """Nothing more is computed in it."""
        if seat in self.decode:
            del self.decode[seat]
            self._rows = None
        else:
            self.prefill.pop(seat, None)

    def running(self) -> list[Seat]:
        """Who decodes, and whose prompt is computed."""
        return [*self.decode, *self.prefill]

    def landed(self) -> list[Seat]:
        """Whose loads have ended: they load no more."""
        landed = [seat for seat in self.loading if seat.lease.state != "loading"]
        if landed:
            self.loading = [seat for seat in self.loading if seat.lease.state == "loading"]
        return landed

    def grow(self) -> Grown:
        """Room for what the next step computes of those that decode."""
        seats = list(self.decode)
        if not seats:
            return Grown([], None, [], 0)
        if self._rows is None:
            numbers = np.fromiter((seat.number for seat in seats), np.int64, len(seats))
            self._rows = [seat.lease for seat in seats], numbers
        leases, numbers = self._rows
        scheduled = self._seats.scheduled[numbers]
        left = self._seats.most[numbers] - 1 - scheduled
        # A step in flight computes their last token; or says how many drafts were good.
        more = left > 0
        if self._drafts:
            more &= scheduled == self._seats.computed[numbers]
        if not more.all():
            seats = [seat for seat, goes in zip(seats, more, strict=True) if goes]
            leases = [seat.lease for seat in seats]
        if not seats:
            return Grown([], None, [], 0)
        counts = np.minimum(left[more], 1 + self._drafts) if self._drafts else None
        unserved = self._cache.grow(leases, counts)
        if len(unserved) and counts is not None:
            # Drafts are a wish: the newest token alone may have room.
            again = self._cache.grow([leases[at] for at in unserved], None)
            counts[unserved] = 1
            unserved = unserved[again]
        if not len(unserved):
            return Grown(seats, counts, [], 0)
        short = unserved.tolist()
        need = sum(
            self._blocks(leases[at], 1 if counts is None else int(counts[at])) for at in short
        )
        goes = np.ones(len(seats), np.bool_)
        goes[unserved] = False
        served = np.flatnonzero(goes)
        return Grown(
            [seats[at] for at in served.tolist()],
            None if counts is None else counts[served],
            [seats[at] for at in short],
            need,
        )

    def wanting(self, steps: int) -> int:
        """Blocks that those who decode lack for so many steps more, at one token each.

        To be asked behind `grow`: what the next step computes has its room.
        """
        if self._rows is None:
            return 0
        numbers = self._rows[1]
        last = self._seats.most[numbers] - 1
        there = np.minimum(self._seats.scheduled[numbers] + 1, last)
        wanted = np.minimum(there + steps, last)
        size = self._cache.block_size
        return int((-(-wanted // size) - -(-there // size)).sum())

    def _blocks(self, lease: Lease, more: int) -> int:
        """Blocks that a lease lacks for some positions more."""
        return -(-(lease.tokens + more) // self._cache.block_size) - lease.blocks

    def launch(self, grown: Grown, starts: Sequence[Start], stops: Sequence[Stop]) -> Step:
        """The next step: those who have grown, and of the prompts what the budget leaves."""
        self.number += 1
        decode, positions = grown.seats, grown.counts
        left = self._budget - (len(decode) if positions is None else int(positions.sum()))
        chunks = self._chunks(left)
        seats = decode + [seat for seat, _ in chunks]
        if self._rows is not None and len(decode) == len(self._rows[0]):
            leases, numbers = self._rows
        else:
            leases = [seat.lease for seat in decode]
            numbers = np.fromiter((seat.number for seat in decode), np.int64, len(decode))
        counts = np.ones(len(seats), np.int64)
        if positions is not None:
            counts[: len(decode)] = positions
        if chunks:
            leases = leases + [seat.lease for seat, _ in chunks]
            more = np.fromiter((seat.number for seat, _ in chunks), np.int64, len(chunks))
            numbers = np.concatenate((numbers, more))
            counts[len(decode) :] = [count for _, count in chunks]
        # What the engine gets is its own to sort: the scheduler's own stays here.
        counts.flags.writeable = False
        firsts = self._seats.scheduled[numbers]
        self._seats.scheduled[numbers] += counts
        for seat in seats:
            seat.last = self.number
        self._seats.ran[numbers] += 1
        lasts = [
            seat
            for seat, _ in chunks
            if self._seats.scheduled[seat.number] == self._seats.known[seat.number]
        ]
        samples = self._seats.scheduled[numbers] == self._seats.known[numbers]
        samples[: len(decode)] = True
        for seat in lasts:
            del self.prefill[seat]
        self.in_flight.append(
            InFlightStep(
                self.number,
                seats,
                numbers,
                counts,
                leases,
                len(decode),
                frozenset(seat.number for seat in lasts),
                self._seats.left,
            )
        )
        return Step(
            self.number,
            tuple(stops),
            tuple(starts),
            tuple(
                Chunk(seat.number, int(first), count)
                for (seat, count), first in zip(chunks, firsts[len(decode) :], strict=True)
            ),
            numbers[: len(decode)].astype(np.int32),
            list(leases),
            firsts,
            counts,
            samples,
        )

    def _chunks(self, left: int) -> list[tuple[Seat, int]]:
        """Of the prompts, first come first, what the budget leaves."""
        chunks = []
        for seat in self.prefill:
            if left <= 0:
                break
            missing = int(self._seats.known[seat.number] - self._seats.scheduled[seat.number])
            count = min(missing, left)
            if count > 0:
                chunks.append((seat, count))
                left -= count
        return chunks

    def clear(self) -> None:
        """Nobody runs, and nothing is in flight."""
        self.in_flight.clear()
        self.loading.clear()
        self.prefill.clear()
        self.decode.clear()
        self._rows = None
