"""Publishes events of the host and disk tiers under vLLM's own block hashes."""

from collections.abc import Iterator
from typing import Any, Final

from blockyard.yard.cache import KVCache

__all__ = ["TierEvents"]

_KEY: Final = 32
_NUMBER: Final = 8
"""The last bytes of its hashes are the numbers that vLLM publishes."""


class TierEvents:
    """Gives a cache the tokens of vLLM's blocks, and takes its events.

    Routers know a block of vLLM's by the number that vLLM tells of it, so that the same block below
    has the same.

    Args:
        cache: The connector's. It has no other listener.
    """

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._size = cache.block_size
        # vLLM tells of its own blocks: a clear of all would be one of theirs, too.
        cache.listen(clears="own")

    def describe(self, request: Any, keys: bytearray, have: int) -> None:
        """Passes the tokens of a request's blocks, from block `have` on.

        Args:
            request: vLLM's.
            keys: The keys of all its blocks.
            have: Leading blocks that were described before.
        """
        if request.prompt_embeds is not None:
            # Its tokens say nothing of it.
            return
        media = [
            (at.offset, at.offset + at.length, str(item.identifier))
            for item in request.mm_features or ()
            for at in (item.mm_position,)
        ]
        full, size = len(keys) // _KEY, self._size
        # The block before them comes along; all do where media stand at positions.
        left = 0 if media else max(have - 1, 0)
        own = self._cache.ready_keys(bytes(keys[left * _KEY :]), (full - left) * size)
        named = request.block_hashes[max(have - 1, 0) : full]
        lora = request.lora_request
        self._cache.describe(
            own,
            request.all_token_ids[have * size : full * size],
            first=have - left,
            numbers=[int.from_bytes(one[-_NUMBER:], "big") for one in named],
            lora=None if lora is None else lora.lora_name,
            salt=request.cache_salt,
            media=[item for item in media if item[0] < full * size] or None,
        )

    def take(self, *, again: bool = False) -> Iterator[bytes]:
        """Returns batches of what has happened since the last call.

        Args:
            again: Whether vLLM has published a clear of all blocks meanwhile.
                What is below is there still, and told again.
        """
        more = True
        while more:
            payload, more = self._cache.take_events()
            if payload is not None:
                yield payload
        if again:
            gone, snapshot = self._cache.snapshot_events()
            if gone is not None:
                yield gone
            yield snapshot
