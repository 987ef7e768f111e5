"""One stream of copies: flights that end in the order in which they began."""

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from blockyard._core import Marks
from blockyard.crane.copiers import Landed, Slots
from blockyard.crane.copiers.address_tables import AddressTables
from blockyard.crane.gpu import Gpu, GpuError, Memory, Move, freed
from blockyard.crane.tiers import Tier
from blockyard.crane.tiers.pinned import Pinned
from blockyard.shared.plan import Cause

__all__ = ["CALLS", "CopyStream", "Flight", "Part"]

# Slots up to which a kernel reads its tables over the link rather than from a copy of them.
_SHORT = 64
# Thread blocks that copy those.
_GROUPS = 16
# Least words of the desk on which such tables are laid out.
_DESK = 1 << 14
CALLS = 512
"""Calls in flight on a lane, from which on none is taken: beyond about a thousand a driver's queue
is full, and then a call waits, with the interpreter's lock held."""


class Flight:
    """A receipt."""

    __slots__ = (
        "asked",
        "blocks",
        "calls",
        "event",
        "failed",
        "landed",
        "lane",
        "number",
        "runs",
        "span",
    )

    def __init__(self, lane: "CopyStream", number: int, blocks: int, event: int) -> None:
        self.lane = lane
        self.number = number
        self.blocks = blocks
        self.event = event
        self.calls = self.runs = 0
        self.span = 0, 0
        """Words of the desk."""
        self.failed = False
        """Not all of it was queued."""
        self.asked = -1
        self.landed: Landed | None = None

    def poll(self) -> Landed | None:
        """How it has ended, if it has.

        The driver is asked by the first of a lane, for all of them; by another one only when that
        first one was not heard of since it asked the last time.
        """
        if self.landed is None:
            lane = self.lane
            if lane.flights[0] is self or self.asked == lane.sweeps:
                lane.sweep()
            self.asked = lane.sweeps
        return self.landed


class Part:
    """A flight that is to be queued, or a part of one.

    Args:
        lane: Where.
        pair: From which tier to which.
        sources: Slots, shape (blocks,).
        destinations: Slots, shape (blocks,).
        jobs: The route of each plane, and the road that it takes.
    """

    __slots__ = (
        "calls",
        "destinations",
        "dropped",
        "flight",
        "jobs",
        "lane",
        "marked",
        "pair",
        "runs",
        "sources",
        "tables",
    )

    def __init__(
        self,
        lane: "CopyStream",
        pair: tuple[str, str],
        sources: Slots,
        destinations: Slots,
        jobs: Sequence[tuple[Any, str]],
    ) -> None:
        self.lane = lane
        self.pair = pair
        self.sources = sources
        self.destinations = destinations
        self.jobs = jobs
        self.calls, self.runs = 6 + len(lane.parts), 0
        """Of the driver, and in batches: to order it, to lay out its slots, and to end it, too."""
        for route, road in jobs:
            layered = road == "layers"
            calls, runs = (len(lane.parts), 0) if layered else route.cost(road, len(sources))
            self.calls += calls
            self.runs += runs
        self.flight: Flight | None = None
        """None until it is queued."""
        self.tables = 0, 0
        """Addresses of its slots, where a kernel reads them."""
        self.dropped: Cause | None = None
        """Why it will not be queued."""
        self.marked = False
        """Whether its slots are marked already, with the number that its flight will have."""

    def cut(self, blocks: int) -> "list[Part]":
        """It in parts of so many blocks."""
        starts = range(0, len(self.sources), blocks)
        parts = [slice(start, start + blocks) for start in starts]
        ends = [(self.sources[part], self.destinations[part]) for part in parts]
        return [Part(self.lane, self.pair, *slots, self.jobs) for slots in ends]

    def drop(self, cause: Cause) -> None:
        """It is not queued any more."""
        self.dropped = cause

    def poll(self) -> Landed | None:
        """How it has ended, if it has."""
        if self.dropped is not None:
            return Landed(0, self.dropped)
        return None if self.flight is None else self.flight.poll()


