"""Breaks one law at a time in a copy of the tree: one of the tests named for it must fail.

A mutant is a patch in this folder whose first lines say which law it breaks and which tests must
notice, each a nextest filter of the core's tests:

    law: INV-20 a
    test: test(=pins_are_closed_towards_the_root)
    --- a/rust/core/src/...

    python tests/mutants/run.py [NAME ...]
"""

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WORK = ROOT / "target" / "mutants"


@dataclass(frozen=True)
class Mutant:
    """A patch and what it claims."""

    path: Path
    law: str
    tests: list[str]

    @classmethod
    def read(cls, path: Path) -> "Mutant":
        """A mutant without a law or without a test is no mutant."""
        head = path.read_text().split("--- a/")[0].splitlines()
        claims = [line.partition(": ") for line in head if ": " in line]
        laws = [value for name, _, value in claims if name == "law"]
        tests = [value for name, _, value in claims if name == "test"]
        if len(laws) != 1 or not tests:
            sys.exit(f"{path.name}: begin it with one `law: ...` and one or more `test: ...`")
        return cls(path, laws[0], tests)


def run(words: list[str], tree: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command in the copy, with a target folder that all mutants share."""
    own = {"CARGO_TARGET_DIR": str(WORK / "target"), "GIT_CEILING_DIRECTORIES": str(WORK)}
    return subprocess.run(
        words, cwd=tree, env=os.environ | own, capture_output=True, text=True, check=False
    )


def fresh_copy() -> Path:
    """The tree as git would have it: tracked files, and new ones that are not ignored."""
    tree = WORK / "tree"
    listed = run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], ROOT)
    wanted = {name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()}
    if tree.exists():
        for path in tree.rglob("*"):
            if path.is_file() and str(path.relative_to(tree)) not in wanted:
                path.unlink()
    for name in wanted:
        source, copy = ROOT / name, tree / name
        # What has not changed keeps its time stamp, so that cargo builds only what has.
        if not copy.exists() or copy.read_bytes() != source.read_bytes():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
    return tree


TEST = ["cargo", "nextest", "run", "--locked", "--package", "blockyard-core", "--no-fail-fast"]


def passes(tree: Path, tests: list[str]) -> bool:
    """Whether all of these tests pass; a filter that finds none is an error."""
    ran = run([*TEST, *(word for test in tests for word in ("-E", test))], tree)
    if "no tests to run" in ran.stderr:
        sys.exit(f"no test matches {tests}")
    return ran.returncode == 0


def judge(mutant: Mutant, tree: Path) -> str | None:
    """Why the mutant lives, or None when a test has noticed it."""
    applied = run(["git", "apply", str(mutant.path)], tree)
    if applied.returncode != 0:
        return f"does not apply: {applied.stderr.strip()}"
    built = run([*TEST, "--no-run"], tree)
    if built.returncode != 0:
        return f"does not build: {built.stderr.strip()[-500:]}"
    return "no test named for it fails" if passes(tree, mutant.tests) else None


def main(names: list[str]) -> None:
    """Judges all mutants, or those named."""
    mutants = [Mutant.read(path) for path in sorted(HERE.glob("*.patch"))]
    mutants = [mutant for mutant in mutants if not names or mutant.path.stem in names]
    if not mutants:
        sys.exit(f"no mutant is named {names}")
    tree = fresh_copy()
    everything = sorted({test for mutant in mutants for test in mutant.tests})
    if not passes(tree, everything):
        sys.exit("the tests fail without any mutant: mend them first")
    alive = []
    for mutant in mutants:
        start = time.monotonic()
        why = judge(mutant, fresh_copy())
        verdict = "killed" if why is None else f"ALIVE: {why}"
        spent = time.monotonic() - start
        print(f"{mutant.path.stem:36} {mutant.law:12} {verdict} ({spent:.0f} s)", flush=True)
        alive += [mutant] if why else []
    print(f"{len(mutants) - len(alive)} passed, {len(alive)} failed")
    sys.exit(1 if alive else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
