"""Traces: what is read is what was written, and what is wrong is named before anything runs."""

import gzip
import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import blockyard as by
from blockyard.tools.traces.trace import TraceError, read
from traces import AGENTIC, CONVERSATION, made, real
from yard import profile

FIRST = {"timestamp": 0, "input_length": 20, "output_length": 3, "hash_ids": [0, 1, 2]}
SECOND = {"timestamp": 7, "input_length": 30, "output_length": 0, "hash_ids": [0, 1, 3, 4]}


def put(place: Path, *lines: dict[str, Any] | str | bytes, name: str = "t.jsonl") -> Path:
    raw = [line if isinstance(line, (str, bytes)) else json.dumps(line) for line in lines]
    path = place / name
    path.write_bytes(b"\n".join(x.encode() if isinstance(x, str) else x for x in raw))
    return path


@pytest.mark.parametrize(
    ("name", "block", "requests", "tokens", "distinct", "ids", "sessions"),
    [
        (CONVERSATION, 512, 12_031, 144_793_823, 182_790, 288_500, 0),
        (AGENTIC, 16, 1_566, 3_971_265, None, None, 69),
    ],
)
def test_a_real_trace_is_read_with_the_block_found(
    name: str,
    block: int,
    requests: int,
    tokens: int,
    distinct: int | None,
    ids: int | None,
    sessions: int,
) -> None:
    trace = read(real(name))
    assert trace.trace_block == block
    assert len(trace) == requests
    assert trace.input_length.sum() == tokens
    if distinct is not None:
        assert len(np.unique(trace.ids)) == distinct
        assert len(trace.ids) == ids
    assert (np.diff(trace.offsets) <= -(-trace.input_length // block)).all()
    assert len(trace.sessions) == sessions


def test_three_megabytes_are_read_in_well_under_a_second() -> None:
    path = real(CONVERSATION)
    start = time.thread_time()
    read(path)
    # 0.06 when nothing else runs.
    assert time.thread_time() - start < 0.6


def test_ids_beyond_the_prompt_are_ignored_and_missing_ones_are_allowed(tmp_path: Path) -> None:
    beyond = FIRST | {"hash_ids": [0, 1, 2, 9, 9]}
    fewer = SECOND | {"hash_ids": [0]}
    trace = read(put(tmp_path, beyond, fewer, SECOND | {"hash_ids": []}), trace_block=8)
    assert [trace.ids_of(i).tolist() for i in range(3)] == [[0, 1, 2], [0], []]


def test_the_first_line_may_say_how_large_blocks_are_and_that_hits_are_unknown(
    tmp_path: Path,
) -> None:
    first = {"timestamp": 0, "input_length": 11, "output_length": 3, "hash_ids": [0, 1, 2, 9]}
    path = put(tmp_path, first | {"block_size": 3, "hits_unknown": "lengths only"}, SECOND)
    trace = read(path)
    assert trace.trace_block == 3
    assert trace.hits_unknown == "lengths only"
    assert read(path, trace_block=4).trace_block == 4
    trace.write(tmp_path / "again.jsonl")
    assert read(tmp_path / "again.jsonl") == trace
    plain = read(put(tmp_path, first | {"block_size": 3}, SECOND))
    assert plain.hits_unknown == ""
    assert plain != trace
    # What stands in another line says nothing.
    assert read(put(tmp_path, FIRST, SECOND | {"block_size": 3})).trace_block == 8


def test_blank_lines_at_the_end_and_unknown_keys_are_fine(tmp_path: Path) -> None:
    plain = read(put(tmp_path, FIRST, SECOND))
    more = SECOND | {"agent": ["x", {"y": 1}], "chat_id": 3}
    assert read(put(tmp_path, FIRST, more, "", " ", "")) == plain
    assert plain.trace_block == 8
    assert plain.arrival.tolist() == [0, 7]
    assert plain.output_length.tolist() == [3, 0]


def test_no_more_requests_are_read_than_asked_for(tmp_path: Path) -> None:
    path = put(tmp_path, FIRST, SECOND, "and no more")
    assert len(read(path, requests=2)) == 2
    with pytest.raises(TraceError, match="line 3"):
        read(path, requests=3)


def test_sessions_are_numbered_as_they_come(tmp_path: Path) -> None:
    lines = [FIRST | {"session": name} for name in ("b", "a", None, "b")]
    trace = read(put(tmp_path, *lines))
    assert trace.sessions == ("b", "a")
    assert trace.session.tolist() == [0, 1, -1, 0]


def test_a_trace_cannot_be_changed() -> None:
    trace = made([(20, [0, 1, 2])], 8)
    with pytest.raises(ValueError, match="read-only"):
        trace.arrival[0] = 1


LINES = st.lists(
    st.tuples(st.integers(0, 50), st.integers(1, 60), st.integers(0, 9), st.integers(0, 3)),
    min_size=1,
    max_size=12,
)


@given(LINES, st.sampled_from(["t.jsonl", "t.jsonl.gz"]))
@profile(60)
def test_what_is_written_is_read_back_equal(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[int, int, int, int]], name: str
) -> None:
    place = tmp_path_factory.mktemp("t")
    rows, now = [], 0
    for pause, tokens, answer, session in lines:
        now += pause
        ids = [1000 * session + at for at in range(-(-tokens // 8))]
        row = {"timestamp": now, "input_length": tokens, "output_length": answer, "hash_ids": ids}
        rows.append(row | ({"session": f"s{session}"} if session else {}))
    trace = read(put(place, *rows), trace_block=8)
    path = place / name
    trace.write(path)
    assert read(path, trace_block=8) == trace
    assert [file.name for file in place.iterdir() if file.suffix == ".part"] == []
    first = path.read_bytes()
    trace.write(path)
    assert path.read_bytes() == first


def test_traces_that_differ_in_anything_but_their_name_are_not_equal() -> None:
    trace = made([(20, [0, 1, 2])], 8)
    assert trace == made([(20, [0, 1, 2])], 8)
    for other in (
        made([(20, [0, 1, 2])], 16),
        made([(21, [0, 1, 2])], 8),
        made([(20, [0, 1, 3])], 8),
        made([(20, [0, 1, 2])], 8, answer=2),
        made([(20, [0, 1, 2]), (20, [0, 1, 2])], 8),
    ):
        assert trace != other


def without(field: str) -> dict[str, Any]:
    return {name: value for name, value in SECOND.items() if name != field}


# What the second line is, and what is said of it.
BAD: list[tuple[str, dict[str, Any] | str | bytes, str]] = [
    ("cut off", '{"timestamp": 7, "inp', "line 2: not JSON: Input data was truncated"),
    ("no JSON", "timestamp=7", "line 2: not JSON"),
    ("two objects", json.dumps(SECOND) * 2, "line 2: not JSON"),
    ("a list", "[7, 30, 1, [0]]", "line 2: it is not a JSON object"),
    ("not UTF-8", b'{"agent": "\xff"}', "line 2: byte 11 is not UTF-8"),
    ("blank, with more behind it", "\n" + json.dumps(SECOND), "line 2: it is blank"),
    ("no timestamp", without("timestamp"), "line 2, field timestamp: it is missing; give milli"),
    ("no input", without("input_length"), "line 2, field input_length: it is missing"),
    ("no output", without("output_length"), "line 2, field output_length: it is missing"),
    ("no ids", without("hash_ids"), "line 2, field hash_ids: it is missing"),
    ("text", SECOND | {"input_length": "30"}, 'line 2, field input_length: "30"; give tokens of'),
    ("a float", SECOND | {"timestamp": 7.5}, "line 2, field timestamp: 7.5; give milliseconds"),
    ("a bool", SECOND | {"output_length": True}, "line 2, field output_length: true; give"),
    ("null", SECOND | {"hash_ids": None}, "line 2, field hash_ids: null; give a list"),
    ("an id of text", SECOND | {"hash_ids": [0, "x"]}, 'line 2, field hash_ids[1]: "x"; give'),
    ("a number as session", SECOND | {"session": 3}, "line 2, field session: 3; give text"),
    ("an empty block", SECOND | {"block_size": 0}, "line 2, field block_size: 0; give tokens per"),
    ("no reason", SECOND | {"hits_unknown": 1}, "line 2, field hits_unknown: 1; give text"),
    ("a negative time", SECOND | {"timestamp": -1}, "line 2, field timestamp: -1; give"),
    ("an earlier time", FIRST | {"timestamp": 4}, "timestamp: 4 is below the previous line's 5"),
    ("no prompt", SECOND | {"input_length": 0}, "line 2, field input_length: 0; give"),
    ("a negative prompt", SECOND | {"input_length": -30}, "line 2, field input_length: -30; give"),
    ("a negative answer", SECOND | {"output_length": -1}, "line 2, field output_length: -1; give"),
    ("a negative id", SECOND | {"hash_ids": [0, -1]}, "line 2, field hash_ids[1]: -1; give"),
    ("a huge id", SECOND | {"hash_ids": [2**70]}, f"line 2, field hash_ids[0]: {2**70}; give"),
    ("a huge prompt", SECOND | {"input_length": 2**31}, "line 2, field input_length: 2147483648"),
    ("a late time", SECOND | {"timestamp": 2**60}, "line 2, field timestamp: 1152921504606846976"),
    ("an endless number", '{"timestamp": ' + "9" * 5000 + "}", "timestamp: a number too large"),
    ("nested too deep", '{"x": ' + "[" * 200_000, "line 2: not JSON"),
    (
        "another parent",
        SECOND | {"hash_ids": [0, 2, 3, 4]},
        "line 2, field hash_ids[1]: 2 is after 0 here, but after 1 in line 1; equal ids must",
    ),
    (
        "no parent",
        SECOND | {"hash_ids": [1]},
        "hash_ids[0]: 1 is first here, but after 0 in line 1",
    ),
    ("the root deeper", SECOND | {"hash_ids": [8, 0]}, "0 is after 8 here, but first in line 1"),
    (
        "an id twice",
        SECOND | {"hash_ids": [5, 6, 5]},
        "line 2, field hash_ids[2]: 5 is in it twice",
    ),
    ("an id after itself", SECOND | {"hash_ids": [5, 5]}, "line 2, field hash_ids[1]: 5 is in"),
]


@pytest.mark.parametrize(("line", "says"), [pytest.param(*b, id=i) for i, *b in BAD])
def test_what_is_wrong_is_named_with_file_line_and_field(
    tmp_path: Path, line: dict[str, Any] | str | bytes, says: str
) -> None:
    path = put(tmp_path, FIRST | {"timestamp": 5}, line)
    with pytest.raises(TraceError, match=re.escape(says)) as caught:
        read(path, trace_block=8)
    assert str(caught.value).startswith(f"{path}, line 2")
    assert isinstance(caught.value, by.Misuse)
    assert len(str(caught.value)) < 400


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    empty, blank = put(tmp_path, "", name="empty"), put(tmp_path, "", "", name="blank")
    broken = put(tmp_path, "no gzip", name="t.gz")
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress(json.dumps(FIRST).encode())[:-9])
    for path, says in (
        (tmp_path / "none.jsonl", "there is no such file"),
        (tmp_path, "this is a directory"),
        (empty, "there is no request in it"),
        (blank, "there is no request in it"),
        (broken, "it cannot be read: Not a gzipped file"),
        (cut, "it cannot be read: Compressed file ended"),
    ):
        with pytest.raises(TraceError, match=re.escape(f"{path}: {says}")):
            read(path)


def test_a_trace_of_full_blocks_alone_tells_its_block_too(tmp_path: Path) -> None:
    rows = [FIRST | {"input_length": n, "hash_ids": [*range(n // 512)]} for n in (1100, 1600, 5119)]
    assert read(put(tmp_path, *rows)).trace_block == 512


def test_a_block_that_cannot_be_found_is_asked_for(tmp_path: Path) -> None:
    one = put(tmp_path, FIRST | {"hash_ids": [0]}, FIRST | {"hash_ids": []}, name="one")
    none = put(tmp_path, FIRST, SECOND | {"input_length": 300}, name="none")
    for path in (one, none):
        with pytest.raises(TraceError, match="give --trace-block"):
            read(path)
        assert read(path, trace_block=100).trace_block == 100


@pytest.mark.parametrize("keyword", ["trace_block", "requests"])
def test_a_number_out_of_range_is_refused(tmp_path: Path, keyword: str) -> None:
    for value in (0, -1, 2**31):
        wrong: dict[str, Any] = {keyword: value}
        with pytest.raises(by.Misuse, match=re.escape(f"{keyword} = {value}")):
            read(put(tmp_path, FIRST), **wrong)


def test_a_place_that_cannot_be_written_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    trace = made([(20, [0, 1, 2])], 8)
    (tmp_path / "taken").mkdir()
    for path in (tmp_path / "none" / "t.jsonl", tmp_path / "taken"):
        with pytest.raises(TraceError, match=re.escape(f"{path} cannot be written: ")):
            trace.write(path)
    assert [file.name for file in tmp_path.iterdir()] == ["taken"]
