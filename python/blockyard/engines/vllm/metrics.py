"""The cache's numbers on vLLM's own `/metrics`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

from blockyard._typing import override
from blockyard.shared.layout import BELOW

__all__ = ["Figures", "Metrics", "Reporter"]

_EVERY: Final = 32
"""Steps from one report to the next: a report costs 20 us."""
_SETS: Final = ("free", "claimed", "pinned", "idle", "quarantined")


class _Family(NamedTuple):
    """A metric, its labels, and the numbers of the cache that it has by their values."""

    kind: str
    help: str
    labels: tuple[str, ...]
    values: dict[tuple[str, ...], str]


_FAMILIES: Final = {
    "blockyard_hit_blocks": _Family(
        "counter",
        "Blocks that came up from a tier.",
        ("tier",),
        {(tier,): f"{tier}_hits" for tier in BELOW},
    ),
    "blockyard_evicted_blocks": _Family(
        "counter",
        "Blocks that were evicted from a tier.",
        ("tier",),
        {(tier,): f"{tier}_evicted" for tier in BELOW},
    ),
    "blockyard_copied_blocks": _Family(
        "counter",
        "Blocks that were copied to a tier.",
        ("to",),
        {(tier,): f"{tier}_in" for tier in ("device", *BELOW)},
    ),
    "blockyard_copies_failed": _Family(
        "counter",
        "Blocks whose copy has failed, and flights whose end is unknown.",
        ("cause",),
        {("failed",): "failed", ("corrupt",): "corrupt", ("unknown",): "flights_unknown"},
    ),
    "blockyard_sequences": _Family(
        "counter",
        "Preempted requests that were parked, and those of them whose KV was lost.",
        ("event",),
        {("parked",): "parkings", ("broken",): "broken"},
    ),
    "blockyard_slots": _Family(
        "gauge",
        "Slots of a tier, by the set that they are in.",
        ("tier", "set"),
        {(tier, kind): f"{tier}_{kind}" for tier in BELOW for kind in _SETS},
    ),
    "blockyard_tier_slots": _Family(
        "gauge",
        "Slots that a tier has.",
        ("tier",),
        {(tier,): f"{tier}_capacity" for tier in BELOW},
    ),
    "blockyard_slots_promised": _Family(
        "gauge",
        "Slots of a tier that are promised to requests.",
        ("tier",),
        {(tier,): f"{tier}_promised" for tier in BELOW},
    ),
    "blockyard_slots_takeable": _Family(
        "gauge",
        "Slots of a tier whose blocks may be evicted.",
        ("tier",),
        {(tier,): f"{tier}_takeable" for tier in BELOW},
    ),
    "blockyard_outcomes_ignored": _Family(
        "counter", "Reports of copies that came twice or too late.", (), {(): "outcomes_ignored"}
    ),
    "blockyard_clears": _Family(
        "counter", "Resets that have ended what is below.", (), {(): "epoch"}
    ),
    "blockyard_recorded_requests": _Family(
        "counter",
        "Requests that were written to the file of `record`, and those that were not.",
        ("outcome",),
        {("written",): "recorded", ("dropped",): "record_dropped"},
    ),
    "blockyard_parked": _Family("gauge", "Requests that are parked.", (), {(): "parked"}),
    "blockyard_flights": _Family("gauge", "Flights in the air.", (), {(): "flights"}),
}


@dataclass
class Figures(KVConnectorStats):  # type: ignore[misc]
    """Numbers of the cache since the last report: a mapping of their names."""

    @override
    def reset(self) -> None:
        """Forgets them."""
        self.data: dict[str, int] = {}

    @override
    def aggregate(self, other: KVConnectorStats) -> "Figures":
        """Adds a later report: counters add up, gauges are the later ones."""
        joined = dict(self.data)
        for name, number in other.data.items():
            counts = name in _COUNTED
            joined[name] = joined.get(name, 0) + number if counts else number
        return Figures(joined)

    @override
    def reduce(self) -> dict[str, int | float]:
        """Returns what the log shows."""
        return {f"blockyard {name}": number for name, number in self.data.items() if number}

    @override
    def is_empty(self) -> bool:
        """Returns whether there is nothing to report."""
        return not self.data


_COUNTED: Final = frozenset(
    name
    for family in _FAMILIES.values()
    if family.kind == "counter"
    for name in family.values.values()
)


class Reporter:
    """Makes a report of a cache's numbers every few steps."""

    def __init__(self) -> None:
        self._before: dict[str, int] = {}
        self._steps = 0

    def report(self, stats: Any) -> Figures | None:
        """Returns what has changed, if it is time.

        Args:
            stats: Returns the cache's numbers; asked only when it is time.
        """
        self._steps += 1
        if self._steps % _EVERY != 1:
            return None
        now = stats()
        names = [name for family in _FAMILIES.values() for name in family.values.values()]
        data = {
            name: now[name] - (self._before.get(name, 0) if name in _COUNTED else 0)
            for name in names
        }
        self._before = now
        return Figures(data)


class Metrics(KVConnectorPromMetrics):  # type: ignore[misc]
    """The metrics of all engines in vLLM's registry."""

    def __init__(self, *what: Any) -> None:
        super().__init__(*what)
        classes = {"counter": self._counter_cls, "gauge": self._gauge_cls}
        self._metrics = {
            name: classes[family.kind](
                name=name,
                documentation=family.help,
                labelnames=[*self._labelnames, *family.labels],
            )
            for name, family in _FAMILIES.items()
        }

    @override
    def observe(self, transfer_stats_data: Mapping[str, int], engine_idx: int = 0) -> None:
        """Takes a report of an engine."""
        engine = self.per_engine_labelvalues[engine_idx]
        for name, family in _FAMILIES.items():
            for labels, number in family.values.items():
                if number not in transfer_stats_data:
                    continue
                metric = self._metrics[name].labels(*engine, *labels)
                told = transfer_stats_data[number]
                if family.kind == "counter":
                    metric.inc(told)
                else:
                    metric.set(told)
