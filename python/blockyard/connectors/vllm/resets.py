"""What a reset of vLLM's prefix cache means for what lies below it."""

from typing import Any, Final

from blockyard.shared.log import Limited

__all__ = ["Resets"]

_TABLE: Final = "cached_block_hash_to_block"
_log = Limited(__name__, 0)


class Resets:
    """Detects resets of vLLM's prefix cache, of which vLLM does not always notify a connector.

    Args:
        ends: Whether a reset also clears the lower tiers, because weights may have changed.
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
        """Notes that the connector was notified of the reset."""
        self._table = self._now()
        self.seen += 1

    def unheard(self) -> bool:
        """Returns whether there was a reset without notice that clears the lower tiers."""
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
                "vLLM's prefix cache was reset, and the host keeps its blocks: if the weights have "
                "changed, old KV would be served; reset with reset_connector=True "
                '(reset_external over HTTP), or set "keep_on_reset": false'
            )
        return False

    def published(self) -> bool:
        """Returns whether there was a reset since the last call."""
        before, self._published = self._published, self._now()
        return before is not None and before is not self._published

    def _now(self) -> object:
        return getattr(self.pool, _TABLE, None)
