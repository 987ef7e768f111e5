"""The bench beside the peers, without a peer: that it judges what it sees."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benches"))

from peers import disk
from peers import work as sizes
from peers.bench import Bench, figures, self_test
from peers.process import SIDES, Failed, Process
from peers.table import DISK, DYNAMO, NOTES, OURS, ROWS, RUST, VLLM, judged, markdown, verdict
from peers.work import Work

REQUIREMENTS = Path(sizes.__file__).parent / "requirements"


@pytest.fixture(name="tokens")
def _tokens(tmp_path: Path) -> Path:
    path = tmp_path / "work.u32"
    sizes.write(path, 7)
    return path


def said(value: float, wall: float = 0.0) -> dict[str, Any]:
    return {"value": value, "wall": wall, "each": [value]}


def test_a_slowed_blockyard_misses_what_the_same_meets_that_is_not_slowed(tokens: Path) -> None:
    assert self_test(tokens, ("keys", "decode-256")) == []


def test_every_row_runs_on_blockyards_side(tokens: Path) -> None:
    small = {"keys", "match", "admit", "admit-tokens", "admit-ahead", "admit-step", "finish"}
    small |= {"evict", "schedule"}
    bench = Bench(lambda side: Process(side, tokens), rounds=1)
    try:
        for name in small:
            spec = ROWS[name]._replace(sides=(), asked={**ROWS[name].asked, "blocks": 10_000})
            seen: dict[str, dict[str, Any]] = {}
            bench.begin(OURS, spec, seen)
            bench.round(OURS, spec, seen)
            assert seen[OURS]["rounds"][0]["operations"] > 0, (name, seen)
    finally:
        bench.close()


def test_a_goal_is_met_from_its_ratio_on() -> None:
    assert verdict(35.0, 35.0) == "met"
    assert verdict(34.9, 35.0) == "missed"
    assert verdict(34.9, None) == ""


def test_each_side_is_judged_by_its_own_goal() -> None:
    lines = judged("admit", ROWS["admit"], {OURS: said(10), VLLM: said(349), RUST: said(100)})
    assert {line.side: line.verdict for line in lines} == {OURS: "", VLLM: "missed", RUST: "met"}


def test_what_is_done_on_another_thread_is_judged_by_elapsed_time() -> None:
    lines = judged("match", ROWS["match"], {OURS: said(1, 2), DYNAMO: said(1, 9)})
    assert [line.ratio for line in lines] == [None, 4.5]


def test_beside_a_busy_thread_our_own_figure_has_a_bound() -> None:
    spec = ROWS["match-beside"]
    assert [line.verdict for line in judged("match-beside", spec, {OURS: said(0.94)})] == ["missed"]
    assert [line.verdict for line in judged("match-beside", spec, {OURS: said(0.95)})] == ["met"]


def test_the_share_beside_a_busy_thread_is_of_medians_and_over_that_of_the_control() -> None:
    def play(how: str, *walls: float) -> list[dict[str, Any]]:
        return [{"how": how, "wall": wall, "cpu": 0, "operations": 10} for wall in walls]

    # One round alone was fast by chance: a least one would make a third of the half.
    rounds = [*play("long", 100, 60, 100), *play("beside", 200, 210, 190)]
    rounds += [*play("control", 10, 10, 10), *play("control-beside", 20, 25, 15)]
    assert figures("beside", {"unit": 1, "rounds": rounds})["value"] == 1.0


def test_a_side_that_failed_has_no_line_and_the_others_do() -> None:
    seen = {OURS: said(1), VLLM: {"failed": "no room"}, RUST: said(20)}
    lines = judged("admit", ROWS["admit"], seen)
    assert [line.side for line in lines] == [OURS, RUST]
    assert len(markdown(lines, ROWS).splitlines()) == 4


def test_a_side_that_cannot_start_is_told_of(tokens: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SIDES, "nobody", ("", "no_such_program.py", ()))
    with pytest.raises(Failed, match="nobody"):
        Process("nobody", tokens)


def test_a_side_that_raised_beside_a_second_thread_has_no_figure() -> None:
    rounds: list[dict[str, Any]] = [
        {"how": "long", "wall": 100, "cpu": 0, "operations": 10},
        {"how": "two", "wall": 400, "cpu": 0, "operations": 20, "errors": []},
    ]
    good = figures("two", {"unit": 1, "rounds": rounds})
    assert (good["value"], good["errors"]) == (0.5, [])
    rounds[1]["errors"] = ["AssertionError()"]
    bad = figures("two", {"unit": 1, "rounds": rounds})
    assert bad["failed"] == "raised AssertionError()"
    assert "value" not in bad


def test_no_two_runs_of_tokens_begin_alike(tokens: Path) -> None:
    work = Work(tokens)
    many = [tuple(work.fresh(100)[:16]) for _ in range(sizes.TOKENS // 800)]
    assert len(set(many)) == len(many)


def test_every_side_and_row_that_is_named_is_there() -> None:
    for spec in ROWS.values():
        assert set(spec.sides) <= set(SIDES)
        assert set(spec.goals) <= set(spec.sides)
    assert {row for row, _ in NOTES} <= set(ROWS)


def test_every_package_of_a_peer_is_pinned() -> None:
    for listed in REQUIREMENTS.glob("*.txt"):
        for line in listed.read_text().splitlines():
            assert re.fullmatch(r"[\w.-]+==[\w.+]+", line), (listed.name, line)


def test_the_disks_are_compared_on_blockyards_side_and_a_flipped_bit_is_refused(
    tmp_path: Path,
) -> None:
    stores = {name: store for name, store in disk.STORES.items() if store[0] == DISK}
    given = (str(tmp_path / "store"), "32", str(1 << 16), str(disk.JOB))
    sides = {DISK: Process(DISK, tmp_path / "disk", *given)}
    try:
        seen = disk.turns(sides, stores, rounds=2)
        found = disk.flipped(sides, stores)
    finally:
        sides[DISK].close()
    assert {len(took) for took in seen.values()} == {2}
    rows = {row[0]: row[1:] for row in disk.lines(seen, stores, 32 << 16)}
    assert list(rows) == list(stores)
    assert rows["blockyard"][-3:] == ["", "", ""]
    assert found == {
        "the disk alone": "",
        "blockyard": "refused",
        "blockyard, into new room": "refused",
    }


def test_a_block_that_comes_back_wrong_ends_the_disk_bench() -> None:
    class Side:
        def ask(self, do: str, what: str) -> dict[str, Any]:
            return {"seconds": 1.0, "cpu": 0.5, "wrong": int(do == "read" and what == "lane")}

    sides: Any = {DISK: Side()}
    with pytest.raises(SystemExit, match="blockyard: 1 blocks are not what was written"):
        disk.turns(sides, {"blockyard": disk.OURS}, rounds=1)
