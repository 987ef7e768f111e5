"""One stream of copies, which end in the order in which they were queued."""

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from blockyard._core import Marks
from blockyard.crane.copiers import Landed, Slots
from blockyard.crane.copiers.copy_method import AddressTables
from blockyard.crane.gpu import Gpu, GpuError, Memory, Move, freed
from blockyard.crane.tiers import Tier
from blockyard.crane.tiers.pinned import Pinned
from blockyard.shared.owner import Owner, owned
from blockyard.shared.plan import Cause

__all__ = ["CALLS", "CopyPart", "CopyStream", "GpuStream", "QueuedCopy"]

# Slots up to which a kernel reads its tables over the link rather than from a copy of them.
_SHORT = 64
# Thread blocks that copy longer ones.
_GROUPS = 16
# Least words of staging memory, in which such tables are laid out.
_STAGING = 1 << 14
CALLS = 512
"""Most calls in flight on a stream: beyond about a thousand a driver's queue is full, and a call
then waits, with the interpreter's lock held."""


class QueuedCopy:
    """The receipt for a copy, or for a part of one, that was queued."""

    __slots__ = (
        "asked",
        "blocks",
        "calls",
        "event",
        "failed",
        "landed",
        "number",
        "recorded",
        "runs",
        "span",
        "stream",
    )

    def __init__(self, stream: "CopyStream", number: int, blocks: int, event: int) -> None:
        self.stream = stream
        self.number = number
        self.blocks = blocks
        self.event = event
        self.calls = self.runs = 0
        self.span = 0, 0
        """Words of staging memory."""
        self.failed = True
        """Whether not all of it was queued."""
        self.recorded = False
        """Whether its event is recorded, behind all that was queued of it."""
        self.asked = -1
        self.landed: Landed | None = None

    def poll(self) -> Landed | None:
        """Returns how it has ended, or None.

        The oldest copy of a stream asks the driver, for all of them. Another one asks only where
        nothing has asked since its own last poll.
        """
        if self.landed is None:
            self._ask()
        return self.landed

    @property
    def _owner(self) -> Owner:
        return self.stream.owner

    @owned
    def _ask(self) -> None:
        stream = self.stream
        if self.landed is None and (stream.queued[0] is self or self.asked == stream.sweeps):
            stream.sweep()
        self.asked = stream.sweeps


class CopyPart:
    """A copy that is to be queued, or a part of one.

    Args:
        stream: Where it is queued.
        pair: From which tier to which.
        sources: Slots, shape (blocks,).
        destinations: Slots, shape (blocks,).
        jobs: The transfer of each plane, and the method by which it copies.
    """

    __slots__ = (
        "calls",
        "destinations",
        "dropped",
        "jobs",
        "marked",
        "pair",
        "queued",
        "runs",
        "sources",
        "stream",
        "tables",
    )

    def __init__(
        self,
        stream: "CopyStream",
        pair: tuple[str, str],
        sources: Slots,
        destinations: Slots,
        jobs: Sequence[tuple[Any, str]],
    ) -> None:
        self.stream = stream
        self.pair = pair
        self.sources = sources
        self.destinations = destinations
        self.jobs = jobs
        self.calls, self.runs = 6 + len(stream.parts), 0
        """Calls of the driver, with those that order it, lay out its slots and end it; and runs in
        batches."""
        for transfer, method in jobs:
            layered = method == "layers"
            calls, runs = (len(stream.parts), 0) if layered else transfer.cost(method, len(sources))
            self.calls += calls
            self.runs += runs
        self.queued: QueuedCopy | None = None
        """None until it is queued."""
        self.tables = 0, 0
        """Addresses of its two tables of slots, which kernels read."""
        self.dropped: Cause | None = None
        """Why it will not be queued."""
        self.marked = False
        """Whether its slots carry its number already."""

    def cut(self, blocks: int) -> "list[CopyPart]":
        """Returns parts of it, each of this many blocks."""
        starts = range(0, len(self.sources), blocks)
        parts = [slice(start, start + blocks) for start in starts]
        ends = [(self.sources[part], self.destinations[part]) for part in parts]
        return [CopyPart(self.stream, self.pair, *slots, self.jobs) for slots in ends]

    def drop(self, cause: Cause) -> None:
        """Gives it up: it will not be queued."""
        self.dropped = cause

    @property
    def is_queued(self) -> bool:
        """Whether it is in the queue, or was: an interrupt may come when it almost is."""
        copy = self.queued
        return copy is not None and (copy.landed is not None or copy in self.stream.queued)

    def poll(self) -> Landed | None:
        """Returns how it has ended, or None."""
        if self.dropped is not None:
            return Landed(0, self.dropped)
        return self.queued.poll() if self.queued is not None and self.is_queued else None


