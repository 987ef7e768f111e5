"""Room for slot files: what other identities under the same paths have of it, and how it is had."""

import fcntl
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from blockyard._core import Misuse, Unavailable
from blockyard.crane.tiers.disk_folders import Identity, identities, wipe
from blockyard.shared.log import Limited

__all__ = ["Wanted", "alone", "described", "no_room", "oldest", "reclaim"]

_LISTED: Final = 3
"""Identities that a message describes."""
_PATIENCE: Final = 120.0
"""Seconds for which another start may take room from the same paths."""
_FREED: Final = 10.0
"""Seconds for which a file system may take to free what was unlinked."""
_WHICH: Final = re.compile(r'"data": [^,}]*|(?<="stage": \[)\d+')
_GROUP: Final = "group of layers"
"""The field of `Config.identity` that names a further group."""
_log = Limited("blockyard", 0)


class Wanted(NamedTuple):
    """What the slot files of one rank still want."""

    root: Path
    """The path of all identities."""
    identity: Path
    """The folder of their own."""
    fields: Mapping[str, str]
    """What they depend on, by name."""
    nbytes: int
    """Bytes of disk."""


class _Disk(NamedTuple):
    """A file system on which room is wanted."""

    root: Path
    wanted: int
    short: int
    """Bytes that are missing; under a quota all."""
    idle: list[Identity]
    """Other identities that no process owns, the one that was used last longest ago first."""
    kept: str
    """What stays of the others, and why; empty where there is none."""

    @property
    def enough(self) -> list[Identity] | None:
        """As many of the idle ones as have the room that is missing; None where all have not."""
        had = 0
        for count, one in enumerate(self.idle, 1):
            had += one.nbytes
            if had >= self.short:
                return self.idle[:count]
        return None


@contextmanager
def alone(roots: Iterable[Path]) -> Iterator[None]:
    """Keeps other starts that would take room from these paths waiting; where locks can be had."""
    with ExitStack() as held:
        until = time.monotonic() + _PATIENCE
        for root in sorted(set(roots)):
            with suppress(OSError):
                # Whoever makes the folder meanwhile finds nothing there to take.
                opened = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                held.callback(os.close, opened)
                # By hand, as a process that was forked may have it open, too.
                held.callback(fcntl.flock, opened, fcntl.LOCK_UN)
                while not _locked(opened) and time.monotonic() < until:
                    time.sleep(0.01)
        yield


def no_room(error: Unavailable, wants: Sequence[Wanted]) -> Unavailable:
    """Returns the error with identities to remove, and the command.

    Args:
        error: What a `DiskLane` has raised for lack of room.
        wants: What all files of this start still want, on all ranks.
    """
    return Unavailable("; ".join([str(error), *map(_said, _disks(wants, error))]))


def reclaim(error: Unavailable, wants: Sequence[Wanted]) -> None:
    """Removes other identities under the same paths, until there is room.

    Those go first that were used last longest ago, whole and with all of their ranks. What a
    process owns stays, and so do the other replicas and groups of layers of the same engine, which
    start beside it, and what is not Blockyard's. If all of it would not be enough nothing is
    removed. A process that is killed meanwhile leaves identities that are whole, or such as have
    lost their blocks: the next one removes those, too.

    Args:
        error: As in `no_room`.
        wants: As there.

    Raises:
        Unavailable: There would not be room; as of `no_room`.
    """
    disks = _disks(wants, error)
    if any(disk.enough is None for disk in disks):
        raise no_room(error, wants) from None
    for disk in disks:
        freed, taken = 0, []
        while disk.idle and freed < disk.short:
            # What is open of it is dropped with it: a file that is open keeps its room.
            one = disk.idle.pop(0)
            about = described(one)
            with suppress(Misuse):  # A process has it by now, or it cannot be removed.
                freed += wipe(one).nbytes
                taken.append(about)
            del one
        if taken:
            _log.warning("%s: removed for its room (disk_reclaim): %s", disk.root, "; ".join(taken))
        until = time.monotonic() + _FREED
        while taken and _free(disk.root) < disk.wanted and time.monotonic() < until:
            time.sleep(0.01)


def oldest(some: Iterable[Identity]) -> list[Identity]:
    """Returns those that no process owns, the one first that was used last longest ago."""
    return sorted((one for one in some if one.is_idle), key=lambda one: (one.used, one.name))


