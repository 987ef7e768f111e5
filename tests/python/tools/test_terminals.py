"""What every command shows: in a narrow terminal, and with `--quiet`."""

import re
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import blockyard as by
from blockyard.tools.cli import cli
from blockyard.tools.doctor import cli as doctor_cli
from blockyard.tools.doctor.finding import Finding

NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
TIMED = re.compile(r"bookkeeping CPU|duration of this run")
"""Rows whose figures differ from run to run."""
FOUND = {
    "machine": [
        Finding("memory", "ok", "128 GiB, of which 64.5 GiB are free"),
        Finding("swap", "warn", "12,345 pages are swapped", "copies stall", "swapoff -a"),
        Finding("shm", "unknown", "no such folder"),
    ],
    "GPU": [Finding("driver", "ok", "570.86")],
}
LAYOUT = by.KVLayout.llama(layers=2, kv_heads=2, head_dim=8, block_size=4, dtype="float32")
SWEEP = "sweep t.jsonl --points 4 --policy learned --policy heap --policy optimum"
SHOWN = {
    "replay": "replay t.jsonl --device 500 --host 1000 --host 2GiB --disk 4GiB",
    "sweep": f"{SWEEP} --split 10%+40%+50% --model-size 1GiB --jobs 1",
    "trace describe": "trace describe t.jsonl",
    "doctor": "doctor --strict",
    "disk show": "disk show kv",
    "disk verify": "disk verify kv",
}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    saved = tmp_path_factory.mktemp("trace") / "t.jsonl"
    typed(f"replay --requests 12 --save-trace {saved} --device 500 --host 0")
    return saved


@pytest.fixture(autouse=True)
def place(trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor_cli, "examined", lambda **_: FOUND)
    Path("t.jsonl").symlink_to(trace)
    named = {"model": "m", "weights": "v1"}
    by.local(LAYOUT, device=9, disk=64, disk_path="kv", namespace=named).close()


def typed(words: str, columns: int = 250) -> Result:
    return CliRunner().invoke(cli, words.split(), env={"COLUMNS": str(columns)})


def numbers(done: Result) -> Counter[str]:
    """Returns the numbers of what is shown."""
    lines = (line for line in done.stdout.splitlines() if not TIMED.search(line))
    return Counter(number for line in lines for number in NUMBER.findall(line))


@pytest.mark.parametrize("name", SHOWN)
def test_no_number_is_cropped_and_no_row_has_lost_its_name(name: str) -> None:
    whole = numbers(typed(f"{SHOWN[name]} --quiet"))
    assert whole
    for columns in (60, 44, 40):
        done = typed(f"{SHOWN[name]} --quiet", columns)
        assert not whole - numbers(done), (columns, done.stdout)
        assert "…" not in done.stdout


@pytest.mark.parametrize("name", SHOWN)
def test_quiet_leaves_the_result_and_the_exit_status(name: str) -> None:
    told, quiet = typed(SHOWN[name]), typed(f"{SHOWN[name]} --quiet")
    assert quiet.exit_code == told.exit_code == (name == "doctor")
    assert quiet.stderr == ""
    if name == "doctor":
        assert quiet.stdout.splitlines() == [
            "machine",
            "  WARN  swap: 12,345 pages are swapped",
            "        copies stall",
            "        -> swapoff -a",
            "0 will fail, 1 to look at, 4 checks",
        ]
    else:
        assert numbers(quiet) == numbers(told)


def test_a_proof_has_a_column_for_each_play_and_is_quiet() -> None:
    done = typed("proof --conversations 2 --quiet", 40)
    assert done.stderr == ""
    _, *rows = done.stdout.splitlines()
    assert len(rows) > 10
    for row in rows:
        assert len(re.findall(r" {2}(\d\S*|✓)", f"{row[:29]} {row[29:]}")) == 5, row


def test_a_quiet_wipe_tells_what_is_gone_alone() -> None:
    named = typed("disk show kv").stdout.split()[0]
    done = typed("disk wipe kv --all --yes --quiet")
    assert re.fullmatch(rf"{named}: removed, [\d.]+ KiB\n", done.stdout)
    assert done.exit_code == 0


def test_a_wipe_that_asks_says_of_what() -> None:
    done = CliRunner().invoke(cli, ["disk", "wipe", "kv", "--all", "--quiet"], input="n\n")
    assert "weights" in done.stdout
    assert done.exit_code != 0
    assert typed("disk show kv").stdout.count("rank 0") == 1
