"""SGLang's log of requests, as `--log-requests --log-requests-level 3` writes it.

Of a request there are two lines, in `--log-requests-format` text or json: one when it was received,
with the prompt, and one when it was finished, with the length of its answer (checked with 0.5.23,
srt/utils/request_logger.py). Below level 3 prompts are cut in the middle, or left out.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from blockyard.tools.traces.formats.format import Answered, Asked, Format, How
from blockyard.tools.traces.formats.records import Record
from blockyard.tools.traces.formats.times import milliseconds
from blockyard.tools.traces.lines import Place, TraceError, lines
from blockyard.tools.traces.trace import LONGEST

__all__ = ["FORMAT"]

_DATE: Final = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?)")
_RECEIVED: Final = re.compile(r"Receive: obj=GenerateReqInput\(")
_FINISHED: Final = re.compile(r"Finish: obj=GenerateReqInput\(")
_TOKENS: Final = re.compile(r".*'completion_tokens': (\d+)")
# A piece of a dataclass as text: a list of numbers, a string, a bracket, the next field, the rest.
_PIECE: Final = re.compile(
    r"\[[\d, ]*\]"
    r"|'(?:[^'\\]|\\.)*'"
    r"|\"(?:[^\"\\]|\\.)*\""
    r"|(?P<open>[(\[{])"
    r"|(?P<close>[)\]}])"
    r"|(?P<next>, (?=\w+=))"
    r"|[^'\"()\[\]{},]+"
    r"|."
)
_APART: Final = ("lora_path", "extra_key", "cache_salt")
"""Fields in which requests that share KV are equal."""
_WANTED: Final = frozenset({"rid", "text", "input_ids", "session_id", *_APART})
_PROBES: Final = "HEALTH_CHECK"
"""What the ids of SGLang's own requests begin with."""
_MOST: Final = 2048
"""Characters and tokens that level 2 leaves of a prompt."""
_CUT: Final = "start SGLang with --log-requests-level 3, which cuts nothing off"


def _read(path: Path, how: How) -> Iterator[Asked | Answered]:
    received = 0
    for place, line in lines(path, "SGLang's log"):
        if (event := _event(line)) is not None:
            seen = event
        elif (found := _RECEIVED.search(line)) or (found := _FINISHED.search(line)):
            seen = _seen(place, line, found)
        else:
            continue
        kind, date, obj, length = seen
        if kind == "finished":
            yield from (Answered(name, length) for name in _names(obj)[:1])
            continue
        received += 1
        yield from _asked(Record(place, obj, {}), date, how)
    if not received:
        raise TraceError(
            f"{path}: there is no received request in it; start SGLang with --log-requests "
            "--log-requests-level 3, and give what it prints"
        )


def _event(line: str) -> tuple[str, str | None, dict[str, Any], int] | None:
    """Returns the kind, the time, the request and the answer's length of a line with JSON."""
    at = line.find('{"timestamp": ')
    if at < 0:
        return None
    try:
        event: Any = msgspec.json.decode(line[at:])
        kind = event["event"]
        if kind not in {"request.received", "request.finished"} or "rid" not in event["obj"]:
            return None
        if not isinstance(event["obj"], dict):
            return None
        length = event.get("out", {}).get("meta_info", {}).get("completion_tokens") or 0
        length = max(0, min(int(length), LONGEST))
    except (
        msgspec.DecodeError,
        RecursionError,
        KeyError,
        TypeError,
        ValueError,
        OverflowError,
        AttributeError,
    ):
        return None
    return kind.partition(".")[2], event["timestamp"], event["obj"], length


def _seen(
    place: Place, line: str, found: re.Match[str]
) -> tuple[str, str | None, dict[str, Any], int]:
    """Returns the same of a line of text."""
    date = _DATE.search(line, 0, found.start())
    when = None if date is None else date[1].replace(",", ".")
    obj = _fields(place, line, found.end())
    if found.re is _RECEIVED:
        return "received", when, obj, 0
    length = _TOKENS.match(line, found.end())
    return "finished", when, obj, int(length[1]) if length else 0


def _fields(place: Place, line: str, start: int) -> dict[str, Any]:
    """Returns the fields that matter of a dataclass as text, from behind its opening bracket."""
    fields = {}
    depth, begin = 0, start
    for piece in _PIECE.finditer(line, start):
        if piece["open"]:
            depth += 1
        elif piece["close"]:
            depth -= 1
        if depth < 0 or (depth == 0 and piece["next"]):
            name, _, value = line[begin : piece.start()].partition("=")
            if name in _WANTED:
                fields[name] = _value(place, name, value)
            begin = piece.end()
        if depth < 0:
            return fields
    raise place.wrong(None, "it ends within a request; give the log as SGLang wrote it")


def _value(place: Place, name: str, value: str) -> Any:  # noqa: ANN401 - whatever it is
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise place.wrong(name, f"{value[:40]}… is cut off; {_CUT}") from None


def _asked(record: Record, date: str | None, how: How) -> Iterator[Asked]:
    """Yields the requests of a line: SGLang takes several prompts at once."""
    obj = record.values
    names = _names(obj)
    ids: Any = obj.get("input_ids")
    texts: Any = obj.get("text")
    if names and names[0].startswith(_PROBES):
        how.notes.count("requests left out as they are SGLang's own")
        return
    if ids is None and texts is None:
        if "text" not in obj and "input_ids" not in obj:
            raise record.wrong("text", f"the prompt is left out; {_CUT}")
        how.notes.count("requests left out as they have no prompt in tokens or text")
        return
    given = texts if ids is None else ids
    several = isinstance(given, list) and bool(given) and isinstance(given[0], (str, list))
    prompts = given if several else [given]
    apart = [str(obj.get(key) or "") for key in _APART]
    salt = "\0".join(apart) if any(apart) else ""
    for at, prompt in enumerate(prompts):
        if isinstance(prompt, str):
            if len(prompt) == _MOST + 3 and prompt[_MOST // 2 :].startswith("..."):
                raise record.wrong("text", f"it is cut off; {_CUT}")
            tokens = how.splitter.tokens(prompt)
        elif isinstance(prompt, list) and "..." in prompt:
            raise record.wrong("input_ids", f"it is cut off; {_CUT}")
        else:
            tokens = record.tokens("input_ids", prompt)
        if not len(tokens):
            how.notes.count("requests left out as their prompt is empty")
            continue
        yield Asked(
            input_length=len(tokens),
            milliseconds=_moment(record, date),
            tokens=tokens,
            session=record.session(("session_id",)),
            salt=salt,
            name=names[at] if at < len(names) else None,
        )


def _moment(record: Record, date: str | None) -> int | None:
    """Returns the time of a line, None where it has none."""
    try:
        return None if date is None else milliseconds(date, "s")
    except ValueError as error:
        raise record.wrong("timestamp", str(error)) from None


def _names(obj: Mapping[str, Any]) -> list[str]:
    rid = obj.get("rid")
    return [str(one) for one in (rid if isinstance(rid, list) else [rid]) if one is not None]


FORMAT: Final = Format("sglang", "SGLang's log with --log-requests --log-requests-level 3", _read)
