"""The work of every side: the same tokens in the same order, from one seeded file.

Nothing but the standard library, since it runs in the environment of every peer.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

BLOCK = 16
CHAIN = 100
"""Blocks of each chain that fills a pool."""
TURN = 306
"""Blocks of a request of several turns, of which `FOUND` are resident."""
FOUND = 189
REQUESTS = 20
MATCH = 64
PROMPT = 640
"""Tokens of the shortest sequence that decodes; the others have up to 15 more."""
STEPS = 20
MOST = 480
"""Steps after which decoding sequences begin again."""
SHORT = 32
"""Blocks of a short request, all new."""
LEAVES = 25_000
FEW = 4
OFFLOAD = 256
"""Keys of a call of the offload's bookkeeping."""
CHAINS = 128
"""Of `OFFLOAD` keys each, in a round: three rounds of them fit on the host."""
HOST = 100_000
SEATS = 256
VOCABULARY = 128_000
TOKENS = 1 << 22


def write(path: Path, seed: int) -> None:
    """Writes the file."""
    import random  # noqa: PLC0415 - no driver needs it

    raw = array("I", random.Random(seed).randbytes(4 * TOKENS))
    path.write_bytes(array("I", [token % VOCABULARY for token in raw]).tobytes())


class Work:
    """A reader of the file; no two runs of tokens have the same beginning."""

    def __init__(self, path: Path) -> None:
        self.tokens = array("I", path.read_bytes())
        self.at = self.runs = 0

    def fresh(self, blocks: int, more: int = 0) -> array[int]:
        """Returns tokens of so many blocks and `more` tokens, never the same twice."""
        length = blocks * BLOCK + more
        if self.at + length > len(self.tokens):
            self.at = 0
        run = self.tokens[self.at : self.at + length]
        self.at += length
        # The file is read in a circle, but the beginning of a run is unique.
        run[0], run[1] = divmod(self.runs, VOCABULARY)
        self.runs += 1
        return run

    def turn(self) -> tuple[array[int], array[int]]:
        """Returns the prompt of an earlier turn, and the whole request."""
        whole = self.fresh(TURN, 1)
        return whole[: FOUND * BLOCK], whole
