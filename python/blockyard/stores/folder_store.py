"""A folder as a store: a file for each value, for tests and small set-ups on one machine or mount.

Nothing is synced: after a power cut, values may be missing, empty or cut short. A call on a mount
that hangs does not end; nothing bounds it but the lane's deadline.
"""

import errno
import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Final

from blockyard._core import Misuse, Unavailable
from blockyard._typing import override
from blockyard.shared.validate import folder
from blockyard.stores.location import Location

__all__ = ["OPTIONS", "FolderStore", "open_at"]

OPTIONS: Final = ()
_PART: Final = re.compile(r"[0-9A-Za-z_-][0-9A-Za-z_.-]{0,127}")
"""A part of an address, as a name of a file: none begins with a dot."""
_NEW: Final = ".new"
"""Where values are written before they get their name."""
_EXPIRING: Final = ".expiring"
"""Where values with a time to live are; each file's time is when it ends."""
_ABANDONED: Final = 3600.0
"""Seconds after which a value that is still being written has no writer any more."""
_numbers = count()
_Parts = list[str]


def open_at(where: Location) -> "FolderStore":
    """Returns the store of a URL.

    Raises:
        Misuse: It names a host, a user or no path.
    """
    if where.host not in {"", "localhost"} or where.port or where.user or where.password:
        raise Misuse(f"{where.url}: a folder has no host and no user: write file:///path")
    if where.path in {"", "/"}:
        raise Misuse(f"{where.url}: give the path of a folder, as in file:///mnt/kv")
    return FolderStore(folder("the path of a store", where.path), where.url)


class FolderStore:
    """A folder, which is made when a session first connects. Any thread may use it.

    Args:
        root: Its path.
        url: What it is called.
    """

    def __init__(self, root: Path, url: str | None = None) -> None:
        self.root = root
        self.url = url or root.absolute().as_uri()

    @override
    def __repr__(self) -> str:
        return f"FolderStore({self.url!r})"

    def connect(self) -> "FolderSession":
        """Returns a session; removes what has expired, and what killed writers have left.

        Raises:
            Unavailable: The folder cannot be made or read.
        """
        with _told(self.url):
            for path in (self.root, self.root / _NEW, self.root / _EXPIRING):
                path.mkdir(mode=0o700, exist_ok=True)
            now = time.time()
            _remove(self.root / _NEW, before=now - _ABANDONED)
            _remove(self.root / _EXPIRING, before=now)
        return FolderSession(self.root, self.url)


