"""Conversations with one engine, under a memory budget and a mode of preemption."""

import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from blockyard.crane.copiers import Copier
from blockyard.crane.devices import NUMPY, Device
from blockyard.crane.tiers.disk_paths import DiskPath
from blockyard.local_cache import local
from blockyard.reference.model import Model
from blockyard.reference.rank import Rank
from blockyard.reference.reference import ReferenceEngine
from blockyard.reference.sampling import Sampling
from blockyard.scheduling.engine import Output, Step
from blockyard.scheduling.headroom import HeadroomPolicy, NoHeadroom
from blockyard.scheduling.new_request import NewRequest
from blockyard.scheduling.options import SchedulerOptions
from blockyard.scheduling.request import RequestState
from blockyard.scheduling.scheduler import Scheduler
from blockyard.stores import Store
from blockyard.tools.proof.conversations import Conversation
from blockyard.yard.config import Config
from blockyard.yard.parking import PreemptMode

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Figures", "MemoryBudget", "Play"]

# Seconds for which an engine with nothing to compute waits for copies.
_PAUSE = 1e-3


class MemoryBudget(NamedTuple):
    """How much memory there is, and what a preempted request keeps."""

    device: int
    """Blocks, the null slot among them."""
    host: int
    """Blocks."""
    preempt_mode: PreemptMode
    disk: int = 0
    """Blocks of the third tier, behind the host."""


@dataclass(slots=True)
class Figures:
    """What a play took."""

    steps: int = 0
    computed: int = 0
    """Tokens whose KV was computed."""
    recomputed: int = 0
    """Those of them whose KV had been computed before for the same request."""
    kept: int = 0
    """The most blocks that the host kept for parked requests, or was given for them."""
    seen: dict[str, int] = field(default_factory=dict)
    """The highest position computed of each request."""


