"""vLLM's log of requests, as `vllm serve --enable-log-requests` writes it.

Up to 0.11.0 one line has all of a request: "Received request ID: prompt: …, params: …,
prompt_token_ids: […], …". Since then the prompt is in a line of level DEBUG before it, "Request ID
details: prompt: …, prompt_token_ids: […], …". With --enable-log-outputs "Generated response ID
details: output_token_ids: […]" tells the answer's length, or that of a part of it (checked with
0.33.0, entrypoints/serve/utils/request_logger.py).

The date in a line has no year, and seconds are whole, except with --logging-config.formatter json.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from blockyard.tools.traces.formats.format import Answered, Asked, Format, How
from blockyard.tools.traces.formats.times import milliseconds
from blockyard.tools.traces.lines import Place, TraceError, lines
from blockyard.tools.traces.trace import LONGEST

__all__ = ["FORMAT"]

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_DATE: Final = re.compile(r"\b(?:DEBUG|INFO) (\d\d)-(\d\d) (\d\d:\d\d:\d\d(?:[.,]\d+)?)")
_DETAILS: Final = re.compile(r"Request (\S+) details: prompt: ")
_RECEIVED: Final = re.compile(r"Received request (\S+): (prompt|params): (?!None, lora)")
_ADAPTER: Final = re.compile(r"lora_request: LoRARequest\(lora_name='([^']*)'")
_ANSWER: Final = re.compile(r"Generated response (\S+)(?: \([^)]*\))? details: output_token_ids: ")
_TEXT: Final = re.compile(r"None|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_IDS: Final = re.compile(r"prompt_token_ids: (None|\[[\d, ]*\])")
_LIST: Final = re.compile(r"\[[\d, ]*\]")
_LEAP: Final = 2000
"""A year that has every day, for dates that have none."""
_YEAR: Final = 366 * 86_400_000
"""Its milliseconds."""
_LONG: Final = 16
"""Tokens of a prompt that is long enough to tell whether it was cut off."""


def _read(path: Path, how: How) -> Iterator[Asked | Answered]:
    clock = _Clock()
    waiting: dict[str, Asked] = {}
    received = readable = 0
    for place, raw in lines(path, "vLLM's log"):
        moment, line = clock.read(_COLOUR.sub("", raw))
        if found := _DETAILS.search(line):
            waiting[found[1]] = _asked(place, found[1], line[found.end() :], moment, how)
        elif found := _RECEIVED.search(line):
            received += 1
            if found[2] == "prompt":
                asked = _asked(place, found[1], line[found.end() :], moment, how)
            elif found[1] in waiting:
                asked = waiting.pop(found[1])
            else:
                how.notes.count("requests left out as they were logged without their prompts")
                continue
            adapter = _ADAPTER.search(line, max(line.rfind("lora_request: "), 0))
            readable += 1
            if asked.input_length:
                yield replace(asked, salt=adapter[1] if adapter else "")
            else:
                how.notes.count("requests left out as they have no prompt in tokens or text")
        elif (found := _ANSWER.search(line)) and (ids := _LIST.match(line, found.end())):
            yield Answered(found[1], _count(ids[0]))
    if not readable:
        what = "a prompt" if received else 'a line with "Received request"'
        raise TraceError(
            f"{path}: there is not {what} in it; start vLLM with --enable-log-requests and "
            "VLLM_LOGGING_LEVEL=DEBUG, and give what it prints"
        )


class _Clock:
    """Reads the times of lines, which have no year: it turns where a date falls back by months."""

    def __init__(self) -> None:
        self._before = 0
        self._years = 0

    def read(self, line: str) -> tuple[int | None, str]:
        """Returns the time in milliseconds, None where there is none, and the line or its message.

        With --logging-config.formatter json each line is an object, and has a year.
        """
        if line.startswith("{"):
            try:
                record: Any = msgspec.json.decode(line)
                return milliseconds(record["asctime"], "s"), str(record["message"])
            except (msgspec.DecodeError, RecursionError, KeyError, TypeError, ValueError):
                return None, line
        date = _DATE.search(line)
        if date is None:
            return None, line
        month, day, time = date.groups()
        try:
            moment = milliseconds(f"{_LEAP}-{month}-{day}T{time.replace(',', '.')}", "s")
        except ValueError:
            return None, line
        if moment + self._years < self._before - _YEAR // 2:
            self._years += _YEAR
        self._before = moment + self._years
        return self._before, line


def _asked(place: Place, name: str, rest: str, moment: int | None, how: How) -> Asked:
    """Returns the request of a line whose `rest` begins with its prompt."""
    at = rest.rfind("prompt_token_ids: ")
    found = _IDS.match(rest, at) if at >= 0 else None
    if found is None:
        raise place.wrong(
            "prompt_token_ids", "there is no list of ids behind it; give the log as vLLM wrote it"
        )
    ids = None if found[1] == "None" else _ids(place, found[1])
    text = None
    # Tokens are far shorter as text only where --max-log-len has cut both to one length.
    if ids is None or (len(ids) >= _LONG and at < 4 * len(ids) + _LONG):
        if (quoted := _TEXT.match(rest)) is None:
            raise place.wrong("prompt", "it is no quoted text; give the log as vLLM wrote it")
        text = _unquoted(place, quoted[0])
    if ids and text is not None and len(text) == len(ids):
        how.notes.count(
            "prompts of as many characters as tokens, which --max-log-len may have cut off"
        )
    tokens = ids if ids is not None else how.splitter.tokens(text or "")
    # Completions number their prompts, but say of an answer only to which request it belongs.
    short = name.removesuffix("-0") if name.startswith("cmpl-") else name
    return Asked(input_length=len(tokens), milliseconds=moment, tokens=tokens, name=short)


def _ids(place: Place, listed: str) -> list[int]:
    """Returns the ids of a list as text."""
    try:
        ids = [int(i) for i in listed[1:-1].split(",") if i.strip()]
    except ValueError:
        ids = [-1]
    if any(not 0 <= i <= LONGEST for i in ids):
        what = f"not all are whole numbers from 0 to {LONGEST}; give the log as vLLM wrote it"
        raise place.wrong("prompt_token_ids", what)
    return ids


def _unquoted(place: Place, quoted: str) -> str | None:
    """Returns the text that Python has written with quotes."""
    try:
        text: str | None = ast.literal_eval(quoted)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise place.wrong(
            "prompt", "it is no text as Python quotes it; give the log as vLLM wrote it"
        ) from None
    return text


def _count(ids: str) -> int:
    return ids.count(",") + 1 if ids.strip("[] ") else 0


FORMAT: Final = Format("vllm", "vLLM's log with --enable-log-requests, at level DEBUG", _read)
