"""The lines of a text file, gzipped or not, and errors with their position."""

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from blockyard._core import Misuse

__all__ = ["Place", "TraceError", "lines"]


class TraceError(Misuse):
    """A trace that cannot be read or written. It names the file, the line and the field."""


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a file, for errors."""

    path: Path
    line: int
    """The line's number, from 1."""

    def wrong(self, field: str | None, what: str) -> TraceError:
        """Returns the error for this position, with the remedy."""
        where = "" if field is None else f", field {field}"
        return TraceError(f"{self.path}, line {self.line}{where}: {what}")


def lines(path: Path, what: str = "a trace") -> Iterator[tuple[Place, str]]:
    """Yields the lines that are not blank, with their places.

    Args:
        path: The file, gzipped if its name ends in .gz.
        what: What it should be, for errors.

    Raises:
        TraceError: The file is missing, no text, or cannot be read.
    """
    if path.is_dir():
        raise TraceError(f"{path}: this is a directory; give the file of {what}")
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for line in file:
                number += 1
                if not line.isspace():
                    yield Place(path, number), line.decode()
    except FileNotFoundError:
        raise TraceError(f"{path}: there is no such file; give the path of {what}") from None
    except UnicodeDecodeError as error:
        said = f"byte {error.start} is not UTF-8; save the file as UTF-8 text"
        raise Place(path, number).wrong(None, said) from None
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"{path}: it cannot be read: {error}") from None
