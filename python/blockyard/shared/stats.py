"""The schema of `stats()`: name, unit, kind, metric and meaning of each number."""

from functools import cache
from typing import Final, Literal, NamedTuple, TypeAlias, cast

from blockyard._core import stats_schema

__all__ = ["HELP", "PREFIX", "Kind", "Stat", "core_schema"]

Kind: TypeAlias = Literal["counter", "gauge"]
"""A counter has only ever gone up since its owner was made; a gauge says what is now."""

PREFIX: Final = "blockyard_"
"""What every metric begins with."""

_TIERS: Final = ("device", "host", "disk")

HELP: Final = {
    "cached_tokens": "Prompt tokens whose KV begins found, by the tier that had them.",
    "copied_blocks": "Blocks in plans, by the tiers that they are copied between.",
    "copies_failed": "Copies that did not end well: blocks that failed or were corrupt below, and "
    "flights without a known end at their deadline.",
    "disk_resting": "Disks that rest after failures until a retry.",
    "dropped_blocks": "Blocks that were evicted and are nowhere then, where there is a tier below.",
    "events": "Blocks that came to a tier or left it, by what routers were told of that.",
    "evicted_blocks": "Blocks evicted from a tier.",
    "hit_blocks": "Blocks that begins found, by the tier that had them.",
    "miss_blocks": "Full blocks of prompts that begins did not find or did not use, by the reason.",
    "parked_lost": "Parked sequences that were recomputed after all.",
    "recorded_requests": "Requests that ended while `record` was on, by what became of them.",
    "refusals": "Requests of begins and rows of grows that found no room.",
    "requests": "Requests that have not ended, by their state.",
    "reservations": "What came of reservations.",
    "sequences": "What has happened to sequences.",
    "slots": "Slots of a tier, by the set that they are in.",
    "slots_promised": "Slots of a tier kept obtainable for growth, tickets and keeps.",
    "slots_takeable": "Idle slots of a tier that may be evicted now.",
    "tier_slots": "Slots of a tier.",
    "unwritten_blocks": "Blocks that left a tier without the copy below that 'through' asks for.",
    "victims": "What became of preempted sequences' work.",
    "waiting_requests": "Requests that have no seat, by what they wait for; each counts once.",
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
