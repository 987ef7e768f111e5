"""The mutants: each is one plausible mistake, a row of `tests/mutants/*.toml`.

A row says which law the mistake breaks, which tests must notice it, and what it writes in place of
what, in which file:

    [[mutant]]
    name = "2.2-9-a-load-does-not-wait-behind-others"
    law = "2.2-9"
    tests = ["test(=beginning::a_load_waits_behind_those_that_are_on_their_way_up)"]
    file = "rust/core/src/copies/cost.rs"
    find = '''
            let mut loading = queue.map(u128::from);'''
    replace = '''
            let mut loading = queue.map(|_| 0_u128);'''

`find` stands once in the file, whatever is around it: a row survives edits elsewhere, and a move of
the file by its new name. A mistake that needs a second edit in its file has it in a table
`[[mutant.also]]`, with `find` and `replace`. The tests are nextest filters of the core's laws and
of its unit tests (`test(=evict::heap::tests::NAME)`), or pytest ids; for a mistake in Rust that
pytest must notice, the binding is built with it.

    python .ci/mutants.py               # does every row fit the tree? Without a build
    python .ci/mutants.py --self-test   # does it notice each way not to fit?
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from planted import Fault, noticed

FOLDER = Path("tests/mutants")
_KEYS = {"name", "law", "tests", "file", "find", "replace"}
_NAME = re.compile(r"[\w.-]+")
_NEXTEST = re.compile(r"test\(=(?:\w+::)*?(\w+)(?:::tests)?::(\w+)\)")
_PYTEST = re.compile(r"tests(?:/\w+)+/(\w+)\.py::(\w+)")


@dataclass(frozen=True)
class Mutant:
    """A mistake and what it claims."""

    where: str
    """Its TOML file, for complaints."""
    name: str
    law: str
    tests: tuple[str, ...]
    file: str
    edits: tuple[tuple[str, str], ...]
    """What to find, and what to write there."""

    @property
    def rust(self) -> bool:
        """Whether it is a mistake in Rust: it must be compiled."""
        return self.file.startswith("rust/")

    @property
    def python(self) -> bool:
        """Whether pytest runs its tests, not nextest."""
        return any(_PYTEST.fullmatch(test) for test in self.tests)

    def complaints(self, root: Path) -> Iterator[str]:
        """What of it is wrong, or does not fit the tree under `root`."""
        if not _NAME.fullmatch(self.name):
            yield "a name is made of letters, digits, dots and hyphens"
        if not self.tests:
            yield "it names no test"
        pattern = _PYTEST if self.python else _NEXTEST
        for test in self.tests:
            if not pattern.fullmatch(test):
                form = "tests/FOLDER/MODULE.py::TEST" if self.python else "test(=MODULE::TEST)"
                yield f"{test!r} is no test of the form {form}, as all of a row are"
        if not (self.rust or self.python):
            yield f"{self.file} is in Python: name tests that pytest runs"
        path = root / self.file
        if not path.is_file():
            yield f"there is no {self.file}{self._elsewhere(root)}"
            return
        yield from self._misfits(path.read_text(), root)

    def _misfits(self, text: str, root: Path) -> Iterator[str]:
        """What of its edits does not fit the text of its file."""
        for find, replace in self.edits:
            if find == replace:
                yield "it changes nothing"
            if (times := text.count(find)) != 1:
                hint = self._elsewhere(root) if not times else ""
                yield f"{find.strip()[:60]!r} stands {times} times in {self.file}{hint}"
        if not self.rust:
            try:
                compile(self.mutated(text), self.file, "exec")
            except SyntaxError as error:
                yield f"Python does not read it: {error}"

    def _elsewhere(self, root: Path) -> str:
        """Which other file has what it finds, for whoever has moved it there."""
        top, suffix = self.file.split("/")[0], Path(self.file).suffix
        others = [
            str(path.relative_to(root))
            for path in sorted(root.glob(f"{top}/**/*{suffix}"))
            if all(path.read_text().count(find) == 1 for find, _ in self.edits)
        ]
        return f"; it stands in {' and '.join(others)} now" if others else ""

    def mutate(self, root: Path) -> None:
        """Makes the mistake in the tree under `root`, where it fits."""
        path = root / self.file
        path.write_text(self.mutated(path.read_text()))

    def mutated(self, text: str) -> str:
        """Returns the text of its file with the mistake."""
        for find, replace in self.edits:
            text = text.replace(find, replace, 1)
        return text


def mutants(root: Path) -> list[Mutant]:
    """All rows, file by file.

    Raises:
        ValueError: One is not made as it should be; it says which, and how.
    """
    found = []
    for path in sorted((root / FOLDER).glob("*.toml")):
        where = str(path.relative_to(root))
        table = tomllib.loads(path.read_text())
        if set(table) != {"mutant"}:
            raise ValueError(f"{where}: it has rows `[[mutant]]`, and nothing else")
        for row in table["mutant"]:
            name, also = row.get("name"), row.pop("also", [])
            if set(row) != _KEYS or any(set(edit) != {"find", "replace"} for edit in also):
                raise ValueError(f"{where}: {name}: give {', '.join(sorted(_KEYS))}")
            edits = tuple((edit["find"], edit["replace"]) for edit in (row, *also))
            tests = tuple(row["tests"])
            found.append(Mutant(where, row["name"], row["law"], tests, row["file"], edits))
    return found


def complaints(root: Path) -> Iterator[str]:
    """Everything wrong with the mutants under `root`, as `file: what`."""
    seen: dict[str, str] = {}
    try:
        rows = mutants(root)
    except ValueError as error:
        yield str(error)
        return
    for one in rows:
        for what in one.complaints(root):
            yield f"{one.where}: {one.name}: {what}"
        if one.name in seen:
            yield f"{one.where}: {one.name}: {seen[one.name]} has one of that name"
        seen[one.name] = one.where


ROW = """[[mutant]]
name = "r2-7-one-too-many"
law = "R2-7"
tests = ["test(=evicting::shown)"]
file = "rust/core/src/room.rs"
find = "need - free"
replace = "need"
"""
GOOD = {
    "tests/mutants/core.toml": ROW,
    "rust/core/src/room.rs": "let deficit = need - free;\n",
    "python/room.py": "deficit = need - free\n",
}
FAULTS = {
    "what Python does not read": Fault(
        "tests/mutants/core.toml",
        ROW,
        ROW.replace("test(=evicting::shown)", "tests/python/test_room.py::test_shown")
        .replace("rust/core/src/room.rs", "python/room.py")
        .replace('"need"', '"need -"'),
    ),
    "text that is gone": Fault("rust/core/src/room.rs", "need - free", "need - spare"),
    "text that stands twice": Fault("rust/core/src/room.rs", "free;", "free; need - free;"),
    "a file that is gone": Fault("tests/mutants/core.toml", "room.rs", "evict.rs"),
    "no change": Fault("tests/mutants/core.toml", 'replace = "need"', 'replace = "need - free"'),
    "no law": Fault("tests/mutants/core.toml", 'law = "R2-7"\n', ""),
    "no test": Fault("tests/mutants/core.toml", '"test(=evicting::shown)"', ""),
    "what is no test": Fault("tests/mutants/core.toml", "test(=evicting::shown)", "shown"),
    "a test of another runner": Fault(
        "tests/mutants/core.toml",
        '["test(=evicting::shown)"]',
        '["test(=evicting::shown)", "tests/python/test_x.py::test_shown"]',
    ),
    "a name twice": Fault("tests/mutants/core.toml", ROW, ROW + ROW),
}


def main(words: list[str]) -> None:
    """Checks all rows, or itself with `--self-test`."""
    if words == ["--self-test"]:
        noticed("mutants", complaints, GOOD, FAULTS)
        return
    root = Path(__file__).resolve().parents[1]
    found = list(complaints(root))
    print("\n".join(found) or f"mutants: {len(mutants(root))} fit the tree")
    sys.exit(bool(found))


if __name__ == "__main__":
    main(sys.argv[1:])
