"""A request: its states, its result, and the fields that each part of the scheduler writes."""

from collections.abc import Hashable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from blockyard._core import HeldBlocks, Keys, Lease, Parked, Ticket, TooLarge
from blockyard._typing import NDArray
from blockyard.scheduling.cached_tokens import CachedTokens
from blockyard.scheduling.new_request import NewRequest
from blockyard.scheduling.request_checks import ticket_of
from blockyard.scheduling.sampled import SampledTokens
from blockyard.shared.hints import Hints
from blockyard.yard.cache import KVCache

__all__ = [
    "TERMINAL",
    "Lost",
    "Move",
    "ParkedWork",
    "Ran",
    "Request",
    "RequestKeys",
    "RequestState",
    "Result",
    "SampleGroup",
    "Waiting",
    "arrived",
]

Ran: TypeAlias = Literal["recompute", "abort"]
"""Whether running requests are recomputed or aborted after a reset of their engine."""
Lost: TypeAlias = Literal["lost", "disk kept"]
"""Whether a disk has kept its blocks over a reset, as in `KVCache.clear`."""


class RequestState(StrEnum):
    """Where a request is; the last four are terminal."""

    WAITING = "waiting"
    LOADING = "loading"
    PREFILL = "prefill"
    DECODE = "decode"
    STOPPING = "stopping"
    PARKED = "parked"
    RECOMPUTE = "recompute"
    MOVING = "moving"
    FINISHED = "finished"
    ABORTED = "aborted"
    FAILED = "failed"
    MOVED = "moved"


TERMINAL = frozenset(
    {RequestState.FINISHED, RequestState.ABORTED, RequestState.FAILED, RequestState.MOVED}
)
"""States that are ends."""


class Result(NamedTuple):
    """How a request ended: there is exactly one for each."""

    request: Hashable
    state: RequestState
    tokens: NDArray[np.uint32]
    """The tokens that it sampled."""
    reason: str
    """"stop", "length", "aborted", or the cause of the failure. "moved" where all that the engine
    had of it is in a store; else "moved: " and why not."""
    cached_tokens: CachedTokens = CachedTokens()
    """The prompt tokens that were found when it first began; a preemption does not change them."""
    held: HeldBlocks | None = None
    """Its sealed blocks, if it has finished and was to hold them: release them. None if it has
    sealed none, or if there was no memory for the generations of the slots."""


class RequestKeys:
    """The keys of a request's tokens, which are made once each time that it waits.

    Args:
        new: The caller's arguments.
        prompt: The keys of its prompt; None until they are made of salt, lora and tokens.
    """

    __slots__ = ("_made", "_new", "prompt", "raw")

    def __init__(self, new: NewRequest, prompt: Keys | None) -> None:
        self._new: Final = new
        self.prompt = prompt
        self._made: Keys | None = None
        self.raw = b""
        """The keys as bytes, while it waits or its prompt is computed."""

    def of(self, cache: KVCache, outputs: SampledTokens) -> Keys:
        """The keys of its prompt and, after a preemption, of the tokens sampled by then."""
        if self._made is None:
            new = self._new
            if self.prompt is None:
                self.prompt = cache.keys(new.prompt, salt=new.salt, lora=new.lora)
            self._made = self.prompt
            if outputs:
                tokens = np.concatenate((new.prompt, outputs.as_array()))
                made = len(self.prompt) * cache.block_size
                self._made = cache.keys(tokens[made:], after=self.prompt)
            self.raw = bytes(self._made)
        return self._made

    def unmade(self, outputs: SampledTokens) -> int:
        """Tokens whose keys `of` has to make."""
        if self._made is not None:
            return 0
        return len(outputs) + (len(self._new.prompt) if self.prompt is None else 0)

    def computed(self) -> None:
        """Drops the bytes: its prompt is computed, and none waits for that."""
        self.raw = b""

    def forget(self) -> None:
        """Drops all but those of the prompt, as it has sampled more tokens."""
        self._made, self.raw = None, b""


