"""What a connector says of the use of blocks below: of requests that run, and that have ended."""

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from blockyard._core import Keys
from blockyard.shared.hints import NO_HINTS, Hints
from blockyard.yard.cache import KVCache

if TYPE_CHECKING:
    from collections.abc import Hashable

__all__ = ["Uses"]

_PATHS: Final = 4
"""Running requests whose paths are touched in a turn."""
_BLOCKS: Final = 256
"""Blocks after which no further path is touched in a turn."""


class Uses:
    """The paths of requests, of which the eviction below is told.

    Args:
        cache: The bookkeeping.
    """

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._learns = cache.config.eviction != "recency"
        self.ended: dict[Hints, list[Keys]] = {}
        """The paths of requests that have ended, by what they have said."""
        self.running: OrderedDict[Hashable, Keys] = OrderedDict()
        """Paths of requests that run, in the order in which they are touched next."""

    def end(self, keys: Keys, hints: Hints) -> None:
        """Notes that a request has ended, for `tell`, where its end says something."""
        if self._learns or hints != NO_HINTS:
            self.ended.setdefault(hints, []).append(keys)

    def tell(self) -> None:
        """Says which requests have ended, all that have said the same in one call.

        Those that run are touched after it: they have the last word on what they share.
        """
        ended, self.ended = self.ended, {}
        for hints, paths in ended.items():
            self._cache.used(paths, ended=True, **hints.keywords)

    def touch(self) -> None:
        """Says of a few requests that run, in turn, that what lies below of them is in use."""
        paths: list[Keys] = []
        blocks = 0
        for _ in range(min(_PATHS, len(self.running))):
            request, keys = self.running.popitem(last=False)
            self.running[request] = keys
            paths.append(keys)
            blocks += len(keys)
            if blocks >= _BLOCKS:
                break
        if paths:
            self._cache.used(paths)
