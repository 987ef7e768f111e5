"""Logs of requests in the OpenAI format, one per line: chat completions, completions, responses.

A line is the body of a request, with a time and the usage beside its fields; or an object that has
the body in `body` or `request`, and what came back in `response`, as gateways write it; or a line
of the Batch API, whose two files are joined by `custom_id`. What an answer says is not looked at.

A prompt becomes text in a form of our own, as no log has the model's template: the tools, then the
messages in turn, each after its role. What is shared between prompts stays shared.
"""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from blockyard.tools.traces.formats.format import Answered, Asked, Format, How
from blockyard.tools.traces.formats.records import Record, records, shown

__all__ = ["FORMAT"]

_BODY: Final = ("body", "request.body", "request")
_ANSWER: Final = ("response.body", "response")
_TIME: Final = ("timestamp", "time", "created", "created_at", "startTime", "start_time")
_SESSION: Final = ("session", "session_id", "conversation_id", "metadata.session_id")
_IN_BODY: Final = ("session_id", "conversation.id", "conversation", "prompt_cache_key")
_PROMPTS: Final = ("messages", "prompt", "input")
_ASKED: Final = ("usage.prompt_tokens", "usage.input_tokens")
_GIVEN: Final = ("usage.completion_tokens", "usage.output_tokens")
_FAILED: Final = 400
"""The least HTTP status of a failure."""


def _read(path: Path, how: How) -> Iterator[Asked | Answered]:
    for record in records(path, how, "a log in the OpenAI format"):
        body = _part(record, "body", _BODY)
        answer = _part(record, "response", _ANSWER)
        if _failed(record):
            how.notes.count("requests left out as they failed")
            continue
        name = record.find("custom_id", ("custom_id",))[1]
        name = name if isinstance(name, str) else None
        given = _usage(answer or record, "output", _GIVEN)
        if body is None and not any(field in record.values for field in _PROMPTS):
            if name is None or answer is None:
                raise record.wrong("messages", "it is missing, as are prompt and input; give one")
            yield Answered(name, given or 0)  # the second file of a batch
            continue
        yield from _requests(record, body or record, answer or record, name, how)


def _requests(
    record: Record, body: Record, answer: Record, name: str | None, how: How
) -> Iterator[Asked]:
    """Yields the requests of a line: completions take several prompts at once."""
    values = body.values
    prompts = [tokens for tokens in _prompts(body, how) if len(tokens)]
    if not prompts:
        how.notes.count("lines left out as their prompt is empty")
    if values.get("previous_response_id") or values.get("conversation"):
        how.notes.count(
            "requests that refer to an earlier response by id, so that their prompts are too short"
        )
    logged, given = _usage(answer, "input", _ASKED), _usage(answer, "output", _GIVEN)
    if logged:
        how.notes.compare(sum(map(len, prompts)), logged)
    for tokens in prompts:
        yield Asked(
            input_length=len(tokens),
            milliseconds=_time(record, body, answer, how),
            tokens=tokens,
            output_length=None if given is None else given // len(prompts),
            session=record.session(_SESSION) or body.session(_IN_BODY),
            # Another model, and what a user keeps apart, shares no KV.
            salt=f"{values.get('model', '')}\0{values.get('cache_salt') or ''}",
            name=name if len(prompts) == 1 else None,
        )


def _part(record: Record, means: str, names: Sequence[str]) -> Record | None:
    name, value = record.find(means, names)
    if value is None:
        return None
    if isinstance(value, str):  # as some gateways write it: JSON in JSON
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            value = shown(value)
    if not isinstance(value, dict):
        raise record.wrong(name, f"{shown(value)}; give a JSON object")
    return Record(record.place, value, record.fields)


def _failed(record: Record) -> bool:
    status = record.find("status", ("response.status_code", "status_code", "status"))[1]
    return isinstance(status, int) and status >= _FAILED


def _usage(record: Record, means: str, names: Sequence[str]) -> int | None:
    name, value = record.find(means, names)
    return None if value is None else record.length(name, value)


def _time(record: Record, body: Record, answer: Record, how: How) -> int | None:
    for place in (record, body, answer):
        if (time := place.time(_TIME, how)) is not None:
            return time
    return None


def _prompts(body: Record, how: How) -> Iterator[Sequence[int] | NDArray[np.int64]]:
    """Yields the tokens of each prompt."""
    prompt = body.values.get("prompt")
    if prompt is None:
        yield np.asarray(how.splitter.tokens(_rendered(body, how)), np.int64)
    elif isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
        yield body.tokens("prompt", prompt)
    elif isinstance(prompt, list):
        for at, one in enumerate(prompt):
            name = f"prompt[{at}]"
            if isinstance(one, list):
                yield body.tokens(name, one)
            else:
                yield np.asarray(how.splitter.tokens(body.text(name, one)), np.int64)
    else:
        yield np.asarray(how.splitter.tokens(body.text("prompt", prompt)), np.int64)


def _rendered(body: Record, how: How) -> str:
    """Returns a chat, or the input of a response, as one text."""
    values = body.values
    lines = []
    if tools := values.get("tools") or values.get("functions"):
        lines.append(f"<tools>\n{_json(tools)}\n")
    if (instructions := values.get("instructions")) is not None:
        lines.append(f"<system>\n{body.text('instructions', instructions)}\n")
    name = "messages" if "messages" in values else "input"
    items = values.get(name)
    if isinstance(items, str) and name == "input":
        items = [{"role": "user", "content": items}]
    if not isinstance(items, list):
        what = "give a list of messages, or text as input of a response"
        raise body.wrong(name, f"{shown(items)}; {what}")
    for at, item in enumerate(items):
        if not isinstance(item, dict):
            raise body.wrong(
                f"{name}[{at}]", f"{shown(item)}; give an object with role and content"
            )
        lines.append(_message(item, how))
    return "".join(lines)


def _message(item: Mapping[str, Any], how: How) -> str:
    """Returns one message: its role, its text, and whatever else it has that the model sees."""
    role = item.get("role") or item.get("type") or "user"
    lines = [f"<{role}>"]
    content = item.get("content")
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, str):
            lines.append(part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            lines.append(part["text"])
        elif part is not None:
            # A picture or a sound is one word: how many tokens it takes is the model's affair.
            how.notes.count("parts of messages without text, each counted as a token or a few")
            lines.append(blake2b(_json(part).encode(), digest_size=6).hexdigest())
    lines += [
        f"{field} {value if isinstance(value, str) else _json(value)}"
        for field in ("name", "tool_calls", "tool_call_id", "call_id", "arguments", "output")
        if (value := item.get(field)) is not None
    ]
    return "\n".join(lines) + "\n"


def _json(value: object) -> str:
    return msgspec.json.encode(value, order="sorted").decode()


FORMAT: Final = Format(
    "openai", "JSON lines of requests in the OpenAI format, and of its Batch API", _read
)
