"""What is counted of events: name, unit, kind, metric and meaning of each number."""

from typing import Final

from blockyard.shared.stats import Stat

__all__ = ["EVENT_STATS", "PUBLISHER_STATS"]

EVENT_STATS: Final = (
    Stat(
        "stored", "blocks", "counter", "events{kind=stored}", "blocks published as stored on a tier"
    ),
    Stat(
        "removed",
        "blocks",
        "counter",
        "events{kind=removed}",
        "blocks published as removed from a tier",
    ),
    Stat(
        "deferred",
        "blocks",
        "counter",
        "events{kind=deferred}",
        "blocks that were not published because their tokens are unknown",
    ),
    Stat(
        "salted",
        "blocks",
        "counter",
        "events{kind=salted}",
        "blocks that were not published because they have a salt",
    ),
    Stat(
        "lost",
        "events",
        "counter",
        "events_lost",
        "events that were dropped because they were taken too late; all blocks were published "
        "again",
    ),
    Stat("snapshots", "snapshots", "counter", "snapshots", "snapshots of all published blocks"),
)
"""Of what `KVCache.event_stats` returns, while somebody listens."""

PUBLISHER_STATS: Final = (
    Stat("batches", "batches", "counter", "event_batches", "batches that a publisher has sent"),
    Stat(
        "replays",
        "requests",
        "counter",
        "event_replays",
        "requests for missed batches that were answered with these batches",
    ),
    Stat(
        "rejected",
        "requests",
        "counter",
        "event_requests_rejected",
        "messages to the replay socket that could not be parsed, or were merged with the next "
        "request of a slow router",
    ),
)
"""Of what `Publisher.stats` returns beside."""
