"""What doctor says of shared stores: what would be refused, and whether they answer."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

import blockyard as by
from blockyard.shared import extras
from blockyard.tools.doctor import stores
from blockyard.tools.doctor.cli import examined
from blockyard.tools.doctor.finding import Demand, Finding, Site

SAFE: dict[str, Any] = {"host": "64 MiB", "namespace": {"weights": "v1"}}


def found(line: str, group: str) -> dict[str, Finding]:
    engine = "vllm" if "vllm" in line else "sglang"
    return {one.name: one for one in examined(lines={engine: line}).get(group, [])}


def vllm(**extra: Any) -> str:
    said = {
        "kv_connector": "Blockyard",
        "kv_connector_module_path": "blockyard.connectors.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {**SAFE, **extra},
    }
    return f"vllm serve nobody/nothing --kv-transfer-config {shlex.quote(json.dumps(said))}"


def sglang(**extra: Any) -> str:
    said = {
        "backend_name": "blockyard",
        "module_path": "blockyard.engines.sglang",
        "class_name": "Storage",
        "interface_v1": 1,
        "namespace": {"weights": "v1"},
        **extra,
    }
    return (
        "python -m sglang.launch_server --model-path M --enable-hierarchical-cache "
        "--hicache-mem-layout page_first --hicache-storage-backend dynamic "
        f"--hicache-storage-backend-extra-config {shlex.quote(json.dumps(said))}"
    )


@pytest.mark.parametrize("line", [vllm, sglang])
def test_a_store_that_keeps_what_it_is_given_is_fine(line: Any, tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    (one,) = found(line(remote=url), "stores").values()
    assert one.level == "ok"
    assert url in one.fact
    assert not [path for path in (tmp_path / "store").rglob("*") if path.is_file()]


def test_stores_of_a_configuration_are_asked_too(tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    file = tmp_path / "yard.toml"
    text = f'device = 100\ndeadline = 60000\nstores = ["{url}"]\n'
    file.write_text(text)
    (names,) = [one for one in examined(file=file)["configuration"] if one.name == "stores"]
    assert names.level == "fail", "without a namespace by.local refuses it"
    file.write_text(text + 'namespace = {model = "m", weights = "v1"}\n')
    (one,) = examined(file=file)["stores"]
    assert (one.level, url in one.fact) == ("ok", True)


def test_a_store_that_does_not_answer_is_a_warning() -> None:
    pytest.importorskip("redis")
    (one,) = found(vllm(remote="redis://127.0.0.1:1"), "stores").values()
    assert one.level == "warn"
    assert "blockyard store check redis://127.0.0.1:1" in one.do
    assert "start the server" in one.fact
    assert one.fact.count("redis://127.0.0.1:1") == 1, "named once"


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Any:
        raise by.Unavailable(f"it needs a package: {extras.install('redis')}")

    monkeypatch.setattr(stores, "opened", refuse)
    one = stores.answers("redis://host", None, Site())
    assert one.level == "fail"
    assert "[redis]" in one.fact


def test_a_store_that_loses_what_it_acknowledged_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from blockyard.stores.folder_store import FolderSession  # noqa: PLC0415 - to be changed

    monkeypatch.setattr(FolderSession, "put", lambda *_: None)
    url = (tmp_path / "store").as_uri()
    one = stores.answers(url, None, Site(asked=Demand(stores=((url, None),))))
    assert one.level == "warn"
    assert "it has 0 of 4 blocks" in one.fact


@pytest.mark.parametrize(
    ("extra", "why"),
    [
        ({"remote": "redis://:hidden@host"}, "password"),
        ({"remote": "ftp://host"}, "scheme"),
        ({"remote": "redis://host", "remote_names": 0}, "remote_names = 0"),
        ({"password_file": "/p"}, "without remote"),
        ({"remote_url": "redis://host:6379"}, '"remote": "redis://host:6379"'),
    ],
)
def test_what_vllm_would_refuse_fails(extra: dict[str, Any], why: str) -> None:
    failed = [one for one in found(vllm(**extra), "vLLM").values() if one.level == "fail"]
    assert failed
    assert any(why in f"{one.fact} {one.do}" for one in failed)
    assert not any("hidden" in f"{one.fact} {one.means} {one.do}" for one in failed)


def test_what_sglang_would_refuse_fails() -> None:
    failed = [
        one
        for one in found(sglang(remote="redis://:hidden@host"), "SGLang").values()
        if one.level == "fail"
    ]
    assert any("password" in one.fact for one in failed)
    assert not any("hidden" in f"{one.fact} {one.means} {one.do}" for one in failed)


@pytest.mark.parametrize(
    ("namespace", "level"), [("", "fail"), ('namespace = {model = "m", weights = "v1"}', "ok")]
)
def test_a_configuration_with_names_needs_a_namespace(
    tmp_path: Path, namespace: str, level: str
) -> None:
    file = tmp_path / "yard.toml"
    file.write_text(f"device = 100\nhost = 100\nremote = 1000\ndeadline = 60000\n{namespace}\n")
    (one,) = [one for one in examined(file=file)["configuration"] if one.name == "stores"]
    assert one.level == level
