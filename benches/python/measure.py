"""`make measure`: the table of `docs/measurements.md`.

Each row runs from Python through the release wheel and natively, interleaved: seven repeats after
warm-up, median, thread CPU time; the batch is prepared outside the timer. Instructions are
callgrind's, for the native run. A row is met at its target or at three times its native floor.
"""

import argparse
import platform
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

import blockyard as by
import native
from rows import BLOCK, PLAN, TURN, Rig, median, nanoseconds, row

REPEATS = 7
#: Name, description, and target in ns per operation.
ROWS: list[tuple[str, str, float]] = [
    ("probe", "probe without keys", 300),
    ("match64", "match of 64 blocks", 2_000),
    ("match128", "match of 128 blocks", 4_000),
    ("begin", "begin, 306 blocks of which 117 new", 15_000),
    ("finish", "finish, 306 blocks", 5_000),
    ("seal", "seal, 117 blocks", 1_000 + 60 * 117),
    ("park", "park, 306 blocks", 1_000 + 60 * TURN),
    ("resume", "resume, 306 blocks", 1_000 + 60 * TURN),
    ("demote", "demote, 64 blocks", 1_000 + 60 * PLAN),
    ("promote", "promote, 64 blocks", 1_000 + 60 * PLAN),
    ("commit", "commit, 64 blocks", 1_000 + 60 * PLAN),
    ("decode", "decode step of 256: append, grow, changed cells, seal", 30_000),
    ("grow", "grow of 256", 5_000),
    ("evict4-list", "begin that evicts 4 of 25,000 leaves, list", 2_000),
    ("evict4-heap", "begin that evicts 4 of 25,000 leaves, heap", 2_000),
    ("evict4-learned", "begin that evicts 4 of 25,000 leaves, learned", 3_000),
    ("keys", "keys, per block of 16 tokens", 150),
]
#: Rows that make their own pool; they are measured once.
ONCE: list[tuple[str, str, float]] = [
    ("evict4-list-air", "the same with 64 blocks of a chain in flight, list", 3_000),
    ("evict4-heap-air", "the same with 64 blocks of a chain in flight, heap", 3_000),
    ("evict1000-list", "begin that evicts 1,000 of 1,000,000, list", 500_000),
    ("evict1000-heap", "begin that evicts 1,000 of 1,000,000, heap", 1_500_000),
    ("evict1000-learned", "begin that evicts 1,000 of 1,000,000, learned", 1_500_000),
]
OWN_POOL = {"keys", "evict4-list", "evict4-heap", "evict4-learned"}


