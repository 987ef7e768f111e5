"""Checks that every law and table row has a test.

`docs/laws.md` is the map: a row begins with the name of a law or row, and its last column names
tests as `module::name`, where the module is a file under `tests/`, or one of the core with unit
tests. `--self-test` breaks the map in each way once and
sees that it is noticed.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from planted import Fault, noticed

CORE = [
    *(f"INV-{law}" for law in (*range(1, 8), 14, 17, 19)),
    *(f"INV-20{clause}" for clause in "abcdefghijkl"),
    *(f"INV-{law}" for law in (22, 23, 24, 33, 34)),
    *(f"E{law}" for law in range(1, 8)),
    *(f"2.1-{row}" for row in range(1, 6)),
    *(f"2.2-{row}" for row in range(1, 10)),
    *(
        f"2.3-{movement}-{end}"
        for movement in ("down", "up", "across")
        for end in ("ok", "failed", "unknown")
    ),
    *("2.3-again", "2.3-tail", "2.3-tail-air", "2.3-resumed"),
    *(f"2.7-{row}" for row in range(1, 6)),
    *(f"R2-{row}" for row in range(1, 10)),
    *(f"4.1-{row}" for row in range(1, 8)),
    *(f"4.2-{row}" for row in range(8, 16)),
    "4.3-20",
]
# Those of a disk: tests of its crate and in Python show them.
DISK = [f"INV-{law}" for law in (*range(26, 33), 37)]
# Those of what routers are told.
EVENTS = [f"O{law}" for law in range(1, 6)]
# Those of the scheduler, of the engines and of recordings: a Python test shows them.
SCHEDULER = [
    "INV-38",
    *("E8", "E9"),
    *(f"INV-{law}" for law in (*range(8, 14), 15, 16, 25)),
    *(f"T{row}" for row in (*range(1, 34), 35, 36)),
    *(f"2.5-{row}" for row in range(1, 5)),
    *(f"2.6-{row}" for row in range(1, 7)),
    *(f"R1-{row}" for row in (*range(1, 8), *range(9, 13))),
    *(f"R3-{row}" for row in (1, 2, *range(4, 17))),
    *(f"R4-{row}" for row in range(1, 9)),
    *(f"4.5-{row}" for row in (*range(30, 35), 36, 38)),
    "4.6-39",
    *(f"4.7-{row}" for row in range(40, 51)),
    *("O6", "O10"),
]
SHOWN = [*CORE, *DISK, *EVENTS, *SCHEDULER]
# Those that a later part of the project will show, or that do not apply:
# they need a row that says so.
LATER = [
    *("T34", "R3-3", "4.5-35", "4.5-37"),
]

ROW = re.compile(r"^\| *([\w.-]+) *\|(.*)\| *$")
TEST = re.compile(r"`(\w+)::(\w+)`")
RUST = r"#\[test\]\s*(?:#\[[^\n]*\]\s*)*(?:pub )?fn {}\("
PYTHON = r"^\s*(?:async )?def {}\("


def rows(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, name and last column of every table row."""
    for line, row in enumerate(text.splitlines(), 1):
        if found := ROW.match(row):
            yield line, found[1], found[2].rpartition("|")[2]


def exists(root: Path, module: str, test: str, *, ends: str = "") -> bool:
    """Whether a file of that name and ending has this test, under `tests/` or in the core."""
    places = {
        f"tests/**/{module}.rs": RUST,
        f"tests/**/{module}.py": PYTHON,
        f"rust/core/src/**/{module}.rs": RUST,
        f"rust/core/src/**/{module}/mod.rs": RUST,
        f"rust/core/src/**/{module}/tests.rs": RUST,
    }
    return any(
        re.search(pattern.format(test), file.read_text(), re.MULTILINE)
        for place, pattern in places.items()
        if place.endswith(ends)
        for file in root.glob(place)
    )


def holes(root: Path, text: str) -> Iterator[tuple[int, str]]:
    """Laws and rows that the map has not, or has twice, or does not test, with their lines."""
    seen: dict[str, int] = {}
    for line, name, tests in rows(text):
        if name not in SHOWN and name not in LATER:
            continue
        if name in seen:
            yield line, f"{name} has a row already, in line {seen[name]}"
        seen[name] = line
        named = TEST.findall(tests)
        if name in SHOWN and not named:
            yield line, f"{name} has no test"
        elif name in SCHEDULER and not any(exists(root, *test, ends=".py") for test in named):
            yield line, f"{name} has no test in Python"
        elif not tests.strip():
            yield line, f"{name} says neither a test nor why there is none"
    yield from ((1, f"{name} has no row") for name in (*SHOWN, *LATER) if name not in seen)


def complaints(root: Path) -> Iterator[str]:
    """Everything wrong with the map under `root`, as `file:line: what`."""
    where = "docs/laws.md"
    text = (root / where).read_text()
    for line, hole in holes(root, text):
        yield f"{where}:{line}: {hole}"
    for line, row in enumerate(text.splitlines(), 1):
        for module, test in TEST.findall(row):
            if module != "module" and not exists(root, module, test):
                yield f"{where}:{line}: there is no test {module}::{test}"


def good() -> dict[str, str]:
    """A map without holes, and its tests."""
    core = "".join(f"| {name} | what | `one::shown`, `test_two::test_shown` |\n" for name in SHOWN)
    later = "".join(f"| {name} | what | later |\n" for name in LATER)
    return {
        "docs/laws.md": f"`module::name` is a test.\n| law | what | tests |\n{core}{later}",
        "tests/rust/laws/one.rs": "#[test]\n#[ignore]\nfn shown() {}\nfn helper() {}\n",
        "tests/python/test_two.py": "def test_shown():\n    pass\n",
    }


FAULTS = {
    "a law without a row": Fault("docs/laws.md", "| INV-20d |", "| INV-20x |"),
    "a later law without a row": Fault("docs/laws.md", "| T34 |", "| T99 |"),
    "a law twice": Fault("docs/laws.md", "| INV-2 |", "| INV-1 |"),
    "a row of the scheduler without a row": Fault("docs/laws.md", "| T29 |", "| T99 |"),
    "a row of parking without a row": Fault("docs/laws.md", "| T17 |", "| T77 |"),
    "a row of the scheduler with a test in Rust alone": Fault(
        "docs/laws.md",
        "| R4-6 | what | `one::shown`, `test_two::test_shown` |",
        "| R4-6 | what | `one::shown` |",
    ),
    "a law without a test": Fault(
        "docs/laws.md",
        "| R2-4 | what | `one::shown`, `test_two::test_shown` |",
        "| R2-4 | `one::shown` | soon |",
    ),
    "an empty cell": Fault("docs/laws.md", "| T34 | what | later |", "| T34 | what | |"),
    "a test that is gone": Fault("tests/rust/laws/one.rs", "fn shown", "fn hidden"),
    "a function that is no test": Fault("tests/rust/laws/one.rs", "#[test]", ""),
    "a Python test that is gone": Fault("tests/python/test_two.py", "test_shown", "test_hidden"),
    "a module that is gone": Fault("docs/laws.md", "`one::shown`", "`three::shown`"),
}


def main() -> None:
    """Checks the project, or with `--self-test` this script."""
    if sys.argv[1:] == ["--self-test"]:
        noticed("laws", complaints, good(), FAULTS)
        return
    found = list(complaints(Path(__file__).resolve().parent.parent))
    counts = f"{len(SHOWN)} laws and rows have tests"
    print("\n".join(found) or f"laws: {counts}")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
