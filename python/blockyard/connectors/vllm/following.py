"""Follows the block tables of vLLM's steps."""

from collections.abc import Sequence
from itertools import compress
from typing import Any, Final

from blockyard._core import Keys
from blockyard.connectors.connector import Connector
from blockyard.connectors.vllm.resets import Resets
from blockyard.connectors.vllm.rows import Row, Rows

__all__ = ["Followed", "Following", "overwritten_blocks"]

_LOOK: Final = 64
"""Free blocks that are looked at, at least."""


class Followed:
    """What vLLM has scheduled, preempted, and gives out next, whatever its groups.

    Args:
        rows: vLLM's requests.
        resets: Has vLLM's block pool.
        ahead: Free blocks of vLLM that are looked at, at most, so that what is in them is offloaded
            before they are given out; 0 for none.
    """

    def __init__(self, rows: Rows, resets: Resets, ahead: int) -> None:
        self._rows, self._resets = rows, resets
        self._size, self.ahead = rows.block_size, ahead
        self._seen = 0
        """Blocks of vLLM's free queue that were looked at, and not given out since."""
        self.is_beside = False
        """Whether there is another connector beside this one."""
        self.resets_seen = 0
        """Resets that vLLM had begun at the last step."""

    def _left(self, row: Row, keys: Keys) -> int:
        """Notes that a request has left its blocks; returns the tokens in them that are kept."""
        row.preemptions = row.request.num_preemptions
        tokens = min(row.computed(), len(row.ids) * self._size)
        if row.settings.preempt == "recompute" or self._is_void(row.request):
            return 0
        # A full block whose hash needs the tokens behind it may have no key yet.
        return min(tokens, (len(keys) + 1) * self._size - 1)

    def _is_void(self, request: Any) -> bool:
        """Whether the KV of a preempted request is void, as output is that was made from it.

        Beside a connector that sends, vLLM drops the output of each one that it preempts.
        """
        was_reset = not self.is_beside or self._resets.seen > self.resets_seen
        return bool(request.drop_stale_output) and was_reset

    def victims(self, given: int) -> list[int]:
        """Returns the free blocks that vLLM gives out next, where it is time to look.

        Those that it has given out were looked at before: it looks again when those of one more
        step are left, as the first in its queue stay the first.

        Args:
            given: Blocks that it gives out in this step.
        """
        victims: list[int] = []
        self._seen -= given
        if self._seen > given or self._resets.pool is None:
            return victims
        self._seen = count = min(self.ahead, 4 * given + _LOOK)
        block = self._resets.pool.free_block_queue.fake_free_list_head.next_free_block
        # The last one of the queue is no block, and nothing is behind it.
        while count and (following := block.next_free_block) is not None:
            victims.append(block.block_id)
            block, count = following, count - 1
        return victims


class Following(Followed):
    """Follows requests of which vLLM has one table, that of its only group.

    Args:
        rows: As in `Followed`; so are the others.
        connector: Gets their computed tokens.
        resets: Likewise.
        ahead: Likewise.
    """

    def __init__(self, rows: Rows, connector: Connector, resets: Resets, ahead: int) -> None:
        super().__init__(rows, resets, ahead)
        self._connector = connector

    def begin(self, row: Row, tables: Sequence[list[int]]) -> None:
        """Begins a request that runs now, with its table in each of vLLM's groups."""
        row.begin(tables[0])

    def load(self, row: Row, tables: Sequence[list[int]], _external: int) -> bool:
        """Begins to load what was found of a request.

        Args:
            row: It has what it was told to have, in `wanted`.
            tables: Its table in each of vLLM's groups.
            _external: Tokens that vLLM wants to come.

        Returns:
            Whether it loads; if not, the load has failed.
        """
        row.loading = list(tables[0])
        come = row.loading[row.local // self._size : -(-row.wanted // self._size)]
        self._connector.allocated(row.request.request_id, come)
        return True

    def finished(
        self, row: Row, keys: Keys | None, tables: Sequence[list[int]], full: int, **said: Any
    ) -> bool:
        """Offloads full blocks of a request that has ended.

        Args:
            row: The request.
            keys: Its keys; None to offload nothing.
            tables: Its table in each of vLLM's groups.
            full: Its full blocks that are computed.
            **said: As in `Connector.finished`.

        Returns:
            Whether its load still writes to its blocks.
        """
        computed = tables[0][:full] if keys else ()
        return self._connector.finished(row.request.request_id, keys, computed, **said)

    def follow(self, output: Any) -> list[int]:
        """Follows the block tables of scheduled requests; returns their new blocks."""
        written: list[int] = []
        rows, counts, size = self._rows.by_name, output.num_scheduled_tokens, self._size
        rest = output.total_num_scheduled_tokens
        for new in output.scheduled_new_reqs:
            (ids,) = new.block_ids
            row, computed, count = rows.get(new.req_id), new.num_computed_tokens, counts[new.req_id]
            rest -= count
            if row is not None:
                row.ids = list(ids)
                row.scheduled = computed + count
            # What vLLM has found itself, or a load has brought, is read and not written.
            written += ids[computed // size :]
        cached = output.scheduled_cached_reqs
        tables, resumed = cached.new_block_ids, cached.resumed_req_ids
        places: range | compress[int] = range(len(tables))
        if rest == len(tables):
            # All that go on decode a token each: C passes over those without a new block, which
            # are as they were, and touches nothing of them.
            places = compress(places, tables)
        for at in places:
            name, more, computed = cached.req_ids[at], tables[at], cached.num_computed_tokens[at]
            count = counts[name]
            if more is None and count == 1:
                continue
            row = rows.get(name)
            if row is None:
                continue
            if more is not None:
                (ids,) = more
                if name in resumed:
                    row.ids = list(ids)
                    written += ids[computed // size :]
                else:
                    row.ids += ids
                    written += ids
            if row.settings.offload == "through":
                self._offload_full(row, computed)
            row.scheduled = computed + count
        return written

    def _offload_full(self, row: Row, computed: int) -> None:
        """Offloads the blocks that have filled up since the last time."""
        full = min(computed, row.offloadable()) // self._size
        if full > row.offloaded:
            self._connector.offload(
                self._rows.keys(row), row.ids[row.offloaded : full], row.offloaded
            )
            row.offloaded = full

    def preempted(self, row: Row) -> None:
        """Keeps what a request has computed that has left its blocks."""
        keys = self._rows.keys(row)
        tokens = self._left(row, keys)
        self._connector.preempted(row.request.request_id, keys, row.ids, tokens)
        row.ids, row.started, row.scheduled = [], 0, 0


def overwritten_blocks(output: Any) -> list[int]:
    """Returns the blocks that vLLM's runner zeroes, or copies others to, before it computes."""
    zeroed, copies = output.new_block_ids_to_zero, output.kv_cache_block_copies
    return [*(zeroed or ()), *(int(copy[1]) for copy in copies or ())]
