"""Addresses of other engines, as `host:port`, and the secret that both sides know."""

import os
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Final, Literal, TypeAlias

from blockyard._core import Misuse
from blockyard.shared.validate import bounded, file, shown

__all__ = [
    "Carrier",
    "endpoint",
    "endpoints",
    "is_endpoint",
    "is_unspecified",
    "read_secret",
]

Carrier: TypeAlias = Literal["tcp", "nixl"]
"""What brings the bytes of blocks that are handed over."""
_LONGEST: Final = 255
"""Letters of an address."""
_MOST_PORT: Final = 65_535
_DIGITS: Final = 5
_LEAST: Final = 16
"""Bytes of a secret."""
_MOST_SECRET: Final = 4096


def is_endpoint(given: object, *, least: int = 1) -> bool:
    """Whether it is text as `host:port`, or `[v6 address]:port`.

    Args:
        given: What was given.
        least: The smallest port: 0, any free one, is only to listen on.
    """
    if not isinstance(given, str) or len(given) > _LONGEST or not given.isascii():
        return False
    host, _, port = given.rpartition(":")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        return False
    if not host.strip("[]") or not host.isprintable() or any(one in host for one in " /@?#"):
        return False
    return port.isdigit() and len(port) <= _DIGITS and least <= int(port) <= _MOST_PORT


def endpoint(name: str, given: object, *, least: int = 1) -> str:
    """Returns an address.

    Args:
        name: What the error calls it.
        given: What was given.
        least: As in `is_endpoint`.

    Raises:
        Misuse: It is none.
    """
    if not isinstance(given, str) or not is_endpoint(given, least=least):
        raise Misuse(f"{name} = {shown(given)}: give host:port, as '10.0.0.7:7000'")
    return given


def is_unspecified(address: str) -> bool:
    """Whether an address is none to connect to: 0.0.0.0 and [::] are every interface.

    Args:
        address: As `endpoint` returns it.
    """
    try:
        return ip_address(address.rpartition(":")[0].strip("[]")).is_unspecified
    except ValueError:
        return False  # a name


def endpoints(given: object) -> tuple[str, ...]:
    """Returns the addresses of the option `peers`, in order.

    Args:
        given: What was given.

    Raises:
        Misuse: It is no sequence of addresses, or names one twice.
    """
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise Misuse(f"peers = {shown(given)}: give a list of host:port, as ['10.0.0.7:7000']")
    every = [endpoint(f"peers[{at}]", one) for at, one in enumerate(bounded("peers", given))]
    if len(set(every)) < len(every):
        raise Misuse("peers name one twice: give each once")
    return tuple(every)


def read_secret(path: str | os.PathLike[str] | None) -> bytes | None:
    """Returns the secret in a file, without the end of its line; None where there is no file.

    Raises:
        Misuse: It cannot be read, or is shorter than 16 bytes or longer than 4,096. No message has
            anything of it.
    """
    if path is None:
        return None
    where = file("secret_file", path)
    try:
        with Path(where).open("rb") as opened:
            found = opened.read(_MOST_SECRET + 2)
    except OSError as error:
        said = error.strerror or type(error).__name__
        # It may be the secret itself.
        is_bare = len(where) >= _LEAST and not set(where) & set("./\\")
        named = f"a word of {len(where)} characters" if is_bare else shown(where)
        raise Misuse(
            f"secret_file = {named}: it cannot be read ({said}); give a file with {_LEAST} random "
            "bytes or more, as `openssl rand -hex 32` writes them"
        ) from None
    secret = found.removesuffix(b"\n").removesuffix(b"\r")
    if not _LEAST <= len(secret) <= _MOST_SECRET:
        raise Misuse(
            f"secret_file = {shown(where)}: it has {len(secret)} bytes; give {_LEAST} to "
            f"{_MOST_SECRET} random ones, as `openssl rand -hex 32` writes them"
        )
    return secret
