"""The report: one page with its data, plots and the code that draws them, without a network."""

from typing import Final

from blockyard.tools.pages.document import document, part
from blockyard.tools.replay.result import Result

__all__ = ["page"]

_HOME: Final = "blockyard.tools.replay"
_SCRIPTS: Final = ("report_runs.js", "report_plots.js", "report.js")
"""In the order in which they need each other."""


def page(result: Result) -> bytes:
    """Returns the page as UTF-8; its figures and plots are made from the JSON in it."""
    return document(
        title=f"Blockyard replay: {result.trace}",
        body=part(_HOME, "report.html"),
        script="".join(part(_HOME, name) for name in _SCRIPTS),
        data=result.encode(),
    )
