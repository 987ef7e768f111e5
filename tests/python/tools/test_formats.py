"""Importers: what logs tell becomes a trace, and what they do not tell is said."""

import dataclasses
import errno
import gzip
import itertools
import json
import re
import sys
import types
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import blockyard as by
from blockyard._typing import override
from blockyard.tools.cli import cli
from blockyard.tools.traces import room
from blockyard.tools.traces.convert import Converted, convert
from blockyard.tools.traces.describe import describe
from blockyard.tools.traces.formats.blocks import Numbering
from blockyard.tools.traces.formats.format import Answered, Asked, How
from blockyard.tools.traces.formats.msgpack import split
from blockyard.tools.traces.formats.registry import FORMATS
from blockyard.tools.traces.formats.times import milliseconds
from blockyard.tools.traces.formats.words import Tokenizer, Words
from blockyard.tools.traces.trace import Trace, TraceError, read
from yard import profile

DATA = Path(__file__).parent / "data"
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


# ---- token ids ----


def test_equal_beginnings_of_tokens_get_equal_numbers_and_nothing_else_does(tmp_path: Path) -> None:
    path = put(
        tmp_path,
        TOKENS,
        TOKENS | {"timestamp": 8, "prompt_token_ids": [*range(19), 99], "session": "a"},
        TOKENS | {"timestamp": 9, "prompt_token_ids": [99, *range(1, 20)], "output_token_ids": [1]},
    )
    trace, converted = made(tmp_path, "tokens", path)
    assert ids(trace) == [[0, 1, 2], [0, 1, 3], [4, 5, 6]]
    assert trace.arrival.tolist() == [0, 750, 1750]
    assert trace.input_length.tolist() == [20, 20, 20]
    assert trace.output_length.tolist() == [3, 3, 3]
    assert trace.sessions == ("a",)
    assert trace.trace_block == 8
    assert trace.hits_unknown == ""
    assert converted == Converted(3, 60, 7, 8, 1.75, 0)


