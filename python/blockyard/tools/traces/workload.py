"""Generated traffic: chats of many turns and agent sessions that share system prompts."""

import heapq
import itertools
import math
from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from statistics import NormalDist
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blockyard._core import Misuse
from blockyard.tools.traces.trace import Trace

__all__ = ["WORKLOADS", "Workload", "WorkloadName", "generate"]

WorkloadName = Literal["mixed", "decode-heavy"]

# Sizes of texts, as multiples of their median: most within a factor of three.
_SPREAD: Final = 0.8
_NORMAL: Final = NormalDist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The parameters of the traffic. Texts have log-normal sizes, pauses exponential durations.

    Raises:
        Misuse: A value is out of range.
    """

    trace_block: int = 16
    """Tokens per id."""
    context: int = 32_768
    """The most tokens of a prompt and its answer; a session ends before it needs more."""
    agents: float = 0.2
    """The share of sessions that are agents'; the others are chats."""
    answer_rate: float = 50.0
    """Tokens per second of an answer; the pause begins at its end."""

    chat_prompts: int = 12
    """System prompts of the chats."""
    chat_prompt_tokens: float = 700.0
    """Tokens of a chat's system prompt, median."""
    chat_turns: float = 4.0
    """Requests of a chat, mean."""
    chat_user_tokens: float = 120.0
    """Tokens that the user adds in a turn, median."""
    chat_answer_tokens: float = 220.0
    """Tokens of an answer, median."""
    chat_think: float = 40.0
    """Seconds from the end of an answer to the next turn, mean."""

    agent_prompts: int = 4
    """System prompts of the agents, with their tools."""
    agent_prompt_tokens: float = 3_000.0
    """Tokens of an agent's system prompt, median."""
    agent_turns: float = 15.0
    """Requests of an agent's session, mean, without those of its sub-agents."""
    agent_tool_tokens: float = 250.0
    """Tokens of a tool's output, median, and of the task at the beginning."""
    agent_answer_tokens: float = 90.0
    """Tokens of an answer, median."""
    agent_think: float = 2.0
    """Seconds that a tool takes, mean."""
    agent_forks: float = 0.05
    """How likely a turn starts a sub-agent, which continues from the same prefix by itself."""
    agent_fork_turns: float = 4.0
    """Requests of a sub-agent, mean."""

    zipf: float = 1.0
    """The n-th system prompt is n ** -zipf times as popular as the first."""

    def __post_init__(self) -> None:
        """Checks every parameter."""
        least = {"agents": 0, "agent_forks": 0, "zipf": 0, "chat_think": 0, "agent_think": 0}
        most = {"agents": 1, "agent_forks": 1, "zipf": 10}
        for knob in fields(self):
            name, value = knob.name, getattr(self, knob.name)
            low, high = least.get(name, 1), most.get(name, 2**31 - 1)
            if not low <= value <= high:
                raise Misuse(f"{name} = {value}: must be a number from {low} to {high}")
            if knob.type is int and not isinstance(value, int):
                raise Misuse(f"{name} = {value}: must be an integer")
        # With this, the first turn always fits.
        if self.context < 8 * self.trace_block:
            raise Misuse(f"context = {self.context}: must be >= 8 * trace_block")

    @property
    def session_requests(self) -> float:
        """The mean requests of a session, as long as few reach `context`."""
        agent = self.agent_turns * (1 + self.agent_forks * self.agent_fork_turns)
        return self.agents * agent + (1 - self.agents) * self.chat_turns


WORKLOADS: Final[dict[WorkloadName, Workload]] = {
    "mixed": Workload(),
    # Chats alone, with answers as long as those of models that think aloud.
    "decode-heavy": Workload(agents=0.0, chat_answer_tokens=1500.0),
}
"""The workloads of `--workload`."""


def generate(
    seed: int, *, requests: int = 1_000, rate: float = 4.0, workload: Workload | None = None
) -> Trace:
    """Returns a seeded trace: the same for the same seed and parameters, on every machine.

    Sessions arrive as a Poisson process. A turn's prompt is the prompt before, its answer, and new
    text. Blocks with text of an answer have ids of their session alone, and so has a partial last
    block, as in traces of real traffic.

    Args:
        seed: 0 or more.
        requests: How many requests; sessions that go on then are cut off.
        rate: Mean requests per second, once as many sessions end as begin.
        workload: The parameters.

    Raises:
        Misuse: An argument is out of range.
    """
    if seed < 0:
        raise Misuse(f"seed = {seed}: must be an integer >= 0")
    if requests < 1:
        raise Misuse(f"requests = {requests}: must be an integer >= 1")
    if not 0 < rate < math.inf:
        raise Misuse(f"rate = {rate}: must be a number of requests per second > 0")
    traffic = _Traffic(seed, workload or Workload())
    waiting: list[_Request] = []
    served: list[_Request] = []
    for start in traffic.starts(rate):
        # Sessions that begin from here on have later requests only.
        while waiting and waiting[0].second < start and len(served) < requests:
            served.append(heapq.heappop(waiting))
        if len(served) == requests:
            break
        for request in traffic.session(start):
            heapq.heappush(waiting, request)
    lengths = [len(request.ids) for request in served]
    ids, _ = _renumbered([i for request in served for i in request.ids])
    session, order = _renumbered([request.session for request in served])
    return Trace(
        name=f"generated, seed {seed}",
        trace_block=traffic.workload.trace_block,
        arrival=np.array([int(1000 * request.second) for request in served], np.int64),
        input_length=np.array([request.tokens for request in served], np.int64),
        output_length=np.array([request.answer for request in served], np.int64),
        ids=ids,
        offsets=np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))),
        session=session,
        sessions=tuple(traffic.names[i] for i in order),
    )


