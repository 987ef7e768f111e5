"""The measured work from Python; `benches/rust/list.rs` has the same rows natively."""

from collections.abc import Callable
from typing import Literal, Protocol

import numpy as np

import blockyard as by

BLOCK = 16
TURN = 306
FOUND = 189
REQUESTS = 20
PLAN = 64
STEPS = 64

Eviction = Literal["recency", "heap", "learned"]


class Row(Protocol):
    """A row: only `run` is measured, and returns how many operations it made."""

    def prepare(self) -> None: ...
    def run(self) -> int: ...
    def restore(self) -> None: ...


class Bare:
    """A row that needs nothing before a run or after it."""

    def prepare(self) -> None: ...
    def restore(self) -> None: ...


class Rig:
    """A cache whose device is full of idle blocks in chains of `chain`."""

    def __init__(self, device: int, host: int, eviction: Eviction, chain: int) -> None:
        self.cache = by.KVCache(device=device + 1, host=host, eviction=eviction)
        self.random = np.random.default_rng(7)
        for _ in range(device // chain if chain else 0):
            self.visit(chain)

    def fresh(self, blocks: int) -> bytes:
        """Returns keys like an engine's: uniform, and never the same twice."""
        return self.random.bytes(32 * blocks)

    def keys(self, data: bytes) -> by.Keys:
        return self.cache.ready_keys(data, len(data) // 32 * BLOCK + 1)

    def visit(self, blocks: int) -> bytes:
        """Begins, seals and finishes a new chain."""
        data = self.fresh(blocks)
        lease = self.cache.begin(self.keys(data))
        self.cache.seal(lease, blocks * BLOCK)
        self.cache.finish(lease)
        return data


class Probe(Bare):
    """A probe of nothing, or of a resident prefix."""

    def __init__(self, blocks: int, length: int, times: int) -> None:
        self.rig = Rig(blocks, 0, "recency", 100)
        self.keys = self.rig.keys(self.rig.visit(length)) if length else None
        self.times = times

    def run(self) -> int:
        probe, arguments = self.rig.cache.probe, () if self.keys is None else (self.keys,)
        for _ in range(self.times):
            probe(*arguments)
        return self.times


class Turn:
    """The verbs of a multi-turn request, each measured on its own."""

    def __init__(self, blocks: int, verb: str) -> None:
        self.rig = Rig(blocks, blocks, "recency", 100)
        self.verb = verb
        self.requests: list[by.Keys] = []
        self.leases: list[by.Lease] = []
        self.parked: list[by.Parked] = []

    def begin(self) -> None:
        begin = self.rig.cache.begin
        self.leases = [begin(keys, reserve=64) for keys in self.requests]

    def seal(self) -> None:
        seal = self.rig.cache.seal
        for lease in self.leases:
            seal(lease, TURN * BLOCK)

    def park(self) -> None:
        park = self.rig.cache.park
        self.parked = [park(lease, TURN * BLOCK) for lease in self.leases]

    def resume(self) -> None:
        begin = self.rig.cache.begin
        leases = [begin(parked, reserve=64) for parked in self.parked]
        self.leases = [lease for lease in leases if isinstance(lease, by.Lease)]

    def finish(self) -> None:
        finish = self.rig.cache.finish
        for lease in self.leases:
            finish(lease)

    def prepare(self) -> None:
        rig = self.rig
        data = [rig.visit(FOUND) + rig.fresh(TURN - FOUND) for _ in range(REQUESTS)]
        self.requests = [rig.keys(one) for one in data]
        for verb in ("begin", "seal", "park"):
            if verb == self.verb or (verb == "park" and self.verb == "finish"):
                return
            getattr(self, verb)()

    def run(self) -> int:
        getattr(self, self.verb)()
        return REQUESTS

    def restore(self) -> None:
        if self.verb == "park":
            self.resume()
        if self.verb != "finish":
            self.finish()
        self.leases = []
        self.parked = []


class Moves:
    """A copy down of the next 64 victims, one up of 64 blocks, and a landing."""

    def __init__(self, blocks: int, copies: str) -> None:
        self.rig = Rig(blocks, blocks, "recency", 64)
        self.copies = copies
        self.plan: by.Plan | None = None
        self.keys = self.rig.keys(b"")

    def land(self) -> None:
        if self.plan is not None:
            self.rig.cache.commit(self.plan)
            self.plan = None

    def demote(self) -> None:
        self.plan = self.rig.cache.demote(PLAN)

    def promote(self) -> None:
        (self.plan,) = self.rig.cache.promote(self.keys)

    def prepare(self) -> None:
        cache = self.rig.cache
        if self.copies == "land":
            self.demote()
        elif self.copies == "promote":
            self.keys = self.rig.keys(self.rig.visit(PLAN))
            lease = cache.begin(self.keys)
            self.plan = cache.demote(PLAN, of=lease)
            self.land()
            cache.finish(lease, retention="session-ended")
            self.rig.visit(PLAN)

    def run(self) -> int:
        getattr(self, self.copies)()
        return 1

    def restore(self) -> None:
        self.land()
        if self.copies != "promote":
            self.rig.visit(PLAN)


class Decode:
    """A step of 256 decoding sequences: by four verbs, by `grow` alone, or by one verb."""

    def __init__(self, blocks: int, verbs: Literal["four", "grow", "one"]) -> None:
        rig = Rig(blocks, 0, "recency", 100)
        self.cache = rig.cache
        prompts = [np.arange(640 + row % 16, dtype=np.uint32) + row * 1000 for row in range(256)]
        self.leases = [self.cache.begin(prompt) for prompt in prompts]
        self.computed = np.array([lease.appended for lease in self.leases])
        self.tokens = np.full(256, 7, dtype=np.uint32)
        self.tables = np.zeros((256, 512), dtype=np.int32)
        self.batch = self.cache.batch(self.leases)
        self.verbs = verbs

    def rest(self) -> None:
        cache, leases = self.cache, self.leases
        cache.append(leases, self.tokens)
        cache.block_tables(leases, self.tables, cells="changed")
        cache.seal(leases, self.computed)
        self.computed += 1

    def step(self) -> None:
        self.cache.decode_step(self.batch, self.tokens, self.computed, out=self.tables)
        self.computed += 1

    def prepare(self) -> None: ...

    def run(self) -> int:
        if self.verbs == "one":
            for _ in range(STEPS):
                self.step()
            return STEPS
        grow, leases = self.cache.grow, self.leases
        for _ in range(STEPS):
            grow(leases)
            if self.verbs == "four":
                self.rest()
        return STEPS

    def restore(self) -> None:
        if self.verbs == "grow":
            for _ in range(STEPS):
                self.rest()


class Evict:
    """Begins of new blocks in a full pool."""

    def __init__(self, leaves: int, blocks: int, eviction: Eviction, air: str) -> None:
        self.blocks = blocks
        if air == "nothing":
            self.rig = Rig(leaves, 1024, eviction, 1)
        else:
            # The oldest blocks are a chain whose tail is being copied down.
            self.rig = Rig(leaves, 1024, eviction, 0)
            cache = self.rig.cache
            lease = cache.begin(self.rig.keys(self.rig.visit(1023)))
            parked = cache.park(lease, 1023 * BLOCK)
            plan = cache.demote(64, of=parked)
            if plan is None or len(plan) != 64:
                raise AssertionError(plan)
            cache.abandon(parked)
            for _ in range(leaves - 1024):
                self.rig.visit(1)
        self.requests: list[by.Keys] = []
        self.leases: list[by.Lease] = []

    def prepare(self) -> None:
        rig, blocks = self.rig, self.blocks
        make = rig.cache.ready_keys
        requests = range(max(2000 // blocks, 1))
        self.requests = [make(rig.fresh(blocks), blocks * BLOCK) for _ in requests]

    def run(self) -> int:
        begin = self.rig.cache.begin
        self.leases = [begin(keys) for keys in self.requests]
        return len(self.leases)

    def restore(self) -> None:
        for lease in self.leases:
            self.rig.cache.seal(lease, self.blocks * BLOCK)
        self.rig.cache.finish(self.leases)
        self.leases = []


class Hashing(Bare):
    """Keys of prompts of 4,096 tokens."""

    def __init__(self) -> None:
        self.cache = by.KVCache(device=2)
        self.tokens = np.arange(4096, dtype=np.uint32)

    def run(self) -> int:
        for _ in range(10):
            self.cache.keys(self.tokens)
        return 10 * len(self.tokens) // BLOCK


ROWS: dict[str, Callable[[int], Row]] = {
    "probe": lambda blocks: Probe(blocks, 0, 10_000),
    "match64": lambda blocks: Probe(blocks, 64, 500),
    "match128": lambda blocks: Probe(blocks, 128, 500),
    "demote": lambda blocks: Moves(blocks, "demote"),
    "promote": lambda blocks: Moves(blocks, "promote"),
    "commit": lambda blocks: Moves(blocks, "land"),
    "decode": lambda blocks: Decode(blocks, "four"),
    "decode-step": lambda blocks: Decode(blocks, "one"),
    "grow": lambda blocks: Decode(blocks, "grow"),
    "evict4-list": lambda _: Evict(25_000, 4, "recency", "nothing"),
    "evict4-heap": lambda _: Evict(25_000, 4, "heap", "nothing"),
    "evict4-learned": lambda _: Evict(25_000, 4, "learned", "nothing"),
    "evict4-list-air": lambda _: Evict(25_000, 4, "recency", "chain"),
    "evict4-heap-air": lambda _: Evict(25_000, 4, "heap", "chain"),
    "evict1000-list": lambda _: Evict(1_000_000, 1000, "recency", "nothing"),
    "evict1000-heap": lambda _: Evict(1_000_000, 1000, "heap", "nothing"),
    "evict1000-learned": lambda _: Evict(1_000_000, 1000, "learned", "nothing"),
    "keys": lambda _: Hashing(),
    "begin": lambda blocks: Turn(blocks, "begin"),
    "seal": lambda blocks: Turn(blocks, "seal"),
    "park": lambda blocks: Turn(blocks, "park"),
    "resume": lambda blocks: Turn(blocks, "resume"),
    "finish": lambda blocks: Turn(blocks, "finish"),
}
