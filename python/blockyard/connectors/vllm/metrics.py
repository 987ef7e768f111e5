"""The cache's numbers on vLLM's own `/metrics`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from blockyard._typing import override
from blockyard.connectors.vllm.engine import KVConnectorPromMetrics, KVConnectorStats
from blockyard.shared.families import families
from blockyard.shared.stats import Stat
from blockyard.yard.cache import KVCache

__all__ = ["Figures", "Metrics", "Reporter"]

_EVERY: Final = 32
"""Steps from one report to the next: a report costs 20 us."""
_TOLD: Final = (
    "hit_blocks",
    "evicted_blocks",
    "copied_blocks",
    "copies_failed",
    "slots",
    "tier_slots",
    "slots_promised",
    "slots_takeable",
    "outcomes_ignored",
    "clears",
    "recorded_requests",
    "parked",
    "flights",
)
"""Families that say something where vLLM has the device: its requests never begin here."""
_EVENTS: Final = ("parked", "broken")
"""What happens here to sequences of vLLM."""


def _said(stat: Stat) -> bool:
    """Whether a number of the cache is told: vLLM tells what its own blocks do itself."""
    if stat.family == "sequences":
        return stat.labels["event"] in _EVENTS
    return stat.family in _TOLD and stat.labels.get("tier") != "device"


_FAMILIES: Final = families(stat for stat in KVCache.schema() if _said(stat))
_STATS: Final = tuple(stat for family in _FAMILIES for stat in family.stats)
_COUNTED: Final = frozenset(stat.name for stat in _STATS if stat.kind == "counter")


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
        data = {
            stat.name: now[stat.name]
            - (self._before.get(stat.name, 0) if stat.name in _COUNTED else 0)
            for stat in _STATS
        }
        self._before = now
        return Figures(data)


class Metrics(KVConnectorPromMetrics):  # type: ignore[misc]
    """The metrics of all engines in vLLM's registry."""

    def __init__(self, *what: Any) -> None:
        super().__init__(*what)
        classes = {"counter": self._counter_cls, "gauge": self._gauge_cls}
        self._metrics = {
            family.name: classes[family.kind](
                name=family.name,
                documentation=family.help,
                labelnames=[*self._labelnames, *family.stats[0].labels],
            )
            for family in _FAMILIES
        }

    @override
    def observe(self, transfer_stats_data: Mapping[str, int], engine_idx: int = 0) -> None:
        """Takes a report of an engine."""
        engine = self.per_engine_labelvalues[engine_idx]
        for family in _FAMILIES:
            for stat in family.stats:
                if stat.name not in transfer_stats_data:
                    continue
                metric = self._metrics[family.name].labels(*engine, *stat.labels.values())
                told = transfer_stats_data[stat.name]
                if family.kind == "counter":
                    metric.inc(told)
                else:
                    metric.set(told)
