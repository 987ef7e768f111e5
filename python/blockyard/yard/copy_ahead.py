"""Copies next victims down ahead of need, so that evicting them is free."""

from typing import NamedTuple

from blockyard._core import Cache
from blockyard.shared.layout import TIERS, TierName
from blockyard.yard.config import Config

__all__ = ["CopyAhead"]


class _Watermark(NamedTuple):
    tier: TierName
    ahead: int
    through: bool
    grows: bool
    spare: int


class CopyAhead:
    """Demotes blocks by a watermark; the core selects them by the write policy.

    While fewer slots of a tier than its watermark are free, beside `spare`, that many of its next
    victims are copied down, with all of their paths. A victim then has its copy already; one that
    was not copied in time is dropped, never waited for. The core skips blocks that it has examined
    before, so every dispatch may ask. With "through", blocks are copied down when they come to the
    tier, and the watermark bounds those in flight.

    A watermark from the configuration is fixed. Otherwise the core's grows with the largest begin,
    and blocks behind the next victims follow while nothing goes down: up to half of the tier if the
    one below is full.
    """

    __slots__ = ("_skips", "_tiers", "decided")

    def __init__(self, config: Config) -> None:
        self._skips = False
        self.decided = 0
        """How often it was asked: once per dispatch."""
        own = TIERS[1:-1] if config.engine else TIERS[:-1]
        self._tiers = [
            _Watermark(
                tier,
                ahead,
                through=config.write_of(tier) == "through",
                grows=not config.gives_ahead(tier),
                spare=config.spare_blocks if tier == TIERS[0] else 0,
            )
            for tier in own
            if (ahead := config.ahead_of(tier))
        ]

    def decide(self, cache: Cache) -> None:
        """Begins copies down, if any are due now."""
        self.decided += 1
        if self._skips:
            self._skips = False
            return
        for it in self._tiers:
            cache.copy_ahead(it.ahead, tier=it.tier, grows=it.grows)

    def skip(self) -> None:
        """Has the next `decide` begin nothing: a flush is under way."""
        self._skips = True

    def due(self, cache: Cache) -> bool:
        """Whether a watermark asks for copies now."""
        return any(
            it.through or cache.room(it.tier).free < it.ahead + it.spare for it in self._tiers
        )
