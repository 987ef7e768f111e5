"""Blockyard's side.

    python side_blockyard.py WORK [--slow MICROSECONDS]

`--slow` is for the self-test: it makes every operation longer than it is.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

import blockyard as by
from blockyard.scheduling.engine import Output
from blockyard.scheduling.options import SchedulerOptions
from blockyard.scheduling.scheduler import Scheduler
from peers import frame
from peers import work as sizes
from peers.driver import Makers, Operation, Row, override, serve
from peers.work import BLOCK, Work

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

    from numpy.typing import NDArray


def _array(tokens: array[int]) -> NDArray[np.uint32]:
    return np.frombuffer(tokens, np.uint32)


class Pool(frame.Pool):
    """A `KVCache`."""

    def __init__(self, work: Work, blocks: int, chain: int = sizes.CHAIN, host: int = 0) -> None:
        self.host = host
        super().__init__(work, blocks, chain)

    @override
    def open(self, blocks: int) -> None:
        self.cache = by.KVCache(block_size=BLOCK, device=blocks + 1, host=self.host)

    def keys(self, tokens: array[int]) -> by.Keys:
        return self.cache.keys(_array(tokens))

    @override
    def ready(self, tokens: array[int]) -> tuple[Any, ...]:
        return self.keys(tokens), len(tokens) // BLOCK * BLOCK

    @override
    def admit(self, keys: by.Keys, computed: int) -> None:
        lease = self.cache.begin(keys, reserve=BLOCK)
        self.cache.seal(lease, computed)
        self.held.append(lease)

    @override
    def finish(self, one: by.Lease) -> None:
        self.cache.finish(one)

    @override
    def make_spare(self) -> None:
        self.cache.make_spare()

    @override
    def lookup(self, tokens: array[int]) -> Operation:
        return partial(self.cache.probe, self.keys(tokens))

    def whole(self, tokens: NDArray[np.uint32]) -> None:
        self.admit(self.cache.keys(tokens), sizes.TURN * BLOCK)

    @override
    def whole_admission(self, tokens: array[int]) -> Operation:
        return partial(self.whole, _array(tokens))

    @override
    def ending(self, one: Any) -> Operation:
        return partial(self.cache.finish, one)


class Told(Pool):
    """A cache that has a listener. The publisher's thread does all the rest."""

    @override
    def open(self, blocks: int) -> None:
        super().open(blocks)
        self.cache.listen()

    @override
    def visit(self, tokens: array[int]) -> None:
        super().visit(tokens)
        # Filling the pool is more than a ring has.
        self.cache.take_events()

    @override
    def take(self) -> None:
        """Nothing: the ring is taken by another thread."""

    @override
    def encode(self, _taken: object) -> object:
        payload, _ = self.cache.take_events(now=1.0)
        return payload


class Decode(frame.Decode):
    """Append, seal, grow and the changed cells of the tables, in one verb."""

    def __init__(self, pool: Pool, rows: int) -> None:
        self.cache = pool.cache
        self.tokens = np.full(rows, 7, np.uint32)
        self.tables = np.zeros((rows, 512), np.int32)
        super().__init__(pool, rows)

    @override
    def begin(self, prompts: list[array[int]]) -> None:
        self.leases = [self.cache.begin(_array(prompt)) for prompt in prompts]
        self.pool.held = list(self.leases)
        self.batch = self.cache.batch(self.leases)
        self.computed = np.array([lease.appended for lease in self.leases])
        self.cache.seal(self.batch, self.computed)

    @override
    def step(self) -> None:
        self.cache.decode_step(self.batch, self.tokens, self.computed, out=self.tables)
        self.computed += 1


