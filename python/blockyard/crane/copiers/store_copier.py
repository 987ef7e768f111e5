"""Copies between memory and shared stores, by threads that ask them, and from peers."""

import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import numpy as np

from blockyard._core import Misuse, Peer, StoreLane
from blockyard._typing import NDArray, override
from blockyard.crane.copiers import BlockKeys, Landed, Receipt, Slots
from blockyard.crane.copiers.lane_copier import LaneCopier
from blockyard.crane.copiers.lane_flights import LaneFlight, LaneFlights, Place, memory_places
from blockyard.crane.copiers.store_threads import StoreThreads
from blockyard.crane.tiers import Tier
from blockyard.crane.tiers.remote import RemoteTier
from blockyard.shared.log import Limited
from blockyard.shared.owner import owned
from blockyard.shared.plan import Cause

__all__ = ["StoreCopier"]

_log = Limited("blockyard", 0)


class StoreCopier(LaneCopier[StoreLane | Peer]):
    """Copies blocks from and to shared stores, and from peers. Nothing waits but their threads.

    A copy that no store answers in time is given up: no memory is read or written for it then, and
    what a client still holds is a buffer. Nothing comes into memory whose record and sum do not say
    that it is what was asked for. Its verbs and its receipts are for one thread at a time: a call
    that comes during another one is refused.

    Args:
        tier: The stores.
        patience: Seconds after which a copy has failed that no store answers: since it was
            submitted, and since a store has answered another one that way; after four times as
            many it has failed in any case.
        threads: Threads that put, and as many that get.
        clock: Seconds. Rests of stores and the patience end by it.
    """

    def __init__(
        self,
        tier: RemoteTier,
        *,
        patience: float = 5.0,
        threads: int = 2,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        flights: LaneFlights[StoreLane | Peer] = LaneFlights(
            self.collect,
            patience=patience,
            clock=clock,
            timed=True,
            longest=4 * patience,
            ringing=tuple(tier.peers),
            bell=tier.peers.bell,
        )
        super().__init__(tier.name, flights)
        if tier.copier is not None:
            raise Misuse("these stores have a StoreCopier already: give that one to all pairs")
        self._tier = tier
        self._lane = tier.lane
        self._threads = StoreThreads(tier, threads=threads, clock=clock)
        tier.copier = self
        self._states = self._lane.states()
        self._looked = clock()
        self._places: dict[Tier, list[list[Place]]] = {}
        """Where the planes of each tier are."""
        self._undeleted: set[int] = set()
        """Stores of which it was logged that values are not deleted."""

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
        """Takes a copy, as `KeyedCopier.start_keyed`. The slots of the stores say nothing.

        Args:
            source: As there.
            destination: As there.
            sources: As there.
            destinations: As there.
            keys: As there.
            parents: As there.

        Raises:
            Misuse: The other side has no memory of this process, or the copier is closed.
        """
        down = self._is_down(destination, parents)
        memory, slots = (source, sources) if down else (destination, destinations)
        places = self._places.get(memory)
        if places is None:
            self._places[memory] = places = memory_places(memory, self._name)
        now = self._flights.clock()
        made: list[_Part] = []
        try:
            for lane, own in self._lanes(keys, down=down):
                if len(own) and lane.shut(down, now):
                    made.append(_Part(_SHUT, own))
                    continue
                if lane is self._lane:
                    self._threads.start()
                for some, planes in self._shares(destination, places, slots[own]):
                    rows = own[some]
                    flight = LaneFlight(self._flights, len(rows), (source, destination), down=down)
                    flight.open[lane] = None
                    made.append(_Part(flight, rows))
                    ends = [_flat(planes)], [slots[rows]], [now]
                    if isinstance(lane, StoreLane) and down and parents is not None:
                        numbers = map(lane.submit_down, [keys[rows]], [parents[rows]], *ends)
                    else:
                        numbers = map(lane.submit_up, [keys[rows]], *ends)
                    self._flights.note(flight, lane, numbers)
        except BaseException:
            # What was submitted of it must not touch memory that is another's by then.
            for part in made:
                if isinstance(part.receipt, LaneFlight):
                    self._flights.give_up(part.receipt)
            raise
        return made[0].receipt if len(made) == 1 else _Parts(made, len(slots))

    def _lanes(
        self, keys: BlockKeys, *, down: bool
    ) -> Iterable[tuple[StoreLane | Peer, NDArray[np.intp]]]:
        """Yields rows of a copy, and who has them: a peer that has offered them, or the stores."""
        left = np.arange(len(keys))
        for peer in () if down else self._tier.peers.offering():
            has = peer.has(keys[left])
            if has.any():
                yield peer, left[has]
                left = left[~has]
        if len(left) or not len(keys):
            yield self._lane, left

    def _shares(
        self, destination: Tier, places: list[list[Place]], slots: Slots
    ) -> Iterable[tuple[NDArray[np.intp], list[list[Place]]]]:
        """Yields rows of a copy, and where their planes are.

        Below the device, ranks share the memory of a replicated plane: one of them writes each slot
        of it. The others pass its bytes over, which each has in its own values.
        """
        layout = destination.layout
        shared = [at for at, plane in enumerate(layout.planes) if plane.replicated]
        every = np.arange(len(slots))
        if destination.name in {"device", self._tier.name} or layout.ranks == 1 or not shared:
            yield every, places
            return
        mine = slots % np.uint32(layout.ranks) == self._tier.rank
        without = [
            [(pieces * np.uint64(0), 0, size) for pieces, _, size in plane]
            if at in shared
            else plane
            for at, plane in enumerate(places)
        ]
        for rows, planes in ((every[mine], places), (every[~mine], without)):
            if len(rows):
                yield rows, planes

    @owned
    def delete(self, keys: BlockKeys) -> Receipt:
        """Has every store delete values. It is tried until each has answered, however long.

        Args:
            keys: Their keys, shape (rows, 32).

        Returns:
            A receipt, which ends then, with 1 good block.

        Raises:
            Misuse: The copier is closed.
        """
        self._check_open()
        if not self._tier.stores:
            return _DELETED
        self._threads.start()
        ends = self._tier, self._tier
        flight = LaneFlight(self._flights, 1, ends, down=True, patient=True)
        flight.open[self._lane] = None
        self._flights.note(flight, self._lane, map(self._lane.delete, [keys]))
        return flight

    @override
    def _collect(self) -> None:
        words = self._flights.collect()
        now = self._flights.clock()
        # A store that was late has answered: nobody may look again.
        told = self._undeleted and words
        if told or words - {"", "corrupt", "missing"} or abs(now - self._looked) >= 1.0:
            self._looked = now
            self._say()

    def _say(self) -> None:
        """Logs which stores have begun to fail, and which are back, each once."""
        states, why = self._lane.states(), self._lane.why()
        every = zip(self._tier.stores, self._states, states, why, strict=True)
        for number, (store, before, after, reason) in enumerate(every):
            for way, was, is_ in zip(("puts", "gets"), before, after, strict=False):
                if was == "well" != is_:
                    _log.warning("%s: %s fail, and are retried later: %s", store.url, way, reason)
                elif is_ == "well" != was:
                    _log.warning("%s: %s work again", store.url, way)
            # What is under way at two looks does not go by itself.
            late = before[2] > 0 and after[2] > 0
            if late and number not in self._undeleted:
                _log.warning("%s: %d values are not deleted yet: %s", store.url, after[2], reason)
                self._undeleted.add(number)
            elif number in self._undeleted and not after[2]:
                _log.warning("%s: all values are deleted that were to be", store.url)
                self._undeleted.discard(number)
        self._states = states


class _Part(NamedTuple):
    receipt: Receipt
    rows: NDArray[np.intp]
    """Which blocks of the copy it has."""


class _Parts:
    """The receipt of a copy in several parts."""

    __slots__ = ("_blocks", "_parts")

    def __init__(self, parts: list[_Part], blocks: int) -> None:
        self._parts, self._blocks = parts, blocks

    def poll(self) -> Landed | None:
        """Returns how it has ended, when all parts have."""
        good, cause = self._blocks, None
        for part in self._parts:
            landed = part.receipt.poll()
            if landed is None:
                return None
            if landed.cause is not None and int(part.rows[landed.good]) < good:
                good, cause = int(part.rows[landed.good]), landed.cause
        return Landed(good, cause)


class _Ended:
    """The receipt of a copy that has ended at once: nobody is to be asked."""

    __slots__ = ("_landed",)

    def __init__(self, landed: Landed) -> None:
        self._landed = landed

    def poll(self) -> Landed:
        """Returns how."""
        return self._landed


_SHUT: Final = _Ended(Landed(0, Cause.FAILED))
_DELETED: Final = _Ended(Landed(1))


def _flat(places: list[list[Place]]) -> list[Place]:
    return [place for plane in places for place in plane]
