"""Checks that every law has a test, and that what a test or a mutant calls a law is one.

`docs/laws.md` lists the laws: a law's name begins a row of a table, or ends a line in brackets. The
tests of a law name it: in Python `@pytest.mark.law("INV-6", "2.2-9")` or `pytestmark` of a module,
in Rust `/// Law: INV-6, 2.2-9` above `#[test]`. The name of a mutant begins with one: `inv-6-…`.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PAGE, MUTANTS = "docs/laws.md", "tests/mutants.toml"
LAW = re.compile(r"^\| ([A-Z\d][\w.-]*) \||\(([A-Z][A-Z-]*\d+[a-z]?)\)$", re.MULTILINE)
# By the ending of a file: what names laws, and what stands below it.
NAMES = {
    ".py": re.compile(r"^(?:pytestmark = | *@)pytest\.mark\.law\(([^)]*)\)", re.MULTILINE),
    ".rs": re.compile(r"^ */// Law: (.*)", re.MULTILINE),
}
BELOW = {
    ".py": re.compile(r"\b(?:def|class) (?P<test>[Tt]est)?"),
    ".rs": re.compile(r"(?P<test>#\[test\])|\bfn "),
}


def named(path: Path) -> Iterator[tuple[int, list[str], bool]]:
    """The lines of a file that name laws, which those are, and whether a test is below."""
    text = path.read_text()
    for found in NAMES[path.suffix].finditer(text):
        below = BELOW[path.suffix].search(text, found.end())
        tested = found[0].startswith("pytestmark") or bool(below and below["test"])
        yield text.count("\n", 0, found.start()) + 1, re.findall(r'[^\s",]+', found[1]), tested


def complaints(root: Path) -> Iterator[str]:
    """Everything wrong under `root`, as `file:line: what`."""
    laws = Counter(found[1] or found[2] for found in LAW.finditer((root / PAGE).read_text()))
    yield from (f"{PAGE}: {law} stands there {n} times" for law, n in laws.items() if n > 1)
    shown = set()
    for path in sorted([*root.glob("tests/**/*.*"), *root.glob("rust/*/src/**/*.rs")]):
        for line, names, tested in named(path) if path.suffix in NAMES else ():
            where = f"{path.relative_to(root)}:{line}"
            yield from (f"{where}: {law} is no law of {PAGE}" for law in names if law not in laws)
            if tested:
                shown.update(names)
            else:
                yield f"{where}: below {', '.join(names)} stands no test"
    yield from (f"{PAGE}: no test shows {law}" for law in laws if law not in shown)
    mutants = (root / MUTANTS).read_text() if (root / MUTANTS).exists() else ""
    for name in re.findall(r'^name = "(.*)"', mutants, re.MULTILINE):
        if not name.startswith(tuple(f"{law.lower()}-" for law in laws)):
            yield f"{MUTANTS}: {name} begins with no law of {PAGE}"


if __name__ == "__main__":
    found = list(complaints(Path(__file__).resolve().parents[1]))
    print("\n".join(found) or "laws: each has a test")
    sys.exit(bool(found))
