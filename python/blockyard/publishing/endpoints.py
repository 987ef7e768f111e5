"""Where a publisher binds: on this machine alone, unless it is told otherwise."""

import ipaddress
from typing import Final

from blockyard._core import Misuse

__all__ = ["check_endpoint"]

_LOCAL: Final = ("ipc://", "inproc://")
_HELP: Final = (
    'name one of this machine, as "tcp://127.0.0.1:5557"; or say interfaces="any" where a '
    "network that nobody else is in leads to the routers: it has no password"
)


def check_endpoint(name: str, endpoint: str, *, interfaces: str) -> None:
    """Refuses an endpoint that others than this machine could reach, unless `interfaces` is "any".

    Raises:
        Misuse: It is no endpoint, or it is not of this machine alone.
    """
    if endpoint.startswith(_LOCAL):
        return
    scheme, _, address = endpoint.partition("://")
    host, _, port = address.rpartition(":")
    if scheme != "tcp" or not host or not (port.isdigit() or port == "*"):
        raise Misuse(f'{name} = "{endpoint}": give "tcp://host:port", "ipc://path" or "inproc://…"')
    if interfaces == "any":
        return
    try:
        local = ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        local = host == "localhost"
    if not local:
        raise Misuse(f'{name} = "{endpoint}" can be reached from other machines: {_HELP}')
