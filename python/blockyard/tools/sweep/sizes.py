"""Sizes as they are given: blocks, bytes with a unit, or shares of a total."""

import math
import re
from typing import Final, NamedTuple

from blockyard._core import Misuse
from blockyard.tools.units import size

__all__ = ["MOST_BLOCKS", "Split", "SplitText", "geometric", "parse_size"]

MOST_BLOCKS: Final = 10**9
_UNITS: Final = {
    f"{prefix}{unit}": base**power
    for power, prefix in enumerate("kmgt", 1)
    for unit, base in (("ib", 1024), ("b", 1000), ("", 1024))
}
_TIERS: Final = 3
_FORM: Final = "give blocks, like 4096, or bytes with a unit, like 20GiB"


class Split(NamedTuple):
    """Blocks of each tier."""

    device: int
    host: int
    third: int

    @property
    def blocks(self) -> int:
        """All of them."""
        return sum(self)


def parse_size(option: str, text: str, block_bytes: int) -> int:
    """Returns the blocks that "4096", "20GiB", "1.5 TiB" or "20g" stand for.

    Args:
        option: What an error calls it.
        text: A whole number of blocks, or a number with a unit.
        block_bytes: Bytes of a block.

    Raises:
        Misuse: It is neither, or less than one block, or more than `MOST_BLOCKS`.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-zA-Z]*)\s*", text)
    if found is None:
        raise Misuse(f"{option} {text!r}: no size; {_FORM}")
    number, unit = float(found[1]), found[2].lower()
    if not unit:
        if number != int(number):
            raise Misuse(f"{option} {text!r}: a part of a block; {_FORM}")
        blocks = int(number)
    elif unit in _UNITS:
        blocks = math.floor(number * _UNITS[unit] / block_bytes)
    else:
        raise Misuse(f"{option} {text!r}: {found[2]!r} is no unit; {_FORM}")
    if blocks < 1:
        raise Misuse(f"{option} {text!r}: less than one block of {size(block_bytes)}; give more")
    if blocks > MOST_BLOCKS:
        raise Misuse(f"{option} {text!r}: more than {MOST_BLOCKS:,} blocks; give less")
    return blocks


def geometric(first: int, last: int, points: int) -> list[int]:
    """Returns sizes from first to last, each the same factor larger, or one block.

    Where there are fewer whole numbers than `points` they are all returned.
    """
    if last - first < points:
        return list(range(first, last + 1))
    # Low down the factor is less than a block: then the next number, and a factor for the rest.
    sizes = [first]
    while len(sizes) < points:
        left = points - len(sizes)
        sizes.append(max(sizes[-1] + 1, round(sizes[-1] * (last / sizes[-1]) ** (1 / left))))
    return sorted({min(size, last) for size in sizes})


class SplitText(NamedTuple):
    """A split as it was given: a part for each tier, either sizes or shares of a total."""

    text: str
    blocks: tuple[int, ...] = ()
    shares: tuple[float, ...] = ()

    @classmethod
    def parse(cls, text: str, block_bytes: int) -> "SplitText":
        """Reads "20%+80%", "20+80" or "20GiB+80GiB"; a third part is the tier below the host.

        Numbers without a unit are shares too, of whatever their sum is.

        Raises:
            Misuse: The text is something else.
        """
        parts = [part.strip() for part in text.split("+")]
        if not 1 <= len(parts) <= _TIERS:
            raise Misuse(
                f"--split {text}: {len(parts)} parts; give one to three: DEVICE+HOST+THIRD"
            )
        if not all(re.fullmatch(r"\d+(\.\d*)?\s*%?", part) for part in parts):
            if any(part.endswith("%") for part in parts):
                raise Misuse(f"--split {text}: shares and sizes; give one kind, like 20%+80%")
            return cls(text, blocks=tuple(_part(text, part, block_bytes) for part in parts))
        shares = [float(part.rstrip("% ")) for part in parts]
        total = sum(shares)
        if not shares[0] or not math.isfinite(total):
            raise Misuse(f"--split {text}: a device of nothing; give it a share, like 20%+80%")
        if any(part.endswith("%") for part in parts) and abs(total - 100) > 1:
            raise Misuse(f"--split {text}: these are {total:g} % in all; give shares of 100 %")
        return cls(text, shares=tuple(share / total for share in shares))

    def of(self, total: int) -> Split:
        """Returns the blocks of each tier; shares are of `total`."""
        if self.blocks:
            return Split(*self.blocks, *(0,) * (_TIERS - len(self.blocks)))
        device = max(1, round(self.shares[0] * total))
        third = round(self.shares[2] * total) if len(self.shares) == _TIERS else 0
        # The host gets what rounding leaves.
        host = max(0, total - device - third) if len(self.shares) > 1 else 0
        return Split(device, host, third)


def _part(text: str, part: str, block_bytes: int) -> int:
    if re.fullmatch(r"0+(\.0*)?\s*[a-zA-Z]*", part) and not text.startswith(part):
        return 0
    return parse_size(f"--split {text}:", part, block_bytes)
