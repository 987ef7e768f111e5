"""The report: one page with its data, plots and the code that draws them, without a network."""

from html import escape
from importlib.resources import files
from string import Template

from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

from blockyard.tools.replay.result import Result

__all__ = ["page"]


def page(result: Result) -> bytes:
    """Returns the page as UTF-8; its figures and plots are made from the JSON in it."""
    parts = files("blockyard.tools.replay")
    template = Template(parts.joinpath("report.html").read_text("utf-8"))
    whole = template.substitute(
        title=escape(f"Blockyard replay: {result.trace}"),
        style=parts.joinpath("report.css").read_text("utf-8"),
        script=parts.joinpath("report.js").read_text("utf-8"),
        plotly=get_plotlyjs(),
        result=_inert(result.encode().decode()),
    )
    return whole.encode()


def _inert(json: str) -> str:
    """Returns the JSON without characters that could end the element around it."""
    for character in "<>&\u2028\u2029":
        json = json.replace(character, f"\\u{ord(character):04x}")
    return json
