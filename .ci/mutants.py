"""Mistakes that no generator makes: `tests/mutants.toml` has one a row.

A row names the mistake, first by the law that it breaks, and the tests that must notice it, and
says what it writes in place of what, in which file. `find` stands once there. A second edit is a
table `[[mutant.also]]`, with `find` and `replace`. The tests are nextest filters or pytest ids; for
a mistake in Rust that pytest must notice, the binding is built with it.

    python .ci/mutants.py                   # does every row fit the tree? Without a build
    python .ci/mutants.py try NAME …        # make these in a copy: does one of their tests fail?
    python .ci/mutants.py try --base REF    # those in files that differ from REF
    python .ci/mutants.py try --shard K/N   # a part of all, from 0/N on
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROWS = Path("tests/mutants.toml")
WORK = ROOT / "target" / "mutants"
CORE = next(Path(sysconfig.get_path("platlib"), "blockyard").glob("_core.*.so"), None)

NEXTEST = ["cargo", "nextest", "run", "--locked", "--lib", "--test", "laws", "--test", "disk"]
NEXTEST += ["--test", "store", "--package", "blockyard-core", "--package", "blockyard-disk"]
NEXTEST += ["--test", "handover", "--package", "blockyard-store", "--package", "blockyard-handover"]
BINDING = ["cargo", "build", "--locked", "--package", "blockyard-py"]
PYTEST = [sys.executable, "-m", "pytest", "--quiet", "--exitfirst", "-p", "no:cacheprovider"]
# The package warns when its core is built for debugging, as a core with a mistake is.
PYTEST += ["-W", "ignore:blockyard is a debug build:RuntimeWarning"]
# The exit status of each when tests ran and some failed.
NEXTEST_FAILED, PYTEST_FAILED = 100, 1


@dataclass(frozen=True)
class Mutant:
    """A row."""

    name: str
    tests: list[str]
    file: str
    edits: list[tuple[str, str]]
    """What to find, and what to write there."""

    @property
    def pytest(self) -> bool:
        """Whether pytest runs its tests, not nextest."""
        return self.tests[0].startswith("tests/")

    def complaints(self) -> Iterator[str]:
        """Why it does not fit the tree."""
        path = ROOT / self.file
        text = path.read_text() if path.is_file() else ""
        for find, replace in self.edits:
            if text.count(find) != 1 or find == replace:
                yield f"{find.strip()[:60]!r} stands {text.count(find)} times in {self.file}"
        lost = [test for test in self.tests if self.pytest and not _exists(test)]
        yield from (f"there is no test {test}" for test in lost)
        if path.suffix == ".py":
            try:
                compile(self.mutated(text), self.file, "exec")
            except SyntaxError as error:
                yield f"Python does not read it: {error}"

    def mutated(self, text: str) -> str:
        """Returns the text of its file with the mistake."""
        for find, replace in self.edits:
            text = text.replace(find, replace, 1)
        return text

    def noticed(self, tree: Path) -> bool:
        """Whether one of its tests fails in a copy of the tree with the mistake.

        Raises:
            SystemExit: It does not build, or the tests did not run.
        """
        path = tree / self.file
        path.write_text(self.mutated(path.read_text()))
        if self.pytest and path.suffix == ".rs":
            run(BINDING, tree, failed=0)
            built = WORK / "target/debug/lib_core.so"
            shutil.copyfile(built, tree / "python/blockyard" / _core().name)
        if self.pytest:
            return run([*PYTEST, *self.tests], tree, failed=PYTEST_FAILED)
        return run([*NEXTEST, "-E", " + ".join(self.tests)], tree, failed=NEXTEST_FAILED)


def _exists(test: str) -> bool:
    file, _, name = test.partition("::")
    path = ROOT / file
    return path.is_file() and f"def {name.partition('[')[0]}(" in path.read_text()


def _core() -> Path:
    if CORE is None:
        sys.exit("no wheel is installed: 'make install'")
    return CORE


def run(words: list[str], tree: Path, *, failed: int) -> bool:
    """Runs a command in the copy. Returns whether it exits with `failed`, and not with 0.

    Raises:
        SystemExit: It exits with something else.
    """
    own = {
        "CARGO_TARGET_DIR": str(WORK / "target"),
        "GIT_CEILING_DIRECTORIES": str(WORK),
        "PYTHONPATH": str(tree / "python"),
        # Two mistakes of one second and one size look the same to a cache of bytecode.
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    ran = subprocess.run(
        words, cwd=tree, env=os.environ | own, capture_output=True, text=True, check=False
    )
    if ran.returncode not in {0, failed}:
        sys.exit(
            f"{' '.join(words)} exits with {ran.returncode}: {(ran.stdout + ran.stderr)[-800:]}"
        )
    return ran.returncode != 0


def git(*words: str) -> str:
    """Returns what git prints.

    Raises:
        SystemExit: git fails.
    """
    ran = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return ran.stdout if ran.returncode == 0 else sys.exit(ran.stderr.strip())


def differing(base: str) -> list[str]:
    """Returns the files that differ from where the branch left `base`, new ones with them."""
    words = ["diff", "--name-only", "--diff-filter=d", git("merge-base", base, "HEAD").strip()]
    return (git(*words) + git("ls-files", "--others", "--exclude-standard")).splitlines()


def fresh_copy(tree: Path, package: str = "python") -> Path:
    """Copies what git tracks, or would, with the core of the installed wheel.

    Args:
        tree: Where. What has not changed keeps its time stamp, for tools that go by that.
        package: The name of the folder `python` in the copy.
    """
    listed = git("ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    wanted = {name: ROOT / name for name in listed if (ROOT / name).is_file()}
    wanted[f"python/blockyard/{_core().name}"] = _core()
    wanted = {
        name.replace("python/", f"{package}/", 1) if name.startswith("python/") else name: path
        for name, path in wanted.items()
    }
    for path in [*tree.rglob("*")]:
        name = str(path.relative_to(tree))
        # mutmut's own folder stays.
        if path.is_file() and name not in wanted and not name.startswith("mutants/"):
            path.unlink()
    for name, source in wanted.items():
        copy = tree / name
        if not copy.exists() or copy.read_bytes() != source.read_bytes():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
    return tree


def rows() -> list[Mutant]:
    """All rows of the file."""
    found = []
    for row in tomllib.loads((ROOT / ROWS).read_text())["mutant"]:
        edits = [(edit["find"], edit["replace"]) for edit in (row, *row.get("also", []))]
        found.append(Mutant(row["name"], row["tests"], row["file"], edits))
    return found


def complaints() -> Iterator[str]:
    """Why rows do not fit the tree, as `name: why`."""
    found = rows()
    yield from (f"{row.name}: {why}" for row in found for why in row.complaints())
    names = Counter(row.name for row in found)
    yield from (f"{name}: stands {times} times" for name, times in names.items() if times > 1)


def attempt(names: list[str]) -> None:
    """Makes the mistakes of the rows that are named, or that `--base` or `--shard` selects.

    Raises:
        SystemExit: A mistake is not noticed, or a test fails without it.
    """
    found = rows()
    if names[:1] == ["--base"]:
        found = [row for row in found if row.file in differing(names[1])]
    elif names[:1] == ["--shard"]:
        part, parts = map(int, names[1].split("/"))
        found = found[part::parts]
    elif unknown := set(names) - {row.name for row in found}:
        sys.exit(f"{ROWS} has no {', '.join(sorted(unknown))}")
    else:
        found = [row for row in found if row.name in names]
    tree = WORK / "tree"
    for pytest in {row.pytest for row in found}:
        tests = sorted({test for row in found if row.pytest == pytest for test in row.tests})
        words = [*PYTEST, *tests] if pytest else [*NEXTEST, "-E", " + ".join(tests)]
        run(words, fresh_copy(tree), failed=0)
    alive = 0
    for row in found:
        start = time.monotonic()
        noticed = row.noticed(fresh_copy(tree))
        spent = time.monotonic() - start
        print(f"{'killed' if noticed else 'ALIVE'} {row.name} ({spent:.0f} s)", flush=True)
        alive += not noticed
    print(f"{len(found) - alive} noticed, {alive} not")
    sys.exit(alive > 0)


def main(words: list[str]) -> None:
    """Checks the rows, or with `try` makes their mistakes."""
    found = list(complaints())
    if found:
        sys.exit("\n".join(found))
    if words[:1] == ["try"]:
        attempt(words[1:])
    print(f"{ROWS}: {len(rows())} rows fit the tree")


if __name__ == "__main__":
    main(sys.argv[1:])