@given(st.lists(st.lists(st.integers(0, 3), max_size=12), max_size=12), st.integers(1, 5))
@profile(150)
def test_numbers_are_equal_where_all_tokens_so_far_are(prompts: list[list[int]], size: int) -> None:
    numbering = Numbering(size)
    numbers = [numbering.of_tokens(prompt) for prompt in prompts]
    seen: dict[int, tuple[int, ...]] = {}
    for prompt, row in zip(prompts, numbers, strict=True):
        assert len(row) == -(-len(prompt) // size)
        for at, number in enumerate(row):
            before = tuple(prompt[: (at + 1) * size])
            assert seen.setdefault(number, before) == before
    assert len(seen) == len(set(seen.values())) == len(numbering)
    assert sorted(seen) == list(range(len(seen)))


def test_a_salt_keeps_equal_tokens_apart() -> None:
    numbering = Numbering(4)
    tokens = range(8)
    assert numbering.of_tokens(tokens) == [0, 1]
    assert numbering.of_tokens(tokens, "adapter") == [2, 3]
    assert numbering.of_tokens(tokens, "adapter") == [2, 3]


def test_requests_are_sorted_over_files_and_gzip_is_understood(tmp_path: Path) -> None:
    late = put(tmp_path, TOKENS | {"timestamp": 9}, TOKENS | {"timestamp": 6}, name="late")
    early = tmp_path / "early.gz"
    early.write_bytes(gzip.compress(json.dumps(TOKENS | {"output_length": 1}).encode()))
    trace, _ = made(tmp_path, "tokens", late, early)
    assert trace.arrival.tolist() == [0, 1250, 3000]
    assert trace.output_length.tolist() == [3, 1, 3]
    output = tmp_path / "made.jsonl.gz"
    convert(FORMATS["tokens"], [late, early], How(Words()), output, block_size=8)
    assert read(output) == trace


def test_fields_are_named_and_units_given_and_only_so_many_read(tmp_path: Path) -> None:
    line = {"at": {"us": 2_000_000}, "p": [1, 2, 3], "n": 4, "who": 5}
    path = put(tmp_path, line, line | {"at": {"us": 5_500_000}}, line)
    fields = {"timestamp": "at.us", "tokens": "p", "output": "n", "session": "who"}
    how = How(Words(), "us", fields)
    trace, _ = made(tmp_path, "tokens", path, how=how, requests=2)
    assert trace.arrival.tolist() == [0, 3500]
    assert trace.output_length.tolist() == [4, 4]
    assert trace.sessions == ("5",)


def test_without_times_a_rate_is_needed(tmp_path: Path) -> None:
    bare = {"tokens": [1, 2, 3]}
    path = put(tmp_path, bare, bare, bare)
    with pytest.raises(TraceError, match=r"log: request 1 has no time; give --rate HZ"):
        made(tmp_path, "tokens", path)
    trace, converted = made(tmp_path, "tokens", path, rate=4.0)
    assert trace.arrival.tolist() == [0, 250, 500]
    assert converted.unanswered == 3


BAD_TOKENS: list[tuple[object, str]] = [
    ("{", ", line 2: not JSON"),
    ([1], ", line 2: it is not a JSON object"),
    ({}, ", line 2, field prompt_token_ids: it is missing; give the ids of the prompt's tokens"),
    (TOKENS | {"prompt_token_ids": []}, ", line 2, field prompt_token_ids: []; give a list of"),
    (TOKENS | {"prompt_token_ids": [1, -1]}, ", line 2, field prompt_token_ids[1]: -1; give a"),
    (TOKENS | {"prompt_token_ids": [1, [2]]}, ", line 2, field prompt_token_ids[1]: [2]; give a"),
    (TOKENS | {"prompt_token_ids": [2**70]}, ", line 2, field prompt_token_ids[0]: 11805916"),
    (TOKENS | {"prompt_token_ids": [1.5, 2]}, ", line 2, field prompt_token_ids[0]: 1.5; give a"),
    (TOKENS | {"prompt_token_ids": [True]}, ", line 2, field prompt_token_ids[0]: true; give"),
    (TOKENS | {"timestamp": "noon"}, ", line 2, field timestamp: 'noon' is no time; give a number"),
    (TOKENS | {"timestamp": 1.7e12}, ", line 2, field timestamp: 1700000000000.0 is no time in s;"),
    (TOKENS | {"output_length": "3"}, ', line 2, field output_length: "3"; give a whole number'),
    (TOKENS | {"session": [1]}, ", line 2, field session: [1]; give text"),
]


@pytest.mark.parametrize(("line", "says"), BAD_TOKENS)
def test_what_is_wrong_is_named_with_line_and_field(
    tmp_path: Path, line: object, says: str
) -> None:
    assert refused(tmp_path, "tokens", TOKENS, line).startswith(says)


@pytest.mark.parametrize("form", FORMATS)
def test_what_is_no_file_of_a_format_is_refused(tmp_path: Path, form: str) -> None:
    assert len(refused(tmp_path, form, "no such thing")) > 20
    assert len(refused(tmp_path, form, "")) > 20
    for path, says in ((tmp_path, "this is a directory"), (tmp_path / "none", "there is no such")):
        with pytest.raises(TraceError, match=says):
            made(tmp_path, form, path)


def event(**changes: object) -> dict[str, object]:
    usual = {"type": "BlockStored", "block_hashes": [1], "parent_block_hash": None}
    return usual | {"token_ids": [1] * 16, "block_size": 16} | changes


def vllm(prompt: str, ids: str) -> str:
    when = "DEBUG 11-24 10:00:00 [request_logger.py:40]"
    return f"{when} Request a-0 details: prompt: {prompt}, prompt_token_ids: {ids}, x: None."


REMOVED = {"type": "BlockRemoved"}
SGLANG = {"event": "request.received", "obj": {"rid": "a", "text": "x y"}}
BROKEN: list[tuple[str, object, str]] = [
    ("kv-events", [1e300, [event()]], ", line 1, field time: "),
    ("kv-events", [10**30, [event()]], ", line 1, field time: "),
    ("kv-events", [1, [event(parent_block_hash=[1])]], ", line 1, field parent_block_hash: "),
    ("kv-events", [1, [event(), REMOVED]], ", line 1, field block_hashes: "),
    ("kv-events", [1, [event(), REMOVED | {"block_hashes": [[1]]}]], ", line 1, field block_h"),
    ("kv-events", [1, [event(block_size=True)]], ", line 1, field block_size: "),
    ("vllm", vllm("'\\x'", "None"), ", line 1, field prompt: it is no text as Python quotes"),
    ("vllm", vllm("'a'", f"[1, {2**70}]"), ", line 1, field prompt_token_ids: not all are"),
    ("vllm", vllm("'a'", f"[{'9' * 5000}]"), ", line 1, field prompt_token_ids: not all are"),
    ("vllm", vllm("'a'", "[1 2]"), ", line 1, field prompt_token_ids: not all are"),
    ("vllm", "{" + "[" * 10**5, ': there is not a line with "Received request" in it'),
    ("sglang", {"timestamp": "noon"} | SGLANG, ", line 1, field timestamp: 'noon' is no time"),
    ("sglang", {"timestamp": "noon"} | SGLANG | {"obj": [["rid", 1]]}, ": there is no received"),
    ("openai", {"timestamp": 1, "body": "[" * 10**5}, ", line 1, field body: "),
    ("openai", {"timestamp": 10**400, "prompt": "a"}, ", line 1, field timestamp: 1000"),
    ("azure", "x" * 200_000, ", line 1: no CSV: field larger than field limit"),
]


@pytest.mark.parametrize(("form", "line", "says"), BROKEN)
def test_what_is_broken_in_logs_is_named_too(
    tmp_path: Path, form: str, line: object, says: str
) -> None:
    assert refused(tmp_path, form, line).startswith(says)


def test_half_a_character_is_read(tmp_path: Path) -> None:
    log = [vllm(r"'\ud83d a b'", "None"), "INFO 11-24 10:00:00 Received request a-0: params: X"]
    trace, _ = made(tmp_path, "vllm", put(tmp_path, *log))
    assert len(trace) == 1


def test_memory_that_runs_out_is_said_before_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "_OFTEN", 4)
    monkeypatch.setattr(room, "free_memory", lambda: 1 << 20)
    with pytest.raises(TraceError, match=r"memory runs out after 5 distinct blocks of 4 tokens"):
        made(tmp_path, "tokens", put(tmp_path, TOKENS), block_size=4)
    assert [file.name for file in tmp_path.iterdir()] == ["log"]
    line = {"timestamp": 0, "input_length": 9, "output_length": 0, "hash_ids": [0, 1, 2, 3, 4]}
    path = put(tmp_path, line)
    with pytest.raises(TraceError, match=r"memory runs out after 5 ids of .*give --requests"):
        read(path)


