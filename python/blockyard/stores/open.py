"""Opens a store by its URL. Each kind has a file of its own, which is imported when it is used."""

from importlib import import_module
from typing import Final

from blockyard._core import Misuse
from blockyard.shared.validate import known, shown
from blockyard.stores import Store
from blockyard.stores.location import read

__all__ = ["SCHEMES", "open_store"]

SCHEMES: Final = {
    "file": "file:///path/of/a/folder",
    "mooncake": "mooncake://master:50051",
    "redis": "redis://host:6379/0",
    "rediss": "rediss://host:6379/0",
    "unix": "unix:///path/of/a/socket",
    "valkey": "valkey://host:6379/0",
}
"""An example of each."""
_FILES: Final = {"file": "folder_store", "mooncake": "mooncake_store"}
"""The files of the schemes that are not Redis's."""


def open_store(url: str, *, password: str | None = None, **options: object) -> Store:
    """Returns the store of a URL. Nothing is connected yet.

    Args:
        url: Where it is, with options behind a `?`. docs/stores.md has those of each scheme.
        password: In place of one in the URL.
        options: Options, in place of some in the URL.

    Raises:
        Misuse: The scheme or an option is unknown, or a value is wrong. No message has a password.
        Unavailable: The store needs a package that is not installed.
    """
    where = read(url, SCHEMES, options)
    if password is not None:
        where = where._replace(password=password)
    module = import_module(f"blockyard.stores.{_FILES.get(where.scheme, 'redis_store')}")
    for name in where.options:
        if not module.OPTIONS:
            raise Misuse(f"{where.url}: {shown(name)} is no option: {where.scheme}:// has none")
        known(f"an option of {where.url}", name, module.OPTIONS)
    opened: Store = module.open_at(where)
    return opened
