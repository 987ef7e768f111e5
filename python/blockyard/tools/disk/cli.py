"""`blockyard disk`: what is on the disk of a disk tier, whether it is whole, and how fast it is."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from blockyard._core import BlockyardError, Misuse, Unavailable
from blockyard.crane.tiers.disk_folders import Identity, RankFolder, Wiped, chosen, identities
from blockyard.crane.tiers.disk_folders import wipe as unlink
from blockyard.shared.sizes import parse_bytes, too_small
from blockyard.tools.click_types import QUIET
from blockyard.tools.disk.bench import ROUNDS, Measured, measure
from blockyard.tools.endings import FAILED
from blockyard.tools.help import Group
from blockyard.tools.shown import JSON, claim_json, progress, say, write_json

__all__ = ["disk"]

_AT_ONCE: Final = 256 << 20
"""Bytes that are read between two looks at the progress."""
_THREADS: Final = click.IntRange(1, 64)
_BLOCK: Final = 1 << 31
"""The most bytes of a block."""
_MOST: Final = 1 << 50
"""The most bytes of a round."""
_LISTED: Final = 20
"""Slots that are named in a line."""
_MISSES: Final = ("torn", "broken", "another", "unreadable")
"""What a block may be in place of whole; each is a miss to whoever asks for it."""
_SAID: Final = {"another": "of another place", "busy": "written to meanwhile"}

_PATH = click.argument("path", type=click.Path(path_type=Path))


@click.group(cls=Group, context_settings={"show_default": True})
def disk() -> None:
    """Look at the folder of a disk tier, check it, empty it, or measure its disk.

    PATH is what a cache was given as disk_path. See docs/disk.md.
    """


@disk.command(epilog="Example: blockyard disk show /mnt/kv")
@_PATH
@QUIET
@JSON
def show(path: Path, quiet: bool, output: str | None) -> None:  # noqa: ARG001, FBT001 - it shows the result alone
    """Show what is under PATH: whose blocks, of which process, how many and how large.

    It only reads, and works while processes own what is there.
    """
    claim_json(output)
    found = identities(path)
    described = [_described(one, _counted) for one in found]
    faults = write_json(output, {"path": str(path), "identities": described})
    for one in found:
        say(output, _headed(one))
        for rank in one.ranks:
            say(output, _line(rank))
    if not found:
        say(output, f"{path} has no blocks")
    if faults:
        raise Misuse(faults[0])


@disk.command(epilog="Example: blockyard disk verify /mnt/kv --threads 8")
@_PATH
@click.option("--identity", "names", multiple=True, metavar="HEX", help="Only this one of PATH.")
@click.option("--threads", type=_THREADS, default=4, help="Threads that read.")
@QUIET
@JSON
@click.pass_context
def verify(
    ctx: click.Context,
    path: Path,
    names: tuple[str, ...],
    threads: int,
    quiet: bool,  # noqa: FBT001 - as click has it
    output: str | None,
) -> None:
    """Read every block under PATH, and compare it with its checksum.

    Nothing is changed, and a process may own what is there: a block that it writes to meanwhile is
    counted as such, and never as torn. The exit status is 1 where a block is not whole. Whoever
    asks for such a block gets a miss; nothing wrong is served.
    """
    claim_json(output)
    found = chosen(path, names)
    scrubbed: dict[Path, dict[str, Any]] = {}
    readable = [rank for one in found for rank in one.ranks if rank.inspector is not None]
    length = sum(rank.inspector.slots for rank in readable if rank.inspector is not None)
    with progress(length, quiet=quiet) as step:
        for rank in readable:
            scrubbed[rank.path] = _scrub(rank, threads, step)
    described = [_described(one, lambda rank: scrubbed[rank.path]) for one in found]
    bad = sum(len(one["bad"]) for one in scrubbed.values())
    unseen = [rank for one in found for rank in one.ranks if rank.inspector is None]
    whole = not bad and not unseen
    faults = write_json(output, {"path": str(path), "whole": whole, "identities": described})
    for one in found:
        say(output, _headed(one))
        for rank in one.ranks:
            say(output, _verdict(rank, scrubbed.get(rank.path)))
    if bad:
        says = "1 block is" if bad == 1 else f"{bad:,} blocks are"
        say(output, f"{says} damaged: lookups miss them, and their bytes are never served")
    if not found:
        say(output, f"{path} has no blocks")
    if faults:
        raise (Misuse if whole else Unavailable)(faults[0])
    if not whole:
        ctx.exit(FAILED)


@disk.command(epilog="Example: blockyard disk wipe /mnt/kv --all")
@_PATH
@click.argument("names", nargs=-1, metavar="[IDENTITY]...")
@click.option("--all", "everything", is_flag=True, help="Wipe all identities of PATH.")
@click.option("--broken", is_flag=True, help="Also where an identity file is lost or not whole.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@QUIET
def wipe(
    path: Path,
    names: tuple[str, ...],
    everything: bool,  # noqa: FBT001 - as click has it
    broken: bool,  # noqa: FBT001 - likewise
    yes: bool,  # noqa: FBT001 - likewise
    quiet: bool,  # noqa: FBT001 - likewise
) -> None:
    """Remove identities from PATH, named by their 16 digits as `show` has them.

    An identity of which a process owns a rank is refused. No symbolic link is followed, and files
    that are not Blockyard's stay. With --broken, ranks go too that only the records in their table,
    or the lengths of their files, show to be Blockyard's. Files are unlinked: their bytes are on
    the disk until they are overwritten.
    """
    if everything == bool(names):
        raise Misuse("name the identities to wipe, or give --all: `blockyard disk show` lists them")
    found = chosen(path, names)
    for one in found:
        if one.owners:
            raise Misuse(f"{one.path}: process {one.owners[0]} owns it; end that first, then wipe")
    if not found:
        click.echo(f"{path} has no blocks")
        return
    for one in found if not (quiet and yes) else ():
        click.echo(_headed(one))
    if not yes:
        click.confirm("Remove all blocks of these?", abort=True)
    for one in found:
        _report(one, unlink(one, broken=broken))


@disk.command(epilog="Example: blockyard disk bench /mnt/kv --block-bytes 320KiB")
@_PATH
@click.option("--block-bytes", "block", default="2 MiB", help="Size of a block, with unit.")
@click.option("--bytes", "whole", default="1 GiB", help="Size of a round, likewise.")
@click.option("--threads", type=_THREADS, default=4, help="Threads that write and read.")
@QUIET
@JSON
def bench(
    path: Path,
    block: str,
    whole: str,
    threads: int,
    quiet: bool,  # noqa: FBT001 - as click has it
    output: str | None,
) -> None:
    """Measure the disk under PATH, and a disk tier on it, in turns.

    The floor writes and reads the same blocks with nothing else; the tier makes checksums, and
    reports what is durable. All of it lies in a folder of its own, which goes away.
    """
    claim_json(output)
    block_bytes = parse_bytes("--block-bytes", block, most=_BLOCK)
    nbytes = parse_bytes("--bytes", whole, most=_MOST)
    if nbytes < block_bytes:
        raise too_small("--bytes", whole, block_bytes)
    with progress(4 * (ROUNDS + 1), quiet=quiet) as step:
        found = measure(
            path,
            block_bytes=block_bytes,
            nbytes=nbytes,
            threads=threads,
            step=lambda: step(1),
        )
    faults = write_json(output, {"path": str(path), **_figures(found)})
    for line in _table(found):
        say(output, line)
    if faults:
        raise Misuse(faults[0])


def _scrub(rank: RankFolder, threads: int, step: Callable[[int], object]) -> dict[str, Any]:
    """Reads all blocks of a rank, so many at once that an interrupt is soon heard."""
    inspector = rank.inspector
    counts: Counter[str] = Counter()
    bad: list[int] = []
    nbytes = 0
    if inspector is None or not inspector.slots:
        return {"bad": bad, "bytes_read": nbytes}
    size = max(_AT_ONCE // inspector.slot_bytes, 1)
    for first in range(0, inspector.slots, size):
        found, wrong, read = inspector.scrub(first, size, threads)
        counts.update(dict(found))
        bad += wrong
        nbytes += read
        step(sum(number for _, number in found))
    return {**counts, "bad": bad, "bytes_read": nbytes}


def _counted(rank: RankFolder) -> dict[str, Any]:
    counts = {} if rank.inspector is None else dict(rank.inspector.count())
    # Only who reads payloads knows the others.
    return {name: n for name, n in counts.items() if name not in {"torn", "unreadable", "busy"}}


def _described(one: Identity, count: Callable[[RankFolder], dict[str, Any]]) -> dict[str, Any]:
    ranks = []
    for rank in one.ranks:
        inspector = rank.inspector
        if inspector is None:
            ranks.append({"rank": rank.number, "error": rank.why})
            continue
        about = {
            "rank": rank.number,
            "owner": inspector.owner,
            "slots": inspector.slots,
            "slot_bytes": inspector.slot_bytes,
            "disk_bytes": inspector.disk_bytes,
        }
        ranks.append(about | count(rank))
    return {
        "identity": one.name,
        "format": one.format,
        "writer": one.writer,
        "fields": one.fields,
        "ranks": ranks,
    }


def _headed(one: Identity) -> str:
    said = "of no known format" if one.format is None else f"format {one.format}"
    if one.writer is not None:
        said += f", last written by Blockyard {one.writer}"
    return "\n".join([f"{one.name}  {said}", *(f"  {line}" for line in one.text.splitlines()[1:])])


def _line(rank: RankFolder) -> str:
    inspector = rank.inspector
    if inspector is None:
        return f"  rank {rank.number}: {rank.why}"
    try:
        counts = _counted(rank)
    except BlockyardError as error:
        return f"  rank {rank.number}: {error}"
    owned = (
        "no process owns it" if inspector.owner is None else f"process {inspector.owner} owns it"
    )
    return (
        f"  rank {rank.number}: {inspector.slots:,} slots of {size_of(inspector.slot_bytes)}, "
        f"{size_of(inspector.disk_bytes)} on disk; {owned}\n    {_told(counts)}"
    )


def _verdict(rank: RankFolder, found: dict[str, Any] | None) -> str:
    if found is None:
        return f"  rank {rank.number}: {rank.why}"
    lines = [f"  rank {rank.number}: {size_of(found['bytes_read'])} read"]
    inspector = rank.inspector
    if inspector is not None and inspector.owner is not None:
        lines[0] += f" beside process {inspector.owner}, which owns it"
    lines.append(f"    {_told(found)}")
    if found["bad"]:
        more = len(found["bad"]) - _LISTED
        named = ", ".join(map(str, found["bad"][:_LISTED]))
        lines.append(f"    slots: {named}" + (f" and {more:,} more" if more > 0 else ""))
    return "\n".join(lines)


def _told(counts: dict[str, Any]) -> str:
    """The states that slots have, the good ones first."""
    order = ("blocks", "parked", "cleared", "void", *_MISSES, "busy")
    always = {"blocks", "cleared", "void", "torn", "broken"}
    told = [
        f"{counts[name]:,} {_SAID.get(name, name)}"
        for name in order
        if counts.get(name) or (name in counts and name in always)
    ]
    return ", ".join(told) or "no slots yet"


def _report(one: Identity, wiped: Wiped) -> None:
    click.echo(f"{one.name}: removed, {size_of(wiped.nbytes)}")
    for path in wiped.left:
        click.echo(f"  left, since it is not Blockyard's: {path}")


def _figures(found: Measured) -> dict[str, Any]:
    figures = found.figures
    return {
        "block_bytes": found.block_bytes,
        "blocks": found.blocks,
        "threads": found.threads,
        "cores": found.cores,
        "direct": found.direct,
        "seconds": {name: figure.seconds for name, figure in figures.items()},
        "cpu_seconds": {name: figure.cpu for name, figure in figures.items()},
        "write_ratio": figures["write"].part_of(figures["floor write"]),
        "read_ratio": figures["read"].part_of(figures["floor read"]),
        "speeds_disk": found.load,
    }


def _table(found: Measured) -> list[str]:
    figures, nbytes = found.figures, found.nbytes

    def rate(name: str) -> str:
        figure = figures[name]
        cpu = sum(figure.cpu) / len(figure.cpu)
        return f"{figure.rate(nbytes) / 1e9:6.2f} GB/s, {cpu:5.2f} s of CPU"

    write_part = figures["write"].part_of(figures["floor write"])
    read_part = figures["read"].part_of(figures["floor read"])
    size, rounds = size_of(found.block_bytes), len(figures["write"].seconds)
    lines = [
        f"{found.blocks:,} blocks of {size}, {found.threads} threads, medians of {rounds}",
        f"write, the disk alone         {rate('floor write')}",
        f"write, durable with checksum  {rate('write')}: {write_part:.2f} of it",
        f"read, the disk alone          {rate('floor read')}",
        f"read, verified                {rate('read')}: {read_part:.2f} of it",
    ]
    if not found.direct:
        lines.append("This file system has no direct writes: the page cache is part of all of it.")
    if found.cores <= found.threads:
        lines.append(f"{found.cores} cores: none is free beside these threads and their checksums.")
    return [
        *lines,
        "To paste, with what loading from the host and computing a block take:",
        f"block_costs=BlockCosts(load=…, compute=…, disk={found.load:_})  # ns for {size}",
    ]


def size_of(nbytes: float) -> str:
    """Bytes as text, with three digits or more."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if nbytes < 1024:  # noqa: PLR2004 - the next unit
            return f"{nbytes:,.0f} bytes" if unit == "bytes" else f"{nbytes:,.2f} {unit}"
        nbytes /= 1024
    return f"{nbytes:,.2f} TiB"
