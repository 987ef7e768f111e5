"""`block_tables(cells="all")` beside `ndarray.fill` of the same array, in turns.

    python benches/python/tables.py

Each figure is the median thread CPU time of 30 calls, and each row is met where the tables take at
most twice as long as the fill. `full` rows have a slot in every cell, the others in 64 of them.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

import blockyard as by

SHAPES: Final = [
    (256, 512, 64),
    (256, 512, 512),
    (256, 2048, 64),
    (256, 8192, 64),
    (256, 8192, 8192),
]
"""Rows, columns, and blocks of each row."""
MOST: Final = 2.0


def median(call: Callable[[], object], times: int = 30) -> float:
    """Returns the median microseconds of thread CPU time."""
    taken = []
    for _ in range(times):
        begun = time.thread_time_ns()
        call()
        taken.append(time.thread_time_ns() - begun)
    return statistics.median(taken) / 1e3


def main() -> None:
    """Prints a row for each shape."""
    print(f"{'rows':>5}{'columns':>9}{'blocks':>8}{'fill, µs':>10}{'tables, µs':>12}{'times':>7}")
    for rows, columns, blocks in SHAPES:
        cache = by.KVCache(device=rows * blocks + 1)
        tokens = 16 * blocks
        batch = [cache.begin(range(row, row + 1), reserve=tokens - 1) for row in range(rows)]
        cache.grow(batch, tokens - 1)
        out = np.zeros((rows, columns), np.int32)
        filled = median(partial(out.fill, 0))
        tables = median(partial(cache.block_tables, batch, out))
        times = tables / filled
        met = "met" if times <= MOST else f"missed: {MOST:g} at most"
        shape = f"{rows:>5}{columns:>9}{blocks:>8}"
        print(f"{shape}{filled:>10.1f}{tables:>12.1f}{times:>7.2f}  {met}")


if __name__ == "__main__":
    main()
