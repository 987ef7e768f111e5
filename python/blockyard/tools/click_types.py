"""What options of the command line may be: words, by other names too, numbers and files."""

import difflib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import click

from blockyard._typing import override

__all__ = ["FILE", "ORDERS", "Word", "number"]

FILE: Final = click.Path(path_type=Path)
"""The type of an option that is a path."""

ORDERS: Final = {
    "lru": "recency",
    "opt": "optimum",
    "min": "optimum",
    "belady": "optimum",
    "clairvoyant": "optimum",
}
"""What the eviction orders are called elsewhere."""


class Word(click.Choice):  # type: ignore[type-arg]  # it takes one only from click 8.4
    """One of some words, in any case of letters; the nearest is named where it is none of them.

    Args:
        words: What is allowed.
        aliases: Other names for some of them; those for words that are not allowed do not count.
    """

    name = "word"

    def __init__(self, words: Iterable[str], aliases: Mapping[str, str] | None = None) -> None:
        super().__init__(tuple(words), case_sensitive=False)
        known = (aliases or {}).items()
        self.aliases = {alias: word for alias, word in known if word in self.choices}

    @override
    def convert(
        self,
        value: object,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str:
        """Returns the word, also for an alias of it."""
        typed = str(value).casefold()
        word = self.aliases.get(typed, typed)
        if word not in self.choices:
            words = ", ".join(map(repr, self.choices))
            said = f"{str(value)[:60]!r} is not one of {words}; did you mean {self._near(typed)}?"
            self.fail(said, param, ctx)
        return word

    def _near(self, typed: str) -> str:
        known = (*self.choices, *self.aliases)
        near = difflib.get_close_matches(typed, known, n=1, cutoff=0.0)[0]
        return f"{near!r}, here {self.aliases[near]!r}" if near in self.aliases else f"{near!r}"


def number(
    option: str, least: int, most: int, default: int | None, text: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Returns the option of a whole number from `least` to `most`, with `text` as its help."""
    within = click.IntRange(least, most)
    return click.option(option, type=within, metavar="N", default=default, help=text)
