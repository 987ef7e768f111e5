"""Who has to leave the running batch when it cannot grow: INV-25."""

from collections import deque

from blockyard.batch import Batch, Grown
from blockyard.cache import KVCache
from blockyard.seats import Seat, Seats
from blockyard.victims import Candidate, Victims

__all__ = ["Preemption"]


class Preemption:
    """Victims, only while what is free, or will be, is less than the need.

    Args:
        cache: Where the room is missing.
        seats: Where they sit.
        batch: Who runs.
        policy: Who goes first.
        rest: Steps that one who was preempted runs before it can be a victim again.
    """

    def __init__(
        self,
        cache: KVCache,
        seats: Seats,
        batch: Batch,
        policy: Victims,
        rest: int,
    ) -> None:
        self._cache = cache
        self._seats = seats
        self._batch = batch
        self._policy = policy
        self._rest = rest
        self._returning: deque[tuple[int, int]] = deque()

    def returns(self, blocks: int, after: int) -> None:
        """Blocks that come back when a step is done."""
        self._returning.append((after, blocks))

    def done(self, step: int) -> None:
        """A step is done."""
        while self._returning and self._returning[0][0] <= step:
            self._returning.popleft()

    def victims(self, grown: Grown, spare: int) -> list[Seat]:
        """Who is stopped for those that found no room.

        What stops, or ends with the steps in flight, is on its way.

        Args:
            grown: Who found none.
            spare: Blocks that are to be had.
        """
        batch, seats = self._batch, self._seats
        short = grown.need - self._coming() - max(spare, 0)
        running = batch.decode + batch.prefill
        if short <= 0 or not running:
            return []
        stuck = self.stuck(grown)
        # One who runs alone makes room by its end, but for itself only of what it holds twice.
        if len(running) == 1 and not (stuck and self._twice(running[0])):
            return []
        ranked = sorted(running, key=self._rank)
        rested = [
            seat
            for seat in ranked
            if not seat.request.preempted or seats.ran[seat.number] >= self._rest
        ]
        chosen: list[Seat] = []
        most = max(len(running) - 1, 1)
        for seat in rested + ([seat for seat in ranked if seat not in rested] if stuck else []):
            if short <= 0 or len(chosen) == most:
                break
            frees = self.frees(seat)
            if frees:
                chosen.append(seat)
                short -= frees
        return chosen

    def stuck(self, grown: Grown) -> bool:
        """Whether nothing that goes on would make room by itself."""
        batch = self._batch
        flown = any(step.seats for step in batch.flown)
        return not (grown.seats or batch.prefill or flown or batch.loading or self._coming())

    def _coming(self) -> int:
        """Blocks that come back with the steps in flight, and with those that stop."""
        stopping = (seat for seat in self._seats.bound() if seat.stop is not None)
        return sum(blocks for _, blocks in self._returning) + sum(map(self.frees, stopping))

    def frees(self, seat: Seat) -> int:
        """Device blocks that only this seat's lease holds."""
        return self._cache.held_alone(seat.lease)

    def _twice(self, seat: Seat) -> bool:
        """Whether it holds a second copy of what another had computed too: its end frees that."""
        stats = self._cache.stats()
        return stats["device_pinned"] + stats["device_claimed"] > seat.lease.blocks

    def _rank(self, seat: Seat) -> tuple[int, ...]:
        entry = seat.request
        computed = int(self._seats.computed[seat.number])
        return self._policy.rank(
            Candidate(entry.priority, entry.came, entry.order, seat.lease.blocks, computed)
        )