class GpuStream:
    """A stream of the driver, and its ring: of one copier, or of those of several groups of layers.

    What one of them queues waits for what others have queued before it, so that they share a ring.
    It is made with the first of its users, and given back with the last one.

    Args:
        gpu: The GPU that the stream belongs to.
        ring_bytes: Least bytes of its ring.
    """

    def __init__(self, gpu: Gpu, ring_bytes: int = 0) -> None:
        self.gpu = gpu
        self.users: list[CopyStream] = []
        self.handle = 0
        """The stream, as the driver has it."""
        self.side = 0
        """The handle of a second stream, which fills parts of a ring; 0 where there is none."""
        self.begun = 0
        self.filled: list[int] = []
        self.freed: list[int] = []
        """An event for each part of the ring."""
        self._ring_bytes = ring_bytes
        self._ring: list[Memory] = []
        self._made: list[int] = []

    def join(self, user: "CopyStream") -> None:
        """Adds a user."""
        self.users.append(user)
        if not self.handle:
            self.handle = self.gpu.stream()

    def ring(self, nbytes: int, parts: int) -> Memory:
        """Returns its ring; with the first call allocates it, and makes what orders its use."""
        if not self._ring:
            self._ring.append(self.gpu.allocate(max(nbytes, self._ring_bytes)))
            if parts > 1:
                self.side = self.gpu.stream()
                self.begun = self._event()
                self.filled = [self._event() for _ in range(parts)]
                self.freed = [self._event() for _ in range(parts)]
        return self._ring[-1]

    def leave(self, user: "CopyStream", events: list[int]) -> None:
        """Takes a user away, and its events; with the last one all is given back."""
        # Whatever interrupts it, the next call goes on.
        self._made = list(dict.fromkeys([*self._made, *events]))
        self.users = [one for one in self.users if one is not user]
        if self.users:
            return
        freed(self.gpu, self._ring)
        if self.handle:
            # Of a lost device nothing can be given back.
            with contextlib.suppress(GpuError), self.gpu:
                if self.side:
                    self.gpu.discard(self.side, [])
                self.gpu.discard(self.handle, self._made)
        self.side, self.handle, self._made = 0, 0, []

    def _event(self) -> int:
        self._made.append(self.gpu.event())
        return self._made[-1]


