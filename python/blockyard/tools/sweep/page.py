"""The page of a sweep: the answer, the curve with its knee, and all figures, without a network."""

from typing import Final

from blockyard.tools.pages.document import document, part
from blockyard.tools.sweep.result import SweepResult

__all__ = ["page"]

_HOME: Final = "blockyard.tools.sweep"


def page(result: SweepResult) -> bytes:
    """Returns the page as UTF-8; its figures and plots are made from the JSON in it."""
    return document(
        title=f"Blockyard sweep: {result.trace}",
        body=part(_HOME, "page.html"),
        script=part(_HOME, "page.js"),
        data=result.encode(),
    )
