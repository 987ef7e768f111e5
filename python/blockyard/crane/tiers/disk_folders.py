"""Folders of a disk tier: one for each identity, with one for each rank in it."""

import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from blockyard._core import BlockyardError, DiskInspector, Misuse

__all__ = ["Identity", "RankFolder", "Wiped", "chosen", "identities", "wipe"]

TITLE: Final = "Blockyard's blocks, format "
"""What the text of each folder begins with."""
_BLOCKS: Final = ("slots", "order", "floor", "table")
_KNOWN: Final = ("identity",)
"""The files of a rank. That by which it is known goes last, so that a wipe can be repeated."""
_TEXTS: Final = (0, 12288)
"""Where in `identity` its text begins, and where it does once more."""
_MAGIC: Final = b"BYD1"
_RECORD: Final = 128
_ALIGNED: Final = 4096
_NOTES: Final = ("cleared", "cleared.new", "order", "order.new")
"""What a scheduler's process notes in the folder of an identity. They go behind the blocks of which
they say what was cleared, and before the files that number their owners."""
_IDENTITY = re.compile(r"[0-9a-f]{16}")
_RANK = re.compile(r"rank-(0|[1-9][0-9]{0,4})")
_FIELD = re.compile(r'(.+?) = "(.*)"')
_ESCAPED = re.compile(r"\\(?:u\{([0-9a-fA-F]{1,6})\}|(.))")
_MEANT: Final = {"n": "\n", "r": "\r", "t": "\t", "0": "\0"}
_LOOK: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DIGEST: Final = re.compile(r"(?:sha256:)?([0-9a-f]{8})[0-9a-f]{24,}")
_LONG: Final = 80
"""Characters of a field in a message."""
_SHOWN: Final = 10
"""Names that an error lists."""


class RankFolder(NamedTuple):
    """The folder of a rank."""

    number: int
    path: Path
    inspector: DiskInspector | None
    """None where it cannot be looked at."""
    why: str
    """Why it cannot; else empty."""


class Identity(NamedTuple):
    """The folder of all that depends on the same model, weights, layout and the like."""

    name: str
    """16 hexadecimal digits."""
    path: Path
    ranks: tuple[RankFolder, ...]

    @property
    def text(self) -> str:
        """What it depends on, in clear text; empty where no rank can be looked at."""
        return next((rank.inspector.text for rank in self.ranks if rank.inspector is not None), "")

    @property
    def format(self) -> int | None:
        """The version of its format, where it is known."""
        number = self.text.partition("\n")[0].removeprefix(TITLE)
        return int(number) if number.isdecimal() else None

    @property
    def writer(self) -> str | None:
        """The version of Blockyard that opened it last, if it is recorded."""
        said = (rank.inspector.writer for rank in self.ranks if rank.inspector is not None)
        return next((one for one in said if one is not None), None)

    @property
    def fields(self) -> dict[str, str]:
        """What it depends on, by name."""
        found = map(_FIELD.fullmatch, self.text.splitlines()[1:])
        return {field[1]: _ESCAPED.sub(_plain, field[2]) for field in found if field is not None}

    @property
    def about(self) -> str:
        """Its model and weights, as far as they are known, in a few words."""
        fields = self.fields
        said = [
            f"{name}: {_short(fields[name])}" for name in ("model", "weights") if name in fields
        ]
        return "; ".join(said) or "of an unknown model"

    @property
    def nbytes(self) -> int:
        """Bytes of disk that its files take."""
        return sum(rank.inspector.disk_bytes for rank in self.ranks if rank.inspector is not None)

    @property
    def used(self) -> float:
        """When one of its ranks was opened or written to last, in seconds since 1970."""
        files = (rank.path / name for rank in self.ranks for name in ("identity", "table"))
        return max((_changed(file) for file in files), default=0.0)

    @property
    def is_idle(self) -> bool:
        """Whether all of it is Blockyard's, and no process owns a rank of it."""
        return not self.owners and all(rank.inspector is not None for rank in self.ranks)

    @property
    def owners(self) -> tuple[int, ...]:
        """The processes that own ranks of it."""
        owners = (rank.inspector.owner for rank in self.ranks if rank.inspector is not None)
        return tuple(sorted({owner for owner in owners if owner is not None}))


