"""Writes the core's docstrings into its stub; with --check, says whether that was done.

They are written in the Rust source, of which PyO3 makes `__doc__`. The types are the stub's own.
"""

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from blockyard import _core

STUB = Path(__file__).parents[1] / "python" / "blockyard" / "_core.pyi"

Documented = ast.ClassDef | ast.FunctionDef


def documented(tree: ast.Module) -> Iterator[tuple[str, Documented, object]]:
    """Everything of the stub that has a docstring: its name, its place, and what it is at run time.

    Magic methods have none. Of overloads the last one has it.
    """
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            thing = getattr(_core, node.name, None)
            if thing is None:  # a protocol, for type checkers alone; stubtest knows the others
                continue
            yield node.name, node, thing
            if isinstance(node, ast.ClassDef):
                verbs = {one.name: one for one in node.body if isinstance(one, ast.FunctionDef)}
                for name, verb in verbs.items():
                    if not name.startswith("__"):
                        yield f"{node.name}.{name}", verb, getattr(thing, name)


def differences(text: str) -> Iterator[tuple[str, Documented, str]]:
    """What has another docstring in the stub than at run time: name, place, and the right one."""
    for name, node, thing in documented(ast.parse(text)):
        doc = inspect.cleandoc(getattr(thing, "__doc__", None) or "")
        if not doc:
            raise SystemExit(f"{name} has no docstring: write `///` above it in rust/py/src")
        if ast.get_docstring(node) != doc:
            yield name, node, doc


def literal(doc: str, indent: str) -> str:
    """A docstring as source."""
    lines = [(indent + line).rstrip() for line in doc.replace("\\", "\\\\").split("\n")]
    end = f"\n{indent}" if len(lines) > 1 else ""
    return '"""' + "\n".join(lines).lstrip() + end + '"""'


def replaced(text: str, node: Documented, doc: str) -> str:
    """The stub with this docstring in this place, and nothing else changed."""
    lines = text.splitlines(keepends=True)
    indent = " " * (node.col_offset + 4)
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        # The docstring that was there, or `...` after the signature.
        start, end = first.lineno - 1, first.end_lineno
        own = lines[start][: first.col_offset].rstrip()
        new = [own + "\n" * bool(own), indent + literal(doc, indent) + "\n", "\n" * bool(own)]
    else:
        decorators = getattr(first, "decorator_list", [])
        start = end = min(one.lineno for one in [first, *decorators]) - 1
        new = [indent + literal(doc, indent) + "\n", "\n"]
    return "".join([*lines[:start], *new, *lines[end:]])


def main() -> int:
    """Writes or checks."""
    text = STUB.read_text()
    found = list(differences(text))
    if "--check" in sys.argv:
        for name, *_ in found[:1]:
            print(f"{STUB.name}: {name} has another docstring than at run time: make docs")
        return len(found) > 0
    # From the last to the first, so that the places of the others stay.
    for _, node, doc in sorted(found, key=lambda one: -one[1].body[0].lineno):
        text = replaced(text, node, doc)
    STUB.write_text(text)
    subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", STUB], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
