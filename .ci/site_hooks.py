"""What `make site` does to pages, so that one text is right in the repository and on the site.

- `<!-- stats -->` becomes the tables of `stats()`, and `<!-- names -->` that of the public names.
- What a page links to outside `docs` becomes a page: prose as it is, another file as a listing.
- A page that would have a browser fetch something from elsewhere is complained of, and one of the
  reference with more than 8,000 words.
"""

import inspect
import logging
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import blockyard
from blockyard import _core
from blockyard.connectors.connector import Connector
from blockyard.crane.crane import Crane
from blockyard.crane.tiers.disk import DiskTier
from blockyard.handover.handover_stats import DECODE_STATS, PREFILL_STATS
from blockyard.publishing.publisher import Publisher
from blockyard.scheduling.reservations import Reservations
from blockyard.scheduling.scheduler import Scheduler
from blockyard.shared.stats import core_schema
from blockyard.yard.flights import Flights
from blockyard.yard.recording import Recording

__all__ = ["fetched", "linked", "outside", "with_links", "with_tables"]

# Of a build that is strict, each of its warnings is the end.
_log = logging.getLogger("mkdocs.hooks.site")
ROOT = Path(__file__).resolve().parents[1]
# Prose of the repository's root. Any other file `some/file` has its page at `source/some/file.md`.
PROSE = {
    "README.md": "project/overview.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security.md",
}
LEXERS = {"": "text", ".toml": "toml", ".py": "python", ".pyi": "python", ".rs": "rust"}
# First what has no links in it: comments, blocks of code, and code in a line.
LINK = re.compile(
    r"<!--.*?-->|^(?P<fence>`{3,})[^`]*?\n.*?^(?P=fence)$|(?P<tick>`+)[^`].*?(?P=tick)"
    r"|\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)",
    re.DOTALL | re.MULTILINE,
)
SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:|/")
# Links between pages are followed by hand alone.
FETCH = re.compile(
    r"<(?:script|img|iframe|source|video|audio|link(?![^>]*rel=.(?:canonical|prev|next)\b))\b"
    r"[^>]*?\s(?:src|href)=[\"']((?:https?:)?//[^\"']+)"
)
WORDS = 8000


class Source(Protocol):
    """A file of mkdocs."""

    src_uri: str


class Page(Protocol):
    """A page of mkdocs, and its HTML."""

    file: Source
    content: str | None


def place_of(path: str) -> str:
    """Where a file of the repository is on the site: as the source of a page, or of an asset."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return PROSE.get(path) or f"source/{path}.md"


def in_repository(uri: str) -> str:
    """Where the source of a page is in the repository."""
    return {page: path for path, page in PROSE.items()}.get(uri, f"docs/{uri}")


def linked(markdown: str, path: str) -> Iterator[str]:
    """Every file that a page at `path` links to, from the root of the repository."""
    for link in LINK.finditer(markdown):
        target = link["target"]
        if target and not SCHEME.match(target):
            yield posixpath.normpath(posixpath.join(posixpath.dirname(path), target))


def with_links(markdown: str, path: str) -> str:
    """The page with links as the site needs them."""
    here = posixpath.dirname(place_of(path))

    def moved(link: re.Match[str]) -> str:
        files = list(linked(link[0], path)) if link["target"] else []
        if not files:
            return link[0]
        return f"]({posixpath.relpath(place_of(files[0]), here or '.')}{link['anchor'] or ''})"

    return LINK.sub(moved, markdown)


def with_tables(markdown: str) -> str:
    """The page with tables in place of their comments."""
    for comment, table in (("<!-- stats -->", stats), ("<!-- names -->", names)):
        if comment in markdown:
            markdown = markdown.replace(comment, "\n".join(table()))
    return markdown


def stats() -> Iterator[str]:
    """A table of numbers for each part that counts."""
    for part, schema in {
        "The yard": core_schema(),
        "What is in flight": Flights.SCHEMA,
        "A recording": Recording.SCHEMA,
        "A crane": Crane.SCHEMA,
        "A crane's disk": DiskTier.SCHEMA,
        "The scheduler": Scheduler.SCHEMA,
        "Reservations for others": Reservations.SCHEMA,
        "Hand-overs, the prefill side": PREFILL_STATS,
        "Hand-overs, the decode side": DECODE_STATS,
        "Events for routers": Publisher.SCHEMA,
        "A connector": Connector.SCHEMA,
    }.items():
        yield f"\n## {part}\n"
        yield "| name | unit | kind | meaning | metric |\n|---|---|---|---|---|"
        for one in schema:
            yield f"| `{one.name}` | {one.unit} | {one.kind} | {one.help} | `{one.query}` |"


def names() -> Iterator[str]:
    """Each name of the package, with the first line of its docstring."""
    yield "| name | |\n|---|---|"
    for name in blockyard.__all__:
        thing = getattr(blockyard, name)
        if callable(thing):
            module = "blockyard._core" if hasattr(_core, name) else thing.__module__
            said = (inspect.getdoc(thing) or "").splitlines()[0]
            yield f"| [`{name}`][{module}.{name}] | {said} |"


def listing(path: str) -> str:
    """A page that shows a file as it is."""
    text = (ROOT / path).read_text()
    fence = "`" * max(3, *(len(ticks) + 1 for ticks in re.findall("`+", f"`{text}")))
    lexer = LEXERS.get(Path(path).suffix, "text")
    return f"# {path}\n\n{fence}{lexer}\n{text.rstrip()}\n{fence}\n"


def outside(pages: dict[str, str]) -> dict[str, str]:
    """The pages that the site has of files outside `docs`, by their place on the site.

    Args:
        pages: The text of each page in `docs`, by its path in the repository.
    """
    found = {}
    waiting = [*pages.items(), *((path, (ROOT / path).read_text()) for path in PROSE)]
    for path, text in waiting:
        if path in PROSE:
            found[place_of(path)] = text
        for file in linked(text, path):
            if not file.startswith("docs/") and file not in PROSE and (ROOT / file).is_file():
                found[place_of(file)] = listing(file)
    return found


def on_files(files: Any, *, config: Any) -> Any:  # noqa: ANN401 - of mkdocs, which only the site has
    """Adds the pages that are not in `docs`."""
    from mkdocs.structure.files import File, InclusionLevel  # noqa: PLC0415 - likewise

    pages = {
        in_repository(file.src_uri): file.content_string for file in files.documentation_pages()
    }
    for uri, text in outside(pages).items():
        listed = uri in PROSE.values()
        inclusion = InclusionLevel.INCLUDED if listed else InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, uri, content=text, inclusion=inclusion))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Changes a page as the module says."""
    path = in_repository(page.file.src_uri)
    if page.file.src_uri.startswith("source/"):
        return markdown
    return with_tables(with_links(markdown, path))


def fetched(html: str) -> list[str]:
    """What a browser would fetch from elsewhere to show a page."""
    return FETCH.findall(html)


def on_post_page(output: str, *, page: Page, **_: object) -> str:
    """Complains of what is fetched, and of what is too long."""
    for address in fetched(output):
        _log.warning("%s would be fetched by %s: keep it in docs", address, page.file.src_uri)
    words = len(re.sub(r"<[^>]+>", " ", page.content or "").split())
    if page.file.src_uri.startswith("reference/") and words > WORDS:
        _log.warning("%s has %d words, more than %d: split it", page.file.src_uri, words, WORDS)
    return output
