"""A replay: what it models, what it measures, and that it is the same every time."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import blockyard as by
from blockyard.replay import hardware, workload
from blockyard.replay.clock import Link
from blockyard.replay.hands import ProcessHands, RealHands, scaled
from blockyard.replay.meter import Timeline, spread
from blockyard.replay.result import Run
from blockyard.replay.run import run
from blockyard.replay.setup import Progress, Setup
from blockyard.replay.trace import Trace
from yard import plan_of

MEASURED = {"wall_seconds", "bookkeeping", "verified"}


def setup_of(trace: Trace, **changes: Any) -> Setup:
    ranks = changes.pop("ranks", 1)
    roofline = dataclasses.replace(hardware.preset("llama-3-8b/h100"), ranks=ranks)
    settled: dict[str, Any] = {
        "preset": "llama-3-8b/h100",
        "roofline": roofline,
        "trace_block": trace.trace_block,
        "block_size": 16,
        "device_blocks": 2_600,
        "host_blocks": 4_000,
    }
    return Setup(**settled | changes)


def quiet(_progress: Progress) -> None:
    pass


def modelled(result: Run) -> dict[str, Any]:
    return {
        name: getattr(result, name) for name in result.__struct_fields__ if name not in MEASURED
    }


@pytest.fixture(scope="module")
def trace() -> Trace:
    return workload.generate(3, requests=150)


@pytest.fixture(scope="module")
def plain(trace: Trace) -> Run:
    return run(setup_of(trace), trace, quiet)


def test_every_request_ends_and_every_token_is_accounted_for(trace: Trace, plain: Run) -> None:
    assert (plain.requests, plain.refused, plain.complete, plain.audit) == (150, 0, True, "ok")
    assert plain.input_tokens == trace.input_length.sum()
    assert plain.output_tokens == trace.output_length.sum()
    assert plain.series is not None
    found = sum(plain.series.device_hit) + sum(plain.series.host_hit)
    assert found == round(plain.hit_ratio * plain.input_tokens)
    assert found + sum(plain.series.missed) == plain.input_tokens
    assert plain.hit_ratio == pytest.approx(sum(plain.hit_ratio_by_tier.values()))
    assert plain.hit_ratio_by_tier["host"] > 0.01
    assert sum(plain.series.bytes_down) == plain.moved.bytes_down > 0
    assert sum(plain.series.bytes_up) == plain.moved.bytes_up > 0


def test_times_are_those_of_the_modelled_engine(trace: Trace, plain: Run) -> None:
    assert plain.ttft_ms is not None
    assert plain.itl_ms is not None
    assert plain.waits is not None
    overhead = 1e3 * setup_of(trace).roofline.overhead
    assert plain.itl_ms.quantiles[0] > overhead
    assert plain.ttft_ms.quantiles[0] > overhead
    assert plain.ttft_ms.mean > plain.waits.queue_ms.mean
    assert plain.engine_seconds >= (trace.arrival[-1] - trace.arrival[0]) / 1e3


def test_budgets_hold_throughout(plain: Run) -> None:
    assert plain.series is not None
    assert plain.peak["device"] <= plain.device_blocks
    assert plain.peak["host"] <= plain.host_blocks
    assert max(plain.series.device_pinned) <= plain.peak["pinned"] <= plain.peak["device"]
    assert max(plain.series.host_used) == plain.peak["host"]


@pytest.mark.parametrize("write", ["on-evict", "through", "second-touch"])
@pytest.mark.parametrize("policy", ["recency", "heap"])
def test_the_same_replay_is_the_same_every_time_with_bytes_or_without(
    trace: Trace, policy: Any, write: Any
) -> None:
    setup = setup_of(trace, policy=policy, write_policy=write)
    first = run(setup, trace, quiet)
    second = run(dataclasses.replace(setup, verify=True), trace, quiet)
    assert modelled(first) == modelled(second)
    assert second.verified is not None
    assert second.verified.wrong == 0
    assert second.verified.checked > second.verified.written > 1_000


def test_two_cranes_in_two_processes_move_every_byte_right() -> None:
    trace = workload.generate(4, requests=60)
    setup = setup_of(trace, ranks=2, device_blocks=1_000, host_blocks=2_000)
    without = run(setup, trace, quiet)
    real = run(dataclasses.replace(setup, verify=True), trace, quiet)
    assert modelled(without) == modelled(real)
    assert real.verified is not None
    assert real.verified.wrong == 0
    assert real.moved.blocks_up > 0


def test_another_seed_changes_tokens_and_nothing_else(trace: Trace, plain: Run) -> None:
    other = run(setup_of(trace, seed=9), trace, quiet)
    assert modelled(other) == modelled(plain)


def test_ctrl_c_ends_it_with_what_is_known(trace: Trace) -> None:
    pressed = iter([True])

    def stop(_progress: Progress) -> None:
        if next(pressed, False):
            raise KeyboardInterrupt

    partial = run(setup_of(trace), trace, stop)
    assert not partial.complete
    assert partial.audit == "ok"
    assert partial.requests < 150


def test_a_request_that_never_fits_is_refused_and_the_others_run(trace: Trace) -> None:
    large = int(((trace.input_length + trace.output_length).max() - 1) // 16) + 1
    result = run(setup_of(trace, device_blocks=large - 1), trace, quiet)
    assert result.refused >= 1
    assert result.requests + result.refused == 150


def test_prompts_without_an_answer_are_computed_and_end() -> None:
    trace = dataclasses.replace(
        workload.generate(1, requests=20), output_length=np.zeros(20, np.int64)
    )
    result = run(setup_of(trace), trace, quiet)
    assert (result.requests, result.output_tokens, result.tokens_per_second) == (20, 0, 0)


def test_prefetch_brings_prefixes_up_before_their_turn(trace: Trace) -> None:
    late = run(setup_of(trace, max_running=2), trace, quiet)
    early = run(setup_of(trace, max_running=2, prefetch=4), trace, quiet)
    assert early.waits is not None
    assert late.waits is not None
    assert early.waits.loading < late.waits.loading
    assert early.requests == 150


def test_a_slow_link_is_not_used(trace: Trace, plain: Run) -> None:
    slow = hardware.preset("llama-3-8b/h100").with_({"link_bytes_per_second": 1e9})
    gated = run(setup_of(trace, roofline=slow), trace, quiet)
    forced = run(setup_of(trace, roofline=slow, gate=False), trace, quiet)
    assert gated.moved.blocks_up == 0
    assert gated.skipped_slow > plain.skipped_slow
    assert forced.moved.blocks_up > 0
    assert gated.ttft_ms is not None
    assert forced.ttft_ms is not None
    assert gated.ttft_ms.mean < forced.ttft_ms.mean


def test_a_wrong_byte_is_seen() -> None:
    config = by.Config(device=8, host=4, layout=scaled(16, 1))
    hands = RealHands(config)
    slots, keys = np.array([3, 5], np.int32), np.array([11, 12], np.uint64)
    hands.write(slots, keys)
    assert hands.wrong(slots, keys) == 0
    assert hands.wrong(slots[::-1].copy(), keys) == 2
    hands._device.planes[0][5, 1, 7] ^= 1
    assert hands.wrong(slots, keys) == 1
    hands.close()


def test_a_rank_whose_process_is_gone_is_named() -> None:
    hands = ProcessHands(by.Config(device=8, host=4, layout=scaled(16, 2)))
    try:
        assert [hello.rank for hello in hands.hello()] == [0, 1]
        process = hands._ranks[1][0]
        process.kill()
        process.join()
        with pytest.raises(by.Unavailable, match="rank 1 is gone"):
            hands.hello()
    finally:
        hands.close()


def test_what_goes_wrong_in_a_rank_is_raised_here() -> None:
    config = by.Config(device=8, host=4, layout=scaled(16, 2))
    hands = ProcessHands(config)
    try:
        hands.submit([plan_of([1], [99], flight=1 << 32)])
        with pytest.raises(by.Misuse, match="host slot 99"):
            hands.hello()
    finally:
        hands.close()


def test_copies_queue_on_the_link_each_way_on_its_own() -> None:
    link = Link(block_bytes=100.0, bytes_per_second=1000.0, latency=0.5)
    down, up = plan_of(10, flight=1 << 32), plan_of(5, flight=2 << 32, way="host device")
    across = plan_of(3, flight=3 << 32, way="device device")
    assert link.next() is None
    link.send([down, up], 1.0)
    link.send([down, across], 1.5)
    assert link.next() == 2.0
    assert link.landed(1.99) == []
    assert link.landed(2.0) == [up, across]
    assert link.next() == 2.5
    assert link.landed(99.0) == [down, down]


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.integers(1, 9)), min_size=1, max_size=60),
)
def test_weighted_quantiles_are_those_of_the_values_written_out(
    pairs: list[tuple[float, int]],
) -> None:
    values = np.array([value for value, _ in pairs])
    weights = np.array([weight for _, weight in pairs], np.int64)
    got = spread(values, weights)
    whole = np.repeat(values, weights)
    assert got.mean == pytest.approx(whole.mean(), abs=1e-6)
    expected = np.quantile(whole, np.linspace(0, 1, 101), method="inverted_cdf")
    assert got.quantiles == pytest.approx(expected, abs=1e-5)
    assert (got.p50, got.p99) == (got.quantiles[50], got.quantiles[99])
    assert got.max == pytest.approx(values.max(), abs=1e-5)


def test_a_timeline_keeps_its_sums_however_long_it_gets() -> None:
    line = Timeline(interval=1.0)
    for second in range(1, 5_001):
        line.add("missed", second)
        line.close(float(second), [second, 0, 0, 0, 0])
    series = line.series([7, 0, 0, 0, 0])
    assert sum(series.missed) == 5_000 * 5_001 // 2
    assert len(series.seconds) <= 401
    assert np.allclose(np.diff(series.seconds), series.seconds[0])
    assert series.device_used[0] == series.seconds[0]
    assert series.device_used[-1] == 5_000
