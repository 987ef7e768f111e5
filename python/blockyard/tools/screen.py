"""Tables on a terminal of any width: what does not fit is wrapped, and no number is cropped."""

from rich.console import Console, RenderableType
from rich.measure import Measurement

__all__ = ["show"]


def show(console: Console, part: RenderableType) -> None:
    """Prints a table or a text, in lines that pass the edge where its numbers need more columns."""
    needed = Measurement.get(console, console.options, part).minimum
    console.print(part, width=max(needed, console.width), crop=False, soft_wrap=False)
