"""What goes down ahead of need, so that evicting it is free."""

from blockyard._core import Cache
from blockyard.config import Config

__all__ = ["Offload"]


class Offload:
    """Demotion by watermark; the core knows which blocks the write policy means.

    Below the watermark, that many of the device's next victims are copied down: what is evicted
    then has its copy already, and what was not copied in time is dropped, never waited for. They
    are looked at again when an eighth of them may be gone. With "through" the blocks just
    published go down at once, the watermark bounding those in the air.
    """

    __slots__ = ("_ahead", "_evicted", "_through")

    def __init__(self, config: Config) -> None:
        self._ahead = config.ahead_blocks if config.host_blocks else 0
        self._through = config.write == "through"
        self._evicted: int | None = None

    def decide(self, cache: Cache) -> None:
        """Puts copies in the air, if any are wanted now."""
        if not self._ahead:
            return
        if self._through:
            down, _up = cache.blocks_in_air()
            if down < self._ahead:
                cache.demote(self._ahead - down)
            return
        room = cache.room()
        if room.free >= self._ahead:
            self._evicted = None
        elif self._evicted is None or room.evicted - self._evicted >= max(1, self._ahead // 8):
            self._evicted = room.evicted
            cache.demote(self._ahead)
