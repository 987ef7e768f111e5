"""The options of the command line, checked and turned into a spec for each run."""

import math
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from blockyard._core import Misuse, Unavailable
from blockyard.crane.devices import DeviceName, device
from blockyard.scheduling.headroom import Role, default_headroom
from blockyard.tools.replay.hardware import Roofline, roofline_of
from blockyard.tools.replay.hints import Hints
from blockyard.tools.replay.routing import RouterName, faster, routed
from blockyard.tools.replay.sizes import blocks_in, check_memory
from blockyard.tools.replay.spec import (
    HEADROOMS,
    HeadroomName,
    HostCopies,
    Owner,
    Policy,
    RunSpec,
    VictimsName,
    WritePolicy,
    full_sizes,
    tight_sizes,
)
from blockyard.tools.traces.source import Source, check_source, trace_of
from blockyard.tools.traces.trace import Trace
from blockyard.yard.parking import PreemptMode

__all__ = ["Options", "Replays", "resolve"]

_Cache: TypeAlias = tuple[Policy, HostCopies | None, WritePolicy, Hints | None, Owner]


class Options(Source):
    """The options of `blockyard replay`; None where one was left out."""

    save_trace: Path | None
    device_blocks: int | None
    host_blocks: int | None
    device_gib: float | None
    host_gib: float | None
    third_gib: float | None
    third_gbps: float
    block_size: int | None
    policy: tuple[Policy, ...]
    write_policy: tuple[WritePolicy, ...]
    host_copies: tuple[HostCopies, ...]
    hints: tuple[str, ...]
    owner: tuple[Owner, ...]
    role: Role
    preempt_mode: tuple[PreemptMode, ...]
    headroom: tuple[HeadroomName, ...]
    victims: VictimsName
    loads: Literal["gated", "all"]
    model: Literal["virtual", "sequential"]
    preset: str
    figures: tuple[str, ...]
    ranks: int | None
    max_num_batched_tokens: int
    max_num_seqs: int
    prefetch: int
    verify: bool
    device: DeviceName
    json: str | None
    report: Path | None
    speed: float
    replicas: int
    router: RouterName | None
    jobs: int | None
    quiet: bool


class Replays(NamedTuple):
    """All that is to be replayed."""

    trace: Trace
    """The requests, when they arrive here."""
    parts: list[Trace]
    """Those of each replica."""
    specs: list[RunSpec]
    """One for each combination of policies, in the order given."""
    router: RouterName | None
    """What sends requests to replicas; None where there is one engine."""


def resolve(options: Options) -> Replays:
    """Returns what is to be replayed.

    Raises:
        Misuse: An option is wrong, or does not go with another.
    """
    _check(options)
    roofline = roofline_of(options["preset"], options["figures"], options["ranks"])
    trace = faster(trace_of(options), options["speed"])
    specs = _specs(options, roofline, trace)
    router = (options["router"] or "prefix") if options["replicas"] > 1 else None
    parts = routed(trace, options["replicas"], router or "prefix", options["seed"])
    return Replays(trace, parts, specs, router)


def _check(options: Options) -> None:
    """Checks what needs neither the trace nor the preset."""
    for tier in ("device", "host"):
        blocks, gib = options[f"{tier}_blocks"], options[f"{tier}_gib"]  # type: ignore[literal-required]
        if blocks is not None and gib is not None:
            raise Misuse(f"--{tier}-blocks and --{tier}-gib exclude each other: give one")
    check_source(options)
    if options["router"] is not None and options["replicas"] == 1:
        raise Misuse(f"--router {options['router']} needs engines to choose from: give --replicas")
    for text in options["hints"]:
        Hints.parse(text)
    if options["model"] == "sequential":
        _check_sequential(options)
    else:
        _check_virtual(options)
    _check_device(options)


def _check_device(options: Options) -> None:
    name = options["device"]
    if name != "memory" and not options["verify"]:
        raise Misuse(f"--device {name} is where --verify moves bytes: give --verify, too")
    try:
        device(name)
    except Unavailable as error:
        raise Misuse(f"--device {name}: {error}") from error


def _check_virtual(options: Options) -> None:
    if "optimum" in options["policy"]:
        raise Misuse("--policy optimum knows the future: it needs --model sequential")
    for option, given in (("--hints", options["hints"]), ("--owner", options["owner"])):
        if given:
            raise Misuse(f"{option} needs --model sequential")


def _check_sequential(options: Options) -> None:
    idle = {
        "--verify": options["verify"],
        "--device": options["device"] != "memory",
        "--prefetch": options["prefetch"],
        "--ranks": (options["ranks"] or 1) > 1,
        "--role": options["role"] != "mixed",
        "--preempt-mode": options["preempt_mode"],
        "--headroom": options["headroom"],
        "--victims": options["victims"] != "newest",
    }
    for option, given in idle.items():
        if given:
            raise Misuse(f"{option} is for --model virtual: leave it out with --model sequential")
    host = options["host_blocks"] or options["host_gib"]
    if "optimum" in options["policy"] and host:
        raise Misuse("--policy optimum knows one tier: give --host-blocks 0, or leave the host out")
    if "optimum" in options["policy"] and options["third_gib"]:
        raise Misuse("--policy optimum knows one tier: leave --third-gib out")


