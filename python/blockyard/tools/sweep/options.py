"""The options of `blockyard sweep`, checked and turned into what it needs to know."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, get_args

from blockyard._core import Misuse
from blockyard.shared.machine import free_memory
from blockyard.shared.sizes import parse_blocks
from blockyard.tools.replay.hardware import Roofline, roofline_of
from blockyard.tools.replay.spec import Eviction, Policy
from blockyard.tools.sweep.sizes import SplitText
from blockyard.tools.traces.source import Source, check_source, trace_of
from blockyard.tools.traces.trace import Trace
from blockyard.tools.units import size

__all__ = ["MOST_POINTS", "MOST_SPLITS", "Options", "Plan", "resolve"]

MOST_SPLITS: Final = 5
MOST_POINTS: Final = 200


class Options(Source):
    """The options as given; None where one was left out."""

    preset: str
    figures: tuple[str, ...]
    ranks: int | None
    sizes: str | None
    first: str | None
    last: str | None
    points: int
    policy: tuple[Policy, ...]
    split: tuple[str, ...]
    model_size: tuple[str, ...]
    model_requests: int | None
    sample: int | None
    jobs: int | None
    json: str | None
    report: Path | None
    quiet: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """What to sweep."""

    trace: Trace
    roofline: Roofline
    preset: str
    block_bytes: int
    """Bytes of a block of the trace, over all ranks."""
    device_blocks: int
    """Blocks that the device has beside the weights."""
    sizes: tuple[int, ...]
    """In blocks, rising; empty where `first`, `last` and `points` say which."""
    first: int | None
    """The least size; None for what suits the trace."""
    last: int | None
    """The largest, likewise."""
    points: int
    orders: tuple[Eviction, ...]
    """The orders to simulate, recency not among them."""
    optimum: bool
    splits: tuple[SplitText, ...] | None
    """Totals to split; None for what suits the engine."""
    model_sizes: tuple[int, ...]
    """Sizes for the virtual engine, in blocks; empty for the advised one and its double."""
    model_requests: int
    """How many of the first requests it serves; 0 for none."""
    sample: int | None
    """Of how many blocks one is simulated; None for what suits the trace."""
    seed: int


_USE_BYTES: Final = 60
"""Bytes that one pass takes for each use of a block, at most; 53 were measured."""
_QUICK: Final = 1000
"""Requests that a virtual engine serves in a second or two: so many are modelled without a word."""


def resolve(options: Options) -> Plan:
    """Returns what to sweep; the trace is read last.

    Raises:
        Misuse: An option is wrong, or does not go with another.
    """
    _check(options)
    roofline = roofline_of(options["preset"], options["figures"], options["ranks"])
    texts = options["split"]
    if len(dict.fromkeys(texts)) > MOST_SPLITS:
        raise Misuse(f"--split: {len(texts)} of them; give at most {MOST_SPLITS}")
    trace = _trace(options)
    block = roofline.kv_bytes_per_token * trace.trace_block
    first, last = (
        None if text is None else parse_blocks(option, text, block)
        for option, text in (("--from", options["first"]), ("--to", options["last"]))
    )
    if first is not None and last is not None and first >= last:
        raise Misuse(f"--from {options['first']}: not below --to {options['last']}; swap them")
    splits = tuple(
        SplitText.parse(text, block) for text in dict.fromkeys(texts) if text.lower() != "none"
    )
    return Plan(
        trace=trace,
        roofline=roofline,
        preset=options["preset"].lower(),
        block_bytes=block,
        device_blocks=roofline.device_blocks(trace.trace_block),
        sizes=_sizes(options["sizes"], block),
        first=first,
        last=last,
        points=options["points"],
        orders=tuple(
            order
            for order in get_args(Eviction)
            if order in options["policy"] and order != "recency"
        ),
        optimum="optimum" in options["policy"],
        splits=splits if texts else None,
        model_sizes=tuple(
            sorted({parse_blocks("--model-size", text, block) for text in options["model_size"]})
        ),
        model_requests=_modelled(options, len(trace)),
        sample=options["sample"],
        seed=options["seed"],
    )


def _check(options: Options) -> None:
    check_source(options)
    if options["sizes"] is not None and (options["first"] or options["last"]):
        raise Misuse("--sizes says them all: leave --from and --to out")
    sample = options["sample"]
    if sample is not None and sample & (sample - 1):
        raise Misuse(f"--sample {sample}: must be a power of two, like 8, or 1 for all blocks")


def _sizes(text: str | None, block_bytes: int) -> tuple[int, ...]:
    if text is None:
        return ()
    parts = [part for part in text.split(",") if part.strip()]
    if not parts:
        raise Misuse(f"--sizes {text!r}: no size; give some, like 10GiB,20GiB")
    if len(parts) > MOST_POINTS:
        raise Misuse(f"--sizes: {len(parts)} of them; give at most {MOST_POINTS}")
    return tuple(sorted({parse_blocks("--sizes", part, block_bytes) for part in parts}))


def _modelled(options: Options, requests: int) -> int:
    given = options["model_requests"]
    if given is not None:
        return min(given, requests)
    if options["model_size"]:
        return min(_QUICK, requests)
    return requests if requests <= _QUICK else 0


def _trace(options: Options) -> Trace:
    trace, path = trace_of(options), options["trace"]
    if path is not None:
        if trace.hits_unknown:
            raise Misuse(
                f"{path}: it does not tell what a cache would find: {trace.hits_unknown}; give a "
                "trace of prompts, from `blockyard trace from`"
            )
        _check_memory(path, trace)
    return trace


def _check_memory(path: Path, trace: Trace) -> None:
    """Checks that one pass over the trace fits into memory, beside what the trace itself takes."""
    needed, free = _USE_BYTES * len(trace.ids), free_memory()
    if free is not None and needed > free:
        raise Misuse(
            f"{path}: its {len(trace.ids):,} uses of blocks need {size(needed)} at once, and this "
            f"machine has {size(free)} left; give --requests for the first of its requests"
        )
