"""The part of an engine's interface that a connector touches: looked up, and compared at the start.

An engine's version number says little: nightly builds call themselves 0.1.dev, and a minor version
may change a method. So the names, parameters and fields that a connector touches are recorded in
`interface.json` beside it, from a version that it was tested with. What is equal may run, whatever
its number; what differs is refused by name, before it fails somewhere in a step.
"""

import dis
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from importlib import import_module, resources
from importlib.util import find_spec
from types import CellType, CodeType
from typing import Any, Final

from blockyard._core import Unsupported
from blockyard.shared.extras import install
from blockyard.shared.log import Limited, described
from blockyard.shared.owner import is_foreign

__all__ = ["Interface", "parameters_of"]

_SHOWN: Final = 12
"""Differences that a message names."""
_LAZY: Final = None if find_spec("annotationlib") is None else import_module("annotationlib")
"""Python's own reader of annotations, where it evaluates them late."""
_log = Limited(__name__, 0)


class Interface:
    """What a connector touches of an engine.

    Args:
        engine: The engine's name, for messages; in small letters its package, and its extra here.
        recorded: "tested", the versions that this was recorded from, the last one first; and
            "names", by the full name of each class, function or value what is touched of it:
            "fields", "methods" with their parameters, "parameters" of a function, "abstract"
            methods of a base class.
        option: What goes on in spite of a difference, as an operator writes it.
    """

    def __init__(self, engine: str, recorded: Mapping[str, Any], *, option: str) -> None:
        self.engine = engine
        self.tested: tuple[str, ...] = tuple(recorded["tested"])
        self.names: dict[str, dict[str, Any]] = dict(recorded["names"])
        self._option = option
        self._said = False

    @classmethod
    def beside(cls, package: str, engine: str, *, option: str) -> "Interface":
        """Reads the `interface.json` of a package; the other arguments are as above."""
        text = resources.files(package).joinpath("interface.json").read_text("utf-8")
        return cls(engine, json.loads(text), option=option)

    @property
    def version(self) -> str:
        """The version that the engine gives itself."""
        try:
            return str(getattr(import_module(self.engine.lower()), "__version__", "unknown"))
        except ImportError:
            return "(not installed)"
        except Exception as error:
            if is_foreign(error):
                raise
            return "(not to be imported)"

    def get(self, name: str) -> Any:  # noqa: ANN401 - it is the engine's
        """Returns what the engine has under a recorded name.

        Args:
            name: The last part of a full name. Where the engine has none, an empty class stands in
                its place: `check` names it, so that importing a connector never fails on it.

        Raises:
            AttributeError: No such name is recorded.
        """
        full = next((one for one in self.names if one.rpartition(".")[2] == name), None)
        if full is None:
            raise AttributeError(f"{name!r} is not recorded of {self.engine}")
        try:
            return _found(full)
        except Exception as error:
            if is_foreign(error):
                raise
            return type(name, (), {})

    @cached_property
    def differences(self) -> tuple[str, ...]:
        """What the engine has not, or has otherwise, one text each."""
        return tuple(
            said for full, recorded in self.names.items() for said in _differences(full, recorded)
        )

    def check(self, *, untested: bool = False) -> None:
        """Refuses an engine whose interface differs from the recorded one.

        Args:
            untested: Whether the operator goes on in spite of it.

        Raises:
            Unsupported: Names differ; the message has them, the engine's version and the tested.
        """
        found, version = self.differences, self.version
        tested = f"{self.engine} {', '.join(self.tested)}"
        if found and not untested:
            raise Unsupported(
                f"{self.engine} {version} has another interface than {tested}, which this "
                f"connector was tested with: {_listed(found)}; install that, with "
                f"{install(self.engine.lower())}, or go on at your own risk with {self._option}"
            )
        if self._said:
            return
        self._said = True
        if found:
            _log.warning(
                "%s %s has another interface than %s, and goes on as %s says: %s",
                *(self.engine, version, tested, self._option, _listed(found)),
            )
        elif version not in self.tested:
            _log.info(
                "%s %s was not tested with Blockyard; what it touches there is as in %s",
                *(self.engine, version, tested),
            )


