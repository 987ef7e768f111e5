"""A request, the states it goes through, and how it ends."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from blockyard._core import Keys, Lease, Parked, Ticket
from blockyard.yard.cache import KVCache

__all__ = ["TERMINAL", "Request", "RequestState", "Result"]


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
    """How a request ended: exactly one for each."""

    request: Hashable
    state: RequestState
    tokens: NDArray[np.uint32]
    """What it sampled."""
    reason: str
    """"stop", "length", "aborted", or what failed."""


@dataclass(slots=True, eq=False)
class Request:
    """One request; the scheduler alone changes it."""

    id: Hashable
    prompt: NDArray[np.uint32]
    """A copy of the caller's: what he does with his own later changes nothing here."""
    max_tokens: int
    """Most tokens to sample."""
    priority: int
    order: int
    """Among all requests, from 0."""
    came: int
    """The step before which it came."""
    salt: str | bytes | None = None
    lora: str | bytes | None = None
    ticket: Ticket | None = None
    """Room promised to it; None once it has begun."""
    state: RequestState = RequestState.WAITING
    outputs: list[int] = field(default_factory=list)
    keys: Keys | None = None
    """Of its prompt and, after a preemption, of what it had sampled: N tokens, frozen."""
    chain: bytes = b""
    """The keys as bytes, while it waits or its prompt is computed."""
    epoch: int = 0
    overtaken: int = 0
    """How often a later request was admitted before it."""
    preempted: int = 0
    parked: Parked | None = None
    """What keeps its work while it is parked."""
    settled: int = 0
    """The step whose end it waits for before its blocks may be copied: it may write them still."""
    resumes: int = 0
    """How often in a row it began to come back; 0 once it runs."""
    unloaded: int = 0
    """How often in a row its loads failed and left it no room to go on; 0 once it runs."""
    refused: int = 0
    """How often in a row it found no room, or gave none, since it was parked."""
    left: int = 0
    """Blocks that it had on the device when it was last asked to give room."""
    moved: int = 0
    """How often it has come to a place in line, or left it."""
    prefetched: bool = False
    """Whether its prefix was asked for while it waits."""
    lease: Lease | None = None
    seat: int | None = None

    @property
    def rank(self) -> tuple[int, int]:
        """Whose turn it is: the smallest first."""
        return (-self.priority, self.order)

    @property
    def terminal(self) -> bool:
        """Whether it has ended."""
        return self.state in TERMINAL

    def keyed(self, cache: KVCache) -> Keys:
        """The keys of its tokens, made once for each stay in line."""
        if self.keys is None:
            self.keys = cache.keys(self.tokens(), salt=self.salt, lora=self.lora)
            self.chain = bytes(self.keys)
        return self.keys

    def again(self) -> None:
        """It waits to be computed anew, with all its tokens."""
        self.parked = None
        self.resumes = self.refused = 0
        self.keys = None
        self.chain = b""
        self.prefetched = False
        self.state = RequestState.RECOMPUTE

    def tokens(self) -> NDArray[np.uint32]:
        """Prompt and what was sampled so far."""
        return np.concatenate((self.prompt, np.array(self.outputs, np.uint32)))
