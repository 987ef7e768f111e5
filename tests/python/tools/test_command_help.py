"""Help in sections, each with an example that the command understands."""

import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from blockyard.tools.cli import cli
from blockyard.tools.help import Section, Sectioned
from blockyard.tools.replay.cli import replay
from blockyard.tools.replay.sections import SECTIONS


@click.command(
    cls=Sectioned,
    sections=[Section("First", ["--b", "--gone"], "made --b 1"), Section("Then", ["--a"], "made")],
)
@click.option("--a", help="The one.")
@click.option("-b", "--b", help="The other.")
@click.option("--c", help="Forgotten.")
@click.argument("word", required=False)
def made(**_options: object) -> None:
    """Something."""


def test_options_stand_in_their_section_with_an_example() -> None:
    said = CliRunner().invoke(made, ["--help"]).output
    lines = [" ".join(line.split()) for line in said.splitlines() if line]
    assert lines == [
        "Usage: made [OPTIONS] [WORD]",
        "Something.",
        "First:",
        "-b, --b TEXT The other.",
        "Example: made --b 1",
        "Then:",
        "--a TEXT The one.",
        "Example: made",
        "Other:",
        "--c TEXT Forgotten.",
        "--help Show this message and exit.",
    ]


def test_every_option_of_a_replay_has_its_section() -> None:
    options = {
        max(param.opts, key=len) for param in replay.params if isinstance(param, click.Option)
    }
    placed = [option for section in SECTIONS for option in section.options]
    assert sorted(placed) == sorted(options)


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.title)
def test_each_example_is_understood_and_uses_its_section(section: Section) -> None:
    program, command, *words = shlex.split(section.example)
    assert (program, command) == ("blockyard", "replay")
    replay.make_context("replay", [*words])
    assert set(words) & set(section.options)


def test_the_shell_completes_options_and_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for typed, found in (
        ("blockyard rep", "replay"),
        ("blockyard replay --poli", "--policy"),
        ("blockyard replay --policy lear", "learned"),
    ):
        words = typed.split()
        done = CliRunner().invoke(
            cli,
            prog_name="blockyard",
            env={
                "_BLOCKYARD_COMPLETE": "bash_complete",
                "COMP_WORDS": typed,
                "COMP_CWORD": str(len(words) - 1),
            },
        )
        assert f"plain,{found}" in done.stdout.splitlines()
