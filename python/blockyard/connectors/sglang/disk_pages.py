"""Pages that an engine keeps under keys of its own on a disk, straight from and to its memory."""

import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import methodcaller
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from blockyard._core import Keys, Misuse, Plan, Soon, Unavailable
from blockyard.crane.tiers.disk import DiskTier
from blockyard.shared.restored import Restored
from blockyard.shared.validate import integer, seconds
from blockyard.yard.cache import KVCache
from blockyard.yard.presence import Presence

__all__ = ["KEY_BYTES", "DiskPages"]

KEY_BYTES = 32
"""Bytes of a key."""
_Planes: TypeAlias = Sequence[tuple[NDArray[np.uint64], int, int]]
_Ids: TypeAlias = NDArray[np.int64]


class DiskPages:
    """Pages of an engine's memory on a disk, by key.

    The yard decides: which slot a page has, what goes when the disk is full, and what is found. The
    disk is its only tier, and the pages of the engine's memory are its ids. A page is found when it
    is durable and not before; what is torn, or another's, is dropped as it is read.

    Pages are a sequence, in which each stands on the one before it and goes after it; or a set, as
    those of windows and states: each is there by itself.

    Any thread may call it, and several may at once. `read` and `write` wait for the disk, without a
    lock that another one needs.

    Args:
        disk: The disk, which this closes.
        pages: Pages of the engine's memory.
        page_tokens: Tokens of a page.
        planes: Where pages are in memory: for each plane the addresses of the pieces of page 0, the
            bytes from a page to the next, and the bytes of a piece.
        memory: What keeps that memory; it is held until all copies have ended.
        linked: Whether pages are a sequence.
        patience: Seconds after which a copy is given up: its memory is not touched any more then.

    Raises:
        Misuse: A value is out of range.
        Unavailable: The disk cannot be read.
    """

    def __init__(  # noqa: PLR0913 - keywords
        self,
        disk: DiskTier,
        *,
        pages: int,
        page_tokens: int,
        planes: _Planes,
        memory: object,
        linked: bool = True,
        patience: float = 30.0,
    ) -> None:
        if not 0 < patience < threading.TIMEOUT_MAX:
            raise Misuse(f"patience = {patience!r}: must be seconds, more than 0")
        self._disk = disk
        (part,) = disk.parts
        self._lane = part.lane
        self._planes = list(planes)
        self._memory: object = memory
        self._patience = patience
        self._page_tokens = integer("page_tokens", page_tokens)
        self._linked = linked
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._copies: dict[int, _Copy] = {}
        """Those in the air, by the yard's number of their flight."""
        self._numbers: dict[int, _Copy] = {}
        """Likewise by the disk's."""
        self._reports: deque[list[tuple[int, int, str]]] = deque()
        """Outcomes that the disk has reported and the yard has not committed yet."""
        self._epoch = 0
        self._clearing = 0
        self._closed = False
        # In place of a parent that nobody knows: no page ever has this key.
        self._nobody = secrets.token_bytes(KEY_BYTES)
        self._cache = KVCache(
            block_size=self._page_tokens,
            engine=pages,
            disk=disk.blocks,
            keyed=(disk.name,),
            ahead=0,
            linked=linked,
        )
        found = Restored.agreed([disk.restored()])
        self._cache.restore("disk", found.slots, found.keys, found.parents)
        self.restored = len(found.slots)
        """Pages that were there when it was opened."""

    @property
    def slots(self) -> int:
        """Pages that the disk has room for."""
        return self._disk.blocks

    @property
    def path(self) -> Path:
        """The folder."""
        return self._disk.path

    def count(self, keys: bytes) -> int:
        """Returns how many of the leading pages are there.

        Args:
            keys: 32 bytes a page.

        Raises:
            Misuse: It is closed, or another process's.
        """
        self._check_process()
        chain = self._chain(keys)
        with self._lock:
            self._check_open()
            return self._scan(chain, 0)[0]

    def which(self, keys: bytes) -> NDArray[np.bool_]:
        """Returns of each page by itself whether it is there, shape (pages,).

        Args:
            keys: 32 bytes a page.

        Raises:
            Misuse: As in `count`.
        """
        self._check_process()
        with self._lock:
            self._check_open()
            found = self._cache.which(keys)
            there: NDArray[np.bool_] = found == Presence.READY
            for at in np.flatnonzero(found == Presence.FILLING).tolist():
                # One that somebody reads is there; one that is being written is not yet.
                there[at] = self._scan(self._chain(keys[at * KEY_BYTES :][:KEY_BYTES]), 0)[0]
            return there

    def read(self, keys: bytes, ids: _Ids) -> int:
        """Reads pages into the engine's memory.

        Args:
            keys: 32 bytes a page.
            ids: Where each goes, shape (pages,), each once.

        Returns:
            How many of the leading pages are there now. Behind them memory may have been written
            to, and nothing there is good.

        Raises:
            Misuse: An id comes twice or is out of range; it is closed, or another process's.
        """
        self._check_process()
        chain = self._chain(keys)
        with self._in_time():
            good, waited = 0, None
            with self._lock:
                self._check_open()
                epoch = self._epoch
                # A load alone does not make a page younger.
                self._cache.used([chain])
            while good < len(chain):
                with self._lock:
                    copy, own = (None, False) if self._closed else self._fetch(chain, ids, good)
                if copy is None or copy is waited:
                    break
                if own:
                    came = self._end(copy)
                    good += came
                    if came < len(copy.plan):
                        break
                else:
                    self._wait(copy)
                    waited = copy
            with self._lock:
                return good if epoch == self._epoch else 0

    def write(self, keys: bytes, ids: _Ids, *, above: bytes | None) -> list[bool]:
        """Writes pages from the engine's memory, which stays as it is meanwhile.

        What is there already is not written again, and is as if it had been used now. If the disk
        is full, pages go that were used last longest ago.

        Args:
            keys: 32 bytes a page; they follow each other.
            ids: Where each is, shape (pages,), each once.
            above: The key of the page before them; b"" if they are the first of a sequence, None
                where nobody knows it.

        Returns:
            Of each page whether it is durable.

        Raises:
            Misuse: As in `read`.
        """
        self._check_process()
        chain = self._chain(keys)
        with self._in_time():
            stored = np.zeros(len(chain), np.bool_)
            waited: set[int] = set()
            busy: _Copy | None = None
            while True:
                if busy is not None:
                    self._wait(busy)
                    waited.add(busy.number)
                with self._lock:
                    self._check_open()
                    if self._clearing:
                        return [False] * len(stored)
                    epoch = self._epoch
                    have, busy = self._scan(chain, 0)
                    if busy is not None and busy.number not in waited:
                        continue
                    self._cache.used([chain])
                    plan = self._offload(chain, keys, ids, have, above)
                    copy = self._submit(plan, up=False) if plan is not None else None
                    break
            stored[:have] = True
            if copy is not None:
                good = self._end(copy)
                stored[np.isin(ids, copy.plan.sources[:good])] = True
            self._look(chain, stored, waited)
            with self._lock:
                return [bool(one) and epoch == self._epoch for one in stored]

    def clear(self) -> None:
        """Forgets all pages: no call finds them any more, and no restart.

        It waits until that is durable. Pages that are written meanwhile are not kept.

        Raises:
            Misuse: It is closed, or another process's.
            Unavailable: It is not durable in time; no call finds them any more.
        """
        self._check_process()
        with self._lock:
            self._check_open()
            self._clearing += 1
        try:
            done = self._disk.clear(patience=self._patience)
            with self._lock:
                self._cache.clear()
                self._epoch += 1
        finally:
            with self._lock:
                self._clearing -= 1
        if not done:
            raise Unavailable(
                f"{self._disk.path}: a clear is not durable after {self._patience} s: if this "
                "process is killed now, the next one finds the pages again; retrying"
            )

    def close(self, *, flush: float = 0.0) -> int:
        """Ends all copies, and releases the folder. Durable pages stay.

        When it returns, nothing touches the engine's memory. In a forked process it does nothing.

        Args:
            flush: Seconds for which it waits for pages that are being written.

        Returns:
            Pages that were being written, and are not durable.

        Raises:
            Misuse: `flush` is no number of seconds, below 0 or infinite.
        """
        flush = seconds("flush", flush)
        if os.getpid() != self._process:
            return 0
        with self._lock:
            self._closed = True
            writing = [copy for copy in self._copies.values() if not copy.up]
        try:
            until = time.monotonic() + flush
            for copy in writing:
                self._lane.wait(copy.number, max(until - time.monotonic(), 0.0))
            with self._lock:
                self._collect()
        finally:
            # Where it is interrupted, the next call goes on.
            self._disk.close()
        with self._lock:
            self._cache._close()  # noqa: SLF001 - as `LocalCache` does
            # The threads knew addresses alone.
            self._memory = None
        return sum(len(copy.plan) - copy.good for copy in writing)

    def stats(self) -> dict[str, int]:
        """Returns counters and sizes, as `KVCache.stats`."""
        self._check_process()
        return self._cache.stats()

    # -- under the lock ------------------------------------------------------------------

    def _scan(self, chain: Keys, first: int) -> "tuple[int, _Copy | None]":
        """Counts the pages from `first` on that are there; at one that is being written it stops.

        Returns:
            The count, and what writes the next one.
        """
        at = first
        while at < len(chain):
            probe = self._cache.find(chain, at)
            at += probe.disk
            if probe.flight is None:
                break
            busy = self._copies.get(probe.flight)
            if busy is None or not busy.up:
                return at - first, busy
            # Somebody reads it: it is there.
            at += 1
        return at - first, None

    def _fetch(self, chain: Keys, ids: _Ids, first: int) -> "tuple[_Copy | None, bool]":
        """Has the pages from `first` on read, as far as they are there.

        Returns:
            The copy and True, or one to wait for and False. None where nothing is there.
        """
        answer = self._cache.fetch(chain, ids[first:], first)
        if isinstance(answer, Soon):
            return self._copies.get(answer.flight), False
        return (self._submit(answer[0], up=True), True) if answer else (None, False)

    def _offload(
        self, chain: Keys, keys: bytes, ids: _Ids, have: int, above: bytes | None
    ) -> Plan | None:
        """Gives slots to the pages from `have` on that are not there."""
        if have == len(chain):
            return None
        if not self._linked or (have == 0 and above == b""):
            return self._cache.offload(chain, ids)
        parent = keys[(have - 1) * KEY_BYTES :][:KEY_BYTES] if have else above or self._nobody
        rest = self._chain(parent + keys[have * KEY_BYTES :])
        return self._cache.offload(rest, ids[have:], 1)

    def _submit(self, plan: Plan, *, up: bool) -> "_Copy":
        self._cache.dispatch()
        assert plan.keys is not None  # noqa: S101 - the disk is keyed
        lane, planes = self._lane, [self._planes]
        self._copies[plan.flight] = copy = _Copy(plan, up=up)
        if up:
            what = [plan.sources], [plan.keys], planes, [plan.destinations]
            numbers = map(lane.submit_up, *what)
        else:
            assert plan.parents is not None  # noqa: S101 - likewise
            stamps = self._disk.stamps(len(plan))
            whose = [plan.keys], [plan.parents], [stamps]
            numbers = map(lane.submit_down, [plan.destinations], *whose, planes, [plan.sources])
        # Submitted and noted by one call of C, which no interrupt divides.
        self._numbers.update(zip(numbers, [copy], strict=True))
        copy.number = next(reversed(self._numbers))
        return copy

    def _collect(self) -> None:
        """Commits ended copies to the yard."""
        # By one call of C, too: the lane tells each end once.
        self._reports.extend(map(methodcaller("poll"), [self._lane]))
        while self._reports:
            for number, good, why in self._reports[0]:
                copy = self._numbers.get(number)
                if copy is not None:
                    copy.good = good
                    self._cache.commit(copy.plan, good, corrupt=why == "corrupt")
                    self._copies.pop(copy.plan.flight, None)
                    del self._numbers[number]
            self._reports.popleft()

    # -- without it ----------------------------------------------------------------------

    @contextmanager
    def _in_time(self) -> Iterator[None]:
        """Gives up what this thread has begun where an error ends its call: none waits for it."""
        try:
            yield
        except BaseException:
            with self._lock:
                # The disk of one that is closed has given up all.
                if not self._closed:
                    self._give_up_mine()
            raise

    def _give_up_mine(self) -> None:
        for number, copy in list(self._numbers.items()):
            if copy.thread == threading.get_ident():
                self._lane.give_up(number)
        self._collect()
        # A plan that was not submitted writes nothing.
        self._cache.dispatch()
        submitted = set(self._numbers.values())
        for flight, copy in list(self._copies.items()):
            if copy not in submitted:
                del self._copies[flight]
        self._cache.abort([one for one in self._cache.dispatched() if one not in self._copies])

    def _chain(self, keys: bytes) -> Keys:
        return self._cache.ready_keys(keys, len(keys) // KEY_BYTES * self._page_tokens)

    def _wait(self, copy: "_Copy") -> bool:
        """Waits for a copy of any caller; returns whether it has ended."""
        ended = self._lane.wait(copy.number, self._patience)
        with self._lock:
            self._collect()
        return ended

    def _end(self, copy: "_Copy") -> int:
        """Waits for a copy of one's own, and gives it up in time; returns its good pages."""
        if not self._wait(copy):
            self._lane.give_up(copy.number, late=True)
            with self._lock:
                self._collect()
        return copy.good

    def _look(self, chain: Keys, stored: NDArray[np.bool_], waited: set[int]) -> None:
        """Marks what others have written of a chain, or write now."""
        at = 0
        while at < len(chain):
            if stored[at]:
                at += 1
                continue
            with self._lock:
                count, busy = self._scan(chain, at)
            stored[at : at + count] = True
            at += count
            if busy is None or busy.number in waited:
                at += 1
            else:
                self._wait(busy)
                waited.add(busy.number)

    def _check_open(self) -> None:
        if self._closed:
            raise Misuse("the disk is closed: open it again")

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise Misuse(
                f"process {self._process} owns this disk: a process that was forked must open its "
                "own"
            )


class _Copy:
    """A copy in the air."""

    __slots__ = ("good", "number", "plan", "thread", "up")

    def __init__(self, plan: Plan, *, up: bool) -> None:
        self.plan, self.up = plan, up
        self.thread = threading.get_ident()
        self.number = -1
        """The disk's, which it has once it is submitted."""
        self.good = 0
