"""A cache that checks its own answers."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from blockyard._core import Lease, NoRoom, TooLarge
from blockyard._typing import override
from blockyard.testing.engine import check
from blockyard.yard.cache import KVCache

__all__ = ["CheckedCache"]


class CheckedCache(KVCache):
    """A `KVCache` that also checks and counts; a scheduler sees no difference."""

    _seen: Counter[str]
    _fenced: Callable[[], set[int]]
    _loads: list[tuple[Lease, int]]

    def watch(self, seen: Counter[str], fenced: Callable[[], set[int]]) -> None:
        """Begins to check and count.

        Args:
            seen: Where it counts.
            fenced: Returns the slots that no request may be given now.
        """
        self._seen, self._fenced, self._loads = seen, fenced, []

    @override
    def begin(self, *what: Any, **named: Any) -> Any:  # noqa: ANN401 - as the parent has it
        """Checks the slots for writers, and that a refusal changes nothing (INV-6, T5)."""
        before = self.digest()
        try:
            lease = super().begin(*what, **named)
        except NoRoom as error:
            check(self.digest() == before, "T5: a begin that was refused has changed something")
            self._seen["T5"] += not isinstance(error, TooLarge)
            raise
        if isinstance(lease, Lease):
            bad = self._fenced().intersection(self.block_tables([lease])[0].tolist())
            check(not bad, f"INV-6: a begin is given slots {sorted(bad)}, which may be written")
            if lease.state == "loading":
                self._loads.append((lease, lease.cached))
        return lease

    @override
    def grow(self, batch: Any, counts: Any = None) -> Any:  # noqa: ANN401 - as the parent has it
        """Counts the rows that find no room (T36)."""
        unserved = super().grow(batch, counts)
        if not isinstance(counts, int):
            # A grow by 0 replaces slots lost to a copy of unknown outcome.
            self._seen["T36"] += len(unserved)
        return unserved

    def landed(self) -> None:
        """Counts the loads that came back short (T4)."""
        for entry in [entry for entry in self._loads if entry[0].state != "loading"]:
            self._loads.remove(entry)
            lease, cached = entry
            self._seen["T4"] += lease.state != "spent" and lease.cached < cached
