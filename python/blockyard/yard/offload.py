"""Copies next victims down ahead of need, so that evicting them is free."""

from blockyard._core import Cache
from blockyard.yard.config import Config

__all__ = ["Offload"]


class Offload:
    """Demotes blocks by a watermark; the core knows which blocks the write policy means.

    While fewer slots than the watermark are free, that many of the device's next victims are
    copied down: a victim then has its copy already, and one that was not copied in time is
    dropped, never waited for. The core skips what it has looked at before, so that every dispatch
    may ask. With "through", blocks go down when they are published, and the watermark bounds those
    in flight.
    """

    __slots__ = ("_ahead", "_less_in_flight", "_through", "decided")

    def __init__(self, config: Config) -> None:
        self.decided = 0
        """How often it was asked: once per dispatch."""
        self._ahead = config.ahead_blocks if config.host_blocks else 0
        self._through = config.write == "through"
        # A heap does not skip victims in flight, so that others would be copied instead.
        self._less_in_flight = self._through or config.eviction == "heap"

    def decide(self, cache: Cache) -> None:
        """Begins copies down, if any are due now."""
        self.decided += 1
        ahead = self._ahead
        if not self.due(cache):
            return
        if self._less_in_flight:
            down, _up = cache.blocks_in_flight()
            ahead -= down
        if ahead > 0:
            cache.demote(ahead)

    def due(self, cache: Cache) -> bool:
        """Whether the watermark asks for copies now."""
        return bool(self._ahead) and (self._through or cache.room().free < self._ahead)
