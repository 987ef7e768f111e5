"""The connector for vLLM, against what is recorded of vLLM 0.33. E1 E2 E4 E5 E6"""

import inspect
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, TypeAlias
from uuid import uuid4

import numpy as np
import pytest

import blockyard as by
from blockyard._typing import override
from blockyard.crane.copiers import Receipt
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.engines.connector import Connector
from blockyard.engines.vllm import Blockyard, messages, worker_half
from blockyard.engines.vllm.engine_facts import facts
from blockyard.engines.vllm.identity import Root, namespace_of
from blockyard.engines.vllm.metrics import Figures, Metrics
from blockyard.engines.vllm.settings import OWN, Settings
from blockyard.testing import Script, ScriptedCopier, delay, deliver, fail, hang
from vllm_stub import RECORD, Recorded, spec

SIZE, BLOCKS, LAYERS, PAGE = 4, 32, 2, 64


class Tensor(np.ndarray):
    """A tensor of a layer."""

    is_cuda = False


@pytest.fixture(autouse=True)
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_half, "_as_bytes", lambda tensor: tensor)


def vllm_config(**changes: Any) -> Any:
    fields: dict[str, Any] = {
        "kv_load_failure_policy": "recompute",
        "kv_connector": "Blockyard",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"host": 64},
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
        "engine_id": f"an engine {uuid4()}",
        "enable_sleep_mode": False,
        "worker_extension_cls": "",
    } | changes

    def part(kind: str) -> Any:
        own = RECORD["fields"][kind]
        return Recorded(kind, **{name: fields[name] for name in fields if name in own})

    class Load:
        load_format = "auto"

    model = part("ModelConfig")
    vars(model)["get_total_num_hidden_layers"] = lambda: 2 * LAYERS
    return Recorded(
        "VllmConfig",
        kv_transfer_config=part("KVTransferConfig"),
        cache_config=part("CacheConfig"),
        model_config=model,
        parallel_config=part("ParallelConfig"),
        load_config=Load(),
        speculative_config=changes.get("speculative_config"),
        weight_transfer_config=changes.get("weight_transfer_config"),
    )


def kv_config(kind: str = "FullAttentionSpec", groups: int = 1, **more: Any) -> Any:
    page = spec(kind, block_size=SIZE, page_size_bytes=PAGE, dtype="torch.float32")
    names = [f"layer {at}" for at in range(LAYERS)]
    group = Recorded("KVCacheGroupSpec", layer_names=names, kv_cache_spec=page)
    given = {"hash_block_size": SIZE, "kv_tp_replicas": 1, "kv_cache_layout": "NHD"} | more
    return Recorded("KVCacheConfig", num_blocks=BLOCKS, kv_cache_groups=[group] * groups, **given)


