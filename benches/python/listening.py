"""What events cost, in Rust alone: for the verbs without and with a listener, and outside the lock.

    python benches/python/listening.py [--rounds 5] [--builds 1]

The rows with and without a listener take turns; figures are thread CPU time, medians of the rounds.
For how long a slice holds the lock another thread finds out, which asks for it all the time. Where
valgrind is installed, the instructions of verbs in a cache without a listener are counted beside
those of a build in which nothing is ever told; `--builds 0` leaves that out. It fails where a
target is missed. Beside vLLM: `make bench-peers ROWS="events events-beside"`.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import native
from report import Figure, asked, report

ROOT = Path(__file__).parents[2]
BLOCKS = 100_000
#: Blocks of a request that are published; as many go.
NEW = 117
#: Blocks per second of 1,000 requests of 306 new blocks.
PER_SECOND = 306_000
ROWS = (*("quiet-begin", "told-begin", "quiet-seal", "told-seal"), *("told-drain", "told-snapshot"))
VERBS = ("begin", "grow", "seal")


def slices(program: str) -> list[float]:
    """Returns the microseconds for which slices of a resync held the lock."""
    ran = subprocess.run([program, "slices", str(BLOCKS)], check=True, capture_output=True)
    return [int(one) / 1e3 for one in ran.stdout.split()]


def deaf(folder: Path) -> str:
    """Builds the rows from a copy of the tree in which no door tells anything."""
    copied = ("Cargo.toml", "Cargo.lock", "rust", "benches/rust", "tests/rust", "pyproject.toml")
    for name in copied:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name)
        else:
            shutil.copy(ROOT / name, folder / name)
    doors = folder / "rust/core/src/state/emit.rs"
    text, changed = re.subn(r"self\.events\.is_some\(\)", "false", doors.read_text())
    text, more = re.subn(r"self\.events\.is_none\(\)", "true", text)
    if changed < len(VERBS) or not more:
        raise RuntimeError(f"{doors.name} asks {changed + more} times whether somebody listens")
    doors.write_text(text)
    return native.build(folder)


def instructions(program: str) -> Iterator[Figure]:
    """Yields by how much a branch makes each verb dearer, in percent."""
    with tempfile.TemporaryDirectory() as folder:
        without = deaf(Path(folder))
        for verb in VERBS:
            here, there = (native.count(one, verb, BLOCKS).here for one in (program, without))
            yield Figure(
                f"a {verb} without a listener, % more instructions", 100 * (here / there - 1), 0.5
            )


def timed(program: str, rounds: int) -> Iterator[Figure]:
    """Yields the figures of the native rows."""
    took = dict(
        zip(ROWS, native.times(program, [f"{row} {BLOCKS}" for row in ROWS], rounds), strict=True)
    )
    begin = (took["told-begin"] - took["quiet-begin"]) / NEW
    seal = (took["told-seal"] - took["quiet-seal"]) / (2 * NEW)
    drain = took["told-drain"]
    yield Figure("a block that goes, under the lock, ns", begin, 30.0)
    yield Figure("a block that is published: its tokens and its place, each, ns", seal, 30.0)
    yield Figure(
        "copy and message of a block that comes with its 16 tokens and of one that goes, ns",
        drain,
        100.0,
    )
    share = PER_SECOND * (drain + begin + 2 * seal) / 1e7
    yield Figure(f"{PER_SECOND:,} blocks/s, all of it, % of a core", share, 4.0)
    yield Figure(f"a snapshot of {BLOCKS:,} blocks, ms", took["told-snapshot"] / 1e6, 15.0)
    held = slices(program)
    yield Figure("a slice of a resync holds the lock, median, µs", median(held), 100.0)
    yield Figure(f"the longest of {len(held)}, with what the machine did meanwhile, µs", max(held))


def figures(rounds: int, builds: int) -> Iterator[Figure]:
    """Yields all of them."""
    program = native.build()
    yield from timed(program, rounds)
    if builds and native.can_count():
        yield from instructions(program)


if __name__ == "__main__":
    given = asked(__doc__, rounds=5, builds=1)
    sys.exit(report(figures(given.rounds, given.builds), given.json))