def test_a_disk_that_is_full_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(BytesIO):
        @override
        def write(self, _data: object, /) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: Full())
    with pytest.raises(by.Misuse, match=r"made\.jsonl cannot be written: No space left on device"):
        made(tmp_path, "tokens", put(tmp_path, TOKENS))
    assert [file.name for file in tmp_path.iterdir()] == ["log"]


# ---- text ----


def test_a_beginning_of_a_text_has_the_beginning_of_its_tokens() -> None:
    words = Words()
    text = 'A cache of blocks, which hold keys and values: レストラン {"a":' + "x" * 50 + "} end"
    whole = words.tokens(text).tolist()
    for count in range(len(text.split())):
        part = words.tokens(" ".join(text.split()[:count])).tolist()
        assert whole[: len(part)] == part
    assert len(words.tokens("a b c")) == 3
    assert len(words.tokens("レストラン")) == 5
    assert len(words.tokens("x" * 400)) == 100
    assert len(Words(2).tokens("x" * 400)) == 200
    assert words.tokens("one two")[0] != words.tokens("two one")[0]
    for wrong in (0.5, 17.0, float("nan")):
        with pytest.raises(by.Misuse, match="--chars-per-token"):
            Words(wrong)


def test_texts_become_words(tmp_path: Path) -> None:
    shared = "You are a helper who answers all that is asked of it at once. "
    lines: list[dict[str, Any]] = [
        {
            "timestamp": "2024-05-10T12:00:00+02:00",
            "prompt": shared + "Why?",
            "response": "So it is.",
        },
        {"timestamp": "2024-05-10 10:00:01.5", "prompt": shared + "Who?", "output_tokens": 7},
        {"timestamp": "2024-05-10 10:00:02", "prompt": " "},
    ]
    how = How(Words())
    trace, _ = made(tmp_path, "text", put(tmp_path, *lines), how=how)
    assert ids(trace) == [[0, 1], [0, 2]]
    assert trace.arrival.tolist() == [0, 1500]
    assert trace.output_length.tolist() == [3, 7]
    assert list(how.notes) == ["prompts left out as they are empty: 1"]
    assert shared.split()[3] not in (tmp_path / "made.jsonl").read_text()


