"""Both halves of the connector for vLLM, and the calls of its scheduler and model runner."""

import tempfile
import time
from collections.abc import Iterator
from enum import Enum
from functools import cached_property, reduce
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import numpy as np
import pytest

import blockyard as by
from blockyard.connectors.vllm import Blockyard, worker_half
from blockyard.connectors.vllm.compatibility import facts
from blockyard.connectors.vllm.identity import Root
from blockyard.connectors.vllm.settings import Settings
from blockyard.crane.copiers.threads import ThreadCopier
from vllm_stub import Recorded, fields_of, spec

SIZE, BLOCKS, LAYERS, PAGE = 4, 32, 2, 64


class Tensor(np.ndarray):
    """A tensor of a layer."""

    is_cuda = False


@pytest.fixture(autouse=True)
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_half, "_as_bytes", lambda tensor, _page: tensor)


def vllm_config(**changes: Any) -> Any:
    fields: dict[str, Any] = {
        "kv_load_failure_policy": "recompute",
        "kv_connector": "Blockyard",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"host": 64},
        "prefix_cache_retention_interval": 0,
        "prefix_caching_hash_algo": "sha256",
        "cache_dtype": "auto",
        "model": "a model",
        "revision": None,
        "quantization": None,
        "dtype": "float32",
        "max_model_len": 64,
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "decode_context_parallel_size": 1,
        "prefill_context_parallel_size": 1,
        "nnodes": 1,
        "rank": 0,
        "data_parallel_index": 0,
        "data_parallel_size": 1,
        "data_parallel_size_local": 1,
        "engine_id": f"an engine {uuid4()}",
        "enable_sleep_mode": False,
        "disable_hybrid_kv_cache_manager": False,
        "is_hybrid": False,
        "hf_text_config": None,
        "worker_extension_cls": "",
    } | changes

    def part(kind: str) -> Any:
        own = fields_of(kind)
        return Recorded(kind, **{name: fields[name] for name in fields if name in own})

    class Load:
        load_format = changes.get("load_format", "auto")

    model = part("ModelConfig")
    vars(model)["get_total_num_hidden_layers"] = lambda: 2 * LAYERS
    return Recorded(
        "VllmConfig",
        kv_transfer_config=part("KVTransferConfig"),
        cache_config=part("CacheConfig"),
        model_config=model,
        parallel_config=part("ParallelConfig"),
        scheduler_config=part("SchedulerConfig"),
        load_config=Load(),
        speculative_config=changes.get("speculative_config"),
        weight_transfer_config=changes.get("weight_transfer_config"),
        kv_events_config=changes.get("kv_events_config"),
        shutdown_timeout=changes.get("shutdown_timeout", 0),
        use_v2_model_runner=changes.get("use_v2_model_runner", True),
    )


def kv_config(kind: str = "FullAttentionSpec", groups: int = 1, **more: Any) -> Any:
    page = spec(kind, block_size=SIZE, page_size_bytes=PAGE, dtype="torch.float32")
    names = [f"layer {at}" for at in range(LAYERS)]
    group = Recorded("KVCacheGroupSpec", layer_names=names, kv_cache_spec=page)
    given = {"hash_block_size": SIZE, "kv_tp_replicas": 1, "kv_cache_layout": "NHD"} | more
    return Recorded("KVCacheConfig", num_blocks=BLOCKS, kv_cache_groups=[group] * groups, **given)


class Ended(Enum):
    """`RequestStatus`, as far as it is asked for."""

    FINISHED_STOPPED = 1
    FINISHED_ABORTED = 2


class Blocks:
    """`KVCacheBlocks`."""

    def __init__(self, ids: Any) -> None:
        self.tables = tables_of(ids)

    def get_block_ids(self) -> tuple[list[int], ...]:
        return self.tables


def tables_of(ids: Any) -> tuple[list[int], ...]:
    """A table for each group; a list is that of one group."""
    return ids if isinstance(ids, tuple) else (ids,)


