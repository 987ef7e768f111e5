"""URLs of shared stores in a configuration, which is written down and logged."""

from collections.abc import Sequence
from typing import Final

from blockyard._core import Misuse
from blockyard.shared.validate import bounded, shown

__all__ = ["NAMES", "store_urls"]

NAMES: Final = 1_000_000
"""How many blocks of stores are known by name, where nobody says."""


def store_urls(given: object) -> tuple[str, ...]:
    """Returns the URLs of stores, in order.

    Args:
        given: A sequence of URLs.

    Raises:
        Misuse: It is something else, one is no URL, one comes twice, or one has a password, which
            no message has.
    """
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise Misuse(f'stores = {_kind(given)}: give a list of URLs, as ["redis://host:6379/0"]')
    bounded("stores", given)
    for at, url in enumerate(given):
        if not isinstance(url, str) or not url.partition(":")[1]:
            raise Misuse(
                f"stores[{at}] = {_kind(url)}: give a URL, as 'redis://host:6379/0'; stores that "
                "are made already are for `by.local`"
            )
        if _has_password(url):
            raise Misuse(
                f"stores[{at}] has a password in it, and a configuration is written down and "
                "logged: leave it out, and set the environment variable that docs/stores.md names, "
                "or give by.local open_store(url, password_file=…)"
            )
    if len(set(given)) < len(given):
        raise Misuse("stores name one twice: give each once")
    return tuple(given)


def _has_password(url: str) -> bool:
    from urllib.parse import urlsplit  # noqa: PLC0415 - most configurations have no stores

    try:
        return urlsplit(url).password is not None
    except ValueError:
        # What opens it says what is wrong; here nothing of it may be shown.
        return "@" in url


def _kind(given: object) -> str:
    """Returns what was given, but for text, in which there may be a password."""
    return "text" if isinstance(given, str) else shown(given)
