"""Room for those that cannot grow: what is coming, who moves, who has to leave. INV-25."""

from blockyard._core import Parked
from blockyard.scheduling.batch import Batch, Grown
from blockyard.scheduling.queue import WaitingQueue
from blockyard.scheduling.request import Request
from blockyard.scheduling.safety import on_host
from blockyard.scheduling.seats import Seat, Seats
from blockyard.scheduling.victims import Candidate, VictimPolicy
from blockyard.yard.cache import KVCache
from blockyard.yard.parking import Parking

__all__ = ["Preemptor"]


class Preemptor:
    """Parked sequences move for who needs room; only where that is too little there are victims.

    Args:
        cache: Where the room is missing.
        seats: Where they sit.
        batch: Who runs.
        line: Where the parked ones wait.
        preempt: How they are moved.
        policy: Who goes first.
        rest: Steps that one who was preempted runs before it can be a victim again.
    """

    def __init__(
        self,
        cache: KVCache,
        seats: Seats,
        batch: Batch,
        queue: WaitingQueue,
        parking: Parking,
        policy: VictimPolicy,
        rest: int,
    ) -> None:
        self._cache = cache
        self._seats = seats
        self._batch = batch
        self._queue = queue
        self._parking = parking
        self._policy = policy
        self._rest = rest
        self._returning: list[tuple[int, int]] = []

    def returns(self, blocks: int, after: int) -> None:
        """Blocks that come back when a step is done."""
        self._returning.append((after, blocks))

    @property
    def returning(self) -> int:
        """Blocks that come back with steps in flight."""
        return sum(blocks for _, blocks in self._returning)

    def done(self, step: int) -> None:
        """A step is done."""
        self._returning = [one for one in self._returning if one[0] > step]

    def move(self, need: int, behind: Request | None = None) -> None:
        """Copies blocks of parked sequences down, of those first who shall come back last.

        A parked sequence that frees no blocks for `patience` steps (its copies may be stuck) is
        recomputed: T17.

        Args:
            need: Blocks that somebody lacks.
            behind: Who lacks them, where that is somebody in line: only those behind it move.
        """
        there = self._settled(behind) if need > 0 else []
        if not there:
            return
        self._parking.relieve(need, self._handles(there))
        # Who has left the device has nothing to give.
        first = next((one for one in there if one.parked and one.parked.on_device), None)
        if first is None or first.parked is None:
            return
        left, first.left = first.left, first.parked.on_device
        first.refused = first.refused + 1 if first.left == left else 0
        if self._parking.given_up(first.parked, first.refused):
            self._cache.abandon(first.parked)
            first.again()
            self._queue.parked.discard(first)

    def leave(self, behind: Request | None = None) -> bool:
        """What parked sequences have on the device goes down, whoever else holds it.

        What several of them keep, none gives up alone: where nobody goes on, all do.

        Args:
            behind: Where that is somebody in line, who goes on then: only those behind it.

        Returns:
            Whether anything is on its way now.
        """
        return self._parking.leave(self._handles(self._settled(behind))) > 0

    def dedup(self) -> bool:
        """Those that run give up what they hold twice, as another had computed it too.

        Only where they are `stuck`: no step in flight reads their tables.

        Returns:
            Whether they held anything twice.
        """
        return self._cache.dedup([seat.lease for seat in self._batch.running()]) > 0

    def _settled(self, behind: Request | None) -> list[Request]:
        """Of those the ones that no step in flight writes."""
        there = self._parked(behind)
        return [entry for entry in there if entry.settled <= self._cache.done]

    def _parked(self, behind: Request | None = None) -> list[Request]:
        """Those whose work is kept, the last in line first."""
        return sorted(
            (
                entry
                for entry in self._queue.parked
                if (behind is None or entry.rank > behind.rank)
                and entry.parked is not None
                and entry.parked.state == "kept"
            ),
            key=lambda entry: entry.rank,
            reverse=True,
        )

    @staticmethod
    def _handles(entries: list[Request]) -> list[Parked]:
        return [entry.parked for entry in entries if entry.parked is not None]

    def victims(self, grown: Grown, spare: int) -> list[Seat]:
        """Who is stopped for those that found no room.

        What stops, or ends with the steps in flight, is on its way; so is what is parked.

        Args:
            grown: Who found none.
            spare: Blocks that are to be had.
        """
        batch, seats = self._batch, self._seats
        need = grown.need - max(spare, 0)
        self.move(need - self.returning)
        running = batch.running()
        short = need - self._coming()
        # One who runs alone has nobody to make room for but itself.
        if short <= 0 or len(running) <= 1:
            return []
        ranked = sorted(running, key=self._rank)
        rested = [
            seat
            for seat in ranked
            if not seat.request.preempted or seats.ran[seat.number] >= self._rest
        ]
        chosen: list[Seat] = []
        if self.stuck(grown):
            early = set(rested)
            rested += [seat for seat in ranked if seat not in early]
        for seat in rested:
            # One who runs on alone makes room by its end.
            if short <= 0 or len(chosen) == len(running) - 1:
                break
            frees = self.frees(seat)
            if frees and self._is_safe(seat) and self._may_stop(seat):
                chosen.append(seat)
                short -= frees
        return chosen

    def last_resort(self) -> Seat | None:
        """Who is stopped where all are stuck, and nobody frees anything alone.

        What several hold is free when the last of them has left. And where a host was made smaller
        behind them, who is parked beyond `safety` is not lost, at least.
        """
        ranked = sorted(self._batch.running(), key=self._rank)
        if len(ranked) <= 1:
            return None
        ranked.sort(key=lambda seat: not self._is_safe(seat))
        return next(filter(self._may_stop, ranked), None)

    def lost(self) -> Seat | None:
        """Who fails where all are stuck, as who must be parked finds no room on the host.

        `safety` says why this cannot be, but for a host or a device that has less room than when
        they began. What is promised to who does not run comes back: for that they wait.
        """
        running = self._batch.running()
        promised = any(kind == "ticket" for kind, *_ in self._cache.holders())
        if not self._parking.must_park or promised:
            return None
        return min(running, key=lambda seat: (not self.frees(seat), self._rank(seat)), default=None)

    def stuck(self, grown: Grown) -> bool:
        """Whether nothing that goes on would make room by itself."""
        batch = self._batch
        in_flight = any(step.seats for step in batch.in_flight)
        goes = grown.seats or batch.prefill or in_flight or batch.loading or self._seats.stopping
        goes = goes or self._coming()
        goes = goes or any(entry.settled > self._cache.done for entry in self._queue.parked)
        # A copy keeps what it reads, and all above that.
        return not goes and self._cache.blocks_in_flight() == (0, 0)

    def _coming(self) -> int:
        """Blocks that come back with steps in flight, from who stops, and from who is parked."""
        stopping = (seat for seat in self._seats.bound() if seat.stop is not None)
        return (
            self.returning
            + sum(map(self.frees, stopping))
            + self._parking.coming(self._handles(self._parked()))
        )

    def _is_safe(self, seat: Seat) -> bool:
        """Whether all but one can be parked still when this one is."""
        if not self._parking.must_park:
            return True
        running, stopping = self._seats.requests()
        others = [entry for entry in running if entry is not seat.request]
        kept = [*stopping, *self._queue.parked, seat.request]
        return on_host(self._cache, others, kept) <= self._cache.limit("host")

    def _may_stop(self, seat: Seat) -> bool:
        """T7: where the engine cannot recompute, only with the host slots promised."""
        if self._parking.must_park:
            seat.ticket = self._parking.promise(seat.lease)
            return seat.ticket is not None
        return True

    def frees(self, seat: Seat) -> int:
        """Device blocks that only this seat's lease holds."""
        return self._cache.exclusive_blocks(seat.lease)

    def _rank(self, seat: Seat) -> tuple[int, ...]:
        entry = seat.request
        computed = int(self._seats.computed[seat.number])
        return self._policy.rank(
            Candidate(entry.priority, entry.came, entry.order, seat.lease.blocks, computed)
        )
