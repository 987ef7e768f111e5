"""Copies by lanes of the core, whose own threads carry them out: what flies, ends, and is late."""

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from operator import methodcaller
from typing import Final, Generic, Protocol, TypeVar

import numpy as np

from blockyard._core import Bell, Misuse
from blockyard._typing import NDArray
from blockyard.crane.copiers import Landed
from blockyard.crane.tiers import Tier, planes_of
from blockyard.shared.plan import Cause

__all__ = ["LaneFlight", "LaneFlights", "Place", "memory_places"]

_CAUSES: Final = {
    "": None,
    "failed": Cause.FAILED,
    "corrupt": Cause.CORRUPT,
    # What is not there is not to be looked for again either.
    "missing": Cause.CORRUPT,
}


class _Lane(Protocol):
    def give_up(self, number: int, *, late: bool = False) -> None: ...


L = TypeVar("L", bound=_Lane)


class LaneFlight(Generic[L]):
    """A copy under way, and its receipt.

    Args:
        flights: What it is one of.
        blocks: How many blocks it has.
        tiers: Where it reads and writes: the threads know addresses alone.
        down: Whether it goes down.
        patient: Whether it is never late, and goes on where nobody waits for it any more.
    """

    __slots__ = (
        "_blocks",
        "_cause",
        "_flights",
        "_good",
        "_tiers",
        "begun",
        "down",
        "open",
        "patient",
    )

    def __init__(
        self,
        flights: "LaneFlights[L]",
        blocks: int,
        tiers: tuple[Tier, Tier],
        *,
        down: bool,
        patient: bool = False,
    ) -> None:
        self._flights = flights
        self._tiers = tiers
        self._blocks = self._good = blocks
        self._cause: Cause | None = None
        self.open: dict[L, NDArray[np.intp] | None] = {}
        """Lanes that have not ended their part, and which of its blocks that is; None for all."""
        self.begun = flights.now()
        self.down = down
        self.patient = patient

    def end(self, lane: L, good: int, cause: Cause | None) -> None:
        """Takes how a part of it has ended: how many of that part's blocks are good."""
        if lane not in self.open:
            return
        if cause is not None:
            rows = self.open[lane]
            first = good if rows is None else int(rows[good])
            if first < self._good:
                self._good, self._cause = first, cause
        # Before it has ended: an interrupt in between counts one too many, and none is overlooked.
        self._flights.ends += 1
        # At last: from here on it may count as ended.
        del self.open[lane]

    def poll(self) -> Landed | None:
        """Returns how it has ended, or None."""
        if self.open:
            self._flights.look()
        return None if self.open else Landed(self._good, self._cause)


