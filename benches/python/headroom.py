"""What headroom costs: the steps and preemptions of requests that all come at once.

    python benches/python/headroom.py [--requests 1500]

It counts, so that every machine has the same figures. Blocks have 16 tokens, there is no host, and
each answer has its full length. It fails where the default takes 2 % more steps than the better of
the two others: 16 blocks kept for each row whatever it can still need, and all of it promised.
"""

import argparse
import sys
from typing import Final

import numpy as np

import blockyard as by
from blockyard.scheduling.headroom import Adaptive, FullLength, HeadroomPolicy

CASES: Final = [
    (device, prompt, answer)
    for device, prompt, answer in (
        (256, 160, 16),
        (256, 160, 32),
        (256, 160, 200),
        (1024, 160, 16),
        (1024, 160, 32),
        (1024, 160, 100),
        (1024, 160, 200),
        (1024, 500, 60),
        (1024, 32, 400),
    )
]
"""Blocks of the device, tokens of each prompt, and of each answer."""


class Uncapped(Adaptive):
    """Keeps its blocks for each row, whatever the row can still need."""

    capped = False  # type: ignore[misc]


def run(
    policy: HeadroomPolicy | None, device: int, prompt: int, answer: int, requests: int
) -> tuple[int, int]:
    """Returns the steps until all have ended, and how many were preempted."""
    cache = by.KVCache(device=device, block_size=16)
    scheduler = by.Scheduler(cache, by.SchedulerOptions(headroom=policy, stops="in-order"))
    for name in range(requests):
        first = 1000 * name + 1
        scheduler.add(by.NewRequest(name, range(first, first + prompt), max_tokens=answer))
    while not scheduler.idle:
        step = scheduler.schedule()
        for plan in cache.dispatch():
            cache.commit(plan)
        tokens = np.ones(len(step.sampling), np.uint32)
        scheduler.on_output(by.Output(step.number, step.sampling, tokens))
        scheduler.results()
    stats = scheduler.stats()
    return stats["steps"], stats["preempted"]


def main() -> int:
    """Prints a row for each case; returns 1 where the default is worse than it may be."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--requests", type=int, default=1500)
    requests = asked.parse_args().requests
    print("| device | prompt + answer | 16 a row | full length | default |\n|---|---|---|---|---|")
    worst = 0.0
    for case in CASES:
        policies = Uncapped(short=0), FullLength(), None
        rows = [run(policy, *case, requests) for policy in policies]
        cells = [f"{steps:,} ({preempted:,})" for steps, preempted in rows]
        device, prompt, answer = case
        print(f"| {device:,} | {prompt} + {answer} | {' | '.join(cells)} |", flush=True)
        worst = max(worst, rows[2][0] / min(rows[0][0], rows[1][0]))
    print(f"at worst {worst:.3f} of the steps of the better of the two")
    return int(worst > 1.02)


if __name__ == "__main__":
    sys.exit(main())
