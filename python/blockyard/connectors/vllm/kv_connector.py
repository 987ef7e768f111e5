"""The class that vLLM makes, once for its scheduler and once beside each model: two thin halves."""

import sys
from collections.abc import Iterable
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from blockyard._typing import override
from blockyard.connectors.vllm import stopping
from blockyard.connectors.vllm.compatibility import facts, recompute_on_failure
from blockyard.connectors.vllm.hybrid_manager import states_left_out, switched_off
from blockyard.connectors.vllm.messages import Ready, Reports, StepOrders
from blockyard.connectors.vllm.metrics import Figures, Metrics, Reporter
from blockyard.connectors.vllm.roles import load_late
from blockyard.connectors.vllm.scheduler_half import SchedulerHalf
from blockyard.connectors.vllm.settings import Settings
from blockyard.connectors.vllm.vllm_api import (
    INTERFACE,
    KVConnectorBase_V1,
    KVConnectorRole,
    SupportsHMA,
)
from blockyard.connectors.vllm.worker_half import WorkerHalf
from blockyard.shared.log import Limited, described, join
from blockyard.shared.owner import is_foreign

__all__ = ["Blockyard"]

_FRONTS: WeakValueDictionary[int | None, SchedulerHalf] = WeakValueDictionary()
"""The schedulers' halves of this process whose one worker may be here, too, by their yards."""
_log = Limited(__name__, 0)