def test_a_tokenizer_is_used_where_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Letters:
        def __init__(self, path: str) -> None:
            assert path == str(tmp_path / "tokenizer.json")

        from_file = classmethod(lambda cls, path: cls(path))

        def encode(self, text: str, *, add_special_tokens: bool) -> types.SimpleNamespace:
            assert not add_special_tokens
            return types.SimpleNamespace(ids=list(text.encode()))

    monkeypatch.setitem(sys.modules, "tokenizers", types.SimpleNamespace(Tokenizer=Letters))
    with pytest.raises(by.Misuse, match=r"there is no file .*tokenizer\.json"):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    path = put(tmp_path, {"timestamp": 1, "text": "abcdefghij"})
    trace, _ = made(tmp_path, "text", path, how=How(Tokenizer(tmp_path)))
    assert trace.input_length.tolist() == [10]
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(by.Misuse, match="pip install tokenizers"):
        Tokenizer(tmp_path)


# ---- OpenAI ----


def test_a_chat_keeps_what_it_shares_with_the_turn_before(tmp_path: Path) -> None:
    turn = CHAT["messages"] + [  # type: ignore[operator]
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "it is sixteen tokens of keys and values"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]},
    ]
    wrapped = {
        "timestamp": "2023-11-14T22:13:30Z",
        "request": {"model": "m", "messages": turn, "prompt_cache_key": "chat 1"},
        # Some gateways write JSON in JSON.
        "response": {"status_code": 200, "body": '{"usage": {"completion_tokens": 4}}'},
    }
    failed = {"created": 1, "body": CHAT, "response": {"status_code": 429}}
    other = CHAT | {"model": "another", "created": 1_700_000_020}
    how = How(Words())
    trace, _ = made(tmp_path, "openai", put(tmp_path, CHAT, wrapped, failed, other), how=how)
    first, second, third = ids(trace)
    full = len(first) - 1
    assert full >= 2
    assert second[:full] == first[:full]
    assert len(second) > len(first)
    assert not set(first) & set(third)
    assert trace.arrival.tolist() == [0, 10_000, 20_000]
    assert trace.output_length.tolist() == [9, 4, 9]
    assert trace.sessions == ("chat 1",)
    assert "requests left out as they failed: 1" in list(how.notes)
    assert any(note.startswith("parts of messages that are no text") for note in how.notes)


def test_completions_responses_and_tools_are_read(tmp_path: Path) -> None:
    text = "It was the best of times, it was the worst of times, it was the age of wisdom"
    several = {"created": 1, "prompt": [text, text], "usage": {"completion_tokens": 10}}
    tokens = {"created": 2, "prompt": [5, 6, 7], "cache_salt": "mine"}
    reply = {
        "created_at": 3, "instructions": text, "input": "Go on.", "previous_response_id": "r",
        "usage": {"input_tokens": 21, "output_tokens": 2},
    }  # fmt: skip
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"b": 1, "a": 2}}}]
    swapped = json.loads(json.dumps(tools).replace('"b": 1, "a": 2', '"a": 2, "b": 1'))
    lines = [{"created": 4, "tools": t, "messages": [{"role": "user", "content": "Look!"}]}
             for t in (tools, swapped)]  # fmt: skip
    how = How(Words())
    trace, made_of = made(
        tmp_path, "openai", put(tmp_path, several, tokens, reply, *lines), how=how
    )
    assert ids(trace)[0] == ids(trace)[1]
    assert ids(trace)[4] == ids(trace)[5]
    assert trace.output_length.tolist() == [5, 5, 0, 2, 0, 0]
    assert trace.input_length.tolist()[2] == 3
    assert made_of.unanswered == 3
    assert any(note.startswith("requests that continue what is only named") for note in how.notes)


