"""What the workers report of their copies, and when."""

import time
from typing import Final

from blockyard._typing import override
from blockyard.connectors.connector import Connector
from blockyard.connectors.hybrid_connector import HybridConnector
from blockyard.connectors.vllm.messages import Reports
from blockyard.connectors.vllm.rows import Row, Rows
from blockyard.connectors.vllm.settings import DEADLINE
from blockyard.shared.layout import BELOW
from blockyard.yard.config import Config
from blockyard.yard.dead_disks import Stripes, withdraw_dead

__all__ = ["HybridReported", "Reported"]

_PAUSE: Final = 250
"""Milliseconds after which deadlines are looked at, where no worker reports."""


class Reported:
    """Takes the workers' reports, and passes deadlines where there are none.

    Args:
        rows: vLLM's requests.
        connector: Plans the copies.
        config: The cache's; a tick of its deadlines is a millisecond.
    """

    def __init__(self, rows: Rows, connector: Connector | HybridConnector, config: Config) -> None:
        self._rows, self._connector, self._size = rows, connector, config.block_size
        self._cache = rows.cache
        self._dead: Stripes = frozenset()
        self.clock = time.monotonic
        """Seconds, for deadlines."""
        self._begun: float | None = None
        self.looked = self.active = 0
        """When deadlines were looked at last; and when a request ran or ended, or a copy came."""
        deadlines = map(config.deadline_of, BELOW)
        self.patience = max(one or DEADLINE for one in deadlines)
        """Milliseconds after which nothing more comes of a copy."""
        self.cut = 0
        """Loads that have brought less than was matched."""
        self.arrived: set[str] = set()
        """Requests whose loads have ended, since the last step."""
        self.missing: set[int] = set()
        """Blocks of theirs that a load did not fill, since then."""
        self.incomplete: list[int] = []
        """The same: their request writes them."""
        self.failed: set[str] = set()
        """Requests whose loads have brought nothing, since then."""

    def take(self, reports: Reports | None) -> None:
        """Commits the workers' reports on copies; vLLM's `update_connector_output`.

        Args:
            reports: Their reports; None if there are none.
        """
        now = self.now()
        if reports is not None or now >= self.looked + _PAUSE:
            self.looked = now
            outcomes = [] if reports is None else reports.outcomes
            self._connector.commit(outcomes, now=now)
            if any(outcome.good for outcome in outcomes):
                self.active = now
        if reports is not None:
            self._withdraw(reports.dead)
        for request, tokens in self._connector.arrived().items():
            name = str(request)
            self.arrived.add(name)
            row = self._rows.by_name.get(name)
            if row is not None:
                self._end(row, tokens)

    def _end(self, row: Row, tokens: int) -> None:
        """Ends a load that has brought a request to so many tokens."""
        table, row.loading = row.loading, []
        row.begin(table)
        row.count_cached(tokens)
        if tokens < row.wanted:
            self.cut += 1
            rest = table[tokens // self._size : -(-row.wanted // self._size)]
            self.missing.update(rest)
            self.incomplete += rest

    def fail(self, row: Row) -> None:
        """Ends a load that has brought nothing: vLLM frees its blocks, and asks again."""
        name = str(row.request.request_id)
        self.cut += 1
        self.arrived.add(name)
        self.failed.add(name)
        row.ids, row.tables, row.loading = [], [], []
        row.begin(())

    def _withdraw(self, dead: Stripes) -> None:
        """Takes the slots of disks that have died out of use."""
        self._dead = withdraw_dead(self._cache, dead, self._dead)

    def is_patient(self) -> bool:
        """Whether something has happened within the longest deadline."""
        return self.now() < self.active + self.patience

    def now(self) -> int:
        """Milliseconds since the first question."""
        clock = self.clock()
        if self._begun is None:
            self._begun = clock
        return int((clock - self._begun) * 1000)


class HybridReported(Reported):
    """Takes what workers report of the copies of several groups.

    Args:
        rows: vLLM's requests.
        connector: Plans the copies of all groups.
        config: As in `Reported`.
    """

    def __init__(self, rows: Rows, connector: HybridConnector, config: Config) -> None:
        super().__init__(rows, connector, config)
        self._several = connector

    @override
    def _end(self, row: Row, tokens: int) -> None:
        """Ends a load, which has come whole or is of no use."""
        if tokens < row.wanted:
            self.fail(row)
            return
        table, row.loading = row.loading, []
        row.begin(table)

    @override
    def _withdraw(self, dead: Stripes) -> None:
        """Takes the slots of dead disks out of use, in all groups."""
        self._several.withdraw(dead)
