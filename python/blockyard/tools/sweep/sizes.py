"""Sizes as they are given: blocks, bytes with a unit, or shares of a total."""

import math
import re
from typing import Final, NamedTuple

from blockyard._core import Misuse
from blockyard.shared.sizes import parse_blocks

__all__ = ["Split", "SplitText", "geometric"]

_TIERS: Final = 3


class Split(NamedTuple):
    """Blocks of each tier."""

    device: int
    host: int
    disk: int

    @property
    def blocks(self) -> int:
        """All of them."""
        return sum(self)


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
        """Reads "20%+80%", "20+80" or "20GiB+80GiB"; another third part is the disk below it.

        Numbers without a unit are shares too, of whatever their sum is.

        Raises:
            Misuse: The text is something else.
        """
        parts = [part.strip() for part in text.split("+")]
        if not 1 <= len(parts) <= _TIERS:
            raise Misuse(f"--split {text}: {len(parts)} parts; give one to three: DEVICE+HOST+DISK")
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
        disk = round(self.shares[2] * total) if len(self.shares) == _TIERS else 0
        # The host gets what rounding leaves.
        host = max(0, total - device - disk) if len(self.shares) > 1 else 0
        return Split(device, host, disk)


def _part(text: str, part: str, block_bytes: int) -> int:
    if re.fullmatch(r"0+(\.0*)?\s*[a-zA-Z]*", part) and not text.startswith(part):
        return 0
    return parse_blocks(f"--split {text}: a part", part, block_bytes)
