"""Runs mutmut on the package, in a copy of the tree with the core of the installed wheel.

For each mistake mutmut runs the tests that call its function, in a fork of a process that has
imported them. It makes mistakes of its own, and those of `EXTRA` below.

    python .ci/mutate_python.py --base REF     # in the functions that differ from REF
    python .ci/mutate_python.py --shard K/N    # in a part of all files, from 0/N on

The environment's TESTS says which tests, as "tests/python/yard tests/python/scheduling"; else the
quick ones of the package. Of a shard, what has been tried is not tried again unless its function
has changed.
"""

import ast
import os
import shutil
import sys
from collections.abc import Iterator

import libcst as cst
import mutmut.__main__ as mutmut
from libcst import matchers
from mutants import ROOT, WORK, differing, fresh_copy, git
from mutmut.configuration import config
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.mutators import mutation_operators

Functions = ast.FunctionDef | ast.AsyncFunctionDef
PASS = [cst.Pass()]
# What pytest exits with when a test fails, or when it breaks itself.
NOTICED = {1, 3}


def _alone(part: cst.BaseExpression) -> cst.BaseExpression:
    return part.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def _no_statement(node: cst.SimpleStatementLine) -> Iterator[cst.CSTNode]:
    """Leaves out a statement, but for docstrings and what does nothing."""
    if not matchers.matches(node.body[0], matchers.Expr(matchers.SimpleString()) | matchers.Pass()):
        yield node.with_changes(body=PASS)


def _no_if(node: cst.If) -> Iterator[cst.CSTNode]:
    if node.orelse is None:
        yield cst.SimpleStatementLine(PASS)


def _one_side(node: cst.BooleanOperation | cst.BinaryOperation) -> Iterator[cst.CSTNode]:
    """Leaves out a clause of a condition, or a term of a sum."""
    if isinstance(node.operator, cst.And | cst.Or | cst.Add | cst.Subtract):
        yield _alone(node.left)
        yield _alone(node.right)


def _one_arm(node: cst.IfExp) -> Iterator[cst.CSTNode]:
    yield _alone(node.body)
    yield _alone(node.orelse)


def _other_end(node: cst.Call) -> Iterator[cst.CSTNode]:
    """Swaps `min` and `max`, or leaves an argument of two out."""
    if isinstance(node.func, cst.Name) and node.func.value in {"min", "max"}:
        yield node.with_changes(func=cst.Name("max" if node.func.value == "min" else "min"))
        if len(node.args) == 2 and not any(one.keyword or one.star for one in node.args):  # noqa: PLR2004
            yield from (_alone(one.value) for one in node.args)


EXTRA = [
    (cst.SimpleStatementLine, _no_statement),
    (cst.If, _no_if),
    (cst.BooleanOperation, _one_side),
    (cst.BinaryOperation, _one_side),
    (cst.IfExp, _one_arm),
    (cst.Call, _other_end),
]


def functions(source: str) -> dict[str, str]:
    """What mutmut names the functions of a module, and their code without its layout."""
    found = {}
    for one in ast.parse(source).body:
        if isinstance(one, Functions):
            found[f"x_{one.name}"] = ast.dump(one)
        elif isinstance(one, ast.ClassDef):
            methods = [method for method in one.body if isinstance(method, Functions)]
            found |= {f"xǁ{one.name}ǁ{method.name}": ast.dump(method) for method in methods}
    return found


def changed(base: str) -> dict[str, list[str]]:
    """Returns the functions of the package that differ from a commit, as patterns of mutmut.

    The keys are their files; a file without such functions is left out.
    """
    fork = git("merge-base", base, "HEAD").strip()
    old = set(git("ls-tree", "-r", "--name-only", fork).splitlines())
    found: dict[str, list[str]] = {}
    for name in differing(base):
        if name.startswith("python/") and name.endswith(".py"):
            before = functions(git("show", f"{fork}:{name}")) if name in old else {}
            now = functions((ROOT / name).read_text())
            module = (
                name.removeprefix("python/")
                .removesuffix(".py")
                .removesuffix("/__init__")
                .replace("/", ".")
            )
            names = [f"{module}.{one}__mutmut_*" for one in now if before.get(one) != now[one]]
            found |= {name: names} if names else {}
    return found


def main(mode: str, value: str) -> None:
    """Runs mutmut, and shows the mistakes that no test notices."""
    if mode == "--base":
        by_file = changed(value)
        if not by_file:
            print(f"no function of the package differs from {value}")
            return
        files, patterns = [*by_file], [one for names in by_file.values() for one in names]
        folder = WORK / "python-diff"
        shutil.rmtree(folder, ignore_errors=True)
    else:
        part, parts = map(int, value.split("/"))
        files, patterns = sorted(git("ls-files", "python/*.py").split())[part::parts], []
        folder = WORK / f"python-{part}-of-{parts}"
    tree = fresh_copy(folder, "src")
    # Tests read sources where the project has them.
    if not (tree / "python").exists():
        (tree / "python").symlink_to("src")
    os.chdir(tree)
    mutation_operators.extend(EXTRA)
    config().only_mutate = [name.replace("python", "src", 1) for name in files]
    if tests := os.environ.get("TESTS"):
        config().pytest_add_cli_args_test_selection = tests.split()
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    # For the processes that tests start.
    os.environ["PYTHONPATH"] = str(tree / "mutants" / "src")
    mutmut.cli(["run", *patterns], standalone_mode=False)
    for path in config().only_mutate:
        tried = SourceFileMutationData(path=path)
        tried.load()
        for name, status in tried.exit_code_by_key.items():
            if status not in {None, *NOTICED}:
                mutmut.cli(["show", name], standalone_mode=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
