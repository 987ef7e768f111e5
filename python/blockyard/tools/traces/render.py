"""A description as a person reads it: a table on the terminal, and a page."""

from collections.abc import Iterator
from typing import Final

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from blockyard.tools.pages.document import document, part
from blockyard.tools.traces.description import Description, Quantiles
from blockyard.tools.units import duration

__all__ = ["page", "tables"]

_HERE: Final = "blockyard.tools.traces"
_BODY: Final = """<header><h1 id="name"></h1><p id="facts"></p></header>
<main>
<section id="answer"></section>
<section id="tiles" class="tiles"></section>
<section id="plots" class="grid two"></section>
<section id="numbers"></section>
</main>"""
_STYLE: Final = "#plots { margin-top: 14px; } main { padding-bottom: 40px; }"


def tables(found: Description) -> Iterator[RenderableType]:
    """Yields what is shown on the terminal."""
    yield Text(f"\n{found.trace}", "bold")
    for sentence in found.answer:
        yield Text(sentence)
    yield ""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for name in ("mean", "10 %", "median", "90 %", "99 %", "most"):
        table.add_column(name, justify="right", no_wrap=True, min_width=7)
    for name, row, seconds in _rows(found):
        values = (row.mean, row.p10, row.p50, row.p90, row.p99, row.max)
        table.add_row(name, *(_time(v) if seconds else _number(v) for v in values))
    yield table
    yield ""
    facts = Table(box=None, pad_edge=False, show_header=False)
    for name, value in _facts(found):
        facts.add_row(name, Text(value, justify="right"))
    yield facts
    yield ""


def page(found: Description) -> bytes:
    """Returns the page; it needs no network."""
    title = f"Blockyard trace: {found.trace}"
    return document(title, _BODY, part(_HERE, "describe.js"), found.encode(), _STYLE)


def _rows(found: Description) -> Iterator[tuple[str, Quantiles, bool]]:
    """Yields the distributions, and whether they are seconds."""
    yield "tokens per prompt", found.prompts, False
    yield "tokens per answer", found.answers, False
    if found.reuse is not None:
        yield "blocks between uses", found.reuse.blocks, False
        yield "time between uses", found.reuse.seconds, True
    if found.continued is not None:
        yield "time to continuation", found.continued.pause, True
    if found.sessions is not None:
        yield "requests per session", found.sessions.turns, False
        if found.sessions.pause is not None:
            yield "time between these", found.sessions.pause, True


def _facts(found: Description) -> Iterator[tuple[str, str]]:
    yield "requests per second, mean", f"{found.rate.mean:.3g}"
    yield "in the busiest minute", f"{found.rate.busiest:.3g}"
    yield "variation of the gaps", f"{found.rate.variation:.2f}"
    yield "prompt tokens per second", f"{found.rate.tokens:,.0f}"
    if found.blocks is not None:
        yield f"blocks of {found.block_size} tokens, uses", f"{found.blocks.uses:,}"
        yield "distinct blocks", f"{found.blocks.distinct:,}"
        yield "never used again", f"{found.blocks.once:.1%}"
        yield "hits of an infinite cache", f"{found.blocks.infinite_hit_ratio:.1%}"
    if found.continued is not None:
        yield "requests continued later", f"{found.continued.share:.1%}"
    if found.sessions is not None:
        yield "sessions", f"{found.sessions.count:,}"


def _time(seconds: float) -> str:
    """Returns three digits and a unit, which columns of seven characters hold."""
    for unit, per in (("h", 3600), ("min", 60)):
        if seconds >= 2 * per:
            return f"{seconds / per:.3g} {unit}"
    return duration(seconds) if seconds < 60 else f"{seconds:.0f} s"  # noqa: PLR2004 - a minute


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"  # noqa: PLR2004
