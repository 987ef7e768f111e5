"""What vLLM's connector is told, and what it refuses."""

import json
import logging
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import blockyard as by
from blockyard.connectors.vllm import Blockyard, elsewhere
from blockyard.connectors.vllm.compatibility import facts
from blockyard.connectors.vllm.identity import Root
from blockyard.connectors.vllm.settings import OWN
from vllm_front import HASH, LAYERS, PAGE, kv_config, no_torch, read, vllm_config

__all__ = ["no_torch"]


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"kv_role": "kv_none"}, by.Unsupported, '"kv_role": "kv_both"'),
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
        (kv_config("CircularBufferSpec"), "a ring holds one block"),
        (kv_config("SlidingWindowSpec"), "SlidingWindowSpec alone: models in which no group has"),
        (kv_config(hash_block_size=2), "hashed by 2"),
        (kv_config(kv_tp_replicas=2), "kv_tp_replicas = 2"),
    ],
)
def test_caches_of_another_kind_are_refused(kv: Any, says: str) -> None:
    with pytest.raises(by.Unsupported, match=says):
        facts(vllm_config(), kv, version="0.33.0")


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


def test_one_line_says_what_it_will_do_and_with_how_much_memory() -> None:
    named = {"disk_path": "/kv", "namespace": {"weights": "v1"}}
    settings, config = read({"host": 64, "disk": 4096, **named})
    assert settings.said((config,)) == (
        "Blockyard keeps preempted requests, and offloads full blocks as requests end, in 0.00 GiB "
        "of host a rank (64 blocks), 0.00 GiB of disk a rank (4096 blocks) at /kv, where it "
        "outlives the engine, below vLLM's 32 blocks of 4 tokens and 128 bytes on each of 1 ranks"
    )
    assert config.deadline_of("host") == 60_000
    settings, config = read({"host": 64, "offload": "none", "preempt": "recompute", "deadline": 9})
    assert settings.said((config,)).startswith(
        "Blockyard keeps no preempted request, and offloads full blocks not at all"
    )
    assert config.deadline_of("host") == 9


def test_vllm_recomputes_what_a_load_does_not_bring(caplog: pytest.LogCaptureFixture) -> None:
    roles = import_module("blockyard.connectors.vllm.vllm_api").KVConnectorRole
    config = vllm_config(kv_load_failure_policy="fail")
    with caplog.at_level(logging.INFO):
        Blockyard(config, roles.WORKER, kv_config())
        assert config.kv_transfer_config.kv_load_failure_policy == "fail"
        Blockyard(config, roles.SCHEDULER, kv_config())
    assert config.kv_transfer_config.kv_load_failure_policy == "recompute"
    said = [line for line in caplog.messages if "kv_load_failure_policy" in line]
    assert len(said) == 1
    assert "(it was 'fail')" in said[0]
    caplog.clear()
    with caplog.at_level(logging.INFO):
        Blockyard(config, roles.SCHEDULER, kv_config())
    assert "kv_load_failure_policy" not in caplog.text


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"hst": 64}, r"there is no 'hst'.*did you mean 'host'"),
        ({"offloads": "finish", "host": 64}, "did you mean 'offload'"),
        *(({name: 1, "host": 64}, f"{name} = 1: it comes from vLLM") for name in OWN),
        ({"host": 64, "offload": "always"}, "offload = 'always'"),
        ({"host": 64, "preempt": "drop"}, "preempt = 'drop'"),
        ({"host": 64, "decode": "yes"}, "decode = 'yes'"),
        ({"host": 64, "load": 2}, "load = 2"),
        ({"host": 64, "keep_on_reset": "no"}, "keep_on_reset = 'no'"),
        ({}, "host is missing"),
        ({"host": 64, "disk": 9}, "disk = 9 was given without disk_path"),
        ({"disk": "9 GiB"}, "disk = '9 GiB' was given without disk_path"),
        ({"host": 64, "disk": 9, "disk_path": ""}, "disk_path = ''"),
        ({"host": 64, "disk": 9, "disk_path": "a\0b"}, "give a path"),
        ({"host": 64, "disk": 9, "disk_path": ["/a", "/a/"]}, "give each disk once"),
        ({"host": -1}, "host = -1"),
        ({"host": 64, "config": "/no/such/file"}, "is no configuration"),
        ({"host": 64, "config": "\0"}, "is no configuration"),
        ({"host": 64, "namespace": "mine"}, "namespace = 'mine'"),
    ],
)
def test_an_option_that_is_none_is_named(extra: dict[str, Any], says: str) -> None:
    with pytest.raises(by.Misuse, match=says):
        read(extra)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("hosts", "9 GiB", 'write "host": "9 GiB"'),
        ("host_blocks", 64, 'write "host": 64'),
        ("host_blocks", "many", 'write "host": "64 GiB"'),
        ("cpu_bytes_to_use", 64 << 30, 'write "host": "64 GiB"'),
        ("cpu_bytes_to_use", 5e8, 'write "host": "0.4656612873 GiB"'),
        ("cpu_bytes_to_use", None, 'write "host": "64 GiB"'),
        ("cpu_bytes_to_use", float("nan"), 'write "host": "64 GiB"'),
        ("cpu_bytes_to_use", 10**400, 'write "host": "64 GiB"'),
        ("cpu_bytes_to_use_per_rank", 1 << 30, 'write "host": "1 GiB/rank"'),
        ("max_local_cpu_size", 20, 'write "host": "20 GiB/rank"'),
        ("lmcache.max_local_cpu_size", "2.5", 'write "host": "2.5 GiB/rank"'),
        ("LMCache.Chunk-Size", 256, "leave it out: the unit is vLLM's block"),
        ("lmcache.mp.port", 5555, "leave it out: LMCache's keys mean nothing here"),
        ("local_disk", "file:///mnt/a", 'write "disk_path": "/mnt/a", with "disk": "1 TiB"'),
        ("local_disk", True, 'write "disk_path": "/mnt/kv"'),
        ("disk_capacity_bytes", 1 << 40, 'write "disk": "1024 GiB", with "disk_path": "/mnt/kv"'),
        ("save_decode_cache", False, 'write "decode": false'),
        ("offload_prompt_only", True, 'write "decode": false'),
        ("cache_policy", "arc", 'write "eviction": "learned"'),
        ("kv_role", "kv_both", "leave it out: write it beside kv_connector_extra_config"),
        ("host_memory", "64G", 'write "host": "64 GiB"'),
        ("ram", "512Mi", 'write "host": "512 MiB"'),
        ("cpu", " 64 ", 'write "host": "64 GiB"'),
        ("host_size", "half", 'write "host": "64 GiB"'),
        ("hosts", True, 'write "host": "64 GiB"'),
        ("hosts", {"a": 1}, 'write "host": "64 GiB"'),
        ("hosts", 0, 'write "host": "64 GiB"'),
        ("cpu_bytes_to_use", True, 'write "host": "64 GiB"'),
        ("disk_size", "2T", 'write "disk": "2 TiB", with "disk_path": "/mnt/kv"'),
        ("save_decode_cache", "false", 'write "decode": false'),
        ("lazy_offload", "False", 'write "offload": "through"'),
    ],
)
def test_what_it_is_called_elsewhere_is_answered_with_what_it_is_here(
    name: str, value: object, says: str
) -> None:
    with pytest.raises(by.Misuse) as refused:
        read({"host": 64, name: value})
    assert f"there is no {name!r} in kv_connector_extra_config: {says}" in str(refused.value)