class Blocks:
    """`KVCacheBlocks`."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids

    def get_block_ids(self) -> tuple[list[int], ...]:
        return (self.ids,)


class Front:
    """Both halves, and the calls of a scheduler and of a model runner."""

    def __init__(
        self, copier: Any = None, *, changes: dict[str, Any] | None = None, **extra: Any
    ) -> None:
        roles = Blockyard.__init__.__globals__["KVConnectorRole"]
        extra = {"host": 64} | extra
        config = vllm_config(kv_connector_extra_config=extra, **(changes or {}))
        self.scheduler = Blockyard(config, roles.SCHEDULER, kv_config())
        self.worker = Blockyard(config, roles.WORKER, kv_config())
        self.worker.back.copier = copier or ThreadCopier(workers=0)
        self.kv = {
            f"layer {at}": np.zeros((BLOCKS, PAGE), np.uint8).view(Tensor) for at in range(LAYERS)
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
            "drop_stale_output": False,
            "block_hashes": hashes,
            "lora_request": None,
            "cache_salt": None,
            "kv_transfer_params": None,
            "skip_reading_prefix_cache": False,
            "resumable": False,
            # As far as it was scheduled: most of these tests stop at its end.
            "num_computed_tokens": 1 << 20,
        }
        return Recorded("Request", **(fields | more))

    def begin(self, request: Any, ids: list[int], local: int = 0) -> int | None:
        """Admits a request as vLLM does; returns the tokens that come up."""
        tokens, asynchronous = self.scheduler.get_num_new_matched_tokens(request, local)
        assert asynchronous == bool(tokens)
        if tokens is not None:
            self.scheduler.update_state_after_alloc(request, Blocks(ids), tokens)
        return tokens

    @staticmethod
    def output(
        new: dict[Any, tuple[list[int], int]],
        computed: int = 0,
        preempted: set[str] = frozenset(),  # type: ignore[assignment]
        zeroed: list[int] | None = None,
        more: dict[Any, tuple[list[int] | None, int, int]] | None = None,
    ) -> Any:
        """What vLLM's scheduler has decided; `computed` is of the rows that begin."""
        rows = [
            Recorded(
                "NewRequestData",
                req_id=one.request_id,
                block_ids=(ids,),
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
            new_block_ids=[None if ids is None else (ids,) for ids, _, _ in going.values()],
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
            finished_req_ids=set(),
            new_block_ids_to_zero=zeroed,
            kv_cache_block_copies=None,
        )

    def step(
        self,
        new: dict[Any, tuple[list[int], int]] | None = None,
        preempted: set[str] = frozenset(),  # type: ignore[assignment]
        zeroed: list[int] | None = None,
        write: dict[int, int] | None = None,
        more: dict[Any, tuple[list[int] | None, int, int]] | None = None,
    ) -> Any:
        """A step: rows that begin with blocks and a number of tokens, and what is written.

        Rows that go on come as `more`: new blocks, tokens that are computed, and how many are next.
        """
        output = self.output(new or {}, 0, preempted, zeroed, more or {})
        meta = self.scheduler.build_connector_meta(output)
        worker = self.worker
        worker.handle_preemptions(meta)
        worker.bind_connector_metadata(meta)
        for block, value in (write or {}).items():
            for tensor in self.kv.values():
                tensor[block] = value
        worker.start_load_kv(None)
        worker.wait_for_save()
        said = Recorded(
            "KVConnectorOutput",
            finished_recving=worker.get_finished(set())[1] or set(),
            invalid_block_ids=worker.get_block_ids_with_load_errors(),
            kv_connector_worker_meta=worker.build_connector_worker_meta(),
        )
        self.scheduler.update_connector_output(said)
        assert self.scheduler.front.cache.audit() is None
        return said

    def until(self, name: str) -> set[int]:
        """Steps until the load of a request is said to have ended; returns what is missing."""
        for _ in range(20):
            said = self.step()
            if name in said.finished_recving:
                return set(said.invalid_block_ids)
        raise AssertionError("it does not end")

    def held(self) -> list[int]:
        stats = self.scheduler.front.cache.stats()
        return [stats[name] for name in ("parked", "flights", "host_pinned")]


@pytest.fixture
def front() -> Iterator[Front]:
    made = Front()
    yield made
    made.worker.shutdown()


@pytest.mark.parametrize(
    ("own", "theirs"),
    [
        (Blockyard, "KVConnectorBase_V1"),
        (messages.Reports, "KVConnectorWorkerMetadata"),
        (Figures, "KVConnectorStats"),
        (Metrics, "KVConnectorPromMetrics"),
    ],
)
def test_every_call_of_vllm_has_the_recorded_name_and_parameters(own: type, theirs: str) -> None:
    calls = RECORD["calls"][theirs]
    made = {
        name: list(inspect.signature(call).parameters)[1:]
        for name, call in vars(own).items()
        if inspect.isfunction(call) and not name.startswith("_")
    }
    assert {name: calls.get(name) for name in made} == made
    assert RECORD["calls"]["KVCacheBlocks"]["get_block_ids"] is not None


def test_what_ends_is_found_again_and_comes_up_to_other_blocks(front: Front) -> None:
    one = front.request("one", list(range(11)))
    assert front.begin(one, [1, 2, 3]) == 0
    front.step({one: ([1, 2, 3], 11)}, write={1: 11, 2: 12, 3: 13})
    one.num_tokens = 12
    assert front.scheduler.request_finished(one, [1, 2, 3]) == (False, None)
    front.step()
    front.step()
    two = front.request("two", list(range(9)))
    assert front.begin(two, [7, 8, 9]) == 8
    assert front.until("two") == set()
    assert [int(front.kv["layer 1"][block, 0]) for block in (7, 8)] == [11, 12]
    front.scheduler.update_state_after_alloc(two, Blocks([7, 8, 9]), 0)
    front.scheduler.request_finished(two, [])
    front.step()
    assert front.held() == [0, 0, 0]


def test_a_prefix_is_loaded_only_where_that_beats_computing_it() -> None:
    for load, found in ((1, 8), (10_000_000, 0)):
        front = Front(speeds=(load, 1_000, 0))
        ended(front, "one", list(range(11)), [1, 2, 3])
        front.step()
        front.step()
        two = front.request("two", list(range(9)))
        assert front.begin(two, [7, 8, 9]) == found
        if not found:
            front.step({two: ([7, 8, 9], 9)})
            two.num_tokens, two.num_preemptions = 10, 1
            front.step(preempted={"two"})
            front.step()
            assert front.begin(two, [7, 8, 9]) == 9, "what is its own comes back"
        front.worker.shutdown()


def test_a_preempted_request_comes_back_with_its_tail(front: Front) -> None:
    one = front.request("one", list(range(10)))
    front.begin(one, [1, 2, 3])
    front.step({one: ([1, 2, 3], 10)}, write={1: 11, 2: 12, 3: 13})
    one.num_tokens, one.num_preemptions = 11, 1
    # Its blocks have new contents in the same step.
    front.step(preempted={"one"}, write={1: 0, 2: 0, 3: 0})
    front.step()
    assert front.begin(one, [4, 5, 6]) == 10
    assert front.until("one") == set()
    assert [int(front.kv["layer 0"][block, 0]) for block in (4, 5, 6)] == [11, 12, 13]
    front.scheduler.request_finished(one, [])
    front.step()
    assert front.held() == [0, 0, 0]


def test_blocks_that_a_row_is_given_later_are_kept_with_the_others(front: Front) -> None:
    one = front.request("one", list(range(10)))
    front.begin(one, [1, 2])
    front.step({one: ([1, 2], 5)})
    # A chunk of its prompt, and then a token with a block of its own.
    front.step(more={one: ([3], 5, 5)})
    one.num_tokens = 13
    one.block_hashes = front.request("", list(range(13))).block_hashes
    front.step(more={one: ([4], 12, 1)}, write={1: 11, 2: 12, 3: 13, 4: 14})
    one.num_tokens, one.num_preemptions = 14, 1
    front.step(preempted={"one"})
    front.step()
    assert front.begin(one, [5, 6, 7, 8]) == 13
    assert front.until("one") == set()
    assert [int(front.kv["layer 1"][block, 0]) for block in (5, 6, 7, 8)] == [11, 12, 13, 14]


def test_a_prompt_in_chunks_is_kept_as_far_as_it_was_scheduled(front: Front) -> None:
    one = front.request("one", list(range(15)))
    front.begin(one, [1, 2])
    front.step({one: ([1, 2], 7)})
    one.num_preemptions = 1
    front.step(preempted={"one"})
    front.step()
    assert front.begin(one, [5, 6]) == 7


def test_blocks_are_stowed_as_they_fill_where_that_is_asked_for() -> None:
    front = Front(stow="through")
    one = front.request("one", list(range(10)))
    front.begin(one, [1, 2, 3])
    front.step({one: ([1, 2, 3], 10)})
    one.num_tokens = 13
    one.block_hashes = front.request("", list(range(13))).block_hashes
    front.step(more={one: ([4], 12, 1)})
    front.step()
    assert front.begin(front.request("two", list(range(14))), [7, 8, 9]) == 12
    front.worker.shutdown()


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


def test_what_vllm_evicts_next_is_copied_ahead() -> None:
    front = Front(ScriptedCopier(ThreadCopier(workers=0), Script([fail(0)])), ahead=8)
    front.scheduler.bind_gpu_block_pool(Pool(5, 4, 3, 6, 1))
    ended(front, "one", list(range(13)), [1, 3, 5])
    front.step()
    stats = front.scheduler.front.cache.stats
    for name, ids, copied in (("two", [11, 12], 0), ("three", list(range(13, 20)), 3)):
        more = front.request(name, list(range(100, 100 + SIZE * len(ids))))
        assert front.begin(more, ids) == 0
        # It looks again when half of what it has seen is given out.
        front.step({more: (ids, more.num_tokens)})
        front.step()
        assert stats()["host_idle"] == copied, "the first copy has failed"
    front.worker.shutdown()


def test_weights_that_can_change_end_what_is_below_at_a_reset_nobody_tells_of() -> None:
    for weights, said, found in (
        (False, None, 8),
        (True, None, 0),
        (True, True, 8),
        (False, False, 0),
    ):
        front = Front(keep_on_reset=said, changes={"enable_sleep_mode": weights})
        pool = Pool()
        front.scheduler.bind_gpu_block_pool(pool)
        ended(front, "one", list(range(11)), [1, 2, 3])
        front.step()
        front.step()
        pool.reset()
        assert front.begin(front.request("two", list(range(9))), [7, 8, 9]) == found
        front.worker.shutdown()


@pytest.mark.parametrize(
    ("change", "changes"),
    [
        ({}, False),
        ({"enable_sleep_mode": True}, True),
        ({"worker_extension_cls": "trainer.Extension"}, True),
        ({"weight_transfer_config": object()}, True),
    ],
)
def test_weights_may_change_where_vllm_is_told_so(change: dict[str, Any], changes: bool) -> None:
    assert facts(vllm_config(**change), kv_config(), version="0.33.0").weights_change == changes


def test_what_ended_just_before_a_reset_is_not_found_after_it(front: Front) -> None:
    ended(front, "one", list(range(11)), [1, 2, 3])
    front.scheduler.reset_cache()
    front.step()
    front.step()
    assert front.begin(front.request("two", list(range(9))), [7, 8, 9]) == 0


def test_a_reset_of_the_prefix_cache_alone_is_said_once(
    front: Front, caplog: pytest.LogCaptureFixture
) -> None:
    pool = Pool()
    front.scheduler.bind_gpu_block_pool(pool)
    front.step()
    pool.reset()
    front.scheduler.reset_cache()
    front.step()
    assert not caplog.records
    for _ in range(2):
        pool.reset()
        front.step()
    (record,) = caplog.records
    assert "the host keeps its blocks" in record.message


def test_what_the_v2_runner_zeroes_before_the_copies_is_not_copied(front: Front) -> None:
    one = front.request("one", list(range(10)))
    front.begin(one, [1, 2, 3])
    front.step({one: ([1, 2, 3], 10)})
    one.num_tokens, one.num_preemptions = 11, 1
    front.step(preempted={"one"}, zeroed=[2])
    front.step()
    assert front.begin(one, [4, 5, 6]) == SIZE, "only what is before the block"


def test_nothing_is_kept_of_a_request_whose_output_is_dropped(front: Front) -> None:
    one = front.request("one", list(range(10)))
    front.begin(one, [1, 2, 3])
    front.step({one: ([1, 2, 3], 10)})
    one.num_tokens, one.num_preemptions, one.drop_stale_output = 11, 1, True
    # vLLM admits it again before the step that says that it was preempted.
    assert front.begin(one, [4, 5, 6]) == 0
    front.step({one: ([4, 5, 6], 11)}, preempted={"one"})
    assert front.held() == [0, 0, 0]


def test_a_load_that_fails_names_the_blocks_that_are_missing_and_is_not_offered_again() -> None:
    front = Front(ScriptedCopier(ThreadCopier(workers=0), Script([fail(1)] * 9)))
    one = front.request("one", list(range(11)))
    front.begin(one, [1, 2, 3])
    front.step({one: ([1, 2, 3], 11)})
    one.num_tokens = 12
    front.scheduler.request_finished(one, [1, 2, 3])
    for _ in range(3):
        front.step()
    two = front.request("two", list(range(9)))
    found = front.begin(two, [7, 8, 9])
    assert found == SIZE, "the copy down had one good block"
    front.worker.shutdown()


def test_one_that_is_aborted_while_it_loads_is_named_so_that_its_blocks_are_freed(
    front: Front,
) -> None:
    one = front.request("one", list(range(11)))
    front.begin(one, [1, 2, 3])
    front.step({one: ([1, 2, 3], 11)})
    one.num_tokens = 12
    front.scheduler.request_finished(one, [1, 2, 3])
    front.step()
    front.step()
    two = front.request("two", list(range(9)))
    assert front.begin(two, [7, 8, 9]) == 8
    front.scheduler.request_finished(two, [7, 8])
    assert front.until("two") == set()
    assert front.held() == [0, 0, 0]


def test_after_a_reset_of_the_cache_nothing_is_found(front: Front) -> None:
    one = front.request("one", list(range(11)))
    front.begin(one, [1, 2, 3])
    front.step({one: ([1, 2, 3], 11)})
    one.num_tokens = 12
    front.scheduler.request_finished(one, [1, 2, 3])
    front.step()
    assert front.scheduler.reset_cache()
    assert front.begin(front.request("two", list(range(9))), [7, 8, 9]) == 0


class Metric:
    """A metric of Prometheus."""

    made: ClassVar[dict[str, "Metric"]] = {}

    def __init__(self, name: str, documentation: str, labelnames: list[str]) -> None:
        assert documentation.endswith(".")
        self.made[name] = self
        self.names, self.values = labelnames, Counter[tuple[object, ...]]()

    def labels(self, *values: object) -> Any:
        assert len(values) == len(self.names)

        class Child:
            inc = staticmethod(lambda number: self.values.update({values: number}))
            set = staticmethod(lambda number: self.values.__setitem__(values, number))

        return Child


def test_the_caches_numbers_are_on_vllms_own_metrics(front: Front) -> None:
    types = {"Counter": Metric, "Gauge": Metric}
    metrics = Blockyard.build_prom_metrics(None, types, ["engine"], {0: ["0"]})
    reports = []
    for number in range(3):
        one = front.request(f"{number}", list(range(100 * number, 100 * number + 11)))
        front.begin(one, [1, 2, 3])
        front.step({one: ([1, 2, 3], 11)})
        one.num_tokens = 12
        front.scheduler.request_finished(one, [1, 2, 3])
        for _ in range(32):
            front.step()
            reports.append(front.scheduler.get_kv_connector_stats())
    told = [one for one in reports if one is not None]
    assert len(told) == 3, "one in 32 steps"
    for one in told:
        metrics.observe(Blockyard.build_kv_connector_stats(one.data).data)
    assert Metric.made["blockyard_copied_blocks"].values["0", "host"] == 6, "of all reports"
    assert Metric.made["blockyard_slots"].values["0", "host", "idle"] == 6, "of the last one"
    joined = told[0].aggregate(told[1]).aggregate(told[2])
    assert joined.reduce()["blockyard host_in"] == 6
    assert joined.reduce()["blockyard host_idle"] == 6
    assert not joined.is_empty()
    joined.reset()
    assert joined.is_empty()
    assert front.worker.get_kv_connector_stats() is None


# -- whose KV it is ----------------------------------------------------------------------------

HASH = sha256(b"a block").digest()


FOLDERS = Path(tempfile.mkdtemp())


def adapter(
    name: str = "X", path: str | None = None, number: int = 1, *, again: bool = False
) -> Any:
    if path is None or not Path(path).is_absolute():
        folder = FOLDERS / (path or "x")
        folder.mkdir(exist_ok=True)
        weights = folder / "adapter_model.bin"
        if not weights.exists():
            weights.write_bytes(b"weights")
        path = str(folder)
    return Recorded(
        "LoRARequest", lora_name=name, lora_path=path, lora_int_id=number, load_inplace=again
    )


def root_of() -> Root:
    return Root([])


class Drafts:
    """A draft model."""

    model = "a draft model"

    def __init__(self, *, ahead: bool = False) -> None:
        self.use_eagle_block_drop = lambda: ahead


OF_AN_ENGINE: dict[str, dict[str, Any]] = {
    "model": {"model": "another model"},
    "revision": {"revision": "main"},
    "weights": {"kv_connector_extra_config": {"host": 64, "namespace": {"weights": "v2"}}},
    "quantisation": {"quantization": "fp8"},
    "type of the model": {"dtype": "float16"},
    "type of the KV": {"cache_dtype": "fp8"},
    "draft model": {"speculative_config": Drafts()},
    "hash": {"prefix_caching_hash_algo": "sha256_cbor"},
    "tensor parallel ranks": {"tensor_parallel_size": 2},
    "stages": {"pipeline_parallel_size": 2},
}


def key(**change: Any) -> bytes:
    """The key of one block in an engine of which vLLM says this."""
    return key_of(vllm_config(**change))


def key_of(config: Any) -> bytes:
    """As `key`."""
    known = facts(config, kv_config(), version="0.33.0")
    extra = config.kv_transfer_config.kv_connector_extra_config
    root = Root(namespace_of(known.namespace, extra.get("namespace", {})).items())
    return root.keys([HASH], root.start(None, None))


def test_e8_engines_that_differ_in_one_dimension_have_different_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [key(), *(key(**change) for change in OF_AN_ENGINE.values())]
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    keys.append(key())
    monkeypatch.delenv("PYTHONHASHSEED")
    weights = tmp_path / "model.safetensors"
    for content in (b"one", b"another"):
        weights.write_bytes(content)
        keys += [key(model=str(tmp_path)), key(model=str(weights))]

    class Config:
        _commit_hash = "of a hub"

    config = vllm_config()
    vars(config.model_config)["hf_config"] = Config()
    keys.append(key_of(config))
    assert len(set(keys)) == len(keys)
    assert key() == keys[0]


def hashes_of(salt: str) -> list[bytes]:
    """What vLLM hashes where a request has other tokens, media, places of them, or embeddings."""
    return [sha256(f"{salt} {at}".encode()).digest() for at in range(3)]


OF_A_REQUEST: dict[str, dict[str, Any]] = {
    "nothing": {},
    "tokens, media and their positions, prompt embeddings": {"block_hashes": hashes_of("other")},
    "the name of a LoRA adapter": {"lora_request": adapter()},
    "an adapter of another name": {"lora_request": adapter("Y")},
    "its path": {"lora_request": adapter(path="y")},
    "its number": {"lora_request": adapter(number=2)},
    "its version": {"lora_request": adapter(again=True)},
    "a salt of that name": {"cache_salt": "X"},
    "another salt": {"cache_salt": "Y"},
    "an empty salt": {"cache_salt": ""},
    "adapter and salt": {"lora_request": adapter(), "cache_salt": "X"},
    "half a character": {"cache_salt": "\ud800"},
}


def below_as_it_ends(front: Front, more: dict[str, Any]) -> None:
    """A request ends."""
    ended(front, "one", list(range(12)), [1, 3, 5], **more)


def below_as_it_is_kept(front: Front, more: dict[str, Any]) -> None:
    """A request is preempted, and is aborted."""
    one = front.request("one", list(range(12)), **more)
    front.begin(one, [1, 3, 5])
    front.step({one: ([1, 3, 5], 12)})
    one.num_tokens, one.num_preemptions = 13, 1
    front.step(preempted={"one"})
    front.scheduler.request_finished(one, [])


def below_as_it_is_evicted(front: Front, more: dict[str, Any]) -> None:
    """The copies of a request that has ended fail, and vLLM evicts it next."""
    front.scheduler.bind_gpu_block_pool(Pool(5, 3, 1))
    copier = front.worker.back.copier
    assert isinstance(copier, Failing)
    copier.fails = 1
    below_as_it_ends(front, more)
    front.step()
    other = front.request("other", list(range(100, 128)), cache_salt="other")
    assert front.begin(other, list(range(13, 20))) == 0
    front.step({other: (list(range(13, 20)), 28)})


class Failing(ThreadCopier):
    """A copier of which some copies fail."""

    fails = 0

    @override
    def start(self, *what: Any) -> Receipt | None:
        if self.fails:
            self.fails -= 1
            raise OSError("on purpose")
        return super().start(*what)


Path_: TypeAlias = Callable[[Front, dict[str, Any]], None]
PATHS = [below_as_it_ends, below_as_it_is_kept, below_as_it_is_evicted]


def found(front: Front, **more: Any) -> int | None:
    """Returns how many tokens of the prompt of all paths are offered."""
    request = front.request("asks", list(range(13)), **more)
    tokens, _ = front.scheduler.get_num_new_matched_tokens(request, 0)
    front.scheduler.request_finished(request, [])
    return tokens


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dimension", OF_A_REQUEST)
def test_e8_what_differs_in_one_dimension_finds_nothing_of_the_other(
    path: Path_, dimension: str
) -> None:
    for other, more in OF_A_REQUEST.items():
        front = Front(Failing(workers=0), ahead=8)
        path(front, OF_A_REQUEST[dimension])
        front.step()
        front.step()
        assert found(front, **more) == (12 if other == ALIKE.get(dimension, dimension) else 0), (
            other
        )
        front.worker.shutdown()


#: Who asks for an adapter after it was loaded again asks for what it is now.
ALIKE = {"its version": "the name of a LoRA adapter"}


@pytest.mark.parametrize("path", PATHS)
def test_e8_an_engine_that_differs_in_one_dimension_finds_nothing_of_the_other(path: Path_) -> None:
    front = Front(Failing(workers=0), ahead=8)
    path(front, {})
    front.step()
    front.step()
    roles = Blockyard.__init__.__globals__["KVConnectorRole"]
    for change in ({}, *OF_AN_ENGINE.values()):
        given = {"kv_connector_extra_config": {"host": 64}} | change
        other = Blockyard(vllm_config(**given), roles.SCHEDULER, kv_config())
        # As if they had one host.
        other.front.cache = front.scheduler.front.cache
        other.front.connector = Connector(other.front.cache)
        request = front.request("asks", list(range(13)))
        assert other.get_num_new_matched_tokens(request, 0)[0] == (0 if change else 12), change
    front.worker.shutdown()


@pytest.mark.parametrize("path", PATHS)
def test_e8_nothing_is_kept_of_an_adapter_whose_files_have_changed(
    path: Path_, tmp_path: Path
) -> None:
    front = Front(Failing(workers=0), ahead=8)
    weights = tmp_path / "adapter_model.bin"
    lora = adapter(path=str(tmp_path))
    for content in (b"one", b"another"):
        weights.write_bytes(content)
        assert found(front, lora_request=lora) == 0
    path(front, {"lora_request": lora})
    front.step()
    front.step()
    assert found(front, lora_request=lora) == 0
    weights.write_bytes(b"one")
    assert found(front, lora_request=lora) == 0, "its files were others when it was kept"
    front.worker.shutdown()


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("path", PATHS)
def test_e9_nothing_of_old_weights_is_found_after_a_reset(path: Path_, told: bool) -> None:
    for steps in range(4):
        front = Front(Failing(workers=0), ahead=8, keep_on_reset=False)
        pool = Pool(5, 3, 1)
        front.scheduler.bind_gpu_block_pool(pool)
        path(front, {})
        for _ in range(steps):
            front.step()
        front.scheduler.front.resets.pool.reset()
        if told:
            front.scheduler.reset_cache()
        for _ in range(4):
            front.step()
        assert found(front) == 0
        front.worker.shutdown()


@pytest.mark.parametrize("how", ["a hub's", "broken link", "not there", "no text"])
def test_e8_an_adapter_whose_files_are_not_to_be_seen_is_not_kept(how: str, tmp_path: Path) -> None:
    path = {"a hub's": "org/adapter", "not there": str(tmp_path / "no"), "no text": "\0"}.get(how)
    if path is None:
        path = str(tmp_path)
        (tmp_path / "adapter_model.bin").write_bytes(b"one")
        (tmp_path / "more.safetensors").symlink_to("/nowhere")
    lora = Recorded("LoRARequest", lora_name="X", lora_path=path, lora_int_id=1, load_inplace=False)
    assert root_of().start(lora, None) is None


def test_e8_a_home_is_found_as_vllm_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "adapter_model.bin").write_bytes(b"one")
    lora = Recorded("LoRARequest", lora_name="X", lora_path="~", lora_int_id=1, load_inplace=False)
    root = root_of()
    assert root.start(lora, None) is not None
    (tmp_path / "adapter_model.bin").write_bytes(b"another")
    assert root.start(lora, None) is None


