"""What a replay found: the JSON that it writes, field by field.

What the docstring of a field says is the documentation of its key, in `docs/reference/results.md`.
"""

from typing import Literal

import msgspec
from msgspec import Struct

__all__ = [
    "FORMAT",
    "Bookkeeping",
    "DiskReport",
    "Load",
    "Moved",
    "Preempted",
    "PromisedBlocks",
    "Replica",
    "Result",
    "Run",
    "Series",
    "Spread",
    "StoreReport",
    "TicketCounts",
    "Verified",
    "Waits",
]

FORMAT = 4
"""Changes when a key is dropped or changes its meaning."""


class Spread(Struct, frozen=True, kw_only=True):
    """A distribution, by quantiles of all values; none is interpolated over runs."""

    mean: float
    """The arithmetic mean."""
    p50: float
    """The median."""
    p90: float
    """90 % of the values are not above it."""
    p99: float
    """99 % of the values are not above it."""
    max: float
    """The largest value."""
    quantiles: list[float]
    """101 values: the quantiles 0, 0.01 … 1, for plots."""


class Load(Struct, frozen=True, kw_only=True):
    """What the trace offers, and what the engine serves of it; see [Load](#load-and-replicas)."""

    offered_requests_per_second: float
    """Requests that arrive, per second from the first arrival to the last."""
    served_requests_per_second: float
    """Requests admitted, per second from the first arrival to the last admission."""
    offered_tokens_per_second: float
    """The tokens of their prompts and answers, likewise."""
    served_tokens_per_second: float
    """The tokens of prompts and answers that were admitted, likewise."""
    backlog_seconds: float
    """From the last arrival to the last admission; after an interruption an estimate."""
    overloaded: bool
    """Whether the queue grew as requests came, so that times are those of a queue."""


class Waits(Struct, frozen=True, kw_only=True):
    """Why requests waited."""

    queue_ms: Spread
    """From arrival to first admission, modelled."""
    no_room: int
    """Steps at which a waiting request found no room."""
    soon: int
    """Begins that were put off because another request was computing or loading the same prefix.
    One request may be put off at many steps."""
    loading: int
    """Requests that began by loading a prefix from the host."""
    overtaken: int
    """Requests before which a later one was admitted."""
    skipped: int
    """Rows that found no room to grow and skipped a step."""
    stopping: int
    """Steps at which a seat waited for the ack of its stop, summed over seats."""


class Preempted(Struct, frozen=True, kw_only=True):
    """Which requests were preempted, and what of their work was lost."""

    count: int
    """Preemptions."""
    requests: int
    """Requests preempted at least once."""
    parked: int
    """Preemptions that kept the request's work."""
    kept: int
    """Blocks that these kept, in all tiers."""
    relieved: int
    """Blocks of parked requests that were copied down because others needed the room."""
    lost: int
    """Tokens of KV given up by preemption."""
    found: int
    """Tokens of preempted requests that were kept, or found again, when they came back."""
    recomputed: int
    """Tokens computed a second time."""
    share: float
    """The same as a share of all tokens computed, 0 to 1."""
    away_ms: Spread
    """From preemption to the next admission, modelled."""


class TicketCounts(Struct, frozen=True, kw_only=True):
    """Room promised to requests whose KV was on its way here."""

    granted: int
    """Tickets given."""
    refused: int
    """Times a ticket was refused for want of room; the request asks again."""
    expired: int
    """Tickets whose KV came too late."""
    blocks: int
    """Blocks that came over the link."""


class PromisedBlocks(Struct, frozen=True, kw_only=True):
    """Device blocks kept free or evictable for later use. Means are over modelled time."""

    headroom: float
    """Blocks kept for the growth of the batch as a whole, mean."""
    headroom_peak: int
    """The same, at most."""
    promised: float
    """All promised blocks: headroom, the growth of each sequence, and tickets; mean."""
    promised_peak: int
    """The same, at most."""
    tickets: TicketCounts | None
    """Null except with role decode."""


class Moved(Struct, frozen=True, kw_only=True):
    """Copies between tiers."""

    blocks_down: int
    """Blocks copied from device to host."""
    blocks_up: int
    """Blocks copied from host to device."""
    blocks_across: int
    """Blocks copied within the device."""
    bytes_down: int
    """Bytes copied from device to host, in the modelled layout, over all ranks."""
    bytes_up: int
    """Bytes copied from host to device, likewise."""
    failed_blocks: int
    """Blocks whose copy failed."""


