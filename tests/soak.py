"""Simulations seed after seed, with proofs between them, on every core: `make soak SECONDS=600`.

On a failure it prints the seed, and a script with the few events that it needs; a proof that
fails is run again by its seed: `prove(seed)` in `tests/python/support/proving.py`.
"""

import argparse
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from blockyard.testing import ROWS, Broken, Scenario, minimised, simulate

sys.path.append(str(Path(__file__).parent / "python" / "support"))
from proving import prove

if TYPE_CHECKING:
    from multiprocessing.pool import AsyncResult

# A scenario takes about 50 ms, so a batch of them costs less to hand out.
BATCH = 20
SCRIPT = Path("target/soak.py")
PROOF = "proof"
OWN = "own blocks"
RESTARTS = "restarts"
STORES = "shared stores"
# One in so many seeds is also played with an engine that gives out its block ids itself, another
# one with restarts, and another one with a store that two engines share.
EVERY = 4


def say(line: str) -> None:
    """Prints a line at once, also into a pipe."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def sharing(seed: int) -> Scenario:
    """Returns a scenario with a shared store, of both kinds of engines in turns."""
    return Scenario.sharing(seed // EVERY)


def failures(first: int) -> tuple[list[tuple[int, str]], Counter[str]]:
    """Returns what is broken in a batch of seeds, and what has happened in them."""
    logging.getLogger("blockyard").setLevel(logging.CRITICAL)
    broken, seen = [], Counter[str]()
    for seed in range(first, first + BATCH):
        try:
            seen.update(simulate(Scenario.seeded(seed)).seen)
        except Broken as said:
            broken.append((seed, str(said)))
        for name, rest, made in (
            (OWN, 0, Scenario.own_blocks),
            (RESTARTS, EVERY // 2, Scenario.restarting),
            (STORES, EVERY - 1, sharing),
        ):
            try:
                if seed % EVERY == rest:
                    simulate(made(seed))
                    seen[name] += 1
            except Broken as said:
                broken.append((seed, f"{name}: {said}"))
    try:
        seen[PROOF] += bool(prove(first))
    except AssertionError as said:
        broken.append((first, f"{PROOF}: {said}"))
    return broken, seen


def parks(seed: int) -> tuple[int, bool, str]:
    """Returns the seed, whether a request was parked, and what is broken."""
    logging.getLogger("blockyard").setLevel(logging.CRITICAL)
    try:
        return seed, simulate(Scenario.alike(seed)).seen["stats parkings"] > 0, ""
    except Broken as said:
        return seed, False, str(said)


def alike(first: int, wanted: int, cores: int) -> int:
    """Runs seeds of equal requests until `wanted` have parked one; returns the exit status."""
    parked = seeds = 0
    with multiprocessing.get_context("spawn").Pool(cores) as pool:
        for at in count(first, BATCH * cores):
            for seed, has, what in pool.map(parks, range(at, at + BATCH * cores)):
                seeds, parked = seeds + 1, parked + has
                if what:
                    say(f"seed {seed} of `Scenario.alike`: {what}")
                    return 1
            if parked >= wanted:
                break
    say(f"{seeds:,} seeds from {first}: {parked:,} of them parked a request, and none was lost")
    return 0


def met(seen: Counter[str]) -> str:
    """Returns a table of faults, and how often each happened."""
    return "\n".join(f"{seen[row]:12,}  {row:18}  {what}" for row, what in ROWS.items())


def batches(first: int, seconds: float) -> Iterator[int]:
    """Yields first seeds of batches until the time is over."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield first
        first += BATCH


def script(seed: int, scenario: Scenario) -> str:
    """Returns a program that fails as the seed did."""
    return (
        f'"""Seed {seed}, minimised."""\n\n'
        "from blockyard.testing import Event, Scenario, Setup, simulate\n\n"
        f"simulate({scenario!r})\n"
    )


def soak(first: int, seconds: float, cores: int) -> int:
    """Runs until the time is over or a law is broken; returns the exit status."""
    began = said = time.monotonic()
    done, seen = 0, Counter[str]()
    with multiprocessing.get_context("spawn").Pool(cores) as pool:
        # Seeds are drawn when they are needed; `imap` would draw them all at once.
        running: deque[AsyncResult[tuple[list[tuple[int, str]], Counter[str]]]] = deque()
        todo = batches(first, seconds)
        while True:
            while len(running) < 2 * cores and (batch := next(todo, None)) is not None:
                running.append(pool.apply_async(failures, (batch,)))
            if not running:
                break
            broken, more = running.popleft().get()
            done += BATCH
            seen.update(more)
            if time.monotonic() - said > 5:
                said = time.monotonic()
                rate = done / (said - began)
                say(f"{said - began:6.0f} s  {done:8,} seeds  {rate:4.0f}/s")
            for seed, what in broken:
                say(f"seed {seed}: {what}")
            if broken:
                pool.terminate()
                seed, what = broken[0]
                if what.startswith(PROOF):
                    return 1
                kinds = {
                    OWN: Scenario.own_blocks,
                    RESTARTS: Scenario.restarting,
                    STORES: sharing,
                }
                made = kinds.get(what.partition(":")[0], Scenario.seeded)
                program = script(seed, minimised(made(seed)))
                SCRIPT.parent.mkdir(exist_ok=True)
                SCRIPT.write_text(program)
                say(f"\n{program}\nIt stands in {SCRIPT}, too.")
                return 1
    say(met(seen))
    say(f"{seen[PROOF]:,} proofs, none of which lost a token")
    say(f"{seen[OWN]:,} of them as an engine with blocks of its own, too")
    say(f"{seen[RESTARTS]:,} of them with restarts, too")
    say(f"{seen[STORES]:,} of them with a store that engines share, too")
    say(f"{done:,} seeds from {first}, none broken, in {time.monotonic() - began:.0f} s")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", type=float, nargs="?", default=60.0)
    parser.add_argument("--first", type=int, default=None, help="first seed; default: by the clock")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--alike", type=int, help="run equal requests instead, until as many seeds have parked one"
    )
    asked = parser.parse_args()
    first = time.time_ns() // 1_000_000 % 10**9 if asked.first is None else asked.first
    if asked.alike is not None:
        return alike(first, asked.alike, asked.cores)
    return soak(first, asked.seconds, asked.cores)


if __name__ == "__main__":
    sys.exit(main())
