"""What the options of other connectors are called here.

Those of vLLM's OffloadingConnector and SimpleCPUOffloadConnector, of LMCache, and what else is
often written in their place.
"""

import json
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from blockyard._core import Misuse
from blockyard.connectors.shared_stores import urls_of
from blockyard.shared.sizes import parse_size

__all__ = ["here"]

_GIB: Final = 1 << 30
_LMCACHE: Final = "lmcache."
_PLAIN: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt])?i?\s*", re.ASCII | re.IGNORECASE)
"""A number without a unit that is read here: "64", "64G" or "64Gi"."""


class _Meant(NamedTuple):
    """An option here."""

    name: str
    value: Callable[[Any], object] = lambda given: given
    """Converts the given value; raises TypeError or ValueError for nonsense."""
    example: object = None
    """The value to suggest for nonsense; None for the given value."""
    beside: str = ""
    """What else is needed, or holds."""


def _gib(given: Any, unit: int, per: str = "") -> str:
    nbytes = 0.0 if isinstance(given, bool) else float(given) * unit
    if not 0 < nbytes < float("inf"):
        raise ValueError
    return f"{nbytes / _GIB:.10g} GiB{per}"


def _bytes(per: str = "") -> Callable[[Any], str]:
    return lambda given: _gib(given, 1, per)


def _gibs(per: str = "") -> Callable[[Any], str]:
    return lambda given: _gib(given, _GIB, per)


def _blocks(given: Any) -> int:
    if isinstance(given, bool) or int(given) < 1:
        raise ValueError
    return int(given)


def _amount(given: Any) -> int | str:
    """Converts an amount; text such as "64G" or "64" means GiB."""
    if not isinstance(given, str):
        if not isinstance(given, int):
            raise TypeError
        return _blocks(given)
    plain = _PLAIN.fullmatch(given)
    text = given if plain is None else f"{plain[1]} {(plain[2] or 'G').upper()}iB"
    try:
        amount = parse_size("host", text)
    except Misuse as error:
        raise ValueError from error
    if not amount.nbytes:
        raise ValueError
    return text


def _path(given: Any) -> str:
    path = str(given).removeprefix("file://")
    if not path.startswith("/"):
        raise ValueError
    return path


def _store(given: Any) -> str:
    """A URL that is one here, without a password."""
    try:
        return urls_of("remote", str(given), "vLLM")[0]
    except Misuse as error:
        raise ValueError from error


def _order(given: Any) -> str:
    return "recency" if str(given).casefold() in {"lru", "mru", "fifo"} else "learned"


def _bool(given: Any) -> bool:
    said = {"true": True, "false": False}.get(str(given).casefold(), given)
    if not isinstance(said, bool):
        raise TypeError
    return said


def _unlike(given: Any) -> bool:
    return not _bool(given)


