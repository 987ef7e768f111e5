"""The running batch: its seats, those that decode or compute a prompt, and steps in flight."""

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blockyard._core import Lease, LeaseBatch, Ticket
from blockyard.scheduling.engine import Chunk, Start, Step, Stop
from blockyard.scheduling.options import SchedulerOptions
from blockyard.scheduling.request import Request, RequestState
from blockyard.scheduling.sampled import EMPTIED, TokenRows
from blockyard.yard.cache import KVCache

__all__ = ["Batch", "Grown", "InFlightStep", "Rows", "Seat", "Seats"]


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
        self._tokens.sit(number, request.outputs, len(request.new.prompt))
        request.seat, request.lease = number, lease
        self._seats[number] = seat
        self.priorities[request.new.priority] = self.priorities.get(request.new.priority, 0) + 1
        self.arrivals += 1
        self.scheduled[number] = self.computed[number] = lease.cached
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
        seat.ended = True
        self.departures += 1

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

    def launch(self, rows: "Rows", step: int) -> NDArray[np.int64]:
        """Notes that a step computes these rows; returns the first position of each."""
        firsts = self.scheduled[rows.numbers]
        self.scheduled += rows.positions
        self.steps_run += rows.once
        self.last_step[rows.numbers] = step
        return firsts

    def add_computed(self, tokens: NDArray[np.int64]) -> None:
        """Notes tokens whose KV the engine has acknowledged, in the place of each seat."""
        self.computed += tokens

    def add_sampled(self, rows: "Rows", tokens: NDArray[np.uint32]) -> None:
        """Takes a token that was sampled in each of some rows."""
        self._tokens.add(rows.numbers, rows.once, tokens)
        # In turn, so that no step empties many.
        self._due += self.count
        while self._due >= EMPTIED:
            self._due -= EMPTIED
            self._last = (self._last + 1) % self.count
            seat = self._seats[self._last]
            if seat is not None:
                self._empty(seat)

    def add_accepted(self, seat: Seat, tokens: NDArray[np.uint32]) -> None:
        """Takes a token that was sampled in a seat, and drafts before it that are right."""
        self._empty(seat)
        seat.request.outputs.extend(tokens)
        self._empty(seat)
        self.known[seat.number] += len(tokens)

    def _empty(self, seat: Seat) -> None:
        """Moves the sampled tokens of a seat out of its row."""
        self._tokens.sit(seat.number, seat.request.outputs, len(seat.request.new.prompt))

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


class Rows:
    """The rows of a step, those that decode first. Steps share one as long as it is the same.

    Args:
        seats: Their seats.
        counts: Positions that each computes; None for one each.
        decodes: How many decode; those behind are chunks.
        of: The number of all seats.
    """

    __slots__ = (
        *("counts", "decode", "batch", "decodes", "leases", "left", "numbers", "once", "positions"),
        *("samples", "seats"),
    )

    def __init__(
        self, seats: list[Seat], counts: NDArray[np.int64] | None, decodes: int, of: int
    ) -> None:
        self.seats = seats
        self.decodes = decodes
        self.leases = [seat.lease for seat in seats]
        self.batch: LeaseBatch | list[Lease] = self.leases
        """The leases for verbs: those that decode are looked up once."""
        self.numbers = numbers = np.array([seat.number for seat in seats], np.int64)
        self.decode = numbers[:decodes].astype(np.int32)
        """The seats of those that decode."""
        self.samples = np.ones(len(seats), np.bool_)
        self.once = np.zeros(of, np.int64)
        """1 in the place of each of the seats."""
        self.once[numbers] = 1
        self.counts = np.ones(len(seats), np.int64) if counts is None else counts
        # Engines get this array: it is read-only.
        self.counts.flags.writeable = False
        self.positions = self.once
        """The positions that each computes, in the places of their seats."""
        if counts is not None:
            self.positions = np.zeros(of, np.int64)
            self.positions[numbers] = counts
        self.left = 0
        """Steps that all can compute, at least, before the one behind which one of them ends."""


class InFlightStep(NamedTuple):
    """A step in flight."""

    number: int
    rows: Rows
    lasts: frozenset[int]
    """Seats whose chunk is their last: they sample."""
    departures: int
    """`Seats.departures` when it was launched."""
    plain: bool
    """Whether all rows decode one token, and none reaches its `max_tokens`."""


