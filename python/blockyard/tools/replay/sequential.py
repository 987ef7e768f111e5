"""One request after another through the cache, which shows the worth of capacity and policy alone.

Only full blocks of prompts count, and answers leave none. A request ends before the next one
begins, and its own path is pinned meanwhile. A hit is the longest prefix in the cache.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from blockyard._core import Misuse
from blockyard.shared.validate import one_of
from blockyard.tools.replay.device_owner import CacheOwned, EngineOwned, Setup
from blockyard.tools.replay.hints import Hints
from blockyard.tools.replay.optimum import Optimum
from blockyard.tools.replay.spec import HostCopies, Owner, Policy, WritePolicy
from blockyard.tools.traces.future import full_blocks
from blockyard.tools.traces.trace import Trace

__all__ = ["Sequential", "sequential"]

_OFTEN: Final = 100
"""Requests between two reports of progress."""


@dataclass(frozen=True, slots=True, eq=False)
class Sequential:
    """The figures, as far as the trace was served."""

    block_size: int
    """Tokens per block: the trace's."""
    requests: int
    """Requests served."""
    tokens: int
    """Tokens of the prompts served, with those in no full block."""
    hits: NDArray[np.int64]
    """Blocks that each request found on the device, the host and the disk, shape
    (requests, 3)."""
    blocks_down: int
    """Blocks copied from the device to the host."""
    blocks_up: int
    """Blocks copied from the host to the device."""
    disk_down: int
    """Blocks copied to the disk."""
    disk_up: int
    """Blocks copied from the disk to the device."""
    seconds: float
    """CPU time in seconds."""
    audit: str
    """The first law found broken; "ok", or "none" where no cache was used."""
    interrupted: bool
    """Whether Ctrl-C ended it early."""

    @property
    def hit_ratio(self) -> float:
        """The share of the prompts' tokens that was found."""
        return sum(self.hit_ratio_by_tier.values()) + self.disk_hit_ratio

    @property
    def disk_hit_ratio(self) -> float:
        """The share that was found on the disk."""
        return float(self.hits[:, 2].sum()) * self.block_size / max(self.tokens, 1)

    @property
    def hit_ratio_by_tier(self) -> dict[str, float]:
        """The same for "device" and "host"."""
        device, host, *_ = (self.hits.sum(0) * self.block_size / max(self.tokens, 1)).tolist()
        return {"device": device, "host": host}


def sequential(  # noqa: PLR0913 - keywords
    trace: Trace,
    *,
    device_blocks: int,
    host_blocks: int = 0,
    disk_blocks: int = 0,
    policy: Policy = "recency",
    write: WritePolicy = "on-evict",
    host_copies: HostCopies | None = None,
    hints: Hints | None = None,
    seed: int = 0,
    owner: Owner = "cache",
    progress: Callable[[int], object] | None = None,
) -> Sequential:
    """Serves a trace's requests one at a time, in the order of the file.

    Of a prompt larger than the device, only the part that fits is kept.

    Args:
        trace: The requests; their ids are the blocks.
        device_blocks: Blocks that the device holds.
        host_blocks: Blocks that the host holds; 0 for none.
        disk_blocks: Blocks that a tier below the host holds; 0 for none. What is about to be
            evicted from the host is copied there, under every policy.
        policy: What the cache's `eviction` may be; or "optimum", which evicts the leaf whose next
            use is last, a bound that knows the future.
        write: "on-evict" copies down what is about to be evicted; "through" copies everything;
            "second-touch" copies what is about to be evicted and was used before.
        host_copies: When copies on the host of what the device has too are evicted; None for what
            suits the policy.
        hints: What is said of a request's future when it ends; None for nothing.
        seed: Draws the errors of the hints, 0 or more.
        owner: Who gives out the device's blocks: the cache; or an engine that evicts the least
            recently used leaf, so that `policy` is that of the host, and `write` says nothing: what
            ended requests leave, and the engine's next victims, are copied down.
        progress: Called now and then with the number of requests served.

    Raises:
        Misuse: A value is out of range, the optimum has two tiers, hints or an engine, or an
            engine no host.
    """
    setup = Setup(
        device=device_blocks,
        host=host_blocks,
        disk=disk_blocks,
        # The optimum has no cache.
        eviction="recency" if policy == "optimum" else policy,
        host_copies=host_copies,
        write=write,
        hints=None,
    )
    _check(setup, policy, hints, owner)
    full = full_blocks(trace)
    paths = np.stack((trace.offsets[:-1], trace.offsets[:-1] + np.minimum(full, device_blocks)), 1)
    if hints is not None:
        setup = replace(setup, hints=hints.of(trace, seed))
    server: _Server
    if policy == "optimum":
        server = Optimum(trace.ids, paths, device_blocks)
    else:
        server = (EngineOwned if owner == "engine" else CacheOwned)(trace, setup)
    hits = np.zeros((len(trace), 3), np.int64)
    served = 0
    interrupted = False
    start = time.thread_time()
    try:
        for request, (first, end) in enumerate(paths.tolist()):
            if first < end:
                hits[request] = server.serve(request, first, end)
            served = request + 1
            if progress is not None and served % _OFTEN == 0:
                progress(served)
    except KeyboardInterrupt:
        interrupted = True
    seconds = time.thread_time() - start
    return Sequential(
        block_size=trace.trace_block,
        requests=served,
        tokens=int(trace.input_length[:served].sum()),
        hits=hits[:served],
        blocks_down=server.down,
        blocks_up=server.up,
        disk_down=server.disk_down,
        disk_up=server.disk_up,
        seconds=seconds,
        audit=server.audit(),
        interrupted=interrupted,
    )


def _check(setup: Setup, policy: Policy, hints: Hints | None, owner: Owner) -> None:
    for name, value, least in (
        ("device_blocks", setup.device, 1),
        ("host_blocks", setup.host, 0),
        ("disk_blocks", setup.disk, 0),
    ):
        if value < least:
            raise Misuse(f"{name} = {value}: must be an integer >= {least}")
    for name, word, known in (
        ("policy", policy, get_args(Policy)),
        ("write", setup.write, get_args(WritePolicy)),
        ("host_copies", setup.host_copies, (*get_args(HostCopies), None)),
        ("owner", owner, get_args(Owner)),
    ):
        one_of(name, word, known)
    if policy != "optimum":
        return
    for name, value in (("host_blocks", setup.host), ("disk_blocks", setup.disk)):
        if value:
            raise Misuse(f"{name} = {value}: must be 0, because the optimum is for one tier")
    if hints is not None or owner != "cache":
        raise Misuse("policy = 'optimum': it is for one cache, without hints and owner")


class _Server(Protocol):
    down: int
    up: int
    disk_down: int
    disk_up: int

    def serve(self, request: int, first: int, end: int) -> tuple[int, int, int]: ...
    def audit(self) -> str: ...
