"""Help in sections, each with an example that the command understands."""

import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from blockyard.tools.cli import cli
from blockyard.tools.help import Once, Section, Sectioned
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


def commands(command: click.Command, *names: str) -> Iterator[tuple[str, click.Command]]:
    """Yields every command that does something, by what is typed for it."""
    if isinstance(command, click.Group):
        for name, one in command.commands.items():
            yield from commands(one, *names, name)
    else:
        yield " ".join(names), command


def everything() -> dict[str, click.Command]:
    context = click.Context(cli)
    found: dict[str, click.Command] = {}
    for name in cli.list_commands(context):
        one = cli.get_command(context, name)
        assert one is not None
        found.update(commands(one, name))
    return found


def test_every_command_can_be_quiet_and_says_alike_what_that_is() -> None:
    found = everything()
    assert {"replay", "trace describe", "disk wipe", "doctor", "proof"} <= set(found)
    said = {
        name: [param.help for param in one.params if "--quiet" in param.opts]
        for name, one in found.items()
    }
    assert said == {name: ["Show the result, warnings and errors alone."] for name in found}


def test_no_command_takes_an_option_twice_that_has_one_value() -> None:
    for name, command in everything().items():
        assert isinstance(command, Once), name
        for param in command.params:
            if not isinstance(param, click.Option) or param.multiple:
                continue
            one = [] if param.is_flag else ["1"]
            spelt = [[option, *one] for option in param.opts]
            spelt += [] if param.is_flag else [[f"{max(param.opts, key=len)}=1"]]
            for second in spelt:
                words = [*name.split(), *spelt[0], *second]
                done = CliRunner().invoke(cli, words)
                option = max(param.opts, key=len)
                assert done.exit_code == 2, words
                assert f"{option} is given 2 times: give it once" in done.stderr, words


@pytest.mark.parametrize(
    ("words", "twice"),
    [
        ("replay --set flops=1e15 --set flops=2e15", "--set flops=2e15: flops"),
        ("sweep --set layers=8 --set layers=8", "--set layers=8: layers"),
        ("trace from openai FILE -o x --field text=a --field text=b", "--field text=b: text"),
        ("replay --model sequential --hints end=0.8,end=0.5", "hints 'end=0.8,end=0.5'"),
    ],
)
def test_nor_a_part_of_a_repeated_one(
    words: str, twice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("FILE").write_text("{}")
    done = CliRunner().invoke(cli, words.split())
    assert done.exit_code == 2
    assert done.stderr.startswith(f"blockyard: {twice}")
