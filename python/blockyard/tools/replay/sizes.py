"""How many blocks fit into a size, and whether this machine can replay that many."""

import math
import os
from typing import Final

from blockyard._core import Misuse
from blockyard.tools.replay.memory import scaled
from blockyard.tools.replay.spec import RunSpec
from blockyard.tools.units import size

__all__ = ["MOST_BLOCKS", "blocks_in", "check_memory", "fit_at_once"]

_BOOK_BYTES: Final = 64
"""The least memory that the bookkeeping of one block takes."""
MOST_BLOCKS: Final = 10**9


def blocks_in(option: str, gib: float, block_bytes: int) -> int:
    """Returns how many blocks fit into so many GiB.

    Raises:
        Misuse: It is not even one, or no number of blocks that makes sense.
    """
    if not (math.isfinite(gib) and gib > 0):
        raise Misuse(f"{option} {gib:g}: must be a number of GiB > 0")
    blocks = gib * 2**30 / block_bytes
    if blocks < 1:
        raise Misuse(f"{option} {gib:g}: less than one block of {size(block_bytes)}; give more")
    if blocks > MOST_BLOCKS:
        raise Misuse(f"{option} {gib:g}: more than {MOST_BLOCKS:,} blocks; give less")
    return int(blocks)


def check_memory(spec: RunSpec) -> None:
    """Checks that this machine has memory for one run.

    Raises:
        Misuse: It has not.
    """
    needed, there = _needed(spec), _there()
    if needed > there:
        blocks = spec.device_blocks + spec.host_blocks + spec.third_blocks
        raise Misuse(
            f"{blocks:,} blocks: their replay takes {size(needed)}, and this machine has "
            f"{size(there)}; give fewer with --device-blocks and --host-blocks"
            + (", or leave out --verify" if spec.verify else "")
        )


def fit_at_once(spec: RunSpec) -> int:
    """Returns how many such runs this machine has memory for, side by side."""
    return max(1, _there() // max(_needed(spec), 1))


def _needed(spec: RunSpec) -> int:
    below = spec.host_blocks + spec.third_blocks
    needed = (spec.device_blocks + below) * _BOOK_BYTES
    if spec.verify:
        each = spec.ranks * scaled(spec.block_size, spec.ranks).block_bytes
        # A GPU reports by itself that it is full.
        needed += (below + (spec.device_blocks if spec.device == "memory" else 0)) * each
    return needed


def _there() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
