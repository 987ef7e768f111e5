"""A request: the states it goes through, and how it ends."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from blockyard._core import Keys, Lease, Parked, Ticket, TooLarge
from blockyard.scheduling.cached_tokens import CachedTokens
from blockyard.scheduling.new_request import NewRequest
from blockyard.shared.hints import NO_HINTS, Hints
from blockyard.yard.cache import KVCache

__all__ = [
    "TERMINAL",
    "Lost",
    "Ran",
    "Request",
    "RequestState",
    "Result",
    "arrived",
    "lead_again",
]

Ran: TypeAlias = Literal["recompute", "abort"]
"""What becomes of requests that ran, where their engine was reset."""
Lost: TypeAlias = Literal["lost", "disk kept"]
"""What became of the tiers' contents, as in `KVCache.clear`."""


class RequestState(StrEnum):
    """Where a request is; the last three are terminal."""

    WAITING = "waiting"
    LOADING = "loading"
    PREFILL = "prefill"
    DECODE = "decode"
    STOPPING = "stopping"
    PARKED = "parked"
    RECOMPUTE = "recompute"
    FINISHED = "finished"
    ABORTED = "aborted"
    FAILED = "failed"


TERMINAL = frozenset({RequestState.FINISHED, RequestState.ABORTED, RequestState.FAILED})
"""States that are ends."""


class Result(NamedTuple):
    """How a request ended: there is exactly one for each."""

    request: Hashable
    state: RequestState
    tokens: NDArray[np.uint32]
    """The tokens that it sampled."""
    reason: str
    """"stop", "length", "aborted", or what failed."""
    cached_tokens: CachedTokens = CachedTokens()
    """The prompt tokens that were found when it first began: a preemption changes nothing of it."""


