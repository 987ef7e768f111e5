"""The traces of LLM inference in Azure, of 2023 and 2024: times and lengths, as CSV.

The columns are TIMESTAMP, ContextTokens and GeneratedTokens. A time has seven digits after the
second in 2023, and a zone in 2024 (AzurePublicDataset, AzureLLMInferenceDataset2023.md and
AzureLLMInferenceDataset2024.md).
"""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from blockyard.tools.traces.formats.format import Answered, Asked, Format, How
from blockyard.tools.traces.formats.times import milliseconds
from blockyard.tools.traces.lines import Place, lines
from blockyard.tools.traces.trace import LONGEST

__all__ = ["FORMAT"]

_COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def _read(path: Path, how: How) -> Iterator[Asked | Answered]:
    columns: dict[str, int] | None = None
    for place, line in lines(path, "an Azure trace"):
        try:
            row = next(csv.reader([line.strip().removeprefix("\ufeff")]), [])
        except csv.Error as error:
            raise place.wrong(None, f"no CSV: {error}; give one request per line") from None
        if columns is None:
            columns = _columns(place, row)
            continue
        if len(row) <= max(columns.values()):
            raise place.wrong(None, f"it has {len(row)} columns; give one for each of the header")
        time, asked, given = (row[columns[name]] for name in _COLUMNS)
        if not (length := _length(place, "ContextTokens", asked)):
            how.notes.count("requests left out as they have no prompt")
            continue
        try:
            moment = milliseconds(time, "s")
        except ValueError as error:
            raise place.wrong("TIMESTAMP", str(error)) from None
        answer = _length(place, "GeneratedTokens", given)
        yield Asked(input_length=length, milliseconds=moment, output_length=answer)


def _columns(place: Place, row: list[str]) -> dict[str, int]:
    found = {name.strip().casefold(): at for at, name in enumerate(row)}
    for name in _COLUMNS:
        if name.casefold() not in found:
            raise place.wrong(
                name, f"there is no such column; give a CSV that begins with {','.join(_COLUMNS)}"
            )
    return {name: found[name.casefold()] for name in _COLUMNS}


def _length(place: Place, column: str, text: str) -> int:
    text = text.strip()
    if not text.isascii() or not text.isdigit() or len(text) > 10 or int(text) > LONGEST:  # noqa: PLR2004 - digits of LONGEST
        raise place.wrong(
            column, f"{text[:40]!r}; give a number of tokens, a whole number up to {LONGEST}"
        )
    return int(text)


FORMAT: Final = Format(
    "azure",
    "Azure's public traces of 2023 and 2024, CSV of lengths",
    _read,
    hits_unknown="the Azure traces have lengths only, so every prompt counts as one of its own",
)
