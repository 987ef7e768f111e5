"""Stdout and stderr that never stop a command: what cannot be written is dropped, and known."""

import io
import os
import sys
from typing import TYPE_CHECKING, Final, TextIO

from blockyard._typing import override
from blockyard.tools.endings import BROKEN, CLOSED, MISUSE

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["Guarded", "guard"]

_NOWHERE: Final = -1
"""In place of a descriptor that was closed before the start: its number may be a file's by now."""

_STDERR: Final = 2


class _Raw(io.RawIOBase):
    """A file descriptor; after the first error all that is written to it goes nowhere."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self.fault: OSError | None = None

    @override
    def fileno(self) -> int:
        if self._descriptor == _NOWHERE:
            # Whoever starts processes passes on what has a number.
            raise io.UnsupportedOperation("it was closed before the start")
        return self._descriptor

    @override
    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    @override
    def writable(self) -> bool:
        return True

    @override
    def write(self, data: "ReadableBuffer", /) -> int:
        if self.fault is None:
            try:
                return os.write(self._descriptor, data)
            except OSError as error:
                self.fault = error
        return memoryview(data).nbytes


class Guarded:
    """The two streams in the place of `sys.stdout` and `sys.stderr`."""

    def __init__(self) -> None:
        self._out, sys.stdout = _guarded(sys.stdout)
        self._err, sys.stderr = _guarded(sys.stderr)

    def status(self, status: int) -> int:
        """Returns the exit status, and logs if stdout could not be written.

        Args:
            status: How the command has ended.
        """
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        fault = self._out.fault
        if fault is None or status == BROKEN:
            return status
        if isinstance(fault, BrokenPipeError):
            return status or CLOSED
        sys.stderr.write(f"blockyard: stdout cannot be written: {fault.strerror}\n")
        sys.stderr.flush()
        return status or MISUSE


def guard() -> Guarded:
    """Puts streams that never raise in the place of stdout and stderr, for the rest of the process.

    So a pipe that its reader has closed ends no command before its files are written, and a full
    disk behind stdout or stderr takes no result with it. A character that the terminal's encoding
    lacks becomes a question mark.
    """
    _occupy()
    return Guarded()


def _occupy() -> None:
    """Opens what stands for no file, so that none gets the number of a closed standard stream."""
    last = -1
    while last <= _STDERR:
        last = os.open(os.devnull, os.O_RDWR)
    os.close(last)


def _guarded(stream: TextIO | None) -> tuple[_Raw, TextIO]:
    if stream is None:
        raw, encoding, lines = _Raw(_NOWHERE), "utf-8", False
    else:
        stream.flush()
        raw, encoding = _Raw(stream.fileno()), stream.encoding
        lines = stream.isatty() or stream is sys.stderr
    buffered = io.BufferedWriter(raw)
    return raw, io.TextIOWrapper(buffered, encoding, "replace", line_buffering=lines)
