"""URLs of stores: read, checked, and shown without their password."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit, urlunsplit

from blockyard._core import Misuse
from blockyard.shared.validate import known, shown

__all__ = ["Location", "number_of", "read"]

_MOST: Final = 4096
"""Characters of a URL."""
_SECRET: Final = ("password", "pass", "passwd", "auth", "token")
"""Options that nobody has: they would be logged with the URL."""
_OF_PATHS: Final = ("file", "unix")
"""Schemes whose path may have an @."""


class Location(NamedTuple):
    """A store's URL in parts. It is not to be logged: `url` is."""

    scheme: str
    host: str
    port: int | None
    path: str
    """As it stands there, decoded."""
    user: str | None
    password: str | None
    options: dict[str, str]
    """By name, those of the URL and of the call."""
    url: str
    """Without the password, and with the options of the URL alone."""


def read(url: str, schemes: Mapping[str, str], options: Mapping[str, object]) -> Location:
    """Reads a URL.

    Args:
        url: Such as "redis://host:6379/0?timeout=0.5".
        schemes: Those there are, each with an example.
        options: Further options, which the URL may not have as well.

    Raises:
        Misuse: It is no URL of such a scheme, or an option comes twice. No message has a password.
    """
    if not isinstance(url, str):
        raise Misuse(f"a store's URL = {shown(url)}: must be text, such as {_examples(schemes)}")
    if len(url) > _MOST or any(one.isspace() or not one.isprintable() for one in url):
        raise Misuse(
            f"a store's URL has spaces, control characters, or more than {_MOST:,} characters: "
            "write them as %20 and the like"
        )
    scheme, colon, _ = url.partition(":")
    if not colon or "/" in scheme or "@" in scheme:
        raise Misuse(f"a store's URL begins with a scheme, such as {_examples(schemes)}")
    known("the scheme of a store's URL", scheme, schemes)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        # Its text has the part that is wrong, and no more of the URL.
        raise Misuse(f"a store's URL {scheme}://…: {_bare(error)}") from None
    if scheme == "file" and not url.startswith("file://"):
        raise Misuse("a store's URL file:…: a folder is named from the root on: write file:///path")
    if "@" in parts.path + parts.query and (parts.netloc or scheme not in _OF_PATHS):
        raise Misuse(
            f"a store's URL {scheme}://…@…: it has an @ behind its host, as where a password has a "
            "/ or a ?: write those as %2F and %3F, and an @ as %40; or give a password_file"
        )
    if parts.fragment:
        raise Misuse(f"a store's URL {scheme}://…#…: it has no part behind a #; write that as %23")
    user, password = (one and unquote(one) for one in (parts.username, parts.password))
    merged = _options(parts.query, options)
    return Location(
        scheme=scheme,
        host=unquote(parts.hostname or ""),
        port=port,
        path=unquote(parts.path),
        user=user or None,
        password=password or None,
        options=merged,
        url=_without_password(parts),
    )


def number_of(where: Location, name: str, default: float, *, least: float, most: float) -> float:
    """An option that is a number.

    Raises:
        Misuse: It is none, or out of range.
    """
    given = where.options.get(name)
    if given is None:
        return default
    try:
        number = float(given)
    except ValueError:
        number = float("nan")
    if not least <= number <= most:
        raise Misuse(
            f"{where.url}: {name} = {shown(given)}: must be a number from {least:g} to {most:g}"
        )
    return number


def _options(query: str, more: Mapping[str, object]) -> dict[str, str]:
    pairs = None
    # Raised behind it, so that no traceback has what was given.
    with suppress(ValueError):
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    if pairs is None:
        raise Misuse("a store's URL has options that are not name=value, joined by &")
    found: dict[str, str] = {}
    for name, value in [*pairs, *((name, str(value)) for name, value in more.items())]:
        if name.casefold() in _SECRET:
            raise Misuse(
                f"{name[:20]} is no option of a store's URL, as options are logged: give a "
                "password_file, or the environment variable that docs/stores.md names"
            )
        if name in found:
            raise Misuse(f"a store's option {name[:60]!r} is given twice: give it once")
        found[name] = value
    return found


def _without_password(parts: SplitResult) -> str:
    host = parts.netloc.rpartition("@")[2]
    user = f"{parts.username}@" if parts.username else ""
    shown_url = urlunsplit(parts._replace(netloc=f"{user}{host}"))
    # For an empty host, urlunsplit leaves the slashes out that a path may need.
    return shown_url if "://" in shown_url else shown_url.replace(":", "://", 1)


def _examples(schemes: Mapping[str, str]) -> str:
    return ", ".join(dict.fromkeys(schemes.values()))


def _bare(error: ValueError) -> str:
    """What `urllib` says, which is of the host or the port, without a value that it may repeat."""
    said = str(error)
    return "its port must be a number from 0 to 65535" if "ort" in said else "its host is no host"