class LaneFlights(Generic[L]):
    """The copies of one copier, on one lane or several. It is for one thread at a time.

    Args:
        look: What a receipt calls that has not ended: it may collect.
        patience: Seconds after which a copy has failed: since it was submitted, and since its lane
            has ended another one that way.
        clock: Seconds.
        timed: Whether lanes are told the time when they are polled.
        longest: Seconds after which a copy has failed, whatever else its lane has ended.
        ringing: Lanes that ring the bell when they have ended a copy, and are not asked before.
        bell: That.
    """

    def __init__(  # noqa: PLR0913 - keywords
        self,
        look: Callable[[], None],
        *,
        patience: float,
        clock: Callable[[], float] = time.monotonic,
        timed: bool = False,
        longest: float = math.inf,
        ringing: Collection[L] = (),
        bell: Bell | None = None,
    ) -> None:
        if not patience > 0:
            raise Misuse(f"patience = {patience!r}: must be seconds, more than 0")
        self.patience = patience
        self.clock = clock
        self.flying: dict[L, dict[int, LaneFlight[L]]] = {}
        self.ends = 0
        """How many flights have ended."""
        self._said, self._back = clock(), 0.0
        """What the clock said last, and how far it was set back in all."""
        self.collected = False
        """Whether a turn has collected already."""
        self._look = look
        self._longest = longest
        self._patient: dict[L, dict[int, LaneFlight[L]]] = {}
        """Those that are never late, of which there may be many."""
        self._due = math.inf
        """No flight is late before this second."""
        self._timed = timed
        self._heard: dict[tuple[L, bool], float] = {}
        """When a lane has last ended a copy, each way: behind others a copy is not late."""
        self._reports: deque[tuple[L, list[tuple[int, int, str]]]] = deque()
        """What lanes have reported, each once, and is not noted yet."""
        self._ringing, self._bell = frozenset(ringing), bell or Bell()
        self._rung: int | None = None
        """How often it was rung when the lanes were asked last; None where others have copies."""

    def now(self) -> float:
        """Returns seconds that never run back: where the clock is set back, they go on."""
        said = self.clock()
        self._back += max(0.0, self._said - said)
        self._said = said
        return said + self._back

    def look(self) -> None:
        """Collects for a receipt that is polled, where no turn has done so."""
        if not self.collected:
            self._look()

    def note(self, flight: LaneFlight[L], lane: L, numbers: Iterable[int]) -> None:
        """Submits, as `numbers` does when it is asked, and notes the number.

        One call of C does both, so that no interrupt divides them.
        """
        own = self._patient if flight.patient else self.flying
        if lane not in self._ringing:
            self._rung = None
        self._due = min(self._due, flight.begun + min(self.patience, self._longest))
        own.setdefault(lane, {}).update(zip(numbers, [flight], strict=True))

    def is_still(self) -> bool:
        """Whether no lane has ended anything since `collect`, and nothing is late.

        It asks the bell and no lane, however many copies are under way.
        """
        if self._rung is None:
            return False
        now = self.now()
        return self._bell.look(self._said) == self._rung and now <= self._due

    def collect(self) -> set[str]:
        """Takes what lanes have reported, and gives up what is late.

        Returns:
            The words by which something has ended, as `poll` of a lane has them.
        """
        now, words = self.now(), set[str]()
        # Before they are asked, as what they end meanwhile is to be asked for again.
        rung, self._rung = self._bell.look(self._said), None
        if now > self._due:
            self._give_up_late(now)
        lanes = [lane for lane, flights in self.flying.items() if flights or lane in self._patient]
        lanes += [lane for lane in self._patient if lane not in self.flying]
        # By one call of C, too: a lane tells each end once.
        ask = methodcaller("poll", self._said) if self._timed else methodcaller("poll")
        self._reports.extend(zip(lanes, map(ask, lanes), strict=True))
        while self._reports:
            lane, ends = self._reports[0]
            copies, deletes = self.flying.get(lane, {}), self._patient.get(lane, {})
            for number, good, why in ends:
                ended = copies.get(number) or deletes.get(number)
                if ended is not None:
                    if why != "given up":
                        self._heard[lane, ended.down] = now
                    ended.end(lane, good, _CAUSES.get(why, Cause.FAILED))
                    copies.pop(number, None)
                    deletes.pop(number, None)
                    words.add(why)
            self._reports.popleft()
        if self._ringing.issuperset(lanes):
            self._rung = rung
        return words

    def _give_up_late(self, now: float) -> None:
        """Gives up what is late, and looks when the next may be."""
        due = math.inf
        for lane, flights in self.flying.items():
            for number, flight in list(flights.items()):
                since = max(flight.begun, self._heard.get((lane, flight.down), flight.begun))
                until = min(since + self.patience, flight.begun + self._longest)
                if now > until:
                    lane.give_up(number, late=True)
                else:
                    due = min(due, until)
        self._due = due

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Collects once for all receipts that are polled until the end."""
        self._look()
        try:
            self.collected = True
            yield
        finally:
            self.collected = False

    def give_up(self, flight: LaneFlight[L] | None = None) -> None:
        """Gives up what was submitted of a copy, or all; what is patient goes on by itself."""
        for lane, flights in self.flying.items():
            for number, one in list(flights.items()):
                if flight is None or one is flight:
                    lane.give_up(number)
        for lane, flights in self._patient.items():
            for number, one in list(flights.items()):
                if flight is None or one is flight:
                    one.end(lane, 0, Cause.FAILED)
                    del flights[number]


Place = tuple[NDArray[np.uint64], int, int]
"""Pieces of slot 0 of a plane, the bytes from a slot to the next, and of a piece."""


def memory_places(tier: Tier, below: str) -> list[list[Place]]:
    """Returns where each plane of a tier is, for threads that know addresses alone.

    Args:
        tier: The tier.
        below: The name of the tier on the other side of the copy.

    Raises:
        Misuse: They are no memory of this process.
    """
    found = []
    for plane in planes_of(tier):
        arrays = getattr(plane, "arrays", (plane,))
        places: list[Place] = []
        for array in arrays:
            if not isinstance(array, np.ndarray):
                raise Misuse(
                    f"the {tier.name}'s memory is a GPU's: give the yard a host between it and "
                    f"{below}"
                )
            first = array.__array_interface__["data"][0]
            stride, step, _ = array.strides
            # An engine's layers may lie in any order, so that the step may be below 0.
            pieces = first + np.arange(array.shape[1], dtype=np.int64) * step
            places.append((pieces.astype(np.uint64), stride, array.shape[2]))
        found.append(places)
    return found
