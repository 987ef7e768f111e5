"""What all sides share: a pool that is full of idle chains, and the rows that are played on it.

A side's `Pool` says how its cache does each thing. It returns operations, with all that they need
made beforehand: a row times the calls of these alone.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from peers import work as sizes
from peers.driver import Makers, Operation, Row, override
from peers.work import BLOCK, Work

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Sequence


class Pool(Row):
    """A side's cache, every block of which is part of an idle chain."""

    def __init__(self, work: Work, blocks: int, chain: int = sizes.CHAIN) -> None:
        self.work = work
        #: What running requests hold; `restore` ends them.
        self.held: list[Any] = []
        self.open(blocks)
        for _ in range(blocks // chain):
            self.visit(work.fresh(chain))

    def open(self, blocks: int) -> None:
        """Makes an empty cache."""
        raise NotImplementedError

    def ready(self, tokens: array[int]) -> tuple[Any, ...]:
        """Returns a request whose keys are ready."""
        raise NotImplementedError

    def admit(self, *ready: Any) -> None:
        """Admits it, and holds it."""
        raise NotImplementedError

    def finish(self, one: Any) -> object:
        """Ends a request that was held."""
        raise NotImplementedError

    def make_spare(self) -> None:
        """Makes room ahead of admissions, as a step does; nothing where a side makes none."""

    def lookup(self, tokens: array[int]) -> Operation:
        """Looks a prompt up whose keys are ready."""
        raise NotImplementedError

    def whole_admission(self, tokens: array[int]) -> Operation:
        """Makes the keys of a request, admits it and holds it."""
        raise NotImplementedError

    def admission(self, tokens: array[int]) -> Operation:
        """Admits a request whose keys are ready, and holds it."""
        return partial(self.admit, *self.ready(tokens))

    def ending(self, one: Any) -> Operation:
        """Ends a request that was held."""
        return partial(self.finish, one)

    def turn(self, *ready: Any) -> None:
        """Admits a request, and ends it."""
        self.admit(*ready)
        self.finish(self.held.pop())

    def turnover(self, tokens: array[int]) -> Operation:
        """Admits a request whose keys are ready, and ends it."""
        return partial(self.turn, *self.ready(tokens))

    def visit(self, tokens: array[int]) -> None:
        """Leaves a chain behind."""
        self.turn(*self.ready(tokens))

    def refill(self, blocks: int) -> None:
        """Leaves chains of one block in place of what was evicted."""
        for _ in range(blocks):
            self.visit(self.work.fresh(1))

    def take(self) -> object:
        """Takes the events that have happened, as the thread must that calls the cache."""
        raise NotImplementedError

    def encode(self, taken: object) -> object:
        """Makes a message of them, as the publisher's thread does."""
        raise NotImplementedError

    @override
    def restore(self) -> None:
        held, self.held = self.held, []
        for one in held:
            self.ending(one)()


class Keys(Row):
    """Keys of fresh prompts."""

    unit = sizes.OFFLOAD

    def __init__(self, work: Work, keys: Callable[[array[int]], Operation]) -> None:
        self.work, self.keys = work, keys

    @override
    def prepare(self) -> Sequence[Operation]:
        return [self.keys(self.work.fresh(sizes.OFFLOAD)) for _ in range(20)]


class Match(Row):
    """Lookups of resident prompts, so many times over."""

    again = True

    def __init__(self, pool: Pool, times: int, more: int = 1) -> None:
        chains = [pool.work.fresh(sizes.MATCH, more) for _ in range(50)]
        for chain in chains:
            pool.visit(chain)
        self.lookups = [pool.lookup(chain) for chain in chains]
        self.times = times

    @override
    def prepare(self) -> Sequence[Operation]:
        return self.lookups * self.times


class _OnPool(Row):
    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    @override
    def restore(self) -> None:
        self.pool.restore()


class Admit(_OnPool):
    """Admissions from `keys` or from `tokens`; or, as `finish`, the ends of what was admitted.

    As `ahead`, each comes after a step that makes room ahead; `step` is what that takes.
    """

    def __init__(self, pool: Pool, what: str) -> None:
        super().__init__(pool)
        self.what = what

    def after_step(self, admission: Operation) -> float:
        """Returns the nanoseconds of the admission, or of the step before it."""
        times = [time.thread_time_ns()]
        self.pool.make_spare()
        times.append(time.thread_time_ns())
        admission()
        times.append(time.thread_time_ns())
        step, own = times[1] - times[0], times[2] - times[1]
        return step if self.what == "step" else own

    @override
    def prepare(self) -> Sequence[Operation]:
        pool = self.pool
        admission = pool.whole_admission if self.what == "tokens" else pool.admission
        made: list[Operation] = []
        for _ in range(sizes.REQUESTS):
            before, whole = pool.work.turn()
            pool.visit(before)
            made.append(admission(whole))
        if self.what in {"ahead", "step"}:
            return [partial(self.after_step, operation) for operation in made]
        if self.what != "finish":
            return made
        for operation in made:
            operation()
        held, pool.held = pool.held, []
        return [pool.ending(one) for one in held]


class Events(Row):
    """What events add to an admission: it is made in a pool with them and in one without, in turns.

    With `encode` their message counts, too, and not only what the thread does that admits.
    """

    def __init__(self, quiet: Pool, told: Pool, *, encode: bool) -> None:
        self.quiet, self.told, self.encodes = quiet, told, encode

    def pair(self, quiet: Operation, told: Operation) -> float:
        """Returns nanoseconds."""
        times = [time.thread_time_ns()]
        quiet()
        times.append(time.thread_time_ns())
        told()
        taken = self.told.take()
        if self.encodes:
            self.told.encode(taken)
        times.append(time.thread_time_ns())
        return times[2] - 2 * times[1] + times[0]

    @override
    def prepare(self) -> Sequence[Operation]:
        made: list[Operation] = []
        for _ in range(sizes.REQUESTS):
            before, whole = self.quiet.work.turn()
            for pool in (self.quiet, self.told):
                pool.visit(before)
            made.append(partial(self.pair, self.quiet.admission(whole), self.told.admission(whole)))
        self.told.encode(self.told.take())
        return made

    @override
    def restore(self) -> None:
        self.quiet.restore()
        self.told.restore()
        self.told.encode(self.told.take())


class Turnover(_OnPool):
    """Short requests that find nothing, evict and end."""

    def __init__(self, pool: Pool, requests: int) -> None:
        super().__init__(pool)
        self.requests = requests

    @override
    def prepare(self) -> Sequence[Operation]:
        work = self.pool.work
        return [self.pool.turnover(work.fresh(sizes.SHORT, 1)) for _ in range(self.requests)]


class Decode(_OnPool):
    """Steps of sequences that decode, begun again before they grow too long."""

    def __init__(self, pool: Pool, rows: int) -> None:
        super().__init__(pool)
        self.rows = rows
        self._begin()

    def begin(self, prompts: list[array[int]]) -> None:
        """Admits these prompts, and holds them."""
        raise NotImplementedError

    def step(self) -> None:
        """Appends a token to each sequence, and grows them."""
        raise NotImplementedError

    def _begin(self) -> None:
        self.pool.restore()
        length = sizes.PROMPT // BLOCK
        self.begin([self.pool.work.fresh(length, row % BLOCK) for row in range(self.rows)])
        self.steps = 0

    @override
    def prepare(self) -> Sequence[Operation]:
        if self.steps >= sizes.MOST:
            self._begin()
        self.steps += sizes.STEPS
        return [self.step] * sizes.STEPS

    @override
    def restore(self) -> None:
        """Leaves the sequences as they are: the next round goes on with them."""


def on_pool(pool: Callable[[Work, int], Pool], *, lookups: int, turnovers: int) -> Makers:
    """Returns the rows that every side plays whose cache admits requests."""
    return {
        "match": lambda work, asked: Match(pool(work, asked["blocks"]), lookups),
        "admit": lambda work, asked: Admit(pool(work, asked["blocks"]), asked["what"]),
        "turnover": lambda work, asked: Turnover(pool(work, asked["blocks"]), turnovers),
        "memory": lambda work, asked: pool(work, asked["blocks"]),
    }


def events(quiet: Callable[[Work, int], Pool], told: Callable[[Work, int], Pool]) -> Makers:
    """Returns the row of what events add, for two kinds of pools."""

    def make(work: Work, asked: dict[str, Any]) -> Row:
        blocks = asked["blocks"]
        return Events(quiet(work, blocks), told(work, blocks), encode=asked["encode"])

    return {"events": make}
