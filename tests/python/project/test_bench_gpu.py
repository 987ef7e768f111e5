"""The bench of the GPU layer, on a simulated GPU: that it runs, and judges what it sees."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockyard.crane.copiers.calibrate
from blockyard import Unavailable
from blockyard._typing import override
from blockyard.crane.copiers import Receipt
from blockyard.crane.copiers.cuda_copier import CudaCopier
from blockyard.testing.simulated_gpu import SimulatedGpu
from timed import Link, TimedGpu

sys.path.insert(0, str(Path(__file__).parents[3] / "benches" / "gpu"))

import bench
import ladder
from figures import figures, markdown
from sizes import TINY
from yardstick import Rig, Wrong

Result = dict[str, Any]
SECTIONS = set(bench.SECTIONS)
NEED_A_GPU = {"compute", "connections", "others"}


class Clocks:
    """A GPU whose link is the bottleneck everywhere, and its clocks."""

    def __init__(self) -> None:
        link = Link(rate=1e9, copy=1e-9, run=0.0, kernel=1e9, launch=1e-9, within=1e15)
        self.gpu = TimedGpu(link)
        self.spent = 0

    def rig(self, copier: Callable[..., Any] = CudaCopier) -> Rig:
        return Rig(self.gpu, TINY, copier=copier, clock=self.gpu.clock, cpu=lambda: self.spent)


@pytest.fixture(autouse=True)
def few_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blockyard.crane.copiers.calibrate, "_TURNS", 1)
    monkeypatch.setattr(blockyard.crane.copiers.calibrate, "_PIECES", (64 << 10, 256 << 10))
    monkeypatch.setattr(blockyard.crane.copiers.calibrate, "_SIZES", (64 << 10, 256 << 10))


def measured(rig: Rig, wanted: set[str] = SECTIONS, **more: Any) -> Result:
    """Plays sections in this process."""
    try:
        return bench.measure(bench.here(rig), wanted, sure=TINY.sure, **more)
    finally:
        rig.close()


def verdicts(said: Result) -> list[str]:
    return [figure["verdict"].split()[0] for figure in said["figures"]]


def test_every_section_runs_and_what_the_link_bounds_meets_its_figure() -> None:
    clocks = Clocks()
    rig = clocks.rig()
    said = measured(rig)
    for name, part in said["sections"].items():
        assert "error" not in part, part["error"]
        assert ("skipped" in part) == (name in NEED_A_GPU)
    assert verdicts(said) == ["met"] * 6 + ["not"] * 2
    assert not clocks.gpu.held
    json.dumps(said)


def test_a_copier_that_is_slow_misses_every_figure_and_by_how_much_is_said() -> None:
    clocks = Clocks()

    class Slow(CudaCopier):
        @override
        def start(self, *what: Any) -> Receipt | None:
            clocks.gpu.now += 1e-3
            clocks.spent += 1_000_000
            return super().start(*what)

    rig = clocks.rig(Slow)
    said = measured(rig, {"checked", "link", "latency", "submit", "flights"})
    assert verdicts(said) == ["missed"] * 6 + ["not"] * 2
    cpu = said["figures"][4]
    assert cpu["verdict"] == "missed by 900.0 µs"
    assert f"| {cpu['what']} | ≤ 100 µs | 1000.0 µs | {cpu['verdict']} |" in markdown(said)


def test_where_a_byte_is_wrong_nothing_is_timed() -> None:
    class Shifted(CudaCopier):
        @override
        def start(self, *what: Any) -> Receipt | None:
            source, destination, sources, destinations = what
            return super().start(source, destination, (sources + 1) % source.blocks, destinations)

    clocks, kept = Clocks(), []
    rig = clocks.rig(Shifted)
    with pytest.raises(Wrong, match="bytes differ"):
        measured(rig, keep=lambda said: kept.append(json.dumps(said)))
    assert list(json.loads(kept[-1])["sections"]) == ["checked"]


def test_a_neighbour_that_is_written_is_seen() -> None:
    class Spilling(CudaCopier):
        @override
        def start(self, *what: Any) -> Receipt | None:
            receipt = super().start(*what)
            _source, destination, _sources, destinations = what
            destination.planes[0][(destinations[:1] + 1) % destination.blocks] += 1
            return receipt

    rig = Clocks().rig(Spilling)
    with pytest.raises(Wrong, match=r"a neighbour was written|bytes differ"):
        measured(rig)


def test_a_section_that_fails_is_told_of_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(_rig: Rig, _until: float, said: Result) -> None:
        said["rows"] = []
        raise RuntimeError("no link today")

    monkeypatch.setitem(bench.SECTIONS, "link", bench.Section(1, fails))
    said = measured(Clocks().rig(), {"link", "submit", "latency"})
    assert "no link today" in said["sections"]["link"]["error"]
    assert "the link's peak was not measured" in said["sections"]["latency"]["error"]
    assert "error" not in said["sections"]["submit"]
    assert "- link failed: RuntimeError: no link today" in markdown(said)
    assert [figure.measured is None for figure in figures(said)] == [True] * 4 + [False] * 2 + [
        True
    ] * 2


def test_no_section_begins_when_time_is_over() -> None:
    said = measured(Clocks().rig(), budget=-1.0)
    late = [name for name, part in said["sections"].items() if "no time" in part.get("error", "")]
    assert set(late) == SECTIONS


def test_a_copier_that_takes_nothing_or_never_ends_fails_its_section(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pairs._PATIENCE", 0.01)

    class FullLength(CudaCopier):
        @override
        def start(self, *_what: Any) -> Receipt | None:
            return None

    rig = Clocks().rig(FullLength)
    said = measured(rig, {"checked", "link"})
    assert "no copy is taken" in said["sections"]["checked"]["error"]
    assert said["sections"]["link"]["error"].startswith("not timed")


def test_the_command_writes_json_and_prints_the_table_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bench-gpu.json"
    monkeypatch.setenv("OUT", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["bench.py", "--simulated", "--only", "link"])
    assert bench.main() == 0
    said = json.loads(out.read_text(encoding="utf-8"))
    assert set(said["sections"]) == {"checked", "link"}
    assert "| figure | target | measured |" in capsys.readouterr().out


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_section_that_crashes_or_hangs_costs_nothing_but_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(
        bench.SECTIONS, "flights", bench.Section(0.0, bench.SECTIONS["flights"].work)
    )
    kept: list[str] = []
    peaks = []

    def command(name: str, path: Path, peak: dict[str, float], _most: float) -> list[str]:
        peaks.append(peak)
        said = {"sections": {name: {"peak": {"up": 5.0}, "rows": []}}, "machine": {"GPU": "none"}}
        write = f"import pathlib; pathlib.Path({str(path)!r}).write_text({json.dumps(said)!r});"
        return python(
            {
                "submit": write + "import os; os.kill(os.getpid(), 11)",
                "flights": "import time; time.sleep(60)",
                "others": "import os; assert os.environ['CUDA_DEVICE_MAX_CONNECTIONS'] == '32'",
                "connections": write
                + "import os; assert os.environ['CUDA_DEVICE_MAX_CONNECTIONS'] == '32'",
            }.get(name, write)
        )

    said = bench.measure(
        bench.apart(command, beside=2.0),
        SECTIONS,
        keep=lambda said: kept.append(json.dumps(said)),
    )
    errors = {name: part.get("error", "") for name, part in said["sections"].items()}
    assert errors.pop("submit") == "crashed: SIGSEGV"
    assert errors.pop("flights").startswith("hung: it did not end within 2 s")
    assert errors.pop("others") == "failed: it ended with 1"
    assert set(errors.values()) == {""}
    assert said["sections"]["submit"]["peak"]
    assert peaks == [{}, {}, *[{"up": 5.0}] * (len(SECTIONS) - 2)]
    assert (said["machine"], len(kept)) == ({"GPU": "none"}, len(SECTIONS))
    assert "- submit failed: crashed: SIGSEGV" in markdown(said)


def test_where_a_process_finds_a_wrong_byte_no_other_begins() -> None:
    def command(name: str, path: Path, _peak: dict[str, float], _most: float) -> list[str]:
        said = {"sections": {name: {"error": "wrong: bytes differ"}}}
        return python(
            f"import pathlib; pathlib.Path({str(path)!r}).write_text({json.dumps(said)!r})"
        )

    kept: list[str] = []
    with pytest.raises(Wrong, match="bytes differ"):
        bench.measure(
            bench.apart(command), SECTIONS, keep=lambda said: kept.append(json.dumps(said))
        )
    assert list(json.loads(kept[-1])["sections"]) == ["checked"]


def test_a_ladder_tells_good_rungs_from_those_that_crash_hang_or_are_wrong() -> None:
    words = {1: "print('good')", 8: "import os; os.kill(os.getpid(), 11)", 64: "print('wrong')"}
    words |= {256: "raise MemoryError('no room')", 512: "import time; time.sleep(60)"}
    kept: list[int] = []
    said = ladder.climbed(
        lambda size, runs: python(words[runs] if size == 16 else "print('good')"),
        (1, 8, 64, 256, 512, 1024),
        lambda said: kept.append(len(said)),
        patience=2.0,
    )
    small = [rung for rung in said if rung["bytes"] == 16]
    large = [rung for rung in said if rung["bytes"] != 16]
    verdicts = [rung["verdict"] for rung in small]
    assert verdicts[:4] == ["good", "crashed: SIGSEGV", "wrong", "failed: it ended with 1"]
    assert verdicts[4:] == ["hung: it did not end within 2 s", "not tried: one of fewer hung"]
    assert {rung["verdict"] for rung in large} == {"good"}
    assert kept == list(range(1, 19))
    assert ladder.verdict(said, 1024) == 1
    assert ladder.verdict(small[:2], 1024) == ladder.verdict(small[4:], 1024) == 2
    assert ladder.verdict(small[:2], 4) == ladder.verdict(large, 1024) == 0
    # What there was no time for is not good either.
    late = ladder.climbed(lambda *_: python("print('good')"), (1, 8), budget=-1.0)
    assert {rung["verdict"] for rung in late} == {"not tried: no time was left"}
    assert ladder.verdict(late, 1024) == 2


def test_where_the_check_itself_crashes_nothing_is_timed() -> None:
    def command(*_: Any) -> list[str]:
        return python("import os; os.kill(os.getpid(), 11)")

    said = bench.measure(bench.apart(command), {"link", "flights"})
    assert said["sections"]["checked"]["error"] == "crashed: SIGSEGV"
    for name in ("link", "flights"):
        assert said["sections"][name]["error"].startswith("not timed")


def test_a_rung_finds_a_byte_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "TIMES", 2)
    monkeypatch.setattr(ladder, "_SOURCE", 16 * 40)
    gpu = SimulatedGpu(entries=1 << 20)
    assert ladder.rung(gpu, 16, 100) == "good"
    assert not gpu.held
    copy = gpu.copy

    def swapped(to: Any, from_: Any, sizes: Any, stream: int) -> None:
        copy(to, np.roll(from_, len(to) > 90), sizes, stream)

    monkeypatch.setattr(gpu, "copy", swapped)
    assert ladder.rung(gpu, 16, 100) == "wrong"
    assert not gpu.held
    with pytest.raises(Unavailable):
        ladder.rung(SimulatedGpu(memory=10), 16, 100)