def test_the_two_files_of_a_batch_are_joined(tmp_path: Path) -> None:
    asked = [{"custom_id": n, "url": "/v1/chat/completions", "body": CHAT} for n in "ab"]
    given = [
        {"custom_id": name, "response": {"body": {"usage": {"completion_tokens": tokens}}}}
        for name, tokens in (("b", 5), ("a", 6))
    ]
    asked = json.loads(re.sub(r', "usage": {[^}]*}', "", json.dumps(asked)))
    paths = put(tmp_path, *asked, name="in"), put(tmp_path, *given, name="out")
    trace, _ = made(tmp_path, "openai", *paths, rate=1.0)
    assert trace.output_length.tolist() == [6, 5]


def test_a_difference_to_the_tokens_in_the_log_is_said(tmp_path: Path) -> None:
    how = How(Words())
    usage = {"usage": {"prompt_tokens": 100}}
    made(tmp_path, "openai", put(tmp_path, CHAT | usage), how=how)
    note = list(how.notes)[-1]
    assert re.match(
        r"the logs count 100 tokens in the prompts, and here they have \d\d, -\d+%", note
    )
    close = How(Words())
    made(tmp_path, "openai", put(tmp_path, CHAT | {"usage": {"prompt_tokens": 28}}), how=close)
    assert list(close.notes) == []


BAD_CHATS: list[tuple[object, str]] = [
    (
        {"created": 1, "model": "m"},
        ", line 2, field messages: it is missing, as are prompt and input",
    ),
    ({"created": 1, "messages": "hi"}, ', line 2, field messages: "hi"; give a list of messages'),
    ({"created": 1, "messages": ["hi"]}, ', line 2, field messages[0]: "hi"; give an object with'),
    ({"created": 1, "prompt": {"a": 1}}, ', line 2, field prompt: {"a":1}; give text'),
    ({"created": 1, "prompt": [[1, -2]]}, ", line 2, field prompt[0][1]: -2; give a list of whole"),
    ({"created": 1, "body": "{"}, ", line 2, field body: "),
    ({"created": 1, "body": [1]}, ", line 2, field body: [1]; give a JSON object"),
    (
        CHAT | {"usage": {"completion_tokens": -1}},
        ", line 2, field usage.completion_tokens: -1; give",
    ),
    (CHAT | {"created": "today"}, ", line 2, field created: 'today' is no time"),
]


@pytest.mark.parametrize(("line", "says"), BAD_CHATS)
def test_a_wrong_chat_is_named(tmp_path: Path, line: object, says: str) -> None:
    assert refused(tmp_path, "openai", CHAT, line).startswith(says)


# ---- the peers' logs ----


@pytest.mark.parametrize("name", ["vllm-0.33.log", "vllm-0.33.json.log"])
def test_vllms_own_log_is_read(tmp_path: Path, name: str) -> None:
    how = How(Words())
    trace, converted = made(tmp_path, "vllm", DATA / name, how=how, block_size=16)
    # The third has the first's tokens, but an adapter.
    assert ids(trace) == [[0, 1, 2], [0, 1, 3], [4, 5, 6], [7, 8]]
    assert trace.input_length.tolist() == [40, 35, 40, 17]
    # The second's answer came in two parts.
    assert trace.output_length.tolist() == [5, 3, 5, 5]
    exact = [0, 1500, 3000, 4500]
    assert trace.arrival.tolist() == (exact if "json" in name else [0, 2000, 3000, 5000])
    assert converted.unanswered == 0
    assert list(how.notes) == []


OLD = (
    "INFO {} [logger.py:39] Received request {}: prompt: {!r}, params: SamplingParams(n=1, "
    "stop=['x'], max_tokens=2000), prompt_token_ids: {}, lora_request: None, "
    "prompt_adapter_request: None."
)


def test_vllms_older_logs_are_read_over_the_turn_of_the_year(tmp_path: Path) -> None:
    path = put(
        tmp_path,
        "INFO 12-31 23:59:50 [api_server.py:1] vLLM API server version 0.8.5",
        OLD.format("12-31 23:59:59", "cmpl-1-0", "a\n'b' \"c\"", list(range(40))),
        "\x1b[32mINFO\x1b[0m 01-01 00:00:01 [async_llm.py:255] Added request cmpl-1-0.",
        OLD.format("01-01 00:00:02", "chatcmpl-2", "It was the best of times, I think", None),
        OLD.format("01-01 00:00:03", "cmpl-3-0", "", []),
        OLD.format("01-01 00:00:03", "cmpl-4-0", "x" * 20, list(range(20))),
    )
    how = How(Words())
    trace, converted = made(tmp_path, "vllm", path, how=how)
    assert trace.arrival.tolist() == [0, 3000, 4000]
    assert trace.input_length.tolist() == [40, 8, 20]
    assert converted.unanswered == 3
    assert list(how.notes) == [
        "requests left out as they have no prompt in tokens or text: 1",
        "prompts of as many characters as tokens, which --max-log-len may have cut off: 1",
    ]


