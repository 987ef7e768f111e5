"""vLLM's and SGLang's own logs become a trace, and what they lack is said."""

import json
import re
from pathlib import Path

import pytest

from blockyard.tools.traces.formats.format import How
from blockyard.tools.traces.formats.tokenizer import Words
from blockyard.tools.traces.trace import TraceError
from logs import DATA, ids, made, put, refused


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


@pytest.mark.parametrize("deep", ["-" * 100_000 + "1", "[" * 5_000 + "]" * 5_000, "(" * 100_000])
def test_a_value_nested_thousands_deep_is_named(tmp_path: Path, deep: str) -> None:
    log = (DATA / "sglang-0.5.23.level3.text.log").read_text("utf-8")
    line = next(line for line in log.splitlines() if "input_ids=" in line)
    bad = re.sub(r"input_ids=[^,\]]*", f"input_ids={deep}", line, count=1)
    assert refused(tmp_path, "sglang", bad).startswith(", line 1")
