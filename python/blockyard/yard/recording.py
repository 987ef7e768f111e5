"""Records a cache's requests, and reports losses."""

import os
from typing import Final

from blockyard._core import Recorder
from blockyard.shared.log import Limited
from blockyard.shared.stats import Stat

__all__ = ["Recording"]

_log = Limited(__name__, 0)


class Recording:
    """A recorder, with one log line if it loses requests. Any thread may ask.

    Args:
        path: The file; None to record nothing.
        block_size: Tokens per block.

    Raises:
        Misuse: As in `Recorder`.
    """

    SCHEMA: Final = (
        Stat(
            "recorded",
            "requests",
            "counter",
            "recorded_requests{outcome=written}",
            "requests that were written to the file of `record`",
        ),
        Stat(
            "record_dropped",
            "requests",
            "counter",
            "recorded_requests{outcome=dropped}",
            "requests that were not recorded because the disk was full or too slow",
        ),
    )

    def __init__(self, path: str | os.PathLike[str] | None, block_size: int) -> None:
        self.recorder = None if path is None else Recorder(str(path), block_size)
        self._path = str(path)
        self._is_told = False

    def look(self) -> None:
        """Logs once that requests are not written, and why."""
        if self.recorder is None or self._is_told:
            return
        _, dropped = self.recorder.counts()
        why = self.recorder.trouble()
        if dropped or why is not None:
            self._is_told = True
            why = why or "they came faster than they could be written"
            _log.warning("record = %r: not all requests are written: %s", self._path, why)

    def close(self) -> None:
        """Stops recording, and waits up to a second for its writes."""
        if self.recorder is not None:
            self.recorder.close()
            self.look()

    def stats(self) -> dict[str, int]:
        """Returns counts, by the names of `SCHEMA`."""
        self.look()
        counts = (0, 0) if self.recorder is None else self.recorder.counts()
        return {stat.name: count for stat, count in zip(self.SCHEMA, counts, strict=True)}