class DiskReport(Struct, frozen=True, kw_only=True):
    """The disk, below the host."""

    hit_ratio: float
    """Prompt tokens found there / prompt tokens, 0 to 1; `hit_ratio` of the run has them too."""
    blocks_down: int
    """Blocks copied to it."""
    blocks_up: int
    """Blocks copied from it."""
    bytes_down: int
    """Bytes copied to it, in the modelled layout, over all ranks."""
    bytes_up: int
    """Bytes copied from it, likewise."""
    peak: int
    """The most of its slots with content; 0 with model sequential."""


class StoreReport(Struct, frozen=True, kw_only=True):
    """A shared store, below all other tiers, of which the cache knows blocks by name."""

    hit_ratio: float
    """Prompt tokens that came from there / prompt tokens, 0 to 1; `hit_ratio` of the run has them
    too."""
    blocks_down: int
    """Blocks copied to it."""
    blocks_up: int
    """Blocks that came from it."""
    bytes_down: int
    """Bytes copied to it, in the modelled layout, over all ranks."""
    bytes_up: int
    """Bytes that came from it, likewise."""
    losses: int
    """Loads cut short by a block that the store had lost; that one and those behind it were
    computed."""
    peak: int
    """The most names with content."""


class Bookkeeping(Struct, frozen=True, kw_only=True):
    """The CPU time of Blockyard itself, measured on this machine during the replay.

    What else the machine did meanwhile does not count.
    """

    steps: int
    """Steps of the engine."""
    us_per_step: Spread
    """Microseconds of CPU time of scheduler and cache for one step, with admissions and their keys.
    Time spent while no request could run counts to the next step."""
    us_per_request: float
    """Microseconds of CPU time to add one request to the queue, mean."""
    share: float
    """Seconds of CPU time, all together, per modelled second of the engine."""


class Verified(Struct, frozen=True, kw_only=True):
    """What `--verify` did with real bytes."""

    written: int
    """Blocks that were given bytes derived from their key."""
    checked: int
    """Blocks whose bytes were compared."""
    wrong: int
    """Blocks with a wrong byte; anything but 0 is a bug."""
    wrong_answers: int
    """Answers that differ from the trace's; anything but 0 is a bug."""
    block_bytes: int
    """Real bytes per block and rank, in place of the layout's."""


class Series(Struct, frozen=True, kw_only=True):
    """Columns over modelled time: one entry per interval, all intervals of equal length.

    A level is looked at in every step; its entry is the highest value seen in the interval.
    """

    seconds: list[float]
    """End of the interval, in modelled seconds from the first arrival."""
    device_hit: list[int]
    """Prompt tokens found on the device."""
    host_hit: list[int]
    """Prompt tokens found on the host, or on a tier below it."""
    missed: list[int]
    """Prompt tokens that were computed; with role decode, those that arrived computed."""
    device_used: list[int]
    """Device slots with content, a level."""
    device_pinned: list[int]
    """Device slots in use by running requests, a level."""
    host_used: list[int]
    """Host slots with content, a level."""
    bytes_down: list[int]
    """Bytes copied from device to host."""
    bytes_up: list[int]
    """Bytes copied from host to device."""
    device_promised: list[int]
    """Device slots that are promised, a level."""
    preempted: list[int]
    """Preemptions."""
    running: list[int]
    """Requests that are admitted, a level."""
    waiting: list[int]
    """Requests that wait, a level."""


class Replica(Struct, frozen=True, kw_only=True):
    """One of the engines behind a router."""

    requests: int
    """Requests that ended there."""
    input_tokens: int
    """Prompt tokens of the requests that began there."""
    output_tokens: int
    """Tokens generated there."""
    hit_ratio: float
    """Prompt tokens found in any of its tiers / its prompt tokens, 0 to 1."""
    engine_seconds: float
    """From the first arrival anywhere to its last end, modelled; 0 with model sequential."""
    overloaded: bool | None
    """Whether its queue grew; null with model sequential, or where too little arrived."""


