"""How a command ends: the exit statuses, and the error that says that a law broke."""

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
    0: "all is well",
    FAILED: (
        "it failed, as when a process died; of `disk verify`: a block is not whole; of `doctor`: "
        "something will fail"
    ),
    MISUSE: "bad input, before anything runs; or a file or stdout that cannot be written",
    BROKEN: "a law is broken, a byte is wrong, or tokens differ: a bug of Blockyard",
    INTERRUPTED: "interrupted by Ctrl-C",
    CLOSED: "whoever read stdout has closed it, as `| head` does; the files are written",
}
"""What each exit status means. `BROKEN` hides all others, and `CLOSED` is hidden by all."""


class Broken(Unavailable):
    """What was tried shows that Blockyard breaks one of its laws."""