NONSENSE: tuple[Any, ...] = (
    *(
        None,
        True,
        "",
        "65536",
        "64G",
        "a",
        "/a",
        "50%",
        0,
        -1,
        2000.5,
        1 << 36,
        1e309,
        [],
        {"a": 1},
    ),
)


@pytest.mark.parametrize("name", sorted(elsewhere._WHERE))
def test_the_line_that_is_advised_is_accepted(name: str) -> None:
    for value in NONSENSE:
        said = elsewhere.here(name, value)
        assert said is not None
        extra = {"host": 64, "preempt": "recompute"}
        extra |= json.loads("{" + re.sub(", with ", ", ", said.removeprefix("write ")) + "}")
        read({"namespace": {"weights": "v1"}, **extra})


@pytest.mark.parametrize("path", ["~/kv", ["/mnt/a", "~/kv"]])
def test_a_path_may_begin_at_home(path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    extra = {"host": 64, "disk": 64, "disk_path": path, "namespace": {"weights": "v1"}}
    found = read(extra)[0].disk_path
    assert found == ("/home/me/kv" if isinstance(path, str) else ["/mnt/a", "/home/me/kv"])
    with pytest.raises(by.Misuse, match="Give the whole path"):
        read(extra | {"disk_path": "~nobody-of-that-name/kv"})


def test_a_name_in_capitals_is_answered_with_the_nearest() -> None:
    with pytest.raises(by.Misuse, match="did you mean 'host'"):
        read({"HOST": "64 GiB"})


def test_a_host_that_holds_no_request_of_full_length_is_too_small() -> None:
    with pytest.raises(by.TooLarge, match=r"max_model_len = 64 tokens has 16 blocks.*15 at most"):
        read({"host": 15})
    assert read({"host": 15, "preempt": "recompute"})[0].preempt == "recompute"
    named = {"disk_path": "/kv", "namespace": {"weights": "v1"}}
    assert read({"host": 2, "disk": 16, **named})[1].disk_blocks == 16


def test_a_file_gives_what_the_command_line_does_not(tmp_path: Path) -> None:
    path = tmp_path / "blockyard.toml"
    path.write_text('[blockyard]\nhost = 40\noffload = "none"\ndeadline = 9\n')
    settings, config = read({"config": str(path), "host": 50})
    assert (settings.offload, config.host_blocks) == ("none", 50)
    assert config.layout is not None
    assert config.layout.block_bytes == LAYERS * PAGE


def test_a_file_without_a_table_is_named(tmp_path: Path) -> None:
    path = tmp_path / "blockyard.toml"
    path.write_text("blockyard = 5")
    with pytest.raises(by.Misuse, match="blockyard = 5 in it"):
        read({"config": str(path)})
    path.write_text("host = " + "[" * 5_000 + "]" * 5_000)
    with pytest.raises(by.Misuse, match="it is no configuration"):
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
