"""What a replay found: the JSON it writes, field by field."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

__all__ = [
    "FORMAT",
    "Bookkeeping",
    "Moved",
    "Preempted",
    "PromisedBlocks",
    "Result",
    "Run",
    "Series",
    "Spread",
    "TicketCounts",
    "Verified",
    "Waits",
]

FORMAT = 3
"""Changes when a key changes its meaning or goes."""


class Spread(Struct, frozen=True, kw_only=True):
    """A distribution: quantiles of all values, none of them interpolated over runs."""

    mean: Annotated[float, Meta(description="arithmetic mean")]
    p50: Annotated[float, Meta(description="median")]
    p90: Annotated[float, Meta(description="nine in ten are not above")]
    p99: Annotated[float, Meta(description="99 in 100 are not above")]
    max: Annotated[float, Meta(description="largest")]
    quantiles: Annotated[
        list[float], Meta(description="101 values: quantiles 0, 0.01 … 1, for plots")
    ]


class Waits(Struct, frozen=True, kw_only=True):
    """Why requests waited."""

    queue_ms: Annotated[Spread, Meta(description="arrival to first admission, modelled")]
    no_room: Annotated[int, Meta(description="steps at which somebody in line found no room")]
    soon: Annotated[
        int,
        Meta(
            description="begins put off because somebody computed or loaded the same prefix; one "
            "request may be put off at many steps"
        ),
    ]
    loading: Annotated[int, Meta(description="requests whose prefix was loaded from below first")]
    overtaken: Annotated[int, Meta(description="requests that a later one was admitted before")]
    skipped: Annotated[int, Meta(description="rows that found no room to grow and skipped a step")]
    stopping: Annotated[
        int, Meta(description="steps at which a seat waited for the ack of its stop, over seats")
    ]


class Preempted(Struct, frozen=True, kw_only=True):
    """Who was preempted, and what of its work was lost."""

    count: Annotated[int, Meta(description="preemptions")]
    requests: Annotated[int, Meta(description="requests preempted at least once")]
    parked: Annotated[int, Meta(description="of the preemptions, those that kept the work")]
    kept: Annotated[int, Meta(description="blocks of those, all that they had in tiers")]
    relieved: Annotated[
        int, Meta(description="blocks of parked requests copied down for who needed the room")
    ]
    lost: Annotated[int, Meta(description="tokens of KV given up by preemption")]
    found: Annotated[
        int, Meta(description="tokens of preempted requests, kept or found when they came back")
    ]
    recomputed: Annotated[int, Meta(description="tokens computed a second time")]
    share: Annotated[float, Meta(description="these / all tokens computed, 0 to 1")]
    away_ms: Annotated[Spread, Meta(description="preemption to next admission, modelled")]


class TicketCounts(Struct, frozen=True, kw_only=True):
    """Room promised to requests whose KV was on its way here."""

    granted: Annotated[int, Meta(description="tickets given")]
    refused: Annotated[
        int, Meta(description="times one was refused for want of room; it is asked for again")
    ]
    expired: Annotated[int, Meta(description="tickets whose KV came too late")]
    blocks: Annotated[int, Meta(description="blocks that came over the link")]


class PromisedBlocks(Struct, frozen=True, kw_only=True):
    """Device blocks that were kept free or evictable for somebody; means are over modelled time."""

    headroom: Annotated[
        float, Meta(description="blocks kept for the growth of the batch as a whole, mean")
    ]
    headroom_peak: Annotated[int, Meta(description="the same, most")]
    promised: Annotated[
        float,
        Meta(description="all blocks promised: headroom, each sequence's growth, tickets; mean"),
    ]
    promised_peak: Annotated[int, Meta(description="the same, most")]
    tickets: Annotated[TicketCounts | None, Meta(description="null but with role decode")]


class Moved(Struct, frozen=True, kw_only=True):
    """Copies between tiers."""

    blocks_down: Annotated[int, Meta(description="blocks copied device to host")]
    blocks_up: Annotated[int, Meta(description="blocks copied host to device")]
    blocks_across: Annotated[int, Meta(description="blocks copied within the device")]
    bytes_down: Annotated[
        int, Meta(description="the same in bytes of the modelled layout, all ranks")
    ]
    bytes_up: Annotated[
        int, Meta(description="the same in bytes of the modelled layout, all ranks")
    ]
    failed_blocks: Annotated[int, Meta(description="copies that failed")]


class Bookkeeping(Struct, frozen=True, kw_only=True):
    """What Blockyard itself cost, measured on this machine while replaying."""

    steps: Annotated[int, Meta(description="steps of the engine")]
    us_per_step: Annotated[
        Spread,
        Meta(
            description="scheduler and cache for one step, admissions and their keys included, "
            "measured microseconds; what times when nobody could run took counts to the step after"
        ),
    ]
    us_per_request: Annotated[
        float, Meta(description="to put one request in line, measured microseconds, mean")
    ]
    share: Annotated[float, Meta(description="all of it per modelled second of the engine")]


class Verified(Struct, frozen=True, kw_only=True):
    """What `--verify` did with real bytes."""

    written: Annotated[int, Meta(description="blocks that were given bytes derived from their key")]
    checked: Annotated[int, Meta(description="blocks whose bytes were compared")]
    wrong: Annotated[int, Meta(description="blocks with a wrong byte; anything but 0 is a bug")]
    wrong_answers: Annotated[
        int, Meta(description="answers that were not the trace's; anything but 0 is a bug")
    ]
    block_bytes: Annotated[
        int, Meta(description="real bytes per block and rank; they stand for the layout's")
    ]


class Series(Struct, frozen=True, kw_only=True):
    """Columns over modelled time, one entry per interval of equal length; all of one length."""

    seconds: Annotated[
        list[float],
        Meta(description="end of the interval, modelled seconds from the first arrival"),
    ]
    device_hit: Annotated[list[int], Meta(description="prompt tokens found on the device")]
    host_hit: Annotated[list[int], Meta(description="prompt tokens found on the host")]
    missed: Annotated[
        list[int],
        Meta(description="prompt tokens that were computed, or, with role decode, came computed"),
    ]
    device_used: Annotated[
        list[int], Meta(description="most device slots with content, of all looks")
    ]
    device_pinned: Annotated[
        list[int], Meta(description="most device slots in use by running requests, of all looks")
    ]
    host_used: Annotated[list[int], Meta(description="most host slots with content, of all looks")]
    bytes_down: Annotated[list[int], Meta(description="bytes copied device to host")]
    bytes_up: Annotated[list[int], Meta(description="bytes copied host to device")]
    device_promised: Annotated[
        list[int], Meta(description="most device slots promised to somebody, of all looks")
    ]
    preempted: Annotated[list[int], Meta(description="preemptions")]
    running: Annotated[list[int], Meta(description="most requests admitted, of all looks")]
    waiting: Annotated[list[int], Meta(description="most requests waiting, of all looks")]


class Run(Struct, frozen=True, kw_only=True):
    """One pass over the trace, with one policy."""

    model: Annotated[Literal["virtual", "sequential"], Meta(description="how time was modelled")]
    policy: Annotated[
        str, Meta(description="eviction: recency, heap; or optimum, which knows the future")
    ]
    write_policy: Annotated[
        str, Meta(description="what is copied down: on-evict, through, second-touch")
    ]
    role: Annotated[
        str | None,
        Meta(description="mixed, prefill or decode; null with model sequential"),
    ]
    headroom: Annotated[
        str | None,
        Meta(description="growth room: none, full-length, watermark, adaptive; null likewise"),
    ]
    victims: Annotated[
        str | None, Meta(description="who is preempted: newest, least-computed; null likewise")
    ]
    preempt_mode: Annotated[
        str | None,
        Meta(description="what a victim keeps: park, full-blocks, recompute; null likewise"),
    ]
    device_blocks: Annotated[int, Meta(description="blocks of the device")]
    host_blocks: Annotated[int, Meta(description="blocks of the host")]
    requests: Annotated[int, Meta(description="requests that ended")]
    refused: Annotated[int, Meta(description="requests too large to ever fit, left out")]
    complete: Annotated[
        bool, Meta(description="false when it was interrupted: all figures are up to then")
    ]
    input_tokens: Annotated[int, Meta(description="prompt tokens of the requests that began")]
    output_tokens: Annotated[int, Meta(description="tokens generated")]
    hit_ratio: Annotated[
        float, Meta(description="prompt tokens found in any tier / prompt tokens, 0 to 1")
    ]
    hit_ratio_by_tier: Annotated[
        dict[str, float], Meta(description="the same by tier: device, host")
    ]
    skipped_slow: Annotated[
        int, Meta(description="blocks found below but computed, as that was faster")
    ]
    engine_seconds: Annotated[float, Meta(description="first arrival to last end, modelled")]
    wall_seconds: Annotated[float, Meta(description="what this run took here, measured")]
    tokens_per_second: Annotated[float, Meta(description="output tokens per modelled second")]
    ttft_ms: Annotated[
        Spread | None,
        Meta(
            description="arrival to first token of this engine, modelled; null with model "
            "sequential"
        ),
    ]
    itl_ms: Annotated[
        Spread | None, Meta(description="between tokens of a request, modelled; null likewise")
    ]
    waits: Annotated[Waits | None, Meta(description="why requests waited; null likewise")]
    preempted: Annotated[
        Preempted | None, Meta(description="who was stopped for want of room; null likewise")
    ]
    reservations: Annotated[
        PromisedBlocks | None, Meta(description="room that was kept; null likewise")
    ]
    moved: Annotated[Moved, Meta(description="copies between tiers")]
    peak: Annotated[
        dict[str, int],
        Meta(
            description="most slots with content: device, host; and pinned, in use by running "
            "requests; seen at the end of every step"
        ),
    ]
    bookkeeping: Annotated[
        Bookkeeping | None, Meta(description="measured cost; null with model sequential")
    ]
    verified: Annotated[Verified | None, Meta(description="null without --verify")]
    audit: Annotated[
        str,
        Meta(description='"ok", the law that was broken and how, or "none" for the optimum'),
    ]
    series: Annotated[Series | None, Meta(description="over time; null with model sequential")]


class Result(Struct, frozen=True, kw_only=True):
    """Everything; the keys of the first run stand at the top as well."""

    format: Annotated[int, Meta(description="version of these keys")]
    blockyard: Annotated[str, Meta(description="version of Blockyard")]
    trace: Annotated[str, Meta(description="the file's name, or how the workload was generated")]
    trace_block: Annotated[int, Meta(description="tokens per trace id")]
    trace_requests: Annotated[
        int, Meta(description="requests in the trace, or as many as asked for")
    ]
    block_size: Annotated[int, Meta(description="tokens per block of the cache")]
    block_bytes: Annotated[
        int, Meta(description="bytes of a block in the modelled layout, all ranks")
    ]
    max_num_batched_tokens: Annotated[int, Meta(description="most tokens computed in one step")]
    max_num_seqs: Annotated[int, Meta(description="most requests that run at once")]
    prefetch: Annotated[
        int, Meta(description="requests in line whose prefix is brought up ahead of their turn")
    ]
    gate: Annotated[
        bool, Meta(description="whether a prefix is loaded only where that beats computing it")
    ]
    seed: Annotated[int, Meta(description="of tokens and workload")]
    preset: Annotated[str, Meta(description="the modelled engine, e.g. llama-3-8b/h100")]
    figures: Annotated[dict[str, float], Meta(description="the modelled engine's figures, as used")]
    command: Annotated[str, Meta(description="what to type to see this again")]
    runs: Annotated[list[Run], Meta(description="one per policy, in the order asked for")]

    def encode(self) -> bytes:
        """As JSON: the keys of this, those of the first run, and every run under `runs`."""
        whole = msgspec.to_builtins(self)
        whole |= {name: value for name, value in whole["runs"][0].items() if name != "series"}
        return msgspec.json.format(msgspec.json.encode(whole), indent=2)
