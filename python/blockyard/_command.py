"""Ctrl-C while the command imports this package: a line and a status instead of a traceback."""

import sys
from types import TracebackType
from typing import Final

__all__ = ["INTERRUPTED"]

INTERRUPTED: Final = 130
"""The exit status after Ctrl-C: as a shell has it, 128 + SIGINT."""


def _is_command() -> bool:
    """Whether this process is `blockyard` or `python -m blockyard`, and not a program with it."""
    name = sys.argv[0] if sys.argv else ""
    # While Python looks for what -m names, that word stands in the name's place.
    if name == "-m":
        return "blockyard" in sys.orig_argv
    return name.replace("\\", "/").rpartition("/")[2] == "blockyard"


def _watch() -> None:
    otherwise = sys.excepthook

    def ended(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            if sys.stderr is not None:
                sys.stderr.write("blockyard: interrupted\n")
            raise SystemExit(INTERRUPTED)
        otherwise(kind, error, trace)

    sys.excepthook = ended


# Most of the command's start is this package's imports, which come before any code of its own.
if _is_command():
    _watch()
