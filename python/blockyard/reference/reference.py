"""An engine that computes real tokens, so a lost or stale block of KV changes the text."""

import os
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from blockyard._core import Misuse, Unsupported
from blockyard.crane.copiers import Copier
from blockyard.crane.devices import NUMPY, Device
from blockyard.crane.tiers.disk_paths import DiskPath
from blockyard.local_cache import LocalCache, local
from blockyard.reference.model import Model
from blockyard.reference.parallel import Ranks
from blockyard.reference.rank import Rank, RankStart, RankStep
from blockyard.reference.sampling import Sampling, key_of
from blockyard.scheduling.engine import Ack, Output, Start, Step, Stop
from blockyard.shared.single import Single
from blockyard.shared.validate import integer, one_of
from blockyard.stores import Store
from blockyard.yard.cache import KVCache
from blockyard.yard.config import Config

__all__ = ["ReferenceEngine", "alone"]


class _Seat(NamedTuple):
    """A bound seat, as of the last submitted step."""

    request: Hashable
    epoch: int
    computed: int


class _Air(NamedTuple):
    """A step in flight."""

    number: int
    due: int
    """The poll that returns its output."""
    stops: tuple[Stop, ...]


class ReferenceEngine(Single):
    """An `Engine` of a `Rank` in this process, or of `Ranks` in others.

    Block tables and slot mappings come from the cache when a step is submitted, so a step in flight
    has those it was scheduled with. Steps are computed in order; a step uses the tokens of the step
    before, whether or not the scheduler knows them yet.

    Args:
        cache: The cache of the steps' leases.
        ranks: Computes the steps.
        stops: As in `Engine`.
        lag: Polls that a step stays in flight before the poll with its output. Where submits and
            polls alternate, as many steps are in flight.
        late: Polls by which an ack is late. With 0 it comes with the output of the last step
            before its own, or with the next poll where that output was taken.

    Raises:
        Misuse: A value is out of range, or the cache has another layout than the ranks.

    Example:
        >>> from blockyard.reference.model import Model
        >>> from blockyard.reference.weights import ModelConfig
        >>> from blockyard.scheduling.new_request import NewRequest
        >>> from blockyard.scheduling.options import SchedulerOptions
        >>> from blockyard.scheduling.scheduler import Scheduler
        >>> model = Model(ModelConfig())
        >>> cache, engine = alone(model, Config(layout=model.config.layout(), device=16))
        >>> scheduler = Scheduler(cache, SchedulerOptions(stops=engine.stops))
        >>> scheduler.add(NewRequest("one", [1, 2, 3], max_tokens=4))
        >>> while not scheduler.idle:
        ...     engine.submit(scheduler.schedule())
        ...     moved = cache.step()
        ...     outputs, acks = engine.poll()
        ...     for output in outputs:
        ...         scheduler.on_output(output)
        ...     scheduler.on_acks(acks)
        >>> len(scheduler.results()[0].tokens)
        4
    """

    def __init__(
        self,
        cache: KVCache,
        ranks: Rank | Ranks,
        *,
        stops: Literal["in-order", "acked"] = "acked",
        lag: int = 0,
        late: int = 0,
    ) -> None:
        lag = integer("lag", lag, least=0)
        late = integer("late", late, least=0)
        one_of("stops", stops, ("in-order", "acked"))
        if cache.config.layout != ranks.layout:
            raise Misuse("the cache has another layout than the ranks: use the same for both")
        self.stops: Literal["in-order", "acked"] = stops
        self._cache = cache
        self._ranks = ranks
        self._lag = lag
        self._late = late
        self._seats: dict[int, _Seat] = {}
        self._air: deque[_Air] = deque()
        self._acks: list[tuple[int, Ack]] = []
        self._polls = 0
        self._last = 0

    def __len__(self) -> int:
        """Returns the number of steps in flight."""
        return len(self._air)

    def submit(self, step: Step) -> None:
        """Begins a step, and never waits for it.

        Raises:
            Misuse: It is not newer than the last, binds a bound seat, runs an unbound seat, or
                skips or repeats a position. Nothing of the step is taken.
            Unsupported: A row has drafts.
        """
        if step.number <= self._last:
            raise Misuse(f"step {step.number}: the last one was {self._last}")
        seats = dict(self._seats)
        for stop in step.stops:
            # An old stop does not affect a later request in the seat.
            if (seat := seats.get(stop.seat)) is not None and seat.epoch < stop.epoch:
                del seats[stop.seat]
        starts = [self._start(start, seats) for start in step.starts]
        numbers = [*step.decode.tolist(), *(chunk.seat for chunk in step.chunks)]
        self._rows(step, numbers, seats)
        work = RankStep(
            step.number,
            [(stop.seat, stop.epoch) for stop in step.stops],
            starts,
            np.array(numbers, np.int32),
            step.positions,
            step.counts,
            self._cache.block_tables(step.leases),
            self._cache.slot_mapping(step.leases, step.positions, step.counts),
        )
        self._ranks.begin(work)
        self._seats, self._last = seats, step.number
        if not self._air:
            self._hear(step.stops)
        self._air.append(_Air(step.number, self._polls + 1 + self._lag, step.stops))

    def poll(self) -> tuple[list[Output], list[Ack]]:
        """Returns the steps that are done, in order, and acks; never waits for `Ranks`.

        A `Rank` in this process computes only now.

        Raises:
            Unavailable: The process of a rank is gone.
        """
        self._polls += 1
        outputs = []
        while self._air and self._air[0].due <= self._polls:
            output = self._output()
            if output is None:
                break
            outputs.append(output)
            self._air.popleft()
            if self._air:
                self._hear(self._air[0].stops)
        acks = [ack for due, ack in self._acks if due <= self._polls]
        self._acks = [entry for entry in self._acks if entry[0] > self._polls]
        return outputs, acks

    def update_weights(self, seed: int) -> None:
        """Uses other weights from the next step on, in which no seat of before may run.

        Call `Scheduler.update_weights` as well, before the next `schedule`.

        Args:
            seed: Seed of the weights.
        """
        seed = integer("seed", seed, least=0)
        self._ranks.update(seed)
        self._seats.clear()

    def reset(self) -> None:
        """Drops seats, steps in flight and acks; no step is computed any more."""
        self._ranks.reset()
        self._seats.clear()
        self._air.clear()
        self._acks.clear()

    def _start(self, start: Start, seats: dict[int, _Seat]) -> RankStart:
        vocabulary = self._ranks.config.vocabulary
        if start.seat in seats:
            raise Misuse(
                f"seat {start.seat} is bound to {seats[start.seat].request!r} and cannot take "
                f"{start.request!r}: stop it first"
            )
        if not 0 <= start.cached < len(start.tokens):
            raise Misuse(
                f"request {start.request!r} has {start.cached} of {len(start.tokens)} tokens "
                "computed: leave at least one, which samples the next"
            )
        if start.tokens.max() >= vocabulary:
            raise Misuse(
                f"token {start.tokens.max()} of request {start.request!r}: the vocabulary has "
                f"{vocabulary}"
            )
        seats[start.seat] = _Seat(start.request, start.epoch, start.cached)
        return RankStart(start.seat, start.epoch, key_of(start.request), start.tokens)

    @staticmethod
    def _rows(step: Step, numbers: list[int], seats: dict[int, _Seat]) -> None:
        """Advances the seats by the positions that they compute."""
        drafted = np.flatnonzero(step.counts[: len(step.decode)] != 1)
        if len(drafted):
            raise Unsupported(f"seat {numbers[drafted[0]]} has drafts in step {step.number}")
        for number, first, count in zip(
            numbers, step.positions.tolist(), step.counts.tolist(), strict=True
        ):
            seat = seats.get(number)
            if seat is None:
                raise Misuse(f"step {step.number} runs seat {number}, which is not bound")
            if seat.computed != first:
                raise Misuse(
                    f"step {step.number} runs seat {number} from position {first}, and it stands "
                    f"at {seat.computed}"
                )
            seats[number] = seat._replace(computed=first + count)

    def _output(self) -> Output | None:
        said = self._ranks.finish()
        if said is None:
            return None
        for seat in said.seats[said.ended].tolist():
            self._seats.pop(seat, None)
        ends = self._ranks.sampling.end is not None
        return Output(said.number, said.seats, said.tokens, ended=said.ended if ends else None)

    def _hear(self, stops: tuple[Stop, ...]) -> None:
        """Acknowledges stops, now that all steps before them are done."""
        if self.stops == "acked":
            self._acks += [(self._polls + self._late, Ack(*stop)) for stop in stops]


