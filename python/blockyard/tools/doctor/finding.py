"""What a check of `blockyard doctor` looks at, and what it finds."""

import ctypes
import mmap
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

from blockyard.shared.layout import KVLayout
from blockyard.shared.machine import whole

__all__ = ["LEVELS", "Check", "Demand", "Finding", "Level", "Problem", "Site", "judged", "unknown"]

Level: TypeAlias = Literal["ok", "unknown", "warn", "fail"]
LEVELS: Final[tuple[Level, ...]] = ("ok", "unknown", "warn", "fail")
"""The mildest first."""


class Finding(NamedTuple):
    """What one check has found."""

    name: str
    level: Level
    """"fail" if it will not work, "unknown" if it cannot be checked here."""
    fact: str
    means: str = ""
    """What follows from it; empty where all is well."""
    do: str = ""
    """What to type or to write."""


Problem: TypeAlias = tuple[object, Level, str, str]
"""Whether it is there, and the level, what follows and what to do where it is."""


def judged(name: str, fact: str, *problems: Problem) -> Finding:
    """Returns the first problem that is there as a finding, or that all is well."""
    for there, level, means, do in problems:
        if there:
            return Finding(name, level, fact, means, do)
    return Finding(name, "ok", fact)


def unknown(name: str, fact: str) -> Finding:
    """Returns a finding that cannot be checked on this machine."""
    return Finding(name, "unknown", fact)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Requirements of the command line on the machine."""

    host: int = 0
    """Bytes of the host tiers of all ranks and replicas; 0 for none."""
    pinned: int = 0
    """Bytes that one rank pins."""
    piece: int = 0
    """Bytes that one rank pins in one piece, for a group of layers; 0 where that is not known."""
    shared: int = 0
    """Bytes of memory that ranks share, in /dev/shm."""
    disk: int = 0
    """Bytes of the disk tiers of all ranks and replicas."""
    device: int = 0
    """Bytes of the device tier of a rank."""
    paths: tuple[Path, ...] = ()
    """Where the disk tiers are, and what `--disk` names."""
    stores: tuple[tuple[str, str | None], ...] = ()
    """URLs of shared stores, each with the file of its password."""
    ranks: int = 0
    """Processes that compute; 0 where that is not known."""
    layout: KVLayout | None = None
    load: int | None = None
    """Nanoseconds to load a block from the disk, as `block_costs` has it."""

    def joined(self, other: "Demand") -> "Demand":
        """Returns the larger of both requirements."""
        sizes = ("host", "pinned", "piece", "shared", "disk", "device", "ranks")
        return replace(
            self,
            **{name: max(getattr(self, name), getattr(other, name)) for name in sizes},
            paths=tuple(dict.fromkeys(self.paths + other.paths)),
            stores=tuple(dict.fromkeys(self.stores + other.stores)),
            layout=self.layout or other.layout,
            load=other.load if self.load is None else self.load,
        )


def _locks(nbytes: int) -> bool:
    """Whether the system locks so much memory of this process; it is given back at once."""
    memory = mmap.mmap(-1, nbytes)
    start = ctypes.c_char.from_buffer(memory)
    try:
        locked = not ctypes.CDLL(None).mlock(ctypes.byref(start), ctypes.c_size_t(nbytes))
    finally:
        del start
    memory.close()
    return locked


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The machine and its requirements."""

    asked: Demand = field(default_factory=Demand)
    root: Path = Path("/")
    """Where `proc` and `sys` are."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    locks: Callable[[int], bool] = _locks
    """Locks so many bytes for a moment."""

    def text(self, path: str) -> str | None:
        """Returns a file's text below the root, stripped; None if it cannot be read."""
        try:
            return (self.root / path).read_text("utf-8", "replace").strip()
        except (OSError, ValueError):
            return None

    def number(self, path: str) -> int | None:
        """Returns the number at the beginning of a file below the root."""
        return whole((self.text(path) or "").partition(" ")[0])

    def lines(self, path: str) -> dict[str, str]:
        """Returns the lines of a file such as /proc/meminfo, by the text before the colon."""
        pairs = (line.partition(":") for line in (self.text(path) or "").splitlines())
        return {name.strip(): value.strip() for name, _, value in pairs}

    def found(self, pattern: str) -> list[Path]:
        """Returns the paths below the root that a pattern names, in their order."""
        try:
            return sorted(self.root.glob(pattern))
        except OSError:
            return []


Check: TypeAlias = Callable[[Site], Finding]
"""Looks at one thing."""
