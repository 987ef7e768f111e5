"""The schema of `stats()`: name, unit and meaning of each number."""

from typing import NamedTuple

from blockyard._core import stats_schema

__all__ = ["Stat", "core_schema", "page"]


class Stat(NamedTuple):
    """One number of `stats()`."""

    name: str
    unit: str
    help: str


def core_schema() -> tuple[Stat, ...]:
    """Returns what the bookkeeping counts, for all tiers together and then tier by tier."""
    whole, per_tier = stats_schema()
    tiers = ("device", "host", "disk")
    return tuple(Stat(*field) for field in whole) + tuple(
        Stat(f"{tier}_{name}", unit, f"{tier}: {help_}")
        for tier in tiers
        for name, unit, help_ in per_tier
    )


def page(title: str, parts: dict[str, tuple[Stat, ...]]) -> str:
    """Returns a reference page in Markdown, with a table for each part."""
    lines = [f"# {title}", ""]
    for part, stats in parts.items():
        lines += [f"## {part}", "", "| name | unit | meaning |", "|---|---|---|"]
        lines += [f"| `{stat.name}` | {stat.unit} | {stat.help} |" for stat in stats]
        lines.append("")
    return "\n".join(lines)
