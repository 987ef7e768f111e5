"""What a scheduler counts: each counter stands once, with its name, unit and meaning."""

from dataclasses import dataclass, field, fields
from typing import Final

from blockyard.scheduling.cached_tokens import CachedTokens
from blockyard.shared.stats import Stat

__all__ = ["COUNTERS", "Counters"]


def _counter(unit: str, metric: str, meaning: str) -> int:
    """The default of a counter, 0, with what `COUNTERS` says of it."""
    return field(default=0, metadata={"unit": unit, "metric": metric, "meaning": meaning})


@dataclass(slots=True)
class Counters:
    """The counters of one scheduler, which all its parts share."""

    steps: int = _counter("steps", "steps", "steps scheduled")
    admitted: int = _counter(
        "requests", "admitted_requests", "requests admitted, once more after each preemption"
    )
    forked: int = _counter(
        "requests", "forked_samples", "samples forked of one that had computed their prompt"
    )
    preempted: int = _counter("requests", "preempted_requests", "requests preempted")
    displaced: int = _counter(
        "requests",
        "displaced_requests",
        "of these, requests that gave their seat or room to one of a higher priority",
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
    lost: int = _counter(
        "tokens", "lost_tokens", "tokens of KV that preemption gave up: found, or recomputed"
    )
    skipped: int = _counter(
        "rows", "skipped_rows", "rows that found no room to grow and skipped a step"
    )
    no_room: int = _counter(
        "steps", "no_room_steps", "steps in which a waiting request found no room"
    )
    soon: int = _counter(
        "requests",
        "deferred_begins",
        "begins put off while another request computes or loads the prefix",
    )
    acks_ignored: int = _counter(
        "acks", "acks_ignored", "acks that were late, repeated, or of no stop"
    )
    outputs_ignored: int = _counter(
        "rows", "outputs_ignored", "rows of output of requests that had left"
    )

    def fork(self) -> None:
        """Counts a sample that begins beside the one that has computed its prompt."""
        self.admitted += 1
        self.forked += 1

    def found(self, cached: CachedTokens) -> None:
        """Counts what a begin has found of its prompt, by the tier that had it."""
        self.cached_device += cached.device
        self.cached_host += cached.host
        self.cached_disk += cached.disk

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
