"""The connector in the scheduler's process: vLLM's requests as those of a `Connector`."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from blockyard._core import Keys
from blockyard.engines.connector import Connector
from blockyard.engines.vllm.identity import Root
from blockyard.engines.vllm.messages import Reports, StepOrders
from blockyard.engines.vllm.settings import Settings
from blockyard.yard.cache import KVCache
from blockyard.yard.config import Config

__all__ = ["SchedulerHalf"]

_KEY: Final = 32
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Row:
    """A request of vLLM, from its arrival to its end."""

    request: Any
    keys: bytearray = field(default_factory=bytearray)
    ids: list[int] = field(default_factory=list)
    """Its block table, as of the last step in which it was scheduled."""
    started: int = 0
    """Tokens that it had when it was scheduled first since it waited."""
    scheduled: int = 0
    """Tokens that were given to the model since, at the last step that took more than one."""
    local: int = 0
    """Tokens that vLLM had itself when it asked last."""
    wanted: int = 0
    """Tokens that a load shall bring it to, from its start."""
    stowed: int = 0
    """Leading blocks that were stowed since it began."""
    preemptions: int = 0
    """How often it was preempted, as far as that was heard."""
    loading: list[int] = field(default_factory=list)
    """Its block table while it loads."""

    def computed(self) -> int:
        """Tokens whose KV is in its blocks, whatever step is in flight.

        The last token was sampled and is computed by no step that has ended. A prompt is computed
        as far as it was scheduled.
        """
        known = int(self.request.num_tokens)
        return known - 1 if known > self.started else min(self.scheduled, known - 1)


class SchedulerHalf:
    """Finds, fetches, keeps and stows for vLLM's scheduler; its thread calls it.

    Args:
        settings: What it does.
        config: Sizes and policies of its cache.
    """

    def __init__(self, settings: Settings, config: Config) -> None:
        self.cache = KVCache(config)
        self.connector = Connector(self.cache)
        self._settings = settings
        self._size = config.block_size
        self._ticks = config.deadline is not None
        self._through = settings.stow == "through"
        self.pool: Any = None
        """vLLM's block pool, to see that its prefix cache was reset."""
        self._known_blocks: object = None
        self._was_reset = self._told = False
        self._root = Root(dict(config.namespace or ()).items())
        self._rows: dict[str, _Row] = {}
        self._arrived: set[str] = set()
        self._missing: set[int] = set()
        self._short: list[int] = []
        """Blocks that a load did not fill: their request writes them."""
        self.cut = 0
        """Loads that have brought less than was matched."""
        self._steps = 0

    # -- a request -----------------------------------------------------------------------

    def added(self, request: Any) -> None:
        """As vLLM's `on_new_request`: hashes its keys."""
        self._hash(self._row(request))

    def matched(self, request: Any, computed: int) -> tuple[int | None, bool]:
        """As vLLM's `get_num_new_matched_tokens`."""
        row = self._row(request)
        if request.num_preemptions > row.preemptions:
            # A reset has preempted it, and it comes back before the step that would say so.
            self._preempted(row, set())
        local = computed // self._size
        tokens = self.connector.matched(request.request_id, self._keys(row), local)
        if tokens is None:
            return None, False
        # What is kept may be more than vLLM asks for; never more than it has.
        tokens = min(tokens, int(request.num_tokens) - computed)
        row.local = computed
        return tokens, tokens > 0

    def allocated(self, request: Any, ids: list[int], external: int) -> None:
        """As vLLM's `update_state_after_alloc`, with the ids of the one group."""
        row = self._row(request)
        if not external:
            if not row.loading:
                self._start(row, ids)
                self.connector.allocated(request.request_id)
            return
        row.loading, row.wanted = list(ids), row.local + external
        come = ids[row.local // self._size : -(-row.wanted // self._size)]
        self.connector.allocated(request.request_id, come)

    def finished(self, request: Any, ids: list[int]) -> None:
        """As vLLM's `request_finished`: its blocks may be given to others at once.

        Where its load still writes to them, vLLM keeps them until the load is said to have ended.
        """
        row = self._rows.pop(request.request_id, None)
        if row is None:
            return
        keys: Keys | None = None
        full = self._stowable(row)
        if full and not row.loading:
            keys = self._keys(row)
        writes = self.connector.finished(request.request_id, keys, ids[:full] if keys else ())
        if row.loading and not writes:
            self._arrived.add(request.request_id)

    def _stowable(self, row: _Row) -> int:
        """Full blocks of a request that are computed, and are to be stowed."""
        if self._settings.stow == "none":
            return 0
        return self._last_stowable(row) // self._size

    def _last_stowable(self, row: _Row) -> int:
        """Tokens of a request that are computed, and are to be stowed."""
        tokens = row.computed()
        return tokens if self._settings.decode else min(tokens, int(row.request.num_prompt_tokens))

    def _row(self, request: Any) -> _Row:
        row = self._rows.get(request.request_id)
        if row is None:
            row = self._rows[request.request_id] = _Row(request)
        return row

    def _start(self, row: _Row, ids: Iterable[int]) -> None:
        row.ids, row.started, row.scheduled = list(ids), int(row.request.num_tokens), 0
        row.stowed = 0

    def _keys(self, row: _Row) -> Keys:
        full = self._hash(row)
        return self.cache.ready_keys(bytes(row.keys[: full * _KEY]), full * self._size)

    def _hash(self, row: _Row) -> int:
        """Makes the keys that a request has not yet; returns how many it has."""
        request = row.request
        hashes = request.block_hashes
        have = len(row.keys) // _KEY
        if len(hashes) > have:
            row.keys += self._root.keys(hashes[have:], request.lora_request, request.cache_salt)
        return len(hashes)

    # -- a step --------------------------------------------------------------------------

    def step(self, output: Any) -> StepOrders:
        """As vLLM's `build_connector_meta`."""
        for name in output.preempted_req_ids or ():
            row = self._rows.get(name)
            if row is not None and row.request.num_preemptions > row.preemptions:
                self._preempted(row, self._unsafe(output))
        written = self._follow(output)
        self._look_for_reset()
        self._steps += 1
        short, self._short = self._short, []
        arrived, self._arrived = self._arrived, set()
        missing, self._missing = self._missing, set()
        orders = self.connector.step(np.array([*written, *short], np.int64))
        return StepOrders(self._steps, orders, arrived, missing)

    def _unsafe(self, output: Any) -> set[int]:
        """Blocks that the V2 runner writes before any copy can begin in this step."""
        zeroed = set(output.new_block_ids_to_zero or ())
        for copy in output.kv_cache_block_copies or ():
            zeroed.add(int(copy[1]))
        return zeroed

    def _preempted(self, row: _Row, unsafe: set[int]) -> None:
        row.preemptions = row.request.num_preemptions
        tokens, ids = row.computed(), row.ids
        cut = next((at for at, one in enumerate(ids) if one in unsafe), len(ids))
        tokens = min(tokens, min(cut, len(ids)) * self._size)
        # Output that is dropped was made from KV that is void, too.
        if self._settings.preempt == "recompute" or row.request.drop_stale_output:
            tokens = 0
        self.connector.preempted(row.request.request_id, self._keys(row), ids, tokens)
        row.ids, row.started, row.scheduled = [], 0, 0

    def _follow(self, output: Any) -> list[int]:
        """Follows the block tables of what is scheduled; returns what is new in them."""
        written: list[int] = []
        rows, counts = self._rows, output.num_scheduled_tokens
        for new in output.scheduled_new_reqs:
            (ids,) = new.block_ids
            row = rows.get(new.req_id)
            if row is not None:
                row.ids = list(ids)
                row.scheduled = new.num_computed_tokens + counts[new.req_id]
            written += ids
        cached = output.scheduled_cached_reqs
        tables = cached.new_block_ids
        if output.total_num_scheduled_tokens == len(counts):
            # All rows decode a token: only those with a new block have changed.
            changed = [at for at, more in enumerate(tables) if more is not None]
        else:
            changed = list(range(len(tables)))
        for at in changed:
            name, more = cached.req_ids[at], tables[at]
            count, row = counts[name], rows.get(name)
            if row is None or (more is None and count == 1):
                continue
            if more is not None:
                (ids,) = more
                written += ids
                if name in cached.resumed_req_ids:
                    row.ids = list(ids)
                else:
                    row.ids += ids
            if self._through:
                self._stow_full(row, cached.num_computed_tokens[at])
            row.scheduled = cached.num_computed_tokens[at] + count
        return written

    def _stow_full(self, row: _Row, computed: int) -> None:
        """Stows the blocks that have filled up since the last time."""
        full = min(computed, self._last_stowable(row)) // self._size
        if full > row.stowed:
            self.connector.stow(self._keys(row), row.ids[row.stowed : full], row.stowed)
            row.stowed = full

    def reported(self, reports: Reports | None) -> None:
        """Takes what the workers say of their copies; as vLLM's `update_connector_output`."""
        if reports is not None or self._ticks:
            self.connector.commit([] if reports is None else reports.outcomes)
        for request, tokens in self.connector.arrived().items():
            name = str(request)
            self._arrived.add(name)
            row = self._rows.get(name)
            if row is None:
                continue
            table, row.loading = row.loading, []
            self._start(row, table)
            if tokens < row.wanted:
                self.cut += 1
                rest = table[tokens // self._size : -(-row.wanted // self._size)]
                self._missing.update(rest)
                self._short += rest

    def reset(self) -> bool:
        """As vLLM's `reset_cache`: nothing that was computed so far is found again."""
        self.cache.clear()
        self._was_reset = True
        return True

    def _look_for_reset(self) -> None:
        """Says once that what is below outlives a reset of vLLM's prefix cache alone."""
        known = getattr(self.pool, "cached_block_hash_to_block", None)
        if known is self._known_blocks:
            return
        first, self._known_blocks = self._known_blocks is None, known
        if not (first or self._was_reset or self._told):
            self._told = True
            _log.warning(
                "vLLM's prefix cache was reset, and the host keeps its blocks: after new weights "
                "reset with reset_connector=True (reset_external over HTTP), or old KV is served"
            )
        self._was_reset = False

    def stats(self) -> dict[str, int]:
        """The cache's numbers."""
        return self.cache.stats()
