"""Makes room for rows that cannot grow: moves parked blocks down, then stops rows."""

from typing import Final

from blockyard._core import Parked
from blockyard.scheduling.admission import Admission, claims_below, parked_of
from blockyard.scheduling.batch import Grown
from blockyard.scheduling.lifecycle import Lifecycle
from blockyard.scheduling.request import Request
from blockyard.scheduling.seats import Seat
from blockyard.scheduling.shared import Shared
from blockyard.scheduling.unread import Unread
from blockyard.scheduling.victims import Candidate, rank_of

__all__ = ["Preemptor", "Pressure"]

_AHEAD: Final = 2
"""Steps for which parked requests make room before a running one lacks it."""


class Preemptor:
    """Moves parked blocks off the device, and preempts rows where that is too little (INV-25).

    Args:
        shared: State that all parts of the scheduler share.
        lifecycle: How rows stop and fail.
    """

    def __init__(self, shared: Shared, lifecycle: Lifecycle) -> None:
        self._cache = shared.cache
        self._seats = shared.seats
        self._batch = shared.batch
        self._queue = shared.queue
        self._parking = shared.parking
        self._headroom = shared.headroom
        self._counters = shared.counters
        self._moving = shared.moving
        self._policy = shared.options.victim_policy
        self._cooldown = shared.options.preempt_cooldown
        self._lifecycle = lifecycle
        self.unread = Unread(shared, lifecycle)
        """The held requests that could not leave, while others wait for their seats or blocks."""

    def preempt(self, seat: Seat, instead: Request | None = None) -> None:
        """Stops a victim.

        Args:
            seat: The victim.
            instead: The request that it gives way to, if it does. That says nothing of the
                headroom, as nothing has grown; nor does a row that is held.
        """
        self._counters.preempted += 1
        seat.request.preempted += 1
        if instead is None and not seat.request.held:
            self._headroom.preempted()
        self._lifecycle.stop(seat)

    def relieve(self, need: int, behind: Request | None = None) -> None:
        """Copies blocks of parked requests down, those that shall come back last first.

        A parked request that frees no blocks for `max_stalled_steps` (its copies may be stuck) is
        recomputed (T17).

        Args:
            need: Blocks that are lacking.
            behind: The waiting request that lacks them, if one does: only those behind it move.
        """
        movable = self._movable(behind) if need > 0 else []
        if not movable:
            return
        self._parking.relieve(need, self._handles(movable))
        # A request that has left the device has nothing more to give.
        works = ((entry, entry.parked) for entry in movable if entry.parked is not None)
        first, work = next(
            ((it, work) for it, work in works if work.handle.on_device), (None, None)
        )
        if first is None or work is None:
            return
        before, work.on_device = work.on_device, work.handle.on_device
        work.stalled_steps = work.stalled_steps + 1 if work.on_device == before else 0
        if self._parking.gives_up(work.handle, work.stalled_steps):
            self._cache.abandon(work.handle)
            first.recompute()
            self._queue.drop_parked(first)

    def waits_still(self, entry: Request) -> bool:
        """Counts a step in which a request found no room; returns whether that is too often (T17).

        One that is parked is recomputed then.
        """
        work = entry.parked
        if work is None:
            return False
        work.stalled_steps += 1
        return self._parking.is_stalled(work.stalled_steps)

    def relieve_all(self, behind: Request | None = None) -> bool:
        """Copies all blocks of parked requests down, those that others hold too included.

        Blocks that several of them keep are given up by none alone: where nothing goes on, all
        give them up.

        Args:
            behind: The waiting request that goes on then, if one does: only those behind it move.

        Returns:
            Whether anything is on its way now.
        """
        return self._parking.relieve_all(self._handles(self._movable(behind))) > 0

    def lower(self) -> None:
        """Moves blocks of parked requests from the host to the disk, if the host is short."""
        if self._queue.parked:
            self._parking.lower(self._handles(self._movable(None)))

    def dedup(self) -> bool:
        """Makes running rows give up blocks that they hold twice, as another computed them too.

        Call it only where they are `stuck`: then no step in flight reads their tables.

        Returns:
            Whether they held anything twice.
        """
        return self._cache.dedup([seat.lease for seat in self._batch.running()]) > 0

    def _movable(self, behind: Request | None) -> list[Request]:
        """The parked requests that no step in flight writes, the last in the queue first."""
        parked, done = self._parked(behind), self._cache.done
        return [entry for entry in parked if entry.last_write <= done]

    def _parked(self, behind: Request | None = None) -> list[Request]:
        """The parked requests whose work is kept, the last in the queue first."""
        return sorted(
            (
                entry
                for entry in self._queue.parked
                if (behind is None or entry.apart or entry.rank > behind.rank)
                and entry.parked is not None
                and entry.parked.handle.state == "kept"
            ),
            key=lambda entry: entry.rank,
            reverse=True,
        )

    @staticmethod
    def _handles(entries: list[Request]) -> list[Parked]:
        return [entry.parked.handle for entry in entries if entry.parked is not None]

    def victims(self, grown: Grown, spare: int) -> list[Seat]:
        """Chooses the rows that are stopped for those that found no room.

        Rows that stop already, blocks that come back with steps in flight, and parked blocks count
        as room that is coming.

        Args:
            grown: The rows that found no room.
            spare: Blocks that are to be had.
        """
        batch = self._batch
        need = grown.need - max(spare, 0)
        self.relieve(need - batch.held_back)
        running = batch.running()
        lacking = need - self.coming()
        # A row that runs alone could make room only for itself.
        if lacking <= 0 or len(running) <= 1:
            return []
        ranked = sorted(running, key=self.rank)
        rested = [seat for seat in ranked if self.is_rested(seat)]
        chosen: list[Seat] = []
        if self.stuck(grown):
            early = set(rested)
            rested += [seat for seat in ranked if seat not in early]
        for seat in rested:
            # The last row that runs makes room by its end.
            if lacking <= 0 or len(chosen) == len(running) - 1:
                break
            frees = self.frees(seat)
            if frees and self.is_safe(seat) and self.may_stop(seat):
                chosen.append(seat)
                lacking -= frees
        return chosen

    def held(self, need: int, behind: Request) -> tuple[list[Seat], bool]:
        """Chooses rows that are held, for a waiting request (INV-25).

        Rows for which slots below are promised come first. Where the engine can recompute, others
        are computed again when they are read.

        Args:
            need: Blocks that it lacks; 0 where it lacks a seat.
            behind: The request that lacks them: parked ones before it give it none.

        Returns:
            The rows, and whether others that are held must stay, though too little is coming.
        """
        coming = self.coming(behind) if need else self._seats.stopping
        chosen: list[Seat] = []
        # What several rows hold is free when the last of them has left.
        ranked = sorted(
            self._batch.held, key=lambda it: (need and not self.frees(it), self.rank(it))
        )
        for drops in (False, True):
            for seat in [seat for seat in ranked if seat not in chosen]:
                if coming >= max(need, 1):
                    return chosen, False
                if drops or self._may_park(seat):
                    chosen.append(seat)
                    coming += self.frees(seat) if need else 1
            if self._parking.must_park:
                return chosen, coming < max(need, 1) and len(chosen) < len(ranked)
        return chosen, False

    def _may_park(self, seat: Seat) -> bool:
        """Promises slots below to a row that is held, where it is parked and that is safe."""
        if self._parking.mode != "recompute" and self.is_safe(seat):
            seat.ticket = self._parking.promise(seat.lease)
        return seat.ticket is not None

    def last_resort(self) -> Seat | None:
        """Chooses a victim where all rows are stuck, and none of them frees anything alone.

        What several hold is free when the last of them has left. Victims beyond `safety` come
        last: where a tier below was made smaller, they could be lost.
        """
        ranked = sorted(self._batch.running(), key=self.rank)
        if len(ranked) <= 1:
            return None
        ranked.sort(key=lambda seat: not self.is_safe(seat))
        return next(filter(self.may_stop, ranked), None)

    def outgrown(self, skipped: list[Seat]) -> list[Seat]:
        """Chooses those rows without room that fill the whole device, as it was made smaller.

        They wait until it is larger: below it, or to be computed again; or in their seats, where
        neither is possible.
        """
        capacity = self._cache.limit() * self._cache.block_size
        return [seat for seat in skipped if seat.lease.tokens >= capacity and self.may_stop(seat)]

    def fail_one(self) -> None:
        """Fails a row where all are stuck, and no tier below has room to park one.

        By `safety` this happens only where a tier was made smaller since they began. It does not
        happen while a ticket or a hold is open: the rows wait until its room comes back. Nor where
        it is the device that was made smaller: they wait until it is larger.
        """
        running = self._batch.running()
        promised = any(kind in {"ticket", "hold"} for kind, *_ in self._cache.holders())
        smaller = any(self._cache.limit() < seat.limit for seat in running)
        if not self._parking.must_park or promised or smaller:
            return
        lost = min(
            running,
            key=lambda seat: (not seat.request.held, not self.frees(seat), self.rank(seat)),
            default=None,
        )
        if lost is not None:
            why = "kv_lost: there is no room for all that run, and none below to park it"
            self._lifecycle.fail_seat(lost, why)

    def stuck(self, grown: Grown) -> bool:
        """Whether nothing that goes on would make room by itself."""
        batch = self._batch
        progress = bool(grown.seats) or batch.prefilling or batch.computing or batch.loading
        progress = progress or self._seats.stopping > 0 or self.coming() > 0
        done = self._cache.done
        progress = progress or any(entry.last_write > done for entry in self._queue.parked)
        # A copy keeps the blocks that it reads, and all above them.
        return not progress and self._cache.blocks_in_flight() == (0, 0)

    def coming(self, behind: Request | None = None) -> int:
        """Blocks that come back: with steps, from rows that stop or move, and from parked ones."""
        return (
            self._batch.held_back
            + sum(map(self.frees, self._seats.stopping_seats()))
            + self._parking.coming(self._handles(self._parked(behind)))
            + self._lifecycle.leaving()
        )

    def is_rested(self, seat: Seat) -> bool:
        """Whether a row has run long enough since it was preempted to be so again."""
        entry = seat.request
        ran = self._seats.steps_run[seat.number]
        return entry.held or not entry.preempted or bool(ran >= self._cooldown)

    def is_safe(self, seat: Seat, instead: Request | None = None) -> bool:
        """Whether all but one can still be parked when this row is, and another begins for it."""
        if not self._parking.must_park:
            return True
        running, stopping = self._seats.requests()
        others = [entry for entry in running if entry is not seat.request]
        others += [] if instead is None else [instead]
        parked = (entry for entry in self._queue.parked if entry is not instead)
        kept = [*stopping, *parked, *parked_of(self._moving), seat.request]
        return claims_below(self._cache, others, kept) <= self._parking.largest()[0]

    def may_stop(self, seat: Seat) -> bool:
        """Where the engine cannot recompute, promises slots below first (T7)."""
        if self._parking.must_park:
            if seat.lease.state == "detached":
                # Nothing keeps what `clear` or `forget` has named: it would fail.
                return False
            seat.ticket = self._parking.promise(seat.lease)
            return seat.ticket is not None
        return True

    def frees(self, seat: Seat) -> int:
        """Device blocks that only this seat's lease holds."""
        return self._cache.exclusive_blocks(seat.lease)

    def rank(self, seat: Seat) -> tuple[int, ...]:
        """A key of a row; the smallest is preempted first, and one that is held before others."""
        entry = seat.request
        computed = int(self._seats.computed[seat.number])
        blocks = seat.lease.blocks
        one = Candidate(entry.new.priority, entry.arrival_step, entry.order, blocks, computed)
        rank = rank_of("victim_policy", self._policy, one)
        # It computes nothing that would be put off.
        return (not entry.held, *rank)


