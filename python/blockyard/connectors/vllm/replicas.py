"""Data parallel replicas: vLLM's engines that share a machine, its memory and its disks."""

import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from blockyard._core import BlockyardError, DiskInspector
from blockyard.connectors.command_line import Flags, read

__all__ = ["ALONE", "Replica", "here_of", "others_on_disk", "replica_of"]

_IDENTITY: Final = re.compile(r"[0-9a-f]{16}")
_LINE: Final = re.compile(r'^replica = "\d+(?: of (\d+))?"\n', re.MULTILINE)


class Replica(NamedTuple):
    """Which of an engine's data parallel replicas this is."""

    number: int = 0
    """Its own, from 0, on all machines."""
    total: int | None = 1
    """How many there are on all machines; None where that is not known."""
    here: int = 1
    """How many share this machine, and what an operator gives of it; 1 where that is not known."""

    @property
    def name(self) -> str | None:
        """What tells its folders from those of the others; None for the only one."""
        if self.total == 1:
            return None
        return str(self.number) if self.total is None else f"{self.number} of {self.total}"

    def said(self) -> str:
        """Says what share of the machine it has, for the line at the start; empty for the only one.

        Where several are on this machine, sizes in bytes are divided among them.
        """
        if self.total == 1:
            return ""
        if self.total is None:
            return (
                f"; it is data parallel replica {self.number}, and how many there are is not known "
                "here, so that each of them takes as much"
            )
        shared = "divided among" if self.here > 1 else "taken by each of"
        return f"; it is replica {self.name}: what is given in bytes is {shared} those of a machine"


ALONE: Final = Replica()


def replica_of(parallel: Any, engine: str = "", arguments: Sequence[str] | None = None) -> Replica:
    """Returns which replica an engine is.

    What vLLM says comes first. Of a model without experts it sets the number of replicas to 1 in
    each of them, and leaves it in one field, where it ran as the server has made it; how many of
    them are on a machine says the server's command line alone, which their processes have, too.

    Args:
        parallel: A `ParallelConfig`.
        engine: vLLM's name for the engine, which ends with the number of a replica.
        arguments: The command line; None for that of this process.
    """
    number, count = int(parallel.data_parallel_index), int(parallel.data_parallel_size)
    if count > 1:
        return Replica(number, count, max(int(parallel.data_parallel_size_local), 1))
    said = read("vllm", sys.argv[1:] if arguments is None else arguments)
    left = 1
    if not getattr(parallel, "enable_elastic_ep", False):
        left = int(getattr(parallel, "elastic_ep_max_dp_size", None) or 1)
    count = left if left > max(number, 1) else said.number("data_parallel_size", 0)
    if count <= max(number, 1):
        return Replica(number, None) if number or engine.endswith("_dp0") else ALONE
    return Replica(number, count, here_of(said, count))


def here_of(said: Flags, count: int) -> int:
    """Returns how many of some replicas a command line starts on this machine."""
    alone = said.values.get("data_parallel_external_lb")
    if alone or "data_parallel_rank" in said.values:
        # Each is started by itself: vLLM counts it as the one on its machine.
        return 1
    here = said.number("data_parallel_size_local", count)
    return here if 0 < here <= count else count


def others_on_disk(folders: Sequence[str]) -> Iterator[str]:
    """Says of each disk what another number of replicas has left there, which nobody finds now.

    Args:
        folders: Of this engine's identity, one on each of its disks.
    """
    for folder in map(Path, folders):
        own = _text(folder)
        if own is None or _total(own) is None:
            continue
        left: dict[str, list[str]] = {}
        for other in sorted(folder.parent.iterdir()):
            said = _text(other) if _IDENTITY.fullmatch(other.name) else None
            if said is None or _LINE.sub("", said) != _LINE.sub("", own):
                continue
            total = _total(said)
            if total is not None and total != _total(own):
                left.setdefault(total, []).append(other.name)
        for total, names in left.items():
            yield (
                f"{folder.parent} has the blocks of {total} data parallel "
                f"replica{'s' if total != '1' else ''}, which {_total(own)} do not find: start "
                f"with --data-parallel-size {total} to have them again, or free their room: "
                f"blockyard disk wipe {shlex.quote(str(folder.parent))} {' '.join(names)}"
            )


def _text(folder: Path) -> str | None:
    """Returns what an identity depends on, as it stands there; None where it cannot be read."""
    with suppress(BlockyardError, OSError):
        return DiskInspector(min(folder.glob("rank-*"), default=folder / "rank-0")).text
    return None


def _total(text: str) -> str | None:
    """Returns how many replicas an identity is one of; None where that was not known."""
    found = _LINE.search(text)
    return "1" if found is None else found[1]
