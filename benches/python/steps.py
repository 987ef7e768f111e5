"""What a step costs: `Scheduler.schedule` and `on_output` for 256 decodes, in thread CPU time.

    python benches/python/steps.py [--steps 400]

Alone, and beside 10,000 requests that wait. It fails above its target.
"""

import argparse
import sys
import time

import numpy as np

import blockyard as by
from blockyard.engine import Output
from blockyard.scheduler import Scheduler

ROWS, PROMPT, TARGET = 256, 300, 150.0


def decoding(waiting: int) -> Scheduler:
    """A scheduler whose 256 seats all decode, and a line behind them."""
    scheduler = Scheduler(by.KVCache(block_size=16, device=20_000), seats=ROWS)
    tokens = np.random.default_rng(1).integers(0, 1_000, (ROWS, PROMPT))
    for number, prompt in enumerate(tokens):
        scheduler.add(number, prompt, most=2_000)
    while True:
        step = scheduler.schedule()
        last = [chunk.seat for chunk in step.chunks if chunk.first + chunk.tokens == PROMPT]
        seats = np.array([*step.decode, *last], np.int32)
        scheduler.on_output(Output(step.number, seats, np.zeros(len(seats), np.uint32)))
        if len(step.decode) == ROWS:
            break
    for number in range(waiting):
        scheduler.add(f"waiting {number}", [1, 2, 3], most=5)
    return scheduler


def measure(waiting: int, steps: int) -> float:
    """Median microseconds of a step."""
    scheduler = decoding(waiting)
    spent = []
    for token in range(steps):
        begun = time.thread_time_ns()
        step = scheduler.schedule()
        between = time.thread_time_ns()
        output = Output(step.number, step.decode, np.full(ROWS, token, np.uint32))
        again = time.thread_time_ns()
        scheduler.on_output(output)
        spent.append(between - begun + time.thread_time_ns() - again)
    return float(np.median(spent)) / 1e3


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--steps", type=int, default=400)
    steps = asked.parse_args().steps
    figures = {waiting: measure(waiting, steps) for waiting in (0, 10_000)}
    for waiting, figure in figures.items():
        print(f"256 decodes, {waiting:6,} waiting: {figure:.0f} us a step, {TARGET:.0f} wanted")
    return int(max(figures.values()) > TARGET)


if __name__ == "__main__":
    sys.exit(main())