def test_e8_where_adapters_come_at_run_time_files_younger_than_the_engine_are_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = tmp_path / "adapter_model.bin"
    weights.write_bytes(b"one")
    for allowed, age, kept in (("0", -60, True), ("1", -60, False), ("true", 60, True)):
        monkeypatch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", allowed)
        root = root_of()
        os.utime(weights, (time.time() - age,) * 2)
        assert (root.start(adapter(path=str(tmp_path)), None) is not None) == kept


def test_a_session_that_waits_for_more_is_not_kept(front: Front) -> None:
    ended(front, "one", list(range(13)), [1, 2, 3], resumable=True)
    front.step()
    front.step()
    assert found(front) == 0
    ended(front, "two", list(range(13)), [1, 2, 3], num_computed_tokens=7)
    front.step()
    front.step()
    assert found(front) == SIZE, "as far as it was computed"


def test_e9_what_runs_at_a_reset_below_stows_nothing_afterwards(front: Front) -> None:
    one = front.request("one", list(range(13)))
    front.begin(one, [1, 2, 3])
    front.step({one: ([1, 2, 3], 13)})
    assert front.scheduler.reset_cache()
    one.num_tokens = 14
    front.scheduler.request_finished(one, [1, 2, 3])
    two = front.request("two", list(range(13)))
    assert front.begin(two, [4, 5, 6]) == 0
    front.step({two: ([4, 5, 6], 13)})
    front.step()
    assert found(front) == 0
    two.num_tokens = 14
    front.scheduler.request_finished(two, [4, 5, 6])
    front.step()
    front.step()
    assert found(front) == 12, "what has begun since is stowed"


