"""What one run needs to know, and what it says while it goes on."""

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blockyard.crane.devices import DeviceName
from blockyard.scheduling.headroom import (
    Adaptive,
    FullLength,
    HeadroomPolicy,
    NoHeadroom,
    Role,
    Watermark,
)
from blockyard.tools.replay.hardware import Roofline
from blockyard.tools.replay.trace import Trace
from blockyard.yard.parking import PreemptMode

__all__ = [
    "HEADROOMS",
    "HeadroomName",
    "Policy",
    "Progress",
    "RunSpec",
    "VictimsName",
    "WritePolicy",
    "full_sizes",
    "tight_sizes",
]

HeadroomName = Literal["none", "full-length", "watermark", "adaptive"]
HEADROOMS: Final[dict[HeadroomName, type[HeadroomPolicy]]] = {
    "none": NoHeadroom,
    "full-length": FullLength,
    "watermark": Watermark,
    "adaptive": Adaptive,
}
Policy = Literal["recency", "heap", "optimum"]
WritePolicy = Literal["on-evict", "through", "second-touch"]
VictimsName = Literal["newest", "least-computed"]

_HOST_MULTIPLE: Final = 4
"""Host blocks per device block where nobody says: to 55 GB beside the weights, 220 GB of a host."""


class Progress(NamedTuple):
    """How far a run is."""

    requests_done: int
    requests: int
    """In the trace."""
    engine_seconds: float
    """From the first arrival, modelled; with the model "sequential", to the last one served."""
    hit_ratio: float | None
    """Prompt tokens found / prompt tokens, so far; None: not known before the end."""
    device_used: int
    """Device slots with content."""
    host_used: int
    blocks_down: int
    blocks_up: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """Everything that one run needs beside its trace."""

    model: Literal["virtual", "sequential"] = "virtual"
    """How time is modelled; "sequential" not at all: one request after another."""
    preset: str
    roofline: Roofline
    """The modelled engine: the preset, with the figures that were given."""
    trace_block: int
    """Tokens per trace id."""
    block_size: int
    """Tokens per block of the cache."""
    device_blocks: int
    host_blocks: int
    policy: Policy = "recency"
    write_policy: WritePolicy = "on-evict"
    role: Role = "mixed"
    """What the engine does: whole requests, or their first tokens, or the others."""
    headroom: HeadroomName = "adaptive"
    """How much room the running batch keeps for its growth."""
    preempt_mode: PreemptMode = "park"
    """What becomes of a victim's KV."""
    victims: VictimsName = "newest"
    """Who is preempted."""
    seed: int = 0
    verify: bool = False
    """Whether every block carries real bytes, checked whenever it is used again."""
    device: DeviceName = "memory"
    """Whose memory has these bytes."""
    max_num_batched_tokens: int = 8192
    """Most tokens computed in one step."""
    max_num_seqs: int = 256
    """Seats: most requests that run at once."""
    prefetch: int = 0
    """How many requests in line have their prefix brought up ahead of their turn."""
    gate: bool = True
    """Whether a prefix is loaded only as far as that beats computing it."""

    @property
    def ranks(self) -> int:
        """GPUs that share the model, each with a crane of its own."""
        return self.roofline.ranks

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of the modelled layout, over all ranks."""
        return self.roofline.kv_bytes_per_token * self.block_size

    def answers(self, trace: Trace) -> NDArray[np.int64]:
        """Tokens that each request samples here: 1 at least, as that is how its prompt ends."""
        longest = 1 if self.role == "prefill" else None
        return np.clip(trace.output_length, 1, longest)


def full_sizes(roofline: Roofline, block_size: int) -> tuple[int, int]:
    """Blocks of device and host for a trace: what the memory holds, and four times as much.

    Raises:
        Misuse: The weights leave no room for one block.
    """
    device = roofline.device_blocks(block_size)
    return device, _HOST_MULTIPLE * device


def tight_sizes(trace: Trace, roofline: Roofline, block_size: int) -> tuple[int, int]:
    """Blocks of device and host for a generated workload: so few that tiers matter.

    Some minutes of traffic would fit the whole memory. The device gets an eighth of all blocks and
    the host a quarter, but the largest request fits twice into the device; and neither more than
    `full_sizes` gives.

    Raises:
        Misuse: The weights leave no room for one block.
    """
    device, host = full_sizes(roofline, block_size)
    tokens = len(np.unique(trace.ids)) * trace.trace_block + int(trace.output_length.sum())
    blocks = tokens // block_size
    largest = -(-int((trace.input_length + trace.output_length).max(initial=1)) // block_size)
    return min(device, max(blocks // 8, 2 * largest)), min(host, max(blocks // 4, 4 * largest))
