"""Writes the tables of JSON keys in the pages; with --check, says whether they are up to date.

They come from structs such as `blockyard.tools.replay.result.Result`, field by field, with the
docstring of each.
"""

import ast
import inspect
import sys
import types
import typing
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from msgspec import Struct

from blockyard.tools.replay.result import Result
from blockyard.tools.sweep.result import SweepResult

DOCS = Path(__file__).parents[1] / "docs"
PAGES: dict[str, type[Struct]] = {"replay.md": Result, "sweep.md": SweepResult}
BEGIN, END = "<!-- keys: begin -->\n", "<!-- keys: end -->\n"
PLAIN = {int: "integer", float: "number", str: "text", bool: "true or false", type(None): "null"}


def said(kind: Any) -> str:  # noqa: ANN401 - a type, of which there is no type
    """A field's type in words; the name of a struct is that of its table."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in {typing.Union, types.UnionType}:
        return " or ".join(map(said, inner))
    if origin is typing.Literal:
        return " or ".join(f'"{word}"' for word in inner)
    if origin is list:
        return f"list of {said(inner[0])}"
    if origin is dict:
        return f"{said(inner[1])} by name"
    return PLAIN.get(kind) or f"[{kind.__name__}](#{kind.__name__.lower()})"


def structs(kind: type[Struct]) -> Iterator[type[Struct]]:
    """A struct and those in its fields, each once."""
    yield kind
    seen = {kind}

    def inside(kind: Any) -> Iterator[type[Struct]]:  # noqa: ANN401 - likewise
        if isinstance(kind, type) and issubclass(kind, Struct):
            yield kind
        for inner in typing.get_args(kind):
            yield from inside(inner)

    for field in typing.get_type_hints(kind).values():
        for found in inside(field):
            for deeper in structs(found):
                if deeper not in seen:
                    seen.add(deeper)
                    yield deeper


def meanings(kind: type[Struct]) -> dict[str, str]:
    """The docstring of each field, in one line."""
    found = {}
    body = next(
        node.body
        for node in ast.parse(inspect.getsource(kind)).body
        if isinstance(node, ast.ClassDef)
    )
    for field, text in pairwise(body):
        match field, text:
            case (
                ast.AnnAssign(target=ast.Name(name)),
                ast.Expr(ast.Constant(str(meaning))),
            ):
                found[name] = " ".join(meaning.split())
    return found


def table(kind: type[Struct]) -> str:
    """A heading, what it is, and a row for each field."""
    lines = [f"#### {kind.__name__}", "", inspect.getdoc(kind) or "", ""]
    lines += ["| key | type | meaning |", "|---|---|---|"]
    meaning = meanings(kind)
    for name, hint in typing.get_type_hints(kind).items():
        lines.append(f"| `{name}` | {said(hint)} | {meaning[name]} |")
    return "\n".join(lines)


def tables(kind: type[Struct]) -> str:
    """All of them, the outermost first."""
    return "\n\n".join(map(table, structs(kind))) + "\n"


def page(text: str, kind: type[Struct] = Result) -> str:
    """The page with its tables as they are to be."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{tables(kind)}\n{END}{after}"


def main() -> int:
    """Writes or checks."""
    stale = []
    for name, kind in PAGES.items():
        text = (DOCS / name).read_text()
        wanted = page(text, kind)
        if text != wanted and "--check" in sys.argv:
            stale.append(name)
        elif text != wanted:
            (DOCS / name).write_text(wanted)
    for name in stale:
        print(f"{name} has not the keys that its result has: python .ci/replay_keys.py")
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main())
