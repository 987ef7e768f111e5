"""Options of a scheduler: sizes, limits and policies, under the names of vLLM."""

from dataclasses import dataclass, field
from typing import Final, get_args

from blockyard._core import Misuse
from blockyard.scheduling.engine import Stops
from blockyard.scheduling.headroom import (
    HeadroomPolicy,
    Role,
    checked_headroom,
    default_headroom,
)
from blockyard.scheduling.request_checks import whole
from blockyard.scheduling.victims import Newest, VictimPolicy, checked_policy
from blockyard.shared.validate import one_of, seconds
from blockyard.stores import PATIENCE
from blockyard.yard.parking import PreemptMode, checked_mode

__all__ = ["SchedulerOptions"]

_LEAST: Final = {
    "max_num_seqs": 1,
    "max_num_batched_tokens": 1,
    "preempt_cooldown": 0,
    "max_stalled_steps": 0,
    "max_held_steps": 0,
    "max_overtakes": 0,
    "num_speculative_tokens": 0,
    "prefetch_depth": 0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions:
    """Sizes, limits and policies of a `Scheduler`. All have defaults.

    They are frozen, and any thread may read them.

    Args:
        max_num_seqs: Rows of the engine's running batch, called seats.
        max_num_batched_tokens: Most tokens computed in a step. Rows that decode come first, and
            are never left out for it.
        role: The phases that this engine computes: both ("mixed"), or only "prefill" or "decode".
        headroom: How much room the running batch keeps for its growth. None: the default policy of
            the role, made for each scheduler.
        victim_policy: Which sequence is preempted when the headroom was too small.
        preempt_mode: How a victim's KV is kept: "park", "full-blocks" or "recompute", as in
            `Parking`. None: "park" where there is a tier below the device.
        stops: "in-order" where a stop holds from its own step on, so that the output of that step
            is its ack; "acked" where the engine acks each stop.
        priority_preemption: Whether a request that waits for a seat or for room takes it from
            running ones of a strictly lower priority. They are parked, or recomputed where nothing
            can be parked, and go on when it has begun.
        preempt_cooldown: Steps that a request runs after it was preempted, before it can be a
            victim again.
        max_stalled_steps: Steps in a row that a parked request may find no room, or give none to
            others, before it is recomputed instead.
        max_held_steps: Steps for which a held request, whose tokens are not read, may keep others
            waiting for a seat or for room before it fails. It counts only if the engine cannot
            recompute and there is no room to park: else a held request makes room at once.
        max_overtakes: How often later requests may overtake one that does not fit.
        num_speculative_tokens: Draft tokens that a speculative engine may compute in each row
            beside its newest token. With them a row is in one step at a time.
        prefetch_depth: How many of the next waiting requests have their prefix copied up ahead of
            their turn.
        lookup_patience: Seconds, by the scheduler's clock, for which a request that shared stores
            are asked about waits for their answer at most. It holds up no other. The lookup's own
            patience does not count.

    Raises:
        Misuse: A value is out of range, or a policy answers with something unusable.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    role: Role = "mixed"
    headroom: HeadroomPolicy | None = None
    victim_policy: VictimPolicy = field(default_factory=Newest)
    preempt_mode: PreemptMode | None = None
    stops: Stops = "acked"
    priority_preemption: bool = True
    preempt_cooldown: int = 8
    max_stalled_steps: int = 1024
    max_held_steps: int = 1024
    max_overtakes: int = 16
    num_speculative_tokens: int = 0
    prefetch_depth: int = 0
    lookup_patience: float = PATIENCE

    def __post_init__(self) -> None:
        """Checks every value; NumPy's integers become Python's."""
        for name, least in _LEAST.items():
            object.__setattr__(self, name, whole(name, getattr(self, name), least))
        patience = seconds("lookup_patience", self.lookup_patience)
        object.__setattr__(self, "lookup_patience", patience)
        default_headroom(self.role)
        if self.headroom is not None:
            checked_headroom("headroom", self.headroom)
        checked_policy("victim_policy", self.victim_policy)
        if self.preempt_mode is not None:
            checked_mode("preempt_mode", self.preempt_mode)
        one_of("stops", self.stops, get_args(Stops))
        one_of("priority_preemption", self.priority_preemption, (True, False))

    @staticmethod
    def given(options: "SchedulerOptions | None") -> "SchedulerOptions":
        """The options, or the defaults for None.

        Raises:
            Misuse: They are something else.
        """
        if options is None:
            return SchedulerOptions()
        if not isinstance(options, SchedulerOptions):
            raise Misuse(f"options = {options!r:.60}: must be SchedulerOptions(...)")
        return options

    def check(self, engine: object) -> None:
        """Refuses an engine that stops otherwise.

        Raises:
            Misuse: Its `stops` are others, or none.
        """
        stops = getattr(engine, "stops", None)
        one_of("stops of the engine", stops, get_args(Stops))
        if stops != self.stops:
            raise Misuse(
                f"the engine's stops are {stops!r}: make the scheduler with stops={stops!r}"
            )

    @property
    def in_order(self) -> bool:
        """Whether the output of a stop's own step is its ack."""
        return self.stops == "in-order"

    def headroom_policy(self) -> HeadroomPolicy:
        """The headroom policy that was given, or a new one of the role's default."""
        return default_headroom(self.role) if self.headroom is None else self.headroom
