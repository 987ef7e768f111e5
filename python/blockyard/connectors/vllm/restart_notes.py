"""What the scheduler's process notes beside the folders of its ranks, for the next engine."""

import hashlib
import os
import re
import shlex
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from blockyard._core import Unavailable
from blockyard.shared.log import Limited

__all__ = ["RestartNotes", "clear_all"]

_log = Limited(__name__, 0)
_PATIENCE: Final = 1.0
"""Seconds that a reset, or the end of an engine, waits for a disk."""
_MAGIC: Final = b"BYE1"
"""Of an order: then the number of its owner and its slots, 4 bytes each, and SHA-256 of all."""
_SUM: Final = 32
_CLEARED: Final = re.compile(rb"(?:BYC1 [0-9a-f]{64} )?([0-9]+)\n?")
"""Of what was cleared: SHA-256 of the number, and the number, which versions before had alone."""


class RestartNotes:
    """Two files in the folders of an identity: what was cleared, and the order of a clean end.

    The workers hear of a reset with the next step, which may never come; and they have ended before
    the scheduler says which blocks should go first. What is cleared must be known: a file that
    cannot be read ends the start. An order is a hint: one that is not whole, or another engine's,
    counts as none.

    Args:
        folders: The identity's, one on each disk; none where no disk outlives the engine. Each has
            what was cleared, so that the loss of a disk hides it of no other; the first has the
            order.
    """

    def __init__(self, *folders: str) -> None:
        # One writer at a time, also behind one that the disk holds up: they share a file.
        self._folders = {Path(folder): threading.Lock() for folder in folders}

    def cleared(self) -> int:
        """Returns the last owner of whose blocks nothing is to be found; 0 for none.

        Raises:
            Unavailable: It cannot be read, so cleared blocks are unknown.
        """
        return max((_cleared(folder / "cleared") for folder in self._folders), default=0)

    def clear(self, run: int) -> bool:
        """Notes that all of this owner and those before is cleared.

        It waits for a second at most.

        Args:
            run: The number of the owner; 0 where there is no disk.

        Returns:
            Whether it is durable on every disk.
        """
        return clear_all([self], run)

    def begin_clear(self, run: int) -> dict[Path, threading.Event]:
        """Begins to note it, as `clear`; returns what is set once each folder has it durably."""
        said = _checked(str(run).encode())
        return {
            folder: _write(writing, folder / "cleared", said)
            for folder, writing in self._folders.items()
        }

    def keep_order(self, run: int, slots: NDArray[np.uint32]) -> None:
        """Notes the eviction order, for the engine after this one. It waits for a second at most.

        Args:
            run: The number of the owner; 0 where there is no disk.
            slots: As `KVCache.eviction_order("disk")`.
        """
        if self._folders and run:
            said = _MAGIC + np.uint32(run).tobytes() + slots.astype("<u4").tobytes()
            said += hashlib.sha256(said).digest()
            folder, writing = next(iter(self._folders.items()))
            _write(writing, folder / "order", said).wait(_PATIENCE)

    def take_order(self, run: int) -> NDArray[np.uint32] | None:
        """Returns the order that this owner has noted, which is gone then; None for none.

        Args:
            run: The number of the owner before.
        """
        if not self._folders:
            return None
        path = next(iter(self._folders)) / "order"
        try:
            read = _read(path)
            path.unlink()
        except OSError:
            return None
        said, check = read[:-_SUM], read[-_SUM:]
        if hashlib.sha256(said).digest() != check or said[:4] != _MAGIC or len(said) % 4:
            return None
        numbers = np.frombuffer(said, "<u4", offset=4).astype(np.uint32)
        return numbers[1:] if len(numbers) and numbers[0] == run else None


def clear_all(notes: Sequence[RestartNotes], run: int) -> bool:
    """Notes on the disks of several groups of layers that all of an owner is cleared.

    It waits for a second at most, for all of them together.

    Args:
        notes: Of each group.
        run: As in `RestartNotes.clear`.

    Returns:
        Whether it is durable on every disk, of every group.
    """
    if not run:
        return True
    begun: dict[Path, threading.Event] = {}
    for one in notes:
        begun |= one.begin_clear(run)
    until = time.monotonic() + _PATIENCE
    late = [folder for folder, done in begun.items() if not done.wait(until - time.monotonic())]
    for folder in late:
        _log.warning("%s: a reset is not durable: a restart may find blocks from before it", folder)
    return not late


def _cleared(path: Path) -> int:
    """Returns the cleared epoch of a note; 0 if there is none."""
    try:
        said = _read(path)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise _unknown(path, error) from error
    found = _CLEARED.fullmatch(said)
    number = b"" if found is None else found[1]
    if not number or said not in {number, _checked(number)}:
        raise _unknown(path, "it is not whole")
    return int(number)


def _write(writing: threading.Lock, path: Path, said: bytes) -> threading.Event:
    """Replaces a file in a thread; returns an event that is set once it is durable."""
    done = threading.Event()
    threading.Thread(target=_replace, args=(writing, path, said, done), daemon=True).start()
    return done


def _replace(writing: threading.Lock, path: Path, said: bytes, done: threading.Event) -> None:
    new = path.with_name(f"{path.name}.new")
    try:
        with writing:
            _put(new, said)
            new.replace(path)
            _sync(path.parent)
    except OSError as error:
        _log.warning("%s cannot be written: %s", path, error)
        return
    done.set()


def _unknown(path: Path, why: object) -> Unavailable:
    return Unavailable(
        f"{path}: the list of cleared blocks cannot be read: {why}; restore the file, or wipe "
        f"the blocks: blockyard disk wipe {shlex.quote(str(path.parents[1]))} {path.parent.name}"
    )


def _checked(number: bytes) -> bytes:
    return b"BYC1 %s %s\n" % (hashlib.sha256(number).hexdigest().encode(), number)


def _put(path: Path, said: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(said)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _read(path: Path) -> bytes:
    """Reads a file, and follows no link."""
    flags = os.O_NOFOLLOW | os.O_NONBLOCK
    with open(path, "rb", opener=lambda name, own: os.open(name, own | flags)) as file:
        return file.read()
