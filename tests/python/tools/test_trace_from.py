"""`blockyard trace from`: it writes a trace, says what it is, and leaves what it can."""

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from blockyard.tools.cli import cli
from blockyard.tools.traces.describe import describe
from blockyard.tools.traces.formats.format import Answered, Asked, How
from blockyard.tools.traces.formats.registry import FORMATS
from blockyard.tools.traces.trace import read
from logs import DATA, TOKENS, made, put


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
