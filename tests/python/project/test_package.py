"""The package: what it needs, what it shows, and that its examples run."""

import ast
import doctest
import importlib
import importlib.metadata
import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import blockyard as by
from blockyard import _core

ROOT = Path(__file__).parents[3]
PROSE = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
CODE = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def run(code: str) -> str:
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded_by(code: str) -> list[str]:
    return run(
        f"import sys, numpy; before = set(sys.modules); {code};print(*set(sys.modules) - before)"
    ).split()


def parts(loaded: list[str]) -> set[str]:
    return {name.split(".")[1] for name in loaded if name.startswith("blockyard.")}


def test_an_import_brings_the_core_alone() -> None:
    loaded = loaded_by("import blockyard")
    assert parts(loaded) == {"_core"}
    assert "numpy.typing" not in loaded
    assert len(loaded) < 10


# What only a file, an error, a check among processes or a GPU needs: a third of what imports cost.
RARE = {
    *("asyncio", "concurrent.futures", "decimal", "difflib", "hashlib", "importlib.resources"),
    *("json", "numpy.typing", "pathlib", "shlex", "tomllib", "urllib.parse"),
}


@pytest.mark.parametrize(
    ("use", "others", "most"),
    [
        ("by.KVCache(device=8)", {"crane", "scheduling", "local_cache"}, 40),
        ("by.Scheduler(by.KVCache(device=8))", {"crane", "local_cache"}, 80),
        ("by.local, by.Crane, by.KVLayout, by.Hints, by.agree", {"scheduling"}, 80),
    ],
)
def test_a_name_brings_what_it_needs_and_numpy(use: str, others: set[str], most: int) -> None:
    """Neither what the command line or a GPU needs, nor the parts that few programs use."""
    loaded = loaded_by(f"import blockyard as by; {use}")
    unknown = {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names)
    assert unknown <= {"blockyard", "numpy"}
    never = {"cli", "connectors", "metrics", "publishing", "serving", "testing", "tools"}
    assert not parts(loaded) & (never | others)
    # Before raising this, ask whether every import needs them.
    assert len(loaded) < most
    assert not RARE & set(loaded)
    own = {"yard.explain", "shared.copy_tuning", "crane.tiers.reclaim"}
    own |= {f"crane.copiers.{name}" for name in ("bounce", "cuda_copier", "disk_copier")}
    assert not {f"blockyard.{name}" for name in own} & set(loaded)


def test_a_local_cache_in_memory_loads_no_copier_of_a_disk_or_a_gpu() -> None:
    layout = "by.KVLayout.llama(layers=1, kv_heads=1, head_dim=8)"
    loaded = loaded_by(f"import blockyard as by; by.local({layout}, device=8, host=8).close()")
    # Its ranks compare fingerprints.
    assert RARE & set(loaded) == {"hashlib", "json"}
    copiers = {name.rpartition(".")[2] for name in loaded if ".copiers." in name}
    assert copiers == {"select", "threads"}