class Front:
    """Both halves, and the calls of a scheduler and of a model runner."""

    @cached_property
    def told(self) -> list[dict[str, Any]]:
        """What has come to vLLM's metrics, a report for each step with one."""
        return []

    def __init__(
        self,
        copier: Any = None,
        *,
        changes: dict[str, Any] | None = None,
        of: Any = None,
        **extra: Any,
    ) -> None:
        roles = Blockyard.__init__.__globals__["KVConnectorRole"]
        extra = {"host": 64} | extra
        config = vllm_config(kv_connector_extra_config=extra, **(changes or {}))
        groups = of or kv_config()
        self.scheduler = Blockyard(config, roles.SCHEDULER, groups)
        self.worker = Blockyard(config, roles.WORKER, groups)
        self.worker.back.copier = copier or ThreadCopier(workers=0)
        # As in vLLM, all groups lie in one pool of pages.
        pages = [np.zeros((BLOCKS, PAGE), np.uint8).view(Tensor) for _ in range(LAYERS)]
        self.kv = {
            name: tensor
            for group in groups.kv_cache_groups
            for name, tensor in zip(group.layer_names, pages, strict=True)
        }
        self.worker.register_kv_caches(self.kv)

    def request(self, name: str, tokens: list[int], **more: Any) -> Any:
        ends = range(SIZE, len(tokens) + 1, SIZE)
        hashes = [sha256(str(tokens[:end]).encode()).digest() for end in ends]
        fields = {
            "request_id": name,
            "num_tokens": len(tokens),
            "num_prompt_tokens": len(tokens),
            "num_preemptions": 0,
            "prefill_stats": None,
            "drop_stale_output": False,
            "block_hashes": hashes,
            "lora_request": None,
            "cache_salt": None,
            "kv_transfer_params": None,
            "skip_reading_prefix_cache": False,
            "all_token_ids": tokens,
            "mm_features": [],
            "prompt_embeds": None,
            "resumable": False,
            # As far as it was scheduled: most of these tests stop at its end.
            "num_computed_tokens": 1 << 20,
            "num_in_flight_tokens": 0,
            "shared_prefix_boundary": 0,
            "status": Ended.FINISHED_STOPPED,
        }
        return Recorded("Request", **(fields | more))

    def begin(self, request: Any, ids: Any, local: int = 0) -> int | None:
        """Admits a request as vLLM does; returns the tokens that come up."""
        tokens, asynchronous = self.scheduler.get_num_new_matched_tokens(request, local)
        assert asynchronous == bool(tokens)
        if tokens is not None:
            # It has none before.
            after, request.num_computed_tokens = request.num_computed_tokens, 0
            self.scheduler.update_state_after_alloc(request, Blocks(ids), tokens)
            request.num_computed_tokens = after
        return tokens

    @staticmethod
    def output(
        new: dict[Any, tuple[Any, int]],
        computed: int = 0,
        preempted: set[str] = frozenset(),  # type: ignore[assignment]
        zeroed: list[int] | None = None,
        more: dict[Any, tuple[Any, int, int]] | None = None,
    ) -> Any:
        """What vLLM's scheduler has decided; `computed` is of the rows that begin."""
        rows = [
            Recorded(
                "NewRequestData",
                req_id=one.request_id,
                block_ids=tables_of(ids),
                num_computed_tokens=computed,
            )
            for one, (ids, _) in new.items()
        ]
        counts = {one.request_id: count for one, (_, count) in new.items()}
        going = {one.request_id: told for one, told in (more or {}).items()}
        counts |= {name: told[2] for name, told in going.items()}
        cached = Recorded(
            "CachedRequestData",
            req_ids=list(going),
            new_block_ids=[ids if ids is None else tables_of(ids) for ids, _, _ in going.values()],
            resumed_req_ids=set(),
            num_computed_tokens=[told[1] for told in going.values()],
        )
        return Recorded(
            "SchedulerOutput",
            scheduled_new_reqs=rows,
            scheduled_cached_reqs=cached,
            num_scheduled_tokens=counts,
            total_num_scheduled_tokens=sum(counts.values()),
            preempted_req_ids=set(preempted),
            new_block_ids_to_zero=zeroed,
            kv_cache_block_copies=None,
            kv_connector_block_state=None,
        )

    def step(
        self,
        new: dict[Any, tuple[Any, int]] | None = None,
        preempted: set[str] = frozenset(),  # type: ignore[assignment]
        zeroed: list[int] | None = None,
        write: dict[int, int] | None = None,
        more: dict[Any, tuple[Any, int, int]] | None = None,
        computed: int = 0,
    ) -> Any:
        """A step: rows that begin with blocks and a number of tokens, and what is written.

        Rows that go on come as `more`: new blocks, tokens that are computed, and how many are next.
        Those that begin have `computed` tokens.
        """
        return self.run(self.output(new or {}, computed, preempted, zeroed, more or {}), write)

    def run(self, output: Any, write: dict[int, int] | None = None) -> Any:
        """Runs what the scheduler has decided, as vLLM and its model runner do."""
        self.meta = meta = self.scheduler.build_connector_meta(output)
        worker = self.worker
        worker.handle_preemptions(meta)
        worker.bind_connector_metadata(meta)
        for block, value in (write or {}).items():
            for tensor in self.kv.values():
                tensor[block] = value
        worker.start_load_kv(None)
        worker.wait_for_save()
        ended = worker.get_transfer_results(set())
        missing = worker.get_block_ids_with_load_errors()
        reports = worker.build_connector_worker_meta()
        said = Recorded("KVConnectorOutput", kv_connector_worker_meta=reports)
        # What vLLM acts on itself.
        vars(said).update(
            finished_recving=ended.finished_recving,
            failed_recving=ended.failed_recving,
            invalid_block_ids=missing,
        )
        self.scheduler.update_connector_output(said)
        self._tell(worker.get_kv_connector_stats(), self.scheduler.get_kv_connector_stats())
        assert self.scheduler.front.cache.audit() is None
        return said

    def _tell(self, *reports: Any) -> None:
        """Joins the reports of a step, as vLLM does, and sends them as it does."""
        made = [one for one in reports if one is not None and not one.is_empty()]
        if made:
            data = reduce(lambda joined, one: joined.aggregate(one), made).data
            self.told.append(msgspec.msgpack.decode(msgspec.msgpack.encode(data)))

    def until(self, name: str) -> set[int]:
        """Steps until the load of a request is said to have ended; returns what is missing."""
        until, steps = time.monotonic() + 20, 0
        while steps < 20 or time.monotonic() < until:
            said, steps = self.step(), steps + 1
            if name in said.finished_recving:
                return set(said.invalid_block_ids)
        raise AssertionError(f"it does not end in {steps} steps")

    def held(self) -> list[int]:
        stats = self.scheduler.front.cache.stats()
        return [stats[name] for name in ("parked", "flights", "host_pinned")]


