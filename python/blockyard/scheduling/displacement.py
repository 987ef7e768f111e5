"""Which running requests give their seat or room to waiting ones of a higher priority."""

from typing import Final

from blockyard.scheduling.admission import Admission
from blockyard.scheduling.preemption import Preemptor
from blockyard.scheduling.request import Request
from blockyard.scheduling.seats import Seat
from blockyard.scheduling.shared import Shared

__all__ = ["Displacement"]

_PAUSE: Final = 8
"""Steps to skip after a search that found no request to stop, if nothing has changed."""


class Displacement:
    """Stops rows for waiting requests of a strictly higher priority (INV-41).

    A row is stopped once at most for a request that waits, and not before it has run
    `preempt_cooldown` steps since it was preempted: so no chain of displacements goes on for ever.

    Args:
        shared: State that all parts of the scheduler share.
        admission: Which waiting requests found no room, and how much each needs.
        preemptor: Which rows are stopped first, and which may be.
    """

    def __init__(self, shared: Shared, admission: Admission, preemptor: Preemptor) -> None:
        self._seats = shared.seats
        self._batch = shared.batch
        self._queue = shared.queue
        self._headroom = shared.headroom
        self._counters = shared.counters
        self._admission = admission
        self._preemptor = preemptor
        self._count = shared.options.max_num_seqs
        self.enabled = shared.options.priority_preemption
        """Whether any is stopped."""
        self._fruitless: tuple[tuple[int, ...], int] | None = None

    def displace(self) -> None:
        """Stops the rows that give way, before the next step grows any.

        Seats that are free or become so, and room that comes back anyhow, count first.
        """
        highest, lowest = self._queue.highest, min(self._seats.priorities, default=None)
        if highest is None or lowest is None or highest <= lowest:
            return
        needs = self._admission.needs()
        first = needs[0][0].order if needs else -1
        version = self._seats.arrivals, self._seats.departures, self._queue.changes, first
        if self._fruitless is not None:
            seen, again = self._fruitless
            if seen == version and self._batch.number < again:
                return
        before = self._counters.displaced
        entries = [it for it in self._admission.in_line(self._count) if it.new.priority > lowest]
        rows = self._rows(highest) if entries else []
        if rows:
            self._give_seats(rows, entries)
            self._give_room(rows, needs, lowest)
        idle = self._counters.displaced == before
        self._fruitless = (version, self._batch.number + _PAUSE) if idle else None

    def _rows(self, highest: int) -> list[Seat]:
        """The rows below a priority that may be stopped, the first to go first."""
        preemptor = self._preemptor
        rows = [row for row in self._batch.running() if row.request.new.priority < highest]
        return sorted(filter(preemptor.is_rested, rows), key=preemptor.rank)

    def _give_seats(self, rows: list[Seat], entries: list[Request]) -> None:
        """Stops a row for each request, in their order, for which no seat comes free."""
        free = self._count - len(self._seats) + self._seats.stopping
        for entry in entries[free:]:
            lower = self._below(entry, rows)
            if not any(self._stop(row, entry) for row in lower):
                return

    def _give_room(self, rows: list[Seat], needs: list[tuple[Request, int]], lowest: int) -> None:
        """Stops rows for the requests that found no room, as far as that makes room for them."""
        need = 0
        for entry, blocks in needs:
            need += blocks
            if entry.new.priority <= lowest:
                return
            lower = self._below(entry, rows)
            lacks = need - self._coming(entry)
            if lacks <= 0:
                continue
            lacks -= self._headroom.freed_by(lower)
            frees = {row: self._preemptor.frees(row) for row in lower}
            if lacks > sum(frees.values()):
                # What several hold comes free when the last of them has left.
                frees = {row: row.lease.blocks for row in lower}
            if lacks > sum(frees.values()):
                return
            for row in lower:
                if need <= self._coming(entry):
                    break
                if frees[row]:
                    self._stop(row, entry)

    def _coming(self, entry: Request) -> int:
        """Blocks that are to be had for a request, or come back by themselves."""
        return self._admission.spare() + self._preemptor.coming(entry)

    @staticmethod
    def _below(entry: Request, rows: list[Seat]) -> list[Seat]:
        """The rows that may be stopped for a request, and run still."""
        return [
            row
            for row in rows
            if row.request.new.priority < entry.new.priority
            and row.stop is None
            and row.request not in entry.waiting.displaced
        ]

    def _stop(self, row: Seat, entry: Request) -> bool:
        """Stops a row for a request; returns whether it could be."""
        if not self._preemptor.is_safe(row, instead=entry) or not self._preemptor.may_stop(row):
            return False
        self._counters.displaced += 1
        self._admission.give_way(row.request, to=entry)
        self._preemptor.preempt(row, instead=entry)
        return True
