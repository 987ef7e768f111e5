"""The running batch: seats that decode or compute a prompt, and steps in flight."""

from collections import deque
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from typing import NamedTuple

import numpy as np

from blockyard._core import Lease, LeaseBatch
from blockyard._typing import NDArray
from blockyard.scheduling.engine import Chunk, Start, Step, Stop
from blockyard.scheduling.options import SchedulerOptions
from blockyard.scheduling.seats import Seat, Seats
from blockyard.yard.cache import KVCache

__all__ = ["Batch", "Grown", "InFlightStep", "Rows"]


@dataclass(slots=True, eq=False)
class Rows:
    """The rows of a step, those that decode first. Steps share one as long as it is the same."""

    seats: list[Seat]
    leases: list[Lease]
    numbers: NDArray[np.int64]
    """The numbers of the seats."""
    counts: NDArray[np.int64]
    """Positions that each row computes."""
    decodes: InitVar[int]
    places: InitVar[int]
    batch: LeaseBatch | list[Lease] = field(init=False)
    """The leases as verbs take them: those of a `LeaseBatch` are looked up once."""
    decode: NDArray[np.int32] = field(init=False)
    """The seats of the rows that decode."""
    samples: NDArray[np.bool_] = field(init=False)
    """True for each row."""
    once: NDArray[np.int64] = field(init=False)
    """1 in the place of each of the seats."""
    positions: NDArray[np.int64] = field(init=False)
    """The positions that are computed, in the place of each seat."""
    left: int = 0
    """Steps that all can compute, at least, before the one behind which one of them ends."""

    def __post_init__(self, decodes: int, places: int) -> None:
        # Engines get this array: it is read-only.
        self.counts.flags.writeable = False
        self.batch = self.leases
        self.decode = self.numbers[:decodes].astype(np.int32)
        self.samples = np.ones(len(self.seats), np.bool_)
        self.once, self.positions = np.zeros(places, np.int64), np.zeros(places, np.int64)
        self.once[self.numbers] = 1
        self.positions[self.numbers] = self.counts


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
        self._loaded = 0
        """The loads that had ended when these were looked at last."""
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
        # A sample that begins with its leader has none: it is asked in the next step.
        self._loaded = -1

    def drop_loading(self, seat: Seat) -> None:
        """Drops a seat that waits for its loads."""
        self._loading.remove(seat)

    def take_loading(self) -> list[Seat]:
        """Drops and returns all seats that wait for their loads."""
        loading, self._loading = self._loading, []
        return loading

    def landed(self) -> list[Seat]:
        """Drops and returns the seats whose loads have ended."""
        # There may be hundreds: they are asked when the loads of one have ended.
        if not self._loading or (loaded := self._cache.loaded) == self._loaded:
            return []
        landed = [seat for seat in self._loading if seat.lease.state != "loading"]
        if landed:
            self._loading = [seat for seat in self._loading if seat.lease.state == "loading"]
        self._loaded = loaded
        return landed

    def start(self, seat: Seat) -> Start:
        """Adds a seat that can compute, with a `Start` for the engine."""
        cached = seat.lease.cached
        self.seats.set_cached(seat.number, cached)
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
            rows = self._rows = self._rows_of(list(self._decode), None, [])
        elif rows.batch is rows.leases:
            # It costs what it saves in two steps: not where rows come or go in each of them.
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
            self._blocks(seats[at].lease, 1 if counts is None else int(counts[at]))
            for at in skipped
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
            rows = self._rows_of(decode, positions, chunks)
        firsts = self.seats.add_scheduled(rows.numbers, rows.once, rows.positions, number)
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

    def _rows_of(
        self,
        decode: list[Seat],
        positions: NDArray[np.int64] | None,
        chunks: list[tuple[Seat, int]],
    ) -> Rows:
        """Rows that decode, `positions` or one for each, and chunks behind them."""
        if self._rows is not None and decode is self._rows.seats:
            leases, numbers = self._rows.leases, self._rows.numbers
        else:
            leases = [seat.lease for seat in decode]
            numbers = np.array([seat.number for seat in decode], np.int64)
        counts = np.ones(len(decode), np.int64) if positions is None else positions
        seats = decode
        if chunks:
            behind = [seat for seat, _ in chunks]
            seats, leases = decode + behind, leases + [seat.lease for seat in behind]
            numbers = np.concatenate((numbers, np.array([seat.number for seat in behind])))
            counts = np.concatenate((counts, np.array([count for _, count in chunks])))
        return Rows(seats, leases, numbers, counts, len(decode), self.seats.count)

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
