"""Worker threads that copy with NumPy, the interpreter's lock not held while bytes move."""

import sys
import threading
import time
import weakref
from itertools import pairwise
from queue import SimpleQueue

import numpy as np

from blockyard._core import Misuse
from blockyard.crane.copiers import Landed, Receipt, Slots
from blockyard.crane.tiers import Tier, planes_of
from blockyard.crane.tiers.pieces import aligned
from blockyard.shared.log import Limited
from blockyard.shared.owner import Owner, broke_in, owned
from blockyard.shared.plan import Cause
from blockyard.shared.single import Single
from blockyard.shared.validate import integer

__all__ = ["CopyThreads", "ThreadCopier"]

# Bytes that a worker takes at a time: enough to outweigh the taking, and to fit into a cache.
_CHUNK = 8 << 20
# Bytes from which a copy call of its own is cheaper than gathering and scattering in one.
_LONG = 256 << 10
_log = Limited("blockyard")


class CopyThreads:
    """Worker threads of one copier, or of the copiers of one lane in the cranes of several groups.

    They start with the first copy, and end with the last of their copiers.

    Args:
        workers: Threads. With 0 a copier's `start` itself copies.
    """

    def __init__(self, workers: int = 2) -> None:
        self.workers = integer("workers", workers, least=0)
        # One entry per worker and copy, so that all work on the oldest; None ends the workers.
        self._queue: SimpleQueue[_Copy | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._copiers: set[int] = set()
        """The copiers that are not closed, by `id`."""
        # Where it is dropped its threads end. It waits for none: this may run in one of them.
        weakref.finalize(self, self._queue.put, None).atexit = False

    @property
    def running(self) -> bool:
        """Whether threads have started."""
        return bool(self._threads)

    def join(self, copier: "ThreadCopier") -> None:
        """Adds a copier."""
        self._copiers.add(id(copier))

    def take(self, copy: "_Copy") -> None:
        """Has all threads work on a copy, in its turn."""
        while len(self._threads) < self.workers:
            name = "blockyard-copier"
            thread = threading.Thread(target=_work, args=(self._queue,), name=name, daemon=True)
            thread.start()
            self._threads.append(thread)
        for _ in self._threads:
            self._queue.put(copy)

    def leave(self, copier: "ThreadCopier", *, wait: bool = True) -> None:
        """Takes a copier away; with the last one the threads end.

        Args:
            copier: A copier.
            wait: Whether it waits for them.
        """
        self._copiers.discard(id(copier))
        if self._copiers:
            return
        self._queue.put(None)
        if wait:
            for thread in self._threads:
                thread.join()
            # For a copier that comes later.
            self._threads = []
            while not self._queue.empty():
                self._queue.get()


class ThreadCopier(Single):
    """Copies with a few threads, which start with the first copy and share every one.

    Beside a thread that keeps the interpreter busy, a worker waits for the interpreter's lock (5
    ms, or `sys.setswitchinterval`) after each call that moved bytes: one per run of consecutive
    slots where runs are long, two for some MiB of scattered ones. Submitting a copy does not wait.
    A thread that gives the lock up for instants only, as calls of the core do, would never let a
    worker have it: so a poll pauses for an instant, once in such an interval.
    `start`, `reset` and `close` are for one thread at a time, and refuse a call that comes during
    another one; a receipt may be polled in any.

    A slow tier keeps its threads busy. So a crane makes one for each pair of tiers that it copies
    between.

    Args:
        workers: Threads. With 0 `start` itself copies, so that every run is the same.
        depth: Most copies in flight; `start` then returns None.
        threads: Threads that it shares with other copiers, in place of `workers` of its own.
    """

    def __init__(
        self, *, workers: int = 2, depth: int = 64, threads: CopyThreads | None = None
    ) -> None:
        self._threads = CopyThreads(workers) if threads is None else threads
        self.workers = self._threads.workers
        """As in the arguments."""
        self._depth = integer("depth", depth)
        self._owner = Owner()
        self._in_flight: list[_Copy] = []
        self._gave_way = 0.0
        self._closed = False
        self._threads.join(self)

    @owned
    def start(
        self, source: Tier, destination: Tier, sources: Slots, destinations: Slots
    ) -> Receipt | None:
        """Takes a copy; returns None when `depth` are in flight.

        Raises:
            Misuse: A tier has no planes in memory, or the copier is closed.
        """
        if self._closed:
            raise Misuse("the copier is closed")
        self._in_flight = [copy for copy in self._in_flight if copy.landed is None]
        if len(self._in_flight) >= self._depth:
            return None
        if not self._in_flight:
            self._gave_way = time.monotonic()
        copy = _Copy(self, source, destination, sources, destinations)
        try:
            self._in_flight.append(copy)
            if self.workers:
                self._threads.take(copy)
            else:
                copy.carry()
        except BaseException:
            # No receipt is given for it, so that nothing may be written from here on.
            copy.good = 0
            copy.end()
            raise
        return copy

    def give_way(self) -> None:
        """Lets a worker have the interpreter's lock, if it may have waited for long enough."""
        if self._threads.running and time.monotonic() >= self._gave_way + sys.getswitchinterval():
            # The shortest sleep there is: some 60 us.
            time.sleep(0)
            self._gave_way = time.monotonic()

    @owned
    def reset(self) -> None:
        """Ends all copies, after the chunks that are being copied.

        Where it is interrupted, call it again.
        """
        self._end()

    def _end(self) -> None:
        for copy in self._in_flight:
            copy.stopped = True
        for copy in self._in_flight:
            copy.end()
        self._in_flight = []

    @owned
    def close(self) -> None:
        """Ends all copies, after the chunks that are being copied; those not complete failed."""
        self._closed = True
        self._end()
        self._threads.leave(self)

    def drop(self) -> None:
        """Ends it for a finalizer: no chunk begins any more, and no thread is waited for."""
        self._closed = True
        for copy in self._in_flight:
            copy.stopped = True
        self._threads.leave(self, wait=False)


def _work(queue: "SimpleQueue[_Copy | None]") -> None:
    """Works on copies until there comes a None. Between two it keeps neither alive."""
    while (copy := queue.get()) is not None:
        copy.carry()
        del copy
    # For the next worker.
    queue.put(None)


class _Copy:
    """A copy as its workers share it, and its receipt."""

    __slots__ = (
        "_copier",
        "_destinations",
        "_inline",
        "_lock",
        "_moving",
        "_next",
        "_planes",
        "_sources",
        "_step",
        "_workers",
        "blocks",
        "good",
        "landed",
        "stopped",
    )

    def __init__(
        self,
        copier: ThreadCopier,
        source: Tier,
        destination: Tier,
        sources: Slots,
        destinations: Slots,
    ) -> None:
        workers = copier.workers
        planes = zip(planes_of(source), planes_of(destination), strict=True)
        self._planes = tuple(pair for plane in planes for pair in aligned(*plane))
        self._sources = sources
        self._destinations = destinations
        self.blocks = self.good = len(sources)
        share = -(-self.blocks // max(workers, 1))
        self._step = max(1, min(share, _CHUNK // max(source.layout.block_bytes, 1)))
        self._lock = threading.Lock()
        self._next = 0
        self.stopped = False
        """Whether no chunk of it may begin any more."""
        self._moving = 0
        """Chunks that workers have taken and not left behind."""
        self._workers = workers
        """Workers that have not left it."""
        self._inline = not workers
        """Whether `start` itself copies."""
        self._copier = copier
        self.landed: Landed | None = None

    def poll(self) -> Landed | None:
        """Returns how it has ended, or None."""
        if self.landed is None:
            self._copier.give_way()
        return self.landed

    def carry(self) -> None:
        """Works on it until no chunk is left."""
        first, fault = self.take(), None
        while first is not None:
            try:
                self.move(first)
            except Exception as error:
                if broke_in(error):
                    # Into `start`: signals come to no worker.
                    raise
                # It fails the flight, never the worker.
                if self.fail(first):
                    fault = error
            first = self.take(behind=True)
        self.leave()
        if fault is not None:
            # Only now: a handler that ends the copies waits for no worker that is in it.
            _log.warning("a copy of %d blocks failed: %r", self.blocks, fault)

    def take(self, *, behind: bool = False) -> int | None:
        """Returns the first block of the next chunk; None if none is left or one has failed.

        Args:
            behind: Whether the worker leaves one behind.
        """
        with self._lock:
            # It counts before it looks whether all has been stopped, so that `end` waits for it.
            self._moving += not behind
            first = self._next
            if self.stopped:
                self.good = min(self.good, first)
            if first >= self.good:
                self._moving -= 1
                return None
            self._next += self._step
            return first

    def move(self, first: int) -> None:
        """Copies the chunk that begins with this block."""
        sources = self._sources[first : first + self._step]
        destinations = self._destinations[first : first + self._step]
        # Slots are unsigned, so that a descent is a large difference.
        breaks = (np.diff(sources) != 1) | (np.diff(destinations) != 1)
        starts = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(sources)]
        for source, destination in self._planes:
            if len(sources) * source[0].size < _LONG * (len(starts) - 1):
                destination[destinations] = source[sources]
                continue
            for start, end in pairwise(starts):
                from_, to, blocks = int(sources[start]), int(destinations[start]), end - start
                np.copyto(destination[to : to + blocks], source[from_ : from_ + blocks])

    def fail(self, first: int) -> bool:
        """Lets nothing from this block on count; returns whether it is the first failure."""
        with self._lock:
            news = self.good == self.blocks
            self.good = min(self.good, first)
            return news

    def end(self) -> None:
        """Ends it after the chunks that are being copied: of the others no block is good.

        It takes no lock: an interrupt may have kept one.
        """
        self.stopped = True
        # Where `start` itself copied, it does no more, and nobody knows how far it came.
        while self._moving and not self._inline:
            time.sleep(1e-4)
        self._land(0 if self._inline else min(self.good, self._next))

    def leave(self) -> None:
        """Notes that a worker is done; with the last one the copy has ended."""
        with self._lock:
            self._workers -= 1
            if self._workers <= 0:
                self._land(self.good)

    def _land(self, good: int) -> None:
        if self.landed is None:
            self.landed = Landed(good, None if good == self.blocks else Cause.FAILED)
