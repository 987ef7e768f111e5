"""Whether this machine has memory for the replay."""

import os
from typing import Final

from blockyard._core import Misuse
from blockyard.tools.replay.real_memory import scaled
from blockyard.tools.replay.spec import RunSpec
from blockyard.tools.units import size

__all__ = ["check_memory", "fit_at_once"]

_BOOK_BYTES: Final = 64
"""The least memory that the bookkeeping of one block takes."""


def check_memory(spec: RunSpec) -> None:
    """Checks that this machine has memory for one run.

    Raises:
        Misuse: It has not.
    """
    needed, there = _needed(spec), _there()
    if needed > there:
        blocks = spec.device_blocks + spec.host_blocks + spec.disk_blocks + spec.remote_blocks
        fewer = "--device, --host, --disk and --remote" if spec.remote_blocks else ""
        raise Misuse(
            f"{blocks:,} blocks: their replay takes {size(needed)}, and this machine has "
            f"{size(there)}; give less with {fewer or '--device, --host and --disk'}"
            + (", or leave out --verify" if spec.verify else "")
        )


def fit_at_once(spec: RunSpec) -> int:
    """Returns how many such runs this machine has memory for, side by side."""
    return max(1, _there() // max(_needed(spec), 1))


def _needed(spec: RunSpec) -> int:
    below = spec.host_blocks + spec.disk_blocks
    needed = (spec.device_blocks + below + spec.remote_blocks) * _BOOK_BYTES
    if spec.verify:
        each = spec.ranks * scaled(spec.block_size, spec.ranks).block_bytes
        # A GPU reports by itself that it is full.
        needed += (below + (spec.device_blocks if spec.verify == "memory" else 0)) * each
    return needed


def _there() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
