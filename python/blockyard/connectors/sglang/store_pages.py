"""Pages that an engine keeps under keys of its own in shared stores."""

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from blockyard._core import Misuse
from blockyard.connectors.sglang.disk_pages import KEY_BYTES
from blockyard.crane.copiers.store_threads import StoreThreads
from blockyard.crane.tiers.remote import RemoteTier
from blockyard.shared.layout import KVLayout
from blockyard.stores import Store
from blockyard.stores.questions import Questions

__all__ = ["ANY", "BothPages", "Pages", "StorePages"]

_Planes: TypeAlias = Sequence[tuple[NDArray[np.uint64], int, int]]
_Ids: TypeAlias = NDArray[np.int64]
_NOBODY: Final = bytes(KEY_BYTES)
ANY: Final = (1 << 32) - 1
"""The pages of what has no room of its own."""


class Pages(Protocol):
    """Where the pages of a host pool are kept; any thread may call it."""

    restored: int
    """Pages that were known when it was opened."""

    @property
    def slots(self) -> int:
        """Pages that there is room for."""

    @property
    def path(self) -> object:
        """Where it is."""

    def count(self, keys: bytes) -> int:
        """Returns how many of the leading pages are there."""

    def which(self, keys: bytes) -> NDArray[np.bool_]:
        """Returns of each page by itself whether it is there."""

    def read(self, keys: bytes, ids: _Ids) -> int:
        """Reads pages; returns how many of the leading ones are there now."""

    def write(self, keys: bytes, ids: _Ids, *, above: bytes | None) -> list[bool]:
        """Writes pages; returns of each whether it is there."""

    def clear(self) -> None:
        """Forgets all pages."""

    def close(self, *, flush: float = 0.0) -> int:
        """Ends all copies; returns the pages that were being written."""

    def stats(self) -> dict[str, int]:
        """Returns counters and sizes."""


class StorePages:
    """Pages in shared stores. What they say that they have is a hint; what comes is checked.

    A store that fails costs misses: no call raises for it, nor waits for one that rests.

    Args:
        layout: What a page is.
        planes: Where pages are in memory, as in `DiskPages`.
        memory: What keeps that memory.
        stores: The stores, in order.
        identity: What the pages depend on.
        rank: The tensor parallel rank.
        threads: Threads that put, and as many that get.
        patience: Seconds after which a copy is given up: its memory is not touched any more then.
    """

    slots = ANY
    restored = 0

    def __init__(  # noqa: PLR0913 - keywords
        self,
        layout: KVLayout,
        *,
        planes: _Planes,
        memory: object,
        stores: Sequence[Store],
        identity: Mapping[str, str],
        rank: int,
        threads: int = 2,
        patience: float = 30.0,
    ) -> None:
        self._tier = tier = RemoteTier(layout, 1, stores, identity=identity, rank=rank)
        self._lane, self._planes, self._memory = tier.lane, list(planes), memory
        self._patience = patience
        self._threads = StoreThreads(tier, threads=threads)
        self._questions = Questions(tier.stores)
        self._lock = threading.Lock()
        self._ended: dict[int, int] = {}
        """Copies that have ended, and whose caller has not taken it, with their good pages."""
        self._is_on, self._is_closed = True, False

    @property
    def path(self) -> str:
        """The URLs."""
        return ", ".join(store.url for store in self._tier.stores)

    def count(self, keys: bytes) -> int:
        """Returns how many of the leading pages stores say that they have.

        Args:
            keys: 32 bytes a page.

        Raises:
            Misuse: It is closed.
        """
        found = self.which(keys)
        return len(found) if found.all() else int(found.argmin())

    def which(self, keys: bytes) -> NDArray[np.bool_]:
        """Returns of each page whether a store says that it has it, shape (pages,).

        Args:
            keys: 32 bytes a page.

        Raises:
            Misuse: It is closed.
        """
        self._check_open()
        place = self._tier.place
        every = [place.address(keys[at : at + KEY_BYTES]) for at in range(0, len(keys), KEY_BYTES)]
        if not self._is_on:
            return np.zeros(len(every), np.bool_)
        return np.array(self._questions.has(every), np.bool_)

    def read(self, keys: bytes, ids: _Ids) -> int:
        """Reads pages, as `DiskPages.read`.

        Args:
            keys: 32 bytes a page.
            ids: Where each goes, shape (pages,).

        Returns:
            How many of the leading pages are there now.

        Raises:
            Misuse: It is closed.
        """
        self._check_open()
        if not self._is_on or not len(ids):
            return 0
        good = self._wait(self._lane.submit_up(_rows(keys), self._planes, ids, time.monotonic()))
        return good * self._is_on

    def write(self, keys: bytes, ids: _Ids, *, above: bytes | None) -> list[bool]:
        """Writes pages that no store says that it has.

        Args:
            keys: 32 bytes a page; they follow each other.
            ids: Where each is, shape (pages,).
            above: The key of the page before them, as in `DiskPages.write`.

        Returns:
            Of each page whether a store has it.

        Raises:
            Misuse: It is closed.
        """
        there = self.which(keys)
        new = np.flatnonzero(~there)
        if not self._is_on or not len(new):
            return [bool(one) and self._is_on for one in there]
        rows = _rows(keys)
        parents = np.concatenate([_rows(above or _NOBODY), rows[:-1]])
        which = rows[new], parents[new], self._planes, ids[new]
        good = self._wait(self._lane.submit_down(*which, time.monotonic()))
        there[new[:good]] = True
        return [bool(one) and self._is_on for one in there]

    def clear(self) -> None:
        """Reads and writes nothing from now on, until the next start.

        The stores have, under this identity, what other engines compute with the weights that it
        names; nobody says whether this engine still has those.
        """
        self._is_on = False
        self._lane.stop()

    def close(self, *, flush: float = 0.0) -> int:
        """Ends all copies: nothing touches the engine's memory any more.

        Args:
            flush: Not needed here: each caller waits for its own pages.
        """
        self._is_closed = True
        self._tier.close()
        self._questions.close()
        self._memory = None
        return 0

    def stats(self) -> dict[str, int]:
        """Returns what was done, as `RemoteTier.stats`."""
        return self._tier.stats()

    def _wait(self, number: int) -> int:
        """Waits for a copy, and gives it up in time; returns its good pages."""
        self._threads.start()
        try:
            self._lane.wait(number, self._patience)
        finally:
            # Also where it is interrupted: what has ended is not changed by it.
            self._lane.give_up(number, late=True)
        with self._lock:
            self._ended |= {one: good for one, good, _ in self._lane.poll(time.monotonic())}
            return self._ended.pop(number, 0)

    def _check_open(self) -> None:
        if self._is_closed:
            raise Misuse("the stores are closed: open them again")