class Wiped(NamedTuple):
    """What was done with an identity."""

    nbytes: int
    """Bytes of disk that its files took."""
    left: tuple[Path, ...]
    """Other files, which stay."""


def identities(root: Path) -> list[Identity]:
    """Looks at all identities under the path of a disk tier, by name. Nothing else counts.

    Raises:
        Misuse: There is no such folder, or it may not be read.
    """
    try:
        if root.is_symlink():
            raise Misuse(f"{root} is a symbolic link: give the folder that it points to")
        found = [Identity(path.name, path, _ranks(path)) for path in _folders(root, _IDENTITY)]
        return [one for one in found if one.ranks]
    except FileNotFoundError:
        raise Misuse(f"{root}: there is no such folder; give the disk_path of a cache") from None
    except NotADirectoryError:
        raise Misuse(f"{root} is not a folder: give the disk_path of a cache") from None
    except OSError as error:
        raise Misuse(f"{root} cannot be read: {error.strerror or error}") from None


def chosen(root: Path, names: tuple[str, ...]) -> list[Identity]:
    """Returns the identities of these names; without names, all.

    Raises:
        Misuse: There is none of that name, or as in `identities`.
    """
    known = {one.name: one for one in identities(root)}
    for name in names:
        if name not in known:
            listed = ", ".join(list(known)[:_SHOWN]) or "none at all"
            raise Misuse(f"{root} has no identity {name}: there are {listed}")
    return [known[name] for name in dict.fromkeys(names or known)]


def wipe(identity: Identity, *, broken: bool = False) -> Wiped:
    """Unlinks the files of an identity, and then its folders where nothing else is in them.

    Each rank is locked first, so that either none of them is owned or nothing is removed. No
    symbolic link is followed, and other files stay.

    Args:
        identity: What to remove.
        broken: Whether also ranks go whose file `identity` is lost or not whole, if their table has
            Blockyard's records, or their lengths are those of slots and records.

    Raises:
        Misuse: A process owns a rank, a rank is no folder of blocks, or a file cannot be removed.
    """
    nbytes = 0
    try:
        with ExitStack() as locked:
            folders = [
                locked.enter_context(_locked(rank, broken=broken)) for rank in identity.ranks
            ]
            parent = os.open(identity.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            locked.callback(os.close, parent)
            nbytes = sum(_unlink(folder, _BLOCKS) for folder in folders)
            nbytes += _unlink(parent, _NOTES)
            nbytes += sum(_unlink(folder, _KNOWN) for folder in folders)
        for path in (*(rank.path for rank in identity.ranks), identity.path):
            try:
                path.rmdir()
            except OSError as error:
                # Something else is in it, as of an engine that has begun there just now.
                if error.errno not in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT}:
                    raise
    except OSError as error:
        where = error.filename or identity.path
        raise Misuse(f"{where} cannot be removed: {error.strerror or error}") from None
    return Wiped(nbytes, tuple(sorted(_left(identity.path))))


def _ranks(path: Path) -> tuple[RankFolder, ...]:
    made = []
    for folder in _folders(path, _RANK):
        number = int(folder.name.removeprefix("rank-"))
        try:
            made.append(RankFolder(number, folder, DiskInspector(folder), ""))
        except BlockyardError as error:
            made.append(RankFolder(number, folder, None, str(error)))
    return tuple(sorted(made, key=lambda rank: rank.number))


def _folders(path: Path, name: re.Pattern[str]) -> list[Path]:
    with os.scandir(path) as entries:
        found = [
            Path(entry.path)
            for entry in entries
            if name.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
        ]
    return sorted(found)


def _changed(file: Path) -> float:
    try:
        return file.lstat().st_mtime
    except OSError:
        return 0.0


