"""Messages between a scheduler and an engine: steps and stops out, tokens and acks in."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, Self, TypeAlias

import numpy as np

from blockyard._core import Lease
from blockyard._typing import NDArray, override

__all__ = ["Ack", "Chunk", "Engine", "Output", "Start", "Step", "Stop", "Stops"]

Stops: TypeAlias = Literal["in-order", "acked"]
"""How an engine acks stops: by the output of the stop's own step, or by an `Ack` for each."""


class Stop(NamedTuple):
    """Stops a seat: the engine computes nothing more in it, and answers with an equal `Ack`."""

    request: Hashable
    seat: int
    epoch: int


class Ack(NamedTuple):
    """Promises that no token of this request in this seat follows.

    It is a tuple: any thread may make it; pass it in the scheduler's thread.
    """

    request: Hashable
    seat: int
    epoch: int


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """Binds a seat to a request, in place of any earlier one."""

    request: Hashable
    seat: int
    epoch: int
    tokens: NDArray[np.uint32]
    """All its tokens, those it had sampled before a preemption too, shape (tokens,)."""
    cached: int
    """Leading tokens whose KV exists: the engine computes from the next one on."""


class Chunk(NamedTuple):
    """Tokens of a prompt, or of a resumed request, to compute; the last chunk samples."""

    seat: int
    first: int
    tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Rows to run and seats to stop. Stops come first: no row is of a stopped seat.

    It can be pickled, for an engine whose workers are other processes. The copy has no leases:
    ask the cache for block tables and slot mappings first, and send them along.

    It is frozen, and any thread may read it.
    """

    number: int
    """Its number: one more than the last; the first follows the last step done in the cache."""
    stops: tuple[Stop, ...]
    starts: tuple[Start, ...]
    chunks: tuple[Chunk, ...]
    decode: NDArray[np.int32]
    """Seats that compute their newest token and sample the next, shape (rows,)."""
    leases: list[Lease]
    """The leases of the rows, decodes first, then chunks: for block tables and slot mappings."""
    positions: NDArray[np.int64]
    """The first position that each row computes, in the same order."""
    counts: NDArray[np.int64]
    """Positions that each row computes; above 1 in a decode, the others are room for drafts."""
    samples: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    """Rows that sample: decodes, and chunks that compute the last of their tokens."""

    @property
    def seats(self) -> NDArray[np.int32]:
        """The seats of the rows, shape (rows,), in the same order."""
        chunks = np.fromiter((chunk.seat for chunk in self.chunks), np.int32, len(self.chunks))
        return np.concatenate((self.decode, chunks))

    @property
    def sampling(self) -> NDArray[np.int32]:
        """The seats of the rows that sample, in their order: `Output.seats` of an engine."""
        return self.seats[self.samples]

    def __len__(self) -> int:
        """Its rows."""
        return len(self.counts)

    @override
    def __getstate__(self) -> dict[str, object]:
        """All but the leases, which stay in the process of the cache: send tables along."""
        state = {name: getattr(self, name) for name in self.__slots__}
        return state | {"leases": []}

    def __setstate__(self, state: dict[str, object]) -> None:
        """Restores a pickled step, without leases."""
        for name, value in state.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """The result of a step: the KV of its rows is computed, with the tokens of sampling rows.

    Every step has one, in the order of the steps, and a step without rows too: see `nothing`. Any
    thread may make it; pass it in the scheduler's thread.
    """

    step: int
    seats: NDArray[np.int32]
    """Seats that sampled: all of `Step.samples`, each once, in any order, shape (rows,)."""
    tokens: NDArray[np.uint32]
    """The sampled tokens, row after row."""
    counts: NDArray[np.int64] | None = None
    """Tokens per row: 1 and its accepted drafts; None for one each."""
    ended: NDArray[np.bool_] | None = None
    """Rows that the engine ended itself, at an end token: their seats are free."""
    acks: tuple[Ack, ...] = field(default=())
    """Acks that travel with the output; others go to `Scheduler.on_acks`."""

    @classmethod
    def nothing(cls, step: int, acks: tuple[Ack, ...] = ()) -> Self:
        """Makes the output of a step without rows, or whose rows sample nothing.

        Args:
            step: The step's number.
            acks: Acks that travel with it.
        """
        return cls(step, np.zeros(0, np.int32), np.zeros(0, np.uint32), acks=acks)


class Engine(Protocol):
    """The methods of an engine that a loop around a `Scheduler` calls."""

    stops: Stops
    """"in-order" where a stop holds from its own step on, and that step's output is the ack."""

    def submit(self, step: Step) -> None:
        """Begins a step, and never waits for it."""

    def poll(self) -> tuple[list[Output], list[Ack]]:
        """Returns the outputs of steps that are done, in their order, and acks; never waits."""
