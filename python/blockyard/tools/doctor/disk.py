"""The folders of disk tiers: whose they are, what they lie on, and how fast that is."""

import mmap
import os
import re
import shlex
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from pathlib import Path
from typing import Final

from blockyard._core import BlockyardError
from blockyard.crane.tiers.disk_folders import Identity, identities
from blockyard.crane.tiers.reclaim import described, oldest
from blockyard.tools.disk.bench import measure
from blockyard.tools.doctor.finding import Check, Finding, Site, judged, unknown
from blockyard.tools.units import duration, size

__all__ = ["checks"]

_BLOCK: Final = 2 << 20
"""Bytes of a block where nothing says it."""
_ROUND: Final = 32 << 20
"""Bytes that are written and read."""
_SLOWER: Final = 1.5
"""Times as long as `speeds` says that a load may take."""
_INODES: Final = 1000
_LISTED: Final = 3
"""Identities that a finding describes."""
_GONE: Final = {
    "tmpfs": "it is memory: nothing outlives the machine, and the container counts it",
    "ramfs": "it is memory: nothing outlives the machine",
    "overlay": "it is the container's own layer: it goes with the container",
}
_REMOTE: Final = re.compile(r"(nfs|cifs|smb|9p|fuse|ceph|lustre|gpfs|beegfs|virtiofs)")


def _where(path: Path) -> Path | None:
    """The folder, or that in which it will be made; None where that is not there, either."""
    if path.is_dir():
        return path
    return path.parent if not path.exists() and path.parent.is_dir() else None


def _inside(check: Callable[[Path, Path, Site], Finding]) -> Callable[[Path, Site], Finding]:
    """Has a check look into the folder, or into that in which it will be made."""

    @wraps(check)
    def made(path: Path, site: Site) -> Finding:
        where = _where(path)
        if where is None:
            return unknown(f"{check.__name__} {path}", "the folder is not there")
        return check(path, where, site)

    return made


def _identities(path: Path) -> list[Identity]:
    return identities(path) if path.is_dir() else []


def folder(path: Path, _: Site) -> Finding:
    """Whether a disk tier may have this folder."""
    name, where, there = f"folder {path}", _where(path), path.is_dir()
    refused = "a disk tier is refused there"
    if where is None:
        lacks = "it is no folder" if path.exists() else f"there is no {path.parent}"
        have = "give a folder" if path.exists() else f"mkdir -p {path.parent}"
        return Finding(name, "fail", lacks, refused, have)
    try:
        found = _identities(path)
    except BlockyardError as error:
        return Finding(name, "fail", str(error), refused, "give another path")
    user = os.geteuid()
    if there and path.stat().st_mode & 0o022:
        return Finding(name, "fail", "others may write to it", refused, f"chmod go-w {path}")
    if not os.access(where, os.W_OK | os.X_OK):
        who = f"user {user} may not write to {where}"
        return Finding(name, "fail", who, refused, f"chown {user} {where}, or another path")
    owners = [owner for one in found for owner in one.owners]
    fact = f"{len(found)} identities" if there else "it will be made"
    fact += f", of which process {owners[0]} owns one" if owners else ""
    owned = "an engine with the same model and options is refused while that one runs"
    moves = "it is another folder where the engine is started elsewhere"
    return judged(
        name,
        fact,
        (owners, "warn", owned, f"blockyard disk show {path}; end it first"),
        (not path.is_absolute(), "warn", moves, f"write {path.absolute()}"),
    )


def file_system(path: Path, site: Site) -> Finding:
    """What the folder lies on."""
    name, kind = f"file system {path}", _kind(path, site)
    if kind is None:
        return unknown(name, "the system does not say what it is")
    own = "give a folder on a disk of the machine, mounted into the container"
    far = "it is elsewhere: locks and syncs are what the other side makes of them"
    return judged(
        name,
        kind,
        (kind in _GONE, "warn", _GONE.get(kind, ""), own),
        (_REMOTE.match(kind), "warn", far, own),
    )


def _kind(path: Path, site: Site) -> str | None:
    """The type of the file system on which a path is, of the last that is mounted there."""
    real, best, kind = path.resolve(), -1, None
    for line in (site.text("proc/self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        words = before.split()
        if len(words) > 4 and after.split():  # noqa: PLR2004 - the fifth is where it is mounted
            point = Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), words[4]))
            if real.is_relative_to(point) and len(point.parts) >= best:
                best, kind = len(point.parts), after.split()[0]
    return kind


