"""`blockyard sweep` on the command line: what it writes, and what it refuses and how."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from blockyard.tools.cli import cli
from blockyard.tools.sweep import options
from blockyard.tools.sweep.result import SweepResult
from blockyard.tools.sweep.terminal import Display
from blockyard.tools.traces.workload import generate
from blockyard.tools.units import size
from browser import Reader, look, whole

SMALL = ("--requests", "60", "--points", "4", "--jobs", "1", "--model-requests", "0")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def typed(*words: str) -> Result:
    return CliRunner().invoke(cli, ["sweep", *words])


def found(*words: str) -> dict[str, Any]:
    done = typed(*words, "--quiet", "--json", "-")
    assert done.exit_code == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def refused(*words: str) -> str:
    """What is said of words that must be refused: one line, status 2, and no file."""
    done = typed(*words, "--report", "page.html")
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    assert not Path("page.html").exists()
    line, *others = done.stderr.splitlines()
    assert not others
    assert line.startswith("blockyard: ")
    return line


def test_it_ends_in_one_sentence() -> None:
    done = typed(*SMALL, "--quiet")
    assert done.exit_code == 0
    said = " ".join(done.stdout.strip().split("\n\n")[-1].split())
    assert said.startswith("Buy no memory below the device: ")
    assert said.endswith(".")
    assert "← knee" in done.stdout


def test_the_json_has_the_keys_and_repeats_itself() -> None:
    result = found(*SMALL, "--seed", "3", "--split", "20%+80%")
    again = msgspec.json.decode(msgspec.json.encode(result), type=SweepResult)
    assert [one.split for one in again.splits] == ["20%+80%"] * 2
    assert again.command.startswith("blockyard sweep --requests 60")
    assert found(*SMALL, "--seed", "3", "--split", "20%+80%") == result
    assert found(*SMALL, "--seed", "4", "--split", "20%+80%")["points"] != result["points"]


def test_sizes_are_as_they_were_given() -> None:
    result = found(*SMALL, "--sizes", "300MiB,100,1GiB", "--policy", "lru", "--split", "none")
    blocks = {point["blocks"] for point in result["points"]}
    knee = result["advice"]["blocks"]
    assert blocks == {100, 150, 512, knee, 2 * knee}
    assert {order for point in result["points"] for order in point["hit_ratio"]} == {"recency"}
    ends = found(*SMALL, "--from", "64MiB", "--to", "1GiB", "--policy", "lru", "--split", "none")
    assert ends["points"][0]["blocks"] == 32
    assert 512 in {point["blocks"] for point in ends["points"]}


def test_a_trace_is_read_from_its_file() -> None:
    trace = generate(5, requests=60)
    trace.write("made.jsonl.gz")
    result = found("made.jsonl.gz", "--points", "4", "--jobs", "1", "--model-requests", "0")
    assert result["trace"] == "made.jsonl.gz"
    assert result["input_tokens"] == int(trace.input_length.sum())
    same = found("--seed", "5", *SMALL)
    assert result["points"] == same["points"]


def test_a_trace_that_does_not_tell_hits_is_refused() -> None:
    replace(generate(5, requests=20), hits_unknown="lengths only").write("lengths.jsonl")
    assert "lengths.jsonl: it does not tell what a cache would find: lengths only" in refused(
        "lengths.jsonl"
    )


def test_a_trace_too_large_for_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = generate(5, requests=20)
    trace.write("large.jsonl")
    monkeypatch.setattr(options, "free_memory", lambda: 1000)
    said = refused("large.jsonl")
    assert f"its {len(trace.ids):,} uses of blocks need " in said
    assert said.endswith("give --requests for the first of its requests")


def test_of_a_trace_that_was_cut_off_it_says_so() -> None:
    replace(generate(5, requests=20), incomplete=True).write("cut.jsonl")
    result = found("cut.jsonl", "--points", "2", "--jobs", "1", "--model-requests", "0")
    assert result["answer"][-1].startswith("The trace is incomplete: ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--sizes", "1GiB,2 apples"), "--sizes = '2 apples': give blocks, or memory"),
        (("--sizes", ","), "--sizes ',': no size"),
        (("--sizes", "1GiB", "--to", "2GiB"), "leave --from and --to out"),
        (("--from", "2GiB", "--to", "1GiB"), "--from 2GiB: not below --to 1GiB"),
        (
            (
                "--from",
                "9TiB",
            ),
            "more than all",
        ),
        (
            (
                "--to",
                "99999PiB",
            ),
            "give blocks, or memory",
        ),
        (
            (
                "--to",
                "9999999999",
            ),
            "more than 1,000,000,000 blocks",
        ),
        (("--points", "1"), "--points"),
        (("--split", "1+1+1+1"), "4 parts"),
        (tuple(f"--split={i}+1" for i in range(1, 7)), "6 of them; give at most 5"),
        (("--sample", "3"), "must be a power of two"),
        (("--policy", "lerned"), "did you mean 'learned'"),
        (("--workload", "mixt"), "did you mean 'mixed'"),
        (("--preset", "llama-3-8b/h10"), "did you mean 'h100'"),
        (("--preset", "llama-3.1-405b/h100"), "give more ranks"),
        (("--ranks", "3"), "--ranks 3: must divide"),
        (("--set", "params"), "must be FIGURE=VALUE"),
        (("--model-size", "0"), "less than one block"),
        (("--rate", "0"), "rate = 0"),
        (("--trace-block", "16"), "is for a TRACE"),
        (("nowhere.jsonl",), "there is no such file"),
        (("nowhere.jsonl", "--rate", "2"), "leave it out with a TRACE"),
        (("--json", "nowhere/x.json"), "there is no directory"),
    ],
)
def test_what_makes_no_sense_is_refused(words: tuple[str, ...], said: str) -> None:
    assert said in refused("--requests", "20", *words)


def test_ctrl_c_before_anything_is_known_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def press(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Display, "part", press)
    done = typed(*SMALL, "--report", "page.html")
    assert (done.exit_code, done.stderr) == (130, "blockyard: interrupted\n")
    assert not Path("page.html").exists()


def test_ctrl_c_later_leaves_what_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def press(_: Display, name: str, done: float) -> None:
        if "bound" in name and done > 0.2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Display, "part", press)
    done = typed(*SMALL, "--json", "result.json", "--report", "page.html")
    assert done.exit_code == 130
    assert "Interrupted" in done.stdout
    result = msgspec.json.decode(Path("result.json").read_bytes(), type=SweepResult)
    assert not result.complete
    assert 0 < sum("optimum" in point.hit_ratio for point in result.points) < len(result.points)
    assert b"interrupted" in Path("page.html").read_bytes()


def test_the_page_shows_the_figures_of_the_json_to_every_reader(place: Path) -> None:
    words = (*SMALL[:-2], "--split", "20%+80%", "--model-requests", "20")
    assert typed(*words, "--quiet", "--json", "result.json", "--report", "page.html").exit_code == 0
    page = Path("page.html").read_bytes()
    assert len(page) < 150_000
    assert b"http://" not in page.replace(b"http://www.w3.org/2000/svg", b"")
    readers = [
        Reader(page=page),
        Reader(page=page, scheme="dark"),
        Reader(page=page, width=480),
    ]
    result = json.loads(Path("result.json").read_text())
    for seen in look(readers, place):
        assert seen.title.startswith("Blockyard sweep: ")
        assert seen.overflow == []
        assert seen.overprints == []
        assert min(ratio for _, _, ratio in seen.contrasts) >= 3
        assert whole(seen) == result
        for sentence in result["answer"]:
            assert sentence in seen.dom
        lines = {line["name"]: line for line in seen.drawn["hits"]}
        assert list(lines) == ["recency", "learned", "optimum, a bound"]
        for name, line in lines.items():
            order = name.partition(",")[0]
            assert line["y"] == [point["hit_ratio"][order] for point in result["points"]]
            assert line["x"] == [point["bytes"] for point in result["points"]]
        assert len(set(seen.looks["hits"])) == 3
        assert f"the knee, {size(result['advice']['bytes'])}" in seen.dom
        for key in ("blocks", "hit_ratio", "next_gain", "better_hit_ratio"):
            assert f'data-key="advice.{key}" data-value="{result["advice"][key]}"' in seen.dom
