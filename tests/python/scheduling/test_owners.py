"""Who may write what: a field is set by its own class, in its own file, or in the one file here."""

import ast
from collections.abc import Iterator
from pathlib import Path

import blockyard.scheduling

FOLDER = Path(blockyard.scheduling.__file__).parent
OWNERS = {
    # Of each class, or of one field of it, the file that writes it beside its own.
    "Waiting": "admission.py",
    "ParkedWork": "preemption.py",
    "Admitted": "admission.py",
    "Move": "evacuation.py",
    "Request.lease": "seats.py",
    "Request.seat": "seats.py",
    "Request.epoch": "seats.py",
    "Request.cached_tokens": "starts.py",
    "Request.preempted": "preemption.py",
    "Request.kept_steps": "unread.py",
    "Request.hints": "scheduler.py",
    "Seat.stopped_at": "lifecycle.py",
    "Seat.pending_end": "lifecycle.py",
    "Seat.ticket": "preemption.py",
}
CHANGES = {"add", "append", "clear", "discard", "extend", "insert", "pop", "remove", "update"}


def targets(node: ast.AST) -> list[ast.expr]:
    """What a statement or a call changes."""
    if isinstance(node, ast.Assign | ast.Delete):
        return node.targets
    if isinstance(node, ast.AugAssign | ast.AnnAssign):
        return [node.target]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return [node.func.value] if node.func.attr in CHANGES else []
    return []


def fields_in(target: ast.expr, *, own: bool) -> Iterator[str]:
    """Fields that a target changes: of `self`, or of other objects."""
    while isinstance(target, ast.Subscript | ast.Starred):
        target = target.value
    if isinstance(target, ast.Tuple | ast.List):
        for one in target.elts:
            yield from fields_in(one, own=own)
    elif isinstance(target, ast.Attribute):
        name = target.value.id if isinstance(target.value, ast.Name) else ""
        # An error is the core's, and its maker fills it in.
        if (name in {"self", "cls"}) is own and name != "error":
            yield target.attr


def changed(tree: ast.AST, *, own: bool) -> set[str]:
    return {
        name
        for node in ast.walk(tree)
        for target in targets(node)
        for name in fields_in(target, own=own)
    }


def declared(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The classes of a file, and the fields of each."""
    for kind in tree.body:
        if isinstance(kind, ast.ClassDef):
            for line in kind.body:
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                    yield kind.name, line.target.id
            for name in changed(kind, own=True):
                yield kind.name, name


def writers(trees: dict[str, ast.Module]) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """The files that may write each field, and those that do where it is another object's."""
    may, write = dict[str, set[str]](), dict[str, set[str]]()
    for file, tree in trees.items():
        for kind, name in declared(tree):
            owner = OWNERS.get(f"{kind}.{name}", OWNERS.get(kind, file))
            may.setdefault(name, set()).update({file, owner})
        for name in changed(tree, own=False):
            write.setdefault(name, set()).add(file)
    return may, write


TREES = {path.name: ast.parse(path.read_text()) for path in FOLDER.glob("*.py")}
COUNTERS = {name for kind, name in declared(TREES["counters.py"]) if kind == "Counters"}


def strangers(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Fields that a file writes which may not."""
    may, write = writers(trees)
    # Every part counts: see the next test.
    found = {name: files - may[name] for name, files in write.items() if name in may}
    return {name: files for name, files in found.items() if files and name not in COUNTERS}


def test_a_field_is_written_by_its_own_file_or_by_its_one_owner() -> None:
    assert strangers(TREES) == {}


def test_a_counter_is_counted_in_one_file() -> None:
    counted: dict[str, set[str]] = {}
    for file, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.AugAssign) and "_counters." in ast.unparse(node.target):
                counted.setdefault(ast.unparse(node.target), set()).add(file)
    assert len(counted) > 5
    assert {name: files for name, files in counted.items() if len(files) > 1} == {}


def test_every_owner_writes_what_it_owns() -> None:
    write, kinds = writers(TREES)[1], dict[str, set[str]]()
    for tree in TREES.values():
        for kind, name in declared(tree):
            kinds.setdefault(kind, set()).add(name)
    for what, file in OWNERS.items():
        kind, _, name = what.partition(".")
        names = {name} if name else kinds[kind]
        assert names <= kinds[kind], what
        assert any(file in write.get(one, ()) for one in names), what


def test_a_write_in_another_file_is_found() -> None:
    for line in (
        "entry.waiting.overtaken += 1",
        "entry.state = 1",
        "seats.known[3] = 4",
        "seat.request.outputs.append(1)",
        "a, request.lease = 1, None",
        "del one.parked",
    ):
        planted = TREES | {"forks.py": ast.parse(line)}
        assert list(strangers(planted).values()) == [{"forks.py"}], line
