"""Sizes of tiers: numbers of blocks, or memory as text."""

from blockyard._core import Misuse
from blockyard.shared.layout import KVLayout
from blockyard.shared.sizes import counted, parse_size, too_small
from blockyard.shared.validate import integer

__all__ = ["in_blocks"]


def in_blocks(tier: str, size: int | str, layout: KVLayout | None) -> int | str:
    """Returns the blocks of a tier; the core checks the range of a number.

    Args:
        tier: Its name, or "engine" for a device whose blocks an engine gives out.
        size: Blocks, also as text such as "4096 blocks"; or memory as text, per rank for the device
            and per host below it.
        layout: The bytes of a block; None if only numbers of blocks are known.

    Raises:
        Misuse: The text is no size, there is no layout for it, or it is less than a block.
    """
    size = counted(size)
    if not isinstance(size, str):
        return integer(tier, size, least=0)
    nbytes, amount, per = parse_size(tier, size)
    if layout is None:
        raise Misuse(f"{tier} = {size!r}: without a layout the bytes of a block are unknown")
    gib = nbytes / 2**30
    if tier in ("device", "engine"):
        if per == "host":
            raise Misuse(f"{tier} = {size!r}: a device belongs to a rank; give {amount!r}")
        blocks = layout.device_blocks(gib)
    else:
        blocks = layout.host_blocks(gib, per=per or "host")
    if blocks < 1 and nbytes:
        raise too_small(tier, size, layout.block_bytes)
    return blocks
