"""Where a publisher binds: on this machine alone, unless it is told otherwise."""

import ipaddress
from typing import Final

from blockyard._core import Misuse
from blockyard.shared.validate import shown

__all__ = ["check_endpoint"]

_MOST_PORT: Final = 65_535
_FORM: Final = f'give "tcp://host:port" with a port up to {_MOST_PORT} or "*", or "ipc://path"'
_HELP: Final = (
    'name one of this machine, as "tcp://127.0.0.1:5557"; or say interfaces="any" where a '
    "network that nobody else is in leads to the routers: it has no password"
)


def check_endpoint(name: str, endpoint: str, *, interfaces: str) -> None:
    """Refuses an endpoint that others than this machine could reach, unless `interfaces` is "any".

    Raises:
        Misuse: It is no endpoint, or it is not of this machine alone.
    """
    if not isinstance(endpoint, str):
        raise Misuse(f"{name} = {shown(endpoint)}: {_FORM}")
    scheme, _, address = endpoint.partition("://")
    if scheme == "ipc" and address:
        return
    host, _, port = address.rpartition(":")
    if scheme != "tcp" or not host or not (port == "*" or _is_port(port)):
        raise Misuse(f'{name} = "{endpoint}": {_FORM}')
    if interfaces == "any":
        return
    try:
        local = ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        local = host == "localhost"
    if not local:
        raise Misuse(f'{name} = "{endpoint}" can be reached from other machines: {_HELP}')


def _is_port(text: str) -> bool:
    # Of a larger one the socket would take what is left of it in 16 bits.
    return text.isascii() and text.isdigit() and int(text) <= _MOST_PORT
