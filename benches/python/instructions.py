"""`make bench-check`: has an operation of the core, or a step around it, become dearer?

Compares what callgrind counts with `benches/rust/instructions.json`, and the bytecode of a step,
where the Python is the same. A row that executes over 5 % more instructions fails; one that
executes as many fewer asks for new figures, so that it stays so. `--update` writes them, for a
commit that says why. Before it counts the rows, it plants changes and slows a row down, and sees
that they are noticed.
"""

import json
import os
import platform
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import bytecodes
import native

FIGURES = Path(__file__).parents[1] / "rust" / "instructions.json"
#: Of the full pool.
BLOCKS = 100_000
ROWS = [
    *("probe", "match64", "match300", "adopt1000", "adopt1000-known"),
    *("begin", "begin-spare", "spare", "begin-two-tiers", "begin-three-tiers"),
    *("seal", "finish"),
    *("park", "resume", "demote", "promote"),
    *(
        "commit",
        "commit-lease",
        "decode",
        "decode-step",
        "grow",
        "evict4-list",
        "evict4-heap",
        "keys",
    ),
    *("begin-learned", "finish-learned", "evict4-learned"),
    *("told-begin", "told-seal", "told-seal-known", "told-drain"),
    *(
        "engine-find",
        "engine-which",
        "engine-fetch",
        "engine-offload",
        "engine-land",
        "engine-step",
    ),
]
ALLOWED = 0.05
RENEW = "to renew the figures: make bench-check UPDATE=1, and say why in the commit"


@dataclass
class Figures:
    """Instructions per operation, and the code that they belong to."""

    compiler: str
    python: str
    rows: dict[str, float]

    @classmethod
    def read(cls) -> "Figures":
        """Reads the committed figures."""
        return cls(**json.loads(FIGURES.read_text()))

    def write(self) -> None:
        """Writes figures that can be committed."""
        FIGURES.write_text(json.dumps(vars(self), indent=2) + "\n")


@dataclass
class Verdict:
    """Errors, and other remarks."""

    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def judge(known: dict[str, float], seen: dict[str, float]) -> Verdict:
    """Compares figures row by row."""
    verdict = Verdict()
    for row in sorted(known.keys() | seen.keys()):
        if row not in seen:
            verdict.failures.append(f"{row} has a figure, and is not counted")
        elif row not in known:
            verdict.failures.append(f"{row} has no figure")
        else:
            change = seen[row] / known[row] - 1
            line = f"{row}: {known[row]:,} -> {seen[row]:,} instructions, {change:+.1%}"
            if change > ALLOWED:
                verdict.failures.append(line)
            elif change < -ALLOWED:
                verdict.notes.append(line)
    return verdict


def compiler() -> str:
    """Returns the compiler and its target."""
    said = subprocess.run(["rustc", "-vV"], check=True, stdout=subprocess.PIPE, text=True).stdout
    host = re.search(r"^host: (.*)$", said, re.MULTILINE)
    return f"{said.splitlines()[0]}, {host[1] if host else 'host unknown'}"


def count(program: str) -> tuple[dict[str, float], list[str]]:
    """Returns all rows that are the same on every machine, and the names of the others."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        counts = [pool.submit(native.count, program, row, BLOCKS) for row in ROWS]
    seen = {row: one.result().even for row, one in zip(ROWS, counts, strict=True)}
    rows = {row: round(even, 1) for row, even in seen.items() if even is not None}
    return rows, [row for row in ROWS if row not in rows]


def interpreter() -> str:
    """Returns the Python, whose versions each have a bytecode of their own."""
    return f"{platform.python_implementation()} {'.'.join(platform.python_version_tuple()[:2])}"


def skip(reason: str) -> int:
    """Returns the exit status: what a machine lacks is an error if BLOCKYARD_REQUIRE names it."""
    required = "valgrind" in os.environ.get("BLOCKYARD_REQUIRE", "").split()
    print(f"bench-check: {'required here' if required else 'skipped'}: {reason}")
    return int(required)


def self_test(program: str) -> None:
    """Tests that a real change is noticed, and that no change is not."""
    known = {"one": 1000.0, "other": 500.0}
    for change, failures, notes in [(0, 0, 0), (4, 0, 0), (6, 1, 0), (-4, 0, 0), (-6, 0, 1)]:
        verdict = judge(known, known | {"one": 1000.0 + 10 * change})
        said = len(verdict.failures), len(verdict.notes)
        if said != (failures, notes):
            raise RuntimeError(f"a planted change of {change} %: {verdict}")
    if not judge(known, {"one": 1000.0}).failures or not judge({"one": 1000.0}, known).failures:
        raise RuntimeError("a row without a figure, or a figure without a row, is not noticed")
    once, twice = (native.count(program, "match64", 1000, times).even for times in (1, 2))
    if once is None or twice is None or judge({"match64": once}, {"match64": once}).failures:
        raise RuntimeError("a row does not agree with itself")
    step, steps = (bytecodes.count("step-idle", times) for times in (1, 2))
    for one, both in ((once, twice), (step, steps)):
        if not judge({"row": one}, {"row": both}).failures:
            raise RuntimeError(f"a row of twice the work is not noticed: {one} -> {both}")


def main() -> int:
    """Checks the figures, or writes them with `--update`."""
    if not native.can_count():
        return skip("no valgrind to count with (Debian, Ubuntu: the package valgrind)")
    update, known, here = "--update" in sys.argv, Figures.read(), compiler()
    if here != known.compiler and not update:
        return skip(f"the figures are those of {known.compiler}, here is {here}; {RENEW}")
    program = native.build()
    self_test(program)
    rows, uneven = count(program)
    for row in uneven:
        print(f"bench-check: {row}: not compared, this valgrind shows what some processors lack")
    if interpreter() == known.python or update:
        rows |= {row: round(bytecodes.count(row), 1) for row in bytecodes.ROWS}
    else:
        uneven += bytecodes.ROWS
        print(f"bench-check: steps: not compared, their figures are those of {known.python}")
    verdict = judge({row: known.rows[row] for row in known.rows if row not in uneven}, rows)
    for line in (*verdict.notes, *verdict.failures):
        print(f"bench-check: {line}")
    if update:
        kept = known.rows | rows
        order = (*ROWS, *bytecodes.ROWS)
        Figures(here, interpreter(), {row: kept[row] for row in order if row in kept}).write()
        print(f"bench-check: new figures in {FIGURES.name}; say why in the commit")
        return 0
    if verdict.failures or verdict.notes:
        print(f"bench-check: {RENEW}")
    if verdict.failures:
        return 1
    print(f"bench-check: of {len(rows)} rows none is over {ALLOWED:.0%} dearer than its figure")
    return 0


if __name__ == "__main__":
    sys.exit(main())
