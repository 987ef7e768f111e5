"""All that the storage takes from SGLang: no other module imports it.

Each name comes from the recorded interface; one that this SGLang has not is an empty class, so that
the import passes and the storage can report the differing names.
"""

from typing import Any, Final

from blockyard.connectors.interface import Interface

__all__ = ["INTERFACE"]

INTERFACE: Final = Interface.beside(
    "blockyard.connectors.sglang",
    "SGLang",
    option='"untested": true in --hicache-storage-backend-extra-config',
)


def __getattr__(name: str) -> Any:
    """Looks a recorded name up in SGLang."""
    return INTERFACE.get(name)
