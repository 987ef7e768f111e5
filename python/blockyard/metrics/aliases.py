"""Other engines' names for our numbers, for routers and dashboards that need them."""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

from blockyard._core import Misuse
from blockyard.metrics.engine_view import EngineView
from blockyard.shared.layout import BELOW
from blockyard.shared.stats import Kind
from blockyard.shared.validate import one_of

__all__ = ["Alias", "Names", "aliases", "checked_names", "every_alias"]

Names: TypeAlias = Literal["vllm"]
"""An engine whose metric names are exported, too."""


class Alias(NamedTuple):
    """A metric of another engine, without the ending of counters."""

    name: str
    kind: Kind
    help: str


_VLLM: Final = {
    "usage": Alias("vllm:kv_cache_usage_perc", "gauge", "KV cache in use, from 0 to 1."),
    "running": Alias("vllm:num_requests_running", "gauge", "Running requests."),
    "waiting": Alias("vllm:num_requests_waiting", "gauge", "Waiting requests."),
    "queries": Alias("vllm:prefix_cache_queries", "counter", "Prompt tokens looked up."),
    "hits": Alias("vllm:prefix_cache_hits", "counter", "Prompt tokens found on the device."),
    "external_queries": Alias(
        "vllm:external_prefix_cache_queries", "counter", "Prompt tokens looked up on lower tiers."
    ),
    "external_hits": Alias(
        "vllm:external_prefix_cache_hits", "counter", "Prompt tokens found on lower tiers."
    ),
    "preemptions": Alias("vllm:num_preemptions", "counter", "Preemptions of requests."),
}


def checked_names(names: object) -> Names | None:
    """Returns the names exported beside our own.

    Raises:
        Misuse: There are no such names here.
    """
    if names is None:
        return None
    if not isinstance(names, str):
        raise Misuse(f'names = {names!r:.60}: must be None or "vllm"')
    return one_of("names", names, ("vllm",))


def every_alias(names: Names | None) -> list[Alias]:
    """Returns all metrics that may be exported with these names."""
    return [] if names is None else list(_VLLM.values())


def aliases(view: EngineView, stats: Mapping[str, int]) -> dict[Alias, float]:
    """Returns vLLM's numbers, made of an engine's own.

    Args:
        view: The engine.
        stats: Its numbers by metric, as `EngineView.stats` returns them.
    """
    config = view.cache.config
    size = config.block_size
    total = stats["tier_slots{tier=device}"]
    unused = stats["slots{tier=device,set=free}"] + stats["slots{tier=device,set=idle}"]
    found = stats["hit_blocks{tier=device}"] * size
    below = sum(stats[f"hit_blocks{{tier={tier}}}"] for tier in BELOW) * size
    numbers: dict[str, float] = {
        "usage": (total - unused) / total if total else 0.0,
        "queries": stats["prompt_tokens"],
        # The last token of a prompt is computed even where its block was found.
        "hits": min(found, stats["prompt_tokens"]),
        # Where there is nothing below the device, nobody looks there.
        "external_queries": max(stats["prompt_tokens"] - found, 0)
        if any(map(config.blocks_of, BELOW))
        else 0,
        "external_hits": below,
    }
    if view.monitor is not None:
        numbers |= {
            # In vLLM a request whose blocks come up from below waits still.
            "running": stats["requests{state=prefill}"] + stats["requests{state=decode}"],
            "waiting": stats["waiting_requests"] + stats["requests{state=loading}"],
            "preemptions": stats["preempted_requests"],
        }
    return {alias: numbers[what] for what, alias in _VLLM.items() if what in numbers}
