"""Checks that the modules of each Rust crate look down only, and that no file outgrew its idea.

Of the Python package only the second is checked here: its order is import-linter's.

A crate of several files states its order in `lib.rs`, lowest first, in lines such as
`//! layer: hash arena`. A module may use itself and the modules of the lines above its own; the
others in its line are strangers. A folder whose `mod.rs` has such lines keeps that order too.
`--self-test` breaks each rule once and sees that it is noticed.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from planted import Fault, noticed

MAX_LINES = 600
COMMENT = re.compile(r"//.*")
TESTS = re.compile(r"^#\[cfg\(test\)\]\n(?:#\[.*\]\n)*mod ", re.MULTILINE)
LAYER = re.compile(r"^//! layer: (.+)$", re.MULTILINE)
# `crate::name` and `crate::{name, other::…}`; the same with `super::`, however often, and in a
# folder with `crate::folder::`.
PATH = r"\b({}|super(?:\s*::\s*super)*)\s*::\s*(?:(\w+|\*)|\{{)"
TOKEN = re.compile(r"\w+|\*|[{},]")


def names_in_braces(code: str, start: int) -> Iterator[tuple[str, int]]:
    """The first name of each path from `start` to the closing brace, and where it stands."""
    depth, first = 1, True
    for token in TOKEN.finditer(code, start):
        match token.group():
            case "{":
                depth += 1
            case "}":
                depth -= 1
            case ",":
                first = first or depth == 1
            case name if first:
                first = False
                yield name, token.start()
        if depth == 0:
            return


def names_at(root: str, text: str, depth: int) -> Iterator[tuple[str, int]]:
    """What a file `depth` modules below the module `root` uses of it, and in which line."""
    code = COMMENT.sub("", text)
    tests = TESTS.search(code)
    for path in re.finditer(PATH.format(root), code):
        in_tests = tests is not None and path.start() > tests.start()
        if path[1] != root and path[1].count("super") != depth + in_tests:
            continue
        found = [(path[2], path.start(2))] if path[2] else names_in_braces(code, path.end())
        for name, position in found:
            if name != "super":
                yield name, code.count("\n", 0, position) + 1


def too_long_in_python(root: Path) -> Iterator[str]:
    """Every file of the package that is too long."""
    for file in sorted(root.glob("python/**/*.py")):
        length = file.read_text().count("\n")
        if length > MAX_LINES:
            yield f"{file.relative_to(root)}:{MAX_LINES}: {length} lines; split it by idea"


def complaints(root: Path) -> Iterator[str]:
    """Every broken rule under `root`, as `file:line: what to do`."""
    yield from too_long_in_python(root)
    for file in sorted(root.glob("rust/*/src/**/*.rs")):
        length = TESTS.split(file.read_text())[0].count("\n")
        if length > MAX_LINES:
            where = file.relative_to(root)
            yield f"{where}:{MAX_LINES}: {length} lines before the tests; split it by idea"
    for lib in sorted(root.glob("rust/*/src/lib.rs")):
        yield from disordered(root, lib, "crate")
        for face in sorted(lib.parent.glob("*/mod.rs")):
            if LAYER.search(face.read_text()):
                yield from disordered(root, face, f"crate::{face.parent.name}")


def disordered(root: Path, face: Path, name: str) -> Iterator[str]:
    """Every use that the order stated in `face`, the module `name`, forbids."""
    lines = LAYER.findall(face.read_text().replace("`", ""))
    layer = {module: height for height, line in enumerate(lines) for module in line.split()}
    for file in sorted(face.parent.rglob("*.rs")):
        if file == face:
            continue
        where = file.relative_to(root)
        place = file.relative_to(face.parent).with_suffix("").parts
        module, depth = place[0], len(place) - (place[-1] == "mod")
        if module not in layer:
            yield f"{where}:1: give `{module}` a place in the `//! layer:` lines of {face.name}"
            continue
        for used, line in names_at(name, file.read_text(), depth):
            if used not in layer:
                yield f"{where}:{line}: `{used}` is in no layer; name the module that has it"
            elif used != module and layer[used] >= layer[module]:
                yield f"{where}:{line}: `{module}` may not use `{used}`; let one above do it"


CORE, BINDING = "rust/core/src/", "rust/py/src/"
GOOD = {
    f"{CORE}lib.rs": "//! layer: id\n//! layer: list hash\n//! layer: evict\n"
    "//! layer: tiers\npub use id::Id;\n",
    f"{CORE}id.rs": "// crate::evict\nstruct Id;\n"
    "#[cfg(test)]\nmod tests {\n    use super::Id;\n}\n",
    f"{CORE}hash.rs": "use crate::{id::{A, list}, id::C};\n",
    f"{CORE}list.rs": "//! [`crate::evict`]\nuse crate::id::Id;\n#[cfg(test)]\nmod tests {}\n"
    + "\n" * 500,
    f"{CORE}evict/mod.rs": "use super::list::List;\nuse crate::evict::heap;\n",
    f"{CORE}evict/heap.rs": "use super::Evict;\nuse super::super::id::Id;\n",
    f"{CORE}tiers/mod.rs": "//! layer: pool keeps\n//! layer: trie\npub use trie::Trie;\n",
    f"{CORE}tiers/pool.rs": "use crate::{evict::Evict, id::Id};\n",
    f"{CORE}tiers/keeps.rs": "use crate::id::Id;\n",
    f"{CORE}tiers/trie.rs": "use super::pool::Pool;\nuse crate::tiers::keeps::Keeps;\n",
    f"{BINDING}lib.rs": "//! layer: cache_class\n//! layer: lease ticket\n"
    "use crate::lease::Lease;\n",
    f"{BINDING}cache_class.rs": "use blockyard_core::Cache;\n",
    f"{BINDING}lease.rs": "use crate::cache_class::Cache;\n",
    f"{BINDING}ticket.rs": "use crate::cache_class::Cache;\n",
    "rust/alone/src/lib.rs": "use crate::evict;\n",
    "python/blockyard/yard/cache.py": "#\n" * MAX_LINES,
}
FAULTS = {
    name: Fault(path, "", text)
    for name, path, text in [
        ("no order", f"{CORE}lib.rs", "mod id;\n"),
        ("no place", f"{CORE}stray.rs", "\n"),
        ("up", f"{CORE}list.rs", "use crate::evict::Evict;\n"),
        ("up, by the parent", f"{CORE}list.rs", "use super::evict::Evict;\n"),
        ("up, from a folder", f"{CORE}hash/parts.rs", "use super::super::evict;\n"),
        (
            "up, in tests",
            f"{CORE}id.rs",
            "#[cfg(test)]\nmod tests {\n    use super::super::list;\n}\n",
        ),
        ("sideways", f"{CORE}hash.rs", "fn f() { crate::list::f() }\n"),
        (
            "sideways, in braces",
            f"{CORE}hash.rs",
            "use crate::{\n    id::{A, B},\n    list::C,\n};\n",
        ),
        ("past the module", f"{CORE}hash.rs", "use crate::Id;\n"),
        ("everything", f"{CORE}hash.rs", "use crate::*;\n"),
        ("no place in a folder", f"{CORE}tiers/stray.rs", "\n"),
        ("up in a folder", f"{CORE}tiers/pool.rs", "use super::trie::Trie;\n"),
        ("up in a folder, by its name", f"{CORE}tiers/pool.rs", "use crate::tiers::trie::Trie;\n"),
        ("sideways in a folder", f"{CORE}tiers/keeps.rs", "fn f() { super::pool::f() }\n"),
        ("past the module in a folder", f"{CORE}tiers/pool.rs", "use crate::tiers::Trie;\n"),
        ("up to a folder", f"{CORE}evict/heap.rs", "use crate::tiers::Trie;\n"),
        ("no order in the binding", f"{BINDING}lib.rs", "mod cache_class;\n"),
        ("no place in the binding", f"{BINDING}stray.rs", "\n"),
        ("up in the binding", f"{BINDING}cache_class.rs", "use crate::lease::Lease;\n"),
        ("sideways in the binding", f"{BINDING}lease.rs", "use crate::{ticket::Ticket};\n"),
        ("the core's order in the binding", f"{BINDING}ticket.rs", "use crate::id::Id;\n"),
        ("too long", f"{BINDING}cache_class.rs", "//\n" * (MAX_LINES + 1)),
        ("too long, in Python", "python/blockyard/yard/cache.py", "#\n" * (MAX_LINES + 1)),
        ("too long, alone", "rust/alone/src/lib.rs", "//\n" * (MAX_LINES + 1)),
        (
            "too long after a test item",
            f"{CORE}id.rs",
            "#[cfg(test)]\nfn f() {}\n" + "//\n" * MAX_LINES,
        ),
    ]
}


def main() -> None:
    """Checks the project, or with `--self-test` this script."""
    if sys.argv[1:] == ["--self-test"]:
        noticed("layers", complaints, GOOD, FAULTS)
        return
    found = list(complaints(Path(__file__).resolve().parent.parent))
    print("\n".join(found) or "layers: every module looks down")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
