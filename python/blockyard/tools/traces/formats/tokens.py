"""Requests as token ids: one JSON object per line."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from blockyard.tools.traces.formats.format import Answered, Asked, Format, How
from blockyard.tools.traces.formats.records import Record, records

__all__ = ["ANSWER", "FORMAT", "OUTPUT", "SESSION", "TIME", "answer_length"]

PROMPT: Final = ("prompt_token_ids", "token_ids", "input_ids", "tokens")
OUTPUT: Final = ("output_length", "output_tokens", "completion_tokens", "generated_tokens")
ANSWER: Final = ("output_token_ids", "output_ids")
TIME: Final = ("timestamp", "time", "arrival", "created")
SESSION: Final = ("session", "session_id", "conversation_id")


def _read(path: Path, how: How) -> Iterator[Asked | Answered]:
    for record in records(path, how, "requests as token ids"):
        tokens = record.tokens(*record.need("tokens", PROMPT, "the ids of the prompt's tokens"))
        yield Asked(
            input_length=len(tokens),
            milliseconds=record.time(TIME, how),
            tokens=tokens,
            output_length=answer_length(record),
            session=record.session(SESSION),
        )


def answer_length(record: Record) -> int | None:
    """Returns the tokens of the answer: given as a number, or as its ids."""
    name, value = record.find("output", OUTPUT)
    if value is None:
        name, value = record.find("answer", ANSWER)
        value = len(value) if isinstance(value, list) else value
    return None if value is None else record.length(name, value)


FORMAT: Final = Format("tokens", "JSON lines with the token ids of each prompt", _read)
