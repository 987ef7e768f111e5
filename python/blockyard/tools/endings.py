"""Exit statuses, and the error of a broken law."""

from typing import Final

from blockyard._command import INTERRUPTED
from blockyard._core import Unavailable

__all__ = ["BROKEN", "CLOSED", "FAILED", "INTERRUPTED", "MISUSE", "STATUSES", "Broken"]

FAILED: Final = 1
MISUSE: Final = 2
BROKEN: Final = 3
CLOSED: Final = 141
"""As a shell has it of a program that a closed pipe ends: 128 + SIGPIPE."""

STATUSES: Final = {
    0: "success",
    FAILED: (
        "failed, for example because a process died; `disk verify` found a damaged block; "
        "`doctor` found a setting that will fail"
    ),
    MISUSE: "bad input, found before anything runs; or a file or stdout that cannot be written",
    BROKEN: "a broken invariant, a wrong byte, or tokens that differ: a bug of Blockyard",
    INTERRUPTED: "interrupted by Ctrl-C",
    CLOSED: "stdout was closed by its reader, as `| head` does; the files are written",
}
"""The meaning of each exit status. `BROKEN` replaces any other; any other replaces `CLOSED`."""


class Broken(Unavailable):
    """What was tried shows that Blockyard breaks one of its laws."""
