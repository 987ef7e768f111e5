"""Shared stores in an engine's own options: which they are, and which an engine may name."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from blockyard._core import Misuse
from blockyard.shared.layout import KVLayout
from blockyard.shared.validate import shown
from blockyard.stores import Store
from blockyard.stores.identity import fields_of, number_of
from blockyard.stores.location import read
from blockyard.stores.open import SCHEMES, open_store

__all__ = ["StoreOptions", "opened", "store_identity", "urls_of"]

_EXAMPLE: Final = "redis://host:6379/0"
_WITH_PASSWORD: Final = frozenset({"redis", "rediss", "unix", "valkey"})
"""Schemes that have one."""


def urls_of(name: str, given: object, engine: str) -> tuple[str, ...]:
    """Checks an option that names stores.

    Args:
        name: What it is called.
        given: A URL, or several in order.
        engine: The engine that has it in its configuration.

    Returns:
        The URLs.

    Raises:
        Misuse: It is something else, a scheme is unknown, a store comes twice, or a URL has a
            password, which no message has.
    """
    several = [given] if isinstance(given, str) else given
    if not isinstance(several, list | tuple) or not several:
        raise Misuse(
            f"{name} = {shown(given)}: give the URL of a store, as {_EXAMPLE!r}, or a list"
        )
    found: list[str] = []
    for url in several:
        where = read(url, SCHEMES, {})
        if where.password is not None:
            raise Misuse(
                f"{name} = {where.url!r} has a password in it, and {engine} logs its "
                'configuration: leave it out, and give "password_file", the path of a file, or '
                "set BLOCKYARD_REDIS_PASSWORD; if the log is read by others, change the password"
            )
        found.append(str(url))
    if len(set(found)) < len(found):
        raise Misuse(f"{name} = {found}: give each store once")
    return tuple(found)


class StoreOptions:
    """The options of an engine that name shared stores."""

    __slots__ = ()
    ENGINE: ClassVar[str]
    """The engine that has them in its configuration."""

    remote: str | Sequence[str] | None
    password_file: str | None

    @property
    def urls(self) -> tuple[str, ...]:
        """The URLs of its stores."""
        return () if self.remote is None else urls_of("remote", self.remote, self.ENGINE)

    def stores(self) -> list[Store]:
        """Opens its stores. Nothing is connected yet.

        Raises:
            Misuse: As `opened`.
            Unavailable: Likewise.
        """
        return opened(self.urls, self.password_file)


def opened(urls: Sequence[str], password_file: str | None) -> list[Store]:
    """Opens stores. Nothing is connected yet.

    Args:
        urls: As of `urls_of`.
        password_file: The file of the password, for those that have one.

    Raises:
        Misuse: An option of a URL is unknown, the file cannot be read, or no store has a password.
        Unavailable: A package is missing.
    """
    stores = []
    file = {} if password_file is None else {"password_file": password_file}
    takes = [url.partition(":")[0] in _WITH_PASSWORD for url in urls]
    if file and not any(takes):
        raise Misuse(
            f"password_file = {shown(password_file)}: none of {list(urls)} has a password; leave "
            "it out"
        )
    for url, has in zip(urls, takes, strict=True):
        stores.append(open_store(url, **file) if has else open_store(url))
    return stores


def store_identity(identity: Mapping[str, str], layout: KVLayout) -> int:
    """Returns whose the values in a store are, as their addresses name it.

    Args:
        identity: As `RemoteTier` has it.
        layout: What a block is.
    """
    return number_of(fields_of(identity, layout))
