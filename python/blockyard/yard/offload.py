"""Copies next victims down ahead of need, so that evicting them is free."""

from blockyard._core import Cache
from blockyard.shared.layout import TIERS
from blockyard.yard.config import Config

__all__ = ["Offload"]


class Offload:
    """Demotes blocks by a watermark; the core knows which blocks the write policy means.

    While fewer slots of a tier than its watermark are free, that many of its next victims are
    copied down: a victim then has its copy already, and one that was not copied in time is
    dropped, never waited for. The core skips what it has looked at before, so that every dispatch
    may ask. With "through", blocks go down when they come to the tier, and the watermark bounds
    those in flight.
    """

    __slots__ = ("_heap", "_tiers", "decided")

    def __init__(self, config: Config) -> None:
        self.decided = 0
        """How often it was asked: once per dispatch."""
        own = TIERS[1:-1] if config.engine else TIERS[:-1]
        aheads = [(tier, config.ahead_of(tier)) for tier in own]
        self._tiers = [
            (tier, ahead, config.write_of(tier) == "through") for tier, ahead in aheads if ahead
        ]
        # A heap does not skip victims in flight, so that others would be copied instead.
        self._heap = config.eviction == "heap"

    def decide(self, cache: Cache) -> None:
        """Begins copies down, if any are due now."""
        self.decided += 1
        for tier, ahead, through in self._tiers:
            if not through and cache.room(tier).free >= ahead:
                continue
            flying = 0
            if through or self._heap:
                flying, _up = cache.blocks_in_flight(tier)
            if ahead > flying:
                cache.demote(ahead - flying, tier=tier)

    def due(self, cache: Cache) -> bool:
        """Whether a watermark asks for copies now."""
        return any(through or cache.room(tier).free < ahead for tier, ahead, through in self._tiers)
