"""A collector for `prometheus_client`: it reads the engines when Prometheus asks."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, chain
from typing import Final, NamedTuple

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from blockyard._core import BlockyardError, Misuse, __version__
from blockyard._typing import override
from blockyard.metrics.aliases import Alias, Names, aliases, checked_names, every_alias
from blockyard.metrics.engine_view import EngineHealth, EngineView
from blockyard.metrics.text import Labels
from blockyard.scheduling.queue import BEGUN
from blockyard.scheduling.stall import Rule
from blockyard.shared.families import ENGINE, GROUP, RANK, Family, families
from blockyard.shared.stats import PREFIX, Stat
from blockyard.shared.timings import COPIES, SIZES, STEPS, WAITS, CraneNumbers, Reading

__all__ = ["MOST", "EngineCollector"]


MOST: Final = 300
"""Most series of an engine under our own names: where ranks are many, their numbers are summed."""
_SUMMED: Final = "all"
"""The rank of numbers that are summed over ranks."""
_OTHERS: Final = "others"
"""The group of numbers that are summed over all groups but the first, where they are many."""
_PARTS: Final = ("schedule", "output", "dispatch", "commit")
_CACHE_CONFIG: Final = ("vllm:cache_config", "Sizes of the cache.", "info")
_Told = Mapping[str, list[Sample]]
_MORE: Final = {
    "healthy": ("gauge", "1 if /healthz answers ok: the engine runs, and no stall rule fires."),
    "stalled": ("gauge", "1 while this stall rule fires."),
    "block_tokens": ("gauge", "Tokens per block."),
    "block_bytes": ("gauge", "Bytes per block on one rank; 0 without a layout."),
    "step_seconds": ("histogram", "Duration of each part of a step."),
    "wait_seconds": (
        "histogram",
        "Time from arrival to admission, by the last reason for waiting.",
    ),
    "parked_seconds": ("histogram", "Time that parked requests waited until they resumed."),
    "copy_seconds": (
        "histogram",
        "Duration of successful flights (batches of copies), from submission to report.",
    ),
    "hits_cut": (
        "counter",
        "Requests whose hit a group of layers has ended before the first group of full attention.",
    ),
    "copy_bytes": ("histogram", "Bytes of successful flights (batches of copies), on all ranks."),
}
"""Metrics in addition to `stats()`."""


class _Buckets:
    """The series of one histogram; its labels are made once.

    Args:
        name: The name of its family.
        labels: Its labels.
        edges: Its edges, without the one that is infinite.
    """

    def __init__(self, name: str, labels: dict[str, str], edges: Iterable[float]) -> None:
        self._bucket, self._count, self._sum = (
            f"{name}_{ending}" for ending in ("bucket", "count", "sum")
        )
        self._labels: Final = Labels(labels)
        every = (*edges, float("inf"))
        self._edges = [Labels({**labels, "le": _words(edge)}) for edge in every]

    def __len__(self) -> int:
        """How many series it has."""
        return len(self._edges) + 2

    def samples(self, reading: Reading) -> Iterator[Sample]:
        """Yields what was counted; the count is the sum of the buckets, so that they agree."""
        count = 0
        for labels, count in zip(self._edges, accumulate(reading.counts), strict=True):
            yield Sample(self._bucket, labels, count)
        yield Sample(self._count, self._labels, count)
        yield Sample(self._sum, self._labels, reading.total)


def _words(edge: float) -> str:
    """An edge as Prometheus reads and writes it."""
    return "+Inf" if edge == float("inf") else repr(edge)


def _joined(readings: list[Reading], edges: tuple[float, ...]) -> Reading:
    """Returns several histograms of the same edges as one."""
    if len(readings) == 1:
        return readings[0]
    counts, total = [0] * (len(edges) + 1), 0.0
    for reading in readings:
        counts = [mine + more for mine, more in zip(counts, reading.counts, strict=True)]
        total += reading.total
    return Reading(tuple(counts), total)


class EngineCollector(Collector):
    """Metrics of the engines of this process, including the cranes of all ranks.

    Register it with a registry of your own, or let `serve` do so. Any thread may scrape.

    Args:
        engines: The engines by the value of their label `engine`.
        names: "vllm" to export vLLM's names, too.

    Raises:
        Misuse: There is no engine, one has no name, or there are no such `names`.
    """

    def __init__(self, engines: Mapping[str, EngineView], *, names: Names | None = None) -> None:
        if not engines:
            raise Misuse("engines = {}: give one at least")
        for name, engine in engines.items():
            _check(name, engine)
        self._names = checked_names(names)
        self._engines = [_Engine(name, engine) for name, engine in engines.items()]
        own = list(chain.from_iterable(engine.families for engine in self._engines))
        self._kinds: dict[str, tuple[str, str]] = {
            family.name: (family.kind, family.help) for family in own
        }
        self._kinds |= {f"{PREFIX}{name}": about for name, about in _MORE.items()}

    def health(self) -> dict[str, EngineHealth]:
        """Says of each engine what is wrong with it."""
        return {engine.name: engine.view.health() for engine in self._engines}

    @property
    def most_series(self) -> int:
        """The most series of one engine, those of `names` aside."""
        return max(engine.most_series for engine in self._engines)

    def describe(self) -> Iterator[Metric]:
        """Yields the families without a number, so that no two of a registry have one name.

        In a process of vLLM that has those of `names` itself, `register` refuses them.
        """
        for name, (kind, about) in self._kinds.items():
            yield Metric(name, about, kind)
        for alias in every_alias(self._names):
            yield Metric(alias.name, alias.help, alias.kind)
        if self._names is not None:
            yield _metric(*_CACHE_CONFIG, [])

    @override
    def collect(self) -> Iterator[Metric]:
        """Reads the engines, and yields their metrics."""
        told: dict[str, list[Sample]] = {name: [] for name in self._kinds}
        info = Metric(f"{PREFIX}engine", "What an engine was made with.", "info")
        also: dict[Alias, list[Sample]] = {}
        for engine in self._engines:
            info.samples.append(Sample(f"{info.name}_info", engine.info, 1.0))
            stats = engine.read(told)
            if stats is not None and self._names is not None:
                for alias, number in aliases(engine.view, stats).items():
                    ending = "_total" if alias.kind == "counter" else ""
                    sample = Sample(f"{alias.name}{ending}", engine.labels, number)
                    also.setdefault(alias, []).append(sample)
        yield info
        for name, (kind, about) in self._kinds.items():
            if told[name]:
                yield _metric(name, about, kind, told[name])
        for alias, samples in also.items():
            yield _metric(alias.name, alias.help, alias.kind, samples)
        if self._names is not None:
            yield self._cache_config()

    def _cache_config(self) -> Metric:
        """Yields vLLM's `cache_config_info` for routers: the size and the number of blocks."""
        metric = _metric(*_CACHE_CONFIG, [])
        for engine in self._engines:
            config = engine.view.cache.config
            sizes = {
                "block_size": str(config.block_size),
                "num_gpu_blocks": str(config.device_blocks),
                "num_cpu_blocks": str(config.host_blocks),
            }
            metric.samples.append(Sample(f"{metric.name}_info", {**engine.labels, **sizes}, 1.0))
        return metric