class Grown(NamedTuple):
    """Rows that decode and have room for more."""

    seats: list[Seat]
    counts: NDArray[np.int64] | None
    """Positions of each; None for one each."""
    skipped: list[Seat]
    """Rows that found no room, and skip the step (T36)."""
    need: int
    """Blocks that those rows lack."""
    ends: bool = False
    """Whether one of the rows that have room may reach its `max_tokens`."""

    def without_stopped(self) -> "Grown":
        """The same without rows that were stopped since."""
        keep = [at for at, seat in enumerate(self.seats) if seat.stop is None]
        if len(keep) == len(self.seats):
            return self
        counts = None if self.counts is None else self.counts[keep]
        return self._replace(seats=[self.seats[at] for at in keep], counts=counts)


class Batch:
    """Seats that compute: each is loading, in prefill or in decode, or computes no more.

    Args:
        cache: The cache that holds their blocks.
        seats: Their seats, and how far each is.
        options: The budget of a step, and the drafts of a row.
    """

    def __init__(self, cache: KVCache, seats: Seats, options: SchedulerOptions) -> None:
        self._cache = cache
        self.seats = seats
        self._budget = options.max_num_batched_tokens
        self._drafts = options.num_speculative_tokens
        self._rows: Rows | None = None
        """Those that decode; None where some have come or gone since."""
        self._loading: list[Seat] = []
        # Dictionaries keep the order, and drop a seat in constant time.
        self._prefill: dict[Seat, None] = {}
        self._decode: dict[Seat, None] = {}
        self._held: dict[Seat, None] = {}
        self._in_flight: deque[InFlightStep] = deque()
        self._held_back: list[tuple[int, int]] = []
        self.dead: str | None = None
        """Why the engine failed; None while it lives."""
        self.number = cache.done
        """The newest step, counted on from the last step that is done in the cache."""

    @property
    def loading(self) -> bool:
        """Whether a seat waits for its loads."""
        return bool(self._loading)

    @property
    def prefilling(self) -> bool:
        """Whether a seat has a prompt with parts that are not scheduled yet."""
        return bool(self._prefill)

    @property
    def computing(self) -> bool:
        """Whether a step in flight has rows."""
        return any(step.rows.seats for step in self._in_flight)

    @property
    def steps_in_flight(self) -> int:
        """Steps whose output has not come."""
        return len(self._in_flight)

    @property
    def oldest(self) -> InFlightStep | None:
        """The oldest step in flight."""
        return self._in_flight[0] if self._in_flight else None

    @property
    def held_back(self) -> int:
        """Blocks that come back when steps in flight are done."""
        return sum(blocks for _, blocks in self._held_back)

    def add_loading(self, seat: Seat) -> None:
        """Adds a seat that waits for its loads; the engine does not know it yet."""
        self._loading.append(seat)

    def drop_loading(self, seat: Seat) -> None:
        """Drops a seat that waits for its loads."""
        self._loading.remove(seat)

    def take_loading(self) -> list[Seat]:
        """Drops and returns all seats that wait for their loads."""
        loading, self._loading = self._loading, []
        return loading

    def landed(self) -> list[Seat]:
        """Drops and returns the seats whose loads have ended."""
        if not self._loading:
            return []
        landed = [seat for seat in self._loading if seat.lease.state != "loading"]
        if landed:
            self._loading = [seat for seat in self._loading if seat.lease.state == "loading"]
        return landed

    def start(self, seat: Seat) -> Start:
        """Adds a seat that can compute, with a `Start` for the engine."""
        cached = seat.lease.cached
        self.seats.scheduled[seat.number] = self.seats.computed[seat.number] = cached
        self._prefill[seat] = None
        entry = seat.request
        return Start(entry.id, seat.number, seat.epoch, entry.tokens(), cached)

    def begin_decode(self, seat: Seat) -> None:
        """Moves a seat to decode: its prompt is computed and its first token is known (T6)."""
        self.seats.let_grow(seat.number, grows=not seat.request.held)
        if seat.request.held:
            self._held[seat] = None
            return
        self._decode[seat] = None
        self._rows = None

    def pause_decoding(self, seat: Seat) -> None:
        """Leaves a seat that decodes out of the next steps."""
        if seat in self._decode:
            self.drop(seat)
            self.seats.let_grow(seat.number, grows=False)
            self._held[seat] = None

    def resume_decoding(self, seat: Seat) -> None:
        """Takes a seat into the next steps again."""
        if seat in self._held:
            self.drop(seat)
            self.begin_decode(seat)

    def drop(self, seat: Seat) -> None:
        """Drops a seat: nothing more is computed in it."""
        if seat in self._decode:
            del self._decode[seat]
            self._rows = None
        else:
            self._held.pop(seat, None)
            self._prefill.pop(seat, None)

    @property
    def held(self) -> list[Seat]:
        """Seats that decode nothing for now."""
        return list(self._held)

    def running(self) -> list[Seat]:
        """Seats that decode, then those that are held, then those whose prompt is computed."""
        return [*self._decode, *self._held, *self._prefill]

    def pending_write(self, seat: Seat) -> int | None:
        """The last step in flight that may still write a seat's blocks; None where none may."""
        oldest, last = self.oldest, int(self.seats.last_step[seat.number])
        return last if oldest is not None and oldest.number <= last else None

    def hold_back(self, blocks: int, after: int) -> None:
        """Notes blocks that come back when the step `after` is done."""
        self._held_back.append((after, blocks))

    def retire(self) -> InFlightStep:
        """Removes and returns the oldest step in flight, whose output has come."""
        return self._in_flight.popleft()

    def done(self, step: int) -> None:
        """Releases blocks that were held back for a step."""
        self._cache.commit([], done=step)
        if self._held_back:
            self._held_back = [held for held in self._held_back if held[0] > step]

    def grow(self) -> Grown:
        """Makes room for the next tokens of the decoding rows."""
        if not self._decode:
            return Grown([], None, [], 0)
        rows = self._rows
        if rows is None:
            seats = list(self._decode)
            rows = self._rows = Rows(seats, None, len(seats), self.seats.count)
            rows.batch = self._cache.batch(rows.leases)
        seats, leases, counts = rows.seats, rows.batch, None
        ends = rows.left <= 1
        if rows.left <= 0 or self._drafts or (self._prefill and len(self.seats.priorities) > 1):
            left, more = self._left(rows)
            if not more.any():
                return Grown([], None, [], 0)
            if not more.all():
                seats = [seat for seat, grows in zip(seats, more, strict=True) if grows]
                leases = [seat.lease for seat in seats]
            ends = bool((left[more] <= 1).any())
            counts = np.minimum(left[more], 1 + self._drafts) if self._drafts else None
        unserved = self._cache.grow(leases, counts)
        if len(unserved) and counts is not None:
            # Drafts are optional: try with the newest token alone.
            again = self._cache.grow([seats[at].lease for at in unserved], None)
            counts[unserved] = 1
            unserved = unserved[again]
        if not len(unserved):
            return Grown(seats, counts, [], 0, ends)
        skipped = unserved.tolist()
        need = sum(
            self._blocks(seats[at].lease, 1 if counts is None else int(counts[at])) for at in skipped
        )
        grows = np.ones(len(seats), np.bool_)
        grows[unserved] = False
        served = np.flatnonzero(grows)
        return Grown(
            [seats[at] for at in served.tolist()],
            None if counts is None else counts[served],
            [seats[at] for at in skipped],
            need,
            ends,
        )

    def _left(self, rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """How many positions rows have left to compute, and which of the rows grow."""
        scheduled = self.seats.scheduled[rows.numbers]
        left = self.seats.max_length[rows.numbers] - 1 - scheduled
        rows.left = int(left.min())
        # Rows sit out whose last token is in flight, or whose drafts are not judged yet.
        more = left > 0
        if self._drafts:
            more &= scheduled == self.seats.computed[rows.numbers]
        if self._prefill and len(self.seats.priorities) > 1:
            self._leave_budget(rows.seats, more)
        return left, more

    def _leave_budget(self, seats: list[Seat], more: NDArray[np.bool_]) -> None:
        """Lets rows sit out that would leave prompts of a higher priority under half the budget.

        Args:
            seats: The rows that decode.
            more: Which of them grow; those that sit out are cleared.
        """
        highest = max(seat.request.new.priority for seat in self._prefill)
        wanted = sum(
            int(self.seats.known[seat.number] - self.seats.scheduled[seat.number])
            for seat in self._prefill
            if seat.request.new.priority == highest
        )
        each, growing = 1 + self._drafts, np.flatnonzero(more).tolist()
        left = self._budget - each * len(growing)
        lacks = -(-(min(wanted, (self._budget + 1) // 2) - left) // each)
        lower = [at for at in growing if seats[at].request.new.priority < highest]
        lower.sort(key=lambda at: seats[at].request.rank, reverse=True)
        more[lower[: max(lacks, 0)]] = False

    def blocks_wanted(self, steps: int) -> int:
        """Blocks that rows in decode lack for `steps` more steps, at one token each.

        Call it after `grow`, which has made room for the next step.
        """
        if self._rows is None:
            return 0
        numbers = self._rows.numbers
        last = self.seats.max_length[numbers] - 1
        now = np.minimum(self.seats.scheduled[numbers] + 1, last)
        then = np.minimum(now + steps, last)
        size = self._cache.block_size
        return int((-(-then // size) - -(-now // size)).sum())

    def _blocks(self, lease: Lease, more: int) -> int:
        """Blocks that a lease lacks for `more` positions."""
        return -(-(lease.tokens + more) // self._cache.block_size) - lease.blocks

    def launch(self, grown: Grown, starts: Sequence[Start], stops: Sequence[Stop]) -> Step:
        """The next step: rows that have grown, and as much of the prompts as the budget leaves."""
        self.number = number = self.number + 1
        decode, positions, rows = grown.seats, grown.counts, self._rows
        left = self._budget - (len(decode) if positions is None else int(positions.sum()))
        chunks = self._chunks(left)
        if rows is not None:
            rows.left -= 1
        if rows is None or decode is not rows.seats or positions is not None or chunks:
            counts = np.ones(len(decode), np.int64) if positions is None else positions
            counts = np.concatenate((counts, np.array([count for _, count in chunks], np.int64)))
            seats = decode + [seat for seat, _ in chunks]
            rows = Rows(seats, counts, len(decode), self.seats.count)
        firsts = self.seats.launch(rows, number)
        samples, lasts = rows.samples.copy(), list[int]()
        if chunks:
            behind = rows.numbers[len(decode) :]
            samples[len(decode) :] = self.seats.scheduled[behind] == self.seats.known[behind]
            for (seat, _), is_last in zip(chunks, samples[len(decode) :].tolist(), strict=True):
                if is_last:
                    lasts.append(seat.number)
                    del self._prefill[seat]
        plain = bool(decode) and not chunks and positions is None and not grown.ends
        departures = self.seats.departures
        self._in_flight.append(InFlightStep(number, rows, frozenset(lasts), departures, plain))
        parts = zip(chunks, firsts[len(decode) :].tolist(), strict=True) if chunks else ()
        return Step(
            number,
            tuple(stops),
            tuple(starts),
            tuple([Chunk(seat.number, first, count) for (seat, count), first in parts]),
            rows.decode.copy(),
            list(rows.leases),
            firsts,
            rows.counts,
            samples,
        )

    def _chunks(self, left: int) -> list[tuple[Seat, int]]:
        """Chunks of the prompts within `left` tokens: by priority, then as they have started."""
        if not self._prefill:
            return []
        chunks, prompts = [], list(self._prefill)
        if len(self.seats.priorities) > 1:
            prompts.sort(key=lambda seat: -seat.request.new.priority)
        for seat in prompts:
            if left <= 0:
                break
            missing = int(self.seats.known[seat.number] - self.seats.scheduled[seat.number])
            count = min(missing, left)
            if count > 0:
                chunks.append((seat, count))
                left -= count
        return chunks

    def die(self, reason: str) -> None:
        """Notes why the engine failed: from now on it runs nothing."""
        self.dead = reason
        self.seats.end_growth()

    def clear(self) -> None:
        """Drops all seats, and all steps in flight, as the engine was reset."""
        self.dead = None
        self._in_flight.clear()
        self._loading.clear()
        self._prefill.clear()
        self._decode.clear()
        self._held.clear()
        self._rows = None
