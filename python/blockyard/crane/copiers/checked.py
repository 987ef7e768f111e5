"""Copies that are checked: what leaves a tier below the device is what came there."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from blockyard._core import checksums
from blockyard._typing import NDArray
from blockyard.crane.copiers import (
    BlockKeys,
    Copier,
    Fencing,
    Joining,
    KeyedCopier,
    Landed,
    Pair,
    Receipt,
    Slots,
    Turning,
)
from blockyard.crane.tiers import Tier, is_mapped, planes_of
from blockyard.shared.log import Limited
from blockyard.shared.owner import Owner, Reentry, broke_in, owned
from blockyard.shared.plan import Cause
from blockyard.shared.single import Single
from blockyard.shared.validate import integer

__all__ = ["CheckedCopier", "CheckedKeyedCopier", "ChecksumThreads", "Checksums", "checked"]

_log = Limited("blockyard")


class ChecksumThreads:
    """Threads that compute checksums, of one rank or of the cranes of several groups of layers.

    They begin with the first of their work, and end with the last of their users.

    Args:
        workers: Threads. With 0 all is computed at once, so that every run is the same.
    """

    def __init__(self, workers: int = 2) -> None:
        self._workers = integer("workers", workers, least=0)
        self._pool = self._threads()
        self._ending: list[ThreadPoolExecutor] = []
        """Threads that get no more work."""
        self._users: set[int] = set()
        self._ended = False

    def join(self, user: "Checksums") -> None:
        """Adds a user."""
        if self._ended:
            self._pool, self._ended = self._threads(), False
        self._users.add(id(user))

    def begin(self, act: Callable[[], int]) -> Future[int]:
        """Begins to compute something."""
        if self._pool is not None:
            return self._pool.submit(act)
        done: Future[int] = Future()
        done.set_result(act())
        return done

    def settle(self) -> None:
        """Waits for all that has begun, also after an interrupt."""
        if self._pool is not None:
            self._ending.append(self._pool)
            self._pool = self._threads()
        while self._ending:
            self._ending[0].shutdown()
            del self._ending[0]

    def leave(self, user: "Checksums", *, wait: bool = True) -> None:
        """Takes a user away; with the last one the threads end, after what they compute."""
        self._users.discard(id(user))
        if wait:
            self.settle()
        if self._users:
            return
        self._ended = True
        if self._pool is not None:
            self._pool.shutdown(wait=wait)

    def _threads(self) -> ThreadPoolExecutor | None:
        """Returns threads, which begin with the first of their work; None where there are none."""
        return ThreadPoolExecutor(self._workers, "blockyard-checksum") if self._workers else None


class Checksums:
    """The checksums of what one rank has written to the tiers below its device.

    A rank has the checksums of the blocks that it wrote. Of a plane that ranks share, each
    has written some slots, and all of them read all: so one of them checks each block, and the
    least that a rank reports is believed.

    Args:
        workers: Threads of its own, as in `ChecksumThreads`.
        threads: Threads that it shares, in place of these.
    """

    def __init__(self, *, workers: int = 2, threads: ChecksumThreads | None = None) -> None:
        self._threads = ChecksumThreads(workers) if threads is None else threads
        self._threads.join(self)
        self._sums: dict[tuple[str, str], NDArray[np.uint64]] = {}
        self._known: dict[tuple[str, str], NDArray[np.bool_]] = {}

    def note(self, tier: Tier, slots: Slots) -> Future[int]:
        """Begins to note the checksums of blocks that have come.

        Args:
            tier: A tier below the device.
            slots: Its slots, which must not change before the answer is there.

        Returns:
            How many blocks these are.
        """
        work = self._work(tier)

        def act() -> int:
            for bytes_, sums, known in work:
                sums[slots], known[slots] = checksums(bytes_, slots), True
            return len(slots)

        return self._threads.begin(act)

    def compare(self, tier: Tier, slots: Slots) -> Future[int]:
        """Begins to compare the checksums of blocks with those that were noted.

        Args:
            tier: As in `note`.
            slots: As there.

        Returns:
            How many of the blocks, from the first on, are what was noted: all where this rank has
            not written them.
        """
        work = self._work(tier)

        def act() -> int:
            good = len(slots)
            for bytes_, sums, known in work:
                bad = np.flatnonzero(known[slots] & (sums[slots] != checksums(bytes_, slots)))
                good = min(good, int(bad[0]) if len(bad) else good)
            return good

        return self._threads.begin(act)

    def _work(self, tier: Tier) -> "list[tuple[Any, NDArray[np.uint64], NDArray[np.bool_]]]":
        """The bytes of each plane of a tier, their checksums, and which of these are known."""
        planes = zip(tier.layout.planes, planes_of(tier), strict=True)
        return [
            (bytes_, *self._of((tier.name, plane.name), tier.blocks)) for plane, bytes_ in planes
        ]

    def settle(self) -> None:
        """Waits for all started copies, also after an interrupt."""
        self._threads.settle()

    def close(self) -> None:
        """Ends its use of the threads, after what they compute."""
        self._threads.leave(self)

    def drop(self) -> None:
        """The same for a finalizer, which waits for none."""
        self._threads.leave(self, wait=False)

    def _of(
        self, plane: tuple[str, str], blocks: int
    ) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        if plane not in self._sums:
            self._sums[plane] = np.zeros(blocks, np.uint64)
            self._known[plane] = np.zeros(blocks, np.bool_)
        return self._sums[plane], self._known[plane]


class CheckedCopier(Single):
    """A copier whose blocks are checked before they leave a tier below the device.

    A block is no longer what it was where its memory has failed, or something else has written to
    it. Then the copy ends before it, with `Cause.CORRUPT`, and the yard never offers it again.
    After a copy down the checksums are computed before it is reported, and before a copy up they
    are compared: both beside the copies, which begin in another order then. An engine's stream
    waits for the copies alone. A tier that has no planes in memory is not checked.

    Its verbs and its receipts are for one thread at a time: a call that comes during another one is
    refused.

    Args:
        copier: What copies.
        sums: The rank's checksums; other copiers of the rank have the same.
    """

    def __init__(self, copier: Copier, sums: Checksums) -> None:
        self.copier = copier
        self.sums = sums
        self.closed = False
        self._owner = Owner()
        self._compared: list[_Checked] = []
        """Copies that have not begun: their blocks are compared first."""

    @owned
    def start(
        self, source: Tier, destination: Tier, sources: Slots, destinations: Slots
    ) -> Receipt | None:
        """Takes a copy, as `Copier.start`."""
        return self._take(_Checked(self, source, destination, sources, destinations))

    def _take(self, copy: "_Checked") -> Receipt | None:
        if _is_checked(copy.source):
            copy.comparing = self.sums.compare(copy.source, copy.sources)
            self._compared.append(copy)
            self._go_on()
            return copy
        return copy if copy.begin() else None

    @owned
    def go_on(self) -> None:
        """Begins what has been compared, as far as the copier takes it."""
        self._go_on()

    def _go_on(self) -> None:
        self._compared = [copy for copy in self._compared if not copy.go_on()]

    @owned
    def join(self, stream: object = None, *, layer: int | None = None) -> bool:
        """Makes the stream wait, as `Joining.join`."""
        self._go_on()
        joined = isinstance(self.copier, Joining) and self.copier.join(stream, layer=layer)
        return joined and not self._compared

    @owned
    def fence(self, stream: object = None) -> bool:
        """Makes the stream wait, as `Fencing.fence`, but for no checksum."""
        return isinstance(self.copier, Fencing) and self.copier.fence(stream)

    def turn(self) -> AbstractContextManager[object]:
        """Lets calls share what they cost, as `Turning.turn`."""
        return self.copier.turn() if isinstance(self.copier, Turning) else nullcontext()

    @owned
    def reset(self) -> None:
        """Ends all copies and their checksums."""
        self.copier.reset()
        self.sums.settle()
        for copy in self._compared:
            copy.give_up()
        self._compared = []

    @owned
    def close(self) -> None:
        """Ends all copies, their checksums, and the threads."""
        self.closed = True
        self.copier.close()
        self.sums.close()
        for copy in self._compared:
            copy.give_up()
        self._compared = []

    def drop(self) -> None:
        """Ends it for a finalizer: it waits for no thread."""
        self.closed = True
        getattr(self.copier, "drop", self.copier.close)()
        self.sums.drop()


class CheckedKeyedCopier(CheckedCopier):
    """Likewise, of a copier that takes keys."""

    @owned
    def start_keyed(  # noqa: PLR0913 - KeyedCopier's call
        self,
        source: Tier,
        destination: Tier,
        sources: Slots,
        destinations: Slots,
        *,
        keys: BlockKeys,
        parents: BlockKeys | None,
    ) -> Receipt | None:
        """Takes a copy, as `KeyedCopier.start_keyed`."""
        copy = _Checked(self, source, destination, sources, destinations)
        copy.names = keys, parents
        return self._take(copy)


class _Checked:
    """A copy with its checks, and its receipt."""

    def __init__(
        self,
        copier: CheckedCopier,
        source: Tier,
        destination: Tier,
        sources: Slots,
        destinations: Slots,
    ) -> None:
        self._copier = copier
        self.source, self._destination = source, destination
        self.sources, self._destinations = sources, destinations
        self.names: tuple[BlockKeys, BlockKeys | None] | None = None
        """The keys of its blocks and of their parents, where its plan carries them."""
        self._receipt: Receipt | None = None
        self._landed: Landed | None = None
        self._noting: Future[int] | None = None
        self.comparing: Future[int] | None = None
        """How many of its blocks are what they were; None where that is not asked."""

    @property
    def _good(self) -> int:
        return len(self.sources) if self.comparing is None else self.comparing.result()

    def begin(self) -> bool:
        """Copies the intact blocks; returns whether the copier accepted them."""
        good = self._good
        # So it stays where the copier is broken into: it may have the copy by then.
        self._landed = Landed(0, Cause.LOST)
        try:
            receipt = self._start(good)
        except Exception as error:
            if not broke_in(error):
                self._landed = Landed(0, Cause.FAILED)
            raise
        self._receipt, self._landed = receipt, None
        return receipt is not None

    def _start(self, good: int) -> Receipt | None:
        copier, tiers = self._copier.copier, (self.source, self._destination)
        slots = self.sources[:good], self._destinations[:good]
        if self.names is None or not isinstance(copier, KeyedCopier):
            return copier.start(*tiers, *slots)
        keys, parents = self.names
        parents = None if parents is None else parents[:good]
        return copier.start_keyed(*tiers, *slots, keys=keys[:good], parents=parents)

    def go_on(self) -> bool:
        """Begins when its blocks have been compared; returns whether it waits no more."""
        if self._receipt is not None or self._landed is not None:
            # It has begun, and an interrupt came before that was noted.
            return True
        if self.comparing is None or not self.comparing.done():
            return False
        try:
            if self._good:
                return self.begin()
            self._landed = Landed(0, Cause.CORRUPT)
        except Exception as error:
            if broke_in(error) and not isinstance(error, Reentry):
                raise
            # It fails this copy, and no other's call.
            _log.warning("a copy of %d blocks was refused: %r", len(self.sources), error)
            self.give_up()
        return True

    def give_up(self) -> None:
        """Ends without a copy, if it has not ended."""
        if self._landed is None:
            self._landed = Landed(0, Cause.FAILED)

    def poll(self) -> Landed | None:
        """Returns how it has ended, or None."""
        if self._landed is None and self._receipt is None:
            self._copier.go_on()
        if self._landed is None and self._receipt is not None:
            landed = self._receipt.poll()
            if landed is not None:
                self._end(landed)
        if self._noting is not None and not self._noting.done():
            return None
        return self._landed

    def _end(self, landed: Landed) -> None:
        """Starts to note the copied blocks; returns where the copy was cut."""
        if landed.good and _is_checked(self._destination) and not self._copier.closed:
            slots = self._destinations[: landed.good]
            self._noting = self._copier.sums.note(self._destination, slots)
        if landed.good == self._good < len(self.sources):
            landed = Landed(landed.good, Cause.CORRUPT)
        # At last: what is interrupted before is done once more.
        self._landed = landed


def checked(
    copiers: Mapping[Pair, Copier], *, workers: int = 2, threads: ChecksumThreads | None = None
) -> dict[Pair, Copier]:
    """Returns copiers of one rank that check what leaves the tiers below its device.

    Args:
        copiers: By the names of their two tiers.
        workers: Threads that compute checksums, as in `Checksums`.
        threads: As in `Checksums`.
    """
    sums = Checksums(workers=workers, threads=threads)
    made: dict[int, Copier] = {
        id(one): (CheckedKeyedCopier if isinstance(one, KeyedCopier) else CheckedCopier)(one, sums)
        for one in copiers.values()
    }
    return {pair: made[id(one)] for pair, one in copiers.items()}


def _is_checked(tier: Tier) -> bool:
    return tier.name != "device" and is_mapped(tier)
