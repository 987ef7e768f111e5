"""The connector's metrics on vLLM's `/metrics`: which, when, and with which labels."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from blockyard._core import __version__
from blockyard._typing import override
from blockyard.connectors.connector import Connector
from blockyard.connectors.hybrid_connector import HybridConnector
from blockyard.connectors.vllm.hybrid_manager import may_have_groups
from blockyard.connectors.vllm.settings import Settings
from blockyard.connectors.vllm.vllm_api import KVConnectorPromMetrics, KVConnectorStats
from blockyard.crane.tiers.disk import DiskTier
from blockyard.crane.tiers.remote_stats import REMOTE_STATS
from blockyard.handover.handover_stats import DECODE_STATS, PREFILL_STATS
from blockyard.publishing.event_stats import EVENT_STATS
from blockyard.shared.families import GROUP, RANK, Family, exists, families
from blockyard.shared.layout import BELOW, TIERS, TierName
from blockyard.shared.log import Limited
from blockyard.shared.stats import PREFIX, Stat
from blockyard.yard.cache import KVCache
from blockyard.yard.config import Config

__all__ = ["INFO", "Figures", "Metrics", "Reporter", "Teller", "rank_stats", "scheduler_stats"]

_EVERY: Final = 1.0
"""Seconds from one report of an engine that works to the next: a report costs 30 us."""
_UNTAKEN: Final = 8
"""Steps that an idle engine takes for a last report: vLLM has fewer in flight."""
_TOLD: Final = (
    *("hit_blocks", "evicted_blocks", "dropped_blocks", "unwritten_blocks"),
    *("copied_blocks", "copies_failed", "outcomes_ignored", "clears", "recorded_requests"),
    *("tier_slots", "slots", "slots_promised", "slots_takeable", "parked", "flights"),
)
"""Metric families of the cache that are meaningful where vLLM owns the device."""
_SEQUENCES: Final = ("parked", "broken")
"""What happens here to sequences of vLLM."""
_TOLD_BY_RANKS: Final = (
    *("disks_dead", "disk_resting", "disk_hung_slots"),
    *("disk_failures", "disk_corrupt_blocks", "disk_copies_given_up"),
    *("disk_written_bytes", "disk_read_bytes"),
)
"""Families of a rank's disk."""
_STORES_BY_RANKS: Final = (
    *("store_put_bytes", "store_got_bytes", "store_missing_blocks", "store_corrupt_values"),
    *("store_calls_failed", "store_copies_given_up", "store_buffers_held", "store_resting"),
)
"""Families of a rank's shared stores."""
_PEERS_BY_RANKS: Final = (
    *("peer_blocks", "peer_bytes", "peer_stale_blocks", "peer_corrupt_blocks"),
    *("peer_failed", "peer_held_bytes", "peers_resting"),
)
"""Families of what a rank takes over from prefill engines."""
_SIZES: Final = (
    Stat("tokens", "tokens", "gauge", "block_tokens", "tokens per block"),
    Stat("bytes", "bytes", "gauge", "block_bytes", "bytes per block on one rank"),
)
_CUTS: Final = Stat(
    "hits_cut",
    "requests",
    "counter",
    "hits_cut",
    "requests whose hit a group of layers has ended before the first group of full attention",
)
_SUMMED: Final = frozenset({"flights", "copies_failed", "copied_blocks", "outcomes_ignored"})
"""Families of the cache that are summed over all groups of layers."""
_OTHERS: Final = "others"
"""The group of numbers that are summed over all groups but the first, where they are many."""
_MOST: Final = 250
"""Most series of an engine; where groups would need more, those but the first are summed."""
_log = Limited(__name__, 0)
INFO: Final = ("version", "eviction", "write", "fingerprint", "ranks")
"""Labels of `blockyard_engine_info`: what an engine was made with."""
_COUNTERS: Final = frozenset(
    stat.family
    for schema in (
        *(KVCache.schema(), Connector.SCHEMA, EVENT_STATS, DiskTier.SCHEMA, REMOTE_STATS),
        *(PREFILL_STATS, DECODE_STATS),
    )
    for stat in (*schema, _CUTS)
    if stat.kind == "counter"
)
_Source: TypeAlias = tuple[Sequence[Stat], Callable[[], Mapping[str, int]]]
"""What numbers mean, and what returns them by their names."""


