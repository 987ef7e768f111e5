"""The options of the command line, checked and turned into a spec for each run."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from blockyard._core import Misuse, Unavailable
from blockyard.crane.devices import DeviceName, device
from blockyard.scheduling.headroom import Role, default_headroom
from blockyard.shared.sizes import parse_blocks
from blockyard.tools.replay.hardware import Roofline, roofline_of
from blockyard.tools.replay.hints import Hints
from blockyard.tools.replay.memory_limits import check_memory
from blockyard.tools.replay.routing import RouterName, faster, routed
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

__all__ = ["ReplayOptions", "Replays", "resolve"]

_Cache: TypeAlias = tuple[Policy, HostCopies | None, WritePolicy, Hints | None, Owner]


class ReplayOptions(Source):
    """The options of `blockyard replay`; None where one was left out."""

    save_trace: Path | None
    device: tuple[str, ...]
    host: tuple[str, ...]
    disk: tuple[str, ...]
    disk_gbps: float
    remote: tuple[str, ...]
    store_latency: float
    store_bandwidth: float
    store_loss: float
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
    verify: DeviceName | None
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
    """One for each combination of sizes and policies, in the order given."""
    router: RouterName | None
    """What sends requests to replicas; None where there is one engine."""


def resolve(options: ReplayOptions) -> Replays:
    """Returns the trace to replay.

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


def _check(options: ReplayOptions) -> None:
    """Checks what needs neither the trace nor the preset."""
    check_source(options)
    if options["router"] is not None and options["replicas"] == 1:
        raise Misuse(f"--router {options['router']} needs engines to choose from: give --replicas")
    for text in options["hints"]:
        Hints.parse(text)
    _check_store(options)
    if options["model"] == "sequential":
        _check_sequential(options)
    else:
        _check_virtual(options)
    if options["verify"] is not None:
        _check_memory_of_bytes(options["verify"])


def _check_store(options: ReplayOptions) -> None:
    latency, loss = options["store_latency"], options["store_loss"]
    if not (math.isfinite(latency) and latency >= 0):
        raise Misuse(f"--store-latency {latency:g}: must be a number of seconds >= 0")
    if not 0 <= loss <= 1:
        raise Misuse(f"--store-loss {loss:g}: must be a share from 0 to 1")
    if loss and not _given(options["remote"]):
        raise Misuse(f"--store-loss {loss:g} needs a store: give --remote")
    if options["verify"] is not None and _given(options["remote"]):
        raise Misuse("--verify: the modelled store has no bytes; leave out --remote or --verify")


def _given(sizes: Sequence[str]) -> bool:
    """Returns whether one of these sizes is not 0."""
    return any(size.strip("0 ") for size in sizes)


def _check_memory_of_bytes(name: DeviceName) -> None:
    try:
        device(name)
    except Unavailable as error:
        raise Misuse(f"--verify {name}: {error}") from error


def _check_virtual(options: ReplayOptions) -> None:
    if "optimum" in options["policy"]:
        raise Misuse("--policy optimum needs the trace's future: give --model sequential")
    for option, given in (("--hints", options["hints"]), ("--owner", options["owner"])):
        if given:
            raise Misuse(f"{option} needs --model sequential")


def _check_sequential(options: ReplayOptions) -> None:
    idle = {
        "--verify": options["verify"],
        "--prefetch": options["prefetch"],
        "--ranks": (options["ranks"] or 1) > 1,
        "--role": options["role"] != "mixed",
        "--preempt-mode": options["preempt_mode"],
        "--headroom": options["headroom"],
        "--victims": options["victims"] != "newest",
        "--remote": _given(options["remote"]),
    }
    for option, given in idle.items():
        if given:
            raise Misuse(f"{option} is for --model virtual: leave it out with --model sequential")
    for option, sizes in (("--host", options["host"]), ("--disk", options["disk"])):
        if "optimum" in options["policy"] and _given(sizes):
            raise Misuse(f"--policy optimum is for one tier: leave {option} out")