def _disks(wants: Sequence[Wanted], error: Unavailable) -> list[_Disk]:
    """Returns the file systems that have not the room that is wanted there."""
    own = {want.identity for want in wants}
    by_device: dict[int, list[Wanted]] = {}
    for want in wants:
        by_device.setdefault(want.root.stat().st_dev, []).append(want)
    quota = getattr(error, "quota", False) and Path(getattr(error, "folder", "")).stat().st_dev
    found = []
    for device, here in by_device.items():
        root = here[0].root
        wanted = sum(want.nbytes for want in here)
        short = wanted if device == quota else wanted - _free(root)
        if short <= 0:
            continue
        others = [
            one
            for path in dict.fromkeys(want.root for want in here)
            for one in identities(path)
            if one.path not in own
        ]
        beside = [
            one for one in others if any(_are_beside(want.fields, one.fields) for want in here)
        ]
        idle = oldest(one for one in others if one not in beside)
        found.append(_Disk(root, wanted, short, idle, _kept(root, others, beside)))
    return found


def _are_beside(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Returns whether two identities are of one engine: its replicas, stages, or groups of layers.

    Groups have layouts of their own, of which ranks share some, and the first one's identity names
    no group.
    """
    first, second = _alike(one), _alike(other)
    if _GROUP in one or _GROUP in other:
        for fields in (first, second):
            fields.pop(_GROUP, None)
            fields["blocks of"] = fields["planes"] = ""
    return first == second


def _alike(fields: Mapping[str, str]) -> dict[str, str]:
    """Returns what all replicas and stages of an engine have alike, not which of them it is.

    vLLM's have `replica`, as "1 of 2"; SGLang's `parallel`, in JSON, and layers of their own.
    """
    alike = dict(fields)
    if "replica" in alike:
        alike["replica"] = alike["replica"].partition(" ")[2]
    if "parallel" in alike:
        alike["parallel"] = _WHICH.sub("", alike["parallel"])
        alike["blocks of"] = alike["pages"] = ""
    return alike


def _kept(root: Path, others: Sequence[Identity], beside: Sequence[Identity]) -> str:
    """Returns why an identity is kept."""
    for one in others:
        if one.owners:
            who = f"{described(one)} by process {one.owners[0]}"
            return f"what else lies at {root} is owned, as {who}"
    if beside:
        what = f"of this engine's other replicas or groups of layers, as {described(beside[0])}"
        return f"what else lies at {root} is {what}"
    for rank in (rank for one in others for rank in one.ranks if rank.why):
        return f"what else lies at {root} cannot be looked at: {rank.why}"
    return ""


def _said(disk: _Disk) -> str:
    """Describes other identities on a disk, and how to remove them."""
    if not disk.idle:
        return disk.kept or f"{disk.root} has no other identity's blocks"
    some = disk.enough
    chosen = disk.idle if some is None else some
    listed = ", ".join(map(described, chosen[:_LISTED]))
    more = len(chosen) - _LISTED
    roots = dict.fromkeys(one.path.parent for one in chosen)
    import shlex  # noqa: PLC0415 - only an error needs it

    commands = [
        f"blockyard disk wipe {shlex.quote(str(root))} "
        + " ".join(one.name for one in chosen if one.path.parent == root)
        for root in roots
    ]
    return (
        f"with all ranks {disk.wanted} bytes are wanted there. Of other identities no process owns "
        f"{listed}{f' and {more} more' if more > 0 else ''}"
        + (": all of them are not enough. To remove them: " if some is None else ". To remove: ")
        + " && ".join(commands)
        + ("" if some is None else "; disk_reclaim = true does that at the start")
    )


def described(one: Identity) -> str:
    """Describes an identity: its model, its size and its last use."""
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.used))
    return f"{one.name} ({one.about}; {_size(one.nbytes)}, last used {when})"


def _size(nbytes: int) -> str:
    amount, unit = float(nbytes), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:  # noqa: PLR2004 - the next unit
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.0f} bytes" if unit == "bytes" else f"{amount:.2f} {unit}"


def _free(root: Path) -> int:
    found = os.statvfs(root)
    return found.f_bavail * found.f_frsize


def _locked(folder: int) -> bool:
    """Takes the lock of a folder; returns whether it succeeded."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
