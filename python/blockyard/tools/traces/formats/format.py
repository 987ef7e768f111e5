"""What an importer is: it turns files into requests, one after another."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias

from numpy.typing import NDArray

__all__ = ["Answered", "Asked", "Format", "How", "Notes", "Splitter", "TimeUnit"]

TimeUnit: TypeAlias = Literal["s", "ms", "us", "ns"]

_CLOSE: Final = 0.1
"""The difference in the prompts' lengths that needs no word."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request in a file. It has `tokens`, or `keys`, or only its length."""

    input_length: int
    """Tokens of the prompt, 1 or more."""
    milliseconds: int | None = None
    """Arrival, from any moment; None where the file has no times."""
    tokens: Sequence[int] | NDArray[Any] | None = None
    """The prompt: integers from 0, one for each token."""
    keys: Sequence[Hashable] | None = None
    """A key for each block of the prompt, in order: equal keys have equal prefixes."""
    output_length: int | None = None
    """Tokens of the answer; None if they are unknown, or follow later."""
    session: str | None = None
    """The same for all requests of one session."""
    salt: str = ""
    """Equal tokens have different KV under another salt: an adapter's name, for one."""
    name: str | None = None
    """By which an `Answered` means it."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to a request that came before, or a part of it."""

    name: str
    output_length: int
    """Tokens; those of several parts are added."""


class Notes:
    """Notes for the user about a readable file, each counted and printed once."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._found = self._logged = 0

    def count(self, what: str, times: int = 1) -> None:
        """Adds to the number of something, like "requests left out as they failed"."""
        self._counts[what] = self._counts.get(what, 0) + times

    def compare(self, found: int, logged: int) -> None:
        """Adds a prompt whose tokens the log counts, too."""
        self._found += found
        self._logged += logged

    def __iter__(self) -> Iterator[str]:
        """Returns the sentences."""
        for what, times in self._counts.items():
            yield f"{what}: {times:,}"
        if self._logged and abs(self._found / self._logged - 1) > _CLOSE:
            yield (
                f"the logs count {self._logged:,} tokens in the prompts, and here they have "
                f"{self._found:,}, {self._found / self._logged - 1:+.0%}; give the model's "
                "--tokenizer, or another --chars-per-token"
            )


class Splitter(Protocol):
    """Turns text into tokens."""

    def tokens(self, text: str) -> Sequence[int] | NDArray[Any]:
        """Returns whole numbers from 0; a text's beginning has the same beginning of tokens."""
        ...


@dataclass(frozen=True, slots=True)
class How:
    """How files are to be read."""

    splitter: Splitter
    """For prompts that are text."""
    time_unit: TimeUnit | None = None
    """Of times that are bare numbers; None for the usual one of the format."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """What fields are called that have another name here, by what they mean."""
    notes: Notes = field(default_factory=Notes)


@dataclass(frozen=True, slots=True)
class Format:
    """One format, as `registry.py` lists it."""

    name: str
    """On the command line."""
    about: str
    """A line for the help."""
    read: Callable[[Path, How], Iterator[Asked | Answered]]
    """Reads one file; raises TraceError with file, line and field."""
    hits_unknown: str = ""
    """Why these files do not show hits; "" if they do."""
    block_size: Callable[[Path], int] | None = None
    """Returns the tokens per key, for a format of `keys`; None for a format of tokens."""
