"""Stubs of vLLM, made from what is recorded of its interface.

An object of a recorded kind has the recorded fields and no others: a connector that touches
anything else fails here, before a new version of vLLM makes it fail. Importing this puts the stubs
where imports find them, unless vLLM is installed.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import kv_events
from blockyard._typing import override
from engine_stub import TOUCHED, declared, install, touched

OPTIONS: Final = json.loads(
    (Path(__file__).parents[1] / "connectors" / "vllm_0_33.json").read_text("utf-8")
)["options"]


def fields_of(kind: str) -> list[str]:
    """The fields that are recorded of a kind; all options of a part of the configuration."""
    fields: list[str] = touched("vllm", kind)["fields"].split()
    return [*fields, *OPTIONS.get(kind, "").split()]


class Recorded:
    """An object of vLLM."""

    def __init__(self, kind: str, **fields: Any) -> None:
        vars(self)["_kind"] = kind
        for name, value in fields.items():
            setattr(self, name, value)

    @override
    def __setattr__(self, name: str, value: Any) -> None:
        if name not in fields_of(self._kind):
            raise AttributeError(f"vLLM's {self._kind} has no {name!r}")
        vars(self)[name] = value

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"this {vars(self)['_kind']} was given no {name!r}")


def spec(kind: str, **fields: Any) -> Any:
    """A KV cache spec, whose class has its name."""
    names = touched_names()
    return type(kind, (Recorded,), {})(kind if kind in names else "FullAttentionSpec", **fields)


def touched_names() -> set[str]:
    return {full.rpartition(".")[2] for full in TOUCHED["vllm"]["names"]}


def begin(self: Any, *config: Any) -> None:
    assert len(config) == len(touched("vllm", "KVConnectorBase_V1")["methods"]["__init__"].split())
    self._connector_metadata = None


def bind(self: Any, connector_metadata: Any) -> None:
    self._connector_metadata = connector_metadata


def keep_names(self: Any, _config: Any, types: Any, names: list[str], engines: Any) -> None:
    """A metric's class says what is made of it."""
    self._counter_cls, self._gauge_cls = types["Counter"], types["Gauge"]
    self._labelnames, self.per_engine_labelvalues = names, engines


PARTS: Final[dict[str, Any]] = {
    "KVConnectorBase_V1": {
        "__init__": begin,
        "bind_connector_metadata": bind,
        "_get_connector_metadata": lambda self: self._connector_metadata,
    },
    "KVConnectorFactory": {"register_connector": lambda *_what: None},
    "KVConnectorRole": {"SCHEDULER": "scheduler", "WORKER": "worker"},
    "KVConnectorStats": dataclass(
        declared(
            "KVConnectorStats",
            touched("vllm", "KVConnectorStats"),
            {"data": field(default_factory=dict)},
        )
    ),
    "KVConnectorPromMetrics": {"__init__": keep_names},
    "KVConnectorTransferResults": dataclass(
        declared(
            "KVConnectorTransferResults",
            touched("vllm", "KVConnectorTransferResults"),
            {
                name: field(default_factory=set)
                for name in touched("vllm", "KVConnectorTransferResults")["fields"].split()
            },
        )
    ),
    "KVEventBatch": kv_events.KVEventBatch,
    "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": True,
    "group_kernel_blocks": lambda cache, _blocks: cache,
}
"""What does something."""

install("vllm", PARTS)