class BothPages:
    """Pages on a disk, and behind it in shared stores.

    Args:
        disk: What is asked first.
        store: What is asked for the rest.
    """

    def __init__(self, disk: Pages, store: StorePages) -> None:
        self._disk, self._store = disk, store
        self.slots, self.restored = disk.slots, disk.restored

    @property
    def path(self) -> str:
        """The folder and the URLs."""
        return f"{self._disk.path} and {self._store.path}"

    def count(self, keys: bytes) -> int:
        """Returns how many of the leading pages are in one of them."""
        found = self._disk.count(keys)
        rest = keys[found * KEY_BYTES :]
        if not rest:
            return found
        # Behind a page that the disk lacks it may have others.
        there = self._disk.which(rest) | self._store.which(rest)
        return found + (len(there) if there.all() else int(there.argmin()))

    def which(self, keys: bytes) -> NDArray[np.bool_]:
        """Returns of each page whether one of them has it."""
        there = self._disk.which(keys)
        if not there.all():
            there = there | self._store.which(keys)
        return there

    def read(self, keys: bytes, ids: _Ids) -> int:
        """Reads pages from the disk, and from the first that it lacks on from stores."""
        good = self._disk.read(keys, ids)
        return good + self._store.read(keys[good * KEY_BYTES :], ids[good:])

    def write(self, keys: bytes, ids: _Ids, *, above: bytes | None) -> list[bool]:
        """Writes pages to both; returns of each whether one has it."""
        on_disk = self._disk.write(keys, ids, above=above)
        in_store = self._store.write(keys, ids, above=above)
        return [one or other for one, other in zip(on_disk, in_store, strict=True)]

    def clear(self) -> None:
        """Forgets all pages, as each of them does."""
        self._store.clear()
        self._disk.clear()

    def close(self, *, flush: float = 0.0) -> int:
        """Closes both; returns the pages that are not on the disk."""
        try:
            return self._disk.close(flush=flush)
        finally:
            self._store.close()

    def stats(self) -> dict[str, int]:
        """Returns the numbers of both."""
        return self._disk.stats() | self._store.stats()


def _rows(keys: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(keys, np.uint8).reshape(-1, KEY_BYTES)
