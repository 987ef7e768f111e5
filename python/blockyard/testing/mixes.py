"""Models with groups of layers, for simulations."""

from typing import Final, NamedTuple

from blockyard.shared.groups import (
    ChunkedAttention,
    Full,
    Group,
    Groups,
    RecurrentState,
    SlidingWindow,
)
from blockyard.shared.layout import KVLayout, Plane

__all__ = ["MIXES", "Mix", "reads"]


class Mix(NamedTuple):
    """A model's groups, and sizes."""

    size: int
    """Tokens per block."""
    kinds: str
    """The groups in the engine's order: F, and Wn, Cn, Sn with their tokens."""
    blocks: int
    """The engine's blocks."""
    host: tuple[int, ...]
    """Slots of each group."""

    def groups(self) -> Groups:
        """Makes the groups."""
        layout = KVLayout((Plane("kv", 1, 8),), block_size=self.size, ranks=1, dtype="uint8")
        return Groups([_kind(layout, word) for word in self.kinds.split()])


MIXES: Final = {
    "full": Mix(2, "F", 30, (14,)),
    "window": Mix(2, "F W4", 34, (14, 8)),
    "odd window first": Mix(3, "W5 F", 34, (8, 12)),
    "chunk": Mix(2, "F C6", 34, (14, 9)),
    "state": Mix(2, "S2 F", 34, (6, 14)),
    "rare state": Mix(2, "F S4", 34, (14, 5)),
    "two states": Mix(2, "S4 F S2", 44, (5, 14, 6)),
    "window and state": Mix(2, "F W4 S4", 44, (14, 8, 5)),
    "three": Mix(2, "W3 F W7 S2", 56, (7, 14, 10, 6)),
    "two full": Mix(2, "F F W4", 50, (14, 12, 8)),
}


def _kind(layout: KVLayout, word: str) -> Group:
    kind, tokens = word[0], int(word[1:] or 0)
    if kind == "W":
        return SlidingWindow(layout, tokens=tokens)
    if kind == "C":
        return ChunkedAttention(layout, tokens=tokens)
    return RecurrentState(layout, every=tokens) if kind == "S" else Full(layout)


def reads(word: str, length: int, size: int) -> range:
    """Returns by definition the blocks that going on at a length reads."""
    kind, tokens = word[0], int(word[1:] or 0)
    first = {
        "F": 0,
        "W": max(0, length - tokens + 1),
        "C": length // tokens * tokens if tokens else 0,
        "S": max(0, length - 1),
    }[kind]
    return range(first // size, -(-length // size)) if first < length else range(0)
