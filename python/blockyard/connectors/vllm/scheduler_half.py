"""The connector in the scheduler's process: vLLM's requests as those of a `Connector`."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any, Final

import numpy as np

from blockyard._core import Keys, Misuse, Unsupported
from blockyard.connectors.connector import Connector
from blockyard.connectors.vllm.identity import Root, Start, fingerprint_of
from blockyard.connectors.vllm.messages import Ready, Reports, StepOrders
from blockyard.connectors.vllm.notes import Notes
from blockyard.connectors.vllm.others import OthersLoads, comes_from_afar, is_certain
from blockyard.connectors.vllm.outputs import count_cached, overwritten_blocks
from blockyard.connectors.vllm.replicas import ALONE, Replica, others_on_disk
from blockyard.connectors.vllm.resets import Resets
from blockyard.connectors.vllm.settings import DEADLINE, Settings
from blockyard.connectors.vllm.stopping import Stopping
from blockyard.connectors.vllm.told import Told
from blockyard.shared.log import Limited
from blockyard.shared.restored import Restored
from blockyard.yard.cache import KVCache
from blockyard.yard.config import Config
from blockyard.yard.dead_disks import Stripes, withdraw_dead
from blockyard.yard.flush import Flush

__all__ = ["SchedulerHalf"]

_KEY: Final = 32
_LOOK: Final = 64
"""Free blocks that are looked at, at least."""
_PAUSE: Final = 250
"""Milliseconds after which deadlines are looked at, where no worker reports."""
_log = Limited(__name__, 0)


@dataclass(slots=True, eq=False)
class _Row:
    """A request of vLLM, from its arrival to its end."""

    request: Any
    settings: Settings
    start: Start | None
    """What its keys start with; None for one that has no keys."""
    keys: bytearray = field(default_factory=bytearray)
    ids: list[int] = field(default_factory=list)
    """Its block table, as of the last step in which it was scheduled."""
    started: int = 0
    """Tokens that it had when it was scheduled first since it waited."""
    scheduled: int = 0
    """Tokens that were given to the model since, at the last step that took more than one."""
    local: int = 0
    """Tokens that vLLM had itself when it asked last."""
    has: int = 0
    """Tokens that its blocks held when it began: what vLLM found, and what a load has brought."""
    given: int = 0
    """Tokens to which another connector brings it as it runs; 0 when they are there."""
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
        as far as it was scheduled. Of what another connector brings it counts when it is there.
        """
        known = int(self.request.num_tokens)
        tokens = known - 1 if known > self.started else min(self.scheduled, known - 1)
        return tokens if is_certain(self) else min(tokens, self.has)