def test_every_public_name_is_there_when_it_is_first_used() -> None:
    run(
        "import blockyard as by; assert set(by.__all__) <= set(dir(by));"
        "assert all(getattr(by, name).__module__.startswith('blockyard')"
        " for name in by.__all__ if name != '__version__')"
    )
    run("from blockyard import *; local, Scheduler, AsyncEngine, KVCache, NoRoom")
    # The module of the same name does not come first.
    run("import blockyard.local_cache, blockyard as by; assert callable(by.local)")
    with pytest.raises(AttributeError, match="'blockyard' has no attribute 'KVCach'"):
        by.KVCach  # type: ignore[attr-defined]  # noqa: B018
    # What a type checker sees is what runs.
    names = dict(by._MODULES)  # type: ignore[attr-defined]
    for node in ast.walk(ast.parse(Path(by.__file__).read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module in {
            f"blockyard.{module}"
            for module in by._MODULES.values()  # type: ignore[attr-defined]
        }:
            assert {f"blockyard.{names.pop(alias.name)}" for alias in node.names} == {node.module}
    assert not names


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_the_modules_that_operators_name_have_the_objects_of_the_connectors(name: str) -> None:
    flag, own = (
        importlib.import_module(f"blockyard.{wing}.{name}") for wing in ("engines", "connectors")
    )
    names = [each for each in vars(flag) if not each.startswith("_")]
    assert names
    assert all(getattr(flag, each) is getattr(own, each) for each in names)


def test_the_names_for_operators_bring_no_engine_by_themselves() -> None:
    run(
        "import sys, blockyard.engines; assert not {'vllm', 'sglang', 'asyncio'} & set(sys.modules)"
    )


def test_it_imports_where_there_is_no_cupy_and_no_device() -> None:
    run(
        "import os, sys; sys.modules['cupy'] = None; os.environ['CUDA_VISIBLE_DEVICES'] = '';"
        "import blockyard as by; by.KVCache(device=8).begin([1])"
    )


def test_it_depends_on_numpy_and_for_its_command_on_click_alone() -> None:
    needs = importlib.metadata.requires("blockyard") or []
    always = [need for need in needs if "extra ==" not in need]
    assert sorted(re.split(r"[^\w-]", need)[0] for need in always) == ["click", "numpy"]
    assert importlib.metadata.metadata("blockyard")["Requires-Python"] == ">=3.11"


def test_cargo_is_the_one_source_of_the_version() -> None:
    cargo = tomllib.loads((ROOT / "Cargo.toml").read_text())
    version = cargo["workspace"]["package"]["version"]
    assert by.__version__ == _core.__version__ == version
    assert importlib.metadata.version("blockyard") == version


def test_it_is_typed_and_built_for_release() -> None:
    installed = Path(by.__file__).parent
    assert (installed / "py.typed").exists()
    assert (installed / "_core.pyi").exists()
    assert not _core.DEBUG


def test_the_public_names_are_few_sorted_and_described() -> None:
    assert len(by.__all__) <= 40
    assert by.__all__ == sorted(by.__all__)
    names = {
        name
        for name in dir(by)
        if not name.startswith("_") and not isinstance(getattr(by, name), ModuleType)
    }
    assert names == set(by.__all__) - {"__version__"}
    with pytest.raises(AttributeError, match="no attribute 'AsyncScheduler'"):
        by.AsyncScheduler  # type: ignore[attr-defined] # noqa: B018
    for name in set(by.__all__) - {"__version__"}:
        thing = getattr(by, name)
        assert thing.__doc__, name
        assert thing.__module__.split(".")[0] == "blockyard", name


def test_errors_are_a_small_family() -> None:
    children = {
        by.BlockyardError: (by.Misuse, by.NoRoom, by.Unavailable),
        by.Misuse: (by.SpentLease, by.ForeignLease, by.Unsupported),
        by.NoRoom: (by.TooLarge, by.InUse),
    }
    for parent, kinds in children.items():
        assert all(kind.__bases__ == (parent,) for kind in kinds)
    assert by.BlockyardError.__bases__ == (Exception,)


@pytest.mark.parametrize(
    "name",
    ["yard.cache", "shared.layout", "shared.timings", "local_cache", "metrics.server", "testing"],
)
def test_the_examples_of_its_docstrings_run(name: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(f"blockyard.{name}"))
    assert (failed, tried > 0) == (0, True)


@pytest.mark.parametrize("path", PROSE, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_code_in_the_documents_runs_alone_or_says_what_it_continues(path: Path) -> None:
    above: dict[str, Any] = {}
    for code in CODE.findall(path.read_text()):
        names = dict(above) if code.startswith("# continues the blocks above\n") else {}
        exec(compile(code, path.name, "exec"), names)  # noqa: S102
        above |= names


def documented(tree: ast.Module) -> Iterator[tuple[str, ast.AST, object]]:
    """What of the stub has a docstring at run time. Of overloads it is the last; magic has none."""
    for node in tree.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef) or not hasattr(_core, node.name):
            continue
        thing = getattr(_core, node.name)
        yield node.name, node, thing
        verbs = {one.name: one for one in ast.walk(node) if isinstance(one, ast.FunctionDef)}
        if isinstance(node, ast.ClassDef):
            plain = {name: verb for name, verb in verbs.items() if not name.startswith("__")}
            yield from ((f"{node.name}.{k}", v, getattr(thing, k)) for k, v in plain.items())


def test_an_editor_shows_the_docstrings_of_the_core_as_help_does() -> None:
    stub = ast.parse((Path(by.__file__).parent / "_core.pyi").read_text())
    docs = {name: (node, inspect.getdoc(thing)) for name, node, thing in documented(stub)}
    assert len(docs) > 150
    assert all(help_ for _, help_ in docs.values())
    other = [name for name, (node, help_) in docs.items() if ast.get_docstring(node) != help_]  # type: ignore[arg-type]
    assert other == []


def test_what_is_public_in_the_core_is_what_its_stub_says() -> None:
    stub = (ROOT / "python/blockyard/_core.pyi").read_text()
    listed = re.search(r"__all__ = \[(.*?)\]", stub, re.DOTALL)
    assert listed is not None
    names = set(re.findall(r'"(\w+)"', listed[1]))
    own = {name for name in vars(_core) if not name.startswith("__")} | {"__version__"}
    assert names == own