def test_deadlines_pass_where_nobody_reports_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    front = Front(ScriptedCopier(ThreadCopier(workers=0), Script([hang()])), deadline=500)
    now = 7.0
    front.scheduler.front.clock = lambda: now
    ended(front, "one", list(range(13)), [1, 2, 3])
    front.step()
    monkeypatch.setattr(front.scheduler, "update_connector_output", lambda _: None)
    assert found(front) is None, "it is on its way down"
    now = 8.0
    front.step()
    assert found(front) == 0
    front.worker.shutdown()


def test_every_load_in_place_is_another_version_and_stays_that() -> None:
    root = root_of()

    def now(**more: Any) -> bytes:
        return root.keys([HASH], root.start(adapter(**more), None))

    first = now()
    assert now() == first
    second = now(again=True)
    assert now() == second != first
    assert now(again=True) not in {first, second}


def test_an_adapter_whose_files_have_changed_is_not_kept_before_vllm_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weights = tmp_path / "adapter_model.safetensors"
    weights.write_bytes(b"one")
    front = Front()
    asked = list(range(11))

    def run(name: str, tokens: list[int], **more: Any) -> int | None:
        lora = adapter(path=str(tmp_path), **more)
        request = front.request(name, tokens, lora_request=lora)
        found = front.begin(request, [1, 2, 3])
        if found == 0:
            front.step({request: ([1, 2, 3], len(tokens))})
            request.num_tokens += 1
        else:
            front.until(name)
        front.scheduler.request_finished(request, [1, 2, 3])
        front.step()
        front.step()
        return found

    assert [run("one", asked), run("two", asked)] == [0, 8]
    weights.write_bytes(b"another")
    assert [run("three", asked), run("four", asked)] == [0, 0]
    assert [one.message for one in caplog.records if "have changed" in one.message] != []
    assert len(caplog.records) == 1, "it is said once"
    assert [run("five", asked, again=True), run("six", asked)] == [0, 8]
    assert front.held() == [0, 0, 0]
    front.worker.shutdown()


