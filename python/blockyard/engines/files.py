"""What tells files of weights from changed ones."""

import json
import os
from pathlib import Path
from typing import Final

__all__ = ["files_of", "stamp"]

_FILES: Final = (".safetensors", ".bin", ".pt", ".gguf", "config.json")
"""How the names of files end that weights are made of."""


def stamp(path: str) -> str | None:
    """Returns what tells files of weights from changed ones; None where there are none to be seen.

    Args:
        path: A file, or a folder with files, as engines take it.
    """
    found = files_of(path)
    return None if found is None else json.dumps(found)


def files_of(path: str) -> list[tuple[str, int, int]] | None:
    """Returns name, bytes and time of change, in nanoseconds, of the files of weights at a path."""
    try:
        where = Path(path).expanduser()
        if where.is_file():
            files = [where]
        else:
            with os.scandir(where) as entries:
                files = [Path(one.path) for one in entries if one.name.endswith(_FILES)]
        seen = [(one.name, one.stat()) for one in files]
    except (OSError, ValueError, RuntimeError):
        return None
    return sorted((name, one.st_size, one.st_mtime_ns) for name, one in seen) or None