class FolderSession:
    """Reads and writes a folder. One thread at a time may use it.

    Args:
        root: The folder.
        url: What it is called.
    """

    def __init__(self, root: Path, url: str) -> None:
        self._root = root
        self._url = url

    def put(self, address: str, value: memoryview, ttl: float | None = None) -> None:
        """Writes a file beside, and gives it its name."""
        parts = _parts(address)
        home = self._root if ttl is None else self._root / _EXPIRING
        other = self._root / _EXPIRING if ttl is None else self._root
        written = self._root / _NEW / f"{os.getpid()}-{next(_numbers)}"
        with _told(self._url):
            try:
                file = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                try:
                    left = value.cast("B")
                    while left:
                        left = left[os.write(file, left) :]
                finally:
                    os.close(file)
                if ttl is not None:
                    until = time.time() + ttl
                    os.utime(written, (until, until))
                _place(home, parts, written)
            except BaseException:
                with suppress(OSError):
                    written.unlink()
                raise
            with suppress(FileNotFoundError):
                other.joinpath(*parts).unlink()

    def get(self, address: str, into: memoryview) -> memoryview | bytes | None:
        """Reads a file."""
        room = into.cast("B")
        with _told(self._url):
            file = self._opened(_parts(address))
            if file is None:
                return None
            try:
                size = os.fstat(file).st_size
                if size > len(room):
                    return b""
                done = 0
                while done < size and (some := os.readv(file, [room[done:size]])):
                    done += some
                return room[:done]
            finally:
                os.close(file)

    def has(self, addresses: Sequence[str]) -> list[bool]:
        """Looks for files."""
        with _told(self._url):
            found = [self._is_there(_parts(address)) for address in addresses]
            if not all(found):
                self._look()
            return found

    def delete(self, addresses: Sequence[str]) -> int:
        """Unlinks files: their bytes are on the disk until they are overwritten."""
        gone = 0
        with _told(self._url):
            for address in addresses:
                parts = _parts(address)
                for home in (self._root, self._root / _EXPIRING):
                    with suppress(FileNotFoundError, NotADirectoryError):
                        home.joinpath(*parts).unlink()
                        gone += 1
        return gone

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Walks the folders."""
        for home in (self._root, self._root / _EXPIRING):
            # Only below the last folder that the prefix names as a whole.
            start = home.joinpath(*prefix.split("/")[:-1])
            for path in _files(start, self._url):
                address = path.relative_to(home).as_posix()
                if not address.startswith(prefix) or address.startswith("."):
                    continue
                with suppress(FileNotFoundError):
                    found = path.lstat()
                    if self._counts(home, found):
                        yield address, found.st_size

    def close(self) -> None:
        """Does nothing: no file is open between two calls."""

    def _is_there(self, parts: _Parts) -> bool:
        for home in (self._root, self._root / _EXPIRING):
            with suppress(FileNotFoundError, NotADirectoryError):
                if self._counts(home, os.lstat(home.joinpath(*parts))):
                    return True
        return False

    def _counts(self, home: Path, found: os.stat_result) -> bool:
        """Whether it is a file, and has not expired."""
        return stat.S_ISREG(found.st_mode) and (home == self._root or found.st_mtime > time.time())

    def _opened(self, parts: _Parts) -> int | None:
        look = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        for home in (self._root, self._root / _EXPIRING):
            try:
                file = os.open(home.joinpath(*parts), look)
            except (FileNotFoundError, NotADirectoryError):
                continue
            if self._counts(home, os.fstat(file)):
                return file
            os.close(file)
        self._look()
        return None

    def _look(self) -> None:
        """Raises where the folder is gone: one that is not mounted is no empty store."""
        self._root.stat()


def _parts(address: str) -> list[str]:
    parts = address.split("/")
    if not all(_PART.fullmatch(part) for part in parts):
        raise Misuse(
            f"address {address[:80]!r}: its parts must be letters, digits, - and _, joined by /"
        )
    return parts


def _place(home: Path, parts: list[str], written: Path) -> None:
    path = home.joinpath(*parts)
    try:
        written.replace(path)
    except FileNotFoundError:
        at = home
        for part in parts[:-1]:
            at /= part
            with suppress(FileExistsError):
                at.mkdir(mode=0o700)
        written.replace(path)


def _remove(root: Path, *, before: float) -> None:
    """Removes the files below a folder that are of a time before."""
    for folder_, _, names in os.walk(root):
        for name in names:
            path = Path(folder_, name)
            with suppress(OSError):
                if path.lstat().st_mtime < before:
                    path.unlink()


def _files(root: Path, url: str) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        if error.errno != errno.ENOENT:
            raise _unavailable(url, error) from None

    for folder_, folders, names in os.walk(root, onerror=refuse):
        folders[:] = sorted(one for one in folders if not one.startswith("."))
        for name in sorted(names):
            yield Path(folder_, name)


@contextmanager
def _told(url: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _unavailable(url, error) from None


def _unavailable(url: str, error: OSError) -> Unavailable:
    said = {
        errno.ENOSPC: "its file system is full",
        errno.EDQUOT: "its quota is used up",
        errno.EROFS: "its file system is read-only",
        errno.ENOENT: "there is no such folder",
        errno.EACCES: "no permission",
    }
    return Unavailable(f"{url}: {said.get(error.errno or 0, error.strerror or str(error))}")
