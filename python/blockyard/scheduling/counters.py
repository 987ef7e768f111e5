"""The counters of a scheduler, each with its name, unit and meaning."""

from dataclasses import dataclass, field, fields
from typing import Final

from blockyard.scheduling.cached_tokens import CachedTokens
from blockyard.shared.stats import Stat

__all__ = ["COUNTERS", "Counters"]


def _counter(unit: str, metric: str, meaning: str) -> int:
    """The default of a counter, 0, with its unit, metric and meaning for `COUNTERS`."""
    return field(default=0, metadata={"unit": unit, "metric": metric, "meaning": meaning})


@dataclass(slots=True)
class Counters:
    """The counters of one scheduler, which all its parts share."""

    steps: int = _counter("steps", "steps", "steps scheduled")
    admitted: int = _counter(
        "requests",
        "admitted_requests",
        "admissions of requests; a request counts again after each preemption",
    )
    forked: int = _counter(
        "requests",
        "forked_samples",
        "samples forked from another sample that had computed their prompt",
    )
    preempted: int = _counter("requests", "preempted_requests", "preemptions of requests")
    displaced: int = _counter(
        "requests",
        "displaced_requests",
        "preemptions in favour of a request of higher priority",
    )
    cached_device: int = _counter(
        "tokens", "cached_tokens{tier=device}", "prompt tokens whose KV was found on the device"
    )
    cached_host: int = _counter(
        "tokens", "cached_tokens{tier=host}", "prompt tokens whose KV was found on the host"
    )
    cached_disk: int = _counter(
        "tokens", "cached_tokens{tier=disk}", "prompt tokens whose KV was found on the disk"
    )
    cached_remote: int = _counter(
        "tokens", "cached_tokens{tier=remote}", "prompt tokens whose KV was found in a store"
    )
    lost: int = _counter(
        "tokens",
        "lost_tokens",
        "tokens whose KV a preemption did not keep; the KV is found again or recomputed",
    )
    skipped: int = _counter(
        "rows", "skipped_rows", "decoding rows that found no room to grow, and skipped a step"
    )
    no_room: int = _counter(
        "steps", "no_room_steps", "steps in which a waiting request found no room"
    )
    soon: int = _counter(
        "requests",
        "deferred_begins",
        "admissions delayed while another request computed or loaded the prefix",
    )
    acks_ignored: int = _counter(
        "acks", "acks_ignored", "acks that were late, repeated, or belonged to no stop"
    )
    outputs_ignored: int = _counter(
        "rows", "outputs_ignored", "rows of output for requests that had already ended"
    )
    moved: int = _counter(
        "requests", "moved_requests", "requests that ended to go on at another engine"
    )
    moved_blocks: int = _counter(
        "blocks", "moved_blocks", "full blocks of moved requests that were in a store at their end"
    )
    unmoved_blocks: int = _counter(
        "blocks",
        "unmoved_blocks",
        "full blocks of moved requests that were in no store when their time was over",
    )

    def fork(self) -> None:
        """Counts a sample that begins beside the one that has computed its prompt."""
        self.admitted += 1
        self.forked += 1

    def found(self, cached: CachedTokens) -> None:
        """Counts the prompt tokens that a begin has found, by tier."""
        self.cached_device += cached.device
        self.cached_host += cached.host
        self.cached_disk += cached.disk
        self.cached_remote += cached.remote

    def stats(self) -> dict[str, int]:
        """The counters by name."""
        return {stat.name: getattr(self, stat.name) for stat in COUNTERS}


COUNTERS: Final = tuple(
    Stat(
        counter.name,
        counter.metadata["unit"],
        "counter",
        counter.metadata["metric"],
        counter.metadata["meaning"],
    )
    for counter in fields(Counters)
)
"""The schema of `Counters.stats`."""
