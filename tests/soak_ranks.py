"""`make soak-ranks`: a scheduler and its ranks die, stop and lose reports, seed after seed.

    python soak_ranks.py [--seeds 200] [--first 0]

Each seed is a play of `Scenario.processes`, in virtual time. On a failure it prints the seed, and a
script with the few events that the failure needs.
"""

import argparse
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter

from blockyard.testing import Broken, Scenario, minimised, simulate

#: What is counted, and what it is called.
TABLE = {
    "rank killed, wait": "ranks killed, and waited for",
    "rank killed, fail": "ranks killed, and the engine given up",
    "scheduler killed": "schedulers killed",
    "rank stopped": "ranks stopped for a while",
    "rank slow": "ranks that what is sent reaches later",
    "outcome late": "outcomes late",
    "outcome twice": "outcomes twice",
    "outcome lost": "outcomes lost",
    "outcome asked for": "outcomes asked for again",
    "plans of another yard": "plans of a yard before",
    "outcome of another yard": "outcomes of a yard before",
    "plans down": "plans down",
    "plans up": "plans up",
    "plans to disk": "plans to the disk",
    "plans from disk": "plans from the disk",
    "finished": "requests answered, as undisturbed",
    "aborted": "requests aborted",
    "failed": "requests failed with their engine",
}


def played(seed: int) -> tuple[int, str, Counter[str]]:
    """Returns what is broken in a seed, and what has happened in it."""
    logging.getLogger("blockyard").setLevel(logging.CRITICAL)
    try:
        return seed, "", simulate(Scenario.processes(seed)).seen
    except Broken as said:
        return seed, str(said), Counter()


def main() -> int:
    """Plays all seeds, on every core."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--seeds", type=int, default=200)
    asked.add_argument("--first", type=int, default=0)
    options = asked.parse_args()
    began, seen, broken = time.monotonic(), Counter[str](), list[tuple[int, str]]()
    seeds = range(options.first, options.first + options.seeds)
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        for seed, said, counts in pool.imap_unordered(played, seeds):
            seen.update(counts)
            if said:
                broken.append((seed, said))
                sys.stdout.write(f"seed {seed}: {said}\n")
                sys.stdout.flush()
    if broken:
        first = minimised(Scenario.processes(min(broken)[0]), tries=300)
        sys.stdout.write(
            "\nfrom blockyard.testing import Event, Scenario, Setup, simulate\n\n"
            f"simulate({first!r})\n"
        )
        return 1
    for name, what in TABLE.items():
        sys.stdout.write(f"{seen[name]:9,}  {what}\n")
    sys.stdout.write(
        f"{len(seeds)} seeds from {options.first}, none broken, in "
        f"{time.monotonic() - began:.0f} s\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
