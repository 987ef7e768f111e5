"""What is counted of events: name, unit, kind, metric and meaning of each number."""

from typing import Final

from blockyard.shared.stats import Stat

__all__ = ["EVENT_STATS", "PUBLISHER_STATS"]

EVENT_STATS: Final = (
    Stat("stored", "blocks", "counter", "events{kind=stored}", "blocks told as stored on a tier"),
    Stat(
        "removed", "blocks", "counter", "events{kind=removed}", "blocks told as removed from a tier"
    ),
    Stat(
        "deferred",
        "blocks",
        "counter",
        "events{kind=deferred}",
        "blocks that came to a tier and were not told, as nobody has said their tokens",
    ),
    Stat(
        "salted",
        "blocks",
        "counter",
        "events{kind=salted}",
        "blocks that came to a tier and were not told, as they have a salt",
    ),
    Stat(
        "lost",
        "events",
        "counter",
        "events_lost",
        "events that were dropped as nobody took them: all was told again",
    ),
    Stat("snapshots", "snapshots", "counter", "snapshots", "snapshots of all that was told"),
)
"""Of what `KVCache.event_stats` returns, while somebody listens."""

PUBLISHER_STATS: Final = (
    Stat("batches", "batches", "counter", "event_batches", "batches that a publisher has sent"),
    Stat(
        "replays",
        "requests",
        "counter",
        "event_replays",
        "requests for lost batches that were answered with those",
    ),
    Stat(
        "rejected",
        "requests",
        "counter",
        "event_requests_rejected",
        "messages to the replay socket that were no request, or were answered with the next one, "
        "as their asker reads late",
    ),
)
"""Of what `Publisher.stats` returns beside."""
