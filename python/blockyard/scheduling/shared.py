"""State that all parts of a scheduler share."""

from dataclasses import dataclass, field
from typing import Self

from blockyard.scheduling.batch import Batch
from blockyard.scheduling.counters import Counters
from blockyard.scheduling.kept_headroom import KeptHeadroom
from blockyard.scheduling.lookups import Lookups
from blockyard.scheduling.options import SchedulerOptions
from blockyard.scheduling.queue import WaitingQueue, Waits
from blockyard.scheduling.request import Move, Request
from blockyard.scheduling.seats import Seats
from blockyard.shared.timings import Clock
from blockyard.yard.asking import Asking, Lookup
from blockyard.yard.cache import KVCache
from blockyard.yard.parking import Parking

__all__ = ["Shared"]


@dataclass(frozen=True, slots=True)
class Shared:
    """Cache, options, queue, seats and batch: each part is made with it."""

    cache: KVCache
    options: SchedulerOptions
    clock: Clock
    """Seconds. It only measures, and ends the patience of `lookups` and of what moves."""
    counters: Counters
    queue: WaitingQueue
    """Where requests wait."""
    seats: Seats
    """The seats of the running batch."""
    batch: Batch
    """The rows that run in them, and the steps in flight."""
    parking: Parking
    """How a victim's work is kept, and how it comes back."""
    headroom: KeptHeadroom
    """Room kept for the growth of running requests."""
    lookups: Lookups
    """What shared stores are asked."""
    moving: dict[Request, Move] = field(default_factory=dict)
    """The requests that move to other engines, in the order of the calls."""

    @classmethod
    def of(
        cls,
        cache: KVCache,
        options: SchedulerOptions,
        clock: Clock,
        waits: Waits | None,
        lookup: Lookup | None = None,
    ) -> Self:
        """Makes all of it for one scheduler, with no request in it."""
        batch = Batch(cache, Seats(options.max_num_seqs), options)
        parking = Parking(
            cache,
            cache.config,
            mode=options.preempt_mode,
            max_stalled_steps=options.max_stalled_steps,
        )
        headroom = KeptHeadroom(cache, batch, options.headroom_policy())
        queue = WaitingQueue(waits)
        seats, counters = batch.seats, Counters()
        patience = options.lookup_patience
        lookups = Lookups(cache, Asking([cache], lookup, patience=patience), queue, patience, clock)
        return cls(cache, options, clock, counters, queue, seats, batch, parking, headroom, lookups)