class CopyStream:
    """The copies of one copier on a stream, their events, and staging memory for kernels.

    Args:
        on: The stream.
        tiers: The tiers that it copies between.
        depth: Most copies in flight.
        parts: Parts of a copy that have an event each; with 1 there are none.
        runs: Most runs of batches in flight.
        lose: Is called with the error that has ended the device.
        owner: The copier's.
    """

    def __init__(  # noqa: PLR0913 - keywords
        self,
        on: GpuStream,
        tiers: Sequence[Tier],
        depth: int,
        *,
        parts: int,
        runs: int,
        lose: Callable[[GpuError], object],
        owner: Owner,
    ) -> None:
        self.owner = owner
        self.other: CopyStream | None = None
        """The stream that goes the other way."""
        self.queued: deque[QueuedCopy] = deque()
        """Copies that have not landed, the oldest first."""
        self.later: deque[CopyPart] = deque()
        """Parts that were taken, and are queued when there is room."""
        self.sweeps = 0
        self._on = on
        self._gpu = gpu = on.gpu
        self._lose = lose
        self._landed = 0
        """Number of the copy that has landed last."""
        self._touched = {tier.name: Marks(tier.blocks) for tier in tiers}
        # Slots are distinct where they are written, so that a tier bounds a copy: two of the
        # longest, or many short ones.
        self._size = max(4 * max(tier.blocks for tier in tiers) + 2, _STAGING)
        self._runs = runs
        self._pointers = 0, 0
        self.side = self.begun = 0
        self.filled: list[int] = []
        self.freed: list[int] = []
        """Of the stream's ring."""
        self._memory: list[Memory] = []
        self._made: list[int] = []
        self._staging: Pinned | None = None
        self.handle = 0
        """The stream, as the driver has it."""
        try:
            self._staging = staging = Pinned(gpu, 4 * self._size)
            # Not as an array: NumPy gives the interpreter's lock away to copy 500 words.
            self._words = staging.array.view(np.uint32).data
            self._memory.append(gpu.allocate(4 * self._size))
            self._bases = staging.address, self._memory[0].address
            on.join(self)
            self.handle = on.handle
            self._computed = self._event()
            self.parts = [self._event() for _ in range(parts if parts > 1 else 0)]
            self._events = [self._event() for _ in range(depth)]
        except BaseException:
            self.free()
            raise

    def ring(self, nbytes: int, parts: int) -> Memory:
        """Returns the ring of its stream, which has at least so many bytes."""
        on = self._on
        ring = on.ring(nbytes, parts)
        self.side, self.begun, self.filled, self.freed = on.side, on.begun, on.filled, on.freed
        return ring

    def add_tables(self, tables: AddressTables) -> None:
        """Adds two tables of one address each: of staging memory, and of its copy."""
        staging, on_device = (tables.add(np.array([at], np.uint64)) for at in self._bases)
        self._pointers = staging, on_device

    def bind(self, address: int) -> None:
        """Takes the address at which all tables lie now."""
        self._pointers = address + self._pointers[0], address + self._pointers[1]
        self._gpu.prepare(4)

    @property
    def last(self) -> int:
        """Number of the copy that was queued last."""
        return self.queued[-1].number if self.queued else self._landed

    def take(self, task: CopyPart, words: int) -> QueuedCopy | None:
        """Begins a copy; returns None when too much is in flight for it.

        Args:
            task: The copy that it belongs to.
            words: Words of staging memory.
        """
        calls, runs = task.calls, task.runs
        start = self._room(words, calls, runs)
        if start is None:
            # What has landed and was not polled takes no room.
            for user in self._on.users:
                user.sweep()
            start = self._room(words, calls, runs)
        if start is None:
            return None
        number = self.last + 1
        # Copies land in order, so that none in the queue has the same event.
        event = self._events[number % len(self._events)]
        task.queued = copy = QueuedCopy(self, number, len(task.sources), event)
        copy.calls, copy.runs, copy.span = calls, runs, (start, start + words)
        # At last: from here on it has to end.
        self.queued.append(copy)
        return copy

    def order(
        self, compute: int, pair: tuple[str, str], sources: Slots, destinations: Slots
    ) -> None:
        """Makes what comes next wait for the engine, and for the other stream at common slots."""
        self._gpu.record(self._computed, compute)
        self._gpu.wait(self.handle, self._computed)
        other = self.other
        if other is None or not other.queued or not len(sources):
            return
        # A mark may be of a part that was dropped and never queued.
        last = min(other.latest(pair, sources, destinations), other.last)
        behind = last - other.queued[0].number
        if behind >= 0:
            self._gpu.wait(self.handle, other.queued[behind].event)

    def touch(
        self, pair: tuple[str, str], number: int, sources: Slots, destinations: Slots
    ) -> None:
        """Notes that the copy of this number is the last one at these slots."""
        for name, slots in zip(pair, (sources, destinations), strict=True):
            self._touched[name].touch(slots, number)

    def mark(self, task: CopyPart, number: int) -> None:
        """Touches the slots of a part, once."""
        if not task.marked:
            self.touch(task.pair, number, task.sources, task.destinations)
            task.marked = True

    def coming(self, pair: tuple[str, str], sources: Slots, destinations: Slots) -> bool:
        """Whether a part of the other stream that is not queued yet has one of the slots."""
        other = self.other
        if other is None or not other.later or not len(sources):
            return False
        return other.latest(pair, sources, destinations) > other.last

    def latest(self, pair: tuple[str, str], sources: Slots, destinations: Slots) -> int:
        """Returns the number of the last copy that touched one of these slots."""
        met = zip(pair, (sources, destinations), strict=True)
        return max(self._touched[name].latest(slots) for name, slots in met)

    def table(self, span: tuple[int, int], task: CopyPart) -> None:
        """Lays out the slots of a part in staging memory, for kernels."""
        head, end = span
        start = head + 1
        middle = start + len(task.sources)
        self._words[start:middle] = task.sources.data
        self._words[middle:end] = task.destinations.data
        base, on_device = self._bases
        if len(task.sources) > _SHORT:
            # By a kernel: a copy engine may have gigabytes to copy first. To it, staging memory is
            # one piece with slots of a word, and the word before the tables is the first slot.
            self._words[head] = start
            staging, there, which, size = *self._pointers, base + 4 * head, 4 * (end - start)
            move = Move(staging, 4, which, there, 4, which, 1, 1, size, 4, _GROUPS)
            self._gpu.move(move, self.handle)
            base = on_device
        task.tables = base + 4 * start, base + 4 * middle

    def end(self, copy: QueuedCopy) -> None:
        """Records the event with which the copy ends, behind all that was queued.

        Raises:
            GpuError: It could not be recorded, so that the end of the copy stays unknown.
        """
        try:
            if copy.failed and self.side:
                # It may still fill parts of a ring that nothing waits for.
                self._gpu.record(self.begun, self.side)
                self._gpu.wait(self.handle, self.begun)
            self._gpu.record(copy.event, self.handle)
            copy.recorded = True
        except MemoryError as error:
            raise GpuError(repr(error), "the end of a copy", lost=True) from error

    def sweep(self) -> None:
        """Lands the copies that have ended."""
        self.sweeps += 1
        try:
            with self._gpu:
                self.record_ends()
                while self.queued and self._gpu.ended(self.queued[0].event):
                    copy = self.queued[0]
                    self._landed = copy.number
                    copy.landed = Landed(0, Cause.FAILED) if copy.failed else Landed(copy.blocks)
                    self.queued.popleft()
        except GpuError as error:
            # An error of a stream is one of the device.
            self._lose(GpuError(error.name, "a flight", lost=True))

    def record_ends(self) -> None:
        """Records the events that interrupts have kept from it, before anything waits for them.

        Raises:
            GpuError: As `end`.
        """
        # It comes before each copy is taken, so that others are recorded.
        for copy in reversed(self.queued):
            if copy.recorded:
                break
            self.end(copy)

    def lose(self) -> None:
        """Ends all its copies as lost."""
        while self.queued:
            copy = self.queued[0]
            self._landed, copy.landed = copy.number, Landed(0, Cause.LOST)
            self.queued.popleft()
        self.drop(Cause.LOST)

    def drop(self, cause: Cause) -> None:
        """Gives up the parts that are not queued yet."""
        while self.later:
            if not self.later[0].is_queued:
                self.later[0].drop(cause)
            self.later.popleft()

    def synchronize(self) -> None:
        """Waits until all that was queued has ended."""
        for stream in (self.side, self.handle):
            if stream:
                self._gpu.synchronize(stream)

    def free(self) -> None:
        """Gives back its memory, events and streams."""
        if self._staging is not None:
            self._staging.free()
        freed(self._gpu, self._memory)
        self._on.leave(self, self._made)
        self.side, self.handle, self._made = 0, 0, []

    def _event(self) -> int:
        self._made.append(self._gpu.event())
        return self._made[-1]

    def _room(self, words: int, calls: int, runs: int) -> int | None:
        """Returns where in staging memory there is a place; None where the queue is full."""
        all_ = [copy for user in self._on.users for copy in user.queued]
        queued = sum(copy.calls for copy in all_)
        given = sum(copy.runs for copy in all_)
        long = (queued and queued + calls > CALLS) or (given and given + runs > self._runs)
        full = len(self.queued) == len(self._events)
        return None if long or full else self._place(words)

    def _place(self, words: int) -> int | None:
        """Returns where that many words are free: behind the newest copy, or at the start."""
        spans = [copy.span for copy in self.queued if copy.span[0] < copy.span[1]]
        if not spans or not words:
            return 0
        head, tail = spans[0][0], spans[-1][1]
        if tail <= head:
            return tail if head - tail >= words else None
        if self._size - tail >= words:
            return tail
        return 0 if head >= words else None
