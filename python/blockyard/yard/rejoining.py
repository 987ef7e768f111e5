"""A rank comes back beside living ones, after its process was restarted."""

from typing import Literal

import numpy as np

from blockyard._core import Misuse
from blockyard.shared.layout import Hello
from blockyard.shared.restored import MOST_ROWS
from blockyard.shared.validate import one_of
from blockyard.yard.by_tier import check_memory
from blockyard.yard.cache import KVCache
from blockyard.yard.handshake import check_hello, checked_hellos

__all__ = ["rejoin"]


def rejoin(
    cache: KVCache, hello: Hello, *, memory: Literal["lost", "disk kept"] = "disk kept"
) -> int:
    """Takes a rank back whose process was restarted.

    It is `KVCache.reset` of that rank, and for the same thread. Tiers below the device may be
    smaller than before, or missing: slots beyond are withdrawn for good, with their blocks.

    Args:
        cache: The yard.
        hello: The answer of the new process's `crane.hello(cache.config.yard)`.
        memory: As in `KVCache.reset`; a new process has never "kept" its memory. "disk kept" if it
            has the same slot files; "lost" for a yard without a keyed disk.

    Returns:
        Flights that ended.

    Raises:
        Misuse: The rank is unknown, is configured otherwise, shook hands with another yard or has
            fewer blocks of the device than the yard gives out; or as `KVCache.reset`. Nothing is
            changed.
        InUse: Tickets would lose promised slots: call it again when they are redeemed.

    Example:
        >>> import blockyard as by
        >>> from blockyard.shared.layout import Hello
        >>> layout = by.KVLayout.llama(2, 4, 8, ranks=2)
        >>> config = by.Config(layout=layout, device=16, host=32, yard=7)
        >>> said = [
        ...     Hello(rank, config.fingerprint, 16, 32, layout.fingerprint, yard=7)
        ...     for rank in (0, 1)
        ... ]
        >>> cache = by.KVCache(by.agree(config, said))
        >>> by.rejoin(cache, said[1]._replace(host=0), memory="lost")
        0
        >>> cache.limit("host")
        0
    """
    config, (hello,) = cache.config, checked_hellos([hello])
    one_of("memory", memory, ("lost", "disk kept"))
    check_memory(memory, config.known_tiers)
    # Its yard, also where the configuration does not name it.
    check_hello(config, hello, cache.unreported(hello.rank).yard)
    given = cache.limit("device") + config.null_slots
    device = config.device_blocks if config.engine else given
    if hello.device < device:
        raise Misuse(
            f"rank {hello.rank} came back with {hello.device} blocks of the device, and the yard "
            f"gives out {device}: start it with as many"
        )
    stats = cache.stats()
    # Names of what stores have do not go with a process.
    sizes: dict[Literal["host", "disk"], int] = {"host": hello.host, "disk": hello.disk}
    for tier, slots in sizes.items():
        size = max(getattr(config, f"{tier}_blocks"), stats[f"{tier}_capacity"])
        for first in range(slots, size, MOST_ROWS):
            beyond = np.arange(first, min(size, first + MOST_ROWS), dtype=np.uint32)
            cache.withdraw(tier, beyond)
    return cache.reset(hello.rank, memory=memory)
