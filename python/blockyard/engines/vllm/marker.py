"""What was cleared on the disk, noted by the scheduler's process: the workers hear of it later."""

import hashlib
import json
import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from blockyard._core import Unavailable
from blockyard.yard.config import Config

__all__ = ["Marker"]

_log = logging.getLogger(__name__)
_PATIENCE: Final = 1.0
"""Seconds that a reset waits for a disk."""


class Marker:
    """A file beside the folders of an identity: what all owners up to a number wrote is cleared.

    Args:
        path: As in `Settings`; None where there is no disk that outlives the engine.
        config: Of the engine.
    """

    def __init__(self, path: str | Sequence[str] | None, config: Config) -> None:
        self._path: Path | None = None
        if path is not None:
            said = {**config.identity, "layout": config.layout and config.layout.fingerprint}
            name = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]
            self._path = Path(path if isinstance(path, str) else path[0]) / f"cleared-{name}"

    def cleared(self) -> int:
        """Returns the last owner of whose blocks nothing is to be found; 0 for none.

        Raises:
            Unavailable: It cannot be read, so that nobody knows.
        """
        if self._path is None or not self._path.exists():
            return 0
        try:
            return int(self._path.read_text("ascii"))
        except (OSError, ValueError) as error:
            raise Unavailable(f"{self._path}: what was cleared cannot be read: {error}") from error

    def clear(self, run: int) -> bool:
        """Notes that all of this owner and those before is cleared; returns whether it is durable.

        It waits for a second at most.

        Args:
            run: The number of the owner; 0 where there is no disk.
        """
        if self._path is None or not run:
            return True
        done = threading.Event()
        threading.Thread(target=self._write, args=(run, done), daemon=True).start()
        if not done.wait(_PATIENCE):
            _log.warning(
                "%s: a reset is not durable: a restart may find what was before", self._path
            )
        return done.is_set()

    def _write(self, run: int, done: threading.Event) -> None:
        assert self._path is not None  # noqa: S101 - `clear` has looked
        new = self._path.with_suffix(".new")
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
            with os.fdopen(os.open(new, flags, 0o600), "w") as file:
                file.write(str(run))
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._path)
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            _log.warning("%s: a reset cannot be noted: %s", self._path, error)
            return
        done.set()
