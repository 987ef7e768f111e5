"""Logs for the importers, and what becomes of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from blockyard.tools.traces.convert import Converted, convert
from blockyard.tools.traces.formats.format import How
from blockyard.tools.traces.formats.registry import FORMATS
from blockyard.tools.traces.formats.tokenizer import Words
from blockyard.tools.traces.trace import Trace, TraceError, read

DATA = Path(__file__).parents[1] / "tools" / "data"
TOKENS = {"timestamp": 7.25, "prompt_token_ids": list(range(20)), "output_length": 3}
CHAT = {
    "created": 1_700_000_000,
    "model": "m",
    "messages": [
        {
            "role": "system",
            "content": "Be brief, be kind, be right, and say where you are not sure.",
        },
        {"role": "user", "content": [{"type": "text", "text": "What is a block of the KV cache?"}]},
    ],
    "usage": {"prompt_tokens": 30, "completion_tokens": 9},
}


def put(place: Path, *lines: object, name: str = "log") -> Path:
    raw = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path = place / name
    path.write_text("\n".join(raw) + "\n")
    return path


def made(
    place: Path, form: str, *paths: Path, how: How | None = None, block_size: int = 8, **more: Any
) -> tuple[Trace, Converted]:
    output = place / "made.jsonl"
    converted = convert(
        FORMATS[form], paths, how or How(Words()), output, block_size=block_size, **more
    )
    return read(output), converted


def ids(trace: Trace) -> list[list[int]]:
    return [trace.ids_of(i).tolist() for i in range(len(trace))]


def refused(place: Path, form: str, *lines: object) -> str:
    """What is said of a file; nothing is left of what was begun."""
    path = put(place, *lines)
    before = {file.name for file in place.iterdir()}
    with pytest.raises(TraceError) as caught:
        made(place, form, path)
    assert {file.name for file in place.iterdir()} == before
    said = str(caught.value)
    assert said.startswith(str(path))
    return said.removeprefix(str(path))