def _specs(options: ReplayOptions, roofline: Roofline, trace: Trace) -> list[RunSpec]:
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
        max_num_batched_tokens=options["max_num_batched_tokens"],
        max_num_seqs=options["max_num_seqs"],
        prefetch=options["prefetch"],
        gate=options["loads"] == "gated",
        disk_bytes_per_second=_speed("--disk-gbps", options["disk_gbps"]),
        store_latency=options["store_latency"],
        store_bytes_per_second=_speed("--store-bandwidth", options["store_bandwidth"]),
        store_loss=options["store_loss"],
    )
    return [spec for sized in _sized(options, first, trace) for spec in _of_sizes(options, sized)]


def _sized(options: ReplayOptions, first: RunSpec, trace: Trace) -> Iterator[RunSpec]:
    """Yields the spec with each combination of sizes, which this machine has memory for."""
    for above, host, disk, remote in product(*_sizes(options, first, trace)):
        spec = replace(
            first,
            device_blocks=above,
            host_blocks=host,
            disk_blocks=disk,
            remote_blocks=remote,
        )
        slowest = max(count for count in spec.block_costs if count is not None)
        if slowest >= 2**63:
            raise Misuse(
                f"--set: with these figures a block takes {slowest / 1e9:.3g} s to load or "
                "compute; give faster ones"
            )
        check_memory(spec)
        yield spec


def _of_sizes(options: ReplayOptions, sized: RunSpec) -> Iterator[RunSpec]:
    """Yields a spec for each combination of policies."""
    host = sized.host_blocks
    below = host or sized.disk_blocks or sized.remote_blocks
    modes = dict.fromkeys(options["preempt_mode"]) or (["park"] if below else ["recompute"])
    if not below and options["preempt_mode"] and list(modes) != ["recompute"]:
        raise Misuse(f"--preempt-mode {next(iter(modes))} needs a host: give --host, or recompute")
    for (policy, copies, write_policy, hints, owner), mode, headroom in product(
        _caches(options, host=host, below=below),
        modes,
        dict.fromkeys(options["headroom"]) or [_default_headroom(options["role"])],
    ):
        yield replace(
            sized,
            policy=policy,
            host_copies=copies,
            write_policy=write_policy,
            hints=hints,
            owner=owner,
            preempt_mode=mode,
            headroom=headroom,
        )


def _caches(options: ReplayOptions, *, host: int, below: int) -> list[_Cache]:
    """Returns the combinations of cache options to compare, each once."""
    if options["host_copies"] and not host:
        raise Misuse("--host-copies needs a host: give --host, or leave it out")
    if "engine" in options["owner"] and not below:
        raise Misuse("--owner engine needs a host: give --host")
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


def _sizes(options: ReplayOptions, spec: RunSpec, trace: Trace) -> tuple[Sequence[int], ...]:
    """Returns the blocks of each tier to be compared, each size once."""
    above, host = 0, 0
    if not (options["device"] and options["host"]):
        if options["trace"] is None:
            above, host = tight_sizes(trace, spec.roofline, spec.block_size)
        else:
            above, host = full_sizes(spec.roofline, spec.block_size)
    if "optimum" in options["policy"]:
        host = 0
    return (
        _blocks(options, "device", spec, 1) or [above],
        _blocks(options, "host", spec, 0) or [host],
        _blocks(options, "disk", spec, 0) or [0],
        _blocks(options, "remote", spec, 0) or [0],
    )


def _blocks(
    options: ReplayOptions,
    tier: Literal["device", "host", "disk", "remote"],
    spec: RunSpec,
    least: int,
) -> list[int]:
    each = (
        parse_blocks(f"--{tier}", text, spec.block_bytes, ranks=spec.ranks, least=least)
        for text in options[tier]
    )
    return list(dict.fromkeys(each))


def _speed(option: str, gbps: float) -> float:
    """Returns a bandwidth in bytes/s."""
    if not (math.isfinite(gbps) and gbps > 0):
        raise Misuse(f"{option} {gbps:g}: must be a number of GB/s > 0")
    return gbps * 1e9
