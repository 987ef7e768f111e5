"""File systems of a test's own: small ones, read-only ones, and one that can be frozen."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from needs import without


def _run(*words: str | Path) -> str | None:
    """Runs a command; returns why it cannot, or None."""
    try:
        ran = subprocess.run(  # noqa: S603 - words of these tests
            list(map(str, words)), capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if ran.returncode == 0 else ran.stderr.strip() or f"{words[0]} failed"


@contextmanager
def tmpfs(where: Path, size: str) -> Iterator[Path]:
    """A file system in memory, of this size."""
    where.mkdir()
    if why := _run("mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "none", where):
        without("mount", f"no tmpfs can be mounted here: {why}")
    try:
        yield where
    finally:
        _run("umount", "-l", where)


@contextmanager
def ext4(image: Path, where: Path, *, megabytes: int = 64) -> Iterator[Path]:
    """An ext4 in a file, for its owner alone."""
    where.mkdir()
    with image.open("wb") as file:
        file.truncate(megabytes << 20)
    made = _run("mkfs.ext4", "-q", image)
    if why := made or _run("mount", "-o", "loop", image, where):
        without("loop", f"no ext4 can be mounted from a file here: {why}")
    try:
        where.chmod(0o700)
        yield where
    finally:
        _run("umount", "-l", where)


@contextmanager
def frozen(where: Path) -> Iterator[None]:
    """Freezes a file system: writes hang until the end."""
    if why := _run("fsfreeze", "-f", where):
        without("loop", f"no file system can be frozen here: {why}")
    try:
        yield
    finally:
        _run("fsfreeze", "-u", where)


def remount(where: Path, how: str) -> None:
    """Mounts it in another way, as "ro"."""
    if why := _run("mount", "-o", f"remount,{how}", where):
        without("mount", f"it cannot be mounted {how}: {why}")