class Pressure:
    """Makes room: parked blocks move, rows skip a step, victims stop, and at last one fails.

    Args:
        shared: State that all parts of the scheduler share.
        admission: The waiting requests, and the blocks that they lack.
        preemptor: Moves parked blocks, and stops rows.
    """

    def __init__(self, shared: Shared, admission: Admission, preemptor: Preemptor) -> None:
        self._seats = shared.seats
        self._batch = shared.batch
        self._counters = shared.counters
        self._admission = admission
        self._preemptor = preemptor
        self._unread = preemptor.unread

    def move_ahead(self) -> None:
        """Makes room of parked blocks for the first waiting request, and for rows that grow soon.

        It comes after admission: a request that comes back in this step does not move in it.
        """
        self._unread.relent()
        refused = self._admission.first_refused()
        if refused is not None and self._preemptor.waits_still(refused[0]):
            self._admission.ask_again()
        if self._batch.held and self._seats.full:
            entry = self._admission.first_in_line()
            if entry is not None:
                self._give_way(entry, 0)
        if refused is not None:
            first, lacks, below = refused
            if below:
                self._unread.outlast(first, self._unread.keepers())
            elif lacks > 0 and not self._admission.take_back_apart():
                self._give_way(first, lacks)
            self._preemptor.relieve(lacks, behind=first)
            idle = len(self._seats) == len(self._batch.held)
            if idle or (first.waiting.displaced and lacks > self._preemptor.coming(first)):
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
        self._preempt(victims)
        if short:
            self._unread.outlast(first, self._unread.seated())

    def make_room(self, grown: Grown) -> Grown:
        """Lets rows without room skip the step, and stops victims where too little comes.

        T7, T36.
        """
        if self._preemptor.stuck(grown) and self._preemptor.dedup():
            # No row had grown, so none grows twice.
            grown = self._batch.grow()
            if not grown.skipped:
                return grown
        self._admission.take_back_apart()
        self._counters.skipped += len(grown.skipped)
        self._preempt(self._preemptor.outgrown(grown.skipped))
        victims = self._preemptor.victims(grown, self._admission.growth())
        if not victims and self._preemptor.stuck(grown):
            victims = self._unstick()
        self._preempt(victims)
        return grown.without_stopped()

    def _preempt(self, victims: list[Seat]) -> None:
        for seat in victims:
            self._preemptor.preempt(seat)

    def _unstick(self) -> list[Seat]:
        """Victims where no row goes on, and none frees anything alone (INV-25)."""
        if self._preemptor.relieve_all() or self._admission.take_back():
            return []
        victim = self._preemptor.last_resort()
        if victim is not None:
            return [victim]
        self._preemptor.fail_one()
        return []
