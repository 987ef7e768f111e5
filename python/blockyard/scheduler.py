"""Continuous batching over a `KVCache`: who runs in the next step, who waits, who is stopped."""

import contextlib
import heapq
from collections import deque
from collections.abc import Hashable, Iterable
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blockyard._core import ForeignLease, Lease, Misuse, NoRoom, Soon, Ticket, TooLarge, Unavailable
from blockyard.cache import KVCache
from blockyard.engine import Ack, Chunk, Output, Start, Step, Stop
from blockyard.explain import Explanation
from blockyard.layout import natural
from blockyard.request import Request, Result, State, prompt_of
from blockyard.reserve import Reserve, Role, usual
from blockyard.seats import Seat, Seats
from blockyard.stats import Stat
from blockyard.victims import Candidate, LastCome, Victims

__all__ = ["Scheduler"]

_KEY = 32
"""Bytes of a key."""


class _Flown(NamedTuple):
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


class Scheduler:
    """Waiting and running requests. Driven by steps; it does no I/O and waits for nothing.

    `schedule` says what to run and what to stop, `on_output` and `on_acks` take what the engine
    answers. Steps may be in flight. For one thread.

    Args:
        cache: Its blocks; the scheduler is the only one that begins and finishes in it.
        seats: Rows of the engine's running batch.
        budget: Most tokens computed in a step; rows that decode come first, and are never left
            out for it.
        role: What this engine does: whole requests ("mixed"), or their "prefill" or "decode" alone.
        reserve: How much room the running batch keeps for its growth; by default what is usual for
            the role.
        victims: Who is preempted when that was too little.
        stops: "in-order" where a stop holds from its own step on, so that the output of that step
            is its ack; "acked" where the engine acks each stop.
        rest: Steps that a preempted request runs, once it is back, before it can be a victim again.
        skip: How often one that does not fit may be overtaken.
        drafts: Draft tokens that a speculative engine may compute in each row beside its newest
            token. With them a row is in one step at a time.
        prefetch: How many of the next in line have their prefix brought up ahead of their turn.

    Raises:
        Misuse: A value is out of range.
    """

    SCHEMA: Final = (
        Stat("waiting", "requests", "requests that wait for their turn"),
        Stat("seats", "seats", "seats that are not free"),
        Stat("stopping", "seats", "of these, seats that wait for their ack"),
        Stat("headroom", "blocks", "blocks kept promised for the growth of those that run"),
        Stat("steps", "steps", "steps scheduled"),
        Stat("admitted", "requests", "requests admitted, once more after each preemption"),
        Stat("preempted", "requests", "requests preempted"),
        Stat("lost", "tokens", "tokens of KV given up by preemption"),
        Stat("skipped", "rows", "rows that found no room to grow and skipped a step"),
        Stat("no_room", "steps", "steps at which somebody in line found no room"),
        Stat("soon", "requests", "begins put off, as another computes or loads the same prefix"),
        Stat("acks_ignored", "acks", "acks that were late, came twice, or are nobody's"),
        Stat("outputs_ignored", "rows", "rows of output of requests that are not there any more"),
    )

    def __init__(  # noqa: PLR0913 - what there is to choose
        self,
        cache: KVCache,
        *,
        seats: int = 256,
        budget: int = 8192,
        role: Role = "mixed",
        reserve: Reserve | None = None,
        victims: Victims | None = None,
        stops: Literal["in-order", "acked"] = "acked",
        rest: int = 8,
        skip: int = 16,
        drafts: int = 0,
        prefetch: int = 0,
    ) -> None:
        for name, value, least in (
            ("seats", seats, 1),
            ("budget", budget, 1),
            ("rest", rest, 0),
            ("skip", skip, 0),
            ("drafts", drafts, 0),
            ("prefetch", prefetch, 0),
        ):
            natural(name, value, least=least)
        if stops not in {"in-order", "acked"}:
            raise Misuse(f"stops = {stops!r}: say 'in-order' or 'acked'")
        self._cache = cache
        self._budget = budget
        self._reserve = usual(role) if reserve is None else reserve
        self._victims = LastCome() if victims is None else victims
        self._in_order = stops == "in-order"
        self._rest = rest
        self._skip = skip
        self._drafts = drafts
        self._prefetch = prefetch
        self._requests: dict[Hashable, Request] = {}
        self._line: list[tuple[tuple[int, int], Request]] = []
        self._waiting = 0
        self._seats = Seats(seats)
        self._loading: list[Seat] = []
        self._prefill: list[Seat] = []
        self._decode: list[Seat] = []
        self._stops: list[Stop] = []
        self._flown: deque[_Flown] = deque()
        self._results: list[Result] = []
        self._order = 0
        self._number = 0
        self._refused: tuple[int, int, int] | None = None
        self._short = False
        self._computing: dict[bytes, list[Request]] = {}
        self._rows: tuple[list[Lease], NDArray[np.int64]] | None = None
        self._headroom: Ticket | None = None
        self._returning: deque[tuple[int, int]] = deque()
        self._dead: str | None = None
        self._counts = dict.fromkeys(
            (
                "steps",
                "admitted",
                "preempted",
                "lost",
                "skipped",
                "no_room",
                "soon",
                "acks_ignored",
                "outputs_ignored",
            ),
            0,
        )

    # -- what the caller says ----------------------------------------------------------------

    def add(
        self,
        request: Hashable,
        prompt: object,
        *,
        most: int,
        priority: int = 0,
        salt: str | bytes | None = None,
        lora: str | bytes | None = None,
        ticket: Ticket | None = None,
    ) -> None:
        """Puts a request in line.

        Args:
            request: Its id, unlike that of any other that has not ended.
            prompt: Token ids; a copy is taken.
            most: Most tokens to sample, 1 or more.
            priority: The larger comes first, and is the last to be preempted.
            salt: As in `KVCache.keys`.
            lora: As in `KVCache.keys`.
            ticket: Room promised to it, of `KVCache.promise`; it is given back if it never begins.

        Raises:
            Misuse: The id is taken, the prompt is empty, or a value is out of range.
            TooLarge: The device can never hold it.
        """
        try:
            taken = request in self._requests
        except TypeError as error:
            raise Misuse(f"request {request!r:.60}: give an id that can be hashed") from error
        if taken:
            raise Misuse(f"request {request!r} is there already: give each an id of its own")
        natural("most", most)
        if not isinstance(priority, int):
            raise Misuse(f"priority = {priority!r}: give an integer")
        if ticket is not None and ticket.state != "open":
            raise Misuse(f"ticket {ticket.id} of request {request!r} is spent: promise again")
        tokens = prompt_of(prompt)
        # What is wrong with them is said now, not in a step.
        self._cache.keys(tokens[:1], salt=salt, lora=lora)
        config = self._cache.config
        blocks = -(-(len(tokens) + most - 1) // config.block_size)
        capacity = config.device_blocks - config.null_slots
        if blocks > capacity:
            raise TooLarge(
                f"request {request!r} may need {blocks} blocks and the device has {capacity}: "
                "shorten it, or sample fewer tokens"
            )
        entry = Request(request, tokens, most, priority, self._order, salt, lora, ticket)
        self._order += 1
        self._requests[request] = entry
        self._queue(entry)

    def abort(self, request: Hashable) -> None:
        """Ends a request, whatever it is doing; its result comes when its blocks are safe.

        Raises:
            Misuse: There is no such request.
        """
        entry = self._requests.get(request)
        if entry is None:
            raise Misuse(f"there is no request {request!r}, or it has ended")
        seat = None if entry.seat is None else self._seats.at(entry.seat)
        if seat is None:
            self._end(entry, State.ABORTED, "aborted")
            self._leave_line(entry)
        elif entry.state is State.LOADING:
            # T27: the engine has not heard of it, and its loads are abandoned.
            self._loading.remove(seat)
            self._release(seat)
            self._end(entry, State.ABORTED, "aborted")
        else:
            seat.abort = True
            if seat.stop is None:
                self._stop(seat)

    # -- one step ----------------------------------------------------------------------------

    def schedule(self) -> Step:
        """What to run next. It may be empty but for its stops.

        Raises:
            Unavailable: The engine has failed and was not reset.
        """
        if self._dead is not None:
            raise Unavailable(f"the engine failed ({self._dead}): reset it, then call `reset`")
        self._number += 1
        self._counts["steps"] += 1
        self._give_up_headroom()
        decode, positions = self._grown()
        # Behind it: who starts in this very step is no victim in it.
        starts = self._landed()
        self._keep_headroom()
        if not self._short:
            starts += self._admit()
        if self._prefetch:
            self._bring_up()
        left = self._budget - (len(decode) if positions is None else int(positions.sum()))
        return self._launch(decode, positions, self._chunks(left), starts)

    def _landed(self) -> list[Start]:
        """T3, T4: whose loads have landed computes on from what is good."""
        landed = [seat for seat in self._loading if seat.lease.state != "loading"]
        if not landed:
            return []
        self._loading = [seat for seat in self._loading if seat.lease.state == "loading"]
        starts = []
        for seat in landed:
            # The slots of a copy whose end is unknown are gone: others for them, or anew.
            if len(self._cache.grow([seat.lease], 0)):
                self._again(seat)
            else:
                starts.append(self._start(seat))
        return starts

    def _start(self, seat: Seat) -> Start:
        """The engine hears of a seat only now that it can compute in it."""
        cached = seat.lease.cached
        self._seats.scheduled[seat.number] = self._seats.computed[seat.number] = cached
        entry = seat.request
        entry.state = State.PREFILL
        self._prefill.append(seat)
        return Start(entry.id, seat.number, seat.epoch, entry.tokens(), cached)

    def _grown(self) -> tuple[list[Seat], NDArray[np.int64] | None]:
        """The rows that decode and have room for more, and how much if not 1; T36 for others."""
        self._short = False
        seats = self._decode.copy()
        if not seats:
            return [], None
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
            return [], None
        counts = np.minimum(left[more], 1 + self._drafts) if self._drafts else None
        unserved = self._cache.grow(leases, counts)
        if not len(unserved):
            return seats, counts
        self._short = True
        self._counts["skipped"] += len(unserved)
        short = set(unserved.tolist())
        size = self._cache.block_size
        need = sum(
            -(-(leases[at].tokens + (1 if counts is None else int(counts[at]))) // size)
            - leases[at].blocks
            for at in short
        )
        self._preempt(need, idle=len(short) == len(seats))
        served = [at for at, seat in enumerate(seats) if at not in short and seat.stop is None]
        return [seats[at] for at in served], None if counts is None else counts[served]

    def _chunks(self, left: int) -> list[tuple[Seat, int]]:
        """Of the prompts, first come first, what the budget leaves."""
        chunks = []
        for seat in self._prefill:
            if left <= 0:
                break
            missing = int(self._seats.known[seat.number] - self._seats.scheduled[seat.number])
            count = min(missing, left)
            if count > 0:
                chunks.append((seat, count))
                left -= count
        return chunks

    def _launch(
        self,
        decode: list[Seat],
        positions: NDArray[np.int64] | None,
        chunks: list[tuple[Seat, int]],
        starts: list[Start],
    ) -> Step:
        seats = decode + [seat for seat, _ in chunks]
        same = self._rows is not None and len(decode) == len(self._rows[0])
        if same and self._rows is not None:
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
        firsts = self._seats.scheduled[numbers]
        self._seats.scheduled[numbers] += counts
        for seat in seats:
            seat.last = self._number
        self._seats.ran[numbers] += 1
        for stop in self._stops:
            seat_at = self._seats.at(stop.seat)
            if seat_at is not None and not seat_at.stopped_at:
                seat_at.stopped_at = self._number
        stops, self._stops = tuple(self._stops), []
        lasts = [
            seat
            for seat, _ in chunks
            if self._seats.scheduled[seat.number] == self._seats.known[seat.number]
        ]
        for seat in lasts:
            self._prefill.remove(seat)
        step = Step(
            self._number,
            stops,
            tuple(starts),
            tuple(
                Chunk(seat.number, int(first), count)
                for (seat, count), first in zip(chunks, firsts[len(decode) :], strict=True)
            ),
            numbers[: len(decode)].astype(np.int32),
            leases,
            firsts,
            counts,
        )
        self._flown.append(
            _Flown(
                self._number,
                seats,
                numbers,
                counts,
                leases,
                len(decode),
                frozenset(seat.number for seat in lasts),
                self._seats.left,
            )
        )
        return step

    # -- admission ---------------------------------------------------------------------------

    def _admit(self) -> list[Start]:
        """T1, T2, T5, T22: begins whoever fits, first come first, the first overtaken seldom."""
        starts: list[Start] = []
        if not self._line or self._seats.full or self._refused == self._standing():
            return starts
        self._computing = self._prefilling()
        aside: list[Request] = []
        soon: list[Request] = []
        while len(aside) + len(soon) <= self._skip and (entry := self._next(aside)):
            begun = self._begin(entry, starts)
            if begun is None:
                soon.append(entry)
            elif not begun:
                aside.append(entry)
            elif aside:
                aside[0].overtaken += 1
        for entry in aside + soon:
            heapq.heappush(self._line, (entry.rank, entry))
        self._counts["no_room"] += bool(aside)
        self._counts["soon"] += len(soon)
        self._refused = self._standing() if aside and not soon else None
        return starts

    def _next(self, aside: list[Request]) -> Request | None:
        """Whose turn it is; nobody's where all seats are taken, or one was overtaken enough."""
        if self._seats.full or (aside and aside[0].overtaken >= self._skip):
            return None
        while self._line:
            entry = heapq.heappop(self._line)[1]
            if not entry.terminal:
                return entry
        return None

    def _standing(self) -> tuple[int, int, int]:
        """What decides whether one that was refused is refused again."""
        return self._spare(), len(self._seats), len(self._loading)

    def _spare(self) -> int:
        """Device blocks to be had that nobody was promised; less than none after a resize."""
        room = self._cache.room()
        return room.free + room.evictable - room.promised

    def _begin(self, entry: Request, starts: list[Start]) -> bool | None:
        """Whether it is in line no more; None where another computes or loads its prefix now."""
        self._keyed(entry)
        if self._soon(entry) is not None:
            return None
        most = entry.most - len(entry.outputs)
        reserve = min(self._reserve.promise(most - 1), most - 1)
        try:
            lease = self._cache.begin(
                entry.keys, reserve=reserve, filling="soon", ticket=entry.ticket
            )
        except (TooLarge, Misuse) as error:
            # The device was made smaller, or its ticket is not of this cache.
            self._end(entry, State.FAILED, str(error))
            self._leave_line(entry)
            return True
        except NoRoom:
            found = self._alone(entry, reserve)
            if found is None:
                return False
            lease = found
        if isinstance(lease, Soon):
            return None
        entry.overtaken = 0
        entry.ticket = None
        self._waiting -= 1
        self._counts["admitted"] += 1
        seat = self._seats.bind(entry, lease, len(entry.prompt) + entry.most - 1)
        entry.seat, entry.lease = seat.number, lease
        if lease.state == "loading":
            entry.state = State.LOADING
            self._loading.append(seat)
        else:
            starts.append(self._start(seat))
            self._computing.setdefault(entry.chain[:_KEY], []).append(entry)
        return True

    def _alone(self, entry: Request, reserve: int) -> Lease | None:
        """One that fills the device and is all there has no room to compute its last token anew.

        With nobody to wait for, it begins without that token, and so without the last block.
        """
        size = 1 if entry.keys is None else entry.keys.tokens
        if len(self._seats) or size == 1 or size % self._cache.block_size:
            return None
        tokens = entry.tokens()
        keys = self._cache.keys(tokens[:-1], salt=entry.salt, lora=entry.lora)
        try:
            lease = self._cache.begin(keys, reserve=reserve + 1, ticket=entry.ticket)
        except NoRoom:
            return None
        self._cache.append(lease, tokens[-1:])
        self._cache.grow(lease)
        return lease

    def _prefilling(self) -> dict[bytes, list[Request]]:
        """Whose prompts are being computed, by their first key."""
        found: dict[bytes, list[Request]] = {}
        for seat in self._seats.bound():
            if seat.request.state is State.PREFILL and seat.request.chain:
                found.setdefault(seat.request.chain[:_KEY], []).append(seat.request)
        return found

    def _bring_up(self) -> None:
        """The prefixes of the next in line, each once."""
        for _, entry in heapq.nsmallest(self._prefetch, self._line):
            if entry.terminal or entry.prefetched:
                continue
            entry.prefetched = True
            self._keyed(entry)
            if entry.keys is not None:
                with contextlib.suppress(NoRoom):
                    self._cache.promote(entry.keys)

    def _keyed(self, entry: Request) -> None:
        if entry.keys is None:
            entry.keys = self._cache.keys(entry.tokens(), salt=entry.salt, lora=entry.lora)
            entry.chain = bytes(entry.keys)

    def _soon(self, entry: Request) -> Request | None:
        """Who computes more of its prompt just now than can be found: it waits for that."""
        others = self._computing.get(entry.chain[:_KEY]) if entry.chain else None
        if not others or entry.keys is None:
            return None
        probe = self._cache.probe(entry.keys)
        found = (probe.device + probe.host + probe.disk + 1) * _KEY
        # Keys are chained: where one is the same, so are all before it.
        mine = entry.chain[found - _KEY : found]
        return next(
            (one for one in others if mine and one.chain[found - _KEY : found] == mine), None
        )

    def _leave_line(self, entry: Request) -> None:
        """It waits no more. What it leaves in line goes at the latest when half are such."""
        self._waiting -= 1
        if entry.ticket is not None and entry.ticket.state == "open":
            with contextlib.suppress(ForeignLease):
                self._cache.release(entry.ticket)
        if len(self._line) > 2 * self._waiting:
            self._line = [one for one in self._line if not one[1].terminal]
            heapq.heapify(self._line)

    def _again(self, seat: Seat) -> None:
        """Its request goes back in line, with N as it is now."""
        self._release(seat)
        seat.request.keys = None
        seat.request.chain = b""
        seat.request.state = State.RECOMPUTE
        self._queue(seat.request)

    def _queue(self, entry: Request) -> None:
        self._waiting += 1
        self._refused = None
        heapq.heappush(self._line, (entry.rank, entry))

    def _give_up_headroom(self) -> None:
        if self._headroom is not None:
            self._cache.release(self._headroom)
            self._headroom = None

    def _keep_headroom(self) -> None:
        """What the batch may still grow by is promised, so that no begin can take it."""
        want = self._reserve.headroom(self.running) if self.running else 0
        if want <= 0:
            return
        want = min(want, self._spare())
        if want > 0:
            self._headroom = self._cache.promise(want)

    # -- preemption --------------------------------------------------------------------------

    def _preempt(self, need: int, *, idle: bool) -> None:
        """INV-25: victims, only while what is free, or will be, is less than the need.

        What stops, or ends with the steps in flight, is on its way. `idle`: no row found room.
        """
        coming = sum(blocks for _, blocks in self._returning)
        coming += sum(self._frees(seat) for seat in self._seats.bound() if seat.stop is not None)
        short = need - coming - max(self._spare(), 0)
        # Nothing that goes on would make room by itself.
        flown = any(step.seats for step in self._flown)
        stuck = idle and not (self._prefill or flown or self._loading or coming)
        while short > 0 and (running := self._decode + self._prefill):
            # One that runs alone makes room by its end for itself only where it holds twice what
            # another had computed too.
            held = self._cache.stats()
            twins = held["device_pinned"] + held["device_claimed"] - running[0].lease.blocks
            alone = len(running) == 1 and not (stuck and twins > 0)
            able = [] if alone else [seat for seat in running if self._frees(seat) > 0]
            rested = [
                seat
                for seat in able
                if not seat.request.preempted or self._seats.ran[seat.number] >= self._rest
            ]
            if not rested and stuck:
                rested = able
            if not rested:
                return
            victim = self._victims.choose([self._candidate(seat) for seat in rested])
            seat = next(seat for seat in rested if seat.number == victim.seat)
            self._counts["preempted"] += 1
            self._counts["lost"] += victim.computed
            seat.request.preempted += 1
            self._reserve.preempted()
            self._stop(seat)
            short -= victim.frees

    def _candidate(self, seat: Seat) -> Candidate:
        entry = seat.request
        computed = int(self._seats.computed[seat.number])
        return Candidate(seat.number, entry.priority, entry.order, self._frees(seat), computed)

    def _frees(self, seat: Seat) -> int:
        """Device blocks that only this seat's lease holds."""
        return self._cache.held_alone(seat.lease)

    def _stop(self, seat: Seat) -> None:
        """T7, T24, T35: no new work; blocks and seat stay until the ack."""
        seat.stop = self._seats.stop(seat)
        if not seat.request.terminal:
            seat.request.state = State.STOPPING
        self._stops.append(seat.stop)
        self._leave(seat)

    def _leave(self, seat: Seat) -> None:
        """Nothing more is computed in it."""
        if seat in self._decode:
            self._decode.remove(seat)
            self._rows = None
        elif seat in self._prefill:
            self._prefill.remove(seat)

    # -- what the engine says ----------------------------------------------------------------

    def on_output(self, output: Output) -> None:
        """Takes the output of the oldest step in flight, and the acks that came with it.

        Raises:
            Misuse: It is not of the oldest step in flight, of rows that were not in it, or without
                one that was; nothing is taken.
        """
        if self._dead is not None:
            self._counts["outputs_ignored"] += len(output.seats)
            return
        if not self._flown or output.step != self._flown[0].number:
            wanted = self._flown[0].number if self._flown else "none"
            raise Misuse(f"output of step {output.step}: the oldest in flight is {wanted}")
        if self._plain(output):
            return
        sampled = self._sampled(output)
        flown = self._flown.popleft()
        computed = self._accepted(flown, output)
        alive = [self._lives(seat) for seat in flown.seats]
        if all(alive):
            self._seats.computed[flown.numbers] += computed
        else:
            live = np.array(alive, np.bool_)
            self._counts["outputs_ignored"] += int((~live).sum())
            self._seats.computed[flown.numbers[live]] += computed[live]
        self._tokens(output, sampled)
        rows = [
            seat
            for seat, lives in zip(flown.seats, alive, strict=True)
            if lives and not seat.request.terminal
        ]
        if rows:
            numbers = np.fromiter((seat.number for seat in rows), np.int64, len(rows))
            leases = [seat.lease for seat in rows]
            if self._drafts:
                self._trim(flown, rows)
            self._cache.seal(leases, self._seats.computed[numbers])
            self._reserve.stepped()
        self._done(output.step)
        self._ended(output, sampled)
        if self._in_order:
            self._acked_in_order(output.step)
        self.on_acks(output.acks)

    def _plain(self, output: Output) -> bool:
        """The step that most are: everybody decodes, nobody has left, nobody ends."""
        flown, seats = self._flown[0], self._seats
        numbers = flown.numbers
        if (
            flown.left != seats.left
            or flown.decodes != len(numbers)
            or self._drafts
            or output.counts is not None
            or output.acks
            or (self._in_order and seats.stopping)
            or output.tokens.dtype != np.uint32
            or len(output.tokens) != len(numbers)
            or not len(numbers)
            or not np.array_equal(output.seats, numbers)
            or (
                output.ended is not None
                and (len(output.ended) != len(numbers) or output.ended.any())
            )
            or (seats.known[numbers] + 1 >= seats.most[numbers]).any()
        ):
            return False
        self._flown.popleft()
        seats.computed[numbers] += 1
        seats.known[numbers] += 1
        self._cache.append(flown.leases, output.tokens)
        for seat, token in zip(flown.seats, output.tokens.tolist(), strict=True):
            seat.request.outputs.append(token)
        self._cache.seal(flown.leases, seats.computed[numbers])
        self._done(output.step)
        self._reserve.stepped()
        return True

    def _trim(self, flown: _Flown, rows: list[Seat]) -> None:
        """The positions of drafts that were not accepted go back."""
        drafted = set(flown.numbers[: flown.decodes].tolist())
        rows = [seat for seat in rows if seat.number in drafted]
        numbers = np.fromiter((seat.number for seat in rows), np.int64, len(rows))
        self._seats.scheduled[numbers] = self._seats.computed[numbers]
        self._cache.trim([seat.lease for seat in rows], self._seats.computed[numbers])

    @staticmethod
    def _accepted(flown: _Flown, output: Output) -> NDArray[np.int64]:
        """Positions of each row whose KV stands: of drafts, those that were accepted."""
        if output.counts is None and len(output.seats) == len(flown.numbers):
            # All sampled one token each, so nothing but the newest token stands.
            computed = flown.counts.copy()
            computed[: flown.decodes] = 1
            return computed
        said = dict(
            zip(
                output.seats.tolist(),
                [1] * len(output.seats) if output.counts is None else output.counts.tolist(),
                strict=True,
            )
        )
        computed = flown.counts.copy()
        for at, number in enumerate(flown.numbers[: flown.decodes].tolist()):
            computed[at] = said.get(number, 0)
        return computed

    def _sampled(self, output: Output) -> list[Seat | None]:
        """Who sampled; None where the request is not there any more. Checks before it changes."""
        flown, step = self._flown[0], output.step
        may = {
            seat.number: (seat, most)
            for seat, most in zip(flown.seats, flown.counts[: flown.decodes].tolist(), strict=False)
        }
        may |= {
            seat.number: (seat, 1)
            for seat in flown.seats[flown.decodes :]
            if seat.number in flown.lasts
        }
        seats = output.seats.tolist()
        counts = [1] * len(seats) if output.counts is None else output.counts.tolist()
        ended = seats if output.ended is None else output.ended
        if len(counts) != len(seats) or sum(counts) != len(output.tokens):
            raise Misuse(f"{len(output.tokens)} tokens for {sum(counts)} sampled in step {step}")
        if len(ended) != len(seats):
            raise Misuse(f"{len(ended)} ends for {len(seats)} rows that sampled in step {step}")
        if output.tokens.dtype != np.uint32:
            raise Misuse(f"tokens of {output.tokens.dtype} in step {step}: give uint32")
        found: list[Seat | None] = []
        for number, count in zip(seats, counts, strict=True):
            seat, most = may.pop(number, (None, 0))
            if seat is None:
                raise Misuse(f"output of seat {number}, which samples nothing in step {step}")
            if not 1 <= count <= most:
                raise Misuse(f"{count} tokens of seat {number} in step {step}: from 1 to {most}")
            found.append(seat if self._lives(seat) else None)
        for number, (seat, _) in may.items():
            if self._lives(seat) and seat.stop is None:
                raise Misuse(f"step {step} has sampled in seat {number}, and its output has not")
        return found

    def _lives(self, seat: Seat) -> bool:
        """Whether its request is there still, in this seat."""
        return self._seats.at(seat.number) is seat and not seat.gone

    def _done(self, step: int) -> None:
        """What was held back for this step comes back."""
        self._cache.commit([], done=step)
        while self._returning and self._returning[0][0] <= step:
            self._returning.popleft()

    def _tokens(self, output: Output, sampled: list[Seat | None]) -> None:
        """T8 too: tokens of who is stopping count, as long as its ack has not come."""
        tokens = output.tokens
        counts = output.counts
        if counts is None and None not in sampled:
            leases = [seat.lease for seat in sampled if seat is not None]
            if leases:
                self._cache.append(leases, tokens)
            self._seats.known[output.seats] += 1
            for seat, token in zip(sampled, tokens.tolist(), strict=True):
                if seat is not None:
                    seat.request.outputs.append(token)
        else:
            ends = np.cumsum(np.ones(len(sampled), np.int64) if counts is None else counts)
            for seat, end, start in zip(
                sampled, ends.tolist(), np.concatenate(([0], ends)).tolist(), strict=False
            ):
                if seat is None:
                    continue
                own = tokens[start:end]
                self._cache.append(seat.lease, own)
                self._seats.known[seat.number] += len(own)
                seat.request.outputs.extend(own.tolist())
        for seat in sampled:
            if seat is not None and seat.request.state is State.PREFILL:
                seat.request.state = State.DECODE
                seat.request.chain = b""
                self._decode.append(seat)
                self._rows = None

    def _ended(self, output: Output, sampled: list[Seat | None]) -> None:
        """T28, T35: an end token, or the length asked for."""
        said = output.ended
        for at, seat in enumerate(sampled):
            if seat is None:
                continue
            entry = seat.request
            by_engine = said is not None and bool(said[at])
            if not by_engine and len(entry.outputs) < entry.most:
                continue
            self._leave(seat)
            reason = "stop" if len(entry.outputs) < entry.most else "length"
            self._end(entry, State.FINISHED, reason)
            if by_engine and seat.stop is None:
                self._release(seat)
                continue
            seat.gone = True
            self._seats.left += 1
            if seat.stop is None:
                self._stop(seat)

    def on_acks(self, acks: Iterable[Ack]) -> None:
        """Takes acks; one that is late, came twice, or is nobody's is counted, and that is all."""
        for ack in acks:
            seat = self._seats.at(ack.seat)
            if (
                self._dead is not None
                or seat is None
                or seat.stop is None
                or not seat.stopped_at
                or tuple(seat.stop) != tuple(ack)
            ):
                self._counts["acks_ignored"] += 1
                continue
            self._acked(seat)

    def _acked_in_order(self, step: int) -> None:
        for seat in self._seats.bound():
            if seat.stop is not None and 0 < seat.stopped_at <= step:
                self._acked(seat)

    def _acked(self, seat: Seat) -> None:
        """T9, T11, T26: N is frozen, here and nowhere else."""
        if seat.gone:
            self._release(seat)
        elif seat.abort:
            self._release(seat)
            self._end(seat.request, State.ABORTED, "aborted")
        else:
            self._again(seat)

    def _release(self, seat: Seat) -> None:
        """Its blocks go back when the steps in flight that may write them are done."""
        after = seat.last if self._flown and self._flown[0].number <= seat.last else None
        if after is not None:
            self._returning.append((self._flown[-1].number, self._frees(seat)))
        self._cache.finish(seat.lease, after=after)
        if seat.stop is not None and seat.stop in self._stops:
            self._stops.remove(seat.stop)
        self._seats.free(seat)
        seat.request.seat = seat.request.lease = None
        self._refused = None

    def _end(self, entry: Request, state: State, reason: str) -> None:
        """The one place where a request ends."""
        entry.state = state
        del self._requests[entry.id]
        self._results.append(Result(entry.id, state, np.array(entry.outputs, np.uint32), reason))

    # -- when acks do not come -----------------------------------------------------------------

    def reconcile(self, active: Iterable[int], step: int) -> None:
        """T29: the engine says which seats it has, as of its step `step`.

        A stopping seat that is not there any more counts as acked; one that still is gets its stop
        again, of the same epoch.

        Raises:
            Misuse: The step was not scheduled yet.
        """
        natural("step", step, least=0)
        if step > self._number:
            raise Misuse(f"step = {step}: only {self._number} were scheduled")
        there = set(active)
        for seat in self._seats.bound() if self._dead is None else ():
            if seat.stop is None or not 0 < seat.stopped_at <= step:
                continue
            if seat.number not in there:
                self._acked(seat)
            elif seat.stop not in self._stops:
                self._stops.append(seat.stop)

    def fail(self, reason: str = "the engine is dead") -> None:
        """T29: the engine is dead. Whom it had ends as FAILED; their blocks wait for `reset`.

        Who is in line stays there, and who was loading goes back: the engine never had them.

        Args:
            reason: Of their results.
        """
        if self._dead is not None:
            return
        self._dead = reason
        self._leave_loading()
        for seat in self._seats.bound():
            if not seat.gone:
                seat.gone = True
                self._leave(seat)
                self._end(seat.request, State.FAILED, reason)
        self._seats.left += 1
        self._stops.clear()
        self._give_up_headroom()

    def reset(self, *, requests: Literal["recompute", "abort"] = "recompute") -> None:
        """T33: the engine was reset: nothing is computed any more, and its KV is gone.

        Args:
            requests: "recompute" those that ran, or "abort" them.

        Raises:
            Misuse: Another word.
        """
        if requests not in {"recompute", "abort"}:
            raise Misuse(f"requests = {requests!r}: say 'recompute' or 'abort'")
        self._cache.clear()
        done = self._flown[-1].number if self._flown else self._number
        self._dead = None
        self._flown.clear()
        self._stops.clear()
        for running in (self._loading, self._prefill, self._decode):
            running.clear()
        self._rows = None
        for seat in self._seats.bound():
            if seat.gone:
                self._release(seat)
            elif seat.abort or requests == "abort":
                self._release(seat)
                self._end(seat.request, State.ABORTED, "aborted")
            else:
                self._again(seat)
        self._done(done)

    def update_weights(self) -> None:
        """T33: nothing computed so far is used again; who runs is stopped, and computes anew."""
        self._cache.clear()
        for seat in self._seats.bound():
            if seat.stop is None and seat.request.state is not State.LOADING:
                self._stop(seat)
        self._leave_loading()
        self._refused = None

    def _leave_loading(self) -> None:
        for seat in self._loading:
            self._again(seat)
        self._loading.clear()

    # -- questions ---------------------------------------------------------------------------

    def results(self) -> list[Result]:
        """How requests have ended since the last call: exactly one for each."""
        results, self._results = self._results, []
        return results

    def state(self, request: Hashable) -> State | None:
        """Where a request is; None when it has ended or never was."""
        entry = self._requests.get(request)
        return None if entry is None else entry.state

    def lease(self, request: Hashable) -> Lease | None:
        """What a request holds; None while it waits, and when it has ended."""
        entry = self._requests.get(request)
        return None if entry is None else entry.lease

    def explain(self, request: Hashable) -> Explanation:
        """What a request is doing, or why it waits, and who holds the device.

        Raises:
            Misuse: There is no such request.
        """
        entry = self._requests.get(request)
        if entry is None:
            raise Misuse(f"there is no request {request!r}, or it has ended")
        seat = None if entry.seat is None else self._seats.at(entry.seat)
        self._keyed(entry)
        below = self._cache.explain(seat.lease if seat is not None else entry.keys or entry.tokens())
        lines = self._of_line(entry) if seat is None else self._of_seat(seat)
        return Explanation(
            (f"Request {request!r} is {entry.state}.", *lines, *below.lines), below.holders
        )

    def _of_line(self, entry: Request) -> list[str]:
        before = sum(rank < entry.rank and not one.terminal for rank, one in self._line)
        lines = [f"{before} requests stand before it; it was overtaken {entry.overtaken} times."]
        if self._dead is not None:
            lines.append(f"The engine failed: {self._dead}.")
        if self._seats.full:
            lines.append(f"All {len(self._seats)} seats are taken.")
        self._computing = self._prefilling()
        if (other := self._soon(entry)) is not None:
            lines.append(f"It waits for request {other.id!r}, which computes the same prompt.")
        if self._headroom is not None:
            lines.append(f"{self._headroom.blocks} blocks are kept for those that run.")
        return lines

    def _of_seat(self, seat: Seat) -> list[str]:
        at = seat.number
        lines = [
            (
                f"In seat {at}, epoch {seat.epoch}: {self._seats.computed[at]} of "
                f"{self._seats.known[at]} tokens are computed; {self._seats.ran[at]} steps ran it."
            )
        ]
        if seat.stop is not None:
            since = f"step {seat.stopped_at}" if seat.stopped_at else "the next step"
            lines.append(f"It waits for the ack of the stop of {since}.")
        elif self._flown and seat.last < self._flown[0].number and seat in self._decode:
            lines.append("It is in no step in flight.")
        return lines

    @property
    def running(self) -> int:
        """Sequences that run or are loading, for which `headroom` is kept."""
        return len(self._seats) - self._seats.stopping

    @property
    def headroom(self) -> int:
        """Blocks that are kept promised for the growth of those that run."""
        return 0 if self._headroom is None else self._headroom.blocks

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do any more."""
        return not self._requests and not len(self._seats) and not self._flown

    def stats(self) -> dict[str, int]:
        """Counters and sizes; `SCHEMA` has units and meanings."""
        seats = self._seats
        sizes = {
            "waiting": self._waiting,
            "seats": len(seats),
            "stopping": seats.stopping,
            "headroom": self.headroom,
        }
        return sizes | self._counts