class Blockyard(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """vLLM's connector: KV that leaves the GPU is kept below, and comes back.

    Raises:
        Misuse: An option is unknown, or must be another one.
        Unsupported: vLLM's interface is another one than was tested, or what vLLM shall do cannot
            be served.
        TooLarge: The memory below holds no request of full length.
    """

    def __init__(
        self, vllm_config: Any, role: Any = None, kv_cache_config: Any = None, *more: Any
    ) -> None:
        # Where a module path was given, `register` may have been left out.
        join("vllm")
        transfer = getattr(vllm_config, "kv_transfer_config", None)
        extra = getattr(transfer, "kv_connector_extra_config", {})
        INTERFACE.check(untested=Settings.of_extra(extra)[0].untested)
        super().__init__(vllm_config, role, kv_cache_config, *more)
        around = INTERFACE.get("get_current_vllm_config_or_none")()
        known = facts(vllm_config, kv_cache_config, version=INTERFACE.version, around=around)
        settings, configs = Settings.read(extra, known)
        self._front: SchedulerHalf | None = None
        self._back: WorkerHalf | None = None
        if role is KVConnectorRole.SCHEDULER:
            recompute_on_failure(transfer)
            load_late(transfer)
            lasts = settings.disk_path is not None and settings.flush > 0
            end = stopping.Stopping(vllm_config.shutdown_timeout) if lasts else None
            self._front = SchedulerHalf(known, settings, configs, stopping=end)
            self._front.is_early = bool(vllm_config.use_v2_model_runner)
            if settings.disk_path is not None and configs[0].ranks == 1:
                _FRONTS[self._front.cache.config.yard] = self._front
            ending = stopping.said(vllm_config.shutdown_timeout) if lasts else ""
            costs = [switched_off(vllm_config, known.beside)]
            if known.groups is not None and known.groups.has_states:
                costs.append(states_left_out(vllm_config, known.groups.boundary))
            for said in filter(None, costs):
                _log.warning("%s", said)
            _log.info("%s%s%s", settings.said(configs, known.groups), known.replica.said(), ending)
            handing = self._front.handing
            self._reporter = Reporter(
                *(self._front.cache, self._front.connector),
                events=self._listens(vllm_config),
                more=() if handing is None else handing.sources(),
            )
        else:
            self._back = WorkerHalf(known, settings, configs)

    def _listens(self, vllm_config: Any) -> bool:
        """Enables events if vLLM publishes them; returns whether it does."""
        said = vllm_config.kv_events_config
        if said is None or not said.enable_kv_cache_events:
            return False
        if not INTERFACE.get("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"):
            _log.warning(
                "host and disk events are not published: they need integer block hashes, "
                "and VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0 selects bytes"
            )
            return False
        # vLLM's own types: the bytes are those of its publisher.
        self._decode = msgspec.msgpack.Decoder(INTERFACE.get("KVEventBatch")).decode
        self.front.listen()
        return True

    @property
    def front(self) -> SchedulerHalf:
        """The scheduler's half."""
        assert self._front is not None, "this is a worker"  # noqa: S101 - vLLM keeps the roles apart
        return self._front

    @property
    def back(self) -> WorkerHalf:
        """The worker's half."""
        assert self._back is not None, "this is the scheduler"  # noqa: S101 - as above
        return self._back

    @property
    @override
    def requires_kv_delivery(self) -> bool:
        """No: what is not offloaded is computed again."""
        return False

    @classmethod
    @override
    def supports_sleep_mode(cls, kv_transfer_config: Any) -> bool:
        """Yes: no copy runs while it sleeps, and its reset clears the lower tiers."""
        return True

    @classmethod
    @override
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any], *_: Any) -> bool:
        """No; but here vLLM shows the operator's words before it loads the weights.

        Raises:
            Misuse: A key is unknown, is set by vLLM, or has a wrong value.
            Unsupported: vLLM's interface is another one than was tested.
        """
        settings, _left = Settings.of_extra(extra_config)
        INTERFACE.check(untested=settings.untested)
        return False

    # -- in the scheduler's process ------------------------------------------------------

    @override
    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """Takes vLLM's block pool."""
        self.front.resets.pool = gpu_block_pool

    @override
    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], Any]) -> None:
        """Hears that all workers have their memory; what another connector's say is its own."""
        own = [one for one in metadata.values() if isinstance(one, Ready)]
        if own:
            self.front.ready(own)

    @override
    def on_new_request(self, request: Any) -> None:
        """Makes the keys of a request, so that no lookup waits for them."""
        self.front.added(request)

    @override
    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Returns how many tokens can be loaded; None while they are in flight."""
        return self.front.matched(request, num_computed_tokens)

    @override
    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Begins a request, or its load."""
        self.front.allocated(request, blocks.get_block_ids(), num_external_tokens)

    @override
    def build_connector_meta(self, scheduler_output: Any) -> StepOrders:
        """Gives the workers' orders for a step."""
        orders = self.front.step(scheduler_output)
        orders.tells = self._reporter.is_time()
        return orders

    @override
    def update_connector_output(self, connector_output: Any) -> None:
        """Takes what the workers have reported."""
        said = connector_output.kv_connector_worker_meta
        if isinstance(said, Reports):
            self.front.reported(said)
        else:
            self.front.settle()

    @override
    def has_pending_push_work(self) -> bool:
        """Keeps an idle engine stepping while copies are in the air, or due.

        One that is to end steps on until the disk has what was published. Before an engine sleeps
        it takes a step in which the last numbers are told.
        """
        return self.front.is_busy() or self._reporter.has_news()

    @override
    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Offloads what has ended; its blocks may be given to others at once."""
        return self.request_finished_all_groups(request, (block_ids,))

    @override
    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """As `request_finished`, with a table of each group of layers."""
        return False, self.front.finished(request, block_ids)

    @override
    def take_events(self) -> Iterable[Any]:
        """Yields events of the host and the disk for vLLM's publisher."""
        for payload in self.front.take_events():
            yield from self._decode(payload).events

    @override
    def reset_cache(self) -> bool:
        """Ends the epoch: nothing of before is found again."""
        return self.front.reset()

    @override
    def get_kv_connector_stats(self) -> Figures | None:
        """Reports what the cache, or a worker's disk, has counted, in steps where it is time."""
        return self.back.numbers() if self._front is None else self._reporter.report_if_due()

    @classmethod
    @override
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Figures:
        """Makes a report of what came over a process boundary."""
        return Figures(data or {})

    @classmethod
    @override
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> Metrics:
        """Registers the metrics."""
        return Metrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    # -- beside the model ----------------------------------------------------------------

    @override
    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Takes vLLM's tensors."""
        self.back.register(kv_caches)

    @override
    def unregister_kv_caches(self) -> None:
        """Ends all copies, before vLLM takes the memory of its tensors away for a sleep."""
        self.back.suspend()

    @override
    def restore_kv_caches(self) -> None:
        """Copies again, as the memory is there."""
        self.back.resume()

    @override
    def get_handshake_metadata(self) -> Any:
        """Says that this worker has its memory; inside another connector its first report does."""
        return None if self.back.is_inside else self.back.ready()

    @override
    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        """Begins a step's copies down, before anything is written in it."""
        self.back.begin(kv_connector_metadata)

    @override
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Begins a step's loads."""
        self.back.load(self._get_connector_metadata())

    @override
    def wait_for_layer_load(self, layer_name: str) -> None:
        """Does nothing: a loading request computes no layer."""

    @override
    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Does nothing: blocks are offloaded whole."""

    @override
    def wait_for_save(self) -> None:
        """Does nothing: the sources of a copy have a fence."""

    @override
    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        """Names the requests whose loads have ended, and those of them whose loads have failed."""
        arrived, failed = self.back.arrived()
        return INTERFACE.get("KVConnectorTransferResults")(
            finished_recving=arrived, failed_recving=failed
        )

    @override
    def get_block_ids_with_load_errors(self) -> set[int]:
        """Names the blocks of those that have not come."""
        return self.back.missing()

    @override
    def build_connector_worker_meta(self) -> Reports | None:
        """Reports the copies of this rank that have ended."""
        return self.back.reports()

    @override
    def shutdown(self) -> None:
        """Ends all copies; the scheduler's half notes what should go first from the disk.

        What `has_pending_push_work` has not had written is, where both halves are in one process,
        as with one GPU, unless an error has ended the engine.
        """
        if self._back is not None:
            try:
                front = _FRONTS.get(self._back.yard)
                if front is not None and not isinstance(sys.exception(), Exception):
                    front.flush(self._back.carry)
            except Exception as error:
                if is_foreign(error):
                    raise
                _log.warning("some blocks were not written to the disk: %s", described(error))
            finally:
                self._back.close()
        if self._front is not None:
            self._front.close()
