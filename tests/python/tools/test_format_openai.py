"""Texts and OpenAI's requests become a trace: words stand for tokens, or a tokenizer makes them."""

import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import blockyard as by
from blockyard.tools.traces.formats.format import How
from blockyard.tools.traces.formats.tokenizer import Tokenizer, Words
from logs import CHAT, ids, made, put, refused


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
