"""Makes one file of a page's parts: its body, its script, its data, and what all pages share."""

from html import escape
from importlib.resources import files
from string import Template
from typing import Final

import msgspec

__all__ = ["document", "part"]

_HOME: Final = "blockyard.tools.pages"
_KIT: Final = ("words.js", "elements.js", "axes.js", "curves.js", "charts.js")
"""The scripts that every page has, in the order in which they need each other."""


def document(title: str, body: str, script: str, data: bytes, style: str = "") -> bytes:
    """Makes a page that loads nothing and works from a file.

    The scripts of the kit run before the page's own and give it `words`, `elements` and `charts`;
    `elements.data()` is the data. What they offer stands in a comment at the top of each.

    Args:
        title: Of the window, as text.
        body: Markup inside `<body>`; nothing that came from outside belongs here.
        script: Draws the page from its data; it runs when the body is there.
        data: JSON in UTF-8. It is put in the element `result`, without the space between its
            values, where it cannot become markup.
        style: Rules of this page alone.

    Returns:
        The page as UTF-8.
    """
    whole = Template(part(_HOME, "page.html")).substitute(
        title=escape(title),
        style=part(_HOME, "page.css") + style,
        body=body,
        result=_inert(msgspec.json.format(data, indent=-1).decode()),
        kit="".join(part(_HOME, name) for name in _KIT),
        script=script,
    )
    return whole.encode()


def part(package: str, name: str) -> str:
    """Returns the text of a file that lies in a package."""
    return files(package).joinpath(name).read_text("utf-8")


def _inert(json: str) -> str:
    """Returns the JSON without characters that could end the element around it."""
    for character in "<>&\u2028\u2029":
        json = json.replace(character, f"\\u{ord(character):04x}")
    return json
