"""Breaks one law at a time in a copy of the tree: one of the tests named for it must fail.

A mutant is a patch in this folder whose first lines say which law it breaks and which tests must
notice; `docs/laws.md` lists them all. One of the core names nextest filters of the tests in
`tests/rust/laws`, one of the package names pytest ids, and runs on the core of the installed wheel:

    law: INV-20a
    test: test(=order::a_lease_pins_its_whole_path_so_that_nothing_above_it_can_go)
    --- a/rust/core/src/...

    law: T8
    test: tests/python/test_scheduler.py::test_t8_tokens_that_come_before_the_ack_count
    --- a/python/blockyard/...

    python tests/mutants/run.py [NAME ...]
"""

import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from blockyard import _core

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WORK = ROOT / "target" / "mutants"


@dataclass(frozen=True)
class Mutant:
    """A patch and what it claims."""

    path: Path
    law: str
    tests: list[str]
    python: bool

    @classmethod
    def read(cls, path: Path) -> "Mutant":
        """A mutant without a law or without a test is no mutant."""
        head, *changes = path.read_text().split("--- a/")
        claims = [line.partition(": ") for line in head.splitlines() if ": " in line]
        laws = [value for name, _, value in claims if name == "law"]
        tests = [value for name, _, value in claims if name == "test"]
        if len(laws) != 1 or not tests:
            sys.exit(f"{path.name}: begin it with one `law: ...` and one or more `test: ...`")
        python = any(change.startswith("python/") for change in changes)
        return cls(path, laws[0], tests, python)


def run(words: list[str], tree: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command in the copy, with a target folder that all mutants share."""
    own = {
        "CARGO_TARGET_DIR": str(WORK / "target"),
        "GIT_CEILING_DIRECTORIES": str(WORK),
        "PYTHONPATH": str(tree / "python"),
        # Two mutants of one second and one size look the same to it.
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return subprocess.run(
        words, cwd=tree, env=os.environ | own, capture_output=True, text=True, check=False
    )


def fresh_copy() -> Path:
    """The tree as git would have it: tracked files, and new ones that are not ignored.

    Beside the package stands the core of the installed wheel.
    """
    tree = WORK / "tree"
    listed = run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], ROOT)
    wanted = {name: ROOT / name for name in listed.stdout.split("\0") if (ROOT / name).is_file()}
    core = Path(_core.__file__)
    wanted[f"python/blockyard/{core.name}"] = core
    if tree.exists():
        for path in tree.rglob("*"):
            if path.is_file() and str(path.relative_to(tree)) not in wanted:
                path.unlink()
    for name, source in wanted.items():
        copy = tree / name
        # What has not changed keeps its time stamp, so that cargo builds only what has.
        if not copy.exists() or copy.read_bytes() != source.read_bytes():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
    return tree


NEXTEST = ["cargo", "nextest", "run", "--locked", "--package", "blockyard-core", "--test", "laws"]
PYTEST = [sys.executable, "-m", "pytest", "--quiet", "--exitfirst", "-p", "no:cacheprovider"]
# What the two exit with when tests ran and some failed; anything else is another mishap.
NEXTEST_FAILED, PYTEST_FAILED = 100, 1


def fails(tree: Path, tests: list[str], *, python: bool) -> str | None:
    """What the first of these tests to fail says, or None when all pass."""
    ran = run([*PYTEST, *tests] if python else [*NEXTEST, "-E", " + ".join(tests)], tree)
    said = ran.stdout + ran.stderr
    if ran.returncode not in (0, PYTEST_FAILED if python else NEXTEST_FAILED):
        sys.exit(f"{', '.join(tests)} did not run: {said.strip()[-500:]}")
    if ran.returncode == 0:
        return None
    why = re.search(r"(?:^E +|panicked at .*\n *)(.{1,120})", said, re.MULTILINE)
    return why[1] if why else "it did not end"


def judge(mutant: Mutant, tree: Path) -> tuple[bool, str]:
    """Whether a test has noticed the mutant, and what it said; or else why the mutant lives."""
    applied = run(["git", "apply", str(mutant.path)], tree)
    if applied.returncode != 0:
        return False, f"it does not apply: {applied.stderr.strip()}"
    if not mutant.python:
        built = run([*NEXTEST, "--no-run"], tree)
        if built.returncode != 0:
            return False, f"it does not build: {built.stderr.strip()[-500:]}"
    why = fails(tree, mutant.tests, python=mutant.python)
    return bool(why), why or "no test named for it fails"


def main(names: list[str]) -> None:
    """Judges all mutants, or those named."""
    mutants = [Mutant.read(path) for path in sorted(HERE.glob("*.patch"))]
    mutants = [mutant for mutant in mutants if not names or mutant.path.stem in names]
    if not mutants:
        sys.exit(f"no mutant is named {names}")
    tree = fresh_copy()
    for python in {mutant.python for mutant in mutants}:
        tests = {test for mutant in mutants if mutant.python == python for test in mutant.tests}
        if why := fails(tree, sorted(tests), python=python):
            sys.exit(f"the tests fail without any mutant: mend them first: {why}")
    alive = []
    for mutant in mutants:
        start = time.monotonic()
        killed, why = judge(mutant, fresh_copy())
        verdict = "killed" if killed else "ALIVE"
        spent = time.monotonic() - start
        print(f"{verdict:6} {mutant.law:12} {mutant.path.stem} ({spent:.0f} s): {why}", flush=True)
        alive += [] if killed else [mutant]
    print(f"{len(mutants) - len(alive)} passed, {len(alive)} failed")
    sys.exit(1 if alive else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
