"""The schema of `stats()`: name, unit, kind, metric and meaning of each number."""

from functools import cache
from typing import Final, Literal, NamedTuple, TypeAlias, cast

from blockyard._core import stats_schema

__all__ = ["HELP", "PREFIX", "Kind", "Stat", "core_schema"]

Kind: TypeAlias = Literal["counter", "gauge"]
"""A counter has only ever gone up since its owner was made; a gauge says what is now."""

PREFIX: Final = "blockyard_"
"""What every metric begins with."""

_TIERS: Final = ("device", "host", "disk", "remote")

HELP: Final = {
    "cached_tokens": "Prompt tokens whose KV was found, by tier.",
    "copied_blocks": "Blocks in copy plans, by source and destination tier.",
    "copies_failed": "Failed copies: blocks that failed or were corrupt, and flights (batches of "
    "copies) that were not reported at their deadline.",
    "disk_resting": "Disks that are suspended after failures until a retry.",
    "dropped_blocks": "Evicted blocks that no tier has any more, although there is a lower tier.",
    "events": "Blocks that were added to a tier or removed from it, by what was published.",
    "evicted_blocks": "Blocks evicted from a tier.",
    "hit_blocks": "Full prompt blocks that were found, by tier.",
    "miss_blocks": "Full prompt blocks that were not found or not used, by reason.",
    "handover_offers": "Offers for requests of this engine, by what became of them.",
    "handover_reservations": "Requests that asked for room before a hand-over.",
    "offers_connections_closed": "Connections of decode engines that were closed, by why.",
    "offers_ended": "Offers of this engine that have ended, by why.",
    "parked_lost": "Parked sequences that were recomputed, by reason.",
    "recorded_requests": "Requests that ended while `record` was on, by whether they were written "
    "or dropped.",
    "refusals": "Admissions and growing rows that found no room.",
    "requests": "Requests that have not ended, by state.",
    "reservations": "Reservations, by how they ended.",
    "sequences": "Sequences, by event.",
    "slots": "Slots of a tier, by use.",
    "slots_promised": "Slots of a tier promised to growth, reservations and parked sequences.",
    "slots_takeable": "Idle slots of a tier that may be evicted now.",
    "tier_slots": "Slots of a tier.",
    "store_resting": "Stores that are suspended after failures or slow calls until a retry.",
    "unwritten_blocks": "Blocks that were evicted before write 'through' had copied them to a "
    "lower tier.",
    "victims": "Preempted sequences, by what happened to their KV.",
    "waiting_requests": "Requests that wait for a row of the batch, by reason; each request "
    "counts once.",
}
"""What a family of several numbers means; one of a single number means what that does."""


class Stat(NamedTuple):
    """One number of `stats()`.

    Its metric is written as `slots{tier=device,set=free}`. One that has fewer labels than others of
    its family is the sum of those: nothing exports it.
    """

    name: str
    unit: str
    kind: Kind
    metric: str
    help: str

    @property
    def family(self) -> str:
        """Its family in Prometheus, without prefix, and without the ending of counters."""
        return self.metric.partition("{")[0]

    @property
    def labels(self) -> dict[str, str]:
        """Its labels, by name."""
        inside = self.metric.partition("{")[2].removesuffix("}")
        pairs = (pair.partition("=") for pair in inside.split(",") if pair)
        return {name: value for name, _, value in pairs}

    @property
    def query(self) -> str:
        """What to ask Prometheus for, of one engine."""
        ending = "_total" if self.kind == "counter" else ""
        labels = ", ".join(f'{name}="{value}"' for name, value in self.labels.items())
        return f"{PREFIX}{self.family}{ending}" + (f"{{{labels}}}" if labels else "")


@cache
def core_schema() -> tuple[Stat, ...]:
    """Returns what the bookkeeping counts: for all tiers together, tier by tier, and by pairs."""
    whole, per_tier = stats_schema()
    own = [_stat(*field) for field in whole]
    for tier in _TIERS:
        for name, unit, kind, metric, help_ in per_tier:
            metric_here = metric.replace("*", tier)
            own.append(_stat(f"{tier}_{name}", unit, kind, metric_here, f"{tier}: {help_}"))
    for source in _TIERS:
        for destination in _TIERS:
            if source != destination or source == "device":
                pair = f"copied_blocks{{from={source},to={destination}}}"
                about = f"blocks in plans from the {source} to the {destination}"
                own.append(
                    _stat(f"copied_{source}_to_{destination}", "blocks", "counter", pair, about)
                )
    return tuple(own)


def _stat(name: str, unit: str, kind: str, metric: str, help_: str) -> Stat:
    return Stat(name, unit, cast("Kind", kind), metric, help_)
