"""The requests of a connector over several groups of layers."""

from collections import OrderedDict
from collections.abc import Container, Hashable, Iterator
from typing import Final

from blockyard._core import Keys, Parked
from blockyard.connectors.group_keeps import GroupKeeps, HybridRow
from blockyard.connectors.riders import Path

__all__ = ["HybridRows"]

_TURN: Final = 4
"""Steps after which a few running requests are touched."""
_TOUCHED: Final = 4
"""Running requests that are touched in a turn."""


class HybridRows:
    """The requests that have asked, or of which something is kept; and those that run, in turn.

    Args:
        keeps: What is kept of preempted requests.
        size: Tokens per block.
    """

    def __init__(self, keeps: GroupKeeps, size: int) -> None:
        self._keeps, self._size = keeps, size
        self._rows: dict[Hashable, HybridRow] = {}
        self._running: OrderedDict[Hashable, HybridRow] = OrderedDict()
        self._until_turn = 0

    def get(self, request: Hashable) -> HybridRow | None:
        """Returns a request; None if it is not known."""
        return self._rows.get(request)

    def of(self, request: Hashable, keys: Keys) -> HybridRow:
        """Returns a request, with these keys from now on; it is known then."""
        row = self._rows[request] = self.updated(self._rows.get(request), keys)
        return row

    def updated(self, row: HybridRow | None, keys: Keys) -> HybridRow:
        """Returns a request with these keys, a new one in place of None."""
        if row is None:
            return HybridRow(Path(keys, self._size), prompt=keys.tokens)
        if row.path.keys is not keys:
            row.path = Path(keys, self._size)
        return row

    def pop(self, request: Hashable) -> HybridRow | None:
        """Forgets a request that ends, and returns it; what is kept of it is as it was."""
        self.stop(request)
        return self._rows.pop(request, None)

    def run(self, request: Hashable, row: HybridRow) -> None:
        """Lets a request run: what was kept of it is in the engine's blocks, or of no use."""
        self.abandon(row)
        self._running[request] = row
        self._until_turn = 0

    def stop(self, request: Hashable) -> None:
        """Hears that a request does not run any more."""
        self._running.pop(request, None)

    def abandon(self, row: HybridRow) -> None:
        """Gives up what is kept of a request."""
        keep, row.keep = row.keep, None
        self._keeps.abandon(keep)

    def items(self) -> Iterator[tuple[Hashable, HybridRow]]:
        """Yields each request."""
        yield from self._rows.items()

    def waiting(self, loading: Container[Hashable]) -> Iterator[dict[int, Parked]]:
        """Yields what is kept of requests that wait, by group, the oldest first.

        Args:
            loading: Those that load, and wait no more.
        """
        for request, row in self._rows.items():
            if row.keep is not None and request not in loading:
                yield row.keep.parts()

    def turn(self) -> list[HybridRow]:
        """Returns a few requests that run, in turn, every few steps: what they have is in use."""
        if self._until_turn:
            self._until_turn -= 1
            return []
        self._until_turn = _TURN - 1
        rows = []
        for _ in range(min(_TOUCHED, len(self._running))):
            request, row = self._running.popitem(last=False)
            self._running[request] = row
            rows.append(row)
        return rows

    def reset(self) -> None:
        """Forgets all but those of which something is kept."""
        self._running.clear()
        self._rows = {name: row for name, row in self._rows.items() if row.keep is not None}
