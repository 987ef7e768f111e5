"""How the connector comes into vLLM: by its name, and with its lines in vLLM's own log."""

import io
import logging
from collections.abc import Iterator
from importlib.metadata import entry_points
from logging.config import dictConfig
from typing import Any

import pytest

from blockyard.connectors.vllm import Blockyard, vllm_api
from blockyard.shared.log import Limited, join
from vllm_front import Front, no_torch

__all__ = ["no_torch"]


class Factory:
    """vLLM's, which refuses a name that it has."""

    def __init__(self) -> None:
        self.registered: dict[str, tuple[str, str]] = {}

    def register_connector(self, name: str, module_path: str, class_name: str) -> None:
        if name in self.registered:
            raise ValueError(f"Connector '{name}' is already registered.")
        self.registered[name] = module_path, class_name


@pytest.fixture
def restored_loggers() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("blockyard", "vllm")]
    before = [(one, one.parent, one.level, one.handlers[:], one.propagate) for one in loggers]
    yield
    for one, parent, level, handlers, propagate in before:
        one.parent, one.propagate = parent, propagate
        one.handlers[:] = handlers
        one.setLevel(level)


@pytest.mark.usefixtures("restored_loggers")
def test_the_wheel_registers_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    (point,) = (
        one for one in entry_points(group="vllm.general_plugins") if one.name == "blockyard"
    )
    factory = Factory()
    path = "vllm.distributed.kv_transfer.kv_connector.factory.KVConnectorFactory"
    monkeypatch.setattr(path, factory)
    register = point.load()
    for _ in range(2):  # vLLM may call it as often as it likes
        register()
    assert factory.registered == {"Blockyard": ("blockyard.connectors.vllm", "Blockyard")}
    module, name = factory.registered["Blockyard"]
    assert getattr(__import__(module, fromlist=["-"]), name) is Blockyard


@pytest.mark.usefixtures("restored_loggers")
@pytest.mark.parametrize("fault", [TypeError("three arguments"), KeyError("x"), RuntimeError("no")])
def test_a_vllm_that_takes_no_names_starts_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: Exception
) -> None:
    def refuse(*_: object) -> None:
        raise fault

    path = "vllm.distributed.kv_transfer.kv_connector.factory.KVConnectorFactory"
    monkeypatch.setattr(f"{path}.register_connector", refuse)
    vllm_api.register()
    assert '"kv_connector_module_path": "blockyard.connectors.vllm"' in caplog.text


def configured(level: str = "INFO") -> io.StringIO:
    """Configures logging as vLLM does: its own logger alone."""
    printed = io.StringIO()
    dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"vllm": {"format": "(EngineCore pid=1) %(levelname)s %(message)s"}},
            "handlers": {
                "vllm": {"class": "logging.StreamHandler", "formatter": "vllm", "stream": printed}
            },
            "loggers": {"vllm": {"handlers": ["vllm"], "level": level, "propagate": False}},
        }
    )
    return printed


@pytest.mark.usefixtures("restored_loggers")
def test_the_first_lines_are_printed_where_vllms_are() -> None:
    printed = configured()
    front = Front(changes={"kv_load_failure_policy": "fail"})
    said = printed.getvalue().splitlines()
    assert said[0].startswith("(EngineCore pid=1) INFO Blockyard sets kv_load_failure_policy")
    assert said[1].startswith("(EngineCore pid=1) INFO Blockyard keeps preempted requests")
    front.worker.shutdown()


@pytest.mark.usefixtures("restored_loggers")
def test_what_was_restored_is_printed_there(tmp_path: Any) -> None:
    named: dict[str, Any] = {"disk": 64, "disk_path": str(tmp_path), "namespace": {"weights": "v1"}}
    printed = configured()
    front = Front(**named)
    front.scheduler.set_xfer_handshake_metadata_pp_aware(
        {(0, 0): front.worker.get_handshake_metadata()}
    )
    assert "INFO Blockyard has found 0 blocks on the disk" in printed.getvalue()
    front.worker.shutdown()


@pytest.mark.usefixtures("restored_loggers")
def test_the_level_and_later_changes_are_vllms_and_an_own_handler_stays() -> None:
    log, again = Limited("blockyard.test_join", 0), logging.getLogger("blockyard.test_join")
    assert not again.isEnabledFor(logging.INFO)
    join("vllm")
    printed = configured()
    log.info("one")
    # It is configured again, as in each process.
    printed_later = configured("WARNING")
    log.info("two")
    log.warning("three")
    assert printed.getvalue() == "(EngineCore pid=1) INFO one\n"
    assert printed_later.getvalue() == "(EngineCore pid=1) WARNING three\n"

    own = io.StringIO()
    logging.getLogger("blockyard").addHandler(handler := logging.StreamHandler(own))
    logging.getLogger("blockyard").parent = logging.getLogger()
    join("vllm")
    log.warning("four")
    logging.getLogger("blockyard").removeHandler(handler)
    assert own.getvalue() == "four\n"
    assert "four" not in printed_later.getvalue()


@pytest.mark.usefixtures("restored_loggers")
def test_a_line_names_the_place_that_has_written_it(caplog: pytest.LogCaptureFixture) -> None:
    Limited("blockyard.test_place").warning("here")
    assert [record.filename for record in caplog.records] == ["test_vllm_start.py"]
