"""A configuration of `blockyard.Config`, as a TOML file has it."""

import tomllib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from blockyard._core import BlockyardError
from blockyard.shared.layout import BELOW, TIERS
from blockyard.shared.machine import free_memory
from blockyard.tools.doctor.finding import Check, Demand, Finding, Problem, Site, judged
from blockyard.tools.units import size
from blockyard.yard.cache import KVCache
from blockyard.yard.config import BlockCosts, Config

__all__ = ["asked_of", "bookkeeping", "checks", "tried"]

_SLOT: Final = 200
"""Bytes of bookkeeping for a slot, at most."""
_SMALL: Final = 4096
"""Blocks of a tier with which policies are tried."""
_MOST: Final = 2_147_483_631
"""Blocks of a tier; more are given to the core as they are, which refuses them."""
_OF_VLLM: Final = frozenset({"offload", "preempt", "decode", "load", "checksums", "keep_on_reset"})


def asked_of(config: Config) -> Demand:
    """Returns what a configuration asks of the machine."""
    layout, block_costs = config.layout, config.block_costs
    load = block_costs.disk if isinstance(block_costs, BlockCosts) else None
    # A configuration has no password, nor the file of one but in a URL.
    stores = tuple((url, None) for url in config.stores)
    if layout is None:
        return Demand(ranks=config.ranks, load=load, stores=stores)
    shared = sum(plane.block_bytes for plane in layout.planes if plane.replicated)
    return Demand(
        host=config.host_blocks * layout.host_block_bytes,
        pinned=config.host_blocks * layout.block_bytes,
        piece=config.host_blocks * layout.block_bytes,
        shared=config.host_blocks * shared if layout.ranks > 1 else 0,
        disk=config.disk_blocks * layout.host_block_bytes,
        device=config.device_blocks * layout.block_bytes,
        ranks=config.ranks,
        layout=layout,
        load=load,
        stores=stores,
    )


def tried(config: Config) -> None:
    """Makes a small cache of the same policies: the core checks what `Config` does not.

    Raises:
        BlockyardError: They do not go together.
    """
    tiers = ("engine" if config.engine else "device", *BELOW)
    given: dict[str, Any] = {tier: int(getattr(config, tier)) for tier in tiers}
    sizes = {tier: size if size > _MOST else min(size, _SMALL) for tier, size in given.items()}
    # Nothing is written, and no path is opened.
    KVCache(replace(config, **sizes, ghosts=None, spare=None, record=None))


def parses(path: Path, config: Config | BlockyardError, _: Site) -> Finding:
    """Whether the file is a valid configuration."""
    if isinstance(config, Config):
        try:
            tried(config)
        except BlockyardError as error:
            config = error
    if isinstance(config, Config):
        return Finding("config", "ok", f"{path}: fingerprint {config.fingerprint[:16]}")
    means = "no cache is made of it"
    if _is_of_vllm(path):
        return Finding(
            "config",
            "fail",
            f"{path} has keys of vLLM's connector",
            "they are no fields of Config",
            f'give it there, as --vllm \'… "kv_connector_extra_config": {{"config": "{path}"}} …\'',
        )
    return Finding(
        "config", "fail", f"{path}: {config}", means, "correct it as the message describes"
    )


def _is_of_vllm(path: Path) -> bool:
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    own = table.get("blockyard", table)
    return isinstance(own, dict) and bool(_OF_VLLM & own.keys())


def bookkeeping(config: Config, site: Site) -> Finding:
    """Memory for the bookkeeping of all slots."""
    slots = sum(map(config.blocks_of, TIERS))
    needs, free = slots * _SLOT, free_memory(site.root)
    fact = f"{slots:,} slots take {size(needs)} at most"
    larger = "give blocks of more tokens, or smaller tiers"
    short = free is not None and needs > free
    return judged("bookkeeping", fact, (short, "fail", f"{size(free or 0)} are free", larger))


def stored(config: Config, _: Site) -> Finding:
    """Whether blocks in stores would be told from those of others."""
    named = dict(config.namespace or ())
    has_names = config.remote or config.stores or config.peers
    missing = [name for name in ("model", "weights") if has_names and not named.get(name)]
    fact = f"{config.remote_blocks:,} names" if config.remote else "none"
    if missing:
        fact = f"there are stores, and namespace names no {' and no '.join(missing)}"
    refused = "stores outlive the process, so that a cache with them is refused"
    do = 'write namespace = { model = "…", weights = "v1" }'
    return judged("stores", fact, (missing, "fail", refused, do))


def policies(config: Config, _: Site) -> Finding:
    """What was chosen in place of the defaults."""
    default = Config(device=2)
    names = (
        *("eviction", "host_copies", "write", "ahead", "spare", "deadline", "block_costs"),
        "copy_retries",
    )
    changed = [
        f"{name} = {value!r}"
        for name in names
        if (value := getattr(config, name)) != getattr(default, name)
    ]
    endless = config.deadline is None and config.host_blocks
    changed = ["no deadline", *changed] if endless else changed
    never = "a copy that hangs keeps its blocks for ever"
    problem: Problem = (endless, "warn", never, "write deadline = 60000 (ticks)")
    return judged("policies", ", ".join(changed) or "those of Config", problem)


def checks(path: Path, config: Config | BlockyardError) -> tuple[Check, ...]:
    """Returns the checks of a file, and its configuration."""
    first = partial(parses, path, config)
    if isinstance(config, BlockyardError):
        return (first,)
    others = (bookkeeping, stored, policies)
    return (first, *(partial(check, config) for check in others))