class SampleGroup:
    """The samples of one prompt: one computes it, and the others are forked of that one then.

    Args:
        samples: Two or more; the first computes the prompt.
    """

    __slots__ = ("leader", "waiting")

    def __init__(self, samples: "list[Request]") -> None:
        self.leader = samples[0]
        self.waiting = dict.fromkeys(samples[1:])
        """Those that wait until the leader has computed the prompt, in their order."""

    def take(self) -> "Request":
        """Removes and returns the first that waits: it waits for the leader no more."""
        first = next(iter(self.waiting))
        del self.waiting[first]
        return first

    def settle(self, there: "AbstractSet[Request]") -> None:
        """Has samples wait for a leader only where both are `there`."""
        leads = self.leader in there
        self.waiting = {one: None for one in self.waiting if leads and one in there}


@dataclass(slots=True, eq=False)
class Waiting:
    """State of a request's wait for its turn; it is new each time that it starts to run."""

    ticket: Ticket | None = None
    """Room promised to it; None once it has begun."""
    overtaken: int = 0
    """How often a later request was admitted before it."""
    displaced: "frozenset[Request]" = frozenset()
    """The requests that were preempted for it since it waits: each one once."""
    stood_first: int = 0
    """How often it was refused room since the last of them was: so long none of a lower priority
    overtakes it."""
    displaced_by: "Request | None" = None
    """The request of a higher priority for which it was preempted last, while it waits for that."""
    too_large: bool = False
    """Whether it waits until the device, which was made smaller, can hold it again."""
    failed_loads: int = 0
    """How often in a row its loads failed and left it no room to go on."""
    resumes: int = 0
    """How often in a row it began to come back."""
    prefetched: bool = False
    """Whether a copy of its prefix was asked for ahead of its turn."""
    looked_up: bool = False
    """Whether shared stores were asked about it, and it waits for no answer any more."""
    waited_for: Literal["room", "seat", "prefix"] = "seat"
    """Why it was not admitted the last time it was considered; "seat" before that."""

    def begin_anew(self) -> None:
        """Notes that none of its work is kept."""
        self.resumes, self.prefetched = 0, False

    def drop_spent_ticket(self) -> None:
        """Forgets a ticket that was redeemed or released."""
        if self.ticket is not None and self.ticket.state != "open":
            self.ticket = None


@dataclass(slots=True, eq=False)
class ParkedWork:
    """The work of a preempted request that is kept, while it waits."""

    handle: Parked
    """The handle that keeps it."""
    stalled_steps: int = 0
    """How often in a row it found no room, or gave none to others, since it was parked."""
    on_device: int = 0
    """Blocks that it had on the device when it was last asked to give room."""


@dataclass(slots=True, eq=False)
class Move:
    """The way of a request to another engine, from the call on: `evacuation.py`."""

    since: float
    """The second of the call."""
    patience: float
    """Seconds after which it ends, whatever is written by then."""
    lease: Lease | None = None
    """Its lease, once the engine computes nothing of it any more: its blocks stay."""
    last_write: int = 0
    """The last step that may still write them."""
    blocks: int | None = None
    """Its leading full blocks that are on any tier; None before they were looked for."""
    written: int = 0
    """The leading ones of these that stores have."""
    planned: int = -1
    """What was written when copies were last planned."""
    failures: int = 0
    """How often in a row these had to be planned again."""
    again: float = 0.0
    """The second from which on they may be."""

    def is_over(self, now: float) -> bool:
        """Whether its time is over; a clock that goes back ends it, too."""
        return not 0 <= now - self.since < self.patience

    def take(self, lease: Lease, last_write: int) -> None:
        """Has the blocks of a sequence that left its seat."""
        self.lease, self.last_write = lease, last_write


