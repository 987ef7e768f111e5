"""The command line: its commands, and how it reports errors."""

import difflib
import sys
from importlib import import_module
from typing import Any, Final, NoReturn

import click

from blockyard._core import BlockyardError, Misuse, __version__
from blockyard._typing import override
from blockyard.shared.extras import install, missing
from blockyard.tools.disk.cli import disk
from blockyard.tools.doctor.cli import doctor
from blockyard.tools.endings import BROKEN, FAILED, INTERRUPTED, MISUSE, STATUSES, Broken
from blockyard.tools.proof.cli import proof
from blockyard.tools.store.cli import store

__all__ = ["cli"]

_EXTRA: Final = ("msgspec", "rich")
"""The packages that `replay`, `sweep` and `trace` need beside the library's own dependencies."""
_WITH_EXTRA: Final = {"replay": "replay.cli", "sweep": "sweep.cli", "trace": "traces.cli"}
"""The commands that need them, and where they are."""
_GROUPS: Final = {
    "Plan memory": ("sweep", "replay", "trace"),
    "See that it holds": ("doctor", "proof"),
    "Look after disks and shared stores": ("disk", "store"),
}
"""The commands by what they are for."""


class _Commands(click.Group):
    """Reports an error in one line on stderr, and by the exit status.

    What needs the extra is imported only when it is called: the other commands work without.
    """

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *_WITH_EXTRA])

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return _extra(cmd_name) if cmd_name in _WITH_EXTRA else super().get_command(ctx, cmd_name)

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in _GROUPS.items():
            commands = {name: self.get_command(ctx, name) for name in names}
            said = [(name, it.get_short_help_str(60)) for name, it in commands.items() if it]
            with formatter.section(title):
                formatter.write_dl(said)

    @override
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit status"):
            formatter.write_dl([(str(status), said) for status, said in STATUSES.items()])
        super().format_epilog(ctx, formatter)

    @override
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        words = self.list_commands(ctx)
        if args[0] not in words:
            near = difflib.get_close_matches(args[0], words, n=1, cutoff=0.0)[0]
            ctx.fail(f"there is no command {args[0][:60]!r}: did you mean {near!r}?")
        return super().resolve_command(ctx, args)

    @override
    def main(self, *args: Any, **kwargs: Any) -> NoReturn:  # noqa: ANN401 - as click has it
        kwargs["standalone_mode"] = False
        try:
            sys.exit(super().main(*args, **kwargs))
        except click.ClickException as error:
            _fail(error.format_message(), MISUSE)
        except Misuse as error:
            _fail(str(error), MISUSE)
        except MemoryError:
            _fail("memory runs out; give fewer --requests, or use a larger machine", MISUSE)
        except Broken as error:
            _fail(str(error), BROKEN)
        except BlockyardError as error:
            _fail(str(error), FAILED)
        except OSError as error:
            where = "" if error.filename is None else f"{error.filename}: "
            _fail(f"{where}{error.strerror or error}", FAILED)
        except click.Abort:
            _fail("interrupted", INTERRUPTED)


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    epilog="Example: blockyard sweep trace.jsonl --report sweep.html",
)
@click.version_option(__version__, prog_name="blockyard", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """A block manager for the KV cache of an LLM inference engine."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


cli.add_command(disk)
cli.add_command(doctor)
cli.add_command(proof)
cli.add_command(store)


def _extra(name: str) -> click.Command:
    """Returns the command; without the extra, one that only says what to install."""
    lacking = missing(*_EXTRA)
    if not lacking:
        command: click.Command = getattr(
            import_module(f"blockyard.tools.{_WITH_EXTRA[name]}"), name
        )
        return command

    @click.command(
        name,
        help=f"Needs the extra `replay`: {install('replay')}",
        short_help="Needs the extra `replay`: run it to see what to install.",
        add_help_option=False,
        context_settings={"ignore_unknown_options": True},
    )
    @click.argument("words", nargs=-1)
    def refusal(words: tuple[str, ...]) -> NoReturn:  # noqa: ARG001 - as click has it
        raise Misuse(f"{name} needs {', '.join(lacking)}: {install('replay')}")

    return refusal


def _fail(message: str, status: int) -> NoReturn:
    line = " ".join(message.split())
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)
    click.echo(f"blockyard: {shown}", err=True)
    sys.exit(status)
