"""Files that are written at the end, whole or not at all."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from blockyard._core import Misuse

__all__ = ["claim", "opened", "write", "write_all"]


def claim(paths: Mapping[str, Path | None]) -> None:
    """Checks that files can be written, and leaves nothing behind.

    Args:
        paths: The files by option; a name that is no option is an input, which is not overwritten.

    Raises:
        Misuse: A file cannot be written, is named twice, or is where stdout or stderr goes.
    """
    taken: dict[Path, str] = {}
    for option, path in paths.items():
        if path is None:
            continue
        target = _target(path)
        if target in taken:
            raise Misuse(f"{option} {path}: {taken[target]} names the same file; give another")
        taken[target] = option
        if option.startswith("--"):
            _try(option, path, target)


def write_all(files: Mapping[Path | None, bytes]) -> list[str]:
    """Writes each file, also where another cannot be; None stands for one that is not asked for.

    Call it before anything is shown, and raise what it returns once all is: whoever has waited for
    a result sees it, whatever has become of the files.

    Returns:
        Why files could not be written, one text each.
    """
    faults = []
    for path, content in files.items():
        try:
            if path is not None:
                write(path, content)
        except Misuse as fault:
            faults.append(str(fault))
    return faults


def write(path: Path, content: bytes) -> None:
    """Writes a temporary file and renames it, so that no reader ever sees half of it.

    Raises:
        Misuse: The file cannot be written.
    """
    with opened(path) as file:
        file.write(content)


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Gives a temporary file, and renames it at the end; after an exception nothing is left of it.

    In the body an OSError is taken for one of writing.

    Raises:
        Misuse: The file cannot be written.
    """
    target = _target(path)
    partial = None
    try:
        with tempfile.NamedTemporaryFile(
            dir=target.parent, prefix=f".{target.name[:100]}.", delete=False
        ) as file:
            partial = Path(file.name)
            yield file
            file.flush()
            # Some file systems tell only now that they are full.
            os.fsync(file.fileno())
        # A temporary file is readable by its owner alone; the result has the usual mode.
        partial.chmod(target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask())
        partial.replace(target)
        partial = None
    except OSError as error:
        raise Misuse(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        if partial is not None:
            partial.unlink(missing_ok=True)


def _target(path: Path) -> Path:
    """Returns the file behind links: a link stays, and its target is replaced."""
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:
        raise Misuse(f"{path} cannot be written: {error}") from None


def _try(option: str, path: Path, target: Path) -> None:
    if str(path) == "-":
        raise Misuse(f"{option} -: only --json may be stdout; give a file, or ./- for one named -")
    try:
        for name, descriptor in (("stdout", 1), ("stderr", 2)):
            if _is_behind(path, descriptor):
                raise Misuse(f"{option} {path}: {name} goes there; give another path")
        if path.exists() and not path.is_file() and not path.is_dir():
            raise Misuse(f"{option} {path}: not a regular file; give another path")
        if target.is_dir():
            raise Misuse(f"{option} {path}: this is a directory; give a file in it")
        if not target.parent.is_dir():
            raise Misuse(f"{option} {path}: there is no directory {path.parent}; make it first")
        if target.exists() and not os.access(target, os.W_OK):
            raise Misuse(f"{option} {path}: no permission to write it; give another path")
        # This also finds a name that is too long for the file system.
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name[:100]}."):
            target.lstat() if target.exists() else None
    except OSError as error:
        raise Misuse(f"{option} {path}: it cannot be written: {error.strerror or error}") from None


def _is_behind(path: Path, descriptor: int) -> bool:
    """Whether a descriptor writes to the file, which a rename would leave without a name."""
    try:
        return path.is_file() and os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