class CopyStream:
    """A stream, its events, and the desk on which slots are laid out for kernels.

    Args:
        gpu: Whose stream.
        tiers: That it copies between.
        depth: Most flights in flight.
        parts: Events in between, for parts of a flight; with 1 there are none.
        runs: Most runs of batches in flight.
        lose: Told of the error that has ended the device.
    """

    def __init__(
        self,
        gpu: Gpu,
        tiers: Sequence[Tier],
        depth: int,
        parts: int,
        runs: int,
        lose: Callable[[GpuError], object],
    ) -> None:
        self.other: CopyStream | None = None
        """That which goes the other way."""
        self.flights: deque[Flight] = deque()
        self.later: deque[Part] = deque()
        """Taken, and queued when there is room."""
        self.sweeps = 0
        self._gpu = gpu
        self._lose = lose
        self.last = 0
        """Number of the flight that was queued last."""
        self._touched = {tier.name: Marks(tier.blocks) for tier in tiers}
        # Slots are distinct where they are written, so that a tier bounds a flight: two of the
        # longest, or many short ones.
        self._size = max(4 * max(tier.blocks for tier in tiers) + 2, _DESK)
        self._runs = runs
        self._pages = 0, 0
        self.side = 0
        """A stream on which parts of a ring are filled; 0 where they are filled on its own."""
        self.begun = 0
        self.filled: list[int] = []
        self.freed: list[int] = []
        """An event for each part of the ring."""
        self._memory: list[Memory] = []
        self._made: list[int] = []
        self._desk: Pinned | None = None
        self.stream = 0
        try:
            self._desk = desk = Pinned(gpu, 4 * self._size)
            # Not as an array: NumPy gives the interpreter's lock away to copy 500 words.
            self._words = desk.array.view(np.uint32).data
            self._memory.append(gpu.allocate(4 * self._size))
            self._tables = desk.address, self._memory[0].address
            self.stream = gpu.stream()
            self._computed = self._event()
            self.parts = [self._event() for _ in range(parts if parts > 1 else 0)]
            self._events = [self._event() for _ in range(depth)]
        except BaseException:
            self.free()
            raise

    def ring(self, nbytes: int, parts: int) -> Memory:
        """Device memory of its own; where it has parts, with what orders their use."""
        self._memory.append(self._gpu.allocate(nbytes))
        if parts > 1:
            self.side = self._gpu.stream()
            self.begun = self._event()
            self.filled = [self._event() for _ in range(parts)]
            self.freed = [self._event() for _ in range(parts)]
        return self._memory[-1]

    def chart(self, atlas: AddressTables) -> None:
        """Notes in an atlas where the desk is, and its copy on the device."""
        desk, copy = (atlas.add(np.array([at], np.uint64)) for at in self._tables)
        self._pages = desk, copy

    def settle(self, address: int) -> None:
        """The atlas lies there."""
        self._pages = address + self._pages[0], address + self._pages[1]
        self._gpu.prepare(4)

    def take(self, blocks: int, words: int, calls: int, runs: int) -> Flight | None:
        """A flight; None when too much is in flight for it.

        Args:
            blocks: Of it.
            words: Of the desk.
            calls: Of the driver.
            runs: In batches.
        """
        start = self._room(words, calls, runs)
        if start is None:
            # Receipts that nobody polls are no reason to be full.
            self.sweep()
            start = self._room(words, calls, runs)
        if start is None:
            return None
        self.last += 1
        flight = Flight(self, self.last, blocks, self._events.pop())
        flight.calls, flight.runs, flight.span = calls, runs, (start, start + words)
        self.flights.append(flight)
        return flight

    def order(
        self, compute: int, pair: tuple[str, str], sources: Slots, destinations: Slots
    ) -> None:
        """What comes next waits for the engine, and for the other lane where their slots meet."""
        self._gpu.record(self._computed, compute)
        self._gpu.wait(self.stream, self._computed)
        other = self.other
        if other is None or not other.flights or not len(sources):
            return
        # A mark may be of a part that was dropped, and never had a flight.
        last = min(other.latest(pair, sources, destinations), other.last)
        behind = last - other.flights[0].number
        if behind >= 0:
            self._gpu.wait(self.stream, other.flights[behind].event)

    def touch(
        self, pair: tuple[str, str], number: int, sources: Slots, destinations: Slots
    ) -> None:
        """The flight of this number is the last that was at these slots, or will be."""
        for name, slots in zip(pair, (sources, destinations), strict=True):
            self._touched[name].touch(slots, number)

    def mark(self, task: Part, number: int) -> None:
        """Touches its slots, once."""
        if not task.marked:
            self.touch(task.pair, number, task.sources, task.destinations)
            task.marked = True

    def coming(self, pair: tuple[str, str], sources: Slots, destinations: Slots) -> bool:
        """Whether a flight of the other lane that is not queued yet will be at one of the slots."""
        other = self.other
        if other is None or not other.later or not len(sources):
            return False
        return other.latest(pair, sources, destinations) > other.last

    def latest(self, pair: tuple[str, str], sources: Slots, destinations: Slots) -> int:
        """The number of the last flight that was at one of these slots, or will be."""
        met = zip(pair, (sources, destinations), strict=True)
        return max(self._touched[name].latest(slots) for name, slots in met)

    def table(self, span: tuple[int, int], task: Part) -> None:
        """Lays out slots where a kernel reads them."""
        head, end = span
        start = head + 1
        middle = start + len(task.sources)
        self._words[start:middle] = task.sources.data
        self._words[middle:end] = task.destinations.data
        base, copy = self._tables
        if len(task.sources) > _SHORT:
            # By a kernel: a copy engine may have gigabytes to do before it comes to them. The desk
            # is one piece in slots of a word, and the word before the tables says which is first.
            self._words[head] = start
            desk, there, which, size = *self._pages, base + 4 * head, 4 * (end - start)
            move = Move(desk, 4, which, there, 4, which, 1, 1, size, 4, _GROUPS)
            self._gpu.move(move, self.stream)
            base = copy
        task.tables = base + 4 * start, base + 4 * middle

    def end(self, flight: Flight) -> None:
        """The flight has ended with what was queued until now.

        Raises:
            GpuError: That could not be asked for: nobody will know when.
        """
        try:
            if flight.failed and self.side:
                # It may have filled parts of a ring for which nobody waits any more.
                self._gpu.record(self.begun, self.side)
                self._gpu.wait(self.stream, self.begun)
            self._gpu.record(flight.event, self.stream)
        except MemoryError as error:
            raise GpuError(repr(error), "the end of a copy", lost=True) from error

    def sweep(self) -> None:
        """Lands what has ended."""
        self.sweeps += 1
        try:
            with self._gpu:
                while self.flights and self._gpu.ended(self.flights[0].event):
                    self._land(self.flights.popleft())
        except GpuError as error:
            # What a stream ends with is the end of the device.
            self._lose(GpuError(error.name, "a flight", lost=True))

    def lose(self) -> None:
        """Nobody knows how its flights end."""
        while self.flights:
            self.flights.popleft().landed = Landed(0, Cause.LOST)
        self.drop(Cause.LOST)

    def drop(self, cause: Cause) -> None:
        """What is not queued yet will not be."""
        while self.later:
            self.later.popleft().drop(cause)

    def synchronize(self) -> None:
        """Waits until all that was queued has ended."""
        for stream in (self.side, self.stream):
            if stream:
                self._gpu.synchronize(stream)

    def free(self) -> None:
        """Gives back what it has."""
        if self._desk is not None:
            self._desk.free()
        freed(self._gpu, self._memory)
        if self.stream:
            # Of a lost device nothing can be given back.
            with contextlib.suppress(GpuError), self._gpu:
                if self.side:
                    self._gpu.discard(self.side, [])
                self._gpu.discard(self.stream, self._made)
            self.side, self.stream, self._made = 0, 0, []

    def _event(self) -> int:
        self._made.append(self._gpu.event())
        return self._made[-1]

    def _land(self, flight: Flight) -> None:
        self._events.append(flight.event)
        flight.landed = Landed(0, Cause.FAILED) if flight.failed else Landed(flight.blocks)

    def _room(self, words: int, calls: int, runs: int) -> int | None:
        """Where on the desk there is a place, if there is an event and the queue is not long."""
        queued = sum(flight.calls for flight in self.flights)
        given = sum(flight.runs for flight in self.flights)
        long = (queued and queued + calls > CALLS) or (given and given + runs > self._runs)
        return None if long or not self._events else self._place(words)

    def _place(self, words: int) -> int | None:
        """Where so many words of the desk are free: behind the newest flight, or at the start."""
        spans = [flight.span for flight in self.flights if flight.span[0] < flight.span[1]]
        if not spans or not words:
            return 0
        head, tail = spans[0][0], spans[-1][1]
        if tail <= head:
            return tail if head - tail >= words else None
        if self._size - tail >= words:
            return tail
        return 0 if head >= words else None
