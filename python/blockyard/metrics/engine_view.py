"""An engine as an exporter sees it: its numbers, its histograms, and whether it is well."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from blockyard._core import BlockyardError, Misuse
from blockyard.crane.crane import Crane
from blockyard.crane.tiers.disk import DiskTier
from blockyard.crane.tiers.remote import RemoteTier
from blockyard.handover.decode_side import DecodeSide
from blockyard.handover.prefill_side import PrefillSide
from blockyard.local_cache import LocalCache
from blockyard.metrics.ranks import Ranks
from blockyard.publishing.event_stats import EVENT_STATS, PUBLISHER_STATS
from blockyard.publishing.publisher import Publisher
from blockyard.scheduling.reservations import Reservations
from blockyard.scheduling.scheduler import Scheduler
from blockyard.scheduling.stall import Rule
from blockyard.shared.families import exists
from blockyard.shared.layout import BELOW, TIERS
from blockyard.shared.owner import is_foreign
from blockyard.shared.stats import Stat
from blockyard.shared.timings import Copied, CraneNumbers, Reading
from blockyard.yard.cache import KVCache

__all__ = ["EngineHealth", "EngineView"]

_WELL: Final = frozenset({Rule.DEAD, Rule.UNREAD})
"""Rules that are no illness: `failed` says the first; the second is for clients to end."""
_ABOVE: Final = "above"
"""Any tier above, seen from a disk or a store below two of them."""

_SEVERAL: Final = 2


class EngineHealth(NamedTuple):
    """Why an engine is not well, and which rules speak."""

    reasons: tuple[str, ...]
    rules: frozenset[Rule]
    """Those that speak of it by name."""


class EngineView:
    """One engine: its scheduler or its cache, and the cranes of all its ranks.

    Any thread may ask it. It asks under no lock of its own, and changes nothing.

    Args:
        source: The scheduler; or the cache, where a scheduler of your own drives it.
        reservations: Reservations for other instances, where there are some.
        handover: Its side of hand-overs, where it has one.
        publisher: The publisher of its cache's events, if there is one.
        stalled: Says in sentences what stands still in a loop of your own. A `Scheduler` knows by
            itself.
        groups: The caches of the other groups of layers, each by its name, as of
            `HybridConnector.group_caches`; `group` is the name of the source's own.
        group: See `groups`.
        hits_cut: Returns for each of these groups how many hits it has ended, as
            `HybridConnector.hits_cut`.

    Raises:
        Misuse: It is neither a scheduler nor a cache, another argument is something else, or the
            publisher is of another cache.
    """

    def __init__(  # noqa: PLR0913 - keywords
        self,
        source: Scheduler | KVCache,
        *,
        reservations: Reservations | None = None,
        handover: PrefillSide | DecodeSide | None = None,
        publisher: Publisher | None = None,
        stalled: Callable[[], Iterable[str]] | None = None,
        groups: Mapping[int, KVCache] | None = None,
        group: int = 0,
        hits_cut: Callable[[], Mapping[int, int]] | None = None,
    ) -> None:
        given: object = source
        if not isinstance(given, Scheduler | KVCache):
            raise Misuse(f"{given!r:.60}: give a Scheduler or a KVCache to export")
        self._scheduler = source if isinstance(source, Scheduler) else None
        self.monitor = source.monitor if isinstance(source, Scheduler) else None
        """What a scheduler is asked; None where only the cache is there."""
        self.cache = source.cache if isinstance(source, Scheduler) else source
        """The cache of the engine."""
        tells: object = publisher
        if not isinstance(tells, Publisher | None):
            raise Misuse(f"publisher = {tells!r:.60}: give a Publisher")
        if tells is not None and tells.cache is not self.cache:
            raise Misuse("this publisher is of another cache: give the one of this engine")
        others: object = reservations
        if not isinstance(others, Reservations | None):
            raise Misuse(f"reservations = {others!r:.60}: give Reservations")
        side: object = handover
        if not isinstance(side, PrefillSide | DecodeSide | None):
            raise Misuse(f"handover = {side!r:.60}: give a PrefillSide or a DecodeSide")
        if stalled is not None and not callable(stalled):
            raise Misuse(f"stalled = {stalled!r:.60}: give a function that returns messages")
        self._reservations, self._handover = reservations, handover
        self._publisher = publisher
        self._stalled = stalled
        self.group = group
        """The name of the cache's own group of layers."""
        self.groups = {name: cache for name, cache in (groups or {}).items() if name != group}
        """The caches of the other groups of layers, by name."""
        self._hits_cut = hits_cut
        self._ranks = Ranks(self.crane_schema(), self.ranks)

    def tell(self, numbers: CraneNumbers) -> None:
        """Takes the numbers of a rank in another process: `Crane.numbers`, every second or so.

        This process exports for all ranks. What has not come is 0. A crane that was made anew
        counts on from what the one before it had said; what comes late changes nothing.

        Raises:
            Misuse: It is something else, or the cache has no such rank.
        """
        if isinstance(self.cache, LocalCache):
            raise Misuse("the crane of this cache is in this process, and is already read")
        self._ranks.tell(numbers)

    @property
    def ranks(self) -> int:
        """Ranks of its cache."""
        return self.cache.config.ranks

    def schema(self) -> tuple[Stat, ...]:
        """Returns the numbers of `stats`: those of tiers that it has not are left out."""
        own = [*KVCache.schema(), *EVENT_STATS]
        if self._scheduler is not None:
            own += Scheduler.SCHEMA
        if self._reservations is not None:
            own += Reservations.SCHEMA
        if self._handover is not None:
            own += self._handover.SCHEMA
        if self._publisher is not None:
            own += PUBLISHER_STATS
        return tuple(stat for stat in own if exists(stat, self._tiers))

    def crane_schema(self) -> tuple[Stat, ...]:
        """Returns the numbers of each rank's crane."""
        config = self.cache.config
        disk = DiskTier.SCHEMA if config.disk_blocks else ()
        return (*Crane.SCHEMA, *disk, *(RemoteTier.SCHEMA if config.remote_blocks else ()))

    @property
    def _tiers(self) -> list[str]:
        return [tier for tier in TIERS if tier == "device" or self.cache.config.blocks_of(tier)]

    @property
    def write(self) -> str:
        """The write policies of the tiers that have one below, each once, the device's first."""
        policies = dict.fromkeys(map(self.cache.config.write_of, self._tiers[:-1]))
        return ", ".join(policies) or "none"

    def stats(self) -> dict[str, int]:
        """Returns the numbers of `schema`, each under its metric: names of parts are alike.

        Event counters appear with the first listener.

        Raises:
            Unavailable: The cache is broken.
        """
        found = _by_metric(KVCache.schema(), self.cache.stats())
        if self._scheduler is not None:
            found |= _by_metric(Scheduler.SCHEMA, self._scheduler.stats())
        if self._reservations is not None:
            found |= _by_metric(Reservations.SCHEMA, self._reservations.stats())
        if self._handover is not None:
            found |= _by_metric(self._handover.SCHEMA, self._handover.stats())
        if self._publisher is not None:
            return found | _by_metric(Publisher.SCHEMA, self._publisher.stats())
        with suppress(Misuse):
            found |= _by_metric(EVENT_STATS, self.cache.event_stats())
        return found

    def group_schema(self) -> tuple[Stat, ...]:
        """Returns the numbers of `group_stats`: those of tiers below the engine's blocks."""
        return tuple(
            stat
            for stat in KVCache.schema()
            if stat.labels.get("tier") in BELOW and exists(stat, self._tiers)
        )

    def group_stats(self) -> dict[int, dict[str, int]]:
        """Returns the numbers of other groups of layers by name, each under its metric.

        Raises:
            Unavailable: A cache is broken.
        """
        schema = self.group_schema()
        return {name: _by_metric(schema, cache.stats()) for name, cache in self.groups.items()}

    def hits_cut(self) -> dict[int, int]:
        """Returns how many hits each group of layers has ended, by name."""
        return {} if self._hits_cut is None else dict(self._hits_cut())

    def cranes(self) -> list[CraneNumbers]:
        """Returns the last numbers of each rank."""
        if isinstance(self.cache, LocalCache):
            return [self.cache.crane.numbers()]
        return self._ranks.read()

    def ways(self) -> list[tuple[str, str]]:
        """Returns from where to where copies are told apart."""
        here = self._tiers
        pairs = [(one, other) for one in here for other in here if one != other]
        return list(dict.fromkeys(self._way(pair) for pair in pairs))

    def copies(self, cranes: Iterable[CraneNumbers]) -> dict[tuple[str, str], list[Copied]]:
        """Returns what all ranks have copied, by `ways`."""
        found: dict[tuple[str, str], list[Copied]] = {way: [] for way in self.ways()}
        for numbers in cranes:
            for pair, copied in numbers.copies.items():
                found.setdefault(self._way(pair), []).append(copied)
        return found

    def _way(self, pair: tuple[str, str]) -> tuple[str, str]:
        """From where to where a copy is told to go: what is above a disk hardly changes its time.

        Of six ways between three tiers four are left, and of twelve between four six, so that an
        engine keeps to its series.
        """
        lower = max(pair, key=TIERS.index)
        above = self._tiers[: self._tiers.index(lower)] if lower in self._tiers else []
        if lower == "host" or len(above) < _SEVERAL:
            return pair
        return (_ABOVE, lower) if pair[1] == lower else (lower, _ABOVE)

    def steps(self) -> dict[str, Reading]:
        """Returns how long the parts of a step take, where that is measured."""
        return self.cache.step_times() if self.monitor is None else self.monitor.steps()

    def health(self) -> EngineHealth:
        """Says what is wrong: a dead engine, a cache that is closed or broken, or a stall."""
        rules: dict[Rule, str] = {}
        reasons: list[str] = []
        try:
            if self.cache.closed:
                reasons.append("The cache is closed: make another one.")
            else:
                # A panic has broken it: each verb says so.
                self.cache.room()
        except BlockyardError as error:
            return EngineHealth((f"The cache is broken: {error}.",), frozenset())
        if self.monitor is not None:
            failed = self.monitor.failed
            if failed is not None:
                reasons.append(f"The engine failed: {failed}.")
            rules = self.monitor.stall_messages()
            reasons += [line for rule, line in rules.items() if rule not in _WELL]
        if self._stalled is not None:
            reasons += _sentences(self._stalled)
        return EngineHealth(tuple(reasons), frozenset(rules))


def _sentences(stalled: Callable[[], Iterable[str]]) -> list[str]:
    """Stalls of a loop of another's, or the error of `stalled`."""
    try:
        lines = stalled()
        return [lines] if isinstance(lines, str) else [str(line) for line in lines]
    except Exception as error:
        if is_foreign(error):
            raise
        # The other engines of this process are told of still.
        return [f"Stalls are unknown, because `stalled` raised {error!r:.200}."]


def _by_metric(schema: Iterable[Stat], numbers: dict[str, int]) -> dict[str, int]:
    return {stat.metric: numbers[stat.name] for stat in schema}