def tiers_of(*, disk: bool, remote: bool) -> tuple[TierName, ...]:
    """Returns the tiers whose numbers are exported: those that an engine has, and the host."""
    left_out = {"disk": not disk, "remote": not remote}
    return tuple(tier for tier in TIERS if not left_out.get(tier))


def _cache_stats(tiers: Sequence[str]) -> tuple[Stat, ...]:
    """Metrics of the cache that vLLM does not export itself."""

    def is_told(stat: Stat) -> bool:
        if stat.family == "sequences":
            return stat.labels["event"] in _SEQUENCES
        return (
            stat.family in _TOLD
            and stat.labels.get("tier") != "device"
            and len(set(stat.labels.values())) == len(stat.labels)
            and exists(stat, tiers)
        )

    told = families(stat for stat in KVCache.schema() if is_told(stat))
    return tuple(stat for family in told for stat in family.stats)


def _connector_stats(tiers: Sequence[str]) -> tuple[Stat, ...]:
    return tuple(stat for stat in Connector.SCHEMA if exists(stat, tiers))


def scheduler_stats(
    tiers: Sequence[str], *, events: bool, listens: bool = False, takes: bool = False
) -> tuple[Stat, ...]:
    """Returns the metrics of the scheduler's half.

    Args:
        tiers: The tiers of the engine, as of `tiers_of`.
        events: Whether vLLM publishes events.
        listens: Whether it offers KV.
        takes: Whether it takes offers.
    """
    told = [*(EVENT_STATS if events else ()), *(PREFILL_STATS if listens else ())]
    told += DECODE_STATS if takes else ()
    return (*_cache_stats(tiers), *_connector_stats(tiers), *_SIZES, *told)


def rank_stats(
    rank: int, *, disk: bool = True, remote: bool = False, peers: bool = False
) -> tuple[Stat, ...]:
    """Returns the metrics of a worker with a disk, stores or peers, with its rank as a label."""
    told = [stat for stat in DiskTier.SCHEMA if disk and stat.family in _TOLD_BY_RANKS]
    told += [stat for stat in REMOTE_STATS if remote and stat.family in _STORES_BY_RANKS]
    told += [stat for stat in REMOTE_STATS if peers and stat.family in _PEERS_BY_RANKS]
    return tuple(_labelled(stat, RANK, rank) for stat in told)


def _labelled(stat: Stat, label: str, value: object) -> Stat:
    inside = stat.metric.partition("{")[2] or "}"
    more = f"{label}={value}{'' if inside == '}' else ','}"
    return stat._replace(metric=f"{stat.family}{{{more}{inside}")


def _is_of_group(stat: Stat) -> bool:
    """Whether each group of layers has a number of its own: those of the tiers of its cache."""
    return stat.labels.get("tier") in BELOW and stat.family in _TOLD


def _group_sources(
    connector: HybridConnector, tiers: Sequence[str], *, fixed: int
) -> list[_Source]:
    """Returns the sources of the cache's numbers, by group of layers.

    Args:
        connector: The connector over the groups.
        tiers: The tiers of the engine.
        fixed: Series of other numbers.
    """
    stats, caches = _cache_stats(tiers), connector.group_caches()
    spine = connector.groups.numbers[0]
    own = [stat for stat in stats if not _is_of_group(stat)]
    of_groups = [stat for stat in stats if _is_of_group(stat)]
    riders = [number for number in caches if number != spine]
    named: dict[object, list[int]] = {number: [number] for number in riders}
    if fixed + len(own) + len(riders) + len(of_groups) * (1 + len(riders)) > _MOST:
        named = {_OTHERS: riders}

    def whole() -> dict[str, int]:
        numbers = [cache.stats() for cache in caches.values()]
        first = caches[spine].stats()
        return {
            stat.name: sum(one[stat.name] for one in numbers)
            if stat.family in _SUMMED
            else first[stat.name]
            for stat in own
        }

    def summed(numbers: list[int]) -> Callable[[], dict[str, int]]:
        def read() -> dict[str, int]:
            of_each = [caches[number].stats() for number in numbers]
            return {stat.name: sum(one[stat.name] for one in of_each) for stat in of_groups}

        return read

    sources: list[_Source] = [(own, whole)]
    for name, numbers in {spine: [spine], **named}.items():
        sources.append(([_labelled(stat, GROUP, name) for stat in of_groups], summed(numbers)))
    cuts = [_labelled(_CUTS._replace(name=str(number)), GROUP, number) for number in sorted(riders)]
    sources.append((cuts, lambda: {str(one): n for one, n in connector.hits_cut().items()}))
    return sources


