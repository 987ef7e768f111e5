"""`Presence`: the answers of `KVCache.which`."""

from enum import IntEnum

__all__ = ["Presence"]


class Presence(IntEnum):
    """Where the block of a key is below an engine's own blocks, as in `KVCache.which`."""

    MISSING = 0
    """On no tier."""
    READY = 1
    """A fetch can bring it up."""
    FILLING = 2
    """In flight: on its way down, or up for another request."""
