"""`KVCache`: the life of a sequence, one verb per step."""

import os

from blockyard._core import Cache, _forked

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class KVCache(Cache):
    """The bookkeeping of one KV cache: tiers are numbers of blocks, and no bytes are moved.

    Thread-safe; make it after fork or spawn, in the process that uses it. Every verb crosses into
    Rust once, whatever the size of its batch, and changes nothing when it raises; only `finish`
    still ends its good rows.

    Example:
        >>> import blockyard as by
        >>> cache = by.KVCache(device=64, host=256)
        >>> lease = cache.begin(range(100), reserve=32)
        >>> cache.seal(lease, 100)
        6
        >>> cache.finish(lease)
        >>> cache.begin(range(100)).cached
        96
    """

    __slots__ = ()
