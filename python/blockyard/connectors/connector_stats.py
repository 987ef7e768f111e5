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
        "tokens in full blocks of prompts, counted when a request first runs or loads",
    ),
    Stat(
        "cached_device",
        "tokens",
        "counter",
        "cached_tokens{tier=device}",
        "prompt tokens that the engine's own prefix cache had",
    ),
    Stat(
        "cached_host",
        "tokens",
        "counter",
        "cached_tokens{tier=host}",
        "prompt tokens that were loaded from the host",
    ),
    Stat(
        "cached_disk",
        "tokens",
        "counter",
        "cached_tokens{tier=disk}",
        "prompt tokens that were loaded from the disk",
    ),
    Stat(
        "cached_remote",
        "tokens",
        "counter",
        "cached_tokens{tier=remote}",
        "prompt tokens that have come from shared stores and prefill engines",
    ),
    Stat(
        "admitted",
        "requests",
        "counter",
        "admitted_requests",
        "admissions of requests; a request counts again after each preemption",
    ),
    Stat("preempted", "requests", "counter", "preempted_requests", "preemptions of requests"),
    Stat(
        "kept",
        "requests",
        "counter",
        "victims{fate=parked}",
        "preempted requests whose KV was kept",
    ),
    Stat(
        "no_host",
        "requests",
        "counter",
        "victims{fate=no_host}",
        "preempted requests that are recomputed because no lower tier had room",
    ),
    Stat(
        "kv_lost",
        "requests",
        "counter",
        "parked_lost{why=kv_lost}",
        "preempted requests that are recomputed because their kept KV was lost",
    ),
)
"""Of what `Connector.stats` returns."""
