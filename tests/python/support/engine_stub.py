"""An engine made from what is recorded of its interface: each name, with its fields and parameters.

Importing a stub puts its modules where imports find them, unless the engine is installed.
"""

import functools
import importlib.util
import inspect
import json
import sys
from abc import ABC
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import blockyard

__all__ = ["TOUCHED", "declared", "install", "modules_of", "named", "touched"]

CONNECTORS: Final = Path(blockyard.__file__).parent / "connectors"
TOUCHED: Final = {
    engine: json.loads((CONNECTORS / engine / "interface.json").read_text("utf-8"))
    for engine in ("vllm", "sglang")
}
"""The recorded interfaces, as they travel in the wheel."""


def touched(engine: str, name: str) -> dict[str, Any]:
    """What is recorded under the last part of a full name."""
    names = TOUCHED[engine]["names"]
    return dict(next(names[full] for full in names if full.rpartition(".")[2] == name))


def named(function: Any, parameters: str) -> Any:
    """Gives a function the parameters that are recorded."""
    given = ", ".join(["self", *parameters.split()])
    function.__signature__ = inspect.signature(eval(f"lambda {given}: None"))  # noqa: S307 - ours
    return function


def declared(name: str, recorded: Mapping[str, Any], body: Mapping[str, Any]) -> Any:
    """A class, or a function, that has what is recorded; `body` are parts that do something."""
    if "parameters" in recorded:
        return named(lambda *_args, **_more: None, recorded["parameters"])
    if not recorded:
        return type(name, (), dict(body))

    def undone(self: Any, *_args: Any, **_more: Any) -> None:
        raise NotImplementedError(name)

    methods = {
        method: named(functools.partial(undone), parameters)
        for method, parameters in recorded.get("methods", {}).items()
    }
    fields = recorded.get("fields", "").split()
    done = {
        key: named(value, recorded["methods"][key]) if key in methods else value
        for key, value in body.items()
        if key in methods or key in fields
    }
    annotations = {"__annotations__": dict.fromkeys(fields, Any)}
    return type(name, (ABC,), {**annotations, **methods, **done, "recorded": recorded})


def modules_of(
    engine: str, parts: Mapping[str, Any], names: Mapping[str, Any] | None = None
) -> dict[str, ModuleType]:
    """All modules of an engine.

    Args:
        engine: "vllm" or "sglang".
        names: What it has, by full names; None for all that is recorded.
        parts: By the last part of a full name what stands there: an object, or a mapping of the
            parts of a class that do something.
    """
    modules: dict[str, ModuleType] = {}
    for full, recorded in (names or TOUCHED[engine]["names"]).items():
        path, _, name = full.rpartition(".")
        steps = path.split(".")
        for at in range(1, len(steps) + 1):
            module = modules.setdefault(".".join(steps[:at]), ModuleType(".".join(steps[:at])))
            module.__path__ = []
            if at > 1:
                setattr(modules[".".join(steps[: at - 1])], steps[at - 1], module)
        part = parts.get(name, {})
        if isinstance(part, Mapping):
            made = declared(name, recorded, part)
        elif "parameters" in recorded:
            made = named(functools.partial(part), recorded["parameters"])
        else:
            made = part
        setattr(modules[path], name, made)
    modules[engine].__version__ = TOUCHED[engine]["tested"][0]  # type: ignore[attr-defined]
    return modules


def install(engine: str, parts: Mapping[str, Any]) -> None:
    """Puts a stub where imports find it."""
    if engine not in sys.modules and importlib.util.find_spec(engine) is None:
        sys.modules.update(modules_of(engine, parts))
