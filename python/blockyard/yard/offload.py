"""What goes down ahead of need, so that evicting it is free."""

from blockyard._core import Cache
from blockyard.yard.config import Config

__all__ = ["Offload"]


class Offload:
    """Demotion by watermark; the core knows which blocks the write policy means.

    Below the watermark, that many of the device's next victims are copied down: what is evicted
    then has its copy already, and what was not copied in time is dropped, never waited for. The
    core passes over what it has looked at before, so that every dispatch may ask. With "through"
    the blocks just published go down at once, the watermark bounding those in flight.
    """

    __slots__ = ("_ahead", "_less_in_flight", "_through")

    def __init__(self, config: Config) -> None:
        self._ahead = config.ahead_blocks if config.host_blocks else 0
        self._through = config.write == "through"
        # A heap does not see what is in flight: what is next to it would be copied too.
        self._less_in_flight = self._through or config.eviction == "heap"

    def decide(self, cache: Cache) -> None:
        """Puts copies in flight, if any are wanted now."""
        ahead = self._ahead
        if not ahead or (not self._through and cache.room().free >= ahead):
            return
        if self._less_in_flight:
            down, _up = cache.blocks_in_flight()
            ahead -= down
        if ahead > 0:
            cache.demote(ahead)