def test_a_log_of_vllm_without_prompts_says_what_to_turn_on(tmp_path: Path) -> None:
    info = "INFO 11-24 19:00:00 [x.py:66] Received request a: params: S(), lora_request: None."
    for lines in ([info], ["INFO 11-24 19:00:00 [x.py:1] hello"]):
        assert "VLLM_LOGGING_LEVEL=DEBUG" in refused(tmp_path, "vllm", *lines)
    cut = OLD.format("12-31 23:59:59", "a", "b", [1, 2])[:-90]
    assert refused(tmp_path, "vllm", cut).startswith(", line 1, field prompt_token_ids: ")


@pytest.mark.parametrize("form", ["text", "json"])
def test_sglangs_own_log_is_read(tmp_path: Path, form: str) -> None:
    how = How(Words())
    path = DATA / f"sglang-0.5.23.level3.{form}.log"
    trace, converted = made(tmp_path, "sglang", path, how=how, block_size=16)
    assert ids(trace) == [[0, 1, 2], [0, 1, 3], [4, 5, 6], [7]]
    assert trace.input_length.tolist() == [40, 35, 40, 5]
    assert trace.output_length.tolist() == [5, 5, 5, 5]
    assert trace.session.tolist() == [0, 0, 0, -1]
    exact = [0, 1500, 3000, 4500]
    assert trace.arrival.tolist() == (exact if form == "json" else [0, 2000, 3000, 5000])
    assert converted.unanswered == 0
    assert list(how.notes) == ["requests left out as they are SGLang's own: 1"]


@pytest.mark.parametrize("name", ["level2.text", "level1.json"])
def test_a_log_of_sglang_without_whole_prompts_says_what_to_turn_on(
    tmp_path: Path, name: str
) -> None:
    path = DATA / f"sglang-0.5.23.{name}.log"
    with pytest.raises(TraceError, match=r"line 2, field text: .*--log-requests-level 3"):
        made(tmp_path, "sglang", path)


def test_cut_lists_and_texts_of_sglangs_json_are_noticed(tmp_path: Path) -> None:
    def line(**obj: object) -> str:
        event = {"timestamp": "2026-01-01T00:00:00", "event": "request.received", "rid": "a"}
        return f"[2026-01-01 00:00:00] {json.dumps(event | {'obj': {'rid': 'a'} | obj})}"

    cut = "a" * 1024 + "..." + "b" * 1024
    for field, value in (("input_ids", [1, "...", 2]), ("text", cut)):
        said = refused(tmp_path, "sglang", line(**{field: value}))
        assert said.startswith(f", line 1, field {field}: it is cut off; start SGLang with")
    several = {"rid": ["a", "b"], "input_ids": [[1, 2], [1, 3]]}
    trace, _ = made(tmp_path, "sglang", put(tmp_path, line(**several)), block_size=1)
    assert ids(trace) == [[0, 1], [0, 2]]


# ---- KV events ----


@pytest.mark.parametrize("name", ["vllm-0.33.events.jsonl", "vllm-0.33.events.msgpack"])
def test_vllms_own_events_tell_what_was_stored_but_no_hits(tmp_path: Path, name: str) -> None:
    how = How(Words())
    trace, _ = made(tmp_path, "kv-events", DATA / name, how=how, block_size=16)
    assert ids(trace) == [[0, 1, 2, 3], [0, 1, 4, 5], [6, 7, 8, 9, 10]]
    assert trace.arrival.tolist() == [0, 500, 1000]
    assert trace.trace_block == 16
    assert "not what was asked for again" in trace.hits_unknown
    assert list(how.notes) == ["blocks stored again after they were removed, for want of room: 4"]


def test_sglangs_own_events_are_read(tmp_path: Path) -> None:
    path = DATA / "sglang-0.5.23.events.msgpack"
    trace, _ = made(tmp_path, "kv-events", path, block_size=16)
    # A branch grows while nothing else stands on its end.
    assert ids(trace) == [[0, 1, 2], [0, 1, 3, 4]]
    form = FORMATS["kv-events"]
    assert form.block_size is not None
    assert form.block_size(path) == 16


