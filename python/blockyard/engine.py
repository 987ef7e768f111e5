"""What a scheduler and an engine say to each other: steps and stops out, tokens and acks in."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from blockyard._core import Lease

__all__ = ["Ack", "Chunk", "Engine", "Output", "Start", "Step", "Stop"]


class Stop(NamedTuple):
    """Compute nothing more in this seat; answer with an `Ack` of the same three."""

    request: Hashable
    seat: int
    epoch: int


class Ack(NamedTuple):
    """The engine computes nothing more for this request in this seat: no token of it follows."""

    request: Hashable
    seat: int
    epoch: int


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """A seat is bound anew: what was in it before is over."""

    request: Hashable
    seat: int
    epoch: int
    tokens: NDArray[np.uint32]
    """All its tokens, those it had sampled before a preemption too, shape (tokens,)."""
    cached: int
    """Leading tokens whose KV is there: computing begins behind them."""


class Chunk(NamedTuple):
    """Tokens of a prompt to compute in this step; the last chunk samples the next token."""

    seat: int
    first: int
    tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """What to run, and what to stop. Stops come first: none of the rows is of a stopped seat."""

    number: int
    """From 1, without a gap."""
    stops: tuple[Stop, ...]
    starts: tuple[Start, ...]
    chunks: tuple[Chunk, ...]
    decode: NDArray[np.int32]
    """Seats that compute their newest token, and sample the next, shape (rows,)."""
    leases: list[Lease]
    """Of the rows, those that decode first, then the chunks: for block tables and slot mapping."""
    positions: NDArray[np.int64]
    """First position that each row computes, in the same order."""
    counts: NDArray[np.int64]
    """Positions that each row computes: more than 1 in a row that decodes leave room for drafts."""

    def __len__(self) -> int:
        return len(self.leases)


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """What a step has computed: the KV of all its rows, and tokens of those that sampled."""

    step: int
    seats: NDArray[np.int32]
    """Rows that sampled, each once, shape (rows,)."""
    tokens: NDArray[np.uint32]
    """Row after row."""
    counts: NDArray[np.int64] | None = None
    """Tokens per row, 1 and its accepted drafts; None for one each."""
    ended: NDArray[np.bool_] | None = None
    """Rows that the engine has ended by itself, at an end token: their seats are free."""
    acks: tuple[Ack, ...] = field(default=())
    """Where acks travel with the output; else give them to `Scheduler.on_acks`."""


class Engine(Protocol):
    """What a loop around a `Scheduler` asks of an engine."""

    stops: Literal["in-order", "acked"]
    """In order: a stop holds from its own step on; that step's output is the ack."""

    def submit(self, step: Step) -> None:
        """Begins a step. Never waits for it."""

    def poll(self) -> tuple[list[Output], list[Ack]]:
        """Steps that are done, in their order, and acks. Never waits."""
