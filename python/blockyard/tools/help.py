"""Commands with many options: help in sections, each with an example."""

import shlex
from collections.abc import Sequence
from typing import Any, NamedTuple

import click

from blockyard._typing import override

__all__ = ["Group", "Once", "Remembered", "Section", "Sectioned"]


class Section(NamedTuple):
    """Some options of a command that answer one question."""

    title: str
    options: Sequence[str]
    """The option that is written first in each declaration, such as `--policy`."""
    example: str
    """A command line that uses some of them."""


class Once(click.Command):
    """A command that refuses an option given twice where only one value counts."""

    @override
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses them, and names what comes twice."""
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for param in order:
            single = isinstance(param, click.Option) and not (param.multiple or param.is_flag)
            if single and order.count(param) > 1:
                option = max(param.opts, key=len)
                ctx.fail(f"{option} is given {order.count(param)} times: give it once")
        return super().parse_args(ctx, args)


class Group(click.Group):
    """Commands of that kind."""

    command_class = Once


class Sectioned(Once):
    """A command whose help shows its options in sections, in their order, with an example each.

    An option of no section is shown at the end, under "Other".

    Args:
        sections: What belongs together.
    """

    def __init__(self, *args: Any, sections: Sequence[Section] = (), **kwargs: Any) -> None:  # noqa: ANN401 - as click has it
        super().__init__(*args, **kwargs)
        self.sections = tuple(sections)

    @override
    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the sections."""
        left = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            # Newer versions of click have one for arguments, which the usage names already.
            if record is not None and isinstance(param, click.Option):
                left[max(param.opts, key=len)] = record
        for section in self.sections:
            records = [left.pop(option) for option in section.options if option in left]
            with formatter.section(section.title):
                formatter.write_dl(records)
                formatter.write_paragraph()
                formatter.write_text(f"Example: {section.example}")
        if left:
            with formatter.section("Other"):
                formatter.write_dl(list(left.values()))


class Remembered(Sectioned):
    """The same, and it keeps the command line in the context, so that the result can repeat it."""

    @override
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keeps them as they were typed."""
        ctx.obj = shlex.join(["blockyard", ctx.info_name or "", *args])
        return super().parse_args(ctx, args)
