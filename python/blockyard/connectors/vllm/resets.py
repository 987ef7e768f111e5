"""What a reset of vLLM's prefix cache means for what lies below it."""

from typing import Any, Final

from blockyard.shared.log import Limited

__all__ = ["Resets"]

_TABLE: Final = "cached_block_hash_to_block"
_log = Limited(__name__, 0)


class Resets:
    """Sees that vLLM has reset its prefix cache, which it tells the connector only where asked to.

    Args:
        ends: Whether what is below ends with it: where other weights may have come.
    """

    def __init__(self, *, ends: bool) -> None:
        self._ends = ends
        self.pool: Any = None
        """vLLM's block pool; a reset gives it another table of cached blocks."""
        self._table: object = None
        self._published: object = None
        self._told = False
        self.seen = 0
        """Resets that were seen, whatever they end."""

    def heard(self) -> None:
        """Takes note that the connector was told of the reset."""
        self._table = self._now()
        self.seen += 1

    def unheard(self) -> bool:
        """Returns whether there was one that nobody told of, and that ends what is below."""
        # Each step asks. A pool without the table is not vLLM's, as in a test.
        before, now = self._table, getattr(self.pool, _TABLE, None)
        if now is before:
            return False
        self._table = now
        self.seen += 1
        if before is None or self._ends:
            return before is not None
        if not self._told:
            self._told = True
            _log.warning(
                "vLLM's prefix cache was reset, and the host keeps its blocks: after new weights "
                "reset with reset_connector=True (reset_external over HTTP), or say "
                '"keep_on_reset": false, or old KV is served'
            )
        return False

    def published(self) -> bool:
        """Returns whether there was one since the last call: vLLM tells of it as a clear of all."""
        before, self._published = self._published, self._now()
        return before is not None and before is not self._published

    def _now(self) -> object:
        return getattr(self.pool, _TABLE, None)
