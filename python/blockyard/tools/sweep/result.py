"""What a sweep found: the JSON that it writes, field by field.

What the docstring of a field says is the documentation of its key, in `docs/reference/results.md`.
"""

from typing import Literal

import msgspec
from msgspec import Struct

__all__ = ["FORMAT", "Advice", "Modelled", "Point", "SplitResult", "SweepResult"]

FORMAT = 2
"""Changes when a key is dropped or changes its meaning."""


class Point(Struct, frozen=True, kw_only=True):
    """One size."""

    blocks: int
    """Blocks of the cache, in one tier."""
    bytes: int
    """The same in bytes of the modelled layout, over all ranks."""
    hit_ratio: dict[str, float]
    """Prompt tokens found / prompt tokens, 0 to 1, by order; one that was interrupted is
    missing."""


class Advice(Struct, frozen=True, kw_only=True):
    """What to buy."""

    kind: Literal["knee", "beyond", "little", "nothing"]
    """Knee: `blocks` is the least size that finds at least half of what an infinite cache does, and
    from which on no doubling adds a point under recency. Beyond: that is larger than all sizes of
    the sweep. Little: an infinite cache finds less than a point. Nothing: it finds nothing."""
    blocks: int
    """The size; 0 if `kind` is little or nothing."""
    bytes: int
    """The same in bytes."""
    hit_ratio: float
    """What recency finds there, exact."""
    next_gain: float
    """What the next doubling adds under recency, exact; in shares, so 0.01 is a point."""
    bound: float | None
    """What the optimum finds there; null where it was not asked for, or not reached."""
    better: str | None
    """The order that finds most there, of those that can be had; null where none but recency was
    simulated."""
    better_hit_ratio: float | None
    """What it finds."""
    better_equals: int | None
    """Blocks that recency needs to find as much; null where no size does."""
    enough: int
    """Blocks of the least cache that recency loses nothing in: as good as an infinite one."""


class SplitResult(Struct, frozen=True, kw_only=True):
    """A total split between tiers, simulated; blocks go down when they are about to be evicted."""

    split: str
    """As it was given."""
    order: str
    """The eviction order."""
    device_blocks: int
    """Blocks of the device."""
    host_blocks: int
    """Blocks of the host."""
    disk_blocks: int
    """Blocks of the tier below the host."""
    hit_ratio: float
    """Prompt tokens found / prompt tokens, 0 to 1; all tiers."""
    hit_ratio_by_tier: dict[str, float]
    """The same by tier: device, host, disk."""
    bytes_down: int
    """Bytes copied down, to host and disk."""
    bytes_up: int
    """Bytes copied up to the device, from host and disk."""


class Modelled(Struct, frozen=True, kw_only=True):
    """A size under the virtual engine of `blockyard replay`, in modelled time."""

    blocks: int
    """The size in blocks of the sweep."""
    bytes: int
    """The same in bytes."""
    device_bytes: int
    """What of it is on the device: as much as its memory has beside the weights."""
    host_bytes: int
    """What of it is on the host."""
    requests: int
    """Requests that ended: the first ones of the trace, from an empty cache."""
    hit_ratio: float
    """Prompt tokens found / prompt tokens, 0 to 1."""
    sequential_hit_ratio: float
    """What these requests find with these sizes where copies take no time, as `points` and `splits`
    have it: the difference is what copying, requests at the same time, and answers make of it."""
    ttft_ms_p50: float | None
    """Time to first token in milliseconds, the median; null where no request has one."""
    ttft_ms_p99: float | None
    """The same, not passed by 99 %."""
    tokens_per_second: float
    """Output tokens per modelled second."""
    overloaded: bool
    """Whether the engine falls behind the arrivals: then times are those of a growing queue."""


class SweepResult(Struct, frozen=True, kw_only=True):
    """Everything."""

    format: int
    """Version of these keys."""
    blockyard: str
    """Version of Blockyard."""
    trace: str
    """The file's name, or how the workload was generated."""
    trace_block: int
    """Tokens per block: the trace's."""
    trace_requests: int
    """Requests in the trace, or as many as were asked for."""
    input_tokens: int
    """Prompt tokens of all requests."""
    distinct_blocks: int
    """Distinct full blocks of the prompts."""
    block_bytes: int
    """Bytes of a block in the modelled layout, over all ranks."""
    preset: str
    """The modelled engine, e.g. llama-3-8b/h100."""
    figures: dict[str, float]
    """The figures of the modelled engine, as used."""
    device_blocks: int
    """Blocks that the device of this engine has beside the weights."""
    device_hit_ratio: float
    """What recency finds with these alone, exact."""
    infinite_hit_ratio: float
    """What an infinite cache finds."""
    sampled: int
    """Of how many blocks one was simulated under the orders that are neither recency nor the
    optimum; 1 for all."""
    seed: int
    """Seed of a generated workload."""
    command: str
    """The command that repeats this sweep."""
    complete: bool
    """False after an interruption: what is there is right, and some is missing."""
    answer: list[str]
    """Sentences: what to buy first, then what else should be known."""
    advice: Advice
    """What to buy, in numbers."""
    points: list[Point]
    """The sizes, rising; the advised one and its double are among them."""
    splits: list[SplitResult]
    """Totals split between tiers."""
    modelled: list[Modelled]
    """Sizes under the virtual engine."""

    def encode(self) -> bytes:
        """Returns the JSON, indented."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2)
