"""Breaks one law at a time in a copy of the tree: one of the tests named for it must fail.

The mutants are rows of `tests/mutants/*.toml`; `mutants.py` says what a row is. A test of the
package runs on the core of the installed wheel, unless the mistake is in Rust.

    python .ci/mutate.py [NAME ...]
"""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from mutants import Mutant, complaints, mutants

from blockyard import _core

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "target" / "mutants"


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


NEXTEST = ["cargo", "nextest", "run", "--locked", "--lib", "--test", "laws", "--test", "disk"]
NEXTEST += ["--package", "blockyard-core", "--package", "blockyard-disk"]
BINDING = ["cargo", "build", "--locked", "--package", "blockyard-py"]
PYTEST = [sys.executable, "-m", "pytest", "--quiet", "--exitfirst", "-p", "no:cacheprovider"]
# A mistake in Rust is built for debugging, which the package warns of when it is imported.
PYTEST += ["-W", "ignore:blockyard is a debug build:RuntimeWarning"]
# What the two exit with when tests ran and some failed; anything else is another mishap.
NEXTEST_FAILED, PYTEST_FAILED = 100, 1


class DidNotRun(Exception):
    """The tests did not come to run, which says nothing of a mutant."""


def fails(tree: Path, tests: list[str], *, python: bool) -> str | None:
    """What the first of these tests to fail says, or None when all pass."""
    ran = run([*PYTEST, *tests] if python else [*NEXTEST, "-E", " + ".join(tests)], tree)
    said = ran.stdout + ran.stderr
    if ran.returncode not in (0, PYTEST_FAILED if python else NEXTEST_FAILED):
        raise DidNotRun(f"{', '.join(tests)} did not run: {said.strip()[-500:]}")
    if ran.returncode == 0:
        return None
    why = re.search(r"(?:^E +|panicked at .*\n *)(.{1,120})", said, re.MULTILINE)
    return why[1] if why else "it did not end"


def judge(mutant: Mutant, tree: Path) -> tuple[bool, str]:
    """Whether a test has noticed the mutant, and what it said; or else why the mutant lives."""
    mutant.mutate(tree)
    if mutant.rust:
        built = run(BINDING if mutant.python else [*NEXTEST, "--no-run"], tree)
        if built.returncode != 0:
            return False, f"it does not build: {built.stderr.strip()[-500:]}"
        if mutant.python:
            built_core = WORK / "target/debug/lib_core.so"
            shutil.copyfile(built_core, tree / "python/blockyard" / Path(_core.__file__).name)
    try:
        why = fails(tree, list(mutant.tests), python=mutant.python)
    except DidNotRun as error:
        return False, str(error)
    return bool(why), why or "no test named for it fails"


def main(names: list[str]) -> None:
    """Judges all mutants, or those named."""
    if found := list(complaints(ROOT)):
        sys.exit("\n".join(found))
    rows = mutants(ROOT)
    if unknown := set(names) - {mutant.name for mutant in rows}:
        sys.exit(f"no mutant is named {', '.join(sorted(unknown))}")
    rows = [mutant for mutant in rows if not names or mutant.name in names]
    tree = fresh_copy()
    for python in {mutant.python for mutant in rows}:
        tests = {test for mutant in rows if mutant.python == python for test in mutant.tests}
        if why := fails(tree, sorted(tests), python=python):
            sys.exit(f"the tests fail without any mutant: mend them first: {why}")
    alive = 0
    for mutant in rows:
        start = time.monotonic()
        killed, why = judge(mutant, fresh_copy())
        verdict = "killed" if killed else "ALIVE"
        spent = time.monotonic() - start
        print(f"{verdict:6} {mutant.law:12} {mutant.name} ({spent:.0f} s): {why}", flush=True)
        alive += not killed
    print(f"{len(rows) - alive} passed, {alive} failed")
    sys.exit(1 if alive else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