def _is_counter(metric: str) -> bool:
    return metric.partition("{")[0] in _COUNTERS


@dataclass
class Figures(KVConnectorStats):  # type: ignore[misc]
    """What has changed since the last report, by metric; and the labels of the info, as text."""

    @override
    def reset(self) -> None:
        """Forgets them."""
        self.data: dict[str, int | str] = {}

    @override
    def aggregate(self, other: KVConnectorStats) -> "Figures":
        """Adds a later report, or another rank's: counters add up, gauges are the later ones."""
        joined = self.data | other.data
        for metric in self.data.keys() & other.data.keys():
            if _is_counter(metric):
                joined[metric] = self.data[metric] + other.data[metric]
        return Figures(joined)

    @override
    def reduce(self) -> dict[str, int | float]:
        """Returns the numbers for the log: those above 0, except constant sizes."""
        sizes = {stat.metric for stat in _SIZES}
        return {
            f"blockyard {metric}": told
            for metric, told in self.data.items()
            if isinstance(told, int) and told and metric not in sizes
        }

    @override
    def is_empty(self) -> bool:
        """Returns whether there is nothing to report."""
        return not self.data


class Teller:
    """Makes reports of numbers, each of what has changed since the one before.

    Args:
        sources: Where they are from.
    """

    def __init__(self, *sources: _Source) -> None:
        self._sources = [
            ([(stat.name, stat.metric) for stat in stats], read) for stats, read in sources
        ]
        self._told: dict[str, int] = {}

    def read(self) -> dict[str, int]:
        """Returns the numbers as they are, by metric."""
        found: dict[str, int] = {}
        for names, read in self._sources:
            numbers = read()
            for name, metric in names:
                found[metric] = numbers[name]
        return found

    def report(self) -> Figures:
        """Returns all gauges, and what counters have gained since the last report."""
        now, before = self.read(), self._told
        self._told = now
        told: dict[str, int | str] = {}
        for metric, number in now.items():
            if not _is_counter(metric):
                told[metric] = number
            elif (gained := number - before.get(metric, 0)) or metric not in before:
                # A counter that begins above 0 has no increase for Prometheus.
                told[metric] = gained
        return Figures(told)


class Reporter(Teller):
    """Reports an engine's numbers about once a second, and the last ones before it sleeps.

    Args:
        cache: Its cache.
        connector: The connector over it.
        events: Whether vLLM publishes its events.
        more: What else counts.
    """

    def __init__(
        self,
        cache: KVCache,
        connector: Connector | HybridConnector,
        *,
        events: bool,
        more: Sequence[_Source] = (),
    ) -> None:
        config = cache.config
        disk = bool(config.disk_blocks)
        tiers = tiers_of(disk=disk, remote=bool(config.remote_blocks))
        layout = config.layout
        sizes = {
            "tokens": config.block_size,
            "bytes": 0 if layout is None else layout.block_bytes,
        }
        sources: list[_Source] = [
            (_connector_stats(tiers), connector.stats),
            (_SIZES, lambda: sizes),
            *more,
        ]
        if events:
            sources.append((EVENT_STATS, cache.event_stats))
        if isinstance(connector, HybridConnector):
            fixed = sum(len(stats) for stats, _ in sources)
            of_rank = rank_stats(0, disk=disk, remote="remote" in tiers)
            fixed += 1 + len(of_rank) * config.ranks
            sources[:0] = _group_sources(connector, tiers, fixed=fixed)
        else:
            sources.insert(0, (_cache_stats(tiers), cache.stats))
        super().__init__(*sources)
        self.clock: Callable[[], float] = time.monotonic
        """Seconds."""
        self._next: float | None = None
        """When the next report is due; None for in the next step."""
        self._begun = 0
        """Steps that have begun as ones that report, since the last report."""
        self._info = _info_of(config)

    def is_time(self) -> bool:
        """Returns, as a step begins, whether all processes report their numbers in it."""
        if self._begun or self._next is None or self.clock() >= self._next:
            self._begun += 1
        return self._begun > 0

    def has_news(self) -> bool:
        """Returns whether an engine that has nothing to do must step to report something.

        Where vLLM takes no report of a few such steps, it steps for none.
        """
        if self._next is not None and self.read() != self._told:
            self._next = None
        return self._next is None and self._begun < _UNTAKEN

    def report_if_due(self) -> Figures | None:
        """Returns what has changed, if this step has begun as one that reports."""
        if not self._begun:
            return None
        self._begun = 0
        self._next = self.clock() + _EVERY
        told = self.report()
        told.data |= self._info
        return told


