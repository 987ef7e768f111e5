"""`blockyard store`: whether a shared store works, what it has, and how it is emptied."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any, Final

import click

from blockyard._core import Misuse
from blockyard.shared.sizes import parse_bytes
from blockyard.stores import Session
from blockyard.stores.contents import Content, contents
from blockyard.stores.contents import wipe as delete
from blockyard.stores.identity import fields_of, number_of
from blockyard.stores.open import open_store
from blockyard.tools.click_types import QUIET
from blockyard.tools.endings import FAILED
from blockyard.tools.help import Group
from blockyard.tools.shown import JSON, claim_json, progress, say, write_json
from blockyard.tools.store.check import ASKED, Checked
from blockyard.tools.store.check import check as ask
from blockyard.tools.units import duration, size
from blockyard.yard.config import Config

__all__ = ["store"]

_NAME: Final = re.compile(r"[0-9a-f]{16}")
_BLOCK: Final = 1 << 30
"""The most bytes of a block."""
_EVERY: Final = 1000
"""Values between two looks at how many were seen."""
_SHOWN: Final = 10
"""Names that an error lists."""

_URL = click.argument("url")


@click.group(cls=Group, context_settings={"show_default": True})
def store() -> None:
    """Check a store that engines share, list what it has, or wipe an identity.

    URL is what an engine was given as its store, such as redis://host:6379/0. A password is read
    from the file that the URL's option password_file names, or from BLOCKYARD_REDIS_PASSWORD. See
    docs/stores.md.
    """


@store.command(epilog="Example: blockyard store check redis://127.0.0.1:6379/0")
@_URL
@click.option("--block-bytes", "block", default="2 MiB", help="Size of a block, with unit.")
@click.option("--blocks", type=click.IntRange(1, 10_000), default=16, help="Blocks to write.")
@QUIET
@JSON
@click.pass_context
def check(
    ctx: click.Context,
    url: str,
    block: str,
    blocks: int,
    quiet: bool,  # noqa: FBT001 - as click has it
    output: str | None,
) -> None:
    """Write blocks to a store, read them by another connection, compare, time, and delete them.

    The blocks are of an identity that no engine has. The exit status is 1 where something is wrong
    with the store, and the last lines say what, and what to do.
    """
    claim_json(output)
    block_bytes = parse_bytes("--block-bytes", block, most=_BLOCK)
    opened = open_store(url)
    with progress(2 * blocks, quiet=quiet) as step:
        seen = ask(opened, block_bytes=block_bytes, blocks=blocks, step=lambda: step(1))
    refused = write_json(output, {"url": opened.url, "well": not seen.faults, **asdict(seen)})
    for line in [opened.url, *_figures(seen)]:
        say(output, line)
    for note in seen.notes:
        say(output, f"note: {note}")
    for fault in seen.faults:
        say(output, f"fault: {fault.removeprefix(f'{opened.url}: ')}")
    if not seen.faults:
        say(output, "It works: all blocks came back as they were written.")
    if refused:
        raise Misuse(refused[0])
    if seen.faults:
        ctx.exit(FAILED)


@store.command(epilog="Example: blockyard store ls redis://127.0.0.1:6379/0")
@_URL
@QUIET
@JSON
def ls(url: str, quiet: bool, output: str | None) -> None:  # noqa: FBT001 - as click has it
    """List what a store has: whose blocks, of which ranks, how many and how large.

    What an identity depends on is what the first engine wrote beside its blocks. Nothing checks
    that text: whoever may write to the store may change it.
    """
    claim_json(output)
    opened = open_store(url)
    with closing(opened.connect()) as session, _counted(quiet=quiet) as step:
        found = contents(session, lambda: step(1))
    refused = write_json(
        output, {"url": opened.url, "identities": [_described(one) for one in found]}
    )
    for one in found:
        for line in _lines(one):
            say(output, line)
    if not found:
        say(output, f"{opened.url} has no blocks")
    if refused:
        raise Misuse(refused[0])


@store.command(epilog="Example: blockyard store wipe redis://127.0.0.1:6379/0 engine.toml")
@_URL
@click.argument("names", nargs=-1, required=True, metavar="IDENTITY|TOML...")
@click.option("--yes", is_flag=True, help="Do not ask.")
@QUIET
def wipe(
    url: str,
    names: tuple[str, ...],
    yes: bool,  # noqa: FBT001 - as click has it
    quiet: bool,  # noqa: FBT001 - likewise
) -> None:
    """Delete all blocks of identities: those of a configuration, or of 16 digits as `ls` has them.

    A TOML file is a configuration with a layout and a namespace. A model with several groups of
    layers has a configuration, and an identity, for each. Only values under these identities are
    deleted. Engines that run go on, and write blocks again.
    """
    wanted = [number for name in names for number in _numbers(name)]
    opened = open_store(url)
    with closing(opened.connect()) as session:
        chosen = _chosen(session, opened.url, dict.fromkeys(wanted))
        for one in chosen if not (quiet and yes) else ():
            for line in _lines(one):
                click.echo(line)
        if chosen and not yes:
            click.confirm("Delete all blocks of these?", abort=True)
        for one in chosen:
            with _counted(quiet=quiet) as step:
                gone, nbytes = delete(session, one.number, step)
            click.echo(f"{one.name}: deleted {gone:,} values, {size(nbytes)}")
    if not chosen:
        click.echo(f"{opened.url} has no blocks of these")


def _numbers(name: str) -> list[int]:
    """The identities that a name stands for: its own, or those of a configuration."""
    if _NAME.fullmatch(name):
        return [int(name, 16)]
    if not name.endswith(".toml") and not Path(name).is_file():
        raise Misuse(
            f"{name[:80]!r} is no identity and no file: give 16 digits as `blockyard store ls` has "
            "them, or a configuration (TOML)"
        )
    config = Config.read(name)
    if config.layout is None:
        raise Misuse(f"{name} has no layout, which the identity of blocks depends on: add it")
    return [number_of(fields_of(config.identity, config.layout))]


def _chosen(session: Session, url: str, wanted: dict[int, None]) -> list[Content]:
    known = {one.number: one for one in contents(session)}
    found = [known[number] for number in wanted if number in known]
    if known and not found:
        listed = ", ".join(one.name for one in list(known.values())[:_SHOWN])
        names = ", ".join(f"{number:016x}" for number in wanted)
        raise Misuse(f"{url} has nothing of {names}: there are {listed}")
    return found


def _described(one: Content) -> dict[str, Any]:
    parts = [
        {"rank": rank, "group": group, **asdict(part)}
        for (rank, group), part in sorted(one.parts.items())
    ]
    return {"identity": one.name, "fields": one.fields, "parts": parts}


def _lines(one: Content) -> Iterator[str]:
    yield one.name if one.fields else f"{one.name}  without a text that says whose it is"
    for name, value in sorted((one.fields or {}).items()):
        # Escaped, as it may be anybody's.
        yield f"  {json.dumps(name)[1:-1]} = {json.dumps(value)}"
    for (rank, group), part in sorted(one.parts.items()):
        of_group = f", group {group}" if group else ""
        tails = f", and {part.tails:,} parked without a key" if part.tails else ""
        yield f"  rank {rank}{of_group}: {part.blocks:,} blocks{tails}, {size(part.nbytes)}"


def _figures(seen: Checked) -> Iterator[str]:
    block = f"for a block of {size(seen.block_bytes)}"
    for name, what in (("write", block), ("read", block), ("ask", f"for {ASKED} blocks")):
        if times := seen.seconds.get(name):
            rate = "" if name == "ask" else f"{seen.rate(name) / 1e9:.3f} GB/s, "
            slowest = f"{duration(max(times))} the slowest of {len(times)}"
            yield f"{name:6} {rate}{duration(median(times))} {what}, {slowest}"


@contextmanager
def _counted(*, quiet: bool) -> Iterator[Callable[[int], object]]:
    """Shows on a terminal's stderr how many values were seen, of which nobody knows the number."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    seen = 0

    def step(more: int) -> None:
        nonlocal seen
        seen += more
        if seen % _EVERY < more:
            click.echo(f"\r{seen:,} values", err=True, nl=False)

    yield step
    click.echo("\r" + " " * 40 + "\r", err=True, nl=False)
