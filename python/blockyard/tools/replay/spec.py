"""The specification of one run, and its progress."""

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
from blockyard.tools.replay.hints import Hints
from blockyard.tools.traces.trace import Trace
from blockyard.yard.config import BlockCosts
from blockyard.yard.parking import PreemptMode

__all__ = [
    "HEADROOMS",
    "Eviction",
    "HeadroomName",
    "HostCopies",
    "Owner",
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
Eviction = Literal["recency", "learned", "heap"]
"""The orders of the cache."""
Policy = Literal[Eviction, "optimum"]
HostCopies = Literal["first", "last"]
Owner = Literal["cache", "engine"]
WritePolicy = Literal["on-evict", "through", "second-touch"]
VictimsName = Literal["newest", "least-computed"]

_HOST_MULTIPLE: Final = 4
"""Default host blocks per device block: 220 GB of a host to 55 GB beside the weights."""


class Progress(NamedTuple):
    """The progress of a run."""

    requests_done: int
    requests: int
    """In the trace."""
    engine_seconds: float
    """Modelled time from the first arrival; with model sequential, the last arrival served."""
    hit_ratio: float | None
    """Prompt tokens found / prompt tokens so far; None where it is known only at the end."""
    device_used: int
    """Device slots with content."""
    host_used: int
    blocks_down: int
    blocks_up: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """All that one run needs beside its trace."""

    model: Literal["virtual", "sequential"] = "virtual"
    """How time is modelled. "sequential" has no time: one request follows another."""
    preset: str
    roofline: Roofline
    """The modelled engine: the preset with the figures that were replaced."""
    trace_block: int
    """Tokens per trace id."""
    block_size: int
    """Tokens per block of the cache."""
    device_blocks: int
    host_blocks: int
    disk_blocks: int = 0
    """Blocks of a tier below the host; 0 for none."""
    disk_bytes_per_second: float = 5e9
    """Its bandwidth in each direction, over all ranks; that of one drive is assumed by default."""
    remote_blocks: int = 0
    """Blocks of a shared store that are known by name; 0 for no store."""
    store_latency: float = 1e-3
    """Seconds from submit to first byte of a copy to or from the store."""
    store_bytes_per_second: float = 5e9
    """Its bandwidth in each direction, over all ranks; that of a fast network by default."""
    store_loss: float = 0.0
    """The share of loaded blocks that the store has lost, 0 to 1; drawn by `seed`."""
    policy: Policy = "recency"
    write_policy: WritePolicy = "on-evict"
    host_copies: HostCopies | None = None
    """When copies on the host of what the device has too are evicted; None for what suits the
    policy."""
    hints: Hints | None = None
    """Hints about a request's future; only with model "sequential"."""
    owner: Owner = "cache"
    """Who gives out the device's blocks; an engine does so only with model "sequential"."""
    role: Role = "mixed"
    """What the engine serves: whole requests, their first tokens alone, or the other tokens."""
    headroom: HeadroomName = "adaptive"
    """How much room the running batch keeps for its growth."""
    preempt_mode: PreemptMode = "park"
    """What a preempted request keeps of its KV."""
    victims: VictimsName = "newest"
    """Which request is preempted first."""
    origin_ms: int | None = None
    """When time starts, on the trace's clock; None for its first arrival. Engines side by side,
    each with a trace of its own, have it in common."""
    seed: int = 0
    verify: DeviceName | None = None
    """Where the device's blocks have real bytes, which are checked whenever one is used again;
    None for no bytes."""
    max_num_batched_tokens: int = 8192
    """The most tokens computed in one step."""
    max_num_seqs: int = 256
    """The most requests that run at once."""
    prefetch: int = 0
    """How many waiting requests have their prefix loaded ahead of their turn."""
    gate: bool = True
    """Whether a prefix is loaded only as far as that beats computing it."""

    @property
    def ranks(self) -> int:
        """The GPUs that share the model, each with its own crane."""
        return self.roofline.ranks

    @property
    def block_bytes(self) -> int:
        """The bytes of one block in the modelled layout, over all ranks."""
        return self.roofline.kv_bytes_per_token * self.block_size

    @property
    def disk_block_seconds(self) -> float:
        """How long a block takes to or from the disk."""
        return self.block_bytes / self.disk_bytes_per_second

    @property
    def store_block_seconds(self) -> float:
        """How long a block takes to or from the store, beside the latency."""
        return self.block_bytes / self.store_bytes_per_second

    @property
    def block_costs(self) -> BlockCosts:
        """What gates loads."""
        own = self.roofline.block_costs(self.block_size)
        disk = round(1e9 * self.disk_block_seconds) if self.disk_blocks else None
        remote = round(1e9 * self.store_block_seconds) if self.remote_blocks else None
        return BlockCosts(*own, disk=disk, remote=remote)

    def answers(self, trace: Trace) -> NDArray[np.int64]:
        """Returns how many tokens each request samples here; at least 1, which ends its prompt."""
        longest = 1 if self.role == "prefill" else None
        return np.clip(trace.output_length, 1, longest)


def full_sizes(roofline: Roofline, block_size: int) -> tuple[int, int]:
    """Returns blocks of device and host for a trace: all the memory holds, and four times that.

    Raises:
        Misuse: The weights leave no room for one block.
    """
    device = roofline.device_blocks(block_size)
    return device, _HOST_MULTIPLE * device


def tight_sizes(trace: Trace, roofline: Roofline, block_size: int) -> tuple[int, int]:
    """Returns blocks of device and host for a generated workload: so few that tiers matter.

    Some minutes of traffic would fit into memory whole. So the device gets an eighth of all blocks
    and the host a quarter; the device holds at least the largest request twice, and neither has
    more than `full_sizes` returns.

    Raises:
        Misuse: The weights leave no room for one block.
    """
    device, host = full_sizes(roofline, block_size)
    tokens = len(np.unique(trace.ids)) * trace.trace_block + int(trace.output_length.sum())
    blocks = tokens // block_size
    largest = -(-int((trace.input_length + trace.output_length).max(initial=1)) // block_size)
    return min(device, max(blocks // 8, 2 * largest)), min(host, max(blocks // 4, 4 * largest))
