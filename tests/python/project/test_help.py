"""Help at run time: every public name says what it is, what it takes, and who may call it."""

import importlib
import inspect
import pkgutil
import pydoc
import re
from collections.abc import Iterator
from enum import Enum
from types import ModuleType

import pytest

import blockyard as by
import vllm_stub  # noqa: F401 - a module may need a package that only its users have
from blockyard import _core

ARGUMENTS = re.compile(r"^Args:\n((?:    .*\n|\n)+)", re.MULTILINE)


def modules() -> Iterator[ModuleType]:
    yield by
    yield _core
    for found in pkgutil.walk_packages(by.__path__, "blockyard."):
        if not found.name.rpartition(".")[2].startswith("_"):
            yield importlib.import_module(found.name)


def public(module: ModuleType) -> list[str]:
    named = [
        name
        for name, thing in vars(module).items()
        if getattr(thing, "__module__", None) == module.__name__
    ]
    names = getattr(module, "__all__", named)
    return [name for name in names if not name.startswith("_")]


def ours(thing: object) -> bool:
    """Whether this package has made it, and not NumPy or the standard library."""
    return str(getattr(thing, "__module__", None)).partition(".")[0] == "blockyard"


def members(kind: type) -> Iterator[tuple[str, object]]:
    """Public verbs and properties, those of its parents too; no fields, which a class describes."""
    parts = [vars(one) for one in kind.__mro__ if ours(one)]
    fields = str(getattr(kind, "_fields", ())) + str(getattr(kind, "_fields_", ()))
    for name in sorted({name for part in parts for name in part if not name.startswith("_")}):
        thing = getattr(kind, name)
        if repr(name) in fields or inspect.ismemberdescriptor(thing):
            continue
        if callable(thing) or inspect.isdatadescriptor(thing):
            yield name, thing


def parameters(verb: object) -> list[str]:
    try:
        said = inspect.signature(verb).parameters  # type: ignore[arg-type]
    except ValueError:
        return []
    return [name for name in said if name not in {"self", "cls"} and not name.startswith("_")]


def undescribed(verb: object) -> list[str]:
    """The parameters that the docstring does not name, in its Args where it has them."""
    doc = inspect.getdoc(verb) or ""
    args = ARGUMENTS.search(doc + "\n")
    if args is not None:
        said = set(re.findall(r"^    (\w+): ", args[1], re.MULTILINE))
        return [name for name in parameters(verb) if name not in said]
    return [name for name in parameters(verb) if not re.search(rf"\b{name}\b", doc)]


def everything() -> Iterator[tuple[str, object]]:
    for module in modules():
        yield module.__name__, module
        for name in public(module):
            thing = getattr(module, name)
            if not ours(thing) or not (inspect.isclass(thing) or callable(thing)):
                continue
            path = f"{module.__name__}.{name}"
            yield path, thing
            if inspect.isclass(thing):
                yield from ((f"{path}.{member}", one) for member, one in members(thing))


ALL = dict(everything())
CLASSES = [kind for name in by.__all__ if inspect.isclass(kind := getattr(by, name))]


def test_what_is_looked_at_is_all_there_is() -> None:
    wings = {
        "_core",
        "crane",
        "engines",
        "local",
        "scheduling",
        "shared",
        "testing",
        "tools",
        "yard",
    }
    assert {path.split(".")[1] for path in ALL if "." in path} >= wings
    for path in (
        "KVCache.begin",
        "Lease.state",
        "Plan.sources",
        "NoRoom",
        "local",
        "_core.Room.free",
    ):
        assert f"blockyard.{path}" in ALL
    assert len(ALL) > 1000


def test_every_public_name_has_a_docstring_whose_first_line_is_a_sentence() -> None:
    docs = {path: inspect.getdoc(thing) or "" for path, thing in ALL.items()}
    assert [path for path, doc in docs.items() if not doc] == []
    heads = {path: doc.partition("\n\n")[0] for path, doc in docs.items()}
    assert [path for path, head in heads.items() if not head.endswith((".", "?"))] == []
    long = [path for path, head in heads.items() if "\n" in head]
    assert long == []


def test_every_class_has_a_docstring_of_its_own() -> None:
    kinds = {path: thing for path, thing in ALL.items() if inspect.isclass(thing)}
    parents = {path: {one.__doc__ for one in kind.__mro__[1:]} for path, kind in kinds.items()}
    assert [path for path, kind in kinds.items() if kind.__doc__ in parents[path]] == []


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: str(kind.__name__))
def test_every_verb_of_the_package_names_its_parameters(kind: type) -> None:
    wanting = {name: undescribed(verb) for name, verb in members(kind) if callable(verb)}
    assert {name: missing for name, missing in wanting.items() if missing} == {}


def test_every_function_of_the_package_and_verb_of_the_core_names_its_parameters() -> None:
    functions = [getattr(by, name) for name in by.__all__ if inspect.isfunction(getattr(by, name))]
    own = [getattr(_core, name) for name in public(_core)]
    functions += [thing for thing in own if inspect.isbuiltin(thing)]
    kinds = [thing for thing in own if inspect.isclass(thing)]
    functions += [verb for kind in kinds for _, verb in members(kind) if callable(verb)]
    assert {
        verb.__qualname__: missing for verb in functions if (missing := undescribed(verb))
    } == {}


def test_every_class_of_the_package_says_which_thread_may_use_it() -> None:
    silent = [
        kind.__name__
        for kind in CLASSES
        if not issubclass(kind, Exception | Enum) and "thread" not in (kind.__doc__ or "").lower()
    ]
    assert silent == []


def test_help_shows_how_a_verb_is_called() -> None:
    text = pydoc.plain(pydoc.render_doc(by.KVCache.begin))
    call = "begin(self, prompt, /, *, reserve=0, load=None, filling='stop', lora=None, salt=None,"
    assert call in " ".join(text.split())
    assert "reserve: Tokens of growth to promise." in text
    unsaid = [
        path
        for path, thing in ALL.items()
        if path.startswith("blockyard._core.") and inspect.isroutine(thing)
        if not getattr(thing, "__text_signature__", None)
    ]
    assert unsaid == []
