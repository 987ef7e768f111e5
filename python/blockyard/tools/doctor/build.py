"""Python, the core, and what is installed beside it."""

import ast
import sys
from collections.abc import Mapping
from importlib import metadata, resources
from types import MappingProxyType
from typing import Final

from blockyard import _core
from blockyard.shared.extras import install, missing
from blockyard.tools.doctor.finding import Check, Finding, Site, judged, unknown

__all__ = ["CHECKS"]

_EXTRAS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"replay": ("msgspec", "rich"), "metrics": ("prometheus_client",), "events": ("zmq",)}
)
"""The modules of each extra that needs no GPU."""
_SHA: Final = frozenset({"sha_ni", "sha2"})
"""What x86-64 and AArch64 call their instructions for SHA-256."""


def python(_: Site) -> Finding:
    """The interpreter, and whether it has its lock: the core is built for one that has."""
    version = ".".join(map(str, sys.version_info[:3]))
    if getattr(sys, "_is_gil_enabled", lambda: True)():
        return Finding("python", "ok", f"{version} at {sys.executable}")
    slow = "nothing was tried without the interpreter's lock"
    return Finding("python", "warn", f"{version}, free-threaded", slow, "use the usual build")


def core(_: Site) -> Finding:
    """The core, the package and its list of names are of one version."""
    try:
        package = metadata.version("blockyard")
    except metadata.PackageNotFoundError:
        package = _core.__version__
    try:
        stub = resources.files("blockyard").joinpath("_core.pyi").read_text("utf-8")
    except OSError:
        stub = "__all__ = []"
    return judged_core(package, stub)


def judged_core(package: str, stub: str) -> Finding:
    """Judges the package's version, and the names in the core's stub."""
    lost = sorted(name for name in _names(stub) if not hasattr(_core, name))
    again = f"pip uninstall blockyard, then {install('replay').replace('[replay]', '')}"
    fact = f"{_core.__version__}"
    another = package != _core.__version__
    fact += f", and the package is {package}" if another else ""
    fact += f", without {', '.join(lost)}" if lost else ""
    fact += ", a debug build" if _core.DEBUG else ""
    return judged(
        "core",
        fact,
        (another or lost, "fail", "two versions lie over each other", again),
        (_core.DEBUG, "warn", "it is many times slower", again),
    )


def _names(stub: str) -> list[str]:
    for line in ast.parse(stub).body:
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "__all__":
            return list(ast.literal_eval(line.value))
    return []


def processor(site: Site) -> Finding:
    """Instructions for SHA-256, by which keys are made several times as fast."""
    about = site.lines("proc/cpuinfo")
    flags = frozenset((about.get("flags") or about.get("Features") or "").split())
    if not flags:
        return unknown("processor", "the system does not say what it can")
    name = about.get("model name", "a processor")
    has = "with" if flags & _SHA else "without"
    return Finding("processor", "ok", f"{name}, {has} instructions for SHA-256")


def extras(_: Site) -> Finding:
    """What else is installed; nothing of it is needed beside an engine."""
    lacking = [name for name, modules in _EXTRAS.items() if missing(*modules)]
    if not lacking:
        return Finding("extras", "ok", f"{', '.join(_EXTRAS)} are there")
    first, *others = lacking
    return Finding("extras", "ok", f"not there: {', '.join(lacking)}: {install(first, *others)}")


CHECKS: Final[tuple[Check, ...]] = (python, core, processor, extras)
