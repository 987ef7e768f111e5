"""Requests as text: one JSON object per line."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from blockyard.tools.traces.formats.format import Answered, Asked, Format, How
from blockyard.tools.traces.formats.records import records
from blockyard.tools.traces.formats.tokens import SESSION, TIME, answer_length

__all__ = ["FORMAT"]

_PROMPT: Final = ("prompt", "text", "input")
_ANSWER: Final = ("response", "completion", "output", "answer")


def _read(path: Path, how: How) -> Iterator[Asked | Answered]:
    for record in records(path, how, "requests as text"):
        text = record.text(*record.need("text", _PROMPT, "the text of the prompt"))
        tokens = how.splitter.tokens(text)
        if not len(tokens):
            how.notes.count("prompts left out as they are empty")
            continue
        length = answer_length(record)
        if length is None:
            name, value = record.find("answer", _ANSWER)
            length = None if value is None else len(how.splitter.tokens(record.text(name, value)))
        yield Asked(
            input_length=len(tokens),
            milliseconds=record.time(TIME, how),
            tokens=tokens,
            output_length=length,
            session=record.session(SESSION),
        )


FORMAT: Final = Format("text", "JSON lines with the text of each prompt", _read)
