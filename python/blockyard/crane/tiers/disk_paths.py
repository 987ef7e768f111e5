"""The paths of a disk tier: one, or several that share the blocks."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from blockyard._core import Misuse

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["DiskPath", "paths_of"]

DiskPath: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A path, or several."""


def paths_of(path: DiskPath) -> list["Path"]:
    """Returns one path or several, each once.

    Raises:
        Misuse: There is none, or one comes twice.
    """
    from pathlib import Path  # noqa: PLC0415 - most programs have no disk

    given: object = [path] if isinstance(path, str | os.PathLike) else path
    if not isinstance(given, Sequence) or not all(
        isinstance(one, str | os.PathLike) and os.fspath(one) for one in given
    ):
        raise Misuse(f"disk_path = {path!r}: give a path, or a list of paths")
    paths = [Path(one) for one in given]
    if not paths:
        raise Misuse("disk_path = []: give one path or several")
    for place, one in enumerate(paths):
        for other in paths[:place]:
            if one == other:
                raise Misuse(f"disk_path has {one} twice: give each disk once")
            if _same(one, other):
                raise Misuse(f"disk_path: {other} and {one} are one folder: give each disk once")
    return paths


def _same(one: "Path", other: "Path") -> bool:
    """Whether two paths lead to one folder, by links or mounts."""
    try:
        return one.samefile(other)
    except OSError:
        return one.resolve() == other.resolve()
