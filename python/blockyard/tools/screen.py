"""Tables on a terminal of any width: what does not fit is wrapped, and no number is cropped."""

from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table

__all__ = ["show"]


def show(console: Console, part: RenderableType) -> None:
    """Prints a table or a text, in lines that pass the edge where its numbers need more columns.

    No word is cropped either, nor what stands in a column that does not wrap.
    """
    for column in part.columns if isinstance(part, Table) else ():
        # Rich would make a column narrower than its longest word.
        cells = (column.header, *column.cells)
        sizes = [Measurement.get(console, console.options, cell) for cell in cells]
        least = (size.maximum if column.no_wrap else size.minimum for size in sizes)
        column.min_width = max(*least, column.min_width or 0)
    needed = Measurement.get(console, console.options, part).minimum
    console.print(part, width=max(needed, console.width), crop=False, soft_wrap=False)
