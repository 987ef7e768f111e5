"""What a scheduler and an engine say to each other: steps and stops out, tokens and acks in."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, Self

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
    """Tokens of a prompt, or of what came back, to compute in this step; the last chunk samples."""

    seat: int
    first: int
    tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """What to run, and what to stop. Stops come first: none of the rows is of a stopped seat."""

    number: int
    """Without a gap, from 1 or behind the last step that the cache was told is done."""
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
    samples: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    """Rows that sample: those that decode, and those that compute the last of their tokens."""

    @property
    def seats(self) -> NDArray[np.int32]:
        """Of the rows, in the same order."""
        chunks = np.fromiter((chunk.seat for chunk in self.chunks), np.int32, len(self.chunks))
        return np.concatenate((self.decode, chunks))

    def __len__(self) -> int:
        return len(self.leases)


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """What a step has computed: the KV of all its rows, and tokens of those that sampled.

    Every step has one, in the order of the steps, also one without rows: see `nothing`.
    """

    step: int
    seats: NDArray[np.int32]
    """Rows that sampled: all of `Step.samples`, each once, in any order, shape (rows,)."""
    tokens: NDArray[np.uint32]
    """Row after row."""
    counts: NDArray[np.int64] | None = None
    """Tokens per row, 1 and its accepted drafts; None for one each."""
    ended: NDArray[np.bool_] | None = None
    """Rows that the engine has ended by itself, at an end token: their seats are free."""
    acks: tuple[Ack, ...] = field(default=())
    """Where acks travel with the output; else give them to `Scheduler.on_acks`."""

    @classmethod
    def nothing(cls, step: int, acks: tuple[Ack, ...] = ()) -> Self:
        """Of a step without rows, or whose rows sample nothing: that needs one, too."""
        return cls(step, np.zeros(0, np.int32), np.zeros(0, np.uint32), acks=acks)


class Engine(Protocol):
    """What a loop around a `Scheduler` asks of an engine."""

    stops: Literal["in-order", "acked"]
    """In order: a stop holds from its own step on; that step's output is the ack."""

    def submit(self, step: Step) -> None:
        """Begins a step. Never waits for it."""

    def poll(self) -> tuple[list[Output], list[Ack]]:
        """Steps that are done, in their order, and acks. Never waits."""
