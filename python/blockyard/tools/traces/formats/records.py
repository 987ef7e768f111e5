"""Lines that are JSON objects, and fields of them that are checked."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from blockyard.tools.traces.formats.format import How
from blockyard.tools.traces.formats.times import milliseconds
from blockyard.tools.traces.lines import Place, TraceError, lines
from blockyard.tools.traces.trace import LONGEST

__all__ = ["Record", "records", "shown"]

_MOST_SHOWN: Final = 60


@dataclass(frozen=True, slots=True)
class Record:
    """An object and its position.

    A field may have one of several names; the first that is found counts.
    """

    place: Place
    values: Mapping[str, Any]
    fields: Mapping[str, str]
    """What the user calls a field, by what it means; other names then do not count."""

    def find(self, means: str, names: Sequence[str]) -> tuple[str, Any]:
        """Returns the name and the value of a field; the value is None where it is missing."""
        names = (self.fields[means],) if means in self.fields else names
        for name in names:
            if (value := _inside(self.values, name)) is not None:
                return name, value
        return names[0], None

    def need(self, means: str, names: Sequence[str], what: str) -> tuple[str, Any]:
        """Returns the same, but refuses a record without it."""
        name, value = self.find(means, names)
        if value is None:
            others = "" if means in self.fields else f", called {' or '.join(names)}"
            raise self.wrong(
                name, f"it is missing; give {what}{others}; or name it: --field {means}=NAME"
            )
        return name, value

    def length(self, name: str, value: object, least: int = 0) -> int:
        """Returns a number of tokens."""
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LONGEST:
            what = f"give a whole number from {least} to {LONGEST}"
            raise self.wrong(name, f"{shown(value)}; {what}")
        return value

    def tokens(self, name: str, value: object) -> list[int]:
        """Returns token ids, at least one."""
        what = "give a list of whole numbers from 0, the ids of the prompt's tokens"
        if not isinstance(value, list) or not value:
            raise self.wrong(name, f"{shown(value)}; {what}")
        if _whole_numbers(value):
            return value
        for at, token in enumerate(value):
            if type(token) is not int or not 0 <= token <= LONGEST:
                raise self.wrong(f"{name}[{at}]", f"{shown(token)}; {what}")
        return value

    def text(self, name: str, value: object) -> str:
        """Returns text."""
        if not isinstance(value, str):
            raise self.wrong(name, f"{shown(value)}; give text")
        return value

    def session(self, names: Sequence[str]) -> str | None:
        """Returns the session's name; a number is one, too."""
        name, value = self.find("session", names)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        return None if value is None else self.text(name, value)

    def time(self, names: Sequence[str], how: How) -> int | None:
        """Returns the time of arrival in milliseconds, or None where there is none."""
        name, value = self.find("timestamp", names)
        if value is None:
            return None
        try:
            return milliseconds(value, how.time_unit or "s")
        except ValueError as error:
            raise self.wrong(name, str(error)) from None

    def wrong(self, name: str | None, what: str) -> TraceError:
        """Returns the error for this position."""
        return self.place.wrong(name, what)


def records(path: Path, how: How, what: str) -> Iterator[Record]:
    """Yields the objects of a file, one per line.

    Raises:
        TraceError: The file cannot be read, or a line is no JSON object.
    """
    decode = msgspec.json.Decoder().decode
    for place, text in lines(path, what):
        try:
            value = decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise place.wrong(None, f"not JSON: {error}; give one object per line") from None
        if not isinstance(value, dict):
            raise place.wrong(None, "it is not a JSON object; give one object per line")
        yield Record(place, value, how.fields)


def _whole_numbers(values: list[Any]) -> bool:
    """Returns whether a list is as it should be, without looking at each value in Python."""
    try:
        numbers = np.array(values)
    except ValueError:  # lists in it
        return False
    return numbers.dtype.kind == "i" and numbers.min() >= 0 and numbers.max() <= LONGEST


def shown(value: object) -> str:
    """Returns a value as an error shows it."""
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, msgspec.MsgspecError, ValueError, OverflowError):
        text = repr(value)
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "…"


def _inside(values: Mapping[str, Any], name: str) -> Any:  # noqa: ANN401 - whatever is there
    """Returns a field; a name with dots leads into inner objects."""
    if name in values:
        return values[name]
    value: Any = values
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