def test_a_hash_that_is_too_short_to_stand_for_tokens_is_refused() -> None:
    with pytest.raises(by.Unsupported, match=r"16 bytes.*sha256"):
        root_of().keys([b"0" * 16], root_of().start(None, None))


# -- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"kv_load_failure_policy": "fail"}, by.Misuse, '"kv_load_failure_policy": "recompute"'),
        ({"kv_role": "kv_producer"}, by.Unsupported, '"kv_role": "kv_both"'),
        ({"prefix_caching_hash_algo": "xxhash"}, by.Unsupported, "algo sha256"),
        ({"decode_context_parallel_size": 2}, by.Unsupported, "decode_context_parallel_size = 2"),
        ({"nnodes": 2}, by.Unsupported, "nnodes = 2"),
        ({"pipeline_parallel_size": 4}, by.Unsupported, "pipeline_parallel_size = 4.*PARTITION"),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_line_to_write(
    change: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        facts(vllm_config(**change), kv_config(), version="0.33.0")


@pytest.mark.parametrize(
    ("kv", "says"),
    [
        (kv_config(groups=2), "2 KV cache groups"),
        (kv_config("MambaSpec"), "MambaSpec"),
        (kv_config(hash_block_size=2), "hashed by 2"),
        (kv_config(kv_tp_replicas=2), "kv_tp_replicas = 2"),
    ],
)
def test_caches_of_another_kind_are_refused(kv: Any, says: str) -> None:
    with pytest.raises(by.Unsupported, match=says):
        facts(vllm_config(), kv, version="0.33.0")


def test_beside_another_connector_it_is_refused() -> None:
    around = vllm_config(kv_connector="MultiConnector")
    own = vllm_config(kv_connector="Blockyard")
    assert facts(own, kv_config(), version="0.33.0", around=own).blocks == BLOCKS
    with pytest.raises(by.Unsupported, match="'MultiConnector' with Blockyard in it"):
        facts(own, kv_config(), version="0.33.0", around=around)


def test_hisparse_is_refused() -> None:
    config = vllm_config()

    class Attention:
        hisparse_config = object()

    config.attention_config = Attention()
    with pytest.raises(by.Unsupported, match="HiSparse"):
        facts(config, kv_config(), version="0.33.0")


def test_options_are_refused_before_weights_load() -> None:
    assert not Blockyard.requires_piecewise_for_cudagraph({"host": "8 GiB"})
    with pytest.raises(by.Misuse, match="did you mean 'host'"):
        Blockyard.requires_piecewise_for_cudagraph({"hst": "8 GiB"})


def test_a_drafter_that_looks_ahead_computes_the_last_block_of_others_again() -> None:
    front = Front(changes={"speculative_config": Drafts(ahead=True)})
    ended(front, "one", list(range(13)), [1, 2, 3])
    front.step()
    front.step()
    two = front.request("two", list(range(13)))
    assert front.begin(two, [4, 5, 6, 7]) == 8
    front.until("two")
    front.scheduler.update_state_after_alloc(two, Blocks([4, 5, 6, 7]), 0)
    front.step({two: ([4, 5, 6, 7], 13)})
    # What was its own is as it was.
    two.num_tokens, two.num_preemptions = 14, 1
    front.step(preempted={"two"})
    front.step()
    assert front.begin(two, [4, 5, 6, 7]) == 13
    front.worker.shutdown()


def test_orders_are_of_the_stream_on_which_vllm_computes_then(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams: list[object] = []
    assert front.worker.back.worker is not None
    monkeypatch.setattr(front.worker.back.worker, "begin", lambda _, stream: streams.append(stream))
    numbers = iter(range(4))
    front.worker.back.stream = lambda: next(numbers)
    front.step()
    front.step()
    assert streams == [0, 1, 2, 3]


def test_while_vllm_sleeps_nothing_is_copied() -> None:
    front = Front(ScriptedCopier(ThreadCopier(workers=0), Script([delay(3), delay(3), deliver()])))
    assert Blockyard.supports_sleep_mode(None)
    ended(front, "one", list(range(11)), [1, 2, 3])
    front.step()
    for _ in range(2):
        front.worker.unregister_kv_caches()
    assert front.worker.back.worker is not None
    assert front.worker.back.worker.crane.in_flight == 0, "what was in the air has ended"
    ended(front, "asleep", list(range(100, 111)), [4, 5, 6])
    front.step()
    front.step()
    for _ in range(2):
        front.worker.restore_kv_caches()
    assert front.begin(front.request("two", list(range(9))), [7, 8, 9]) == 8
    assert front.begin(front.request("three", list(range(100, 109))), [1, 2, 3]) == 0
    assert front.until("two") == set()
    front.worker.shutdown()


def test_a_copy_that_does_not_end_is_given_up_for_a_sleep() -> None:
    front = Front(ScriptedCopier(ThreadCopier(workers=0), Script([hang()])))
    ended(front, "one", list(range(11)), [1, 2, 3])
    front.step()
    assert front.worker.back.worker is not None
    front.worker.back.worker.patience = 0.05
    front.worker.unregister_kv_caches()
    assert front.worker.back.worker.crane.in_flight == 0
    front.step()
    assert front.held() == [0, 0, 0]
    front.worker.shutdown()


def test_stages_with_equal_planes_are_ranks_of_one_layout() -> None:
    for rank in range(4):
        config = vllm_config(tensor_parallel_size=2, pipeline_parallel_size=2, rank=rank)
        known = facts(config, kv_config(), version="0.33.0")
        assert (known.layout.ranks, known.rank) == (4, rank)


def test_stages_whose_ranks_have_the_same_kv_are_refused() -> None:
    with pytest.raises(by.Unsupported, match="tensor parallel ranks alone"):
        facts(
            vllm_config(pipeline_parallel_size=2), kv_config("MLAAttentionSpec"), version="0.33.0"
        )


def halves(kind: str = "MLAAttentionSpec", **changes: Any) -> tuple[Any, list[Any]]:
    """The connectors of a scheduler and of two workers."""
    roles = Blockyard.__init__.__globals__["KVConnectorRole"]
    given = {"tensor_parallel_size": 2, "engine_id": f"an engine {uuid4()}"} | changes
    scheduler = Blockyard(vllm_config(**given), roles.SCHEDULER, kv_config(kind))
    workers = []
    for rank in range(2):
        worker = Blockyard(vllm_config(**given, rank=rank), roles.WORKER, kv_config(kind))
        worker.back.copier = ThreadCopier(workers=0)
        worker.register_kv_caches(
            {f"layer {at}": np.zeros((BLOCKS, PAGE), np.uint8).view(Tensor) for at in range(LAYERS)}
        )
        workers.append(worker)
    return scheduler, workers


def test_ranks_with_the_same_kv_share_host_memory_whose_name_goes_when_all_have_it() -> None:
    scheduler, workers = halves()
    ready = {(0, rank): one.get_handshake_metadata() for rank, one in enumerate(workers)}
    (name,) = {one.shared for one in ready.values()}
    assert name is not None
    assert Path(name).exists()
    scheduler.set_xfer_handshake_metadata_pp_aware(ready)
    assert not Path(name).exists()
    planes = [one.back.worker.crane._tiers["host"].planes[0] for one in workers]
    planes[0][3] = 7
    assert (planes[1][3] == 7).all()
    for one in workers:
        one.shutdown()


def test_ranks_that_do_not_map_the_same_file_are_refused() -> None:
    scheduler, workers = halves()
    ready = {(0, rank): one.get_handshake_metadata() for rank, one in enumerate(workers)}
    ready[0, 1].file = (1, 2)
    with pytest.raises(by.Unsupported, match="2 files for it: they must be on one machine"):
        scheduler.set_xfer_handshake_metadata_pp_aware(ready)
    for one in workers:
        one.shutdown()
        Path(one.get_handshake_metadata().shared).unlink(missing_ok=True)


def test_what_an_engine_has_left_that_died_as_it_started_is_removed() -> None:
    _, workers = halves()
    shared = Path(workers[0].get_handshake_metadata().shared)
    head, _, tail = shared.name.rsplit("-", 2)
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    left = shared.with_name(f"{head}-{process.pid}-{tail}")
    left.write_bytes(b"left")
    halves()[1][0].shutdown()
    assert (left.exists(), shared.exists()) == (False, True)
    for one in workers:
        one.shutdown()
    for more in shared.parent.glob(f"{head}-{os.getppid()}-*"):
        more.unlink()


def test_ranks_with_kv_of_their_own_have_host_memory_of_their_own() -> None:
    _, workers = halves("FullAttentionSpec")
    assert [one.get_handshake_metadata().shared for one in workers] == [None, None]
    for one in workers:
        one.shutdown()


def test_a_worker_with_another_configuration_is_named(front: Front) -> None:
    ready = front.worker.get_handshake_metadata()
    front.scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): ready})
    wrong = messages.Ready(3, "0" * 64, None)
    with pytest.raises(by.Misuse, match="rank 3 has fingerprint 000000000000, and"):
        front.scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): ready, (0, 3): wrong})