def stored(blocks: list[int], parent: int | None = None, **more: object) -> dict[str, object]:
    event = {"type": "BlockStored", "block_hashes": blocks, "parent_block_hash": parent}
    return {**event, "token_ids": [], "block_size": 8, "lora_id": None, "medium": "GPU", **more}


def test_events_of_other_media_groups_and_sizes_are_left_out(tmp_path: Path) -> None:
    path = put(
        tmp_path,
        [1.0, [stored([1, 2]), stored([1, 2], medium="CPU"), stored([9], group_idx=1)], 0],
        [2.0, [["BlockStored", [3], 2, [], 8, None, "GPU"], {"type": "AllBlocksCleared"}], 0],
        [3.0, [stored([7], parent=5), stored([8], parent=3, block_size=4)]],
    )
    how = How(Words())
    trace, _ = made(tmp_path, "kv-events", path, how=how)
    assert ids(trace) == [[0, 1, 2], [3]]
    assert list(how.notes) == [
        "events left out as they are of further groups of layers: 1",
        "chains of blocks that begin before the file does: 1",
        "events left out as their blocks are not of 8 tokens: 1",
    ]
    for wrong, says in (
        ([1.0], "it is no batch; give batches of KV events"),
        (["x", []], "field time: 'x'; give seconds"),
        ([1.0, [3]], "3 is no event"),
        ([1.0, [stored([], block_size=0)]], "field block_size: 0; give a whole number from 1"),
        ([1.0, [{"type": "BlockRemoved", "block_hashes": [1]}]], "no block is stored in it"),
    ):
        assert says in refused(tmp_path, "kv-events", wrong)


ATOMS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=40)
    | st.binary(max_size=300)
)
INNER = st.lists(ATOMS, max_size=18) | st.dictionaries(st.text(max_size=3), ATOMS, max_size=18)


@given(st.lists(ATOMS | INNER | st.lists(INNER, max_size=3), max_size=4), st.integers(1, 40))
@profile(100)
def test_msgpack_objects_are_told_apart(objects: list[object], chunk: int) -> None:
    class Slow(BytesIO):
        @override
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(min(size or 0, chunk))

    parts = [msgspec.msgpack.encode(one) for one in objects]
    assert list(split(Slow(b"".join(parts)))) == parts
    if parts and len(parts[-1]) > 1:
        with pytest.raises(ValueError, match="ends within an object"):
            list(split(Slow(b"".join(parts)[:-1])))


# ---- Azure ----


def test_azures_two_forms_are_read_and_no_hits_are_claimed(tmp_path: Path) -> None:
    header = "TIMESTAMP,ContextTokens,GeneratedTokens"
    old = put(
        tmp_path,
        header,
        "2023-11-16 18:15:46.6805900,374,44",
        "2023-11-16 18:15:50.9951690,396,109",
    )
    how = How(Words())
    trace, _ = made(tmp_path, "azure", old, how=how)
    assert trace.arrival.tolist() == [0, 4315]
    assert trace.input_length.tolist() == [374, 396]
    assert trace.output_length.tolist() == [44, 109]
    assert ids(trace) == [[], []]
    assert "lengths only" in trace.hits_unknown
    new = put(tmp_path, "\ufeff" + header, "2024-05-10 00:00:00.009930+00:00,0,1",
              "2024-05-10 00:00:01+00:00,1452,3")  # fmt: skip
    trace, _ = made(tmp_path, "azure", new, how=how)
    assert trace.input_length.tolist() == [1452]
    assert list(how.notes) == ["requests left out as they have no prompt: 1"]
    time = "2024-05-10 00:00:00"
    for lines, says in (
        (["a,b,c"], ", line 1, field TIMESTAMP: there is no such column"),
        ([header, f"{time},12"], ", line 2: it has 2 columns"),
        ([header, f"{time},12,x"], ", line 2, field GeneratedTokens: 'x'; give a number of tokens"),
        ([header, f"{time},1e3,2"], ", line 2, field ContextTokens: '1e3'; give a number"),
        ([header, "noon,12,2"], ", line 2, field TIMESTAMP: 'noon' is no time"),
        ([header, f"{time},12,{2**31}"], ", line 2, field GeneratedTokens: '2147483648'"),
    ):
        assert refused(tmp_path, "azure", *lines).startswith(says)


