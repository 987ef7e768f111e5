"""Applies an engine's output: appends tokens, seals blocks, ends requests."""

import numpy as np

from blockyard._core import Misuse
from blockyard.scheduling.batch import InFlightStep, Rows
from blockyard.scheduling.engine import Output
from blockyard.scheduling.forks import Forks
from blockyard.scheduling.lifecycle import Lifecycle
from blockyard.scheduling.output_checks import accepted, check, plain, sampled
from blockyard.scheduling.request import RequestState
from blockyard.scheduling.seats import Seat
from blockyard.scheduling.shared import Shared

__all__ = ["OutputProcessor"]


class OutputProcessor:
    """Applies the output of each step, the oldest in flight first.

    Args:
        shared: State that all parts of the scheduler share.
        lifecycle: How requests end.
        forks: How samples of a prompt begin when it is computed.
    """

    def __init__(self, shared: Shared, lifecycle: Lifecycle, forks: Forks) -> None:
        self._cache = shared.cache
        self._seats = shared.seats
        self._batch = shared.batch
        self._lifecycle = lifecycle
        self._forks = forks
        self._headroom = shared.headroom
        self._drafts = shared.options.num_speculative_tokens
        self._in_order = shared.options.in_order
        self._counters = shared.counters

    def apply(self, output: Output) -> None:
        """Takes an output, or refuses it and takes nothing of it."""
        acks = check(output)
        if self._batch.dead is not None:
            self._counters.outputs_ignored += len(output.seats)
            self._lifecycle.on_acks(acks)
            return
        oldest = self._batch.oldest
        if oldest is None or output.step != oldest.number:
            wanted = "none" if oldest is None else oldest.number
            raise Misuse(f"output of step {output.step}: the oldest in flight is {wanted}")
        waits = self._drafts or (self._in_order and self._seats.stopping)
        if not waits and not acks and plain(output, oldest, self._seats):
            self._plain(output, self._batch.retire().rows)
            return
        rows = sampled(output, oldest, self._seats)
        in_flight = self._batch.retire()
        alive = [self._seats.lives(seat) for seat in in_flight.rows.seats]
        computed = accepted(output, in_flight)
        if not all(alive):
            self._counters.outputs_ignored += alive.count(False)
        tokens = np.zeros(self._seats.count, np.int64)
        tokens[in_flight.rows.numbers[alive]] = computed[alive]
        self._seats.add_computed(tokens)
        for seat in rows:
            if seat is not None and seat.request.group is not None:
                self._forks.fork(seat)
        self._foretell(output, rows)
        self._append(output, rows, in_flight.lasts)
        self._seal(
            in_flight,
            [
                seat
                for seat, lives in zip(in_flight.rows.seats, alive, strict=True)
                if lives and not seat.request.terminal
            ],
        )
        self._batch.done(output.step)
        self._end(output, rows)
        if self._in_order:
            self._lifecycle.ack_in_order(output.step)
        self._lifecycle.on_acks(acks)

    def _plain(self, output: Output, rows: Rows) -> None:
        """Applies a plain step: every row decoded one token, and none left or ended."""
        self._seats.add_computed(rows.once)
        computed = self._seats.computed[rows.numbers]
        self._cache.decode_step(rows.batch, output.tokens, computed, grow=0)
        self._seats.add_sampled(rows.numbers, output.tokens, rows.once)
        self._batch.done(output.step)
        self._headroom.stepped()

    def _seal(self, in_flight: InFlightStep, rows: list[Seat]) -> None:
        """Seals computed blocks; the positions of rejected drafts are given back first."""
        if not rows:
            return
        seats = self._seats
        if self._drafts:
            drafted = set(in_flight.rows.decode.tolist())
            drafts = [seat for seat in rows if seat.number in drafted]
            numbers = np.fromiter((seat.number for seat in drafts), np.int64, len(drafts))
            seats.reject_drafts(numbers)
            self._cache.trim([seat.lease for seat in drafts], seats.computed[numbers])
        numbers = np.fromiter((seat.number for seat in rows), np.int64, len(rows))
        self._cache.seal([seat.lease for seat in rows], seats.computed[numbers])
        # A step that decodes nothing grows no row.
        self._cache.make_spare()
        self._headroom.stepped()

    @staticmethod
    def _foretell(output: Output, rows: list[Seat | None]) -> None:
        """Notes which tokens are the last: an interrupt must not part an end from its token."""
        if output.ended is None:
            return
        each = [1] * len(rows) if output.counts is None else output.counts.tolist()
        for seat, more, ends in zip(rows, each, output.ended.tolist(), strict=True):
            if seat is not None and ends:
                seat.request.foretell(more)

    def _append(self, output: Output, rows: list[Seat | None], lasts: frozenset[int]) -> None:
        """Appends the sampled tokens; those of a stopping row count until its ack (T8)."""
        tokens, counts = output.tokens, output.counts
        seats = [seat for seat in rows if seat is not None]
        if counts is None:
            if len(seats) < len(rows):
                tokens = tokens[[seat is not None for seat in rows]]
            if seats:
                self._cache.append([seat.lease for seat in seats], tokens)
                numbers = np.array([seat.number for seat in seats], np.int64)
                self._seats.add_sampled(numbers, tokens)
        else:
            ends = np.cumsum(counts.astype(np.int64)).tolist()
            for seat, begin, end in zip(rows, [0, *ends], ends, strict=False):
                if seat is not None:
                    self._cache.append(seat.lease, tokens[begin:end])
                    self._seats.add_accepted(seat, tokens[begin:end])
        for seat in seats if lasts else ():
            if seat.number in lasts and seat.stop is None:
                seat.request.decode()
                self._batch.begin_decode(seat)
                if seat.request.held:
                    self._headroom.lower()

    def _end(self, output: Output, rows: list[Seat | None]) -> None:
        """Ends rows at an end token of the engine, or at `max_tokens` (T28, T35)."""
        seats, ended = self._seats, output.ended
        ends = seats.known[output.seats] >= seats.max_length[output.seats]
        if ended is not None:
            ends |= ended
        for at in np.flatnonzero(ends).tolist():
            seat = rows[at]
            if seat is None:
                continue
            entry = seat.request
            by_engine = ended is not None and bool(ended[at])
            self._batch.drop(seat)
            reason = "stop" if len(entry.outputs) < entry.new.max_tokens else "length"
            self._lifecycle.end(entry, RequestState.FINISHED, reason)
            if by_engine and seat.stop is None:
                self._lifecycle.release(seat)
                continue
            self._seats.mark_ended(seat)
            if seat.stop is None:
                self._lifecycle.stop(seat)
