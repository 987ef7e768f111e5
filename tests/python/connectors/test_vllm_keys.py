"""Whose KV it is inside vLLM: what differs is never served. E8 E9"""

import os
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest

import blockyard as by
from blockyard._typing import override
from blockyard.connectors.connector import Connector
from blockyard.connectors.vllm import Blockyard
from blockyard.connectors.vllm.compatibility import facts
from blockyard.connectors.vllm.identity import Root, fingerprint_of, namespace_of
from blockyard.connectors.vllm.settings import Settings
from blockyard.crane.copiers import Receipt
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.testing import Script, ScriptedCopier, hang
from vllm_front import (
    HASH,
    SIZE,
    Drafts,
    Front,
    Pool,
    adapter,
    ended,
    front,
    kv_config,
    no_torch,
    root_of,
    vllm_config,
)
from vllm_stub import Recorded

__all__ = ["front", "no_torch"]


class OtherDrafts(Drafts):
    model = "another draft model"


OF_AN_ENGINE: dict[str, dict[str, Any]] = {
    "model": {"model": "another model"},
    "revision": {"revision": "main"},
    "weights": {"kv_connector_extra_config": {"host": 64, "namespace": {"weights": "v2"}}},
    "quantisation": {"quantization": "fp8"},
    "type of the model": {"dtype": "float16"},
    "type of the KV": {"cache_dtype": "fp8"},
    "draft model": {"speculative_config": Drafts()},
    "another draft model": {"speculative_config": OtherDrafts()},
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


@pytest.mark.law("E8")
def test_e8_engines_that_differ_in_one_dimension_have_different_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [key(), *(key(**change) for change in OF_AN_ENGINE.values())]
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    keys.append(key())
    monkeypatch.delenv("PYTHONHASHSEED")
    weights = tmp_path / "model.safetensors"
    for content in (b"one", b"two"):
        weights.write_bytes(content)
        os.utime(weights, (0, 0))
        keys.append(key(model=str(tmp_path)))
        assert key(model=str(weights)) == keys[-1], "the path is none of it"
    keys += [key(hf_config=Hub(**change)) for change in CONFIGURATIONS.values()]
    assert len(set(keys)) == len(keys)
    assert key() == keys[0]


class Hub:
    """A configuration of Transformers'."""

    def __init__(self, **fields: Any) -> None:
        self._commit_hash = fields.pop("commit", None)
        self.fields = {"_name_or_path": "/here", "rope_parameters": {"rope_theta": 1e4}} | fields

    def to_dict(self) -> dict[str, Any]:
        return self.fields


CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "another base of the rotary embedding": {"rope_parameters": {"rope_theta": 5e3}},
    "YaRN": {"rope_parameters": {"rope_theta": 1e4, "rope_type": "yarn", "factor": 4.0}},
    "in a part of it": {"text_config": {"rms_norm_eps": 1e-6}},
    "a commit of a hub": {"commit": "of a hub"},
}


def test_e8_names_and_paths_are_no_dimension(tmp_path: Path) -> None:
    seen = set()
    for folder in (tmp_path / "a", tmp_path / "elsewhere" / "b"):
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"weights")
        (folder / "config.json").write_text('{"hidden_size": 8}')
        hub = Hub(_name_or_path=str(folder), tokenizer_file=str(folder / "tokenizer.json"))
        own = tmp_path / f"{folder.name}.json"
        own.write_text('{"hidden_size": 8}')
        given = {"model": str(folder), "hf_config": hub, "hf_config_path": str(own)}
        seen.add(key(**given, revision=folder.name, served_model_name=folder.name))
        seen.add(key(**given, gpu_memory_utilization=0.5, max_logprobs=5, seed=3))
    assert len(seen) == 1


@pytest.mark.parametrize(
    "option", ["max_model_len", "hf_overrides", "hf_config_path", "model_impl"]
)
def test_e8_other_options_of_the_model_are_other_keys(option: str) -> None:
    assert len({key(), key(**{option: 65}), key(**{option: 66})}) == 3