# -- what a request says for itself ------------------------------------------------------------


def test_a_request_decides_for_itself() -> None:
    settings = read({"host": 64})[0]
    own = settings.of_request(
        {"blockyard.stow": "none", "blockyard.load": False, "lmcache.skip_save": True}
    )
    assert (own.stow, own.load, own.preempt, own.decode) == ("none", False, "park", True)
    assert settings.of_request(None) is settings
    nothing = settings.as_nothing()
    assert (nothing.stow, nothing.load, nothing.preempt) == ("none", False, "recompute")


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"blockyard.stwo": "none"}, r"no 'blockyard.stwo'.*did you mean 'blockyard.stow'"),
        ({"blockyard.host": 3}, "no 'blockyard.host'"),
        ({"blockyard.keep_on_reset": True}, "no 'blockyard.keep_on_reset'"),
        ({"blockyard.stow": "always"}, "stow = 'always'"),
        ({"blockyard.load": 1.5}, r"load = 1\.5"),
        ({"blockyard.stow": ["none"]}, r"stow = \['none'\]"),
        ({"blockyard.stow\n" + 10**6 * "x": 1}, r"^there is no 'blockyard.stow\\nx{5,80} in kv"),
        (["blockyard.stow"], "give a mapping"),
    ],
)
def test_what_a_request_cannot_say_is_named_and_it_runs_as_all_others(
    params: dict[str, Any], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(by.Misuse, match=says):
        read({"host": 64})[0].of_request(params)
    front = Front()
    for name in ("one", "two"):
        one = front.request(name, list(range(11)), kv_transfer_params=params)
        assert front.begin(one, [1, 2, 3]) in {0, 8}
    (record,) = caplog.records
    assert re.search(says, record.message)
    assert len(record.message) < 400
    assert "\n" not in record.message
    front.worker.shutdown()


@pytest.mark.parametrize(
    ("params", "found"),
    [
        ({"blockyard.stow": "none"}, 0),
        ({"blockyard.decode": False}, 8),
        (None, 12),
    ],
)
def test_what_a_request_says_holds_for_what_is_stowed(
    front: Front, params: dict[str, Any] | None, found: int
) -> None:
    one = front.request("one", list(range(10)), kv_transfer_params=params)
    front.begin(one, [1, 2, 3, 4])
    front.step({one: ([1, 2, 3, 4], 10)})
    one.num_tokens, one.block_hashes = 13, front.request("", list(range(13))).block_hashes
    front.scheduler.request_finished(one, [1, 2, 3, 4])
    front.step()
    front.step()
    assert front.begin(front.request("two", list(range(14))), [7, 8, 9]) == found


def test_a_request_that_loads_nothing_comes_back_with_what_is_its_own(front: Front) -> None:
    ended(front, "one", list(range(11)), [1, 2, 3])
    front.step()
    front.step()
    two = front.request("two", list(range(9)), kv_transfer_params={"blockyard.load": False})
    assert front.begin(two, [4, 5, 6]) == 0
    front.step({two: ([4, 5, 6], 9)})
    two.num_tokens, two.num_preemptions = 10, 1
    front.step(preempted={"two"})
    front.step()
    assert front.begin(two, [4, 5, 6]) == 9


def test_one_whose_prompt_is_computed_whole_is_offered_nothing_and_not_kept(front: Front) -> None:
    ended(front, "one", list(range(11)), [1, 2, 3])
    front.step()
    front.step()
    two = front.request("two", list(range(9)), skip_reading_prefix_cache=True)
    assert front.begin(two, [4, 5, 6]) == 0
    front.step({two: ([4, 5, 6], 9)})
    two.num_tokens, two.num_preemptions = 10, 1
    front.step(preempted={"two"})
    assert front.scheduler.front.cache.stats()["parkings"] == 0


def test_what_vllm_has_found_itself_has_no_fence(front: Front) -> None:
    front.worker.back.copier = None
    ended(front, "one", list(range(11)), [1, 2, 3])
    two = front.request("two", list(range(9)))
    front.scheduler.get_num_new_matched_tokens(two, 8)
    front.scheduler.update_state_after_alloc(two, Blocks([1, 2, 7]), 0)
    orders = front.scheduler.build_connector_meta(front.output({two: ([1, 2, 7], 1)}, 8)).orders
    assert (len(orders.down), orders.fence) == (1, None), "it copies what two reads"
    three = front.request("three", list(range(50, 59)))
    front.begin(three, [1, 3])
    orders = front.scheduler.build_connector_meta(front.output({three: ([1, 3], 8)})).orders
    assert orders.fence is not None


def test_one_line_says_what_it_will_do_and_with_how_much_memory() -> None:
    settings, config = read({"host": 64, "disk": 4096})
    assert settings.said(config) == (
        "Blockyard keeps preempted requests, and stows full blocks as requests end, in 0.00 GiB of "
        "host a rank (64 blocks), 0.00 GiB of disk a rank (4096 blocks), below vLLM's 32 blocks of "
        "4 tokens and 128 bytes on each of 1 ranks"
    )
    assert config.deadline_of("host") == 60_000
    settings, config = read({"host": 64, "stow": "none", "preempt": "recompute", "deadline": 9})
    assert settings.said(config).startswith(
        "Blockyard keeps no preempted request, and stows full blocks not at all"
    )
    assert config.deadline_of("host") == 9


def test_deadlines_are_milliseconds_of_vllms_clock() -> None:
    front = Front(ScriptedCopier(ThreadCopier(workers=0), Script([hang()])), deadline=500)
    now = 7.0
    front.scheduler.front.clock = lambda: now
    ended(front, "one", list(range(11)), [1, 2, 3])
    front.step()
    now = 7.4
    front.step()
    assert front.scheduler.front.cache.stats()["host_quarantined"] == 0
    now = 7.8
    front.step()
    assert front.scheduler.front.cache.stats()["host_quarantined"] == 2
    front.worker.shutdown()


def test_a_version_that_was_not_tested_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(by.Unsupported, match=r"0\.32\.1"):
        facts(vllm_config(), kv_config(), version="0.32.1")
    with caplog.at_level(logging.WARNING):
        facts(vllm_config(), kv_config(), version="0.34.0")
    assert "0.34.0 was not tested" in caplog.text


def read(extra: dict[str, Any], longest: int = 64) -> tuple[Settings, by.Config]:
    known = facts(vllm_config(), kv_config(), version="0.33.0")
    return Settings.read(
        extra, layout=known.layout, blocks=BLOCKS, namespace=known.namespace, longest=longest
    )


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"hst": 64}, r"there is no 'hst'.*did you mean 'host'"),
        ({"stows": "finish", "host": 64}, "did you mean 'stow'"),
        *(({name: 1, "host": 64}, f"{name} = 1: vLLM says that itself") for name in OWN),
        ({"host": 64, "stow": "always"}, "stow = 'always'"),
        ({"host": 64, "preempt": "drop"}, "preempt = 'drop'"),
        ({"host": 64, "decode": "yes"}, "decode = 'yes'"),
        ({"host": 64, "load": 2}, "load = 2"),
        ({"host": 64, "keep_on_reset": "no"}, "keep_on_reset = 'no'"),
        ({}, "host is missing"),
        ({"host": -1}, "host = -1"),
        ({"host": 64, "config": "/no/such/file"}, "is no configuration"),
        ({"host": 64, "config": "\0"}, "is no configuration"),
        ({"host": 64, "namespace": "mine"}, "namespace = 'mine'"),
    ],
)
def test_an_option_that_is_none_is_named(extra: dict[str, Any], says: str) -> None:
    with pytest.raises(by.Misuse, match=says):
        read(extra)


