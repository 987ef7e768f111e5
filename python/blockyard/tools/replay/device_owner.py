"""The real cache beneath a sequential replay: it owns the device, or an engine with an LRU does."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

import numpy as np

from blockyard._core import Keys, Misuse, Plan
from blockyard.connectors.freed_blocks import FreedBlocks
from blockyard.tools.replay.hints import Hint
from blockyard.tools.replay.spec import Eviction, HostCopies, WritePolicy
from blockyard.tools.traces.trace import Trace
from blockyard.yard.cache import KVCache

__all__ = ["CacheOwned", "EngineOwned", "Setup"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a replay asks of its cache."""

    device: int
    """Full blocks that the device holds."""
    host: int
    disk: int
    eviction: Eviction
    host_copies: HostCopies | None
    write: WritePolicy
    hints: list[Hint] | None
    """What is said when each request ends."""

    @property
    def below(self) -> bool:
        """Whether there is a tier below the device."""
        return self.host > 0 or self.disk > 0


class _Served:
    """The cache, with trace ids widened to 32 bytes as keys, and what was copied."""

    def __init__(self, trace: Trace, setup: Setup, owner: Literal["device", "engine"]) -> None:
        wide = np.zeros((len(trace.ids), 4), "<i8")
        wide[:, 0] = trace.ids
        self.bytes = wide.view(np.uint8)
        # The token behind the last full block must fill none of its own.
        self.block = max(trace.trace_block, 2)
        self.hints = setup.hints
        self.lowers = setup.host > 0 and setup.disk > 0
        self.down = self.up = self.disk_down = self.disk_up = 0
        # One more block: a prompt that is found whole computes its last token again, in its own
        # block; so here each prompt ends one token after its last full block.
        blocks = setup.device + 1
        self.cache = KVCache(
            **({"device": blocks, "null_slots": 0} if owner == "device" else {"engine": blocks}),  # type: ignore[arg-type]
            block_size=self.block,
            host=setup.host,
            disk=setup.disk,
            eviction=setup.eviction,
            host_copies=setup.host_copies,
            write=setup.write,
            ghosts=len(trace.ids) if setup.write == "second-touch" else None,
        )

    def keys(self, first: int, end: int, tokens: int) -> Keys:
        """Returns the keys of a path."""
        return self.cache.ready_keys(self.bytes[first:end].reshape(-1), tokens)

    def audit(self) -> str:
        """Says which law is broken, if any is."""
        violation = self.cache.audit()
        return "ok" if violation is None else f"{violation.law}: {violation.detail}"

    def make_room_on_host(self, blocks: int) -> None:
        """Copies down what so many blocks would evict from the host."""
        if self.lowers:
            short = blocks - self.cache.room("host").free
            if short > 0:
                self.copy_down(self.cache.demote(short, tier="host"))

    def copy_down(self, plan: Plan | None) -> None:
        """Carries out a copy to a lower tier."""
        if plan is not None:
            if plan.destination_tier == "disk":
                self.disk_down += len(plan)
            else:
                self.down += len(plan)
            self.cache.commit(plan)


class CacheOwned(_Served):
    """The cache gives out the device's blocks.

    Args:
        trace: The requests.
        setup: What is asked of the cache.
    """

    def __init__(self, trace: Trace, setup: Setup) -> None:
        super().__init__(trace, setup, "device")
        self.through = setup.write == "through" and setup.below
        self.ahead = setup.write != "through" and setup.below

    def serve(self, request: int, first: int, end: int) -> tuple[int, int, int]:
        """Serves a request, and returns its hits by tier."""
        cache, blocks = self.cache, end - first
        keys = self.keys(first, end, blocks * self.block + 1)
        if self.ahead:
            found = cache.probe(keys).device
            short = blocks + 1 - found - cache.stats()["device_free"]
            if short > 0:
                # The blocks found may be first among the victims until `begin` pins them.
                self.make_room_on_host(short + found)
                self.copy_down(cache.demote(short + found))
        lease = cache.begin(keys)
        device, host, disk, _ = lease.hits
        if lease.plans:
            self.up += host
            self.disk_up += disk
            cache.commit(lease.plans)
        cache.seal(lease, blocks * self.block)
        if self.through:
            self.make_room_on_host(blocks)
            self.copy_down(cache.demote(blocks, of=lease))
        if self.hints is None:
            cache.finish(lease)
        else:
            cache.finish(lease, **self.hints[request])
        return device, host, disk


class EngineOwned(_Served):
    """An engine gives out the device's blocks, and evicts the least recently used leaf.

    Of its hits and of what it evicts the cache hears nothing. It is told of each path in use, is
    given each request's blocks when that ends, and what the engine evicts next ahead of that.

    Args:
        trace: The requests.
        setup: What is asked of the cache.

    Raises:
        Misuse: There is no tier below the device.
    """

    def __init__(self, trace: Trace, setup: Setup) -> None:
        if not setup.below:
            raise Misuse("host_blocks = 0: an engine that owns its device needs a host below it")
        super().__init__(trace, setup, "engine")
        self.ids = trace.ids.tolist()
        self.free = list(range(setup.device))[::-1]
        self.held: OrderedDict[int, int] = OrderedDict()
        """The engine's id of each block, the next victim first: a child before its parent."""
        self.freed = FreedBlocks(setup.device + 1, self.block)

    def serve(self, request: int, first: int, end: int) -> tuple[int, int, int]:
        """Serves a request, and returns its hits by tier."""
        cache, held = self.cache, self.held
        path = self.ids[first:end]
        keys = self.keys(first, end, len(path) * self.block)
        local = sum(block in held for block in path)
        for block in path[local - 1 :: -1] if local else ():
            held.move_to_end(block)
        blocks = self._take(len(path) - local)
        found = cache.find(keys, local)
        host, disk = found.host, found.disk
        if host + disk:
            plans = cache.fetch(keys, blocks[: host + disk], local)
            if not isinstance(plans, list):
                raise RuntimeError(f"request {request}: what it needs is in the air, {plans!r}")
            cache.commit(plans)
            self.up += host
            self.disk_up += disk
        for block, own in zip(path[local:], blocks, strict=True):
            held[block] = own
        for block in reversed(path):
            held.move_to_end(block)
        cache.used([keys])
        own_ids = [held[block] for block in path]
        self.freed.add(keys, own_ids)
        self._offload(keys, own_ids, 0)
        if self.hints is not None and self.hints[request]:
            cache.used([keys], **self.hints[request])
        return local, host, disk

    def _take(self, blocks: int) -> list[int]:
        """Returns ids for so many blocks; what was in them is copied ahead of that."""
        short = max(blocks - len(self.free), 0)
        victims = [self.held.popitem(last=False)[1] for _ in range(short)]
        for keys, ids, start in self.freed.take(victims):
            self._offload(keys, ids, start)
        return [self.free.pop() for _ in range(blocks - short)] + victims

    def _offload(self, keys: Keys, ids: list[int], start: int) -> None:
        self.make_room_on_host(len(ids))
        self.copy_down(self.cache.offload(keys, ids, start))