def _listed(found: tuple[str, ...]) -> str:
    more = len(found) - _SHOWN
    return "; ".join(found[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _found(full: str) -> Any:  # noqa: ANN401 - it is the engine's
    module, _, name = full.rpartition(".")
    return getattr(import_module(module), name)


def _differences(full: str, recorded: Mapping[str, Any]) -> Iterator[str]:
    """Says what differs of one recorded name."""
    name = full.rpartition(".")[2]
    try:
        one = _found(full)
    except Exception as error:
        if is_foreign(error):
            raise
        # An import that fails within the engine, with whatever error, says why.
        why = "" if isinstance(error, AttributeError) else f" ({described(error)})"
        yield f"{full} is missing{why}"
        return
    yield from _compared(name, recorded, one)


def _compared(name: str, recorded: Mapping[str, Any], one: Any) -> Iterator[str]:  # noqa: ANN401 - as above
    """Says what differs of what the engine has under a recorded name."""
    if {"fields", "methods", "abstract"} & recorded.keys() and not isinstance(one, type):
        yield f"{name} is no class any more"
        return
    if "parameters" in recorded:
        yield from _unlike(name, recorded["parameters"], one)
    if "fields" in recorded:
        for field in _absent_fields(one, recorded["fields"].split()):
            yield f"{name}.{field} is missing"
    for method, parameters in recorded.get("methods", {}).items():
        if hasattr(one, method):
            yield from _unlike(f"{name}.{method}", parameters, getattr(one, method))
        else:
            yield f"{name}.{method} is missing"
    if "abstract" in recorded:
        for method in sorted(_abstract(one) - set(recorded["abstract"].split())):
            yield f"{name}.{method} is abstract, and new"


def _unlike(name: str, recorded: str, function: Callable[..., object]) -> Iterator[str]:
    found = parameters_of(function)
    if found != recorded:
        now, then = (", ".join(one.split()) for one in (found or "", recorded))
        yield f"{name}({now}) instead of ({then})"


def parameters_of(function: Callable[..., object]) -> str | None:
    """Returns a function's parameters but `self`, as Python writes them; None for no function.

    Defaults and types are left out: "request *, block_ids", say, or "forward_context **kwargs".
    """
    # Types are left out: they may be of what is not imported as it runs.
    lazy = {} if _LAZY is None else {"annotation_format": _LAZY.Format.FORWARDREF}
    try:
        given = inspect.signature(function, **lazy)
    except (TypeError, ValueError):
        return None
    plain = [
        one.replace(annotation=one.empty, default=one.empty)
        for name, one in given.parameters.items()
        if name != "self"
    ]
    return str(inspect.Signature(plain))[1:-1].replace(",", "")


def _abstract(kind: type) -> frozenset[str]:
    return frozenset(getattr(kind, "__abstractmethods__", ()))


def _absent_fields(kind: type, wanted: Iterable[str]) -> list[str]:
    """Returns which of these names the objects of a class do not have.

    What a method gives to them, as `__init__` does, counts as a field, too.
    """
    mro = inspect.getmro(kind)
    found = set(dir(kind)).union(*map(_annotated, mro))
    absent = [name for name in wanted if name not in found]
    if absent:
        held = (one for owner in mro for one in vars(owner).values())
        found = {name for code in _codes(held) for name in _given(code)}
    return [name for name in absent if name not in found]


def _annotated(kind: type) -> Iterable[str]:
    """Names that a class annotates; Python evaluates them when it is asked for, from 3.14 on."""
    if _LAZY is None:
        return tuple(vars(kind).get("__annotations__", ()))
    return tuple(_LAZY.get_annotations(kind, format=_LAZY.Format.FORWARDREF))


def _codes(held: Iterable[Any]) -> Iterator[CodeType]:
    """Gives the code of functions: what a decorator has wrapped, and those within others, too."""
    left, seen = list(held), set[int]()
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, CodeType):
            yield one
            left += one.co_consts
        elif inspect.isfunction(one):
            left += [one.__code__, *(_content(cell) for cell in one.__closure__ or ())]
            left += [getattr(one, "__wrapped__", None)]
        elif isinstance(one, classmethod | staticmethod):
            left.append(one.__func__)
        elif isinstance(one, property):
            left += [one.fget, one.fset]
        elif isinstance(one, cached_property):
            left.append(one.func)


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _given(code: CodeType) -> Iterator[str]:
    """Gives the names that code sets: by an assignment, or as text where it calls `setattr`."""
    yield from (
        str(step.argval) for step in dis.get_instructions(code) if step.opname == "STORE_ATTR"
    )
    if {"setattr", "__setattr__", "__dict__"} & {*code.co_names}:
        for one in code.co_consts:
            # Of several at once they stand in a tuple.
            texts = one if isinstance(one, tuple) else (one,)
            yield from (text for text in texts if isinstance(text, str))
