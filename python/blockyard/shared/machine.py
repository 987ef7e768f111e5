"""How much memory this process can still take, as the machine reports it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from blockyard.shared.owner import is_foreign

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["control_groups", "free_memory", "memory_for", "whole"]

_MANY: Final = 1 << 19
"""Slots or ghosts up to which the machine is not asked for memory: they take 100 MB at most."""

_DIGITS: Final = 20
"""Of the largest number of 64 bits."""


def memory_for(*counts: object) -> int | None:
    """Returns `free_memory`, for a cache of many slots or ghosts; None for a small one.

    Args:
        counts: Slots and ghosts; the core refuses what is no number.
    """
    many = any(isinstance(count, int | np.integer) and count > _MANY for count in counts)
    return free_memory() if many else None


def free_memory(root: "Path | None" = None) -> int | None:
    """Returns the bytes that this process can take now: of the machine, and of its control groups.

    Memory that holds files, and that the system would give back, counts as free. The limits of
    `ulimit` are not looked at: beyond them the system itself refuses.

    Args:
        root: Where `proc` and `sys` are; None for `/`.

    Returns:
        The least of them, 0 or more; None where the system does not say, as outside Linux.
    """
    from pathlib import Path  # noqa: PLC0415 - most programs have small caches

    root = Path("/") if root is None else root
    rooms = [_of_machine(root), *_of_groups(root)]
    known = [room for room in rooms if room is not None]
    return max(min(known), 0) if known else None


def _of_machine(root: "Path") -> int | None:
    kib = _numbers(root / "proc/meminfo").get("MemAvailable:")
    return None if kib is None else 1024 * kib


def control_groups(root: "Path", kind: str) -> Iterator[tuple["Path", int]]:
    """Yields this process's control groups of a kind, from its own up, and the version of each.

    Version 2 has one tree, version 1 one for each kind.

    Args:
        root: Where `proc` and `sys` are.
        kind: Such as "memory" or "cpu".
    """
    for line in _lines(root / "proc/self/cgroup"):
        _, kinds, path = [*line.split(":", 2), "", ""][:3]
        if kinds and kind not in kinds.split(","):
            continue
        top = root / (f"sys/fs/cgroup/{kind}" if kinds else "sys/fs/cgroup")
        group = top / path.lstrip("/")
        # In a container the path may be the host's, of which only the top exists.
        for one in [group, *group.parents][: len(group.parts) - len(top.parts) + 1]:
            yield one, 1 if kinds else 2


def _of_groups(root: "Path") -> list[int | None]:
    names = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        2: ("memory.max", "memory.current"),
    }
    return [_of_group(one, *names[version]) for one, version in control_groups(root, "memory")]


def _of_group(group: "Path", limits: str, used: str) -> int | None:
    limit, taken = (_lines(group / name) for name in (limits, used))
    most, held = (whole(lines[0]) if lines else None for lines in (limit, taken))
    if most is None or held is None:
        return None  # no limit, which says "max", or no such group
    stat = _numbers(group / "memory.stat")
    files = stat.get("file", stat.get("total_cache", 0))
    shared = stat.get("shmem", stat.get("total_shmem", 0))
    return most - held + max(files - shared, 0)


def whole(text: str) -> int | None:
    """Returns the whole number that a file of the system says; None where it says none."""
    digits = text.isascii() and text.isdigit() and len(text) <= _DIGITS
    return int(text) if digits else None


def _numbers(path: "Path") -> dict[str, int]:
    """Reads a name and a number from each line."""
    pairs = [line.split()[:2] for line in _lines(path)]
    found = ((pair[0], whole(pair[1])) for pair in pairs if len(pair) == 2)  # noqa: PLR2004
    return {name: number for name, number in found if number is not None}


def _lines(path: "Path") -> list[str]:
    try:
        return path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        if is_foreign(error):
            raise
        return []