def alone(  # noqa: PLR0913 - keywords
    model: Model,
    config: Config,
    *,
    sampling: Sampling | None = None,
    stops: Literal["in-order", "acked"] = "acked",
    lag: int = 0,
    late: int = 0,
    copier: Copier | None = None,
    on: Device = NUMPY,
    disk_path: DiskPath | None = None,
    stores: Sequence[Store | str] | None = None,
    peers: Sequence[str] | None = None,
    secret_file: str | os.PathLike[str] | None = None,
) -> tuple[LocalCache, ReferenceEngine]:
    """Returns a cache with its crane, and an engine, in one process.

    Args:
        model: All of its shards.
        config: Configures yard and crane, with a layout from `ModelConfig.layout`.
        sampling: How tokens are drawn.
        stops: As in `ReferenceEngine`.
        lag: As in `ReferenceEngine`.
        late: As in `ReferenceEngine`.
        copier: As in `local`.
        on: The device that computes, and has the memory.
        disk_path: Where the blocks of `disk` outlive this process, as in `local`; None for memory.
        stores: Shared stores, as in `local`.
        peers: Prefill instances whose offers are taken over, as in `local`. An engine that offers
            has a `PrefillSide` over the cache and `LocalCache.crane.device`.
        secret_file: As in `local`.

    Raises:
        Misuse: A value is out of range, or the layout is not the model's.
        Unavailable: There is not enough memory.
    """
    layout = config.layout
    if layout is None:
        raise Misuse("layout = None: the engine needs bytes; give ModelConfig.layout")
    disk = config.disk_blocks if disk_path is None else 0
    device, host, below = on.tiers(layout, config.device_blocks, config.host_blocks, disk)
    rank = Rank(model, device, sampling=sampling)
    memory = (device, host) if disk_path is not None else (device, host, below)
    cache = local(
        config,
        memory=memory,
        copier=copier,
        disk_path=disk_path,
        stores=stores,
        peers=peers,
        secret_file=secret_file,
    )
    return cache, ReferenceEngine(cache, rank, stops=stops, lag=lag, late=late)
