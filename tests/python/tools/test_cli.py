"""The command line: what it refuses and how, what it writes, and how it ends."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner, Result

import blockyard as by
import simulated_cupy as simulated
import traces
from blockyard.shared.extras import install
from blockyard.tools.cli import _GROUPS, cli
from blockyard.tools.replay import comparison
from blockyard.tools.replay.play_trace import play
from blockyard.tools.replay.result import Run
from blockyard.tools.replay.spec import Progress, RunSpec
from blockyard.tools.traces.trace import Trace
from yard import there

GOOD = '{"timestamp": 0, "input_length": 20, "output_length": 3, "hash_ids": [1, 2]}'
MEASURED = ("wall_seconds", "bookkeeping")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def typed(*words: str) -> Result:
    return CliRunner().invoke(cli, ["replay", *words])


def found(*words: str) -> dict[str, Any]:
    done = typed(*words, "--quiet", "--json", "-")
    assert (done.exit_code, done.stderr) == (0, done.stderr), done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def forbidden(*_: object) -> Run:
    pytest.fail("something ran")


def refused(*words: str) -> str:
    """What is said of words that must be refused: one line, status 2, and nothing else happens."""
    before = files(Path())
    done = typed(*words)
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    assert files(Path()) == before
    line, *others = done.stderr.splitlines()
    assert not others
    assert line.startswith("blockyard: ")
    return line


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "play", forbidden)


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--preset llama-3-8/h100", "did you mean 'llama-3-8b'?"),
        ("--preset llama-3-8b/h10", "did you mean 'h100'?"),
        ("--preset llama", "must be a model and a GPU"),
        ("--preset llama-3-70b/h100", "141 GB of weights"),
        ("--set hbm_sharing=0.5", "did you mean 'hbm_share'?"),
        ("--set hbm_share", "FIGURE=VALUE"),
        ("--set hbm_share=much", "hbm_share = 'much'"),
        ("--set hbm_share=nan", "hbm_share = 'nan'"),
        ("--set flops=-1", "flops = -1"),
        ("--set flops=1e-12", "5.14e+23 s"),
        ("--set kv_bytes=1e-9", "take no memory"),
        ("--set ranks=2", "give --ranks 2"),
        ("--ranks 3", "--ranks 3: must divide the 32 heads of llama-3-8b"),
        ("--ranks 0", "0 is not in the range"),
        ("--device 0", "--device = '0': smaller than one block"),
        ("--device -5", "--device = '-5': give blocks, or memory like '64 GiB'"),
        ("--device many", "--device = 'many': give blocks, or memory like '64 GiB'"),
        ("--device 1.5", "--device = '1.5': give blocks, or memory"),
        ("--device 4Gb", "--device = '4Gb': give blocks, or memory"),
        ("--host -1", "--host = '-1'"),
        ("--device 0.001GiB", "smaller than one block of 2,097,152 bytes"),
        ("--device 0GiB", "smaller than one block of 2,097,152 bytes"),
        ("--device nanGiB", "--device = 'nanGiB'"),
        ("--device 1e30GiB", "more than 1,000,000,000 blocks"),
        ("--device 4GiB --device lots", "--device = 'lots'"),
        ("--host -3GiB", "--host = '-3GiB'"),
        ("--host 0.001GiB", "smaller than one block"),
        ("--disk -3GiB", "--disk = '-3GiB'"),
        ("--disk 0.001GiB", "smaller than one block"),
        ("--device-gib 4", "No such option"),
        ("--preset a/b --preset c/d", "--preset is given 2 times: give it once"),
        ("--seed 1 --requests 3 --seed 1 --seed=2", "--seed is given 3 times: give it once"),
        ("--verify memory --verify cuda", "--verify is given 2 times"),
        ("--disk-gbps 0", "--disk-gbps 0"),
        ("--remote -1", "--remote = '-1'"),
        ("--store-latency -1", "--store-latency -1: must be a number of seconds >= 0"),
        ("--store-latency nan", "--store-latency nan"),
        ("--store-bandwidth inf", "--store-bandwidth inf: must be a number of GB/s > 0"),
        ("--store-loss 1.5", "--store-loss 1.5: must be a share from 0 to 1"),
        ("--store-loss nan", "--store-loss nan"),
        ("--store-loss 0.5", "--store-loss 0.5 needs a store: give --remote"),
        ("--remote 9 --verify memory", "the modelled store has no bytes"),
        ("--model sequential --remote 9", "--remote is for --model virtual"),
        ("--device 999999999 --verify memory", "or leave out --verify"),
        ("--requests 0", "'--requests': 0 is not"),
        ("--seed -1", "'--seed': -1 is not"),
        ("--rate 0", "rate = 0"),
        ("--rate inf", "rate = inf"),
        ("--trace-block 16", "--trace-block is for a TRACE"),
        (
            "--policy lrx",
            "'learned', 'heap', 'optimum'; did you mean 'lru', here 'recency'?",
        ),
        ("--policy bonus", "'bonus' is not one of 'recency', 'learned', 'heap'"),
        ("--policy newest", "'newest' is not one of 'recency', 'learned', 'heap'"),
        ("--host-copies never", "'never' is not one of 'first', 'last'"),
        ("--host-copies first --host 0", "--host-copies needs a host"),
        ("--hints lies", "--hints needs --model sequential"),
        ("--owner engine", "--owner needs --model sequential"),
        ("--model sequential --owner engine --host 0", "--owner engine needs a host"),
        ("--model sequential --hints soon", "hints 'soon': give end=RECALL[:FALSE],next="),
        ("--model sequential --hints end=2", "end = 2.0: must be a share from 0 to 1"),
        ("--policy optimum", "--model sequential"),
        ("--model sequential --policy optimum --host 9", "is for one tier"),
        ("--model sequential --policy optimum --disk 1GiB", "--policy optimum is for one tier"),
        ("--model sequential --verify memory", "--verify is for --model virtual"),
        ("--verify gpu", "'gpu' is not one of 'memory', 'cuda'"),
        ("--verify", "'--verify' requires an argument"),
        ("--model sequential --ranks 2", "--ranks is for --model virtual"),
        ("--model sequential --prefetch 2", "--prefetch is for --model virtual"),
        ("--model sequential --role decode", "--role is for --model virtual"),
        ("--model sequential --headroom full-length", "--headroom is for --model virtual"),
        ("--model sequential --victims least-computed", "--victims is for --model virtual"),
        ("--role both", "'both' is not one of 'mixed', 'prefill', 'decode'"),
        ("--headroom some", "'some' is not one of 'none', 'full-length', 'watermark', 'adaptive'"),
        ("--victims first", "'first' is not one of 'newest', 'least-computed'"),
        ("--model sequential --block-size 32", "leave it out"),
        ("--speed 0", "--speed 0: must be a number > 0, such as 2 for twice as fast"),
        ("--speed -2", "--speed -2: must be a number > 0"),
        ("--speed nan", "--speed nan: must be a number > 0"),
        ("--speed inf", "--speed inf: must be a number > 0"),
        ("--speed 1e-12", "--speed 1e-12: the last request would arrive too late; give more"),
        ("--replicas 0", "'--replicas': 0 is not in the range"),
        ("--requests 9 --replicas 10", "--replicas 10: the trace has 9 requests; give at most as"),
        ("--router random", "--router random needs engines to choose from: give --replicas"),
        ("--replicas 2 --router prefx", "did you mean 'prefix'?"),
        ("--jobs 0", "'--jobs': 0 is not in the range"),
        ("--frobnicate", "No such option"),
        ("--polcy lru", "Did you mean one of: '--policy',"),
        ("one.jsonl two.jsonl", "unexpected extra argument"),
        ("missing.jsonl", "missing.jsonl: there is no such file"),
        (".", "this is a directory"),
        ("--json nowhere/x.json", "--json nowhere/x.json: there is no directory nowhere"),
        ("--report .", "--report .: this is a directory"),
        ("--report /dev/null", "not a regular file"),
        ("--report " + "x" * 300, "cannot be written"),
        ("--save-trace nowhere/x", "--save-trace nowhere/x: there is no directory"),
        ("--json x --report x", "--json names the same file"),
    ],
)
def test_bad_input_is_one_line_and_status_2_before_anything_runs(words: str, said: str) -> None:
    assert said in refused(*words.split())


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", "there is no request in it"),
        ("[1]", ", line 1: "),
        ("{", ", line 1: not JSON"),
        (GOOD + "\n\n" + GOOD, ", line 2: it is blank"),
        (GOOD.replace("20", "-20"), ", line 1, field input_length: -20"),
        (GOOD.replace("20", '"20"'), ', line 1, field input_length: "20"'),
        (GOOD.replace('"output_length": 3, ', ""), ", line 1, field output_length: it is missing"),
        (GOOD + "\n" + GOOD.replace("0,", "-1,", 1), ", line 2, field timestamp: -1"),
        (GOOD.replace("0,", "5,", 1) + "\n" + GOOD, ", line 2, field timestamp: 0 is below"),
        (GOOD.replace("2]", "2.5]"), ", line 1, field hash_ids[1]: 2.5"),
        (GOOD + "\n" + GOOD.replace("[1, 2]", "[2, 1]"), ", line 2, field hash_ids[0]: 2 "),
        (GOOD.replace("[1, 2]", "[1, 1]"), ", line 1, field hash_ids[1]: 1 is in it twice"),
        ("\udcff", ", line 1: byte 0 is not UTF-8"),
    ],
)
def test_a_malformed_trace_is_refused_by_file_line_and_field(text: str, where: str) -> None:
    Path("bad.jsonl").write_bytes(text.encode("utf-8", "surrogateescape"))
    said = refused("bad.jsonl", "--trace-block", "16", "--report", "r.html", "--json", "j.json")
    assert f"bad.jsonl{where}" in said or where in said


@pytest.mark.usefixtures("nothing_runs")
def test_nothing_is_written_over_the_trace_that_is_read() -> None:
    Path("t.jsonl").write_text(GOOD)
    Path("link.json").symlink_to("t.jsonl")
    for option in ("--json", "--report", "--save-trace"):
        assert "TRACE names the same file" in refused("t.jsonl", option, "./t.jsonl")
    assert "TRACE names the same file" in refused("t.jsonl", "--json", "link.json")


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no folder that not even root writes")
def test_a_folder_that_may_not_be_written_is_noticed() -> None:
    assert "cannot be written" in refused("--json", "/proc/x.json")


def test_a_control_character_in_a_name_does_not_reach_the_terminal() -> None:
    assert "\x1b" not in refused("a\x1b[31m\nb.jsonl")


def test_both_ways_to_call_it_say_the_version_and_the_options() -> None:
    script = shutil.which("blockyard", path=str(Path(sys.executable).parent))
    assert script is not None, "the console script is not installed"
    for command in ([script], [sys.executable, "-m", "blockyard"]):
        said = subprocess.check_output([*command, "--version"], text=True)  # noqa: S603
        assert said == f"blockyard {by.__version__}\n"
        said = subprocess.check_output([*command, "replay", "--help"], text=True)  # noqa: S603
        assert "--disk-gbps" in said


def bare(words: str, *missing: str) -> subprocess.CompletedProcess[str]:
    """The command where some modules cannot be imported."""
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({missing!r}));"
        "from blockyard.__main__ import main; main()"
    )
    command = [sys.executable, "-c", code, *words.split()]
    return subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603


EXTRA = ("msgspec", "rich")


@pytest.mark.parametrize("words", ["", "--help"])
def test_without_the_extra_the_help_lists_every_command(words: str) -> None:
    done = bare(words, *EXTRA, "cupy")
    assert (done.returncode, done.stderr) == (0, "")
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.startswith("  ")}
    assert {"disk", "proof", "replay", "sweep", "trace"} <= lines.keys()
    assert "Needs the extra `replay`: run it to see what to install." in lines["replay"]
    assert "Example: blockyard sweep" in done.stdout


def test_every_command_stands_in_a_group_and_an_unknown_one_has_a_nearest() -> None:
    known = set(cli.list_commands(click.Context(cli)))
    assert known == {name for names in _GROUPS.values() for name in names}
    done = CliRunner().invoke(cli, ["replya"])
    assert done.exit_code == 2
    assert "there is no command 'replya': did you mean 'replay'?" in done.output


def test_without_the_extra_the_proof_runs() -> None:
    done = bare("proof --conversations 2", *EXTRA, "cupy")
    assert (done.returncode, done.stderr) == (0, "")
    assert "tokens identical" in done.stdout


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("msgspec", "replay"),
        ("rich", "replay --help"),
        ("rich", "trace from azure t.csv"),
        ("msgspec", "sweep t.jsonl"),
    ],
)
def test_without_the_extra_a_command_says_what_to_install(name: str, words: str) -> None:
    done = bare(words, name)
    assert (done.returncode, done.stdout) == (2, "")
    command = words.split(maxsplit=1)[0]
    assert done.stderr == f"blockyard: {command} needs {name}: {install('replay')}\n"


def test_the_same_seed_gives_the_same_json_but_for_what_is_measured() -> None:
    first, again, other = (found("--requests", "15", "--seed", seed) for seed in ("1", "1", "2"))
    for result in (first, again, other):
        for run in (result, *result["runs"]):
            for name in MEASURED:
                assert run.pop(name)
    assert first == again
    assert first["hit_ratio_by_tier"] != other["hit_ratio_by_tier"]


def test_the_first_run_stands_at_the_top_and_policies_multiply() -> None:
    words = "--requests 8 --policy heap --policy recency --policy heap"
    result = found(*words.split(), "--write-policy", "through", "--write-policy", "on-evict")
    ran = [(run["policy"], run["write_policy"]) for run in result["runs"]]
    assert ran == [
        ("heap", "through"),
        ("heap", "on-evict"),
        ("recency", "through"),
        ("recency", "on-evict"),
    ]
    first = result["runs"][0]
    del first["series"]
    assert {name: result[name] for name in first} == first


def test_headrooms_are_compared_in_one_command() -> None:
    words = "--requests 60 --device 500 --host 0 --victims least-computed"
    words += " --headroom none --headroom full-length --json r.json"
    done = typed(*words.split())
    runs = json.loads(Path("r.json").read_text())["runs"]
    assert [(run["headroom"], run["victims"], run["role"]) for run in runs] == [
        ("none", "least-computed", "mixed"),
        ("full-length", "least-computed", "mixed"),
    ]
    assert runs[0]["preempted"]["count"] > runs[1]["preempted"]["count"] == 0
    assert runs[0]["preempted"]["lost"] > runs[1]["preempted"]["lost"] == 0
    assert runs[1]["reservations"]["promised_peak"] > runs[0]["reservations"]["promised_peak"] == 0
    assert runs[0]["output_tokens"] == runs[1]["output_tokens"]
    assert "tokens computed again" in done.stdout
    assert re.search(r"none +full-length", done.stdout)


@pytest.mark.parametrize(
    ("role", "headroom"), [("mixed", "adaptive"), ("prefill", "none"), ("decode", "adaptive")]
)
def test_a_role_has_its_default_headroom_and_its_own_figures(role: str, headroom: str) -> None:
    result = found("--requests", "12", "--role", role, "--verify", "memory")
    assert (result["role"], result["headroom"], result["requests"]) == (role, headroom, 12)
    assert (result["output_tokens"] == 12) == (role == "prefill")
    assert (result["reservations"]["tickets"] is not None) == (role == "decode")
    assert (result["verified"]["wrong"], result["verified"]["wrong_answers"]) == (0, 0)
    again = found("--requests", "12", "--role", role, "--verify", "memory")
    for run in (result, again, *result["runs"], *again["runs"]):
        for name in MEASURED:
            assert run.pop(name)
    assert result == again


def test_without_time_there_is_no_scheduler() -> None:
    result = found("--requests", "30", "--model", "sequential")
    for name in ("role", "headroom", "victims", "preempted", "reservations"):
        assert result[name] is None


def test_sizes_in_memory_are_blocks_of_the_preset() -> None:
    result = found("--requests", "3", "--device", "3.001GiB", "--host", "0")
    assert result["block_bytes"] == 2**21
    assert (result["device_blocks"], result["host_blocks"]) == (1536, 0)


def test_figures_and_ranks_reach_the_result() -> None:
    words = "--requests 3 --preset llama-3-70b/h100x4 --set overhead=0.002 --set hbm_share=.8"
    result = found(*words.split())
    assert result["figures"]["ranks"] == 4
    assert (result["figures"]["overhead"], result["figures"]["hbm_share"]) == (0.002, 0.8)


def test_a_request_larger_than_the_device_is_refused_and_counted() -> None:
    result = found("--requests", "20", "--device", "200", "--host", "10")
    assert result["refused"] > 0
    assert result["refused"] + result["requests"] == 20


@pytest.mark.parametrize("words", ["", "--ranks 2"])
def test_real_bytes_are_moved_and_checked(words: str) -> None:
    result = found("--requests", "60", "--verify", "memory", *words.split())
    assert result["verified"]["wrong"] == 0
    assert result["verified"]["checked"] > 1000
    assert result["moved"]["blocks_up"] > 0


def test_a_saved_workload_replays_to_the_same_figures() -> None:
    sizes = ["--device", "1500", "--host", "3000"]
    made = found("--requests", "40", "--save-trace", "w.jsonl", *sizes)
    read = found("w.jsonl", *sizes)
    assert len(Path("w.jsonl").read_text().splitlines()) == 40
    for name in ("hit_ratio_by_tier", "moved", "ttft_ms", "engine_seconds", "trace_block"):
        assert read[name] == made[name], name


@pytest.mark.parametrize("model", ["virtual", "sequential"])
@pytest.mark.parametrize("name", [traces.CONVERSATION, traces.AGENTIC])
def test_a_slice_of_a_real_trace_runs_from_end_to_end(name: str, model: str) -> None:
    path = str(traces.real(name))
    words = [path, "--requests", "60", "--model", model, "--json", "r.json", "--report", "r.html"]
    done = typed(*words)
    assert done.exit_code == 0, done.stderr
    assert "\n60 requests, llama-3-8b/h100" in done.stdout
    # On a slow machine there are others in between.
    first, *_, last = done.stderr.splitlines()
    assert first.startswith(f"blockyard: replaying 60 requests of {name}")
    assert last.startswith("blockyard: done in ")
    result = json.loads(Path("r.json").read_text())
    assert (result["requests"], result["trace_requests"], result["audit"]) == (60, 60, "ok")
    assert (result["trace"], result["complete"], result["model"]) == (name, True, model)
    assert result["trace_block"] == (512 if name == traces.CONVERSATION else 16)
    assert 0 < result["hit_ratio"] < 1
    assert sum(result["hit_ratio_by_tier"].values()) == pytest.approx(result["hit_ratio"])
    lines = [json.loads(line) for line in Path(path).read_text().splitlines()[:60]]
    assert result["input_tokens"] == sum(line["input_length"] for line in lines)
    if model == "virtual":
        assert result["output_tokens"] == sum(line["output_length"] for line in lines)
        series = result["runs"][0]["series"]
        assert (
            sum(series["device_hit"] + series["host_hit"] + series["missed"])
            == (result["input_tokens"])
        )
    assert sorted(path.name for path in Path().iterdir()) == ["r.html", "r.json"]


def test_what_was_only_simulated_is_not_said_to_be_audited() -> None:
    words = "--requests 30 --model sequential --policy optimum --policy recency"
    result = found(*words.split())
    assert [run["audit"] for run in result["runs"]] == ["none", "ok"]


def test_hints_copies_and_owners_are_compared_each_combination_once() -> None:
    words = "--requests 30 --model sequential --policy learned --policy recency --hints none "
    result = found(*words.split(), "--hints", "end=0.8,next=0.5", "--owner", "cache")
    ran = [(run["policy"], run["hints"], run["owner"]) for run in result["runs"]]
    said = "end=0.8:0.02,next=0.5:2"
    assert ran == [
        (policy, hints, "cache") for policy in ("learned", "recency") for hints in (None, said)
    ]
    # The optimum knows more than any hint.
    words = "--requests 30 --model sequential --policy optimum --hints lies --hints none"
    assert [run["hints"] for run in found(*words.split())["runs"]] == [None]
    words = "--requests 30 --host-copies first --host-copies last --model sequential --owner engine"
    result = found(*words.split())
    copies = [(run["host_copies"], run["owner"]) for run in result["runs"]]
    assert copies == [("first", "engine"), ("last", "engine")]
    shown = typed(*words.split()).stdout
    assert shown.count("copies first") == shown.count("copies last") == 1
    assert "engine's" in shown


def test_a_run_in_virtual_time_takes_the_orders_and_the_host_copies() -> None:
    words = "--requests 10 --policy learned --policy heap --host-copies last"
    result = found(*words.split())
    ran = [(run["policy"], run["host_copies"], run["audit"]) for run in result["runs"]]
    assert ran == [(policy, "last", "ok") for policy in ("learned", "heap")]


@pytest.mark.parametrize("name", ["loop", "flood", "shift"])
def test_an_adversary_is_a_workload(name: str) -> None:
    words = ("--workload", name, "--requests", "60", "--model", "sequential", "--rate", "2")
    result = found(*words, "--policy", "learned", "--save-trace", "made.jsonl")
    assert result["trace"] == f"a {name}, seed 0"
    last = json.loads(Path("made.jsonl").read_text().splitlines()[-1])
    assert last["timestamp"] == 29_500


def spoiled(change: Callable[[Run], Run]) -> Callable[..., Run]:
    return lambda *arguments: change(play(*arguments))


@pytest.mark.parametrize("what", ["audit", "bytes", "answers"])
@pytest.mark.parametrize("complete", [True, False])
def test_a_breach_or_a_wrong_byte_is_status_3_whether_or_not_it_was_interrupted(
    what: str, monkeypatch: pytest.MonkeyPatch, *, complete: bool
) -> None:
    def change(run: Run) -> Run:
        run = msgspec.structs.replace(run, complete=complete)
        if what == "audit":
            return msgspec.structs.replace(run, audit="INV-1: two and two make five")
        wrong = {"bytes": "wrong", "answers": "wrong_answers"}[what]
        verified = msgspec.structs.replace(there(run.verified), **{wrong: 7})
        return msgspec.structs.replace(run, verified=verified)

    monkeypatch.setattr(comparison, "play", spoiled(change))
    done = typed("--requests", "5", "--verify", "memory", "--json", "r.json")
    assert done.exit_code == 3
    lines = {
        "audit": "blockyard: a law is broken: INV-1: two and two make five",
        "bytes": "blockyard: 7 blocks had wrong bytes",
        "answers": "blockyard: 7 answers were wrong",
    }
    assert done.stderr.splitlines()[-1] == lines[what]
    assert ("INV-1: two and two" if what == "audit" else "7 WRONG") in " ".join(done.stdout.split())
    assert Path("r.json").exists()


def test_what_cannot_be_written_at_the_end_leaves_the_old_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("r.json").write_text("old")

    def full(_self: Path, _target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    done = typed("--requests", "5", "--quiet", "--json", "r.json")
    assert done.exit_code == 2
    assert done.stderr == "blockyard: r.json cannot be written: No space left on device\n"
    assert files(Path()) == {"r.json": b"old"}


def test_a_file_that_was_there_keeps_its_mode_and_its_name_when_it_is_a_link() -> None:
    Path("real.json").write_text("old")
    Path("real.json").chmod(0o640)
    Path("link.json").symlink_to("real.json")
    assert typed("--requests", "3", "--json", "link.json").exit_code == 0
    assert Path("link.json").is_symlink()
    assert Path("real.json").stat().st_mode & 0o777 == 0o640
    assert json.loads(Path("real.json").read_text())["requests"] == 3


def test_quiet_says_nothing_but_the_table_and_json_to_stdout_moves_the_table() -> None:
    quiet = typed("--requests", "5", "--quiet")
    assert quiet.stderr == ""
    assert "on the device" in quiet.stdout
    both = typed("--requests", "5", "--json", "-")
    assert json.loads(both.stdout)["requests"] == 5
    assert "on the device" in both.stderr


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_its_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    words = "--policy recency --policy heap --write-policy on-evict --write-policy through"
    done = typed("--requests", "5", "--write-policy", "second-touch", *words.split())
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= width
    # Three runs fit into 80 columns, five into 120.
    assert done.stdout.count("to first token, median") == 2
    assert "…" not in done.stdout
    # Nor does one pass the edge, where it would be cut off.
    for row in (line.split() for line in lines if "between tokens, median" in line):
        assert row[-1] == "ms"


@pytest.mark.parametrize("width", [44, 40, 24, 10])
def test_no_number_is_cropped_in_a_narrow_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    result = found("--requests", "5")
    shown = typed("--requests", "5").stdout
    assert f"{result['hit_ratio']:.1%}" in shown
    assert f"{result['hit_ratio_by_tier']['device']:.1%}" in shown
    assert shown.count("…") == 0


def test_sizes_are_columns_of_one_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    hosts = ("0", "4GiB", "2048", "16GiB")
    sizes = ["--device", "2000", *(word for host in hosts for word in ("--host", host))]
    result = found("--requests", "20", *sizes)
    # 4 GiB and 2,048 blocks are one size.
    assert [run["host_blocks"] for run in result["runs"]] == [0, 2048, 8192]
    shown = typed("--requests", "20", *sizes, "--report", "r.html").stdout
    assert all(word in shown for word in ("no host", "host 4.00 GiB", "host 16.0 GiB"))
    assert "llama-3-8b/h100, device 3.91 GiB\n" in shown


def test_a_size_of_each_rank_is_that_of_all_together() -> None:
    words = ["--requests", "3", "--preset", "llama-3-70b/h100x4", "--host", "0"]
    each, whole = (found(*words, "--device", size) for size in ("2 GiB/rank", "8GiB"))
    assert each["device_blocks"] == whole["device_blocks"]


@contextlib.contextmanager
def started(words: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A process of its own group, once it has said that it replays; Ctrl-C ends it.

    What a shell has started in the background ignores Ctrl-C, and so would its children.
    """
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from blockyard.__main__ import main; main()"
    )
    command = [sys.executable, "-c", code, "replay", *words]
    with subprocess.Popen(  # noqa: S603
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert "replaying" in there(process.stderr).readline()
            yield process
        finally:
            process.kill()


def until_worked(process: "subprocess.Popen[str]", seconds: float) -> None:
    """Waits until a process has had so much of a processor, however long that takes."""

    def worked() -> float:
        # The name may have spaces; after it stand user and system time in ticks.
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    end = worked() + seconds
    while worked() < end:
        assert process.poll() is None, "it ended too soon"
        time.sleep(0.01)


def test_bytes_are_verified_in_the_memory_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated.installed(monkeypatch)
    simulated.waits.clear()
    result = found("--requests", "20", "--verify", "cuda")
    assert result["verified"]["checked"] > 0
    assert result["verified"]["wrong"] == 0
    assert simulated.waits["get"] > 0


def test_what_a_gpu_holds_takes_no_memory_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def ran(*_what: object) -> Run:
        raise by.Unavailable("it has begun")

    simulated.installed(monkeypatch)
    monkeypatch.setattr(comparison, "play", ran)
    monkeypatch.setattr("blockyard.tools.replay.memory_limits.os.sysconf", lambda _name: 1 << 14)
    large = ["--requests", "3", "--device", "100000", "--verify"]
    assert "takes 39" in refused(*large, "memory")
    assert "it has begun" in typed(*large, "cuda").stderr
    assert "or leave out --verify" in refused(*large, "cuda", "--host", "100000")


def until_told(process: "subprocess.Popen[str]") -> None:
    """Waits until a line says how far the runs are."""
    for line in there(process.stderr):
        if " of 10,000 requests, " in line:
            return
    pytest.fail("it ended too soon")


@pytest.mark.parametrize("words", ["--jobs 1", "--jobs 2", "--verify memory --ranks 2"])
def test_ctrl_c_ends_it_with_what_is_known(words: str) -> None:
    outputs = ["--json", "r.json", "--report", "r.html"]
    policies = ["--policy", "recency", "--policy", "heap"]
    with started([*words.split(), "--requests", "5000", *outputs, *policies]) as process:
        (until_told(process) if "--jobs 2" in words else until_worked(process, 1.0))
        # To the whole group, as a terminal sends it.
        os.killpg(process.pid, signal.SIGINT)
        said, errors = process.communicate(timeout=50)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "Interrupted: all figures are up to that moment." in said
    result = json.loads(Path("r.json").read_text())
    runs = 2 if "--jobs 2" in words else 1
    assert (result["complete"], result["audit"], len(result["runs"])) == (False, "ok", runs)
    assert 0 < result["requests"] < result["trace_requests"] == 5000
    assert Path("r.html").stat().st_size > 20_000
    assert not list(Path().glob(".r.*"))


def test_ctrl_c_before_the_first_run_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> Run:
        raise KeyboardInterrupt

    monkeypatch.setattr(comparison, "play", interrupted)
    done = typed("--requests", "5", "--quiet", "--json", "r.json")
    assert (done.exit_code, done.stderr) == (130, "blockyard: interrupted\n")
    assert not files(Path())


def test_a_comparison_that_lacks_a_run_is_not_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[Run] = []

    def once(*words: Any) -> Run:
        if played:
            raise KeyboardInterrupt
        played.append(play(*words))
        return played[0]

    monkeypatch.setattr(comparison, "play", once)
    orders = ("--policy", "recency", "--policy", "heap")
    done = typed("--requests", "5", "--quiet", "--jobs", "1", "--json", "r.json", *orders)
    assert done.exit_code == 130
    result = json.loads(Path("r.json").read_text())
    assert (result["complete"], result["missing"], len(result["runs"])) == (False, 1, 1)
    assert result["runs"][0]["complete"]


def test_progress_is_told_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Progress] = []

    def watched(spec: RunSpec, trace: Trace, progress: Callable[[Progress], None]) -> Run:
        def both(state: Progress) -> None:
            told.append(state)
            progress(state)

        return play(spec, trace, both)

    monkeypatch.setattr(comparison, "play", watched)
    # Rich draws its bar only where it believes in a terminal.
    monkeypatch.setenv("FORCE_COLOR", "1")
    done = typed("--requests", "50")
    assert told[-1].requests_done == told[-1].requests == 50
    assert "50/50" in done.stderr
    assert "replaying" not in done.stderr


def test_memory_that_runs_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object, **_kwargs: object) -> None:
        raise MemoryError

    monkeypatch.setattr("blockyard.tools.replay.cli.resolve", full)
    done = typed("--requests", "5")
    assert done.exit_code == 2
    assert "memory runs out; give fewer --requests" in done.stderr