def test_times_are_exact_in_every_unit() -> None:
    moment = 1_700_000_000_123
    assert milliseconds(moment, "ms") == moment
    assert milliseconds(moment * 1_000_000 + 999_999, "ns") == moment
    assert milliseconds(1_700_000_000.123, "s") == moment
    assert milliseconds("2023-11-14T22:13:20.123456789Z", "s") == moment
    for wrong in (True, -1, float("nan"), None, "2023-13-01"):
        with pytest.raises(ValueError, match="is no time"):
            milliseconds(wrong, "s")


# ---- the command ----


@pytest.fixture
def told(tmp_path: Path) -> Path:
    return put(tmp_path, TOKENS, TOKENS)


def run(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(cli, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


def test_the_command_writes_a_trace_and_says_what_it_is(tmp_path: Path, told: Path) -> None:
    output = tmp_path / "t.jsonl.gz"
    status, said = run("trace", "from", "tokens", told, "-o", output, "--block-size", "10")
    assert status == 0
    assert "2 requests" in said
    assert "2 distinct blocks of 10 tokens" in said
    assert read(output).trace_block == 10
    azure = put(tmp_path, "TIMESTAMP,ContextTokens,GeneratedTokens", "2024-05-10 00:00:00,5,1")
    status, said = run("trace", "from", "azure", azure, "-o", output)
    assert "hits cannot be told from it: the Azure traces have lengths only" in " ".join(
        said.split()
    )


@pytest.mark.parametrize("requests", [0, 1])
def test_ctrl_c_leaves_what_was_read_and_marks_it(
    tmp_path: Path, told: Path, monkeypatch: pytest.MonkeyPatch, requests: int
) -> None:
    form = FORMATS["tokens"]

    def stopped(path: Path, how: How) -> Iterator[Asked | Answered]:
        yield from itertools.islice(form.read(path, how), requests)
        raise KeyboardInterrupt

    monkeypatch.setitem(FORMATS, "tokens", dataclasses.replace(form, read=stopped))
    output = tmp_path / "t.jsonl"
    status, said = run("trace", "from", "tokens", told, "-o", output)
    assert status == 130
    assert "interrupted" in said
    assert output.exists() == bool(requests)
    assert len(list(tmp_path.iterdir())) == 1 + requests
    if requests:
        trace = read(output)
        assert (len(trace), trace.incomplete) == (1, True)
        assert "Incomplete" in describe(trace).answer[-1]
        trace.write(output)
        assert read(output) == trace


def test_ctrl_c_within_a_request_leaves_those_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted:
        count = 0

        def encode(self, row: object) -> bytes:
            self.count += 1
            if self.count == 3:
                raise KeyboardInterrupt
            return msgspec.msgpack.encode(row)

    monkeypatch.setattr(msgspec.msgpack, "Encoder", Interrupted)
    path = put(tmp_path, *[TOKENS] * 5)
    trace, converted = made(tmp_path, "tokens", path)
    assert (len(trace), trace.incomplete) == (2, True)
    assert (converted.requests, converted.tokens) == (2, 40)


def test_the_command_refuses_what_makes_no_sense(tmp_path: Path, told: Path) -> None:
    output = tmp_path / "t.jsonl"
    events = DATA / "vllm-0.33.events.jsonl"
    for words, says in (
        (["open-ai", told], "did you mean 'openai'"),
        (["tokens", told, "--rate", "0"], "--rate 0: must be above 0"),
        (["tokens", told, "--rate", "1e-300"], "--rate 1e-300: the times would be too large"),
        (["tokens", told, "--field", "prompt=x"], "--field prompt=x: must be WHAT=NAME"),
        (["tokens", told, "--tokenizer", "x", "--chars-per-token", "3"], "exclude each other"),
        (["kv-events", events, "--block-size", "8"], "has blocks of 16 tokens; leave it out"),
        (["tokens", output], "names the same file"),
        (["tokens", tmp_path / "none"], "there is no such file"),
    ):
        status, said = run("trace", "from", *words, "-o", output)
        assert status == 2
        assert says in said
        assert len(said.splitlines()) == 1
        assert not output.exists()
