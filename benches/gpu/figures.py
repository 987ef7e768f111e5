"""The figures to reach, each met or missed by how much, and tables for `docs/measurements.md`."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from flights import Result


class Figure(NamedTuple):
    """What is to be reached, and what was."""

    what: str
    target: float
    unit: str
    least: bool
    """Whether the target is a floor; else it is a ceiling."""
    measured: float | None
    where: str
    """The worst case, which is what counts."""

    @property
    def verdict(self) -> str:
        """Met, or missed by how much."""
        if self.measured is None:
            return "not measured"
        above = self.measured - self.target
        if above >= 0 if self.least else above <= 0:
            return "met"
        return f"missed by {abs(above):.1f} {self.unit}"


def figures(said: Result, sure: int = 256) -> list[Figure]:
    """All of them, from what the sections said."""
    return list(_figures(said, sure))


def _figures(said: Result, sure: int) -> Iterator[Figure]:
    rows = [row for row in _rows(said, "flights") if row["blocks"] >= sure]
    for order, target in (("page-first", 95.0), ("layer-first", 90.0)):
        yield _worst(
            f"{order}, from {sure} blocks on, each way",
            [row for row in rows if row["order"] == order and row["way"] != "both"],
            lambda row: 100 * row["share"],
            target,
            "% of the peak",
            least=True,
        )
    yield _worst(
        f"both ways together, from {sure} blocks on",
        [row for row in rows if row["way"] == "both"],
        lambda row: 100 * row["share"],
        95.0,
        "% of the peak of both",
        least=True,
    )
    yield _worst(
        "one block, above its bytes at the peak",
        _rows(said, "latency"),
        lambda row: 1e6 * row["above"],
        20.0,
        "µs",
    )
    starts = _rows(said, "submit")
    yield _worst(
        "submitting 1,024 scattered blocks, the caller's CPU",
        [row for row in starts if not row["busy"]],
        lambda row: 1e6 * row["cpu"]["median"],
        100.0,
        "µs",
    )
    yield _worst(
        "the same beside one busy Python thread, elapsed",
        [row for row in starts if row["busy"]],
        lambda row: 1e6 * row["elapsed"]["median"],
        300.0,
        "µs",
    )
    losses = [row for row in _rows(said, "compute") if row["default"]]
    for order, target in (("page-first", 5.0), ("layer-first", 8.0)):
        yield _worst(
            f"a matrix product loses beside copies, {order}",
            [row for row in losses if row["order"] == order],
            lambda row: 100 * row["loss"],
            target,
            "%",
        )


def _rows(said: Result, section: str) -> list[Result]:
    rows: list[Result] = said["sections"].get(section, {}).get("rows", [])
    return rows


def _worst(
    what: str,
    rows: list[Result],
    value: Callable[[Result], float],
    target: float,
    unit: str,
    *,
    least: bool = False,
) -> Figure:
    if not rows:
        return Figure(what, target, unit, least, None, "")
    row = (min if least else max)(rows, key=value)
    words = [str(row[key]) for key in ("case", "order", "way") if key in row]
    words += [f"{row['blocks']} blocks"] if "blocks" in row else []
    short = row.get("pairs_that_copies_did_not_outlast")
    words += [f"too little: in {short} of {row['pairs']} pairs copies ended first"] if short else []
    return Figure(what, target, unit, least, value(row), ", ".join(words))


def markdown(said: Result, sure: int = 256) -> str:
    """The tables."""
    lines = _machine(said)
    lines += ["| figure | target | measured | | worst case |", "|---|--:|--:|---|---|"]
    for figure in figures(said, sure):
        sign = "≥" if figure.least else "≤"
        found = (
            "not measured" if figure.measured is None else f"{figure.measured:.1f} {figure.unit}"
        )
        verdict = "" if figure.measured is None else figure.verdict
        lines.append(
            f"| {figure.what} | {sign} {figure.target:g} {figure.unit} | {found} | {verdict} "
            f"| {figure.where} |"
        )
    failed = {name: part for name, part in said["sections"].items() if "error" in part}
    lines += [""] * bool(failed)
    lines += [f"- {name} failed: {part['error'].splitlines()[-1]}" for name, part in failed.items()]
    return "\n".join(lines)


def _machine(said: Result) -> list[str]:
    lines = [", ".join(f"{name} {value}" for name, value in said.get("machine", {}).items()), ""]
    peak = said["sections"].get("link", {}).get("peak")
    if peak:
        rates = ", ".join(f"{way} {rate / 1e9:.1f} GB/s" for way, rate in peak.items())
        lines += [f"The link's measured peak: {rates}.", ""]
    return lines
