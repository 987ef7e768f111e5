"""What the eviction orders have to reach on real traces, in the sequential model: one table."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from blockyard._typing import override
from blockyard.tools.replay.hints import Hints
from blockyard.tools.replay.sequential import Sequential, sequential
from blockyard.tools.traces.future import full_blocks
from blockyard.tools.traces.trace import Trace
from traces import AGENTIC, CLAUDE_CODE, CONVERSATION

#: The file of each trace, and its tokens per id.
TRACES = {
    "conversation": (CONVERSATION, 512),
    "claude_code": (CLAUDE_CODE, 512),
    "agentic": (AGENTIC, 16),
}

#: Points by which a simulation and the product may differ.
TOLERANCE = 0.3

KNOWN = "end=0.8:0.02,next=0.8:2"


@dataclass(frozen=True, kw_only=True)
class Cell:
    trace: str
    device: int
    host: int = 0
    host_copies: Literal["first", "last"] | None = None
    hints: str = "none"
    #: What plain recency finds without a hint, in % of the prompt tokens, where it was simulated.
    recency: float | None = None
    #: What the learned order has to find.
    least: float

    @override
    def __str__(self) -> str:
        host = f" + {self.host:,}, copies {self.host_copies}" if self.host else ""
        hints = "" if self.hints == "none" else f", {self.hints}"
        return f"{self.trace} at {self.device:,}{host}{hints}"

    def run(self, trace: Trace, policy: Literal["recency", "learned"] = "learned") -> Sequential:
        return sequential(
            trace,
            device_blocks=self.device,
            host_blocks=self.host,
            host_copies=self.host_copies,
            policy=policy,
            hints=Hints.parse(self.hints),
        )


CELLS = [
    Cell(trace="conversation", device=1_708, recency=5.3, least=9.3),
    Cell(trace="conversation", device=5_126, recency=12.4, least=16.5),
    Cell(trace="conversation", device=17_089, recency=28.2, least=29.2),
    Cell(trace="conversation", device=5_126, hints=KNOWN, least=24.0),
    Cell(trace="conversation", device=5_126, hints="lies", least=16.0),
    Cell(trace="conversation", device=3_417, host=13_668, host_copies="first", least=29.3),
    Cell(trace="claude_code", device=387, recency=7.1, least=9.5),
    Cell(trace="claude_code", device=1_163, recency=28.9, least=33.5),
    Cell(trace="claude_code", device=3_879, recency=84.5, least=84.2),
    Cell(trace="agentic", device=247, recency=48.7, least=48.2),
]

#: By how many points the learned order may find less than recency, at any size.
WORSE = {"conversation": 0.6, "claude_code": 0.6, "agentic": 0.5}

#: Least hits of a loop at 30 % of its blocks, where recency finds nothing and the optimum 26.2 %.
LOOP_LEAST = 24.0
#: Of each adversary, the share of its distinct blocks that the cache holds.
ADVERSARY_SHARES = {"loop": 0.3, "flood": 0.015, "shift": 0.1}


def distinct(trace: Trace) -> int:
    """Returns the distinct full blocks."""
    full = full_blocks(trace)
    counts = np.diff(trace.offsets)
    depth = np.arange(len(trace.ids)) - np.repeat(trace.offsets[:-1], counts)
    return len(np.unique(trace.ids[depth < np.repeat(full, counts)]))


def sizes(trace: Trace, count: int = 20) -> list[int]:
    """Returns so many sizes from 0.5 % to 100 % of the distinct full blocks, in equal ratios."""
    blocks = distinct(trace)
    return [max(1, round(share * blocks)) for share in np.geomspace(0.005, 1, count).tolist()]
