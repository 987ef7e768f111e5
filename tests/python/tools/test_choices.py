"""Words on the command line: aliases, and the nearest word."""

import click
import pytest
from click.testing import CliRunner

from blockyard.tools.click_types import ORDERS, Word


@click.command
@click.option("--order", type=Word(["recency", "learned", "optimum"], ORDERS), multiple=True)
def chosen(order: tuple[str, ...]) -> None:
    click.echo(" ".join(order))


def typed(*words: str) -> str:
    done = CliRunner().invoke(chosen, [part for word in words for part in ("--order", word)])
    return done.output.splitlines()[-1]


def test_an_alias_is_the_word_that_it_stands_for() -> None:
    assert typed("lru", "Belady", "LEARNED") == "recency optimum learned"


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("recncy", "'recency'"),
        ("lur", "'lru', here 'recency'"),
        ("zzz", "'"),
        ("mru", "'lru', here 'recency'"),
    ],
)
def test_an_unknown_word_is_answered_with_all_and_the_nearest(word: str, near: str) -> None:
    said = typed(word)
    assert f"'{word}' is not one of 'recency', 'learned', 'optimum'; did you mean {near}" in said


def test_a_word_is_completed_by_the_shell() -> None:
    option = chosen.params[0]
    found = option.shell_complete(click.Context(chosen), "le")
    assert [item.value for item in found] == ["learned"]
