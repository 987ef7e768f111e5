"""One stream of copies: flights that end in the order in which they began."""

import contextlib
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from blockyard._core import Marks
from blockyard.copiers import Landed, Slots
from blockyard.gpu import Gpu, GpuError, Memory, freed
from blockyard.plan import Cause
from blockyard.tiers import Tier
from blockyard.tiers.pinned import Pinned

__all__ = ["Flight", "Lane"]

# Slots up to which a kernel reads its tables over the link rather than from a copy of them.
_SHORT = 64
# Least words of the desk on which such tables are laid out.
_DESK = 1 << 14
# Calls in the air, from which on none is taken: beyond about a thousand a driver's queue is full,
# and then a call waits, with the interpreter's lock held. A batch weighs one for so many runs.
_CALLS = 512
_RUNS = 32


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
        "span",
        "tables",
    )

    def __init__(self, lane: "Lane", number: int, blocks: int, event: int) -> None:
        self.lane = lane
        self.number = number
        self.blocks = blocks
        self.event = event
        self.calls = 0
        self.span = self.tables = 0, 0
        """Words of the desk, and addresses of the two tables there."""
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


class Lane:
    """A stream, its events, and the desk on which slots are laid out for kernels.

    Args:
        gpu: Whose stream.
        tiers: That it copies between.
        depth: Most flights in the air.
        parts: Events in between, for parts of a flight; with 1 there are none.
        lose: Told of the error that has ended the device.
    """

    def __init__(
        self,
        gpu: Gpu,
        tiers: Sequence[Tier],
        depth: int,
        parts: int,
        lose: Callable[[GpuError], object],
    ) -> None:
        self.other: Lane | None = None
        """That which goes the other way."""
        self.flights: deque[Flight] = deque()
        self.sweeps = 0
        self._gpu = gpu
        self._lose = lose
        self._last = 0
        self._touched = {tier.name: Marks(tier.blocks) for tier in tiers}
        # Slots are distinct where they are written, so that a tier bounds a flight: two of the
        # longest, or many short ones.
        self._size = max(4 * max(tier.blocks for tier in tiers), _DESK)
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

    def ring(self, nbytes: int) -> Memory:
        """Device memory of its own."""
        self._memory.append(self._gpu.allocate(nbytes))
        return self._memory[-1]

    def take(self, blocks: int, words: int, calls: int, runs: int) -> Flight | None:
        """A flight; None when too much is in the air for it.

        Args:
            blocks: Of it.
            words: Of the desk.
            calls: Of the driver.
            runs: In batches.
        """
        calls += runs // _RUNS
        start = self._room(words, calls)
        if start is None:
            # Receipts that nobody polls are no reason to be full.
            self.sweep()
            start = self._room(words, calls)
        if start is None:
            return None
        self._last += 1
        flight = Flight(self, self._last, blocks, self._events.pop())
        flight.calls, flight.span = calls, (start, start + words)
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
        met = zip(pair, (sources, destinations), strict=True)
        last = max(other._touched[name].latest(slots) for name, slots in met)  # noqa: SLF001
        behind = last - other.flights[0].number
        if behind >= 0:
            self._gpu.wait(self.stream, other.flights[behind].event)

    def touch(
        self, pair: tuple[str, str], flight: Flight, sources: Slots, destinations: Slots
    ) -> None:
        """This flight is the last that was at these slots."""
        for name, slots in zip(pair, (sources, destinations), strict=True):
            self._touched[name].touch(slots, flight.number)

    def table(self, flight: Flight, sources: Slots, destinations: Slots) -> None:
        """Lays out a flight's slots where a kernel reads them."""
        start, end = flight.span
        middle = start + flight.blocks
        self._words[start:middle] = sources.data
        self._words[middle:end] = destinations.data
        base, copy = self._tables
        if flight.blocks > _SHORT:
            here, there, size = base + 4 * start, copy + 4 * start, 4 * (end - start)
            base = copy
            self._gpu.copy_rows(there, size, here, size, size, 1, self.stream)
        flight.tables = base + 4 * start, base + 4 * middle

    def end(self, flight: Flight) -> None:
        """The flight has ended with what was queued until now.

        Raises:
            GpuError: That could not be asked for: nobody will know when.
        """
        try:
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

    def free(self) -> None:
        """Gives back what it has."""
        if self._desk is not None:
            self._desk.free()
        freed(self._gpu, self._memory)
        if self.stream:
            # Of a lost device nothing can be given back.
            with contextlib.suppress(GpuError), self._gpu:
                self._gpu.discard(self.stream, self._made)
            self.stream, self._made = 0, []

    def _event(self) -> int:
        self._made.append(self._gpu.event())
        return self._made[-1]

    def _land(self, flight: Flight) -> None:
        self._events.append(flight.event)
        flight.landed = Landed(0, Cause.FAILED) if flight.failed else Landed(flight.blocks)

    def _room(self, words: int, calls: int) -> int | None:
        """Where on the desk there is a place, if there is an event and the queue is not long."""
        queued = sum(flight.calls for flight in self.flights)
        long = queued and queued + calls > _CALLS
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