def _info_of(config: Config) -> dict[str, str]:
    """What an engine was made with, by the labels of `INFO`."""
    said = (
        *(__version__, config.eviction, config.write_of("host") if config.disk_blocks else "none"),
        *(config.fingerprint[:12], str(config.ranks)),
    )
    return dict(zip(INFO, said, strict=True))


def _is_of_groups(family: Family) -> bool:
    return all(map(_is_of_group, family.stats))


class Metrics(KVConnectorPromMetrics):  # type: ignore[misc]
    """The metrics of all engines in vLLM's registry. Each is there from the start, as a 0."""

    def __init__(self, *what: Any) -> None:
        super().__init__(*what)
        config = what[0]
        extra = config.kv_transfer_config.kv_connector_extra_config
        parallel, events = config.parallel_config, config.kv_events_config
        settings = Settings.of_extra(extra)[0]
        has = {"disk": settings.disk_path is not None, "remote": settings.remote is not None}
        takes = bool(settings.peers)
        ranks = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
        stats = list(
            scheduler_stats(
                tiers_of(disk=has["disk"], remote=has["remote"] or takes),
                listens=settings.listen is not None,
                takes=takes,
                events=events is not None and bool(events.enable_kv_cache_events),
            )
        )
        for rank in range(ranks):
            stats += rank_stats(rank, **has, peers=takes)
        self._series: dict[tuple[int, str], Any] = {}
        self._by_group: dict[str, Any] = {}
        """Of families with a label for the group of layers: the metric, by family."""
        self._has_said = False
        has_groups = may_have_groups(config)
        for family in families([*stats, _CUTS] if has_groups else stats):
            is_of_groups = has_groups and (family.stats[0] == _CUTS or _is_of_groups(family))
            labels = [*([GROUP] if is_of_groups else []), *family.stats[0].labels]
            metric = self._metric(family.name, family.kind, family.help, labels)
            if is_of_groups:
                # Their numbers come with the first report.
                self._by_group[family.stats[0].family] = metric
                continue
            for engine, values in self.per_engine_labelvalues.items():
                for stat in family.stats:
                    made = metric.labels(*values, *stat.labels.values())
                    self._series[engine, stat.metric] = made
        self._info = self._metric(
            f"{PREFIX}engine_info", "gauge", "What an engine was made with.", INFO
        )

    def _metric(self, name: str, kind: str, about: str, labels: Iterable[str]) -> Any:
        given = {"name": name, "documentation": about, "labelnames": [*self._labelnames, *labels]}
        if kind == "counter":
            return self._counter_cls(**given)
        # Of several API servers each hears of some steps: as vLLM's own.
        return self._gauge_cls(**given, multiprocess_mode="mostrecent")

    @override
    def observe(self, transfer_stats_data: Mapping[str, int | str], engine_idx: int = 0) -> None:
        """Takes a report of an engine."""
        for metric, told in transfer_stats_data.items():
            series = self._series.get((engine_idx, metric)) or self._of_group(engine_idx, metric)
            if series is None:
                continue
            if _is_counter(metric):
                series.inc(told)
            else:
                series.set(told)
        if INFO[0] in transfer_stats_data:
            said = (transfer_stats_data[label] for label in INFO)
            self._info.labels(*self.per_engine_labelvalues[engine_idx], *said).set(1)

    def _of_group(self, engine: int, metric: str) -> Any:
        """Makes the series of a group of layers; None where there is no such metric."""
        stat = _CUTS._replace(metric=metric)
        made, labels = self._by_group.get(stat.family), dict(stat.labels)
        if made is None:
            if GROUP in labels and not self._has_said:
                self._has_said = True
                _log.warning(
                    "the numbers of groups of layers are not on /metrics: the model's "
                    "configuration does not show that it has several"
                )
            return None
        # Where there is one group after all it is the first.
        values = [labels.pop(GROUP, "0"), *labels.values()]
        series = made.labels(*self.per_engine_labelvalues[engine], *values)
        self._series[engine, metric] = series
        return series
