"""One rank of the reference engine: seats and their tokens, shards of the model, KV memory."""

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from blockyard._core import Misuse
from blockyard.crane.tiers import Mapped
from blockyard.reference.model import Gather, Model, ModelInput
from blockyard.reference.sampling import Sampling
from blockyard.shared.single import Single

__all__ = ["Rank", "RankStart", "RankStep", "SampledTokens"]


class RankStart(NamedTuple):
    """A seat, and the request that is bound to it."""

    seat: int
    epoch: int
    key: int
    """The request's key for sampling."""
    tokens: NDArray[np.uint32]
    """Shape (tokens,)."""


class RankStep(NamedTuple):
    """A step as plain values, with its tables as they were when it was submitted."""

    number: int
    stops: list[tuple[int, int]]
    """Seat and epoch of each."""
    starts: list[RankStart]
    seats: NDArray[np.int32]
    """The rows' seats, shape (rows,)."""
    positions: NDArray[np.int64]
    """The first position that each row computes, shape (rows,)."""
    counts: NDArray[np.int64]
    """The number of positions that each row computes, shape (rows,)."""
    tables: NDArray[np.int32]
    """Block tables, shape (rows, columns)."""
    slots: NDArray[np.int64]
    """The places of the KV, row after row."""


class SampledTokens(NamedTuple):
    """The tokens that a step has sampled."""

    number: int
    seats: NDArray[np.int32]
    """Shape (rows that sampled,)."""
    tokens: NDArray[np.uint32]
    """Shape (rows that sampled,)."""
    ended: NDArray[np.bool_]
    """Whether each ended its sequence, shape (rows that sampled,)."""


@dataclass(slots=True)
class _SeatRow:
    """The request in a seat."""

    epoch: int
    key: int
    tokens: list[int]


class Rank(Single):
    """Computes steps in order, each one as late as possible: when its result is taken.

    A step uses the tokens of the step before, whether or not the scheduler knows them yet.

    Args:
        model: The rank's shards.
        tier: The rank's device memory, in arrays of the model's module.
        sampling: How tokens are drawn.
        gather: As in `Model.forward`.

    Raises:
        Misuse: The memory has another layout than the model needs.
    """

    def __init__(
        self,
        model: Model,
        tier: Mapped,
        *,
        sampling: Sampling | None = None,
        gather: Gather | None = None,
    ) -> None:
        self._model = model
        self._kv = model.view(tier)
        self._gather = gather
        self._rows: dict[int, _SeatRow] = {}
        self._queue: deque[RankStep | Model] = deque()
        self.config = model.config
        """The figures of the model."""
        self.layout = tier.layout
        """The layout of the memory."""
        self.sampling = Sampling() if sampling is None else sampling
        """How tokens are drawn."""
        if self.sampling.end is not None and self.sampling.end >= model.config.vocabulary:
            raise Misuse(
                f"end = {self.sampling.end}: the vocabulary has {model.config.vocabulary} tokens"
            )

    def begin(self, work: RankStep) -> None:
        """Queues a step."""
        self._queue.append(work)

    def finish(self) -> SampledTokens | None:
        """Computes the oldest step in the queue; None where there is none."""
        while self._queue:
            next_ = self._queue.popleft()
            if isinstance(next_, RankStep):
                return self._compute(next_)
            self._model = next_
            self._rows.clear()
        return None

    def update(self, seed: int) -> None:
        """Uses other weights for later steps, which begin without seats."""
        old = self._model
        self._queue.append(Model(old.config, seed, rank=old.rank, ranks=old.ranks, xp=old.xp))

    def reset(self) -> None:
        """Forgets all seats and queued steps; the newest weights stay."""
        for entry in self._queue:
            if isinstance(entry, Model):
                self._model = entry
        self._queue.clear()
        self._rows.clear()

    def _compute(self, work: RankStep) -> SampledTokens:
        for seat, epoch in work.stops:
            row = self._rows.get(seat)
            # An old stop does not affect a later request in the seat.
            if row is not None and row.epoch < epoch:
                del self._rows[seat]
        for start in work.starts:
            self._rows[start.seat] = _SeatRow(start.epoch, start.key, start.tokens.tolist())
        # A request that is not here has ended by itself while this step was in flight.
        here = [at for at, seat in enumerate(work.seats.tolist()) if seat in self._rows]
        said = self._sample(work, here) if here else []
        ended = np.array([token == self.sampling.end for _, token in said], np.bool_)
        for seat, token in said:
            if token == self.sampling.end:
                del self._rows[seat]
        return SampledTokens(
            work.number,
            np.array([seat for seat, _ in said], np.int32),
            np.array([token for _, token in said], np.uint32),
            ended,
        )

    def _sample(self, work: RankStep, here: list[int]) -> list[tuple[int, int]]:
        """Computes these rows of a step; returns the seats that sampled, and their tokens."""
        rows = [self._rows[int(work.seats[at])] for at in here]
        counts, firsts = work.counts[here], work.positions[here]
        lasts = firsts + counts
        slots = np.split(work.slots, np.cumsum(work.counts)[:-1])
        spans = list(zip(rows, firsts.tolist(), lasts.tolist(), strict=True))
        batch = ModelInput(
            np.concatenate([row.tokens[first:last] for row, first, last in spans]),
            np.concatenate([np.arange(first, last) for _, first, last in spans]),
            np.concatenate([slots[at] for at in here]),
            work.tables[here],
            counts,
        )
        which = [at for at, (row, _, last) in enumerate(spans) if last == len(row.tokens)]
        wanted = np.cumsum(counts)[which] - 1
        logits = self._model.forward(batch, self._kv, wanted, self._gather)
        if not which:
            return []
        keys = np.array([rows[at].key for at in which], np.uint64)
        tokens = self.sampling.draw(logits, keys, lasts[which], self._model.xp).tolist()
        for at, token in zip(which, tokens, strict=True):
            rows[at].tokens.append(token)
        return [(int(work.seats[here[at]]), token) for at, token in zip(which, tokens, strict=True)]