class Floor:
    """The native process, which stays running so that both sides are measured in turns."""

    def __init__(self) -> None:
        self.path = native.build()
        self.process = subprocess.Popen(
            [self.path, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, line: str) -> str:
        """Sends a line to the native process, and returns its answer."""
        if self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("the native side is not running")
        print(line, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline().strip()
        if not answer:
            raise RuntimeError(f"the native side ended at {line!r}")
        return answer

    def once(self, *words: object) -> list[str]:
        """Runs a native process once."""
        ran = subprocess.run(
            [self.path, *map(str, words)], check=True, stdout=subprocess.PIPE, text=True
        )
        return ran.stdout.splitlines()


def compare(floor: Floor, name: str, blocks: int) -> tuple[float, float]:
    """Returns the Python and the native median of a row, in ns per operation."""
    work = row(name, blocks)
    nanoseconds(work)
    ours, theirs = [], []
    for _ in range(REPEATS):
        ours.append(nanoseconds(work))
        theirs.append(float(floor.ask(f"{name} {blocks}")))
    del work
    floor.ask("forget")
    return median(ours), median(theirs)


def table(floor: Floor, rows: list[tuple[str, str, float]], blocks: int, *, count: bool) -> None:
    """Prints rows as Markdown."""
    print("| row | target | from Python | native | instructions | met |")
    print("|---|--:|--:|--:|--:|---|")
    for name, what, target in rows:
        ours, theirs = compare(floor, name, blocks)
        counted = f"{native.count(floor.path, name, blocks).here:,.0f}" if count else ""
        met = "yes" if ours <= target else "by the floor" if ours <= 3 * theirs else "no"
        print(
            f"| {what} | {target:,.0f} | {ours:,.0f} | {theirs:,.0f} | {counted} | {met} |",
            flush=True,
        )


class Calls:
    """An endless series of calls on sequences of all lengths."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.leases: list[by.Lease] = []
        self.plans: list[by.Plan] = []

    def begin(self, keys: by.Keys) -> None:
        """Calls a verb whose result later ones take."""
        self.leases.append(self.rig.cache.begin(keys, reserve=64))

    def demote(self) -> None:
        """Calls any other verb."""
        plan = self.rig.cache.demote(PLAN)
        self.plans.extend([] if plan is None else [plan])

    def __iter__(self) -> Iterator[tuple[str, int, Callable[[], object]]]:
        """Yields the verb, the blocks that it names, and the call."""
        cache, turn = self.rig.cache, 0
        while True:
            turn += 1
            length = 1 + turn * 7919 % TURN
            keys = self.rig.keys(self.rig.fresh(length))
            yield "begin", length + 5, partial(self.begin, keys)
            lease = self.leases.pop()
            yield "seal", length, partial(cache.seal, lease, length * BLOCK)
            yield "grow", 1, partial(cache.grow, lease, 16)
            yield "finish", length + 2, partial(cache.finish, lease)
            yield "demote", PLAN, self.demote
            while self.plans:
                plan = self.plans.pop()
                yield "commit", len(plan), partial(cache.commit, plan)


def worst(blocks: int, many: int) -> tuple[int, str, int, float]:
    """Returns the call furthest above its bound: ns, verb, blocks, and share of the bound."""
    rig = Rig(blocks, blocks, "recency", 100)
    furthest = (0, "", 0, 0.0)
    for at, (verb, named, call) in enumerate(Calls(rig)):
        if at == many:
            break
        start = time.thread_time_ns()
        call()
        spent = time.thread_time_ns() - start
        share = spent / max(200_000, 40 * named)
        if share > furthest[3]:
            furthest = (spent, verb, named, share)
    return furthest


def beside(busy: bool) -> float:
    """Returns the wall time of a short verb in ns, alone or beside one busy Python thread."""
    rig = Rig(10_000, 0, "recency", 100)
    lease = rig.cache.begin(rig.keys(rig.fresh(64)), reserve=100_000)
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            sum(range(100))

    thread = threading.Thread(target=spin)
    if busy:
        thread.start()
    times = []
    for _ in range(20_000):
        start = time.perf_counter_ns()
        rig.cache.grow(lease, 0)
        times.append(time.perf_counter_ns() - start)
    stop.set()
    if busy:
        thread.join()
    return median(times)


def ticks() -> tuple[int, float]:
    """Returns how often a Python thread ran during one long call, and its duration in ms."""
    cache = by.KVCache(device=64)
    tokens = np.arange(8_000_000, dtype=np.uint32)
    count, done = 0, threading.Event()

    def tick() -> None:
        nonlocal count
        while not done.is_set():
            count += 1
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    while count == 0:
        time.sleep(0.001)
    before, start = count, time.perf_counter()
    cache.keys(tokens)
    during, spent = count - before, time.perf_counter() - start
    done.set()
    thread.join()
    return during, spent * 1000


def main() -> None:
    """Prints the tables of `docs/measurements.md`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=[100_000, 1_000_000])
    parser.add_argument("--rows", nargs="*", default=None, help="only these rows")
    parser.add_argument("--calls", type=int, default=1_000_000)
    arguments = parser.parse_args()
    if by._core.DEBUG:
        sys.exit("this is a debug build: run `make measure`, which installs the release wheel")
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    print(f"{cpu[1] if cpu else platform.processor()}, Python {platform.python_version()}\n")
    floor = Floor()
    for at, blocks in enumerate(arguments.sizes):
        rows = [one for one in ROWS if arguments.rows is None or one[0] in arguments.rows]
        if at > 0:
            rows = [one for one in rows if one[0] not in OWN_POOL]
        print(f"\n### Full pool of {blocks:,} blocks, ns per operation\n")
        table(floor, rows, blocks, count=at == 0)
    if arguments.rows is not None:
        return
    print("\n### Pools of their own, ns per operation\n")
    table(floor, ONCE, 0, count=False)
    print("\n### Worst of a million calls\n")
    runs = sorted((worst(100_000, arguments.calls) for _ in range(3)), key=lambda run: run[3])
    for spent, verb, named, share in runs:
        print(f"- {verb} naming {named} blocks: {spent / 1000:.0f} µs, {share:.0%} of its bound")
    print("\nNatively:\n")
    for line in floor.once("worst", 100_000, arguments.calls):
        print(f"- {line}")
    print("\n### Live bytes per slot, two tiers\n")
    for slots in (10_000, 1_000_000, 10_000_000):
        print(f"- {slots:,} slots: {floor.once('bytes', slots)[0]}")
    print("\n### Beside one busy Python thread\n")
    alone, busy = beside(busy=False), beside(busy=True)
    print(f"- a short verb alone {alone:.0f} ns, beside it {busy:.0f} ns: {busy / alone:.2f} times")
    during, spent_ms = ticks()
    print(f"- a 1 ms ticker ran {during} times during one call of {spent_ms:.0f} ms")


if __name__ == "__main__":
    main()
