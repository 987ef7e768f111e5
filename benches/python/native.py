"""The native rows: builds `benches/rust/floor.rs`, and lets callgrind count its instructions.

Which `memcpy` the C library takes is for the processor to say, and how long a `malloc` is for the
library. So that a count is the same everywhere, what our own program executes is added up from the
profile, and an allocation counts as a flat sum.
"""

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]
#: Approximate instructions of an allocation and its end.
ALLOCATION = 100
#: Instructions that only some processors have; valgrind hides them from a program so far.
UNEVEN = ("x86_sha::", "aarch64_sha2::")


def build(tree: Path = ROOT) -> str:
    """Builds the native program like the wheel, with symbols for callgrind; returns its path."""
    built = subprocess.run(
        [
            *("cargo", "build", "--locked", "--release", "--package", "blockyard-floor"),
            *("--config", 'profile.release.package.blockyard-floor.strip="none"'),
            *("--message-format", "json-render-diagnostics"),
        ],
        check=True,
        cwd=tree,
        stdout=subprocess.PIPE,
        text=True,
    )
    lines = [json.loads(line) for line in built.stdout.splitlines()]
    return next(str(line["executable"]) for line in lines if line.get("executable"))


def times(program: str, rows: Sequence[str], rounds: int) -> list[float]:
    """Returns the nanoseconds of an operation of each row, medians of rounds that take turns.

    Args:
        program: As `build` returns it.
        rows: Names, each with the blocks of its pool.
        rounds: How often each is played.
    """
    said = subprocess.run(
        [program, "serve"],
        input="\n".join([*rows] * rounds) + "\n",
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    seen = [float(line) for line in said.stdout.split()]
    return [median(seen[at :: len(rows)]) for at in range(len(rows))]


def can_count() -> bool:
    """Returns whether valgrind is installed."""
    return shutil.which("valgrind") is not None


@dataclass(frozen=True)
class Count:
    """The instructions of one operation of a row."""

    #: All instructions, with those of this machine's C library.
    here: float
    #: Those that are the same on every machine; None where some processors run others.
    even: float | None


def count(program: str, name: str, blocks: int, times: int = 1) -> Count:
    """Counts a row; with `times` above 1, as if it took as many times longer."""
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "profile"
        ran = subprocess.run(
            [
                *("valgrind", "--tool=callgrind", "--toggle-collect=*floor::measured"),
                *("--compress-strings=no", "--compress-pos=no"),
                *(f"--callgrind-out-file={profile}", program),
                *("count", name, str(blocks), str(times)),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        found = re.search(r"Collected : ([1-9]\d*)", ran.stderr)
        if ran.returncode != 0 or found is None:
            raise RuntimeError(f"{name}: {ran.stdout}{ran.stderr}")
        operations, allocations = map(int, ran.stdout.split())
        ours = own(profile.read_text(), program)
        even = None if ours is None else (ours + ALLOCATION * allocations) / operations
        return Count(int(found[1]) / operations, even)


def own(profile: str, program: str) -> int | None:
    """Returns a program's own instructions by its profile; None where counts are uneven."""
    total, ours, inclusive = 0, False, False
    for line in profile.splitlines():
        word, _, value = line.partition("=")
        match word:
            case "ob":
                ours = value == program
            case "fn" if ours and any(part in value for part in UNEVEN):
                return None
            case "calls":
                # The next line has the cost of the called function.
                inclusive = True
            case _ if line[:1].isdigit():
                total += int(line.split()[1]) if ours and not inclusive else 0
                inclusive = False
    return total
