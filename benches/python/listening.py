"""What events cost, in Rust alone: for the verbs without and with a listener, and outside the lock.

    python benches/python/listening.py [--rounds 5] [--quick]

The rows with and without a listener take turns; figures are thread CPU time, medians of the rounds.
For how long a slice holds the lock another thread finds out, which asks for it all the time. Where
valgrind is installed, the instructions of verbs in a cache without a listener are counted beside
those of a build in which nothing is ever told; `--quick` leaves that out. It fails where a target
is missed. Beside vLLM: `make bench-peers ROWS="events events-beside"`.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

import native

ROOT = Path(__file__).parents[2]
BLOCKS = 100_000
#: Blocks of a request that are published; as many go.
NEW = 117
#: Blocks per second of 1,000 requests of 306 new blocks.
PER_SECOND = 306_000
ROWS = (*("quiet-begin", "told-begin", "quiet-seal", "told-seal"), *("told-drain", "told-snapshot"))
VERBS = ("begin", "grow", "seal")


class Line(NamedTuple):
    """A figure, and the most that it may be."""

    what: str
    value: float
    most: float | None

    @property
    def missed(self) -> bool:
        """Whether it is over its target."""
        return self.most is not None and self.value > self.most


def times(program: str, rounds: int) -> dict[str, float]:
    """Returns the nanoseconds of an operation of each row."""
    lines = [f"{row} {BLOCKS}" for row in ROWS]
    ran = subprocess.run(
        [program, "serve"],
        input="\n".join(lines * rounds) + "\n",
        check=True,
        capture_output=True,
        text=True,
    )
    seen = [float(line) for line in ran.stdout.split()]
    return {row: median(seen[at :: len(ROWS)]) for at, row in enumerate(ROWS)}


def slices(program: str) -> list[float]:
    """Returns the microseconds for which slices of a retelling held the lock."""
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
    doors = folder / "rust/core/src/state/tell.rs"
    text, changed = re.subn(r"self\.events\.is_some\(\)", "false", doors.read_text())
    text, more = re.subn(r"self\.events\.is_none\(\)", "true", text)
    if changed < len(VERBS) or not more:
        raise RuntimeError(f"{doors.name} asks {changed + more} times whether somebody listens")
    doors.write_text(text)
    return native.build(folder)


def instructions(program: str) -> Iterator[Line]:
    """Yields by how much a branch makes each verb dearer, in percent."""
    with tempfile.TemporaryDirectory() as folder:
        without = deaf(Path(folder))
        for verb in VERBS:
            here, there = (native.count(one, verb, BLOCKS).here for one in (program, without))
            yield Line(
                f"a {verb} without a listener, % more instructions", 100 * (here / there - 1), 0.5
            )


def figures(program: str, rounds: int) -> Iterator[Line]:
    """Yields the figures of the native rows."""
    took = times(program, rounds)
    begin = (took["told-begin"] - took["quiet-begin"]) / NEW
    seal = (took["told-seal"] - took["quiet-seal"]) / (2 * NEW)
    drain = took["told-drain"]
    yield Line("a block that goes, under the lock, ns", begin, 30.0)
    yield Line("a block that is published: its name and its word, each, ns", seal, 30.0)
    yield Line(
        "the message, for a block that comes with its 16 tokens and one that goes, ns", drain, 100.0
    )
    share = PER_SECOND * (drain + begin + 2 * seal) / 1e7
    yield Line(f"{PER_SECOND:,} blocks/s, all of it, % of a core", share, 4.0)
    yield Line(f"a snapshot of {BLOCKS:,} blocks, ms", took["told-snapshot"] / 1e6, 15.0)
    held = slices(program)
    yield Line("a slice of a retelling holds the lock, median, µs", median(held), 100.0)
    yield Line(
        f"the longest of {len(held)}, with what the machine did meanwhile, µs", max(held), None
    )


def main() -> int:
    """Prints a table, and fails where a target is missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    program = native.build()
    lines = list(figures(program, asked.rounds))
    if not asked.quick and native.can_count():
        lines += instructions(program)
    print("| | | target |\n|---|--:|--:|")
    for line in lines:
        most = "" if line.most is None else f"{line.most:g}"
        print(f"| {line.what} | {line.value:.3g} | {most} |")
    missed = [line.what for line in lines if line.missed]
    print("".join(f"missed: {what}\n" for what in missed), end="")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
