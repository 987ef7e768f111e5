"""What a step costs beside an engine that gives out its block ids itself.

    python benches/python/engine_blocks.py [--rounds 20]

It prints CPU times of one thread, the best and the median of all rounds, and fails where the best
misses its target.
"""

import gc
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

import blockyard as by
from blockyard.connectors.connector import Connector
from report import Figure, asked, report

SIZE, LONG, ROWS, LOADS = 16, 128, 256, 64
HOST = 100_000
TOKENS = SIZE * LONG


def timed(call: Callable[[], object]) -> float:
    """Returns the CPU microseconds of a call."""
    begun = time.thread_time_ns()
    call()
    return (time.thread_time_ns() - begun) / 1e3


class Yard:
    """A cache, and the engine's ids of each path of a round; its host is full, if `fills`."""

    def __init__(self, *, fills: bool = True) -> None:
        self.cache = by.KVCache(block_size=SIZE, engine=LOADS * LONG, host=HOST)
        self.random = np.random.default_rng(7)
        self.ids = [np.arange(LONG) + at * LONG for at in range(LOADS)]
        self.paths: list[by.Keys] = []
        self.recent: list[by.Keys] = []
        while fills and sum(map(len, self.paths)) < HOST + LOADS * LONG:
            self.paths += self.stowed()

    def keys(self) -> by.Keys:
        """Returns keys like an engine's: uniform, and never the same twice."""
        return self.cache.ready_keys(self.random.bytes(32 * LONG), TOKENS + 1)

    def land(self) -> float:
        """Ends what is in flight in one call; returns its CPU microseconds."""
        outcomes = [by.Outcome(plan.flight, 0, len(plan)) for plan in self.cache.dispatch()]
        return timed(lambda: self.cache.commit(outcomes))

    def stowed(self) -> list[by.Keys]:
        """Stows new paths; returns them."""
        paths = [self.keys() for _ in range(LOADS)]
        self.recent = paths
        self.stow()
        self.land()
        return paths

    def find(self) -> None:
        """Finds the recent paths."""
        for keys in self.recent:
            self.cache.find(keys)

    def fetch(self) -> None:
        """Brings them up."""
        for keys, ids in zip(self.recent, self.ids, strict=True):
            self.cache.fetch(keys, ids)

    def stow(self) -> None:
        """Copies them down."""
        for keys, ids in zip(self.recent, self.ids, strict=True):
            self.cache.stow(keys, ids)


def verbs(rounds: int) -> dict[str, list[float]]:
    """Returns microseconds a call of the verbs, a value for each round."""
    empty, full = Yard(fills=False), Yard()
    spent: dict[str, list[float]] = {
        "find": [],
        "fetch": [],
        "stow": [],
        "stow and evict": [],
        "land": [],
    }
    for number in range(1, rounds + 1):
        if number % (HOST // (LOADS * LONG)) == 0:  # it would be full, too
            empty = Yard(fills=False)
        spent["find"].append(timed(full.find) / LOADS)
        spent["fetch"].append(timed(full.fetch) / LOADS)
        spent["land"].append(full.land())
        for what, yard in (("stow", empty), ("stow and evict", full)):
            yard.recent = [yard.keys() for _ in range(LOADS)]
            spent[what].append(timed(yard.stow) / LOADS)
            yard.land()
    return spent


def steps(rounds: int) -> list[float]:
    """Returns microseconds of a step in which all rows decode, and nothing is stowed."""
    yard = Yard()
    connector = Connector(yard.cache)
    for row in range(ROWS):
        connector.matched(row, yard.paths[-1 - row])
        connector.allocated(row)
    spent = []
    for step in range(rounds * SIZE):
        # A row in sixteen needs a block.
        ids = yard.ids[step % LOADS][: ROWS // SIZE]

        def turn(ids: NDArray[np.int64] = ids) -> None:
            connector.commit([])
            connector.arrived()
            connector.step(ids)

        spent.append(timed(turn))
    return spent


def figures(rounds: int) -> Iterator[Figure]:
    gc.disable()
    seen = verbs(rounds)
    for what, spent, most in (
        (f"find of {LONG} blocks", seen["find"], 5),
        (f"fetch of {LONG} blocks", seen["fetch"], 15),
        (f"stow of {LONG} blocks", seen["stow"], 15),
        ("the same where as many must be evicted", seen["stow and evict"], 18),
        (f"one call that ends {LOADS} loads of {LONG} blocks", seen["land"], 500),
        (f"a step of {ROWS} rows that decode", steps(rounds), 30),
    ):
        yield Figure(f"{what}, µs", min(spent), most, about=f"median {np.median(spent):.1f}")


if __name__ == "__main__":
    given = asked(__doc__, rounds=20)
    sys.exit(report(figures(given.rounds), given.json))
