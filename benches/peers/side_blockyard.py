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
from peers import work as sizes
from peers.driver import Makers, Operation, Row, override, serve
from peers.work import BLOCK, Work

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

    from numpy.typing import NDArray


def _array(tokens: array[int]) -> NDArray[np.uint32]:
    return np.frombuffer(tokens, np.uint32)


class Pool(Row):
    """A cache whose device is full of idle chains."""

    def __init__(self, work: Work, device: int, chain: int = sizes.CHAIN, host: int = 0) -> None:
        self.work = work
        self.cache = by.KVCache(block_size=BLOCK, device=device + 1, host=host)
        self.leases: list[by.Lease] = []
        for _ in range(device // chain):
            self.visit(work.fresh(chain))

    def visit(self, tokens: array[int]) -> None:
        """Leaves a chain behind."""
        lease = self.cache.begin(_array(tokens))
        self.cache.seal(lease, len(tokens))
        self.cache.finish(lease)

    def keys(self, tokens: array[int]) -> by.Keys:
        return self.cache.keys(_array(tokens))

    @override
    def restore(self) -> None:
        self.cache.finish(self.leases)
        self.leases = []


class Keys(Pool):
    unit = sizes.OFFLOAD

    @override
    def prepare(self) -> Sequence[Operation]:
        runs = [_array(self.work.fresh(sizes.OFFLOAD)) for _ in range(20)]
        return [partial(self.cache.keys, run) for run in runs]


class Match(Pool):
    again = True

    def __init__(self, work: Work, device: int) -> None:
        super().__init__(work, device)
        chains = [work.fresh(sizes.MATCH, 1) for _ in range(50)]
        for chain in chains:
            self.visit(chain)
        self.ready = [self.keys(chain) for chain in chains]

    @override
    def prepare(self) -> Sequence[Operation]:
        return [partial(self.cache.probe, keys) for keys in self.ready] * 20


class Admit(Pool):
    """Begin and seal of a request whose keys are ready, or whose tokens are."""

    def __init__(self, work: Work, device: int, what: str) -> None:
        super().__init__(work, device)
        self.what = what

    def admit(self, keys: by.Keys) -> None:
        lease = self.cache.begin(keys, reserve=BLOCK)
        self.cache.seal(lease, sizes.TURN * BLOCK)
        self.leases.append(lease)

    def whole(self, tokens: NDArray[np.uint32]) -> None:
        self.admit(self.cache.keys(tokens))

    @override
    def prepare(self) -> Sequence[Operation]:
        made: list[Operation] = []
        for _ in range(sizes.REQUESTS):
            before, whole = self.work.turn()
            self.visit(before)
            if self.what == "tokens":
                made.append(partial(self.whole, _array(whole)))
            else:
                made.append(partial(self.admit, self.keys(whole)))
        if self.what != "finish":
            return made
        for operation in made:
            operation()
        leases, self.leases = self.leases, []
        return [partial(self.cache.finish, lease) for lease in leases]


class Turnover(Pool):
    """A short request that finds nothing, evicts and is finished."""

    def turn(self, keys: by.Keys) -> None:
        lease = self.cache.begin(keys)
        self.cache.seal(lease, sizes.SHORT * BLOCK)
        self.cache.finish(lease)

    @override
    def prepare(self) -> Sequence[Operation]:
        return [
            partial(self.turn, self.keys(self.work.fresh(sizes.SHORT, 1))) for _ in range(2_000)
        ]


class Decode(Pool):
    """Append, grow, the changed cells of the tables, and seal."""

    def __init__(self, work: Work, device: int, rows: int) -> None:
        super().__init__(work, device)
        self.tokens = np.full(rows, 7, np.uint32)
        self.tables = np.zeros((rows, 512), np.int32)
        self.begin()

    def begin(self) -> None:
        self.cache.finish(self.leases)
        prompts = [
            self.work.fresh(sizes.PROMPT // BLOCK, row % BLOCK) for row in range(len(self.tokens))
        ]
        self.leases = [self.cache.begin(_array(prompt)) for prompt in prompts]
        self.computed = np.array([lease.appended for lease in self.leases])
        self.cache.seal(self.leases, self.computed)
        self.steps = 0

    def step(self) -> None:
        cache, leases = self.cache, self.leases
        cache.append(leases, self.tokens)
        cache.grow(leases)
        cache.block_tables(leases, self.tables, cells="changed")
        self.computed += 1
        cache.seal(leases, self.computed)

    @override
    def prepare(self) -> Sequence[Operation]:
        if self.steps >= sizes.MOST:
            self.begin()
        self.steps += sizes.STEPS
        return [self.step] * sizes.STEPS

    @override
    def restore(self) -> None:
        pass


class Schedule(Row):
    """`schedule` and `on_output`, everybody decoding."""

    def __init__(self, work: Work) -> None:
        cache = by.KVCache(block_size=BLOCK, device=90_000)
        self.scheduler = scheduler = Scheduler(cache, SchedulerOptions(max_num_seqs=sizes.SEATS))
        prompts = [work.fresh(18, 12 + row % BLOCK) for row in range(sizes.SEATS)]
        for row, prompt in enumerate(prompts):
            scheduler.add(row, _array(prompt).astype(np.int64), max_tokens=100_000)
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
    """Begin of a few new blocks, which evicts as many leaves."""

    def begin(self, keys: by.Keys) -> None:
        self.leases.append(self.cache.begin(keys))

    @override
    def prepare(self) -> Sequence[Operation]:
        return [partial(self.begin, self.keys(self.work.fresh(sizes.FEW))) for _ in range(100)]

    @override
    def restore(self) -> None:
        count = len(self.leases) * sizes.FEW
        super().restore()
        for _ in range(count):
            self.visit(self.work.fresh(1))


class Offload(Pool):
    """The next victims down, and an earlier chain up into their room, with their landings."""

    # Four calls for twice as many keys.
    unit = sizes.OFFLOAD / 2

    def __init__(self, work: Work) -> None:
        super().__init__(work, sizes.CHAINS * sizes.OFFLOAD, sizes.OFFLOAD, sizes.HOST)
        self.last: list[by.Keys] = []
        self.plan: by.Plan | None = None

    def down(self, blocks: int) -> None:
        self.plan = self.cache.demote(blocks)

    def up(self, keys: by.Keys) -> None:
        self.plan = self.cache.promote(keys)

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
            # What was copied before counts, until it has gone.
            ahead = 1 if self.last else at + 1
            calls += [partial(self.down, ahead * sizes.OFFLOAD), self.land]
            if self.last:
                calls += [partial(self.up, self.last[at]), self.land]
        self.last = made
        return calls


ROWS: Makers = {
    "keys": lambda work, _: Keys(work, 1_000),
    "match": lambda work, asked: Match(work, asked["blocks"]),
    "admit": lambda work, asked: Admit(work, asked["blocks"], asked["what"]),
    "turnover": lambda work, asked: Turnover(work, asked["blocks"]),
    "decode": lambda work, asked: Decode(work, 100_000, asked["rows"]),
    "schedule": lambda work, _: Schedule(work),
    "evict": lambda work, _: Evict(work, sizes.LEAVES, 1),
    "offload": lambda work, _: Offload(work),
    "memory": lambda work, asked: Pool(work, asked["blocks"]),
}


def slowed(makers: Makers, microseconds: float) -> Makers:
    """The same rows, every operation behind a delay."""

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
