"""The connector in the scheduler's process: vLLM's requests as those of a `Connector`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from blockyard._core import Misuse
from blockyard.connectors.connector import Connector
from blockyard.connectors.hybrid_connector import HybridConnector
from blockyard.connectors.orders import Orders
from blockyard.connectors.vllm.compatibility import Facts
from blockyard.connectors.vllm.following import Following, overwritten_blocks
from blockyard.connectors.vllm.handing_over import HandingOver
from blockyard.connectors.vllm.hybrid_following import HybridFollowing
from blockyard.connectors.vllm.messages import Ready, Reports, StepOrders
from blockyard.connectors.vllm.others import OthersLoads, comes_from_afar
from blockyard.connectors.vllm.reported import HybridReported, Reported
from blockyard.connectors.vllm.resets import Resets
from blockyard.connectors.vllm.restart import Restart
from blockyard.connectors.vllm.rows import Rows
from blockyard.connectors.vllm.settings import Settings
from blockyard.connectors.vllm.stopping import Stopping
from blockyard.connectors.vllm.tier_events import TierEvents
from blockyard.stores.lookup import StoreLookup
from blockyard.yard.cache import KVCache
from blockyard.yard.config import Config

if TYPE_CHECKING:
    from blockyard.yard.asking import Lookup

__all__ = ["SchedulerHalf"]

_TELLING: Final = 2000
"""Milliseconds for which an engine steps on to tell that its offers have ended. A pause, a sleep
and the end of vLLM wait for that."""


class SchedulerHalf:
    """Finds, fetches, keeps and offloads for vLLM's scheduler; its thread calls it.

    Args:
        known: What vLLM has.
        settings: What it does.
        configs: Sizes and policies of the cache of each group of layers, as `Facts.groups` has
            them; a tick of their deadlines is a millisecond.
        stopping: Signals the end of vLLM; None without a signal.
    """

    def __init__(
        self,
        known: Facts,
        settings: Settings,
        configs: Sequence[Config],
        *,
        stopping: Stopping | None = None,
    ) -> None:
        config = configs[0]
        caches = [KVCache(config.named()) for config in configs]
        self.cache = caches[0]
        self._settings, self._size = settings, config.block_size
        self._yard = self.cache.config.yard
        keeps = settings.keep_on_reset
        self.resets = Resets(ends=known.weights_change if keeps is None else not keeps)
        ahead = config.ahead_of("device") if settings.offload != "none" else 0
        self._rows = Rows(self.cache, settings, has_groups=known.groups is not None)
        self.connector: Connector | HybridConnector
        self._following: Following | HybridFollowing
        self._hybrid: HybridFollowing | None = None
        if known.groups is None:
            self.connector = one = Connector(self.cache, again=known.again)
            self._following = Following(self._rows, one, self.resets, ahead)
            self._reported = Reported(self._rows, one, config)
        else:
            self.connector = several = HybridConnector(caches, known.groups, again=known.again)
            self._hybrid = HybridFollowing(self._rows, several, self.resets, ahead)
            self._following = self._hybrid
            self._reported = HybridReported(self._rows, several, config)
        self._restart = Restart(known, caches, settings.flush, self._clock, stopping)
        self._others = OthersLoads(config.block_size)
        self.is_early = True
        """Whether vLLM zeroes and copies blocks before it calls the connector, as its V2 runner."""
        self._is_heard = False
        """Whether the workers have reported that they are ready."""
        self._waits_for_workers = settings.disk_path is not None or settings.remote is not None
        self._asker: StoreLookup | None = None
        self.handing: HandingOver | None = None
        """What hands KV over; None where the operator asks for neither side."""
        if settings.hands_over:
            assert isinstance(self.connector, Connector)  # noqa: S101 - `check_role` has said so
            self._waits_for_workers = True
            longest = self._reported.patience / 1000
            self.handing = HandingOver(
                settings, self.cache, self.connector, longest=longest, clock=self._seconds
            )
        self._steps = 0
        self._is_durable = True

    def ready(self, workers: Iterable[Ready]) -> None:
        """Notes that all workers are ready, as `Restart.ready`."""
        self._is_heard = True
        workers = list(workers)
        self._restart.ready(workers)
        self._ask_stores(workers)

    def _ask_stores(self, workers: list[Ready]) -> None:
        """Begins to ask shared stores, at the addresses that the workers have.

        A model may write into its configuration as it is loaded: they know whose values are theirs.

        Raises:
            Misuse: Ranks have values of different identities.
        """
        named = {worker.places for worker in workers}
        if len(named) > 1:
            raise Misuse(
                "the ranks have different identities of what they put into stores: model, block "
                "size and options must be the same in all processes of the engine"
            )
        places = max(named, default=())
        lookup: Lookup | None = None
        if places and self._asker is None:
            lookup = self._asker = StoreLookup(
                self._settings.stores(), places, self.cache.config.ranks, clock=self._seconds
            )
        if self.handing is not None and workers:
            lookup = self.handing.ready(workers, lookup)
        if lookup is not None:
            self.connector.asking.start(lookup)

    def _clock(self) -> Callable[[], float]:
        return self._reported.clock

    def _seconds(self) -> float:
        return self._reported.clock()

    @property
    def restored(self) -> int:
        """Blocks that all disks had from before."""
        return self._restart.restored

    @property
    def cut(self) -> int:
        """Loads that have brought less than was matched."""
        return self._reported.cut

    @property
    def clock(self) -> Callable[[], float]:
        """Seconds, for deadlines."""
        return self._reported.clock

    @clock.setter
    def clock(self, clock: Callable[[], float]) -> None:
        self._reported.clock = clock

    # -- a request -----------------------------------------------------------------------

    def added(self, request: Any) -> None:
        """As vLLM's `on_new_request`: hashes its keys."""
        row = self._rows.of(request)
        self._rows.hash(row)
        # What a store has is known when it is to be admitted, at best.
        asks = self.connector.asking.is_on and row.settings.load
        if self.handing is not None:
            self.handing.added(row)
        self.connector.added(request.request_id, self._rows.keys(row) if asks else None)

    def matched(self, request: Any, computed: int) -> tuple[int | None, bool]:
        """As vLLM's `get_num_new_matched_tokens`."""
        if self._waits_for_workers and not self._is_heard:
            # The workers say with their first step what is on the disk, or where in a store.
            return None, False
        self._look_for_reset()
        row = self._rows.of(request)
        if request.num_preemptions > row.preemptions:
            # A reset has preempted it, and it comes back before the step that would say so.
            self._following.preempted(row)
        keys = self._rows.keys(row)
        local = min(computed // self._size, len(keys))
        # What another connector brings whole is not waited for here, nor found.
        is_brought = self._following.is_beside and comes_from_afar(request)
        prefix = row.settings.load and not is_brought
        tokens = self.connector.matched(request.request_id, keys, local, prefix=prefix)
        if tokens is None:
            return None, False
        # What is kept may be more than vLLM asks for; never more than it has.
        tokens = min(tokens, int(request.num_tokens) - computed)
        row.local, row.told = computed, tokens
        if self._hybrid is not None:
            self._hybrid.ask(row)
        return tokens, tokens > 0

    def allocated(self, request: Any, tables: Sequence[list[int]], external: int) -> None:
        """As vLLM's `update_state_after_alloc`, with a table for each group."""
        row = self._rows.of(request)
        if not external:
            if not row.loading:
                self._following.begin(row, tables)
                self._others.admit(row)
                self.connector.allocated(request.request_id)
            return
        row.wanted = row.local + external
        if not self._following.load(row, tables, external):
            self._reported.fail(row)

    def finished(self, request: Any, tables: Sequence[list[int]]) -> dict[str, Any] | None:
        """As vLLM's `request_finished_all_groups`: its blocks may be given to others at once.

        Where its load still writes to them, vLLM keeps them until the load is said to have ended.

        Returns:
            What vLLM adds to its answer: where a decode engine finds its KV; None for nothing.
        """
        row = self._rows.by_name.pop(request.request_id, None)
        if row is None:
            return None
        self._reported.active = self._reported.now()
        # A session may have got tokens since that were never scheduled.
        full = min(row.offloadable(), int(request.num_computed_tokens)) // self._size
        offloads = full and not row.loading and row.settings.offload != "none"
        keys = self._rows.keys(row) if offloads else None
        hints = row.settings.hints.keywords
        prompt = int(request.num_prompt_tokens)
        answer = int(request.num_tokens) - prompt
        writes = self._following.finished(
            row, keys, tables, full, prompt=prompt, answer=answer, **hints
        )
        if row.loading and not writes:
            self._reported.arrived.add(request.request_id)
        handing = self.handing
        if handing is None or not keys or not handing.wants(request):
            return None
        return handing.promise(self._rows.first(row, full))

    def listen(self) -> None:
        """Has what is below told: vLLM publishes events, and tells of its own blocks itself."""
        self._rows.listen(TierEvents(self.cache))

    def take_events(self) -> Iterator[bytes]:
        """Returns what has happened below since the last call, batches in vLLM's form."""
        events = self._rows.tier_events
        return iter(()) if events is None else events.take(again=self.resets.published())

    # -- a step --------------------------------------------------------------------------

    def step(self, output: Any) -> StepOrders:
        """As vLLM's `build_connector_meta`."""
        # What seldom happens is asked for here: each call that finds nothing to do costs as much
        # as following a row, since vLLM's own work has taken the CPU's caches meanwhile.
        if self.resets.unheard():
            self._end_epoch()
        # Where nothing is computed and nobody reports, vLLM brings no report at all.
        if self._others.doubtful:
            self.settle()
        self._reported.take(None)
        reported = self._reported
        if self.handing is not None:
            self.handing.look()
        if output.preempted_req_ids:
            self._take_preempted(output.preempted_req_ids)
        written = self._following.follow(output)
        lent: list[int] = []
        if self._others.admitted:
            lent = self._others.lent_blocks(output.num_scheduled_tokens)
            written += lent
        if output.total_num_scheduled_tokens:
            reported.active = reported.looked
        self._steps += 1
        incomplete, reported.incomplete = reported.incomplete, []
        arrived, reported.arrived = reported.arrived, set()
        missing, reported.missing = reported.missing, set()
        victims: list[int] = []
        if written and self._following.ahead:
            victims = self._following.victims(len(written))
        overwritten: list[int] = []
        if output.new_block_ids_to_zero or output.kv_cache_block_copies:
            early = overwritten_blocks(output)
            overwritten = early if self.is_early else []
            written += early
        orders = self.connector.step(written + incomplete, victims, overwritten, lent)
        self._following.resets_seen = self.resets.seen
        if self._hybrid is not None:
            self._hybrid.offload_passed()
        return self._orders(orders, arrived, missing)

    def _take_preempted(self, names: Iterable[str]) -> None:
        """Keeps what requests have computed that have left their blocks."""
        for name in names:
            row = self._rows.by_name.get(name)
            if row is not None and row.request.num_preemptions > row.preemptions:
                self._following.preempted(row)

    def _orders(self, orders: Orders, arrived: set[str], missing: set[int]) -> StepOrders:
        run, cleared = self._restart.run, self._restart.cleared
        made = StepOrders(self._steps, orders, arrived, missing, run, cleared, self._yard)
        if self.handing is not None:
            made.offers = self.handing.events()
        if self._reported.failed:
            made.failed, self._reported.failed = self._reported.failed, set()
        return made

    def reported(self, reports: Reports | None) -> None:
        """Commits the workers' reports on copies; vLLM's `update_connector_output`."""
        self.settle()
        if reports is not None and reports.ready:
            self._following.is_beside = True
            self.ready(reports.ready)
        self._reported.take(reports)
        if self.handing is not None:
            self.handing.look()

    def settle(self) -> None:
        """Hears that a step has ended: what another connector brought in it may be there.

        A row that is preempted before this is heard is kept to what it had when it began.
        """
        if self._others.doubtful:
            self._others.settle(self._rows.by_name.values())

    def is_busy(self) -> bool:
        """Whether an idle engine continues to step; vLLM's `has_pending_push_work`.

        It does while copies are in the air or due, so that the last answers before a quiet hour
        reach the disk. Where nothing comes of them, as with a disk that hangs or fails, the engine
        sleeps after the deadline. Once vLLM is to end, `writes_on` says it. It steps for a while
        where an offer is held, too, as metrics come with steps, and others end it.
        """
        if self._restart.is_ending:
            return self.writes_on()
        if self.connector.is_busy:
            return self._reported.is_patient()
        ended = self._reported.active
        return (
            self.handing is not None
            and self._reported.now() < ended + _TELLING
            and self.handing.has_held()
        )

    def reset(self) -> bool:
        """As vLLM's `reset_cache`: nothing that was computed so far is found again."""
        self._end_epoch()
        self.resets.heard()
        return self._is_durable

    def _look_for_reset(self) -> None:
        if self.resets.unheard():
            self._end_epoch()

    def _end_epoch(self) -> None:
        """Ends an epoch; blocks that vLLM holds now do not enter the next."""
        for row in self._rows.by_name.values():
            if row.request.num_preemptions > row.preemptions:
                # It has left its blocks, and comes back with nothing.
                self._following.preempted(row)
            elif row.ids or row.loading:
                row.settings = row.settings.as_nothing()
        self.connector.clear()
        # The next weights may be others under the same name: the workers leave stores alone, too.
        self.connector.asking.stop()
        if self.handing is not None:
            self.handing.clear()
        self._is_durable = self._restart.clear()

    # -- its end -------------------------------------------------------------------------

    def writes_on(self) -> bool:
        """Whether vLLM, which is to end, must step for the disk's sake: `Restart.writes_on`."""
        return self._restart.writes_on()

    def flush(self, carry: Callable[[StepOrders], Reports | None]) -> int:
        """Writes what the host has and the disk has not, before the one worker ends.

        Args:
            carry: Has the worker begin the copies of a step; returns what has ended.

        Returns:
            How many blocks are not on the disk.
        """
        self._carry(carry)  # What has ended is offloaded first.
        return self._restart.flush(self._settings.flush).run(lambda: self._carry(carry))

    def _carry(self, carry: Callable[[StepOrders], Reports | None]) -> bool:
        """Has copies carried out, without a step of vLLM; returns whether any has ended."""
        self._steps += 1
        reports = carry(self._orders(self.connector.step(), set(), set()))
        self.reported(reports)
        return reports is not None

    def close(self) -> None:
        """Notes what should go first from the disk, for the next engine. The workers have ended."""
        self._restart.close()
        if self.handing is not None:
            self.handing.close()
        if self._asker is not None:
            self._asker.close()

    def stats(self) -> dict[str, int]:
        """The cache's numbers."""
        return self.cache.stats()