class Run(Struct, frozen=True, kw_only=True):
    """One pass over the trace, with one combination of policies.

    With replicas, figures are of all engines together: sums, and spreads over the values of all.
    Blocks, peaks, means over time and levels of `series` are those of one engine: the size of each,
    the highest peak, and the mean of the others. Only `running` and `waiting` are summed.
    """

    model: Literal["virtual", "sequential"]
    """How time was modelled."""
    policy: str
    """Eviction: recency, learned, heap, or optimum, which uses the trace's future."""
    write_policy: str
    """When blocks are copied down: on-evict, through, second-touch. Where `model` is sequential a
    copy takes no time, and on-evict copies only evicted blocks."""
    host_copies: str | None
    """When copies on the host of what the device has too are evicted: first, last; null for what
    suits the policy."""
    hints: str | None
    """The hints about each request's future, as given; null for none."""
    owner: Literal["cache", "engine"]
    """Who allocated the device's blocks; with engine, `policy` is that of the lower tiers."""
    role: str | None
    """Mixed, prefill or decode; null with model sequential."""
    headroom: str | None
    """Room kept for growth: none, full-length, watermark, adaptive; null likewise."""
    victims: str | None
    """Which request is preempted first: newest, least-computed; null likewise."""
    preempt_mode: str | None
    """What a preempted request keeps: park, full-blocks, recompute; null likewise."""
    device_blocks: int
    """Blocks of the device."""
    host_blocks: int
    """Blocks of the host; 0 for none."""
    disk_blocks: int
    """Blocks of the disk; 0 for none."""
    remote_blocks: int = 0
    """Blocks of a shared store known by name; 0 for no store."""
    block_bytes: int
    """Bytes of a block in the modelled layout, over all ranks."""
    requests: int
    """Requests that ended."""
    refused: int
    """Requests too large ever to fit, which were left out."""
    complete: bool
    """False after an interruption: all figures are up to then."""
    input_tokens: int
    """Prompt tokens of the requests that began."""
    output_tokens: int
    """Tokens generated."""
    hit_ratio: float
    """Prompt tokens found in any tier / prompt tokens, 0 to 1."""
    hit_ratio_by_tier: dict[str, float]
    """The same by tier: device, host."""
    skipped_slow: int
    """Blocks found on the host but computed, as that was faster."""
    engine_seconds: float
    """From the first arrival to the last end, modelled."""
    wall_seconds: float
    """How long this run took here, measured; with replicas the sum of theirs."""
    tokens_per_second: float
    """Output tokens per modelled second."""
    load: Load | None = None
    """Load offered and served; null with model sequential, or if all requests come at once."""
    replicas: list[Replica] = []
    """Each engine, in the order of the router; empty where there is only one."""
    ttft_ms: Spread | None
    """From arrival to the first token of this engine, modelled; null likewise."""
    itl_ms: Spread | None
    """Between two tokens of a request, modelled; null likewise."""
    waits: Waits | None
    """Why requests waited; null likewise."""
    preempted: Preempted | None
    """Requests that were preempted for want of room; null likewise."""
    reservations: PromisedBlocks | None
    """Room that was kept for later; null likewise."""
    moved: Moved
    """Copies between tiers."""
    pinned: float | None = None
    """Device slots in use by running requests, mean over modelled time; null likewise."""
    peak: dict[str, int]
    """The most slots with content, of device and host; and pinned, the most device slots in use
    by running requests. Looked at in every step."""
    disk: DiskReport | None
    """The tier below the host; null where there is none."""
    remote: StoreReport | None = None
    """The shared store; null where there is none."""
    bookkeeping: Bookkeeping | None
    """CPU time that Blockyard took, measured; null with model sequential."""
    verified: Verified | None
    """Null without --verify."""
    audit: str
    """The law that was broken, and how; "ok", or "none" for the optimum."""
    series: Series | None
    """Columns over time; null with model sequential."""


class Result(Struct, frozen=True, kw_only=True):
    """The whole result; the keys of the first run are at the top level, too."""

    format: int
    """Version of these keys."""
    blockyard: str
    """Version of Blockyard."""
    trace: str
    """The file's name, or how the workload was generated."""
    trace_block: int
    """Tokens per trace id."""
    trace_requests: int
    """Requests in the trace, or as many as were asked for."""
    answer: list[str] = []
    """What follows, a sentence each: the load first, where it is too high."""
    speed: float = 1.0
    """How many times as fast as in the trace requests arrive."""
    router: str | None = None
    """What sent requests to replicas: prefix, random; null where there is one engine."""
    block_size: int
    """Tokens per block of the cache."""
    max_num_batched_tokens: int
    """The most tokens computed in one step."""
    max_num_seqs: int
    """The most requests that run at once."""
    prefetch: int
    """Waiting requests whose prefix is loaded ahead of their turn."""
    gate: bool
    """Whether a prefix is loaded only where that beats computing it."""
    seed: int
    """Seed of tokens and workload."""
    preset: str
    """The modelled engine, e.g. llama-3-8b/h100."""
    figures: dict[str, float]
    """The figures of the modelled engine, as used."""
    command: str
    """The command that repeats this replay."""
    runs: list[Run]
    """One per combination of policies, in the order given."""
    missing: int = 0
    """Runs that did not begin before Ctrl-C; `complete` at the top is of all runs."""

    def encode(self) -> bytes:
        """Returns JSON: the keys of this, those of the first run, and every run under `runs`."""
        whole = msgspec.to_builtins(self)
        whole |= {name: value for name, value in whole["runs"][0].items() if name != "series"}
        whole["complete"] = not self.missing and all(run.complete for run in self.runs)
        return msgspec.json.format(msgspec.json.encode(whole), indent=2)
