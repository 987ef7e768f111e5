"""Blockyard as SGLang's HiCache storage: pages on a disk, which a restart finds again.

python -m sglang.launch_server --model-path MODEL --enable-hierarchical-cache
  --hicache-mem-layout page_first --hicache-storage-backend dynamic
  --hicache-storage-backend-extra-config '{"backend_name": "blockyard",
    "module_path": "blockyard.engines.sglang", "class_name": "Storage", "interface_v1": 1,
    "hicache_storage_pass_prefix_keys": true, "disk": "200 GiB", "disk_path": "/data/kv"}'

All that is taken from SGLang is in `engine`; the storage itself is imported when it is asked for.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blockyard.connectors.sglang.storage import Storage

__all__ = ["Storage"]


def __getattr__(name: str) -> Any:
    """Imports the storage where it is wanted: what needs its settings alone needs no SGLang."""
    if name == "Storage":
        from blockyard.connectors.sglang.storage import Storage  # noqa: PLC0415 - as said

        return Storage
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
