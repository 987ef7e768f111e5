"""A request, the states it goes through, and how it ends."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from blockyard._core import Keys, Lease, Misuse, Parked, Ticket
from blockyard.yard.cache import KVCache

__all__ = ["TERMINAL", "Request", "RequestState", "Result", "bounded", "prompt_of", "whole"]

_LARGEST = 0xFFFFFFFF
_MOST = 2**31 - 1
_MANY = 2**20
"""Values that one call takes of what is an object each: acks, or seats."""


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
    most: int
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


def whole(name: str, value: object, least: int | None = 1) -> int:
    """An integer, NumPy's too, in the range that counts here have.

    Raises:
        Misuse: It is none, or out of range.
    """
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        number = int(value)
        if (-_MOST if least is None else least) <= number <= _MOST:
            return number
    said = f"from {least} to {_MOST}" if least is not None else f"to {_MOST}, either sign"
    raise Misuse(f"{name} = {value!r:.60}: give an integer {said}")


def bounded(name: str, values: Iterable[object]) -> list[object]:
    """All values of an iterable that does not end too late.

    Raises:
        Misuse: There are more than any engine has.
    """
    given = list(islice(values, _MANY + 1))
    if len(given) > _MANY:
        raise Misuse(f"{name} has more than {_MANY:,} values: one call takes no more")
    return given


def prompt_of(tokens: object) -> NDArray[np.uint32]:
    """A copy of a caller's prompt.

    Raises:
        Misuse: It is empty, or no sequence of token ids.
    """
    try:
        given = np.array(tokens, copy=True)
        # An empty list has floats in it.
        wide = given.astype(np.int64) if given.dtype.kind in "iu" or not given.size else None
    except (TypeError, ValueError, OverflowError) as error:
        raise Misuse(f"prompt = {tokens!r:.60}: give token ids, one-dimensional") from error
    if wide is None:
        raise Misuse(f"a prompt of {given.dtype}: give token ids, which are integers")
    if wide.ndim != 1 or not len(wide):
        raise Misuse(f"prompt of shape {wide.shape}: give one token id or more, one-dimensional")
    if wide.min() < 0 or wide.max() > _LARGEST:
        bad = given[(wide < 0) | (wide > _LARGEST)][0]
        raise Misuse(f"token {bad} in the prompt: token ids are from 0 to {_LARGEST}")
    return wide.astype(np.uint32)
