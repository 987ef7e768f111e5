"""Writes the tables of options in docs/identity.md; with --check, says whether they are current."""

import sys
from collections.abc import Iterable
from pathlib import Path

from blockyard.engines.effective import Mark
from blockyard.engines.options import sglang, vllm, vllm_environment

PAGE = Path(__file__).parents[1] / "docs" / "identity.md"
TABLES = {
    "vllm in": vllm.IN,
    "vllm out": vllm.OUT,
    "environment in": vllm_environment.IN,
    "environment out": vllm_environment.OUT,
    "sglang in": sglang.IN,
    "sglang out": sglang.OUT,
}


def table(marks: Iterable[Mark]) -> str:
    """A row for each reason, with the options of each part."""
    lines = ["| reason | options |", "|---|---|"]
    for mark in marks:
        parts = [
            (
                ""
                if len(mark.options) == 1 and part in {"environment", "ServerArgs"}
                else f"{part}: "
            )
            + ", ".join(f"`{name}`" for name in sorted(options.split()))
            for part, options in mark.options.items()
        ]
        lines.append(f"| {mark.reason} | {'; '.join(parts)} |")
    return "\n".join(lines) + "\n"


def page(text: str) -> str:
    """The page with its tables as they are to be."""
    for name, marks in TABLES.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = f"{before}{begin}\n{table(marks)}\n{end}{after}"
    return text


def main() -> int:
    """Writes or checks."""
    text = PAGE.read_text()
    wanted = page(text)
    if text != wanted and "--check" in sys.argv:
        print(f"{PAGE.name} has not the options of the tables: python .ci/options_page.py")
        return 1
    if text != wanted:
        PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