def test_a_host_that_holds_no_request_of_full_length_is_too_small() -> None:
    with pytest.raises(by.TooLarge, match=r"max_model_len = 64 tokens has 16 blocks.*15 at most"):
        read({"host": 15})
    assert read({"host": 15, "preempt": "recompute"})[0].preempt == "recompute"
    assert read({"host": 2, "disk": 16})[1].disk_blocks == 16


def test_a_file_gives_what_the_command_line_does_not(tmp_path: Path) -> None:
    path = tmp_path / "blockyard.toml"
    path.write_text('[blockyard]\nhost = 40\nstow = "none"\ndeadline = 9\n')
    settings, config = read({"config": str(path), "host": 50})
    assert (settings.stow, config.host_blocks) == ("none", 50)
    assert config.layout is not None
    assert config.layout.block_bytes == LAYERS * PAGE


def test_a_file_without_a_table_is_named(tmp_path: Path) -> None:
    path = tmp_path / "blockyard.toml"
    path.write_text("blockyard = 5")
    with pytest.raises(by.Misuse, match="blockyard = 5 in it"):
        read({"config": str(path)})
    assert read({"host": 64, "deadline": None})[1].deadline_of("host") == 60_000


def test_what_the_operator_adds_to_the_namespace_changes_every_key() -> None:
    def first(**more: Any) -> bytes:
        config = read({"host": 64, **more})[1]
        root = Root(dict(config.namespace or ()).items())
        return root.keys([HASH], root.start(None, None))

    plain, weights = first(), first(namespace={"weights": "v2"})
    assert plain != weights
    assert plain == first()


@pytest.mark.parametrize(
    "broken",
    [
        lambda front: front.worker.register_kv_caches({}),
        lambda front: front.worker.register_kv_caches(
            {name: tensor[:, :32] for name, tensor in front.kv.items()}
        ),
    ],
)
def test_tensors_that_are_not_what_the_scheduler_was_told_are_refused(
    front: Front, broken: Callable[[Front], None]
) -> None:
    front.worker.back.close()
    with pytest.raises(by.Misuse):
        broken(front)


def test_tensors_are_registered_once(front: Front) -> None:
    with pytest.raises(by.Misuse, match="twice"):
        front.worker.register_kv_caches(front.kv)