@pytest.fixture
def front() -> Iterator[Front]:
    made = Front()
    yield made
    made.worker.shutdown()


class Pool:
    """vLLM's block pool: a reset gives it another table; and its free blocks, the next first."""

    def __init__(self, *free: int) -> None:
        self.reset()
        blocks = [self.block(at, b"hash" if at % 2 else None) for at in (0, *free, 0)]
        for one, following in pairwise(blocks):
            one.next_free_block = following
        self.free_block_queue = Recorded("FreeKVCacheBlockQueue", fake_free_list_head=blocks[0])

    def reset(self) -> None:
        self.cached_block_hash_to_block = object()

    @staticmethod
    def block(number: int, hashed: bytes | None) -> Any:
        return Recorded("KVCacheBlock", block_id=number, block_hash=hashed, next_free_block=None)


def ended(front: Front, name: str, tokens: list[int], ids: list[int], **more: Any) -> Any:
    """Runs a request to its end."""
    one = front.request(name, tokens, **more)
    assert front.begin(one, ids) == 0
    front.step({one: (ids, len(tokens))})
    one.num_tokens += 1
    front.scheduler.request_finished(one, ids)
    return one


def idle(front: Front, most: int = 5000) -> int:
    """Steps as vLLM's loop does while nothing runs; returns how often until it sleeps."""
    for steps in range(most):
        if not front.scheduler.has_pending_push_work():
            return steps
        front.step()
        # As vLLM's loop.
        time.sleep(1e-3)
    raise AssertionError("it does not sleep")


HASH = sha256(b"a block").digest()


FOLDERS = Path(tempfile.mkdtemp())


def adapter(
    name: str = "X",
    path: str | None = None,
    number: int = 1,
    *,
    again: bool = False,
    weights: bytes = b"weights",
) -> Any:
    if path is None or not Path(path).is_absolute():
        folder = FOLDERS / (path or "x")
        folder.mkdir(exist_ok=True)
        file = folder / "adapter_model.bin"
        if not file.exists():
            file.write_bytes(weights)
        path = str(folder)
    return Recorded(
        "LoRARequest", lora_name=name, lora_path=path, lora_int_id=number, load_inplace=again
    )


def root_of() -> Root:
    return Root([])


class Drafts:
    """A draft model."""

    model = "a draft model"
    draft_model_config: Any = None

    def __init__(self, *, ahead: bool = False) -> None:
        self.use_eagle_block_drop = lambda: ahead


def read(extra: dict[str, Any], longest: int = 64) -> tuple[Settings, by.Config]:
    known = facts(vllm_config(), kv_config(), version="0.33.0")
    settings, (config,) = Settings.read(extra, known._replace(blocks=BLOCKS, longest=longest))
    return settings, config
