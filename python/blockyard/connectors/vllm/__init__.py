"""Blockyard inside vLLM, by one option of `vllm serve`.

--kv-transfer-config '{"kv_connector": "Blockyard",
  "kv_connector_module_path": "blockyard.engines.vllm", "kv_role": "kv_both",
  "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {"host": "64 GiB"}}'

vLLM is imported with the class alone, so that `blockyard doctor` reads the rules without it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blockyard.connectors.vllm.connector import Blockyard

__all__ = ["Blockyard"]


def __getattr__(name: str) -> Any:
    """Imports the connector, and vLLM, when it is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from blockyard.connectors.vllm import connector  # noqa: PLC0415 - it needs vLLM

    return getattr(connector, name)
