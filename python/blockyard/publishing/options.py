"""What a publisher says, and how much it keeps."""

from dataclasses import dataclass
from typing import Final, Literal

from blockyard._core import Misuse
from blockyard.shared.validate import integer, one_of, shown

__all__ = ["PublisherOptions"]

_MOST_RANK: Final = (1 << 32) - 1
_MOST_BATCHES: Final = (1 << 30) - 1
"""A socket counts what waits in 31 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherOptions:
    """What a `Publisher` says, and how much it keeps. It is frozen, and any thread may read it.

    Args:
        topic: The first frame of each batch. llm-d expects "kv@pod:port@model".
        rank: The data parallel rank that batches carry; None for none. Each rank has a publisher
            and ports of its own.
        salts: "hide" tells nothing of blocks with a salt; "tell" tells them with it, to everybody
            who connects.
        ring: Events that wait in the cache at most, as in `KVCache.listen`.
        keep: Batches that can be replayed.
        keep_bytes: Bytes that these have together at most. Whoever asks for more gets a snapshot.
        backlog: Batches that wait for a slow subscriber at most.
        every: Seconds between two looks, when nothing is asked: at most 1.

    Raises:
        Misuse: A value is out of range.
    """

    topic: str = ""
    rank: int | None = None
    salts: Literal["hide", "tell"] = "hide"
    ring: int = 1 << 17
    keep: int = 10_000
    keep_bytes: int = 64 << 20
    backlog: int = 1_000
    every: float = 0.01

    def __post_init__(self) -> None:
        _text("topic", self.topic)
        if self.rank is not None:
            integer("rank", self.rank, least=0, most=_MOST_RANK)
        one_of("salts", self.salts, ("hide", "tell"))
        integer("keep", self.keep, least=1, most=_MOST_BATCHES - 1)
        integer("keep_bytes", self.keep_bytes, least=1)
        integer("backlog", self.backlog, least=1, most=_MOST_BATCHES)
        _seconds("every", self.every)


def _text(name: str, value: object) -> None:
    # Surrogates are no text that could be sent.
    if not isinstance(value, str) or value != value.encode(errors="ignore").decode():
        raise Misuse(f"{name} = {shown(value)}: give text")


def _seconds(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise Misuse(f"{name} = {shown(value)}: give seconds, above 0 and no more than 1")
