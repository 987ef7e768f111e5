"""Follows the block tables of vLLM's steps, where a model has several groups of layers.

vLLM frees a block that slides out of a window in the call that schedules, and tells nobody: the
table that was followed names it still. It is written again in that step at the earliest, behind the
copies down that the step orders. So of a table as of one step, the blocks that vLLM had not freed
in that step can be copied with the next one, and no later.
"""

from collections.abc import Sequence
from itertools import chain, compress
from typing import Any, Final

from blockyard._core import Keys
from blockyard.connectors.hybrid_connector import HybridConnector, States
from blockyard.connectors.vllm.following import Followed
from blockyard.connectors.vllm.others import is_certain
from blockyard.connectors.vllm.resets import Resets
from blockyard.connectors.vllm.rows import Row, Rows
from blockyard.shared.groups import ChunkedAttention, RecurrentState, SlidingWindow

__all__ = ["HybridFollowing"]

_ENDED: Final = ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED", "FINISHED_REPETITION")
"""How a request ends that has sampled a token in its last step."""
_NULL: Final = 0
"""vLLM's id of the block that holds nothing."""


class HybridFollowing(Followed):
    """Follows requests of which vLLM has a table in each of its groups.

    Args:
        rows: vLLM's requests.
        connector: Gets their computed tokens, of all groups.
        resets: Has vLLM's block pool.
        ahead: As in `Followed`.
    """

    def __init__(self, rows: Rows, connector: HybridConnector, resets: Resets, ahead: int) -> None:
        super().__init__(rows, resets, ahead)
        self._connector = connector
        self._passed: list[tuple[Row, int, int, States]] = []
        """Lengths that requests pass in this step, how many of their tokens had been processed
        before it, at most, and the states of these lengths."""
        self._loading: set[int] = set()
        """Blocks that loads write that have begun since the last step."""
        groups = connector.groups
        self._states = sum(isinstance(kind, RecurrentState) for kind in groups)
        """How many groups have states."""
        self._spine = groups.numbers[0]
        numbered = zip(groups.numbers, groups, strict=True)
        self._slides = [
            (number, kind)
            for number, kind in numbered
            if isinstance(kind, SlidingWindow | ChunkedAttention)
        ]

    def ask(self, row: Row) -> None:
        """Asks vLLM for the states that others need that begin alike, as of its own cache."""
        if not self._states:
            return
        lengths = self._connector.checkpoints(row.request.request_id)
        if len(lengths) > 1 and not row.request.shared_prefix_boundary:
            row.request.shared_prefix_boundary = lengths[0]

    def begin(self, row: Row, tables: Sequence[list[int]]) -> None:
        """Begins a request that runs now, with its table in each of vLLM's groups."""
        row.begin(())
        self._take(row, tables)
        row.checkpoints = []
        # Where there are states, vLLM says which it has, and of which lengths.
        if row.settings.offload != "none" and not self._states:
            row.checkpoints = self._connector.checkpoints(row.request.request_id)

    def load(self, row: Row, tables: Sequence[list[int]], external: int) -> bool:
        """Begins to load what was found of a request, in all groups.

        Args:
            row: The request.
            tables: Its table in each of vLLM's groups.
            external: Tokens that vLLM wants to come.

        Returns:
            Whether it loads; if not, the load has failed: vLLM wants another length than all groups
            have agreed to.
        """
        name = row.request.request_id
        self._take(row, tables)
        row.loading = row.ids
        if external != row.told:
            self._connector.failed(name)
            return False
        first, end = row.local // self._size, -(-row.wanted // self._size)
        come = [table[first:end] for table in row.tables]
        if self._states:
            self._loading.update(*come)
        # vLLM gives out no block for what ends just where nothing before it is read any more.
        self._connector.allocated(name, [ids + [_NULL] * (end - first - len(ids)) for ids in come])
        return True

    def finished(
        self, row: Row, keys: Keys | None, _shown: Sequence[list[int]], full: int, **said: Any
    ) -> bool:
        """Offloads full blocks of a request that has ended, and what its last boundary needs.

        What vLLM shows has lost what slid out since the last step, and is not written yet.

        Args:
            row: The request.
            keys: Its keys; None to offload nothing.
            _shown: Its table in each of vLLM's groups.
            full: Its full blocks that are computed.
            **said: As in `HybridConnector.finished`.

        Returns:
            Whether its load still writes to its blocks.
        """
        request = row.request
        tables: list[list[int]] = []
        if keys:
            processed = int(request.num_computed_tokens) - int(request.num_in_flight_tokens)
            # It was scheduled last before its last token came.
            processed -= request.status.name in _ENDED
            tables = self._intact(row, max(processed, 0), min(full, len(keys)))
        return self._connector.finished(request.request_id, keys, tables, **said)

    def follow(self, output: Any) -> list[int]:
        """Follows the block tables of scheduled requests; returns their new blocks."""
        written: list[int] = []
        rows, counts, size = self._rows.by_name, output.num_scheduled_tokens, self._size
        rest = output.total_num_scheduled_tokens - self._follow_new(output, written)
        cached = output.scheduled_cached_reqs
        tables, resumed = cached.new_block_ids, cached.resumed_req_ids
        places: range | compress[int] = range(len(tables))
        if rest == len(tables):
            # As with one group. One that passes a checkpoint with its last token, without a new
            # block, has one in the next step, in which the checkpoint is still intact.
            places = compress(places, tables)
        for at in places:
            name, more, computed = cached.req_ids[at], tables[at], cached.num_computed_tokens[at]
            count = counts[name]
            if more is None and count == 1:
                continue
            row = rows.get(name)
            if row is None:
                continue
            if more is None:
                pass
            elif name in resumed:
                self._take(row, more)
                written += row.blocks(computed // size)
            else:
                # Its tables are put together when they are asked for: most steps ask for none.
                row.later.append(more)
                written += chain.from_iterable(more)
            self._schedule(row, computed, count)
        if self._states:
            self._take_states(output)
        return written

    def _follow_new(self, output: Any, written: list[int]) -> int:
        """Follows requests that are scheduled first; returns how many tokens of them are."""
        count = 0
        for new in output.scheduled_new_reqs:
            row, computed = self._rows.by_name.get(new.req_id), new.num_computed_tokens
            own = output.num_scheduled_tokens[new.req_id]
            count += own
            # What vLLM has found itself, or a load has brought, is read and not written.
            for ids in new.block_ids:
                written += ids[computed // self._size :]
            if row is not None:
                self._take(row, new.block_ids)
                self._schedule(row, computed, own)
        return count

    def _take(self, row: Row, tables: Sequence[list[int]]) -> None:
        """Takes its table in each group, as it is from now on."""
        row.tables, row.later = [list(ids) for ids in tables], []
        row.ids = row.tables[self._spine]

    def _schedule(self, row: Row, computed: int, count: int) -> None:
        """Follows a request that computes tokens behind those that it has."""
        row.scheduled = computed + count
        checkpoints = row.checkpoints
        if not checkpoints and row.settings.offload != "through":
            return
        while checkpoints and checkpoints[0] <= row.scheduled:
            length = checkpoints.pop(0)
            # Of an earlier one the blocks may have slid out.
            if length >= computed:
                self._passed.append((row, length, computed, ()))
        if row.settings.offload == "through":
            full = min(computed, row.offloadable()) // self._size
            if full > row.offloaded:
                self._passed.append((row, full * self._size, computed, ()))

    def _take_states(self, output: Any) -> None:
        """Takes the states that vLLM names in this step.

        Of a length that the step computes the state is in its block behind the step. Of one that
        was computed before, it is there until the step writes.
        """
        told = output.kv_connector_block_state
        loading, self._loading = self._loading, set()
        for name, states in () if told is None else told.boundary_state_offloads.items():
            row = self._rows.by_name.get(name)
            if row is None:
                continue
            request, lengths = row.request, dict[int, list[tuple[int, int, int]]]()
            for state in states:
                lengths.setdefault(state[2], []).append(state)
            computed = int(request.num_computed_tokens)
            processed = computed - int(request.num_in_flight_tokens)
            for length, own in lengths.items():
                if len(own) < self._states or length % self._connector.groups.boundary:
                    continue
                if length > processed:
                    self._passed.append((row, length, computed, own))
                elif loading.isdisjoint(block for _, block, _ in own):
                    self._offload(row, length, processed, own)

    def offload_passed(self) -> None:
        """Offloads what was passed in this step: with the next one, when it is computed."""
        passed, self._passed = self._passed, []
        for row, length, processed, states in passed:
            self._offload(row, length, processed, states)

    def _offload(self, row: Row, length: int, processed: int, states: States) -> None:
        """Offloads what all groups have of a length, as far as it is certain."""
        settings = row.settings
        offloads = settings.offload != "none" and (
            settings.decode or length <= int(row.request.num_prompt_tokens)
        )
        # Without its states a preempted request would not come back.
        if not offloads and not (states and settings.preempt == "park"):
            return
        full, keys = length // self._size, self._rows.keys(row)
        if full > len(keys) or (length > row.has and not is_certain(row)):
            return
        tables = self._intact(row, processed, full)
        at = [length] if length % self._connector.groups.boundary == 0 else []
        self._connector.offload(
            row.request.request_id, keys, tables, at=at, states=states, first=row.offloaded
        )
        row.offloaded = full

    def preempted(self, row: Row) -> None:
        """Keeps what a request has computed that has left its blocks, in all groups."""
        keys = self._rows.keys(row)
        row.join()
        reached, tokens = row.reached(), self._left(row, keys)
        tables = self._intact(row, reached, -(-tokens // self._size)) if tokens else ()
        self._connector.preempted(row.request.request_id, keys, tables, tokens)
        row.ids, row.tables, row.checkpoints, row.started, row.scheduled = [], [], [], 0, 0

    def _intact(self, row: Row, processed: int, blocks: int) -> list[list[int]]:
        """Returns the first blocks of its tables, without what vLLM may have given to others.

        Args:
            row: The request.
            processed: Tokens of it that had been processed when it was scheduled last, at most.
            blocks: Blocks of each table.
        """
        row.join()
        tables = [table[:blocks] for table in row.tables]
        for number, kind in self._slides:
            needs = kind.needs(processed, self._size)
            gone = min(needs.start if needs else processed // self._size, blocks)
            tables[number] = [_NULL] * gone + tables[number][gone:]
        return tables
