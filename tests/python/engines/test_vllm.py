"""The connector for vLLM, against what is recorded of vLLM 0.33. E1 E2 E4 E5 E6"""

import inspect
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import blockyard as by
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.engines.vllm import Blockyard, messages, worker_half
from blockyard.engines.vllm.engine_facts import facts
from blockyard.engines.vllm.identity import Root, namespace_of
from blockyard.engines.vllm.metrics import Figures, Metrics
from blockyard.engines.vllm.settings import OWN, Settings
from blockyard.testing import Script, ScriptedCopier, fail
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
    } | changes

    def part(kind: str) -> Any:
        own = RECORD["fields"][kind]
        return Recorded(kind, **{name: fields[name] for name in fields if name in own})

    class Load:
        load_format = "auto"

    return Recorded(
        "VllmConfig",
        kv_transfer_config=part("KVTransferConfig"),
        cache_config=part("CacheConfig"),
        model_config=part("ModelConfig"),
        parallel_config=part("ParallelConfig"),
        load_config=Load(),
        speculative_config=None,
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

    def __init__(self, copier: Any = None, **extra: Any) -> None:
        roles = Blockyard.__init__.__globals__["KVConnectorRole"]
        config = vllm_config(kv_connector_extra_config={"host": 64} | extra)
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
        }
        return Recorded("Request", **(fields | more))

    def begin(self, request: Any, ids: list[int], local: int = 0) -> int | None:
        """Admits a request as vLLM does; returns the tokens that come up."""
        tokens, asynchronous = self.scheduler.get_num_new_matched_tokens(request, local)
        assert asynchronous == bool(tokens)
        if tokens is not None:
            self.scheduler.update_state_after_alloc(request, Blocks(ids), tokens)
        return tokens

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
        rows = [
            Recorded(
                "NewRequestData", req_id=one.request_id, block_ids=(ids,), num_computed_tokens=0
            )
            for one, (ids, _) in (new or {}).items()
        ]
        counts = {one.request_id: count for one, (_, count) in (new or {}).items()}
        going = {one.request_id: told for one, told in (more or {}).items()}
        counts |= {name: told[2] for name, told in going.items()}
        cached = Recorded(
            "CachedRequestData",
            req_ids=list(going),
            new_block_ids=[None if ids is None else (ids,) for ids, _, _ in going.values()],
            resumed_req_ids=set(),
            num_computed_tokens=[told[1] for told in going.values()],
        )
        output = Recorded(
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


def test_a_reset_of_the_prefix_cache_alone_is_said_once(
    front: Front, caplog: pytest.LogCaptureFixture
) -> None:
    class Pool:
        cached_block_hash_to_block = object()

    front.scheduler.bind_gpu_block_pool(Pool())
    front.step()
    Pool.cached_block_hash_to_block = object()
    front.scheduler.reset_cache()
    front.step()
    assert not caplog.records
    for _ in range(2):
        Pool.cached_block_hash_to_block = object()
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


def adapter(name: str = "X", path: str = "/x", number: int = 1) -> Any:
    return Recorded("LoRARequest", lora_name=name, lora_path=path, lora_int_id=number)


def key(hashed: bytes = HASH, lora: Any = None, salt: str | None = None, **namespace: Any) -> bytes:
    said: dict[str, dict[str, object]] = {
        "model": {"model": "m", "revision": None},
        "weights": {},
        "dtype": {"kv": "auto"},
    }
    for name, parts in namespace.items():
        said[name] = said.get(name, {}) | parts
    return Root(namespace_of(said, {}).items()).keys([hashed], lora, salt)


DIMENSIONS = {
    "plain": key(),
    "tokens": key(sha256(b"another").digest()),
    "LoRA": key(lora=adapter()),
    "LoRA's path": key(lora=adapter(path="/y")),
    "LoRA's id": key(lora=adapter(number=2)),
    "salt": key(salt="X"),
    "an empty salt": key(salt=""),
    "LoRA and salt": key(lora=adapter(), salt="X"),
    "model": key(model={"model": "n"}),
    "revision": key(model={"revision": "r"}),
    "quantisation": key(weights={"quantization": "fp8"}),
    "KV dtype": key(dtype={"kv": "fp8"}),
    "draft model": key(layout={"drafts": "d"}),
    "ranks": key(parallel={"tensor": 2}),
}


def test_requests_that_differ_in_one_dimension_have_different_keys() -> None:
    assert len(set(DIMENSIONS.values())) == len(DIMENSIONS)
    root = Root([])
    before = root.keys([HASH], adapter(), None)
    root.reloaded(adapter())
    assert root.keys([HASH], adapter(), None) != before
    assert key() == key()


def test_a_hash_that_is_too_short_to_stand_for_tokens_is_refused() -> None:
    with pytest.raises(by.Unsupported, match=r"16 bytes.*sha256"):
        key(b"0" * 16)


# -- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"kv_load_failure_policy": "fail"}, by.Misuse, '"kv_load_failure_policy": "recompute"'),
        ({"kv_role": "kv_producer"}, by.Unsupported, '"kv_role": "kv_both"'),
        ({"prefix_caching_hash_algo": "xxhash"}, by.Unsupported, "algo sha256"),
        ({"decode_context_parallel_size": 2}, by.Unsupported, "decode_context_parallel_size = 2"),
        ({"nnodes": 2}, by.Unsupported, "nnodes = 2"),
        ({"pipeline_parallel_size": 2}, by.Unsupported, "pipeline_parallel_size = 2"),
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
        ({}, "host is missing"),
        ({"host": -1}, "host = -1"),
        ({"host": 64, "config": "/no/such/file"}, "is no configuration"),
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


def test_what_the_operator_adds_to_the_namespace_changes_every_key() -> None:
    def first(**more: Any) -> bytes:
        config = read({"host": 64, **more})[1]
        return Root(dict(config.namespace or ()).items()).keys([HASH], None, None)

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


def test_tensors_are_registered_once_and_no_sleep_is_taken(front: Front) -> None:
    with pytest.raises(by.Misuse, match="twice"):
        front.worker.register_kv_caches(front.kv)
    assert not Blockyard.supports_sleep_mode(None)
