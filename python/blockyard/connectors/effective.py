"""An engine's configuration as plain values that are the same after every restart."""

import dataclasses
import enum
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from blockyard.shared.weights import file_content, nameless

__all__ = ["Mark", "digest", "names", "of_file", "plain"]

_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")


class Mark(NamedTuple):
    """Some options, and why KV depends on them, or does not."""

    reason: str
    options: Mapping[str, str]
    """Names of options, by the part of the configuration that has them."""


def names(*marks: Mark) -> dict[str, frozenset[str]]:
    """Returns the names of some options by the part of the configuration."""
    found: dict[str, set[str]] = {}
    for mark in marks:
        for part, options in mark.options.items():
            found.setdefault(part, set()).update(options.split())
    return {part: frozenset(options) for part, options in found.items()}


def plain(value: object, folder: str = "") -> object:
    """Returns a value of a configuration as plain ones, without what only names it.

    Args:
        value: It may have configurations in it, as Transformers' or dataclasses.
        folder: The model's; paths into it are as if it were the current one.
    """
    said: object = value
    if isinstance(value, enum.Enum):
        said = value.name
    elif isinstance(value, str):
        inside = folder and (value == folder or value.startswith(folder.rstrip("/") + "/"))
        said = value.replace(folder.rstrip("/"), ".", 1) if inside else value
    elif isinstance(value, Mapping):
        kept = nameless(value)
        said = {name: plain(kept[name], folder) for name in sorted(kept)}
    elif isinstance(value, list | tuple):
        said = [plain(one, folder) for one in value]
    elif isinstance(value, set | frozenset):
        said = sorted((plain(one, folder) for one in value), key=json.dumps)
    elif hasattr(value, "__qualname__"):
        said = f"{value.__module__}.{value.__qualname__}"
    elif callable(to_dict := getattr(value, "to_dict", None)):
        said = plain(to_dict(), folder)
    elif dataclasses.is_dataclass(value):
        fields = {one.name: getattr(value, one.name, None) for one in dataclasses.fields(value)}
        said = plain(fields, folder)
    elif value is not None and not isinstance(value, bool | int | float):
        said = _ADDRESS.sub("", str(value))
    return said


def of_file(value: object) -> object:
    """Returns what an option that names a file means: the content of it."""
    return file_content(value) if isinstance(value, str) else plain(value)


def digest(value: object) -> str:
    """Returns a SHA-256 of plain values."""
    return "sha256:" + hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