class SchedulerHalf:
    """Finds, fetches, keeps and stows for vLLM's scheduler; its thread calls it.

    Args:
        settings: What it does.
        config: Sizes and policies of its cache; a tick of its deadlines is a millisecond.
        weights_change: Whether the engine may get other weights while it runs.
        again: As in `Connector`.
        replica: Which of the data parallel replicas it is for.
        stopping: Tells when vLLM is to end; None where nothing does.
    """

    def __init__(
        self,
        settings: Settings,
        config: Config,
        *,
        weights_change: bool = False,
        again: int = 0,
        replica: Replica = ALONE,
        stopping: Stopping | None = None,
    ) -> None:
        self._replica = replica
        self.cache = KVCache(config.named())
        self.connector = Connector(self.cache, again=again)
        self._settings = settings
        self._size = config.block_size
        self.clock: Callable[[], float] = time.monotonic
        """Seconds, for deadlines."""
        self._begun: float | None = None
        self._looked = self._active = 0
        """When deadlines were looked at last; and when a request ran or ended, or a copy came."""
        deadlines = (config.deadline_of("host"), config.deadline_of("disk"))
        self._patience = max(one or DEADLINE for one in deadlines)
        self._seen = 0
        """Blocks of vLLM's free queue that were looked at, and not given out since."""
        self._ahead = config.ahead_of("device") if settings.stow != "none" else 0
        keeps = settings.keep_on_reset
        self.resets = Resets(ends=weights_change if keeps is None else not keeps)
        self._warned: set[str] = set()
        self._yard = self.cache.config.yard
        self._root = Root(dict(config.namespace or ()).items())
        self._rows: dict[str, _Row] = {}
        self._arrived: set[str] = set()
        self._missing: set[int] = set()
        self._short: list[int] = []
        """Blocks that a load did not fill: their request writes them."""
        self.cut = 0
        """Loads that have brought less than was matched."""
        self._others = OthersLoads(config.block_size)
        self._is_heard = self._is_beside = False
        """Whether the workers have said that they are ready; and that it stands beside another."""
        self._resets_seen = 0
        self._steps = 0
        self._run = self._cleared = 0
        self._notes = Notes()
        self._is_durable = True
        self._dead: Stripes = frozenset()
        self._stopping = stopping
        self._last_flush: Flush | None = None
        self._is_noted = False
        self._told: Told | None = None
        self.restored = 0
        """Blocks that all disks had from before."""

    def ready(self, workers: Iterable[Ready]) -> None:
        """Hears that all workers have their memory, and drops the name of what they share.

        So no file outlives the engine, however it ends.

        Raises:
            Misuse: A worker has another configuration than this half.
            Unsupported: Workers that share host memory do not map the same.
        """
        own = fingerprint_of(self.cache.config)
        workers = list(workers)
        self._is_heard = True
        files = {worker.file for worker in workers}
        if len(files) > 1:
            raise Unsupported(
                f"the ranks have the same KV, and {len(files)} files for it: they must be on one "
                "machine, and see one /dev/shm"
            )
        for worker in workers:
            if worker.fingerprint != own:
                raise Misuse(
                    f"rank {worker.rank} has fingerprint {worker.fingerprint[:12]}, and the "
                    f"scheduler's half {own[:12]}: model, block size and options must be the same "
                    "in all processes of the engine"
                )
            if worker.shared:
                Path(worker.shared).unlink(missing_ok=True)
        workers.sort(key=lambda worker: worker.rank)
        offers = [worker.restored for worker in workers if worker.restored is not None]
        if not offers or self._run:
            return
        if len(offers) < len(workers):
            raise Misuse(
                "some workers have a disk, and others have none: give all the same options"
            )
        found = Restored.agreed(offers)
        self._run = found.run
        self._notes = Notes(*workers[0].folders)
        found = found.take(found.stamps >> np.uint64(32) > self._notes.cleared())
        order = self._notes.take_order(found.run - 1)
        if order is not None:
            found = found.ordered(order)
        self.cache.restore("disk", found.slots, found.keys, found.parents)
        self.restored = len(found)
        _log.info("Blockyard has found %d blocks on the disk again", len(found))
        if self._replica.number % self._replica.here == 0:
            # The first on each machine, which has disks of its own.
            for said in others_on_disk(workers[0].folders):
                _log.warning("%s", said)

    # -- a request -----------------------------------------------------------------------

    def added(self, request: Any) -> None:
        """As vLLM's `on_new_request`: hashes its keys."""
        self.connector.added(request.request_id)
        self._hash(self._row(request))

    def matched(self, request: Any, computed: int) -> tuple[int | None, bool]:
        """As vLLM's `get_num_new_matched_tokens`."""
        if self._settings.disk_path is not None and not self._is_heard:
            # The workers say with their first step what is on the disk.
            return None, False
        self._look_for_reset()
        row = self._row(request)
        if request.num_preemptions > row.preemptions:
            # A reset has preempted it, and it comes back before the step that would say so.
            self._preempted(row)
        keys = self._keys(row)
        local = min(computed // self._size, len(keys))
        # What another connector brings whole is not waited for here, nor found.
        prefix = row.settings.load and not (self._is_beside and comes_from_afar(request))
        tokens = self.connector.matched(request.request_id, keys, local, prefix=prefix)
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
                self._others.admit(row)
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
        self._active = self._now()
        keys: Keys | None = None
        # A session may have got tokens since that were never scheduled.
        full = min(self._stowable(row), int(request.num_computed_tokens) // self._size)
        if full and not row.loading:
            keys = self._keys(row)
        computed = ids[:full] if keys else ()
        hints = row.settings.hints.keywords
        prompt = int(request.num_prompt_tokens)
        answer = int(request.num_tokens) - prompt
        writes = self.connector.finished(
            request.request_id, keys, computed, prompt=prompt, answer=answer, **hints
        )
        if row.loading and not writes:
            self._arrived.add(request.request_id)

    def _stowable(self, row: _Row) -> int:
        """Full blocks of a request that are computed, and are to be stowed."""
        if row.settings.stow == "none":
            return 0
        return self._last_stowable(row) // self._size

    def _last_stowable(self, row: _Row) -> int:
        """Tokens of a request that are computed, and are to be stowed."""
        tokens = row.computed()
        return tokens if row.settings.decode else min(tokens, int(row.request.num_prompt_tokens))

    def _end_epoch(self) -> None:
        """Ends an epoch, and lets nothing of what is in vLLM's blocks now into the next."""
        for row in self._rows.values():
            if row.request.num_preemptions > row.preemptions:
                # It has left its blocks, and comes back with nothing.
                self._preempted(row)
            elif row.ids or row.loading:
                row.settings = row.settings.as_nothing()
        self.connector.clear()
        self._cleared += 1
        # The workers hear of it with the next step, which may never come.
        self._is_durable = self._notes.clear(self._run)

    def _row(self, request: Any) -> _Row:
        row = self._rows.get(request.request_id)
        if row is None:
            row = self._rows[request.request_id] = self._new(request)
        return row

    def _new(self, request: Any) -> _Row:
        settings = self._settings
        try:
            settings = settings.of_request(request.kv_transfer_params)
        except Misuse as error:
            # An error here would end vLLM: it is the client's to mend.
            self._warn(f"{error}; such requests run as all others")
        if request.skip_reading_prefix_cache:
            # vLLM computes all of it, whatever is offered: it wants the logits of the prompt.
            settings = settings.as_reading_nothing()
        start = self._root.start(request.lora_request, request.cache_salt)
        if start is None:
            settings = settings.as_nothing()
            self._warn(
                f"which weights LoRA adapter {request.lora_request.lora_name!r:.100} has is not "
                "known here, as its files are not to be seen or have changed: nothing of it is "
                "kept; load it from a path of its own"
            )
        if request.resumable:
            # Its tokens and hashes change while it waits for more.
            settings, start = settings.as_nothing(), None
        return _Row(request, settings, start)

    def _warn(self, text: str) -> None:
        """Says something once."""
        if text not in self._warned and len(self._warned) < 1000:  # noqa: PLR2004 - clients make it
            self._warned.add(text)
            _log.warning(text)

    def _start(self, row: _Row, ids: Iterable[int]) -> None:
        row.ids, row.started, row.scheduled = list(ids), int(row.request.num_tokens), 0
        row.stowed = row.given = 0

    def _keys(self, row: _Row) -> Keys:
        full = self._hash(row)
        return self.cache.ready_keys(bytes(row.keys[: full * _KEY]), full * self._size)

    def _hash(self, row: _Row) -> int:
        """Makes the keys that a request has not yet; returns how many it has."""
        hashes = () if row.start is None else row.request.block_hashes
        have = len(row.keys) // _KEY
        if len(hashes) > have:
            row.keys += self._root.keys(hashes[have:], row.start)
            if self._told is not None:
                self._told.describe(row.request, row.keys, have)
        return len(hashes)

    def listen(self) -> None:
        """Has what is below told: vLLM publishes events, and tells of its own blocks itself."""
        self._told = Told(self.cache)

    def take_events(self) -> Iterator[bytes]:
        """Returns what has happened below since the last call, batches in vLLM's form."""
        return iter(()) if self._told is None else self._told.take(again=self.resets.published())

    # -- a step --------------------------------------------------------------------------

    def step(self, output: Any) -> StepOrders:
        """As vLLM's `build_connector_meta`."""
        # What seldom happens is asked for here: each call that finds nothing to do costs as much
        # as following a row, since vLLM's own work has taken the CPU's caches meanwhile.
        if self.resets.unheard():
            self._end_epoch()
        # Where nothing is computed and nobody reports, vLLM brings no report at all.
        self.reported(None)
        for name in output.preempted_req_ids or ():
            row = self._rows.get(name)
            if row is not None and row.request.num_preemptions > row.preemptions:
                self._preempted(row)
        written = self._follow(output)
        lent: list[int] = []
        if self._others.admitted:
            lent = self._others.lent_blocks(output.num_scheduled_tokens)
            written += lent
        if output.total_num_scheduled_tokens:
            self._active = self._looked
        self._steps += 1
        short, self._short = self._short, []
        arrived, self._arrived = self._arrived, set()
        missing, self._missing = self._missing, set()
        victims: list[int] = []
        if written and self._ahead:
            self._seen -= len(written)
            if self._seen <= len(written):
                victims = self._victims(len(written))
        spoiled: list[int] = []
        if output.new_block_ids_to_zero or output.kv_cache_block_copies:
            spoiled = overwritten_blocks(output)
        orders = self.connector.step(written + short, victims, spoiled, lent)
        self._resets_seen = self.resets.seen
        whose = self._run, self._cleared, self._yard
        return StepOrders(self._steps, orders, arrived, missing, *whose)

    def is_busy(self) -> bool:
        """As vLLM's `has_pending_push_work`: whether an idle engine goes on stepping.

        It does while copies are in the air or due, so that the last answers before a quiet hour
        reach the disk. Where nothing comes of them, as with a disk that hangs or fails, the engine
        sleeps after the deadline. Once vLLM is to end, `writes_on` says it.
        """
        if self._stopping is not None and self._stopping.left() is not None:
            return self.writes_on()
        return self.connector.is_busy and self._now() < self._active + self._patience

    def _preempted(self, row: _Row) -> None:
        row.preemptions = row.request.num_preemptions
        ids = row.ids
        tokens = min(row.computed(), len(ids) * self._size)
        if row.settings.preempt == "recompute" or self._is_void(row.request):
            tokens = 0
        keys = self._keys(row)
        # A full block whose hash needs the tokens behind it may have no key yet.
        tokens = min(tokens, (len(keys) + 1) * self._size - 1)
        self.connector.preempted(row.request.request_id, keys, ids, tokens)
        row.ids, row.started, row.scheduled = [], 0, 0

    def _is_void(self, request: Any) -> bool:
        """Whether the KV of a preempted request is void, as output is that was made from it.

        Beside a connector that sends, vLLM drops the output of each one that it preempts.
        """
        was_reset = not self._is_beside or self.resets.seen > self._resets_seen
        return bool(request.drop_stale_output) and was_reset

    def _victims(self, given: int) -> list[int]:
        """Returns the free blocks that vLLM gives out next, those of some steps.

        It is time to look when those of one more step are left that were looked at before: the
        first in vLLM's queue stay the first.

        Args:
            given: Blocks that vLLM gives out in a step.
        """
        victims: list[int] = []
        if self.resets.pool is None:
            return victims
        self._seen = count = min(self._ahead, 4 * given + _LOOK)
        block = self.resets.pool.free_block_queue.fake_free_list_head.next_free_block
        # The last one of the queue is no block, and nothing is behind it.
        while count and (following := block.next_free_block) is not None:
            victims.append(block.block_id)
            block, count = following, count - 1
        return victims

    def _follow(self, output: Any) -> list[int]:
        """Follows the block tables of what is scheduled; returns what is new in them."""
        written: list[int] = []
        rows, counts, size = self._rows, output.num_scheduled_tokens, self._size
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
        places: Iterable[int] = range(len(tables))
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
            if row.settings.stow == "through":
                self._stow_full(row, computed)
            row.scheduled = computed + count
        return written

    def _stow_full(self, row: _Row, computed: int) -> None:
        """Stows the blocks that have filled up since the last time."""
        full = min(computed, self._last_stowable(row)) // self._size
        if full > row.stowed:
            self.connector.stow(self._keys(row), row.ids[row.stowed : full], row.stowed)
            row.stowed = full

    def reported(self, reports: Reports | None) -> None:
        """Takes what the workers say of their copies; as vLLM's `update_connector_output`.

        Args:
            reports: What they say; None for nothing, as at each step.
        """
        now = self._now()
        if reports is not None or now >= self._looked + _PAUSE:
            self._looked = now
            outcomes = [] if reports is None else reports.outcomes
            self.connector.commit(outcomes, now=now)
            if any(outcome.good for outcome in outcomes):
                self._active = now
        if self._others.doubtful:
            self._others.settle(self._rows.values())
        if reports is not None and reports.ready:
            self._is_beside = True
            self.ready(reports.ready)
        if reports is not None:
            self._dead = withdraw_dead(self.cache, reports.dead, self._dead)
        for request, tokens in self.connector.arrived().items():
            name = str(request)
            self._arrived.add(name)
            row = self._rows.get(name)
            if row is None:
                continue
            table, row.loading = row.loading, []
            self._start(row, table)
            count_cached(row.request, row.local, tokens)
            if tokens < row.wanted:
                self.cut += 1
                rest = table[tokens // self._size : -(-row.wanted // self._size)]
                self._missing.update(rest)
                self._short += rest

    def reset(self) -> bool:
        """As vLLM's `reset_cache`: nothing that was computed so far is found again."""
        self._end_epoch()
        self.resets.heard()
        return self._is_durable

    def _look_for_reset(self) -> None:
        if self.resets.unheard():
            self._end_epoch()

    def _now(self) -> int:
        """Milliseconds since the first question."""
        clock = self.clock()
        if self._begun is None:
            self._begun = clock
        return int((clock - self._begun) * 1000)

    def writes_on(self) -> bool:
        """Whether vLLM, which is to end and has nothing to compute, must step for the disk's sake.

        Its workers, wherever they are, copy in its steps what the disk has not; in `step` each. The
        order of the disk is noted behind it, as the process may be ended before `close`.
        """
        left = None if self._stopping is None else self._stopping.left()
        if left is None or not self._run:
            return False
        if self._flush_until(left).plan():
            return True
        if not self._is_noted:
            self._is_noted = True
            self._keep_order()
        return False

    def flush(self, carry: Callable[[StepOrders], Reports | None]) -> int:
        """Writes what the host has and the disk has not, before the one worker ends.

        Args:
            carry: Has the worker begin the copies of a step; returns what has ended.

        Returns:
            How many blocks are not on the disk.
        """
        self._carry(carry)  # What has ended is stowed first.
        return self._flush_until(self._settings.flush).run(lambda: self._carry(carry))

    def _flush_until(self, left: float) -> Flush:
        """Returns the one flush of its end, which begins at the first call."""
        if self._last_flush is None:
            bound = min(left, self._settings.flush)
            self._last_flush = self.cache.flushing(until=bound, final=True, clock=self.clock)
        return self._last_flush

    def _carry(self, carry: Callable[[StepOrders], Reports | None]) -> bool:
        """Has copies carried out, without a step of vLLM; returns whether any has ended."""
        self._steps += 1
        whose = self._run, self._cleared, self._yard
        reports = carry(StepOrders(self._steps, self.connector.step(), set(), set(), *whose))
        self.reported(reports)
        return reports is not None

    def close(self) -> None:
        """Notes what should go first from the disk, for the next engine. The workers have ended."""
        self.cache.stop_recording()
        if self._run:
            left = len(self.cache.unwritten("disk"))
            if left:
                _log.warning(
                    "%d blocks are not on the disk: the next engine does not find them", left
                )
            self._keep_order()

    def _keep_order(self) -> None:
        self._notes.keep_order(self._run, self.cache.eviction_order("disk", alone=True))

    def stats(self) -> dict[str, int]:
        """The cache's numbers."""
        return self.cache.stats()