_HOST: Final = _Meant("host", _bytes(), "64 GiB")
_HOST_GIB: Final = _Meant("host", _gibs(), "64 GiB")
_AMOUNT: Final = _Meant("host", _amount, "64 GiB")
_HOST_BLOCKS: Final = _Meant("host", _blocks, "64 GiB")
_DISK: Final = '"disk_path": "/mnt/kv"'
_DISK_GIB: Final = _Meant("disk", _gibs(), "1 TiB", f"with {_DISK}")
_PATH: Final = _Meant("disk_path", _path, "/mnt/kv", 'with "disk": "1 TiB"')
_WHERE: Final[Mapping[str, _Meant]] = MappingProxyType(
    {
        "cpu_bytes_to_use": _HOST,
        "cpu_bytes_to_use_per_rank": _Meant("host", _bytes("/rank"), "8 GiB/rank"),
        "cpu_offload_gb": _HOST_GIB,
        "host_bytes": _HOST,
        "host_gb": _HOST_GIB,
        "host_gib": _HOST_GIB,
        "host_memory": _AMOUNT,
        "host_size": _AMOUNT,
        "hosts": _AMOUNT,
        "cpu": _AMOUNT,
        "ram": _AMOUNT,
        "kv_offloading_size": _HOST_GIB,
        "swap_space": _Meant("host", _gibs("/rank"), "4 GiB/rank"),
        "host_blocks": _HOST_BLOCKS,
        "num_cpu_blocks": _HOST_BLOCKS,
        "num_host_blocks": _HOST_BLOCKS,
        "max_local_cpu_size": _Meant("host", _gibs("/rank"), "5 GiB/rank"),
        "local_disk": _PATH,
        "path": _PATH,
        "disk_dir": _PATH,
        "shared_storage_path": _PATH,
        "storage_path": _PATH,
        "root_dir": _PATH,
        "disk_blocks": _Meant("disk", _blocks, "1 TiB", f"with {_DISK}"),
        "disk_size": _Meant("disk", _amount, "1 TiB", f"with {_DISK}"),
        "disk_gib": _DISK_GIB,
        "max_local_disk_size": _DISK_GIB,
        "disk_capacity_bytes": _Meant("disk", _bytes(), "1 TiB", f"with {_DISK}"),
        "kv_offload_backend": _Meant("disk", lambda _: "1 TiB", "1 TiB", f"with {_DISK}"),
        "remote_url": _Meant("remote", _store, "redis://host:6379/0"),
        "remote_storage_url": _Meant("remote", _store, "redis://host:6379/0"),
        "redis_url": _Meant("remote", _store, "redis://host:6379/0"),
        "save_decode_cache": _Meant("decode", _bool, example=True),
        "offload_prompt_only": _Meant("decode", _unlike, example=True),
        "cache_policy": _Meant("eviction", _order),
        "eviction_policy": _Meant("eviction", _order),
        "lazy_offload": _Meant(
            "offload", lambda given: "finish" if _bool(given) else "through", "finish"
        ),
    }
)
_NOT_HERE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "local_cpu": '"host" alone enables the tier',
        "chunk_size": "the unit is vLLM's block",
        "blocks_per_chunk": "the unit is vLLM's block",
        "tokens_per_chunk": "the unit is vLLM's block",
        "save_unfull_chunk": "the unit is vLLM's block, and a preempted request's partial one is "
        "kept",
        "use_layerwise": "loads run beside other requests",
        "load_async": "loads run beside other requests",
        "lookup_async": "a lookup takes microseconds",
        "store_threshold": '"offload" says when blocks go down',
        "spec_name": "there is one kind, and its tiers are given by their sizes",
        "spec_module_path": "there is one kind, and its tiers are given by their sizes",
        "remote_serde": '"remote" names stores, and values are checked as they are',
        "use_page_cache": "the disk passes the page cache by where it can",
        "disk_buffer_slots": "the disk has its own threads and memory",
        "connectors": 'set it in the part of "MultiConnector", with Blockyard last',
        "kv_load_failure_policy": "write it beside kv_connector_extra_config, not in it",
        "kv_role": "write it beside kv_connector_extra_config, not in it",
    }
)


def here(name: object, value: object) -> str | None:
    """Returns what to do about an option of another connector; None where it is of none.

    Args:
        name: What was written.
        value: Its value, which the answer has in the form that it has here.
    """
    plain = str(name).casefold()
    lmcache = plain.startswith(_LMCACHE)
    plain = plain.removeprefix(_LMCACHE).replace("-", "_")
    meant = _WHERE.get(plain)
    if meant is not None:
        try:
            written = meant.value(value)
        except (TypeError, ValueError, OverflowError):
            written = value if meant.example is None else meant.example
        line = f"write {json.dumps(meant.name)}: {json.dumps(written, default=str)}"
        return f"{line}, {meant.beside}" if meant.beside else line
    if plain in _NOT_HERE:
        return f"leave it out: {_NOT_HERE[plain]}"
    return "leave it out: LMCache's keys mean nothing here" if lmcache else None
