"""What was asked for on the command line, checked and made into what the runs need."""

import math
import os
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Literal, TypedDict

from blockyard._core import Misuse, Unavailable
from blockyard.crane.devices import DeviceName, device
from blockyard.scheduling.headroom import Role, default_headroom
from blockyard.tools.replay.hardware import Roofline, preset
from blockyard.tools.replay.memory import scaled
from blockyard.tools.replay.setup import (
    HEADROOMS,
    HeadroomName,
    Setup,
    VictimsName,
    roomy,
    squeezed,
)
from blockyard.tools.replay.terminal import size
from blockyard.tools.replay.trace import Trace, read
from blockyard.tools.replay.workload import WORKLOADS, WorkloadName, generate
from blockyard.yard.parking import PreemptMode

__all__ = ["MOST_BLOCKS", "Asked", "Policy", "WritePolicy", "settle"]

_BOOK_BYTES = 64
"""Of memory for each block, without its bytes; at least."""
MOST_BLOCKS = 10**9

Policy = Literal["recency", "heap", "optimum"]
WritePolicy = Literal["on-evict", "through", "second-touch"]


class Asked(TypedDict):
    """The options of `blockyard replay`; None where one was left out."""

    trace: Path | None
    trace_block: int | None
    requests: int | None
    rate: float | None
    workload: WorkloadName | None
    seed: int
    save_trace: Path | None
    device_blocks: int | None
    host_blocks: int | None
    device_gib: float | None
    host_gib: float | None
    block_size: int | None
    policy: tuple[Policy, ...]
    write_policy: tuple[WritePolicy, ...]
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
    quiet: bool


def settle(asked: Asked) -> tuple[Trace, list[Setup]]:
    """What is replayed, and one setup for each combination of policies, in the order asked for.

    Raises:
        Misuse: What was asked for cannot be had.
    """
    _check(asked)
    roofline = _roofline(asked)
    trace = _trace(asked)
    return trace, _setups(asked, roofline, trace)


def _check(asked: Asked) -> None:
    """What needs neither file nor preset to be found wrong."""
    for tier in ("device", "host"):
        blocks, gib = asked[f"{tier}_blocks"], asked[f"{tier}_gib"]  # type: ignore[literal-required]
        if blocks is not None and gib is not None:
            raise Misuse(f"--{tier}-blocks and --{tier}-gib: give one of them")
    _check_source(asked)
    if asked["model"] == "sequential":
        _check_sequential(asked)
    elif "optimum" in asked["policy"]:
        raise Misuse("--policy optimum knows the future: give --model sequential with it")
    _check_device(asked)


def _check_device(asked: Asked) -> None:
    name = asked["device"]
    if name != "memory" and not asked["verify"]:
        raise Misuse(f"--device {name} is where --verify moves bytes: give that, too")
    try:
        device(name)
    except Unavailable as error:
        raise Misuse(f"--device {name}: {error}") from error


def _check_source(asked: Asked) -> None:
    if asked["trace"] is None and asked["trace_block"] is not None:
        raise Misuse("--trace-block is for a TRACE; a generated workload has 16 tokens per id")
    for option, value in (("--rate", asked["rate"]), ("--workload", asked["workload"])):
        if asked["trace"] is not None and value is not None:
            raise Misuse(f"{option} is for a generated workload; a TRACE has its requests")


def _check_sequential(asked: Asked) -> None:
    idle = {
        "--verify": asked["verify"],
        "--device": asked["device"] != "memory",
        "--prefetch": asked["prefetch"],
        "--ranks": (asked["ranks"] or 1) > 1,
        "--role": asked["role"] != "mixed",
        "--preempt-mode": asked["preempt_mode"],
        "--headroom": asked["headroom"],
        "--victims": asked["victims"] != "newest",
    }
    for option, given in idle.items():
        if given:
            raise Misuse(f"{option} is for --model virtual; with sequential leave it out")
    host = asked["host_blocks"] or asked["host_gib"]
    if "optimum" in asked["policy"] and host:
        raise Misuse("--policy optimum knows one tier: give --host-blocks 0, or leave it out")


def _roofline(asked: Asked) -> Roofline:
    figures = {}
    for figure in asked["figures"]:
        name, equals, value = figure.partition("=")
        if not equals:
            raise Misuse(f"--set {figure}: give FIGURE=VALUE, like hbm_share=0.8")
        if name == "ranks":
            raise Misuse(f"--set {figure}: give --ranks {value}")
        figures[name] = value
    if asked["ranks"] is not None:
        figures["ranks"] = str(asked["ranks"])
    roofline = preset(asked["preset"]).with_(figures)
    ranks, model = roofline.ranks, roofline.model
    # A KV head is nowhere split, but may stand on several ranks.
    shared = model.kv_heads % ranks == 0 or ranks % model.kv_heads == 0
    if model.heads % ranks or not shared:
        raise Misuse(
            f"--ranks {ranks}: that does not divide the {model.heads} heads and {model.kv_heads} "
            f"KV heads of {model.name}; give a divisor of both"
        )
    if not roofline.kv_bytes_per_token:
        raise Misuse(f"--set kv_bytes={model.kv_bytes:g}: then KV takes no memory; give more")
    return roofline