@_inside
def room(path: Path, where: Path, site: Site) -> Finding:
    """Room for the tier, which is taken at its start."""
    found = os.statvfs(where)
    free = found.f_bavail * found.f_frsize
    fact = f"{size(free)} are free"
    few = found.f_files and found.f_favail < _INODES
    if few:
        fact += f", and {found.f_favail} inodes"
    wanted = site.asked.disk // max(len(site.asked.paths), 1)
    fact += f", the tier asks for {size(wanted)}" if wanted else ""
    others: list[Identity] = []
    with suppress(BlockyardError):
        others = _identities(path)
    taken = sum(one.nbytes for one in others)
    wipe = _makes_room(path, others, wanted - free)
    own = f"that is enough only if the {size(taken)} there are this engine's own"
    return judged(
        f"room {path}",
        fact,
        (few, "fail", "files cannot be made there", "remove files"),
        (wanted > free + taken, "fail", "its room is taken at the start, and is not there", wipe),
        (wanted > free, "warn", own, wipe),
    )


def _makes_room(path: Path, others: list[Identity], lacking: int) -> str:
    """Says whose room may be had, those first that were used last longest ago."""
    had, some = 0, []
    for one in oldest(others):
        if had < lacking:
            had += one.nbytes
            some.append(one)
    if not some:
        return "a smaller disk, or another folder"
    names = " ".join(one.name for one in some)
    about = "; ".join(map(described, some[:_LISTED]))
    about += f" and {len(some) - _LISTED} more" if len(some) > _LISTED else ""
    return (
        "disk_reclaim takes what the start lacks; or remove what is not this engine's own, as "
        f"{about}: blockyard disk wipe {shlex.quote(str(path))} {names}; or a smaller disk"
    )


@_inside
def direct(path: Path, where: Path, _: Site) -> Finding:
    """Whether the page cache can be passed by, and room be taken ahead."""
    with tempfile.TemporaryDirectory(prefix=".doctor-", dir=where) as own:
        file = Path(own, "file")
        goes = {unit: _writes(file, unit) for unit in (512, 4096)}
        ahead = _allocates(file)
    units = [f"{unit:,}" for unit, good in goes.items() if good]
    fact = f"at {' and '.join(units)} bytes" if units else "not here"
    fact += "" if ahead else ", and room cannot be taken ahead"
    twice = "every block goes through the page cache, which takes memory and time"
    return judged(
        f"O_DIRECT {path}",
        fact,
        (not goes[4096], "warn", twice, "use ext4 or XFS on a disk of the machine"),
        (not ahead, "warn", "the file is sparse: a write may find no room", "use ext4 or XFS"),
    )


def _writes(file: Path, unit: int) -> bool:
    """Whether one unit is written past the page cache, from a page's start and to a unit's."""
    try:
        opened = os.open(file, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
    except OSError:
        return False
    try:
        with mmap.mmap(-1, 4096) as page:
            return os.pwritev(opened, [memoryview(page)[:unit]], unit) == unit
    except (OSError, BufferError):
        return False
    finally:
        os.close(opened)


def _allocates(file: Path) -> bool:
    try:
        with file.open("wb") as opened:
            os.posix_fallocate(opened.fileno(), 0, 1 << 20)
    except OSError:
        return False
    return True


@_inside
def speed(path: Path, where: Path, site: Site) -> Finding:
    """What a tier writes and reads there, in half a second."""
    name, layout = f"speed {path}", site.asked.layout
    block = min(layout.block_bytes, _ROUND) if layout is not None else _BLOCK
    try:
        found = measure(where, block_bytes=block, nbytes=_ROUND, threads=4, rounds=1)
    except BlockyardError as error:
        return unknown(name, str(error))
    write, read = (found.figures[one].rate(found.nbytes) / 1e9 for one in ("write", "read"))
    fact = f"{write:.2f} GB/s written, {read:.2f} GB/s read, by blocks of {size(block)}"
    load = site.asked.load or found.load
    says = f"a block takes {duration(found.load / 1e9)}, and speeds says {duration(load / 1e9)}"
    means = f"{says}: loads are chosen that are slower"
    measured = f"blockyard disk bench {path}, and what it says as disk of speeds"
    return judged(name, fact, (found.load > load * _SLOWER, "warn", means, measured))


_EACH: Final = (folder, file_system, room, direct, speed)


def checks(site: Site) -> tuple[Check, ...]:
    """Returns the checks of each folder."""
    return tuple(partial(check, path) for path in site.asked.paths for check in _EACH)
