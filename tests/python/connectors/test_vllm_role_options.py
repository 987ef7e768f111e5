"""The operator's options of the roles kv_producer and kv_consumer inside vLLM: what is refused."""

from pathlib import Path
from typing import Any

import pytest

import blockyard as by
from blockyard.connectors.vllm import Blockyard
from blockyard.connectors.vllm.compatibility import facts
from blockyard.connectors.vllm.settings import Settings
from blockyard.crane.tiers import nixl_source
from vllm_front import kv_config, no_torch, vllm_config

__all__ = ["no_torch"]

WEIGHTS = {"weights": "v1"}
PEERS = ["127.0.0.1:7000"]


@pytest.mark.parametrize(
    ("role", "extra", "says"),
    [
        ("kv_producer", {}, 'kv_role = "kv_producer" without listen.*"listen": "10.0.0.7:7000"'),
        ("kv_consumer", {}, 'kv_role = "kv_consumer" without peers.*"peers": ."10.0.0.7:7000"'),
        ("kv_producer", {"listen": "127.0.0.1:0", "peers": PEERS}, "leave them out"),
        ("kv_consumer", {"listen": "127.0.0.1:0", "peers": PEERS}, "leave it out"),
        ("kv_producer", {"listen": "7000"}, "listen = '7000': give host:port"),
        ("kv_producer", {"listen": "127.0.0.1:0", "advertise": "x"}, "advertise = 'x'"),
        ("kv_producer", {"listen": "[::1]:0", "advertise": "0.0.0.0:1"}, "would name 0.0.0.0:1"),
        (
            "kv_producer",
            {"listen": "127.0.0.1:0", "lease": 0},
            "lease = 0: must be seconds, more than 0",
        ),
        ("kv_producer", {"listen": "127.0.0.1:0", "unread": -1}, "unread = -1"),
        ("kv_producer", {"listen": "127.0.0.1:0", "offload": "none"}, '"offload": "finish"'),
        ("kv_producer", {"listen": "127.0.0.1:0", "patience": 1}, "patience was given without pe"),
        ("kv_consumer", {"peers": "127.0.0.1:7000"}, "peers = '127.0.0.1:7000': give a list"),
        ("kv_consumer", {"peers": PEERS * 2}, "peers name one twice"),
        ("kv_consumer", {"peers": PEERS, "patience": 0}, "patience = 0"),
        ("kv_consumer", {"peers": PEERS, "lease": 1}, "lease was given without listen"),
        ("kv_consumer", {"peers": PEERS, "secret_file": "/no/file"}, "secret_file = '/no/file'"),
        ("kv_both", {"secret_file": "/no/file"}, "secret_file was given without listen or peers"),
        ("kv_producer", {"listen": "0.0.0.0:7000"}, "listen = '0.0.0.0:7000' without a secret"),
        ("kv_consumer", {"peers": ["kv:7000"]}, "peers = 'kv:7000' without a secret.*secret_file"),
        ("kv_both", {"unread": 1}, "unread was given without listen"),
        ("kv_both", {"carrier": "nixl"}, "carrier was given without listen or peers"),
        (
            "kv_consumer",
            {"peers": PEERS, "carrier": "rdma"},
            "carrier = 'rdma': must be one of",
        ),
        ("kv_both", {"remote_names": 1}, "remote_names was given without remote"),
    ],
)
def test_wrong_options_are_refused_by_name(role: str, extra: dict[str, Any], says: str) -> None:
    given = {"host": 64, "namespace": WEIGHTS} | extra
    config = vllm_config(kv_role=role, kv_connector_extra_config=given)
    roles = Blockyard.__init__.__globals__["KVConnectorRole"]
    with pytest.raises(by.Misuse, match=says):
        Blockyard(config, roles.SCHEDULER, kv_config())


def test_offers_name_an_address_that_one_can_connect_to(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"x" * 32)
    known = facts(vllm_config(), kv_config(), version="0.33.0")
    given = {"host": 64, "namespace": WEIGHTS, "secret_file": str(secret)}
    with pytest.raises(by.Misuse, match=r'"advertise": "10.0.0.7:7000"'):
        Settings.read(given | {"listen": "0.0.0.0:7000"}, known)
    Settings.read(given | {"listen": "0.0.0.0:7000", "advertise": "10.0.0.7:7000"}, known)


@pytest.mark.parametrize("extra", [{"listen": "127.0.0.1:0"}, {"peers": PEERS}])
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tensor_parallel_size": 2}, "with 2 ranks is not supported.*--tensor-parallel-size 1"),
        ({"pipeline_parallel_size": 2}, "with 2 ranks is not supported"),
    ],
)
def test_set_ups_that_are_not_supported_are_refused_by_name(
    extra: dict[str, Any], changes: dict[str, Any], says: str
) -> None:
    given = {"host": 64, "namespace": WEIGHTS} | extra
    known = facts(vllm_config(**changes), kv_config(), version="0.33.0")
    with pytest.raises(by.Unsupported, match=says):
        Settings.read(given, known)


@pytest.mark.parametrize("extra", [{"listen": "127.0.0.1:0"}, {"peers": PEERS}])
def test_beside_another_connector_it_hands_nothing_over(extra: dict[str, Any]) -> None:
    known = facts(vllm_config(), kv_config(), version="0.33.0")._replace(beside="NixlConnector")
    given = {"host": 64, "namespace": WEIGHTS} | extra
    with pytest.raises(by.Unsupported, match="NixlConnector in a MultiConnector is not supported"):
        Settings.read(given, known)
    with pytest.raises(by.Unsupported, match=r'beside NixlConnector.*"kv_role": "kv_both"'):
        Settings.read(given, known._replace(role="kv_producer"))


def test_replicas_need_an_address_each() -> None:
    known = facts(vllm_config(), kv_config(), version="0.33.0")
    known = known._replace(replica=known.replica._replace(number=1, total=2))
    given = {"host": 64, "namespace": WEIGHTS, "listen": "127.0.0.1:7000"}
    with pytest.raises(by.Misuse, match="without --data-parallel-size"):
        Settings.read(given, known)


@pytest.mark.parametrize("extra", [{"listen": "127.0.0.1:0"}, {"peers": PEERS}])
def test_weights_that_nobody_can_name_are_handed_to_nobody(extra: dict[str, Any]) -> None:
    known = facts(vllm_config(), kv_config(), version="0.33.0")
    with pytest.raises(by.Misuse, match="weights cannot be identified"):
        Settings.read({"host": 64} | extra, known)


@pytest.mark.parametrize("extra", [{"listen": "127.0.0.1:0"}, {"peers": ["127.0.0.1:7000"]}])
def test_nixl_that_is_not_installed_is_missed_at_the_start(
    extra: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nixl_source, "wheel", lambda: None)
    known = facts(vllm_config(), kv_config(), version="0.33.0")
    given = {"host": 64, "namespace": WEIGHTS, "carrier": "nixl"} | extra
    with pytest.raises(by.Unsupported, match="NIXL is not installed: pip install"):
        Settings.read(given, known)