class Play:
    """Plays conversations step by step, until all are answered.

    Args:
        conversations: What is said.
        memory: The budget.
        model: What answers; its KV is in blocks of `block_size` tokens.
        block_size: Tokens per block.
        stops: As in `Engine`.
        lag: Steps in flight beside the one that is computed.
        late: Steps by which an ack is late.
        sampling: How tokens are drawn.
        headroom: Makes the policy for growth; by default none, so that memory is used to the last
            block.
        copier: What moves bytes; None for the copier that suits the memory.
        on: The device that computes, and has the memory.
        disk_path: Where the third tier's blocks outlive this play; None for memory.
        stores: Shared stores below, as in `local`; None for none.
        config: More fields of `Config`.
    """

    def __init__(  # noqa: PLR0913 - what there is to vary
        self,
        conversations: Sequence[Conversation],
        memory: MemoryBudget,
        model: Model,
        *,
        block_size: int = 16,
        stops: Literal["in-order", "acked"] = "acked",
        lag: int = 1,
        late: int = 0,
        sampling: Sampling | None = None,
        headroom: Callable[[], HeadroomPolicy] = NoHeadroom,
        copier: Copier | None = None,
        on: Device = NUMPY,
        disk_path: DiskPath | None = None,
        stores: Sequence[Store | str] | None = None,
        **config: object,
    ) -> None:
        layout = model.config.layout(block_size=block_size)
        sizes = {"device": memory.device, "host": memory.host, "disk": memory.disk}
        self._block_bytes = layout.block_bytes
        if disk_path is not None or stores is not None:
            named = {"model": str(model.config), "weights": f"seed {model.seed}"}
            config = {"namespace": named, **config}
        if disk_path is not None:
            config = {"keyed": ("disk",), **config}
        whole = Config.of({"layout": layout, **sizes, **config})
        in_memory = 0 if disk_path is not None else memory.disk
        device, host, below = on.tiers(layout, memory.device, memory.host, in_memory)
        tiers = (device, host) if disk_path is not None else (device, host, below)
        self.cache = local(whole, memory=tiers, copier=copier, disk_path=disk_path, stores=stores)
        rank = Rank(model, device, sampling=sampling)
        self.engine = ReferenceEngine(self.cache, rank, stops=stops, lag=lag, late=late)
        self.scheduler = Scheduler(
            self.cache,
            SchedulerOptions(
                max_num_seqs=max(len(conversations), 1),
                max_num_batched_tokens=256,
                headroom=headroom(),
                preempt_mode=memory.preempt_mode,
                stops=stops,
            ),
        )
        self.memory = memory
        """The budget."""
        self.tokens: dict[str, list[int]] = {}
        """The answers, by the name of the turn."""
        self.figures = Figures()
        """What it took."""
        self.seats: dict[int, str] = {}
        """The turn in each seat, as of the newest step."""
        self.tables: NDArray[np.int32] = np.zeros((0, 0), np.int32)
        """Block tables of the newest step, shape (rows, columns)."""
        self.said: dict[str, list[int]] = {}
        """Prompt and answer of every turn, so far."""
        self.kv = model.view(device)
        """The device's memory, as in `Model.view`."""
        self.conversations = {conversation.name: conversation for conversation in conversations}
        """The conversations, by name."""
        self._coming = [(conversation.begins, conversation.name) for conversation in conversations]
        heapq.heapify(self._coming)
        self._said: dict[str, list[int]] = {conversation.name: [] for conversation in conversations}
        self._turn: dict[str, int] = {}
        self._answers: dict[str, int] = {}
        self._lag = lag

    @property
    def over(self) -> bool:
        """Whether every turn is answered."""
        return not self._coming and not self._turn

    @property
    def moved(self) -> int:
        """The bytes copied between the tiers, both ways."""
        stats = self.cache.stats()
        return (stats["device_out"] + stats["device_in"]) * self._block_bytes

    def step(self) -> Step | None:
        """Runs the loop once; returns the step, or None where enough steps are in flight."""
        while self._coming and self._coming[0][0] <= self.figures.steps:
            self._say(heapq.heappop(self._coming)[1])
        step = None
        if len(self.engine) <= self._lag:
            step = self.scheduler.schedule()
            self._count(step)
            self.tables = self.cache.block_tables(step.leases)
            self.engine.submit(step)
        self.cache.step()
        if step is not None and not len(step.counts) and self.cache.crane.in_flight:
            # There is nothing to compute, and a step that is spun through counts for patience.
            time.sleep(_PAUSE)
        self.figures.kept = max(self.figures.kept, self.cache.stats()["host_pinned"])
        outputs, acks = self.engine.poll()
        for output in outputs:
            self.scheduler.on_output(output)
            self._heard(output)
        self.scheduler.on_acks(acks)
        for result in self.scheduler.results():
            self._answered(str(result.request), result.state, result.tokens.tolist())
        return step

    @property
    def states(self) -> dict[str, RequestState]:
        """The states of the conversations that wait for an answer."""
        states = {name: self.scheduler.state(self._asked(name)) for name in self._turn}
        return {name: state for name, state in states.items() if state is not None}

    def abort(self, name: str) -> None:
        """Aborts the current turn of a conversation, and with it the conversation."""
        self.scheduler.abort(self._asked(name))

    def reset(self) -> None:
        """Resets the engine: what ran is computed again, and nothing that it had is used."""
        self.engine.reset()
        self.scheduler.reset()

    def settle(self) -> None:
        """Waits for the copies in flight: idle blocks are copied on when every turn is answered."""
        while self.cache.crane.in_flight:
            self.cache.step()

    def close(self) -> None:
        """Frees the memory."""
        self.cache.close()

    def _asked(self, name: str) -> str:
        return f"{name}, turn {self._turn[name]}"

    def _say(self, name: str) -> None:
        conversation, number = self.conversations[name], self._answers.get(name, 0)
        self._turn[name] = number
        said = self._said[name]
        said.extend(conversation.turns[number].said)
        asked = self._asked(name)
        self.said[asked] = list(said)
        self.scheduler.add(
            NewRequest(
                asked,
                said,
                max_tokens=conversation.turns[number].max_tokens,
                priority=conversation.priority,
            )
        )

    def _answered(self, asked: str, state: RequestState, tokens: list[int]) -> None:
        self.tokens[asked] = tokens
        name = asked.rpartition(", ")[0]
        self._said[name].extend(tokens)
        self.said[asked] = list(self._said[name])
        del self._turn[name]
        turns, said = self.conversations[name].turns, self._answers.get(name, 0) + 1
        self._answers[name] = said
        if state is RequestState.FINISHED and said < len(turns):
            heapq.heappush(self._coming, (self.figures.steps + turns[said].after, name))

    def _heard(self, output: Output) -> None:
        for seat, token in zip(output.seats.tolist(), output.tokens.tolist(), strict=True):
            asked = self.seats[seat]
            if self.scheduler.state(asked) is not None:
                self.said[asked].append(token)

    def _count(self, step: Step) -> None:
        figures = self.figures
        figures.steps += 1
        figures.computed += int(step.counts.sum())
        self.seats.update((start.seat, str(start.request)) for start in step.starts)
        numbers = [*step.decode.tolist(), *(chunk.seat for chunk in step.chunks)]
        ends = step.positions + step.counts
        for number, first, end in zip(numbers, step.positions.tolist(), ends.tolist(), strict=True):
            asked = self.seats[number]
            before = figures.seen.get(asked, 0)
            figures.recomputed += max(min(before, end) - first, 0)
            figures.seen[asked] = max(before, end)
