"""Sizes as text, such as "64 GiB", "8 GiB/rank" or "4096 blocks": read here and nowhere else."""

import re
from collections.abc import Mapping
from math import ceil, isfinite
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, cast

from blockyard._core import Misuse

__all__ = [
    "MOST_BLOCKS",
    "UNITS",
    "Size",
    "counted",
    "digits",
    "parse_blocks",
    "parse_bytes",
    "parse_size",
    "size_text",
    "too_small",
]

MOST_BLOCKS: Final = 10**9
"""The most blocks that a command takes for a tier."""

UNITS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "KiB": 2**10,
        "MiB": 2**20,
        "GiB": 2**30,
        "TiB": 2**40,
        "MB": 10**6,
        "GB": 10**9,
    }
)
"""Bytes of each unit."""

_BYTES = {unit.lower(): nbytes for unit, nbytes in UNITS.items()}
_WHOLE = r"\d+(?:_\d+)*"
_COUNT = re.compile(rf"\s*({_WHOLE})\s*(blocks?)?\s*", re.ASCII | re.IGNORECASE)
_KIB: Final = 1024
_LONGEST: Final = 100
"""Characters of a number of blocks; longer ones are refused."""
_TEXT = re.compile(
    rf"\s*({_WHOLE}\.?\d*|\.\d+)(e[+-]?\d{{1,4}})?\s*([a-z]+)\s*((?:/|\bper\b)\s*(rank|host))?\s*",
    re.ASCII | re.IGNORECASE,
)


class Size(NamedTuple):
    """What a text says."""

    nbytes: int
    """Rounded up, so that it is 0 only for 0."""
    amount: str
    """The text without what it is for: "64 GiB"."""
    per: Literal["host", "rank"] | None
    """What each has so much; None where the text does not say."""


def parse_size(name: str, text: str) -> Size:
    """Reads an amount of memory.

    Spaces do not matter, and neither does case, except that "Gb" and "Gib" are refused: they stand
    for bits.

    Args:
        name: What the error calls it.
        text: A number, one of `UNITS`, and perhaps "/rank" or "/host".

    Raises:
        Misuse: It is no such text; the message lists the units.
    """
    found = _TEXT.fullmatch(text)
    number, unit, per = ("", "", None) if found is None else _parts(found)
    nbytes = _BYTES.get(unit.lower())
    bits = unit[:1].isupper() and unit.endswith("b")
    if nbytes is None or bits or not isfinite(float(number) * nbytes):
        raise Misuse(
            f"{name} = {text!r}: give blocks, or memory like '64 GiB' or '8 GiB/rank', "
            f"in {', '.join(UNITS)}"
        )
    amount = f"{number} {next(known for known in UNITS if known.lower() == unit.lower())}"
    from decimal import Decimal  # noqa: PLC0415 - most programs give numbers of blocks

    # In decimals, as 2.3 * 10**6 is no whole number in binary floating point.
    return Size(ceil(Decimal(number) * nbytes), amount, per)


def counted(size: int | str, *, bare: bool = False) -> int | str:
    """Returns the number of blocks that "4096 blocks" says; anything else as it is.

    Args:
        size: The size.
        bare: Whether "4096" says blocks, too, as on a command line, where all is text. In a
            configuration it would be taken for GiB, and is refused.
    """
    if not isinstance(size, str) or len(size) > _LONGEST:
        return size
    found = _COUNT.fullmatch(size)
    return int(found[1]) if found is not None and (bare or found[2]) else size


def too_small(name: str, text: str, block_bytes: int) -> Misuse:
    """Returns the error of a size that holds no block."""
    return Misuse(f"{name} = {text!r}: smaller than one block of {block_bytes:,} bytes; give more")


def parse_bytes(name: str, text: str, *, most: int) -> int:
    """Reads an amount of bytes: "4096", or what `parse_size` takes without "/rank" and "/host".

    Args:
        name: What the error calls it.
        text: The amount.
        most: The most bytes.

    Raises:
        Misuse: It is no such text, less than a byte, or more than `most`.
    """
    try:
        size = None if text.isascii() and text.isdecimal() else parse_size(name, text)
    except Misuse:
        units = ", ".join(UNITS)
        raise Misuse(f"{name} = {text!r}: give bytes, or memory like '2 MiB', in {units}") from None
    if size is not None and size.per is not None:
        raise Misuse(f"{name} = {text!r}: this is not by rank or host; give {size.amount!r}")
    nbytes = int(text) if size is None else size.nbytes
    if not 0 < nbytes <= most:
        raise Misuse(f"{name} = {text!r}: must be 1 to {most:,} bytes")
    return nbytes


def parse_blocks(name: str, text: str, block_bytes: int, *, ranks: int = 1, least: int = 1) -> int:
    """Reads a size as blocks: "4096", "4096 blocks", "64 GiB" over all ranks, or "8 GiB/rank".

    Args:
        name: What the error calls it.
        text: A number of blocks, or what `parse_size` takes.
        block_bytes: Bytes of a block, over all ranks.
        ranks: How many ranks share it.
        least: The fewest blocks; 0 where "0" stands for none.

    Raises:
        Misuse: It is no size, smaller than one block, or more than `MOST_BLOCKS`.
    """
    blocks = counted(text, bare=True)
    none = blocks == 0
    if isinstance(blocks, str):
        found = parse_size(name, text)
        none = found.nbytes == 0
        blocks = found.nbytes * (ranks if found.per == "rank" else 1) // block_bytes
    if blocks < least or (not blocks and not none):
        raise too_small(name, text, block_bytes)
    if blocks > MOST_BLOCKS:
        raise Misuse(f"{name} = {text!r}: more than {MOST_BLOCKS:,} blocks; give less")
    return blocks


def size_text(count: float) -> str:
    """Returns bytes with a unit that suits them."""
    if count < _KIB:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        count /= _KIB
        if count < _KIB:
            return f"{count:.{digits(count)}f} {unit}"
    count /= _KIB
    return f"{count:.{digits(count)}f} TiB"


def digits(value: float) -> int:
    """Returns the digits after the point that make three in all."""
    for places in (2, 1):
        if value < 10.0 ** (3 - places):
            return places
    return 0


def _parts(found: re.Match[str]) -> tuple[str, str, Literal["host", "rank"] | None]:
    digits, exponent, unit, _, per = found.groups(default="")
    return digits + exponent, unit, cast('Literal["host", "rank"]', per.lower()) if per else None
