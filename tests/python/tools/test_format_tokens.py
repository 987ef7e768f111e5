"""Logs of token ids become a trace, and what is wrong in any log is named with its line."""

import errno
import gzip
import json
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import blockyard as by
from blockyard._typing import override
from blockyard.tools.traces import memory_check
from blockyard.tools.traces.convert import Converted, convert
from blockyard.tools.traces.formats.blocks import Numbering
from blockyard.tools.traces.formats.format import How
from blockyard.tools.traces.formats.registry import FORMATS
from blockyard.tools.traces.formats.tokenizer import Words
from blockyard.tools.traces.trace import TraceError, read
from logs import TOKENS, ids, made, put, refused
from yard import profile


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
    monkeypatch.setattr(memory_check, "_OFTEN", 4)
    monkeypatch.setattr(memory_check, "free_memory", lambda: 1 << 20)
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
