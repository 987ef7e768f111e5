"""Engines side by side: the figures of all of them, and runs in other processes."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from blockyard._typing import override
from blockyard.tools.cli import cli
from blockyard.tools.replay import hardware
from blockyard.tools.replay.comparison import compare, jobs_of
from blockyard.tools.replay.merge import together
from blockyard.tools.replay.play_trace import played
from blockyard.tools.replay.routing import routed
from blockyard.tools.replay.samples import Played
from blockyard.tools.replay.spec import RunSpec
from blockyard.tools.traces.trace import Trace
from blockyard.tools.traces.workload import generate
from blockyard.tools.workers import Watch
from replays import MEASURED, quiet
from yard import there


def spec_of(**changes: Any) -> RunSpec:
    settled: dict[str, Any] = {
        "preset": "llama-3-8b/h100",
        "roofline": hardware.preset("llama-3-8b/h100"),
        "trace_block": 16,
        "block_size": 16,
        "device_blocks": 1_500,
        "host_blocks": 2_000,
    }
    return RunSpec(**settled | changes)


def each_of(spec: RunSpec, parts: Sequence[Trace]) -> list[Played]:
    return [played(job.spec, parts[job.replica], quiet) for job in jobs_of([spec], parts)]


@pytest.fixture(scope="module")
def trace() -> Trace:
    return generate(5, requests=36, rate=8.0)


@pytest.fixture(scope="module")
def parts(trace: Trace) -> list[Trace]:
    return routed(trace, 3, "random", 1)


@pytest.fixture(scope="module")
def engines(parts: list[Trace]) -> list[Played]:
    return each_of(spec_of(disk_blocks=500), parts)


def test_spreads_are_those_of_all_values_and_counts_are_sums(
    trace: Trace, parts: list[Trace], engines: list[Played]
) -> None:
    runs = [engine.run for engine in engines]
    whole = together(engines)
    values = np.sort(np.concatenate([e.samples.ttft for e in engines if e.samples is not None]))
    assert whole.ttft_ms is not None
    assert len(values) == len(trace)
    assert whole.ttft_ms.mean == pytest.approx(values.mean(), abs=1e-5)
    assert whole.ttft_ms.p50 == pytest.approx(values[len(trace) // 2 - 1], abs=1e-5)
    assert whole.ttft_ms.max == max(run.ttft_ms.max for run in runs if run.ttft_ms)
    for name in ("requests", "refused", "input_tokens", "output_tokens", "skipped_slow"):
        assert getattr(whole, name) == sum(getattr(run, name) for run in runs), name
    hits = sum(run.hit_ratio * run.input_tokens for run in runs)
    assert whole.hit_ratio == pytest.approx(hits / whole.input_tokens)
    assert sum(whole.hit_ratio_by_tier.values()) + there(whole.disk).hit_ratio == pytest.approx(
        whole.hit_ratio
    )
    for name in ("blocks_down", "bytes_down", "blocks_up"):
        assert getattr(whole.moved, name) == sum(getattr(run.moved, name) for run in runs), name
    assert whole.engine_seconds == max(run.engine_seconds for run in runs)
    assert whole.peak["pinned"] == max(run.peak["pinned"] for run in runs)
    assert [replica.requests for replica in whole.replicas] == [len(part) for part in parts]
    assert (whole.audit, whole.complete) == ("ok", True)


def test_bytes_are_checked_by_every_engine() -> None:
    parts = routed(generate(5, requests=8, rate=8.0), 2, "random")
    engines = each_of(spec_of(verify="memory"), parts)
    whole = there(together(engines).verified)
    each = [engine.run.verified for engine in engines]
    assert whole.checked == sum(one.checked for one in each if one is not None) > 0
    assert (whole.wrong, whole.block_bytes) == (0, 4096)


def test_stores_of_engines_side_by_side_are_added(parts: list[Trace]) -> None:
    small = {"device_blocks": 700, "host_blocks": 0, "remote_blocks": 5_000}
    spec = spec_of(**small, gate=False, store_loss=0.3)
    engines = each_of(spec, parts)
    whole = there(together(engines).remote)
    stores = [there(engine.run.remote) for engine in engines]
    assert whole.blocks_down == sum(store.blocks_down for store in stores) > 0
    assert whole.losses == sum(store.losses for store in stores) > 0
    assert whole.peak == max(store.peak for store in stores)


def test_the_time_of_all_engines_starts_with_the_first_request_anywhere(
    trace: Trace, parts: list[Trace], engines: list[Played]
) -> None:
    alone = [played(spec_of(disk_blocks=500), part, quiet).run for part in parts]
    first = int(trace.arrival[0])
    for part, engine, run in zip(parts, engines, alone, strict=True):
        late = (int(part.arrival[0]) - first) / 1e3
        assert engine.run.engine_seconds == pytest.approx(run.engine_seconds + late)
        assert engine.run.hit_ratio == run.hit_ratio
        rates = msgspec.structs.astuple(there(run.load))
        assert msgspec.structs.astuple(there(engine.run.load)) == pytest.approx(rates)


def test_columns_over_time_are_added_in_the_longest_interval(
    trace: Trace, engines: list[Played]
) -> None:
    whole = there(together(engines).series)
    found = sum(whole.device_hit + whole.host_hit + whole.missed)
    assert found == int(trace.input_length.sum())
    columns = msgspec.structs.asdict(whole)
    assert {len(column) for column in columns.values()} == {len(whole.seconds)}
    assert max(whole.device_used) <= 1_500
    alone = [engine.run.series.running for engine in engines if engine.run.series is not None]
    assert max(map(max, alone)) <= max(whole.running) <= sum(map(max, alone))


def test_one_engine_is_that_engine(engines: list[Played]) -> None:
    assert together(engines[:1]) is engines[0].run


def test_without_time_engines_have_hits_and_copies_alone(trace: Trace) -> None:
    parts = routed(trace, 4, "prefix")
    engines = each_of(spec_of(model="sequential", host_blocks=0), parts)
    whole = together(engines)
    assert (whole.ttft_ms, whole.load, whole.series, whole.pinned) == (None,) * 4
    assert whole.requests == len(trace)
    assert len(whole.replicas) == 4
    apart = together(
        each_of(spec_of(model="sequential", host_blocks=0), routed(trace, 4, "random"))
    )
    assert whole.hit_ratio > apart.hit_ratio


def test_an_engine_to_which_nothing_was_sent_is_none_the_less_there(trace: Trace) -> None:
    empty = next(part for part in routed(trace, 36, "random", 3) if not len(part))
    for model in ("virtual", "sequential"):
        whole = together(each_of(spec_of(model=model, host_blocks=0), [trace, empty]))
        assert [replica.requests for replica in whole.replicas] == [36, 0]
        assert whole.complete


class Interrupting(Watch[Played]):
    """Presses Ctrl-C when the second job begins."""

    @override
    def began(self, job: int) -> None:
        if job == 1:
            raise KeyboardInterrupt


def test_after_ctrl_c_what_has_not_run_everywhere_is_incomplete(trace: Trace) -> None:
    parts = routed(trace, 2, "random", 1)
    jobs = jobs_of([spec_of(), spec_of(policy="heap")], parts)
    runs = compare(jobs, parts, Interrupting(), names=["a", "b", "c", "d"], processes=1)
    assert [(run.policy, run.complete) for run in runs] == [("recency", False)]
    assert runs[0].requests == len(parts[0])


def unmeasured(path: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(Path(path).read_text())
    for run in (result, *result["runs"]):
        for name in MEASURED:
            run.pop(name)
    result.pop("command")
    return result


def test_runs_in_other_processes_find_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = "replay --requests 20 --policy lru --policy learned --replicas 2 --quiet --json"
    for jobs in "12":
        done = CliRunner().invoke(cli, [*words.split(), f"{jobs}.json", "--jobs", jobs])
        assert done.exit_code == 0, done.output
    result = unmeasured("1.json")
    assert result == unmeasured("2.json")
    assert [run["policy"] for run in result["runs"]] == ["recency", "learned"]
    assert [len(run["replicas"]) for run in result["runs"]] == [2, 2]
    assert (result["router"], result["speed"]) == ("prefix", 1.0)
    assert result["answer"]


def test_a_saved_trace_has_the_arrivals_that_were_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = "replay --requests 20 --speed 4 --save-trace t.jsonl --quiet --json a.json"
    sizes = "--device 1500 --host 0"
    for words in (made, "replay t.jsonl --quiet --json b.json"):
        assert CliRunner().invoke(cli, [*words.split(), *sizes.split()]).exit_code == 0
    first, again = (json.loads(Path(name).read_text()) for name in ("a.json", "b.json"))
    assert first["speed"] == 4
    assert first["load"] == again["load"]
    assert first["ttft_ms"] == again["ttft_ms"]


def test_a_run_says_what_the_running_requests_hold(engines: list[Played]) -> None:
    run = together(engines)
    assert 0 < there(run.pinned) < run.peak["pinned"] <= run.device_blocks