def _specs(options: Options, roofline: Roofline, trace: Trace) -> list[RunSpec]:
    block_size = options["block_size"] or 16
    if options["model"] == "sequential":
        if options["block_size"] not in {None, trace.trace_block}:
            raise Misuse(
                f"--block-size {block_size}: with --model sequential a block has as many tokens as "
                f"an id of the trace, {trace.trace_block}; leave it out"
            )
        block_size = trace.trace_block
    first = RunSpec(
        model=options["model"],
        preset=options["preset"].lower(),
        roofline=roofline,
        trace_block=trace.trace_block,
        block_size=block_size,
        device_blocks=1,
        host_blocks=0,
        role=options["role"],
        victims=options["victims"],
        seed=options["seed"],
        verify=options["verify"],
        device=options["device"],
        max_num_batched_tokens=options["max_num_batched_tokens"],
        max_num_seqs=options["max_num_seqs"],
        prefetch=options["prefetch"],
        gate=options["loads"] == "gated",
        third_bytes_per_second=_third_speed(options),
    )
    third = _third_size(options, first)
    first = replace(first, third_blocks=third)
    slowest = max(count for count in first.speeds if count is not None)
    if slowest >= 2**63:
        raise Misuse(
            f"--set: with these figures a block takes {slowest / 1e9:.3g} s to load or compute; "
            "give faster ones"
        )
    blocks, host = _sizes(options, first, trace)
    first = replace(first, device_blocks=blocks, host_blocks=host)
    check_memory(first)
    below = host or third
    modes = dict.fromkeys(options["preempt_mode"]) or (["park"] if below else ["recompute"])
    if not below and options["preempt_mode"] and list(modes) != ["recompute"]:
        raise Misuse(
            f"--preempt-mode {next(iter(modes))} needs a host: give --host-blocks, or recompute"
        )
    return [
        replace(
            first,
            policy=policy,
            host_copies=copies,
            write_policy=write_policy,
            hints=hints,
            owner=owner,
            preempt_mode=mode,
            headroom=headroom,
        )
        for (policy, copies, write_policy, hints, owner), mode, headroom in product(
            _caches(options, host=host, below=below),
            modes,
            dict.fromkeys(options["headroom"]) or [_default_headroom(options["role"])],
        )
    ]


def _caches(options: Options, *, host: int, below: int) -> list[_Cache]:
    """Returns what is to be compared of the cache, each combination once."""
    if options["host_copies"] and not host:
        raise Misuse("--host-copies needs a host: give --host-blocks, or leave it out")
    if "engine" in options["owner"] and not below:
        raise Misuse("--owner engine needs a host: give --host-blocks")
    owners: tuple[Owner, ...] = options["owner"] or ("cache",)
    combinations = product(
        options["policy"],
        options["host_copies"] or [None],
        options["write_policy"],
        map(Hints.parse, options["hints"] or ["none"]),
        owners,
    )
    # The optimum takes no hints.
    each: list[_Cache] = [
        (policy, copies, write, None if policy == "optimum" else hints, owner)
        for policy, copies, write, hints, owner in combinations
    ]
    return list(dict.fromkeys(each))


def _default_headroom(role: Role) -> HeadroomName:
    policy = type(default_headroom(role))
    return next(name for name, one in HEADROOMS.items() if one is policy)


def _sizes(options: Options, spec: RunSpec, trace: Trace) -> tuple[int, int]:
    """Returns the blocks of device and host."""
    blocks, host = options["device_blocks"], options["host_blocks"]
    if options["device_gib"] is not None:
        blocks = blocks_in("--device-gib", options["device_gib"], spec.block_bytes)
    if options["host_gib"] is not None:
        host = (
            blocks_in("--host-gib", options["host_gib"], spec.block_bytes)
            if options["host_gib"]
            else 0
        )
    if blocks is None or host is None:
        if options["trace"] is None:
            default = tight_sizes(trace, spec.roofline, spec.block_size)
        else:
            default = full_sizes(spec.roofline, spec.block_size)
        blocks = default[0] if blocks is None else blocks
        if host is None:
            host = 0 if "optimum" in options["policy"] else default[1]
    return blocks, host


def _third_size(options: Options, spec: RunSpec) -> int:
    """Returns the blocks of the tier below the host."""
    gib = options["third_gib"]
    return blocks_in("--third-gib", gib, spec.block_bytes) if gib else 0


def _third_speed(options: Options) -> float:
    """Returns its bandwidth in bytes/s."""
    gbps = options["third_gbps"]
    if not (math.isfinite(gbps) and gbps > 0):
        raise Misuse(f"--third-gbps {gbps:g}: must be a number of GB/s > 0")
    return gbps * 1e9