@dataclass(slots=True, eq=False)
class Request:
    """One sample of a request, in one of its states.

    Each field is written by one file alone: the one that it names, else this one, in the verbs
    below. `tests/python/scheduling/test_owners.py` checks it.
    """

    id: Hashable
    """The id of the sample, if it is one of several."""
    new: NewRequest
    """The caller's arguments."""
    order: int
    """Its number among all requests, from 0."""
    arrival_step: int
    """The newest step when it was added."""
    hints: Hints
    """Its expected reuse after its end: `scheduler.py`."""
    keys: RequestKeys
    """Its keys, which `RequestKeys` makes."""
    waiting: Waiting = field(default_factory=Waiting)
    """Its wait for its turn: `admission.py`."""
    parked: ParkedWork | None = None
    """The work that is kept, while it is parked: `preemption.py`."""
    group: SampleGroup | None = None
    """The samples of its prompt, where there are several: `SampleGroup`."""
    recorded: int | None = None
    """The recorder's time when it was added; None where it is not recorded. It decides nothing."""
    state: RequestState = RequestState.WAITING
    held: bool = False
    """Whether it shall decode nothing for now."""
    kept_steps: int = 0
    """Steps for which it has kept others waiting since it is held: `unread.py`."""
    outputs: SampledTokens = field(default_factory=SampledTokens)
    """The tokens that it has sampled."""
    ends_at: int | None = None
    """The tokens that it has sampled when an end of the engine's is among them; None before."""
    last_write: int = 0
    """The last step that may still write its blocks: no copy reads them before it is done."""
    lease: Lease | None = None
    """Its lease: `seats.py`, as its seat and epoch."""
    seat: int | None = None
    epoch: int = 0
    preempted: int = 0
    """How often it was preempted: `preemption.py`."""
    cached_tokens: CachedTokens | None = None
    """The prompt tokens that were found when it first began; None before: `starts.py`."""

    @property
    def rank(self) -> tuple[int, int]:
        """Its place among waiting requests: the smallest is first."""
        return (-self.new.priority, self.order)

    @property
    def apart(self) -> bool:
        """Whether it is outside the queue's order while it waits."""
        return self.held or self.waiting.too_large

    @property
    def terminal(self) -> bool:
        """Whether it has ended."""
        return self.state in TERMINAL

    @property
    def gone(self) -> bool:
        """Whether it runs here no more: it has ended, or moves to another engine."""
        return self.terminal or self.state is RequestState.MOVING

    @property
    def leader(self) -> "Request | None":
        """The sample that it is forked from, while that computes their prompt."""
        return self.group.leader if self.group is not None and self in self.group.waiting else None

    @property
    def reads_prefix(self) -> bool:
        """Whether a begin may find its blocks: always, once all of its prompt was computed."""
        return self.new.read_prefix or bool(self.outputs)

    @property
    def over(self) -> tuple[RequestState, str] | None:
        """How it ends with the tokens that it has; None where it needs more."""
        if len(self.outputs) >= self.new.max_tokens:
            return RequestState.FINISHED, "length"
        return (RequestState.FINISHED, "stop") if len(self.outputs) == self.ends_at else None

    def tokens(self) -> NDArray[np.uint32]:
        """The prompt, and the tokens sampled so far."""
        return np.concatenate((self.new.prompt, self.outputs.as_array()))

    def keyed(self, cache: KVCache) -> Keys:
        """The keys of its tokens."""
        return self.keys.of(cache, self.outputs)

    def set_held(self, *, held: bool) -> None:
        """Notes whether it shall decode nothing for now."""
        self.held, self.kept_steps = held, 0

    def promote_sibling(self) -> "Request | None":
        """Leads no more: the first of the samples that wait for it leads the others from now on."""
        group = self.group
        if group is None or group.leader is not self or not group.waiting:
            return None
        group.leader = heir = group.take()
        return heir

    def leave(self) -> None:
        """Waits for no other sample."""
        if self.group is not None:
            self.group.waiting.pop(self, None)

    def stand_for(self, other: "Request") -> None:
        """Is recorded in place of another sample, which never began."""
        self.recorded = other.recorded

    # -- its states ----------------------------------------------------------------------------

    def load(self) -> None:
        """Makes it wait in its seat until its blocks have come up."""
        self.state = RequestState.LOADING

    def start(self, cached: int) -> None:
        """Makes it run, with `cached` of its tokens computed already.

        It decodes on where only its newest token is not computed (T16, T18).
        """
        self.waiting = Waiting()
        newest_alone = bool(self.outputs) and cached == len(self.new.prompt) + len(self.outputs) - 1
        self.state = RequestState.DECODE if newest_alone else RequestState.PREFILL

    def decode(self) -> None:
        """Makes it sample a token in each step, as its prompt is computed."""
        self.state = RequestState.DECODE
        self.keys.computed()

    def foretell(self, tokens: int) -> None:
        """Notes that it ends with the tokens that come now."""
        self.ends_at = len(self.outputs) + tokens

    def stop(self) -> None:
        """Makes it wait for the ack of its stop, unless it has ended."""
        if not self.terminal:
            self.state = RequestState.STOPPING

    def park(self, handle: Parked, last_write: int | None = None) -> None:
        """Makes it wait with its work kept.

        Args:
            handle: The handle that keeps it.
            last_write: The last step that may still write it; None where that is as before.
        """
        self.parked = ParkedWork(handle)
        self.state = RequestState.PARKED
        if last_write is not None:
            self.last_write = last_write

    def resume(self) -> None:
        """Notes that its work is its lease's again."""
        self.parked = None

    def recompute(self) -> None:
        """Makes it wait to be recomputed, with all its tokens."""
        self.parked = None
        self.waiting.begin_anew()
        self.keys.forget()
        self.state = RequestState.RECOMPUTE

    def move(self) -> None:
        """Makes it leave for another engine, with the tokens that it has now."""
        self.keys.forget()
        self.state = RequestState.MOVING

    def settle(self) -> bool:
        """Makes it wait, as it runs no more; returns whether it is recomputed."""
        self.ends_at = None
        self.waiting.drop_spent_ticket()
        if self.parked is not None and self.parked.handle.state != "spent":
            self.state = RequestState.PARKED
            return False
        if self.parked is not None or self.state is not RequestState.WAITING:
            self.recompute()
        return self.state is RequestState.RECOMPUTE

    def give_back(self, cache: KVCache) -> None:
        """Returns its ticket and its parked blocks, as it never begins."""
        if self.parked is not None:
            cache.abandon(self.parked.handle)
            self.parked = None
        if self.waiting.ticket is not None and self.waiting.ticket.state == "open":
            cache.release(self.waiting.ticket)

    def end(self, state: RequestState) -> None:
        """Ends it."""
        self.state = state


