"""`make soak-handover`: a prefill and a decode engine are killed and stopped, again and again.

    python soak_handover.py [--carrier tcp] [--kills 300] [--stops 100] [--first 0] [--schedules 0]

Each seed is a play of sixteen requests by two processes over TCP, of which either is killed and
stopped at random moments. Every answer must be that of one engine with ample memory, nothing may be
left held at the end, and of the requests whose prefill engine lived at least half must take blocks
over. `--first` goes on from a seed. With `--carrier nixl`, NIXL reads the blocks: over TCP where
`UCX_TLS` says nothing else, such as `tcp,sm,self` for shared memory. Then `--schedules` hand-overs
are simulated, on every core, from `--seed` on.
"""

import argparse
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter
from pathlib import Path

from blockyard.shared.endpoints import Carrier
from blockyard.testing import Broken, Scenario, simulate

sys.path.append(str(Path(__file__).parent / "python" / "support"))

from handover_play import Play, Setup, asks

KILLS, STOPS = 6, 2
BATCH = 50


def say(line: str) -> None:
    """Prints a line at once, also into a pipe."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def played(carrier: Carrier, first: int, kills: int, stops: int) -> None:
    """Plays seeds until there were so many kills and stops."""
    counts, began, seed = Counter[str](), time.monotonic(), first
    while counts["kills"] < kills or counts["stops"] < stops:
        try:
            counts += Play(
                Setup(seed, carrier=carrier), asks(seed, 16), kills=KILLS, stops=STOPS
            ).run()
        except AssertionError:
            say(f"seed {seed} is broken")
            raise
        counts["kills"], counts["stops"] = counts["kills"] + KILLS, counts["stops"] + STOPS
        lived, took = counts["prefiller lived"], counts["prefiller lived, blocks taken over"]
        say(f"seed {seed}: {counts['kills']} kills, {counts['stops']} stops, {took} of {lived}")
        seed += 1
    say(f"seeds {first} to {seed - 1}, no token differs, in {time.monotonic() - began:.0f} s")
    for name, count in sorted(counts.items()):
        say(f"{count:9,}  {name}")
    lived, took = counts["prefiller lived"], counts["prefiller lived, blocks taken over"]
    assert 2 * took >= lived, f"only {took} of {lived} requests have taken blocks over"


def simulated(first: int) -> tuple[list[tuple[int, str]], Counter[str]]:
    """Simulates a batch of seeds; returns what is broken, and what they have met."""
    logging.getLogger("blockyard").setLevel(logging.CRITICAL)
    broken, seen = [], Counter[str]()
    for seed in range(first, first + BATCH):
        try:
            seen.update(simulate(Scenario.handing_over(seed)).seen)
        except Broken as said:
            broken.append((seed, str(said)))
    return broken, seen


def schedules(first: int, count: int) -> int:
    """Simulates seeds on every core; returns the exit status."""
    seen, done, began = Counter[str](), 0, time.monotonic()
    with multiprocessing.get_context("spawn").Pool() as pool:
        for broken, met in pool.imap(simulated, range(first, first + count, BATCH)):
            for seed, what in broken:
                say(f"seed {seed} of `Scenario.handing_over`: {what}")
            if broken:
                return 1
            seen.update(met)
            done += BATCH
            if done % 2000 == 0:
                say(f"{done:,} schedules, from seed {first}: none is broken")
    say(f"{done:,} schedules from {first}, in {time.monotonic() - began:.0f} s:")
    for name, number in sorted(seen.items()):
        if name.startswith(("race", "handover")):
            say(f"{number:9,}  {name}")
    return 0


def main() -> int:
    """Plays all seeds, and simulates."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--carrier", choices=("tcp", "nixl"), default="tcp")
    asked.add_argument("--kills", type=int, default=300)
    asked.add_argument("--stops", type=int, default=100)
    asked.add_argument("--first", type=int, default=0, help="the first play")
    asked.add_argument("--schedules", type=int, default=0, help="how many to simulate")
    asked.add_argument("--seed", type=int, default=0, help="the first of them")
    options = asked.parse_args()
    if options.carrier == "nixl":
        os.environ.setdefault("UCX_TLS", "tcp")
        os.environ.setdefault("UCX_NET_DEVICES", "lo")
    played(options.carrier, options.first, options.kills, options.stops)
    return schedules(options.seed, options.schedules)


if __name__ == "__main__":
    sys.exit(main())
