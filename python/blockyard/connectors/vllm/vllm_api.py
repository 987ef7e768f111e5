"""All that the connector takes from vLLM: no other module imports it.

Each name comes from the recorded interface: `from blockyard.connectors.vllm.vllm_api import
Request`. One that this vLLM has not is an empty class, so that the import passes and the connector
can say which names differ.
"""

from typing import Any, Final

from blockyard.connectors.interface import Interface
from blockyard.shared.log import Limited, described, join
from blockyard.shared.owner import is_foreign

__all__ = ["INTERFACE", "NAME", "register"]

NAME: Final = "Blockyard"
"""What an operator writes as `kv_connector`."""
INTERFACE: Final = Interface.beside(
    "blockyard.connectors.vllm", "vLLM", option='"untested": true in kv_connector_extra_config'
)
_log = Limited(__name__, 0)


def __getattr__(name: str) -> Any:
    """Looks a recorded name up in vLLM."""
    return INTERFACE.get(name)


def register() -> None:
    """Registers the connector's name; vLLM calls it at the start of each of its processes.

    Lines of the log go where vLLM's go from here on. It never raises, as that would end a vLLM that
    has another connector, or none.
    """
    join("vllm")
    try:
        factory = INTERFACE.get("KVConnectorFactory")
        factory.register_connector(NAME, "blockyard.connectors.vllm", NAME)
    except ValueError:
        # It is there already.
        return
    except Exception as error:
        if is_foreign(error):
            raise
        _log.warning(
            "vLLM %s does not register connectors by name (%s): write %s in --kv-transfer-config",
            *(INTERFACE.version, described(error)),
            '"kv_connector_module_path": "blockyard.connectors.vllm"',
        )
