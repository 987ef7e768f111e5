"""What SGLang's server says of its model and adapters, and what the storage says to it."""

import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import blockyard as by
import sglang_stub as stub
from blockyard.connectors.sglang import Storage
from sglang_pages import config, fill, keys, opened, put, refused, take, whole


def published(monkeypatch: pytest.MonkeyPatch, **leaves: Any) -> None:
    import sglang.srt.runtime_context as context  # noqa: PLC0415

    for getter in ("get_model", "get_lora", "get_spec"):
        monkeypatch.setattr(context, getter, lambda: SimpleNamespace(**leaves))


def test_files_of_weights_stand_for_them_and_changed_ones_are_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, disk = tmp_path / "model", tmp_path / "disk"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    published(monkeypatch, model_path=str(folder), dtype="auto")
    bare = {"namespace": None}
    storage = opened(disk, extra=bare)
    named = whole(storage, "a", 3)
    storage.close()
    storage = opened(disk, extra=bare)
    assert storage.batch_exists(named) == 3
    storage.close()
    for changed in (
        {"dtype": "float16"},
        {"kv_cache_dtype": "fp8_e5m2"},
        {"quantization": "fp8"},
        {"load_format": "dummy"},
        {"json_model_override_args": '{"rope_theta": 1}'},
        {"quantization_param_path": "scales.json"},
        {"speculative_algorithm": "EAGLE"},
    ):
        published(monkeypatch, **({"model_path": str(folder), "dtype": "auto"} | changed))
        storage = opened(disk, extra=bare)
        assert storage.batch_exists(named) == 0, changed
        storage.close()
    published(monkeypatch, model_path=str(folder), dtype="auto")
    (folder / "model.safetensors").write_bytes(b"others")
    storage = opened(disk, extra=bare)
    assert storage.batch_exists(named) == 0
    storage.close()


def test_a_commit_stands_for_weights_and_a_branch_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = {"namespace": None}
    published(monkeypatch, model_path="of/a-hub", revision="main")
    refused(tmp_path, by.Misuse, "or --revision with a commit", extra=bare)
    published(monkeypatch, model_path="of/a-hub", revision="0123456789" * 4)
    opened(tmp_path, extra=bare).close()


def test_a_drafter_that_is_not_to_be_seen_is_refused_unless_the_operator_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter, disk, none = (tmp_path / name for name in ("drafter", "disk", "none"))
    drafter.mkdir()
    none.mkdir()
    (drafter / "model.safetensors").write_bytes(b"one")
    model = {"model_path": "of/a-hub", "revision": "0123456789" * 4}
    bare, says = {"namespace": None}, '"namespace": {"weights": "v1"}'
    published(monkeypatch, **model, speculative_draft_model_path=str(drafter))
    opened(disk, extra=bare).close()
    published(monkeypatch, **model, speculative_draft_model_path="of/a-drafter")
    refused(none, by.Misuse, says, extra=bare)
    opened(disk).close()
    more = {"speculative_draft_load_format": "remote"}
    published(monkeypatch, **model, speculative_draft_model_path=str(drafter), **more)
    refused(none, by.Misuse, says, extra=bare)


def test_adapters_of_the_start_are_told_by_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter, disk = tmp_path / "adapter", tmp_path / "disk"
    adapter.mkdir()
    weights = adapter / "adapter_model.safetensors"
    weights.write_bytes(b"one")
    refs = [SimpleNamespace(lora_name="sql", lora_path=str(adapter))]
    published(monkeypatch, enable_lora=True, lora_paths=refs)
    storage = opened(disk)
    named = whole(storage, "a", 3)
    storage.close()
    storage = opened(disk)
    assert storage.batch_exists(named) == 3
    storage.close()
    weights.write_bytes(b"another")
    storage = opened(disk)
    assert storage.batch_exists(named) == 0
    storage.close()
    refs[0].lora_path = "of/a-hub"
    text = "adapter 'sql' at 'of/a-hub': its files cannot be read"
    with pytest.raises(by.Unsupported, match=text):
        Storage(config(disk), {})
    published(monkeypatch, enable_lora=False, lora_paths=refs)
    Storage(config(disk), {})


def test_sglangs_own_metrics_have_pages_and_bandwidth(tmp_path: Path) -> None:
    storage = opened(tmp_path, enable_storage_metrics=True)
    named = whole(storage, "a", 5)
    assert take(storage, [*named, *keys("b", 1)], *range(6, 12)) == [True] * 5 + [False]
    figures = storage.get_stats()
    assert type(figures) is stub.StorageMetrics
    assert (figures.prefetch_pgs, figures.backup_pgs) == ([5], [5])
    assert figures.prefetch_bandwidth[0] > 0
    assert figures.backup_bandwidth[0] > 0
    assert storage.get_stats() == stub.StorageMetrics()
    storage.close()


def test_the_log_says_what_was_opened_and_warns_once_of_unknown_parents(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    storage = opened(tmp_path)
    assert re.search(
        r"Blockyard keeps 16 pages of 4 tokens and 1536 bytes in .*rank-0, and found 0 there",
        caplog.text,
    )
    fill(storage.mem_pool_host, 0, 1)
    for name in "ab":
        assert put(storage, keys(name, 2), 0, 1, before=None) == [True, True]
    assert caplog.text.count("'hicache_storage_pass_prefix_keys': true") == 1
    storage.close()
