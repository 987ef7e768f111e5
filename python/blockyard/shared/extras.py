"""What an extra needs, and how it is installed while no package index has Blockyard."""

import json
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

__all__ = ["install", "missing", "require"]

_NAMES: Final = {"zmq": "pyzmq"}
"""What a module's package is called where that differs."""


def install(extra: str, *others: str) -> str:
    """Returns the command that installs an extra, from the file that this package came from.

    Nobody owns the name on a package index, so no hint may ever say to install it by its name: who
    takes the name first would be installed.

    Args:
        extra: As `pyproject.toml` has it, such as "replay".
        others: Those that may be meant instead.
    """
    said = f"pip install '{_source()}[{extra}]'"
    return said + (f", or {', '.join(f'[{other}]' for other in others)}" if others else "")


def require(what: str, extra: str, *modules: str) -> None:
    """Imports modules that come with an extra.

    Args:
        what: What needs them, for the error.
        extra: The extra that brings them.
        modules: Their names.

    Raises:
        ModuleNotFoundError: One is missing; the error says what to install.
    """
    for module in modules:
        try:
            import_module(module)
        except ImportError as error:
            package = _NAMES.get(module, module)
            raise ModuleNotFoundError(
                f"{what} needs {package} ({error}): {install(extra)}", name=module
            ) from error


def missing(*modules: str) -> list[str]:
    """Returns those modules that cannot be found."""
    return [module for module in modules if find_spec(module) is None]


def _source() -> str:
    """The wheel, or the checkout, that this was installed from; words for it where nobody knows."""
    try:
        distribution = metadata.distribution("blockyard")
        url = urlsplit(_recorded(distribution.read_text("direct_url.json") or "{}"))
    except (metadata.PackageNotFoundError, OSError, ValueError):
        return "blockyard-….whl"
    path = Path(unquote(url.path))
    if url.scheme == "file" and path.exists():
        return str(path)
    return f"blockyard-{distribution.version}-….whl"


def _recorded(text: str) -> str:
    """The address in what an installer notes of where a package came from (PEP 610)."""
    noted = json.loads(text)
    return str(noted.get("url", "")) if isinstance(noted, dict) else ""
