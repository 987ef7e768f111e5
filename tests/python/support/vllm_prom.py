"""The registry of vLLM's front end, with the connector's metrics of some replicas."""

from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from blockyard.connectors.vllm import Blockyard
from vllm_front import vllm_config

MODEL = "llama"


class Prom:
    """What a scrape of vLLM gives; vLLM's own labels are the model's name and the replica."""

    def __init__(self, replicas: int = 1, **changes: Any) -> None:
        self.registry = CollectorRegistry()
        types = {
            "Counter": partial(Counter, registry=self.registry),
            "Gauge": partial(Gauge, registry=self.registry),
        }
        engines: dict[int, list[object]] = {at: [MODEL, str(at)] for at in range(replicas)}
        self.metrics = Blockyard.build_prom_metrics(
            vllm_config(**changes), types, ["model_name", "engine"], engines
        )

    def take(self, told: list[dict[str, Any]], replica: int = 0) -> None:
        """Takes what an engine has told since the last call."""
        while told:
            data = Blockyard.build_kv_connector_stats(told.pop(0)).data
            self.metrics.observe(data, replica)

    def value(self, name: str, replica: int = 0, **labels: str) -> float:
        """Returns a sample, which there must be."""
        labels |= {"model_name": MODEL, "engine": str(replica)}
        value = self.registry.get_sample_value(name, labels)
        assert value is not None, (name, labels, generate_latest(self.registry).decode())
        return value

    def copied_down(self, replica: int = 0) -> float:
        """Returns how many blocks went from vLLM's blocks to the host."""
        labels = {"from": "device", "to": "host"}
        return self.value("blockyard_copied_blocks_total", replica, **labels)

    def counters(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """Returns all counters."""
        return {
            (sample.name, tuple(sample.labels.items())): sample.value
            for metric in self.registry.collect()
            for sample in metric.samples
            if sample.name.endswith("_total")
        }

    def labels(self) -> dict[str, set[str]]:
        """Returns the labels of each name."""
        return {
            sample.name: set(sample.labels)
            for metric in self.registry.collect()
            for sample in metric.samples
        }