class _Request(NamedTuple):
    second: float
    number: int
    """The order of creation, which breaks ties before other fields are compared."""
    session: int
    tokens: int
    answer: int
    ids: list[int]


@dataclass(slots=True)
class _Text:
    """The text of a session so far: a prefix that only grows."""

    tokens: int = 0
    ids: list[int] = field(default_factory=list)
    """The ids of its full blocks."""

    def copy(self) -> "_Text":
        return _Text(self.tokens, self.ids.copy())


class _Traffic:
    def __init__(self, seed: int, workload: Workload) -> None:
        self.workload = workload
        # Only plain doubles are used: NumPy's distributions may differ between versions.
        self.random = np.random.Generator(np.random.PCG64(seed)).random
        self.ids = itertools.count()
        self.numbers = itertools.count()
        self.names: list[str] = []
        knobs = workload
        self.chat_prompts = self.prompts(knobs.chat_prompts, knobs.chat_prompt_tokens)
        self.agent_prompts = self.prompts(knobs.agent_prompts, knobs.agent_prompt_tokens)

    def prompts(self, count: int, tokens: float) -> list[_Text]:
        prompts = [_Text() for _ in range(count)]
        for prompt in prompts:
            self.grow(prompt, self.size(tokens, self.workload.context // 2))
        return prompts

    def starts(self, rate: float) -> Iterator[float]:
        gap = self.workload.session_requests / rate
        second = 0.0
        while True:
            yield second
            second += self.pause(gap)

    def session(self, start: float) -> Iterator[_Request]:
        if self.random() < self.workload.agents:
            text = self.popular(self.agent_prompts).copy()
            yield from self.agent(start, text, self.turns(self.workload.agent_turns), "agent")
        else:
            yield from self.chat(start, self.popular(self.chat_prompts).copy())

    def chat(self, second: float, text: _Text) -> Iterator[_Request]:
        knobs, session = self.workload, self.named("chat")
        for _ in range(self.turns(knobs.chat_turns)):
            self.grow(text, self.size(knobs.chat_user_tokens))
            answer = self.size(knobs.chat_answer_tokens)
            if text.tokens + answer > knobs.context:
                return
            yield self.request(second, session, text, answer)
            second += answer / knobs.answer_rate + self.pause(knobs.chat_think)

    def agent(self, second: float, text: _Text, turns: int, name: str) -> Iterator[_Request]:
        knobs, session = self.workload, self.named(name)
        for _ in range(turns):
            self.grow(text, self.size(knobs.agent_tool_tokens))
            answer = self.size(knobs.agent_answer_tokens)
            if text.tokens + answer > knobs.context:
                return
            yield self.request(second, session, text, answer)
            second += answer / knobs.answer_rate
            # A sub-agent starts no sub-agents.
            if name == "agent" and self.random() < knobs.agent_forks:
                fork_turns = self.turns(knobs.agent_fork_turns)
                yield from self.agent(second, text.copy(), fork_turns, "sub-agent")
            second += self.pause(knobs.agent_think)

    def request(self, second: float, session: int, text: _Text, answer: int) -> _Request:
        partial = [next(self.ids)] if text.tokens % self.workload.trace_block else []
        tokens, ids = text.tokens, text.ids + partial
        self.grow(text, answer)
        return _Request(second, next(self.numbers), session, tokens, answer, ids)

    def grow(self, text: _Text, tokens: int) -> None:
        text.tokens += tokens
        new = text.tokens // self.workload.trace_block - len(text.ids)
        text.ids += itertools.islice(self.ids, new)

    def named(self, kind: str) -> int:
        self.names.append(f"{kind}-{len(self.names)}")
        return len(self.names) - 1

    def popular(self, prompts: list[_Text]) -> _Text:
        weights = ((n + 1) ** -self.workload.zipf for n in range(len(prompts)))
        totals = list(itertools.accumulate(weights))
        return prompts[bisect(totals, self.random() * totals[-1], hi=len(prompts) - 1)]

    def pause(self, mean: float) -> float:
        return -mean * math.log1p(-self.random())

    def turns(self, mean: float) -> int:
        """Returns a geometric number: after each turn another is equally likely."""
        return 1 + int(math.log1p(-self.random()) / math.log1p(-1 / mean)) if mean > 1 else 1

    def size(self, median: float, most: int = 0) -> int:
        middle = max(self.random(), 2.0**-53)
        tokens = int(median * math.exp(_SPREAD * _NORMAL.inv_cdf(middle)))
        return max(1, min(tokens, most or self.workload.context // 8))


def _renumbered(numbers: list[int]) -> tuple[NDArray[np.int64], list[int]]:
    """Returns the numbers in the order of first appearance, and what each was."""
    values, first, which = np.unique(
        np.array(numbers, np.int64), return_index=True, return_inverse=True
    )
    order = np.argsort(first)
    rank = np.empty(len(values), np.int64)
    rank[order] = np.arange(len(values))
    return rank[which], values[order].tolist()
