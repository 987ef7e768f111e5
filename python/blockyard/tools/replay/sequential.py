"""One request after another through the cache, which shows the worth of capacity and policy alone.

Only full blocks of prompts count, and answers leave none. A request ends before the next one
begins, and its own path is pinned meanwhile. A hit is the longest prefix in the cache.
"""

import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from blockyard._core import Misuse, Plan
from blockyard.shared.validate import one_of
from blockyard.tools.replay.spec import Policy, WritePolicy
from blockyard.tools.replay.trace import Trace
from blockyard.yard.cache import KVCache

__all__ = ["Sequential", "sequential"]

_OFTEN: Final = 100
"""Requests between two reports of progress."""


@dataclass(frozen=True, slots=True, eq=False)
class Sequential:
    """The figures, as far as the trace was served."""

    policy: Policy
    write: WritePolicy
    device_blocks: int
    host_blocks: int
    block_size: int
    """Tokens per block: the trace's."""
    requests: int
    """Requests served."""
    requests_in_trace: int
    tokens: int
    """Tokens of the prompts served, with those in no full block."""
    hits: NDArray[np.int64]
    """Blocks that each request found on the device, the host and the third tier, shape
    (requests, 3)."""
    blocks_down: int
    """Blocks copied from the device to the host."""
    blocks_up: int
    """Blocks copied from the host to the device."""
    third_down: int
    """Blocks copied to the third tier."""
    third_up: int
    """Blocks copied from the third tier to the device."""
    seconds: float
    """CPU time in seconds."""
    audit: str
    """The first law found broken; "ok", or "none" where no cache was used."""
    interrupted: bool
    """Whether Ctrl-C ended it early."""

    @property
    def hit_ratio(self) -> float:
        """The share of the prompts' tokens that was found."""
        return sum(self.hit_ratio_by_tier.values()) + self.third_hit_ratio

    @property
    def third_hit_ratio(self) -> float:
        """The share that was found on the third tier."""
        return float(self.hits[:, 2].sum()) * self.block_size / max(self.tokens, 1)

    @property
    def hit_ratio_by_tier(self) -> dict[str, float]:
        """The same for "device" and "host"."""
        device, host, _ = (self.hits.sum(0) * self.block_size / max(self.tokens, 1)).tolist()
        return {"device": device, "host": host}


