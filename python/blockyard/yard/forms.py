"""Fields of a configuration that are no numbers and no words, in their one form."""

import os
from collections.abc import Iterable

from blockyard._core import Misuse
from blockyard.shared.validate import one_of, shown

__all__ = ["file", "pairs_of_text", "tiers_below"]


def file(name: str, given: object) -> str:
    """The path of a file, as text.

    Raises:
        Misuse: It is none.
    """
    path = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(path, str) or not path or "\0" in path:
        raise Misuse(f"{name} = {shown(given)}: give the path of a file")
    return path


def tiers_below(name: str, given: object) -> tuple[str, ...]:
    """Names of tiers, each once and from the top: the same in whatever order they were given.

    Raises:
        Misuse: One is no tier below the device.
    """
    below = ("host", "disk")
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise Misuse(f"{name} = {given!r}: give a sequence of names of tiers")
    names = {one_of(name, tier, below) for tier in given}
    return tuple(tier for tier in below if tier in names)


def pairs_of_text(name: str, given: object) -> tuple[tuple[str, str], ...]:
    """Sorted pairs: frozen, hashed, and the same in whatever order they were given.

    Raises:
        Misuse: It is no mapping of text to text.
    """
    try:
        pairs = sorted(dict(given).items())  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise Misuse(f"{name} = {given!r}: give a mapping of names to text") from None
    for pair in pairs:
        if not all(isinstance(part, str) for part in pair):
            raise Misuse(f"{name} has {pair}: give text for a name that is text")
    return tuple(pairs)
