"""What a connector counts: name, unit, kind, metric and meaning of each number."""

from typing import Final

from blockyard.shared.stats import Stat

__all__ = ["CONNECTOR_STATS"]

CONNECTOR_STATS: Final = (
    Stat(
        "prompt_tokens",
        "tokens",
        "counter",
        "prompt_tokens",
        "tokens of the full blocks of requests, when they first run or load",
    ),
    Stat(
        "cached_device",
        "tokens",
        "counter",
        "cached_tokens{tier=device}",
        "of these, tokens that the engine had itself",
    ),
    Stat(
        "cached_host",
        "tokens",
        "counter",
        "cached_tokens{tier=host}",
        "of these, tokens that were loaded from the host",
    ),
    Stat(
        "cached_disk",
        "tokens",
        "counter",
        "cached_tokens{tier=disk}",
        "of these, tokens that were loaded from the disk",
    ),
    Stat(
        "admitted",
        "requests",
        "counter",
        "admitted_requests",
        "requests admitted, once more after each preemption",
    ),
    Stat("preempted", "requests", "counter", "preempted_requests", "requests preempted"),
    Stat("kept", "requests", "counter", "victims{fate=parked}", "of these, requests kept"),
    Stat(
        "no_host",
        "requests",
        "counter",
        "victims{fate=no_host}",
        "of these, requests that are recomputed, as no tier below had room",
    ),
    Stat(
        "kv_lost",
        "requests",
        "counter",
        "parked_lost{why=kv_lost}",
        "requests that were kept and whose KV was lost: they are recomputed",
    ),
)
"""Of what `Connector.stats` returns."""