def sequential(
    trace: Trace,
    *,
    device_blocks: int,
    host_blocks: int = 0,
    third_blocks: int = 0,
    policy: Policy = "recency",
    write: WritePolicy = "on-evict",
    progress: Callable[[int], object] | None = None,
) -> Sequential:
    """Serves a trace's requests one at a time, in the order of the file.

    Of a prompt larger than the device, only the part that fits is kept.

    Args:
        trace: The requests; their ids are the blocks.
        device_blocks: Blocks that the device holds.
        host_blocks: Blocks that the host holds; 0 for none.
        third_blocks: Blocks that a tier below the host holds; 0 for none. What is about to be
            evicted from the host is copied there, under every policy.
        policy: "recency" and "heap" evict the least recently used leaf; "optimum" evicts the leaf
            whose next use is last, a bound that knows the future.
        write: "on-evict" copies down what is about to be evicted; "through" copies everything;
            "second-touch" copies what is about to be evicted and was used before.
        progress: Called now and then with the number of requests served.

    Raises:
        Misuse: A value is out of range, or the optimum has two tiers.
    """
    for name, value, least in (
        ("device_blocks", device_blocks, 1),
        ("host_blocks", host_blocks, 0),
        ("third_blocks", third_blocks, 0),
    ):
        if value < least:
            raise Misuse(f"{name} = {value}: must be an integer >= {least}")
    for name, word, known in (("policy", policy, Policy), ("write", write, WritePolicy)):
        one_of(name, word, get_args(known))
    for name, value in (("host_blocks", host_blocks), ("third_blocks", third_blocks)):
        if policy == "optimum" and value:
            raise Misuse(f"{name} = {value}: must be 0, as the optimum knows one tier")
    full = np.minimum(trace.input_length // trace.trace_block, np.diff(trace.offsets))
    paths = np.stack((trace.offsets[:-1], trace.offsets[:-1] + np.minimum(full, device_blocks)), 1)
    server: _Server = (
        _Optimum(trace.ids, paths, device_blocks)
        if policy == "optimum"
        else _Yard(trace, (device_blocks, host_blocks, third_blocks), policy, write)
    )
    hits = np.zeros((len(trace), 3), np.int64)
    served = 0
    interrupted = False
    start = time.thread_time()
    try:
        for request, (first, end) in enumerate(paths.tolist()):
            if first < end:
                hits[request] = server.serve(first, end)
            served = request + 1
            if progress is not None and served % _OFTEN == 0:
                progress(served)
    except KeyboardInterrupt:
        interrupted = True
    seconds = time.thread_time() - start
    return Sequential(
        policy=policy,
        write=write,
        device_blocks=device_blocks,
        host_blocks=host_blocks,
        block_size=trace.trace_block,
        requests=served,
        requests_in_trace=len(trace),
        tokens=int(trace.input_length[:served].sum()),
        hits=hits[:served],
        blocks_down=server.down,
        blocks_up=server.up,
        third_down=server.third_down,
        third_up=server.third_up,
        seconds=seconds,
        audit=server.audit(),
        interrupted=interrupted,
    )


class _Server(Protocol):
    down: int
    up: int
    third_down: int
    third_up: int

    def serve(self, first: int, end: int) -> tuple[int, int, int]: ...
    def audit(self) -> str: ...


class _Yard:
    """The real cache, with trace ids widened to 32 bytes as keys."""

    def __init__(
        self,
        trace: Trace,
        sizes: tuple[int, int, int],
        eviction: Literal["recency", "heap"],
        write: WritePolicy,
    ) -> None:
        wide = np.zeros((len(trace.ids), 4), "<i8")
        wide[:, 0] = trace.ids
        self.keys = wide.view(np.uint8)
        self.block = trace.trace_block
        device, host, third = sizes
        below = host > 0 or third > 0
        self.through = write == "through" and below
        self.ahead = write != "through" and below
        self.lowers = host > 0 and third > 0
        self.down = self.up = self.third_down = self.third_up = 0
        # One more block: a prompt that is found whole computes its last token again, in its own
        # block; so here each prompt ends one token after its last full block.
        self.cache = KVCache(
            block_size=self.block,
            device=device + 1,
            host=host,
            disk=third,
            null_slots=0,
            eviction=eviction,
            write=write,
            ghosts=len(trace.ids) if write == "second-touch" else None,
        )

    def serve(self, first: int, end: int) -> tuple[int, int, int]:
        cache, blocks = self.cache, end - first
        keys = cache.ready_keys(self.keys[first:end].reshape(-1), blocks * self.block + 1)
        if self.ahead:
            found = cache.probe(keys).device
            short = blocks + 1 - found - cache.stats()["device_free"]
            if short > 0:
                # The blocks found may be first among the victims until `begin` pins them.
                self._make_room_on_host(short + found)
                self._copy_down(cache.demote(short + found))
        lease = cache.begin(keys)
        device, host, third = lease.hits
        if lease.plans:
            self.up += host
            self.third_up += third
            cache.commit(lease.plans)
        cache.seal(lease, blocks * self.block)
        if self.through:
            self._make_room_on_host(blocks)
            self._copy_down(cache.demote(blocks, of=lease))
        cache.finish(lease)
        return device, host, third

    def _make_room_on_host(self, blocks: int) -> None:
        """Copies down what so many blocks would evict from the host."""
        if self.lowers:
            short = blocks - self.cache.room("host").free
            if short > 0:
                self._copy_down(self.cache.demote(short, tier="host"))

    def audit(self) -> str:
        violation = self.cache.audit()
        return "ok" if violation is None else f"{violation.law}: {violation.detail}"

    def _copy_down(self, plan: Plan | None) -> None:
        if plan is not None:
            if plan.destination_tier == "disk":
                self.third_down += len(plan)
            else:
                self.down += len(plan)
            self.cache.commit(plan)


class _Optimum:
    """Evicts the block whose next use is last; among equals, the deepest first.

    A request that uses a block uses its parent too, so this order evicts leaves only.
    """

    down = up = third_down = third_up = 0

    def __init__(self, ids: NDArray[np.int64], paths: NDArray[np.int64], device: int) -> None:
        self.device = device
        self.ids = ids.tolist()
        # For each place in `ids`, the next request that holds the same id.
        lengths = paths[:, 1] - paths[:, 0]
        depth = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        places = np.repeat(paths[:, 0], lengths) + depth
        order = places[np.argsort(ids[places], kind="stable")]
        request = np.zeros(len(ids), np.int64)
        request[places] = np.repeat(np.arange(len(paths)), lengths)
        following = np.full(len(ids), len(paths))
        again = ids[order[1:]] == ids[order[:-1]]
        following[order[:-1][again]] = request[order[1:][again]]
        self.following = following.tolist()
        self.due: dict[int, int] = {}
        self.queue: list[tuple[int, int, int]] = []

    def serve(self, first: int, end: int) -> tuple[int, int, int]:
        path, following = self.ids[first:end], self.following[first:end]
        hits = sum(block in self.due for block in path)
        # From here on the path's entries in the queue are stale, so the path is pinned.
        self.due.update(zip(path, following, strict=True))
        while len(self.due) > self.device:
            due, _, block = heapq.heappop(self.queue)
            if self.due.get(block) == -due:
                del self.due[block]
        for depth, (block, due) in enumerate(zip(path, following, strict=True)):
            heapq.heappush(self.queue, (-due, -depth, block))
        return hits, 0, 0

    def audit(self) -> str:
        return "none"