class Schedule(Row):
    """`schedule` and `on_output`, with every request decoding."""

    def __init__(self, work: Work) -> None:
        cache = by.KVCache(block_size=BLOCK, device=90_000)
        self.scheduler = scheduler = Scheduler(cache, SchedulerOptions(max_num_seqs=sizes.SEATS))
        prompts = [work.fresh(18, 12 + row % BLOCK) for row in range(sizes.SEATS)]
        for row, prompt in enumerate(prompts):
            scheduler.add(by.NewRequest(row, _array(prompt).astype(np.int64), max_tokens=100_000))
        step = scheduler.schedule()
        while len(step.decode) < sizes.SEATS:
            last = [
                one.seat for one in step.chunks if one.first + one.tokens == len(prompts[one.seat])
            ]
            seats = np.array([*step.decode, *last], np.int32)
            scheduler.on_output(Output(step.number, seats, np.zeros(len(seats), np.uint32)))
            step = scheduler.schedule()
        self.seats = step.seats[step.samples]
        self.tokens = np.full(sizes.SEATS, 7, np.uint32)
        scheduler.on_output(Output(step.number, self.seats, self.tokens))

    def step(self) -> None:
        step = self.scheduler.schedule()
        self.scheduler.on_output(Output(step.number, self.seats, self.tokens))

    @override
    def prepare(self) -> Sequence[Operation]:
        return [self.step] * sizes.STEPS


class Evict(Pool):
    """Begins of a few new blocks, which evict as many leaves."""

    def begin(self, keys: by.Keys) -> None:
        self.held.append(self.cache.begin(keys))

    @override
    def prepare(self) -> Sequence[Operation]:
        return [partial(self.begin, self.keys(self.work.fresh(sizes.FEW))) for _ in range(100)]

    @override
    def restore(self) -> None:
        evicted = len(self.held) * sizes.FEW
        super().restore()
        self.refill(evicted)


class Offload(Pool):
    """Copies of the next victims down, and of an earlier chain up into their room; all land."""

    # Four calls for twice as many keys.
    unit = sizes.OFFLOAD / 2

    def __init__(self, work: Work) -> None:
        super().__init__(work, sizes.CHAINS * sizes.OFFLOAD, sizes.OFFLOAD, sizes.HOST)
        self.last: list[by.Keys] = []
        self.plan: by.Plan | None = None

    def down(self, blocks: int) -> None:
        self.plan = self.cache.demote(blocks)

    def up(self, keys: by.Keys) -> None:
        (self.plan,) = self.cache.promote(keys)

    def land(self) -> None:
        if self.plan is None or len(self.plan) != sizes.OFFLOAD:
            raise RuntimeError(f"nothing moved: {self.plan}")
        self.cache.commit(self.plan)

    @override
    def prepare(self) -> Sequence[Operation]:
        chains = [self.work.fresh(sizes.OFFLOAD) for _ in range(sizes.CHAINS)]
        made = [self.keys(chain) for chain in chains]
        for chain in chains:
            self.visit(chain)
        calls: list[Operation] = []
        for at in range(sizes.CHAINS):
            # Blocks that were copied before count until they are evicted.
            ahead = 1 if self.last else at + 1
            calls += [partial(self.down, ahead * sizes.OFFLOAD), self.land]
            if self.last:
                calls += [partial(self.up, self.last[at]), self.land]
        self.last = made
        return calls


def _keys(work: Work) -> Row:
    cache = Pool(work, 1_000).cache
    return frame.Keys(work, lambda run: partial(cache.keys, _array(run)))


ROWS: Makers = {
    "keys": lambda work, _: _keys(work),
    **frame.on_pool(Pool, lookups=20, turnovers=2_000),
    **frame.events(Pool, Told),
    "decode": lambda work, asked: Decode(Pool(work, 100_000), asked["rows"]),
    "schedule": lambda work, _: Schedule(work),
    "evict": lambda work, _: Evict(work, sizes.LEAVES, 1),
    "offload": lambda work, _: Offload(work),
}


def slowed(makers: Makers, microseconds: float) -> Makers:
    """Returns the same rows with a delay before every operation."""

    def late(operation: Operation) -> object:
        end = time.perf_counter() + microseconds / 1e6
        while time.perf_counter() < end:
            pass
        return operation()

    def make(name: str, work: Work, asked: dict[str, Any]) -> Row:
        row = makers[name](work, asked)
        prepare = row.prepare
        row.prepare = lambda: [partial(late, one) for one in prepare()]  # type: ignore[method-assign]
        return row

    return {name: partial(make, name) for name in makers}


if __name__ == "__main__":
    late = float(sys.argv[3]) if sys.argv[2:3] == ["--slow"] else 0.0
    serve(slowed(ROWS, late) if late else ROWS, {"blockyard": by.__version__})
