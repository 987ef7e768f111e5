"""Stubs of vLLM, made from what `tests/engines/record.py` has written down of it.

An object of a recorded kind has the recorded fields and no others: a connector that touches
anything else fails here, before a new version of vLLM makes it fail. Importing this puts the stubs
where imports find them, unless vLLM is installed.
"""

import enum
import importlib.util
import json
import sys
from abc import ABC
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import kv_events
from blockyard._typing import override

RECORD: Final = json.loads(
    (Path(__file__).parents[1] / "connectors" / "vllm_0_33.json").read_text("utf-8")
)


class Recorded:
    """An object of vLLM."""

    def __init__(self, kind: str, **fields: Any) -> None:
        vars(self)["_kind"] = kind
        for name, value in fields.items():
            setattr(self, name, value)

    @override
    def __setattr__(self, name: str, value: Any) -> None:
        if name not in RECORD["fields"][self._kind]:
            raise AttributeError(f"vLLM's {self._kind} has no {name!r}")
        vars(self)[name] = value

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"this {vars(self)['_kind']} was given no {name!r}")


def spec(kind: str, **fields: Any) -> Any:
    """A KV cache spec, whose class has its name."""
    return type(kind, (Recorded,), {})("FullAttentionSpec", **fields)


def method(name: str, parameters: list[str]) -> Any:
    """A method of the base class, which takes what the recorded one takes."""

    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(name)

    call.__name__ = name
    call.recorded = parameters  # type: ignore[attr-defined]
    return call


def base() -> type:
    """A `KVConnectorBase_V1` with the recorded methods."""
    methods = RECORD["calls"]["KVConnectorBase_V1"]
    body: dict[str, Any] = {name: method(name, parameters) for name, parameters in methods.items()}

    def begin(self: Any, *config: Any) -> None:
        assert len(config) == len(methods["__init__"])
        self._connector_metadata = None

    def bind(self: Any, connector_metadata: Any) -> None:
        self._connector_metadata = connector_metadata

    own: dict[str, Any] = {
        "__init__": begin,
        "bind_connector_metadata": bind,
        "_get_connector_metadata": lambda self: self._connector_metadata,
    }
    return type("KVConnectorBase_V1", (ABC,), body | own)


@dataclass
class Stats:
    """`KVConnectorStats`."""

    data: dict[str, Any] = field(default_factory=dict)


class PromMetrics:
    """`KVConnectorPromMetrics`; a metric's class says what is made of it."""

    def __init__(self, _config: Any, types: Any, names: list[str], engines: Any) -> None:
        self._counter_cls, self._gauge_cls = types["Counter"], types["Gauge"]
        self._labelnames, self.per_engine_labelvalues = names, engines


def install() -> None:
    """Puts the stubs where imports find them."""
    if "vllm" in sys.modules or importlib.util.find_spec("vllm") is not None:
        return
    role = enum.Enum("KVConnectorRole", RECORD["fields"]["KVConnectorRole"])  # type: ignore[misc]
    modules: dict[str, dict[str, Any]] = {
        "vllm": {"__version__": RECORD["version"]},
        "vllm.envs": {"VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": True},
        "vllm.distributed.kv_events": {"KVEventBatch": kv_events.KVEventBatch},
        "vllm.config": {"get_current_vllm_config_or_none": lambda: None},
        "vllm.distributed.kv_transfer.kv_connector.v1.base": {
            "KVConnectorBase_V1": base(),
            "KVConnectorRole": role,
            "KVConnectorHandshakeMetadata": type("KVConnectorHandshakeMetadata", (ABC,), {}),
            "KVConnectorMetadata": type("KVConnectorMetadata", (ABC,), {}),
            "KVConnectorWorkerMetadata": type("KVConnectorWorkerMetadata", (ABC,), {}),
        },
        "vllm.distributed.kv_transfer.kv_connector.v1.metrics": {
            "KVConnectorStats": Stats,
            "KVConnectorPromMetrics": PromMetrics,
        },
        "vllm.v1.kv_cache_interface": {"group_kernel_blocks": lambda cache, _blocks: cache},
    }
    for path, contents in modules.items():
        parts = path.split(".")
        for at in range(1, len(parts) + 1):
            name = ".".join(parts[:at])
            module = sys.modules.setdefault(name, ModuleType(name))
            if at > 1:
                setattr(sys.modules[".".join(parts[: at - 1])], parts[at - 1], module)
        vars(sys.modules[path]).update(contents)


install()
