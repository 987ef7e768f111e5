"""Checks of what a caller gives; a refusal names the argument, its value and what it must be."""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from blockyard._core import Misuse
from blockyard.shared.owner import is_foreign

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "bounded",
    "file",
    "folder",
    "integer",
    "known",
    "nearest",
    "one_of",
    "seconds",
    "shown",
]

_MANY: Final = 2**20
"""Values that one call takes of what is an object each: acks, seats, or flights."""
MOST_SECONDS: Final = 1e6
"""The longest that anybody may wait."""
_Word = TypeVar("_Word", bound=str | bool | None)


def integer(name: str, value: object, *, least: int | None = 1, most: int | None = None) -> int:
    """An integer, of Python or NumPy, as a plain `int`; a bool is none.

    Args:
        name: What the error calls it.
        value: What was given.
        least: Smallest that is allowed; None for any.
        most: Largest that is allowed; None for any.

    Raises:
        Misuse: It is no integer, or out of range.
    """
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        number = int(value)
        if (least is None or number >= least) and (most is None or number <= most):
            return number
    wanted = "an integer" if least is None else f"an integer >= {least}"
    if most is not None:
        wanted = f"an integer <= {most}" if least is None else f"an integer from {least} to {most}"
    raise Misuse(f"{name} = {shown(value)}: must be {wanted}")


def seconds(name: str, value: object, *, zero: bool = True) -> float:
    """A time that somebody waits, in seconds: 0 or more, and it ends.

    Args:
        name: What the error calls it.
        value: What was given.
        zero: Whether it may be 0.

    Raises:
        Misuse: It is no number, below 0, no number of any time, or more than `MOST_SECONDS`; or 0,
            where that is not allowed.
    """
    if isinstance(value, int | float | np.number) and not isinstance(value, bool):
        with suppress(TypeError, ValueError, OverflowError):
            if 0 <= (number := float(value)) <= MOST_SECONDS and (number or zero):
                return number
    wanted = f"from 0 to {MOST_SECONDS:g}; 0 waits for nothing"
    if not zero:
        wanted = f"more than 0, and at most {MOST_SECONDS:g}"
    raise Misuse(f"{name} = {shown(value)}: must be seconds, {wanted}")


def bounded(name: str, values: object, what: str = "a list") -> list[object]:
    """All values of an iterable that ends soon enough.

    Args:
        name: What the error calls it.
        values: What was given.
        what: What to give.

    Raises:
        Misuse: It is no iterable, or has more values than any engine has seats or flights.
    """
    try:
        each = iter(values)  # type: ignore[call-overload]
    except TypeError:
        raise Misuse(f"{name} = {shown(values)}: give {what}") from None
    given = list(islice(each, _MANY + 1))
    if len(given) > _MANY:
        raise Misuse(f"{name} has more than {_MANY:,} values: one call takes no more")
    return given


def one_of(name: str, value: object, words: Iterable[_Word]) -> _Word:
    """That of some words, or of True and False, which was given.

    Args:
        name: What the error calls it.
        value: What was given.
        words: What is allowed. 1 and 0 do not stand for True and False.

    Raises:
        Misuse: It is none of them.
    """
    allowed = tuple(words)
    for word in allowed:
        if value is word or (isinstance(value, str) and value == word):
            return word
    known = ", ".join(map(repr, allowed))
    raise Misuse(f"{name} = {shown(value)}: must be one of {known}")


def known(
    name: str, value: object, names: Iterable[str], elsewhere: Mapping[str, str] | None = None
) -> str:
    """That of some names which was given; where it is none of them, the nearest is offered.

    Args:
        name: What the error calls it.
        value: What was given.
        names: The names that there are.
        elsewhere: What other names, which are not taken, would mean here.

    Raises:
        Misuse: It is none of them.
    """
    all_ = tuple(names)
    if not isinstance(value, str):
        raise Misuse(f"{name} = {shown(value)}: must be one of {', '.join(all_)}")
    if value in all_:
        return value
    near = (elsewhere or {}).get(value.casefold())
    near = near or nearest(value[:60], all_)
    raise Misuse(f"{name} = {shown(value)}: did you mean {near!r}? It is one of {', '.join(all_)}")


def nearest(word: str, names: Iterable[str]) -> str:
    """The one of some names that is most like a word, for an error that offers it."""
    import difflib  # noqa: PLC0415 - only an error needs it

    return difflib.get_close_matches(word, [*names], n=1, cutoff=0.0)[0]


def shown(value: object) -> str:
    """The beginning of a value as an error shows it, the whole where it is short."""
    try:
        return f"{value!r:.60}"
    except Exception as error:
        if is_foreign(error):
            raise
        if isinstance(value, int):  # Python writes none of more than 4,300 digits
            return "an integer of thousands of digits"
        if isinstance(error, RecursionError):
            return "a value nested thousands deep"
        return f"a {type(value).__name__} that cannot be shown ({type(error).__name__})"


def folder(name: str, given: str) -> "Path":
    """The path of a folder, with a user's home in place of `~` at its beginning.

    Raises:
        Misuse: There is no such user, or it can be no path.
    """
    from pathlib import Path  # noqa: PLC0415 - most programs give no folder

    if "\0" in given:
        raise Misuse(f"{name} = {given!r}: a path has no NUL in it")
    try:
        return Path(given).expanduser()
    except RuntimeError as error:
        raise Misuse(f"{name} = {given!r}: {error} Give the whole path") from error


def file(name: str, given: object) -> str:
    """The path of a file, as text.

    Args:
        name: What the error calls it.
        given: What was given.

    Raises:
        Misuse: It is none.
    """
    path = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(path, str) or not path or "\0" in path:
        raise Misuse(f"{name} = {shown(given)}: give the path of a file")
    return path
