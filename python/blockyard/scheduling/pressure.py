"""What is done where rows find no room to grow, and where waiting requests find none to begin."""

from typing import Final

from blockyard.scheduling.admission import Admission
from blockyard.scheduling.batch import Batch, Grown
from blockyard.scheduling.counters import Counters
from blockyard.scheduling.headroom import Asked
from blockyard.scheduling.lifecycle import Lifecycle
from blockyard.scheduling.preemption import Preemptor
from blockyard.scheduling.request import Request
from blockyard.scheduling.seats import Seat, Seats
from blockyard.shared.log import Limited
from blockyard.yard.cache import KVCache

__all__ = ["Pressure"]

_log = Limited(__name__)

_AHEAD: Final = 2
"""Steps for which parked requests make room before a running one lacks it."""


class Pressure:
    """Makes room: parked blocks move, rows skip a step, victims stop, and at last one fails.

    Args:
        cache: The cache that lacks room.
        seats: The seats of the running batch.
        batch: What runs in them.
        admission: What waits, and how much it lacks.
        preemptor: What moves, and which rows stop.
        lifecycle: How rows stop and fail.
        headroom: The policy, which hears of each preemption.
        counters: Where they are counted.
    """

    def __init__(
        self,
        cache: KVCache,
        seats: Seats,
        batch: Batch,
        admission: Admission,
        preemptor: Preemptor,
        lifecycle: Lifecycle,
        headroom: Asked,
        counters: Counters,
    ) -> None:
        self._cache = cache
        self._seats = seats
        self._batch = batch
        self._admission = admission
        self._preemptor = preemptor
        self._unread = preemptor.unread
        self._lifecycle = lifecycle
        self._headroom = headroom
        self._counters = counters

    def move_ahead(self) -> None:
        """Makes room of parked blocks for the first waiting request, and for rows that grow soon.

        It comes after admission: a request that comes back in this step does not move in it.
        """
        self._unread.relent()
        refused = self._admission.first_refused()
        if self._batch.held and self._seats.full:
            entry = self._admission.first_in_line()
            if entry is not None:
                self._give_way(entry, 0)
        if refused is not None:
            first, lacks, below = refused
            if below:
                self._outlast(first, below=True)
            elif lacks > 0 and not self._admission.take_back(apart=True):
                self._give_way(first, lacks)
            self._preemptor.relieve(lacks, behind=first)
            if len(self._seats) == len(self._batch.held):
                self._preemptor.relieve_all(behind=first)
        self._preemptor.lower()
        # What moves now has landed when the rows need the room.
        self._preemptor.relieve(self._batch.blocks_wanted(_AHEAD) - self._admission.spare())

    def _give_way(self, first: Request, lacks: int) -> None:
        """Stops rows that are held, for the first waiting request (INV-25).

        Args:
            first: The request.
            lacks: Blocks that it lacks; 0 where it lacks a seat.
        """
        victims, short = self._preemptor.held(lacks, behind=first)
        self._stop(victims)
        if short:
            self._outlast(first, below=False)

    def _outlast(self, first: Request, *, below: bool) -> None:
        """Fails a held request that has kept the first waiting one too long (INV-25).

        It happens only where the engine cannot recompute: elsewhere it has given way.
        """
        late = self._unread.outlast(first, below=below)
        # What one gives back is there at its ack: no other one fails before.
        if late is None or any(seat.pending_end for seat in self._seats.stopping_seats()):
            return
        why = (
            f"unread: it was held, and kept others waiting for {late.kept_steps} steps, and this "
            "engine cannot recompute it"
        )
        _log.warning("request %r fails, %s", late.id, why)
        self._lifecycle.give_up(late, why)

    def make_room(self, grown: Grown) -> Grown:
        """Lets rows without room skip the step, and stops victims where too little comes.

        T7, T36.
        """
        if self._preemptor.stuck(grown) and self._preemptor.dedup():
            # No row had grown, so none grows twice.
            grown = self._batch.grow()
            if not grown.skipped:
                return grown
        self._admission.take_back(apart=True)
        self._counters.skipped += len(grown.skipped)
        self._stop(self._preemptor.outgrown(grown.skipped))
        victims = self._preemptor.victims(grown, self._admission.growth())
        if not victims and self._preemptor.stuck(grown):
            victims = self._unstick()
        self._stop(victims)
        return grown.without_stopped()

    def _stop(self, victims: list[Seat]) -> None:
        """Stops victims; a row that is held says nothing of the headroom."""
        for seat in victims:
            self._counters.preempted += 1
            seat.request.preempted += 1
            if not seat.request.held:
                self._headroom.preempted()
            self._lifecycle.stop(seat)

    def _unstick(self) -> list[Seat]:
        """Victims where no row goes on, and none frees anything alone (INV-25)."""
        if self._preemptor.relieve_all() or self._admission.take_back():
            return []
        victim = self._preemptor.last_resort()
        if victim is not None:
            return [victim]
        lost = self._preemptor.lost()
        if lost is not None:
            why = "kv_lost: there is no room for all that run, and none below to park it"
            self._lifecycle.fail_seat(lost, why)
        return []