def _short(value: str) -> str:
    """What a field says, without what only a program understands."""
    import json  # noqa: PLC0415 - only a message needs it

    try:
        parts = json.loads(value)
    except ValueError:
        parts = None
    if isinstance(parts, dict):
        digests = {name: _DIGEST.fullmatch(str(part)) for name, part in parts.items()}
        said = [
            f"{name} {', '.join(map(str, part)) if isinstance(part, list) else part}"
            for name, part in parts.items()
            if part is not None and not digests[name]
        ]
        content = digests.get("content")
        value = ", ".join([*said, f"content {content[1]}"] if content else said)
    value = " ".join(value.split())
    return value if len(value) <= _LONG else f"{value[: _LONG - 1]}…"


def _plain(escaped: re.Match[str]) -> str:
    """What a character stands for that Rust has escaped."""
    code, letter = escaped.groups()
    return chr(int(code, 16)) if code else _MEANT.get(letter, letter)


@contextmanager
def _locked(rank: RankFolder, *, broken: bool) -> Iterator[int]:
    """Owns a rank's folder, and gives a descriptor of it."""
    with ExitStack() as opened:
        folder = os.open(rank.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        opened.callback(os.close, folder)
        found: dict[str, int] = {}
        refused = "it is not there"
        for name in ("slots", "table", "identity"):
            try:
                found[name] = os.open(name, _LOOK, dir_fd=folder)
            except OSError as error:
                refused = error.strerror or str(error)
                continue
            opened.callback(os.close, found[name])
            if not stat.S_ISREG(os.fstat(found[name]).st_mode):
                del found[name]
                refused = "it is no file"
        why = "its text is another" if "identity" in found else refused
        if not _is_known(found) and not (broken and (_has_records(found) or _fits(found))):
            raise Misuse(_foreign(rank, why, broken=broken))
        for file in found.values():
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = None if rank.inspector is None else rank.inspector.owner
                who = "a process" if owner is None else f"process {owner}"
                raise Misuse(f"{rank.path}: {who} owns it; stop that process first") from None
        yield folder


def _is_known(found: dict[str, int]) -> bool:
    """Whether a rank's folder has Blockyard's title."""
    return "identity" in found and any(
        os.pread(found["identity"], len(TITLE), at) == TITLE.encode() for at in _TEXTS
    )


def _has_records(found: dict[str, int]) -> bool:
    """Whether a table has a record, by which it is Blockyard's whatever is beside it."""
    if "table" not in found:
        return False
    with os.fdopen(os.dup(found["table"]), "rb") as table:
        table.seek(0)
        while read := table.read(_RECORD << 13):
            if any(read.startswith(_MAGIC, at) for at in range(0, len(read), _RECORD)):
                return True
    return False


def _fits(found: dict[str, int]) -> bool:
    """Whether files have the lengths of slots and their records, or nothing yet."""
    if not {"slots", "table"} <= found.keys():
        return False
    payloads, records = (os.fstat(found[name]).st_size for name in ("slots", "table"))
    slots, rest = divmod(records, _RECORD)
    return not rest and payloads % (_ALIGNED * max(slots, 1)) == 0


def _foreign(rank: RankFolder, why: str, *, broken: bool) -> str:
    said = f"{rank.path}/identity is not Blockyard's ({why})"
    if broken:
        return f"{said}, and no block is beside it: remove the folder by hand if it may go"
    return f"{said}: if the blocks beside it may go, give --broken"


def _unlink(folder: int, names: tuple[str, ...]) -> int:
    """Removes Blockyard's files; returns the bytes that they took on the disk."""
    nbytes = 0
    for name in names:
        try:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            continue
        if stat.S_ISREG(found.st_mode):
            os.unlink(name, dir_fd=folder)
            nbytes += found.st_blocks * 512
    return nbytes


def _left(path: Path) -> Iterator[Path]:
    """Files, links and empty folders below."""
    if path.is_symlink() or not path.is_dir():
        if path.is_symlink() or path.exists():
            yield path
        return
    below = list(path.iterdir())
    if not below:
        yield path
    for one in below:
        yield from _left(one)