def _check(name: object, engine: object) -> None:
    if not isinstance(name, str) or not name:
        raise Misuse(f"engines[{name!r:.60}]: its name must be a word, as its label `engine` is")
    if any("\ud800" <= letter <= "\udfff" for letter in name):
        raise Misuse(f"engines[{name!r:.60}]: its name is no text")
    if not isinstance(engine, EngineView):
        raise Misuse(f"engines[{name!r:.60}] = {engine!r:.60}: must be EngineView(...)")


def _metric(name: str, about: str, kind: str, samples: list[Sample]) -> Metric:
    metric = Metric(name, about, kind)
    metric.samples = samples
    return metric


class _SchemaRow(NamedTuple):
    """One series of the schema."""

    family: str
    name: str
    """That of its sample: counters have an ending."""
    labels: Labels
    key: str
    """Where its number is in what is read."""


class _Engine:
    """One engine with the labels of all its series, which are made once."""

    def __init__(self, name: str, view: EngineView) -> None:
        self.name = name
        self.view = view
        self.labels = Labels({ENGINE: name})
        config = view.cache.config
        self.info = self._labelled(
            version=__version__,
            eviction=config.eviction,
            write=view.write,
            fingerprint=config.fingerprint[:12],
            ranks=str(view.ranks),
        )
        self._rules = {rule: self._labelled(rule=rule.replace(" ", "_")) for rule in Rule}
        own, cranes = families(view.schema()), families(view.crane_schema())
        self.families = (*own, *cranes)
        has_groups = bool(view.groups)
        of_groups = set(view.group_schema()) if has_groups else set[Stat]()
        self._rows = [
            self._row(family, stat, **({GROUP: str(view.group)} if stat in of_groups else {}))
            for family in own
            for stat in family.stats
        ]
        group_stats = [(one, stat) for one in own for stat in one.stats if stat in of_groups]
        crane_stats = [(family, stat) for family in cranes for stat in family.stats]
        self._steps = {part: self._buckets("step_seconds", STEPS, part=part) for part in _PARTS}
        self._copies = {way: self._of_a_way(*way) for way in view.ways()}
        self._waits = {why: self._buckets("wait_seconds", WAITS, reason=why) for why in BEGUN}
        self._parked = self._buckets("parked_seconds", WAITS)
        copies = chain.from_iterable(self._copies.values())
        histograms = (*self._steps.values(), *copies, *self._waits.values(), self._parked)
        # Beside the rows and the histograms: the info, 3 numbers, and the rules.
        fixed = len(self._rows) + 4 + len(Rule) + sum(map(len, histograms))
        self._group_rows: dict[int | None, list[_SchemaRow]] = {}
        if has_groups:
            cuts = len(view.groups)
            names: list[int | None] = list(view.groups)
            if fixed + cuts + len(group_stats) * len(names) > MOST:
                names = [None]
            fixed += cuts + len(group_stats) * len(names)
            for number in names:
                label = {GROUP: _OTHERS if number is None else str(number)}
                self._group_rows[number] = [
                    self._row(one, stat, **label) for one, stat in group_stats
                ]
        self._cuts = {one: self._labelled(**{GROUP: str(one)}) for one in view.groups}
        by_rank = len(crane_stats) * view.ranks
        self._by_rank = fixed + by_rank <= MOST
        ranks = [str(rank) for rank in range(view.ranks)] if self._by_rank else [_SUMMED]
        self._crane_rows = {
            rank: [self._row(family, stat, **{RANK: rank}) for family, stat in crane_stats]
            for rank in ranks
        }
        self.most_series = fixed + len(crane_stats) * len(ranks)

    def _labelled(self, **labels: str) -> Labels:
        return Labels({**self.labels, **labels})

    def _row(self, family: Family, stat: Stat, **more: str) -> _SchemaRow:
        ending = "_total" if family.kind == "counter" else ""
        labels = self._labelled(**stat.labels, **more)
        return _SchemaRow(family.name, f"{family.name}{ending}", labels, stat.metric)

    def _of_a_way(self, source: str, destination: str) -> tuple[_Buckets, _Buckets]:
        """Times and sizes of copies from there to there."""
        labels = {"from": source, "to": destination}
        times = self._buckets("copy_seconds", COPIES, **labels)
        return times, self._buckets("copy_bytes", SIZES, **labels)

    def _buckets(self, name: str, edges: tuple[float, ...], **labels: str) -> _Buckets:
        return _Buckets(f"{PREFIX}{name}", {**self.labels, **labels}, edges)

    def read(self, told: _Told) -> dict[str, int] | None:
        """Adds its samples, and returns its numbers; None where its cache is broken."""
        health = self.view.health()
        self._tell(told, "healthy", float(not health.reasons))
        for rule, labels in self._rules.items():
            self._tell(told, "stalled", float(rule in health.rules), labels)
        config = self.view.cache.config
        self._tell(told, "block_tokens", config.block_size)
        layout = config.layout
        self._tell(told, "block_bytes", 0 if layout is None else layout.block_bytes)
        try:
            stats = self.view.stats()
        except BlockyardError:
            # A broken cache answers nothing; that it is not healthy was said.
            return None
        for family, name, labels, key in self._rows:
            if key in stats:
                told[family].append(Sample(name, labels, stats[key]))
        self._tell_groups(told)
        cranes = self.view.cranes()
        self._tell_cranes(told, cranes)
        self._tell_times(told, cranes)
        return stats

    def _tell(self, told: _Told, name: str, number: float, labels: Labels | None = None) -> None:
        full = f"{PREFIX}{name}"
        told[full].append(Sample(full, labels or self.labels, number))

    def _tell_groups(self, told: _Told) -> None:
        if not self._group_rows:
            return
        stats = self.view.group_stats()
        for number, rows in self._group_rows.items():
            caches = list(stats.values()) if number is None else [stats[number]]
            for family, sample, labels, key in rows:
                told[family].append(Sample(sample, labels, sum(one[key] for one in caches)))
        cuts, name = self.view.hits_cut(), f"{PREFIX}hits_cut"
        for group, labels in self._cuts.items():
            if group in cuts:
                told[name].append(Sample(f"{name}_total", labels, cuts[group]))

    def _tell_cranes(self, told: _Told, cranes: list[CraneNumbers]) -> None:
        keys = [(stat.name, stat.metric) for stat in self.view.crane_schema()]
        ranks: dict[str, dict[str, int]] = {}
        for crane in cranes:
            numbers = ranks.setdefault(str(crane.rank) if self._by_rank else _SUMMED, {})
            for name, metric in keys:
                numbers[metric] = numbers.get(metric, 0) + crane.stats.get(name, 0)
        for rank, numbers in ranks.items():
            for family, name, labels, key in self._crane_rows[rank]:
                told[family].append(Sample(name, labels, numbers[key]))

    def _tell_times(self, told: _Told, cranes: list[CraneNumbers]) -> None:
        nothing = _joined([], STEPS)
        steps = self.view.steps()
        for part, buckets in self._steps.items() if steps else ():
            told[f"{PREFIX}step_seconds"] += buckets.samples(steps.get(part, nothing))
        measured = any(crane.copies for crane in cranes)
        for way, copied in self.view.copies(cranes).items() if measured else ():
            if way not in self._copies:
                continue
            times, sizes = self._copies[way]
            taken = _joined([one.times for one in copied], COPIES)
            moved = _joined([one.sizes for one in copied], SIZES)
            told[f"{PREFIX}copy_seconds"] += times.samples(taken)
            told[f"{PREFIX}copy_bytes"] += sizes.samples(moved)
        waited = None if self.view.monitor is None else self.view.monitor.waited()
        if waited is not None:
            for why, buckets in self._waits.items():
                told[f"{PREFIX}wait_seconds"] += buckets.samples(waited.begun[why])
            told[f"{PREFIX}parked_seconds"] += self._parked.samples(waited.resumed)
