"""Blockyard inside vLLM, by one option of `vllm serve`.

--kv-transfer-config '{"kv_connector": "Blockyard", "kv_role": "kv_both",
  "kv_connector_extra_config": {"host": "64 GiB"}}'

The name is registered by the entry point `vllm.general_plugins`. All that is taken from vLLM is in
`engine`; the connector itself is imported when vLLM asks for it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blockyard.connectors.vllm.connector import Blockyard

__all__ = ["Blockyard"]


def __getattr__(name: str) -> Any:
    """Imports the connector where it is wanted: each process of vLLM imports this package."""
    if name == "Blockyard":
        from blockyard.connectors.vllm.connector import Blockyard  # noqa: PLC0415 - as said
        from blockyard.connectors.vllm.engine import register  # noqa: PLC0415 - likewise

        # A MultiConnector looks its reports' class up by name, also where a module was given.
        register()
        return Blockyard
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
