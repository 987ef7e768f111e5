"""A cache that looks at what its scheduler asks of it, and at what it answers."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from blockyard._core import Lease, NoRoom, TooLarge
from blockyard._typing import override
from blockyard.testing.engine import check
from blockyard.yard.cache import KVCache

__all__ = ["CheckedCache"]


class CheckedCache(KVCache):
    """A `KVCache` that is like any other to its scheduler."""

    _seen: Counter[str]
    _fenced: Callable[[], set[int]]
    _loads: list[tuple[Lease, int]]

    def watch(self, seen: Counter[str], fenced: Callable[[], set[int]]) -> None:
        """From now on it counts, and looks.

        Args:
            seen: Where it counts.
            fenced: Says the slots that nobody may be given now.
        """
        self._seen, self._fenced, self._loads = seen, fenced, []

    @override
    def begin(self, *what: Any, **named: Any) -> Any:  # noqa: ANN401 - as the parent has it
        """INV-6: what it gives nobody may write any more. T5: where it refuses, nothing changes."""
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
        """T36: rows that find no room."""
        unserved = super().grow(batch, counts)
        if not isinstance(counts, int):
            # By 0 grows who has lost slots to a copy of unknown end.
            self._seen["T36"] += len(unserved)
        return unserved

    def landed(self) -> None:
        """T4: of loads that have landed, those that came short."""
        for entry in [entry for entry in self._loads if entry[0].state != "loading"]:
            self._loads.remove(entry)
            lease, cached = entry
            self._seen["T4"] += lease.state != "spent" and lease.cached < cached