@dataclass(slots=True, eq=False)
class Request:
    """One request; the scheduler alone changes it."""

    id: Hashable
    """That of the sample, where it is one of several."""
    new: NewRequest
    """What its caller has said."""
    order: int
    """Its number among all requests, from 0."""
    arrival_step: int
    """The newest step when it was added."""
    prompt_keys: Keys | None = None
    """The keys of its prompt; None until they are made of salt, lora and tokens."""
    hints: Hints = NO_HINTS
    """What is known of its future, for when it has ended."""
    ticket: Ticket | None = None
    """Room promised to it; None once it has begun."""
    arrived: int | None = None
    """The recorder's time when it was added; None where it is not recorded. It decides nothing."""
    leader: "Request | None" = None
    """The sample of the same prompt of which it is forked, while that computes the prompt."""
    siblings: "list[Request]" = field(default_factory=list)
    """The samples that are forked of it when its prompt is computed."""
    held: bool = False
    """Whether it shall decode nothing for now."""
    too_large: bool = False
    """Whether it waits until the device, which was made smaller, can hold it again."""
    limit: int = 0
    """The blocks that the device might hold when it last began."""
    ends_at: int | None = None
    """The tokens that it has sampled when an end of the engine's is among them; None before."""
    kept_steps: int = 0
    """Steps for which it has kept others waiting since it is held."""
    state: RequestState = RequestState.WAITING
    outputs: list[int] = field(default_factory=list)
    lease: Lease | None = None
    seat: int | None = None
    epoch: int = 0
    preempted: int = 0
    """How often it was preempted."""
    cached_tokens: CachedTokens | None = None
    """The prompt tokens that were found when it first began; None before."""

    # While it waits:
    keys: Keys | None = None
    """Keys of its prompt and, after a preemption, of what it had sampled by then."""
    key_bytes: bytes = b""
    """The keys as bytes, while it waits or its prompt is computed."""
    overtaken: int = 0
    """How often a later request was admitted before it."""
    displaced: "set[Request]" = field(default_factory=set)
    """The requests that were preempted for it since it waits: each one once."""
    stood_first: int = 0
    """How often it was refused room since the last of them was: so long none of a lower priority
    overtakes it."""
    displaced_by: "Request | None" = None
    """The request of a higher priority for which it was preempted last, while it waits for that."""
    failed_loads: int = 0
    """How often in a row its loads failed and left it no room to go on; 0 once it runs."""
    prefetched: bool = False
    """Whether a copy of its prefix was asked for ahead of its turn."""

    # While it is parked:
    parked: Parked | None = None
    """The handle that keeps its work."""
    last_write: int = 0
    """The last step that may still write its blocks: no copy reads them before it is done."""
    stalled_steps: int = 0
    """How often in a row it found no room, or gave none to others, since it was parked."""
    on_device: int = 0
    """Blocks that it had on the device when it was last asked to give room."""
    resumes: int = 0
    """How often in a row it began to come back; 0 once it runs."""

    # For a histogram alone, where there is one:
    queued_at: float | None = None
    """The second at which it came to wait."""
    waited_for: Literal["room", "seat", "prefix"] = "seat"
    """What kept it when its turn came last; a seat, or the turn itself, before that."""

    @property
    def rank(self) -> tuple[int, int]:
        """Its place among waiting requests: the smallest is first."""
        return (-self.new.priority, self.order)

    @property
    def apart(self) -> bool:
        """Whether it stands in no line while it waits."""
        return self.held or self.too_large

    @property
    def terminal(self) -> bool:
        """Whether it has ended."""
        return self.state in TERMINAL

    def max_blocks(self, block_size: int) -> int:
        """The most blocks that it may ever need."""
        return self.new.max_blocks(block_size)

    def tokens(self) -> NDArray[np.uint32]:
        """The prompt, and what was sampled so far."""
        return np.concatenate((self.new.prompt, np.array(self.outputs, np.uint32)))

    def keyed(self, cache: KVCache) -> Keys:
        """The keys of its tokens, which are made once each time that it waits."""
        if self.keys is None:
            if self.prompt_keys is None:
                new = self.new
                self.prompt_keys = cache.keys(new.prompt, salt=new.salt, lora=new.lora)
            self.keys = self.prompt_keys
            if self.outputs:
                made = len(self.prompt_keys) * cache.block_size
                self.keys = cache.keys(self.tokens()[made:], after=self.prompt_keys)
            self.key_bytes = bytes(self.keys)
        return self.keys

    def unmade(self) -> int:
        """Tokens of which `keyed` has to make keys."""
        if self.keys is not None:
            return 0
        return len(self.outputs) + (len(self.new.prompt) if self.prompt_keys is None else 0)

    @property
    def reads_prefix(self) -> bool:
        """Whether a begin may find its blocks: always, once all of its prompt was computed."""
        return self.new.read_prefix or bool(self.outputs)

    def lead(self, siblings: "list[Request]") -> None:
        """Makes other samples of its prompt wait until it has computed the prompt."""
        self.siblings = siblings
        for sibling in siblings:
            sibling.leader = self

    @property
    def over(self) -> tuple[RequestState, str] | None:
        """How it ends with the tokens that it has; None where it needs more."""
        if len(self.outputs) >= self.new.max_tokens:
            return RequestState.FINISHED, "length"
        return (RequestState.FINISHED, "stop") if len(self.outputs) == self.ends_at else None

    def settle(self) -> bool:
        """Makes it wait, as it runs no more; returns whether it is recomputed."""
        self.ends_at = None
        if self.ticket is not None and self.ticket.state != "open":
            self.ticket = None
        if self.parked is not None and self.parked.state != "spent":
            self.state = RequestState.PARKED
            return False
        if self.parked is not None or self.state is not RequestState.WAITING:
            self.recompute()
        return self.state is RequestState.RECOMPUTE

    def leave(self) -> None:
        """Makes it wait for no other sample."""
        if self.leader is not None:
            self.leader.siblings.remove(self)
            self.leader = None

    def hand_over(self) -> "Request | None":
        """Leads no more: the first of the samples that wait for it leads the others from now on."""
        if not self.siblings:
            return None
        heir, *others = self.siblings
        self.siblings = []
        heir.leader = None
        heir.lead(others)
        return heir

    def recompute(self) -> None:
        """Makes it wait to be recomputed, with all its tokens."""
        self.parked = None
        self.resumes = self.stalled_steps = 0
        self.keys = None
        self.key_bytes = b""
        self.prefetched = False
        self.state = RequestState.RECOMPUTE

    def park(self, parked: Parked) -> None:
        """Makes it wait with its work kept."""
        self.parked = parked
        self.stalled_steps = 0
        self.state = RequestState.PARKED

    def start(self, cached: int) -> None:
        """Makes it run, with `cached` of its tokens computed already.

        It decodes on where only its newest token is not computed (T16, T18).
        """
        self.resumes = self.failed_loads = 0
        newest_alone = bool(self.outputs) and cached == len(self.new.prompt) + len(self.outputs) - 1
        self.state = RequestState.DECODE if newest_alone else RequestState.PREFILL

    def give_back(self, cache: KVCache) -> None:
        """Returns its ticket and its parked blocks, as it never begins."""
        if self.parked is not None:
            cache.abandon(self.parked)
            self.parked = None
        if self.ticket is not None and self.ticket.state == "open":
            cache.release(self.ticket)


def lead_again(entries: list[Request]) -> None:
    """Makes leaders and those that wait for them agree; who is in no list waits for none."""
    there = set(entries)
    leaders: dict[Request, Request] = {}
    for entry in entries:
        entry.siblings = [one for one in entry.siblings if one in there]
        leaders |= dict.fromkeys(entry.siblings, entry)
    for entry in entries:
        entry.leader = leaders.get(entry)


def arrived(cache: KVCache, new: NewRequest, order: int, arrival_step: int) -> list[Request]:
    """The samples of a request; the first computes the prompt, and leads the others.

    Args:
        cache: The cache in which they will begin.
        new: The request as its caller says it.
        order: The number of the first among all requests.
        arrival_step: The newest step.

    Raises:
        Misuse: A value does not fit the cache.
        TooLarge: The device can never hold one.
    """
    ticket, keys = new.checked_ticket(cache), new.prompt_keys(cache)
    entries = [
        Request(sample, new, order + at, arrival_step, prompt_keys=keys, hints=new.hints)
        for at, sample in enumerate(new.samples)
    ]
    leader = entries[0]
    leader.ticket = ticket
    leader.lead(entries[1:])
    blocks, capacity = new.max_blocks(cache.block_size), cache.limit()
    if blocks > capacity:
        raise TooLarge(
            f"request {new.id!r} may need {blocks} blocks and the device has {capacity}: "
            "shorten it, or sample fewer tokens"
        )
    if cache.recorder is not None:
        # Samples of one prompt are one request, and a trace has one answer for each.
        leader.arrived = cache.recorder.arrived()
    return entries