def _trace(asked: Asked) -> Trace:
    if asked["trace"] is not None:
        return read(asked["trace"], trace_block=asked["trace_block"], requests=asked["requests"])
    rate = 4.0 if asked["rate"] is None else asked["rate"]
    workload = WORKLOADS[asked["workload"] or "mixed"]
    return generate(asked["seed"], requests=asked["requests"] or 1000, rate=rate, workload=workload)


def _setups(asked: Asked, roofline: Roofline, trace: Trace) -> list[Setup]:
    block_size = asked["block_size"] or 16
    if asked["model"] == "sequential":
        if asked["block_size"] not in {None, trace.trace_block}:
            raise Misuse(
                f"--block-size {block_size}: with --model sequential a block is what an id of the "
                f"trace stands for, {trace.trace_block} tokens; leave it out"
            )
        block_size = trace.trace_block
    first = Setup(
        model=asked["model"],
        preset=asked["preset"].lower(),
        roofline=roofline,
        trace_block=trace.trace_block,
        block_size=block_size,
        device_blocks=1,
        host_blocks=0,
        role=asked["role"],
        victims=asked["victims"],
        seed=asked["seed"],
        verify=asked["verify"],
        device=asked["device"],
        max_num_batched_tokens=asked["max_num_batched_tokens"],
        max_num_seqs=asked["max_num_seqs"],
        prefetch=asked["prefetch"],
        gate=asked["loads"] == "gated",
    )
    slowest = max(roofline.speeds(block_size))
    if slowest >= 2**63:
        raise Misuse(
            f"--set: by these figures a block takes {slowest / 1e9:.3g} s to load or compute; "
            "give faster ones"
        )
    blocks, host = _sizes(asked, first, trace)
    _check_memory(blocks, host, first)
    modes = dict.fromkeys(asked["preempt_mode"]) or (["park"] if host else ["recompute"])
    if not host and asked["preempt_mode"] and list(modes) != ["recompute"]:
        raise Misuse(f"--preempt-mode {next(iter(modes))} needs a host: give one, or leave it out")
    return [
        replace(
            first,
            device_blocks=blocks,
            host_blocks=host,
            policy=policy,
            write_policy=write_policy,
            preempt_mode=mode,
            headroom=headroom,
        )
        for policy, write_policy, mode, headroom in product(
            dict.fromkeys(asked["policy"]),
            dict.fromkeys(asked["write_policy"]),
            modes,
            dict.fromkeys(asked["headroom"]) or [_default_headroom(asked["role"])],
        )
    ]


def _default_headroom(role: Role) -> HeadroomName:
    policy = type(default_headroom(role))
    return next(name for name, one in HEADROOMS.items() if one is policy)


def _sizes(asked: Asked, setup: Setup, trace: Trace) -> tuple[int, int]:
    """Blocks of device and host."""
    blocks, host = asked["device_blocks"], asked["host_blocks"]
    if asked["device_gib"] is not None:
        blocks = _blocks("--device-gib", asked["device_gib"], setup.block_bytes)
    if asked["host_gib"] is not None:
        host = (
            _blocks("--host-gib", asked["host_gib"], setup.block_bytes) if asked["host_gib"] else 0
        )
    if blocks is None or host is None:
        if asked["trace"] is None:
            default = squeezed(trace, setup.roofline, setup.block_size)
        else:
            default = roomy(setup.roofline, setup.block_size)
        blocks = default[0] if blocks is None else blocks
        if host is None:
            host = 0 if "optimum" in asked["policy"] else default[1]
    return blocks, host


def _blocks(option: str, gib: float, block_bytes: int) -> int:
    if not (math.isfinite(gib) and gib > 0):
        raise Misuse(f"{option} {gib:g}: give GiB, more than 0")
    blocks = gib * 2**30 / block_bytes
    if blocks < 1:
        raise Misuse(f"{option} {gib:g}: that is less than one block of {size(block_bytes)}")
    if blocks > MOST_BLOCKS:
        raise Misuse(f"{option} {gib:g}: that is more than {MOST_BLOCKS:,} blocks; give less")
    return int(blocks)


def _check_memory(blocks: int, host: int, setup: Setup) -> None:
    """Whether this machine can hold what is to be kept of so many blocks."""
    needed = (blocks + host) * _BOOK_BYTES
    if setup.verify:
        each = setup.ranks * scaled(setup.block_size, setup.ranks).block_bytes
        # A GPU says itself what it can hold.
        needed += (host + (blocks if setup.device == "memory" else 0)) * each
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > there:
        raise Misuse(
            f"{blocks + host:,} blocks: to replay that many takes {size(needed)} of this "
            f"machine's {size(there)}; give fewer with --device-blocks and --host-blocks"
            + (", or leave out --verify" if setup.verify else "")
        )