def test_e8_options_of_the_multimodal_processor_are_other_keys() -> None:
    parts: list[dict[str, Any]] = [{}, {"num_crops": 4}, {"num_crops": 8}]
    seen = {key(multimodal_config=SimpleNamespace(mm_processor_kwargs=one)) for one in parts}
    assert len(seen) == len(parts)
    more = SimpleNamespace(mm_processor_kwargs={}, mm_processor_cache_gb=9)
    assert key(multimodal_config=more) in seen


def test_e8_variables_of_vllm_are_other_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    first = key()
    for name in ("VLLM_LOGGING_LEVEL", "VLLM_HOST_IP", "VLLM_SET_BY_ITSELF"):
        monkeypatch.setenv(name, "7")
    assert key() == first
    monkeypatch.setenv("VLLM_MLA_DISABLE", "1")
    assert key() != first


def test_what_a_worker_writes_into_its_configuration_is_no_difference() -> None:
    configs = []
    for change in ({}, {"max_model_len": 64}):
        config = vllm_config(hf_config=Hub(**change))
        known = facts(config, kv_config(), version="0.33.0")
        _, (read,) = Settings.read({"host": 64}, known._replace(blocks=32, longest=64))
        configs.append(read)
    assert configs[0].identity != configs[1].identity
    assert fingerprint_of(configs[0]) == fingerprint_of(configs[1])


def hashes_of(salt: str) -> list[bytes]:
    """What vLLM hashes where a request has other tokens, media, places of them, or embeddings."""
    return [sha256(f"{salt} {at}".encode()).digest() for at in range(3)]


OF_A_REQUEST: dict[str, dict[str, Any]] = {
    "nothing": {},
    "tokens, media and their positions, prompt embeddings": {"block_hashes": hashes_of("other")},
    "a LoRA adapter": {"lora_request": adapter()},
    "its name, path and number": {"lora_request": adapter("Y", "y", 2)},
    "its weights": {"lora_request": adapter(path="z", weights=b"others")},
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


@pytest.mark.law("E8")
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
        alike = ALIKE.get(dimension, {dimension})
        assert found(front, **more) == (12 if other in alike else 0), other
        front.worker.shutdown()


#: Who asks for an adapter after it was loaded again asks for what it is now; and its content alone
#: counts here: vLLM's hashes have its name and path.
ALIKE = {
    "its version": {"a LoRA adapter"},
    "a LoRA adapter": {"a LoRA adapter", "its name, path and number"},
    "its name, path and number": {"a LoRA adapter", "its name, path and number"},
}


@pytest.mark.law("E8")
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


@pytest.mark.law("E8")
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


@pytest.mark.law("E9")
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


@pytest.mark.law("E8")
@pytest.mark.parametrize("how", ["a hub's", "broken link", "not there", "no text"])
def test_e8_an_adapter_whose_files_are_not_to_be_seen_is_not_kept(how: str, tmp_path: Path) -> None:
    path = {"a hub's": "org/adapter", "not there": str(tmp_path / "no"), "no text": "\0"}.get(how)
    if path is None:
        path = str(tmp_path)
        (tmp_path / "adapter_model.bin").write_bytes(b"one")
        (tmp_path / "more.safetensors").symlink_to("/nowhere")
    lora = Recorded("LoRARequest", lora_name="X", lora_path=path, lora_int_id=1, load_inplace=False)
    assert root_of().start(lora, None) is None


@pytest.mark.law("E8")
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


@pytest.mark.law("E8")
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


@pytest.mark.law("E9")
def test_e9_what_runs_at_a_reset_below_offloads_nothing_afterwards(front: Front) -> None:
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
    assert found(front) == 12, "what has begun since is offloaded"


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


@pytest.mark.law("E8")
def test_every_load_in_place_is_another_version_and_stays_that() -> None:
    root = root_of()

    def now(**more: Any) -> bytes:
        return root.keys([HASH], root.start(adapter(**more), None))

    first = now()
    assert now() == first
    second = now(again=True)
    assert now() == second != first
    assert now(again=True) not in {first, second}


@pytest.mark.law("E8")
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


@pytest.mark.law("E8")
def test_a_hash_that_is_too_short_to_stand_for_tokens_is_refused() -> None:
    with pytest.raises(by.Unsupported, match=r"16 bytes.*sha256"):
        root_of().keys([b"0" * 16], root_of().start(None, None))