def arrived(cache: KVCache, new: NewRequest, order: int, arrival_step: int) -> list[Request]:
    """The samples of a request; the first computes the prompt, and leads the others.

    Args:
        cache: The cache in which they will begin.
        new: The caller's arguments.
        order: The number of the first among all requests.
        arrival_step: The newest step.

    Raises:
        Misuse: A value does not fit the cache.
        TooLarge: The device can never hold one.
    """
    ticket = None if new.ticket is None else ticket_of(new.id, new.ticket, cache)
    keys = new.prompt_keys(cache)
    entries = [
        Request(sample, new, order + at, arrival_step, new.hints, RequestKeys(new, keys))
        for at, sample in enumerate(new.samples)
    ]
    leader = entries[0]
    leader.waiting = Waiting(ticket)
    if len(entries) > 1:
        group = SampleGroup(entries)
        for entry in entries:
            entry.group = group
    blocks, capacity = new.max_blocks(cache.block_size), cache.limit()
    if blocks > capacity:
        raise TooLarge(
            f"request {new.id!r} may need {blocks} blocks and the device has {capacity}: "
            "shorten it, or sample fewer tokens"
        )
    if cache.recorder is not None:
        # Samples of one prompt are one request, and a trace has one answer for each.
        leader.recorded = cache.recorder.arrived()
    return entries
