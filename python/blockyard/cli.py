"""The command line: its commands, and how it says what is wrong."""

import sys
from typing import Any, NoReturn

import click

from blockyard._core import BlockyardError, Misuse, __version__
from blockyard._typing import override
from blockyard.proof.cli import proof
from blockyard.replay.cli import replay

__all__ = ["cli"]

_BREACH, _MISUSE, _INTERRUPTED = 1, 2, 130
"""Exit statuses."""


class _OneLine(click.Group):
    """Says what is wrong in one line on stderr, and with its exit status."""

    @override
    def main(self, *args: Any, **kwargs: Any) -> NoReturn:  # noqa: ANN401 - as click has it
        kwargs["standalone_mode"] = False
        try:
            sys.exit(super().main(*args, **kwargs))
        except click.ClickException as error:
            _fail(error.format_message(), _MISUSE)
        except Misuse as error:
            _fail(str(error), _MISUSE)
        except BlockyardError as error:
            _fail(str(error), _BREACH)
        except click.Abort:
            _fail("interrupted", _INTERRUPTED)


@click.group(
    cls=_OneLine,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(__version__, prog_name="blockyard", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """A block manager for the KV cache of an LLM inference engine."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


cli.add_command(replay)
cli.add_command(proof)


def _fail(message: str, status: int) -> NoReturn:
    line = " ".join(message.split())
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)
    click.echo(f"blockyard: {shown}", err=True)
    sys.exit(status)
