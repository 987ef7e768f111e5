"""A replay: what it models, what it measures, and that it is the same every time."""

import dataclasses
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import blockyard as by
import simulated_cupy as simulated
from blockyard.crane.devices import NUMPY, Device
from blockyard.scheduling.admission import Admission, Admitted
from blockyard.scheduling.engine import Step
from blockyard.tools.replay import hardware
from blockyard.tools.replay.clock import Link
from blockyard.tools.replay.engine import VirtualEngine
from blockyard.tools.replay.real_memory import LocalMemory, ProcessMemory, scaled
from blockyard.tools.replay.result import Run, Verified
from blockyard.tools.replay.run import _config, _Replay, run
from blockyard.tools.replay.spec import Progress, RunSpec
from blockyard.tools.replay.timeline import Timeline, spread
from blockyard.tools.replay.tokens import Tokens
from blockyard.tools.replay.verify import Verifier
from blockyard.tools.traces import workload
from blockyard.tools.traces.trace import Trace
from blockyard.yard.handshake import agree
from gpus import gpu
from replays import modelled, quiet, spec_of
from yard import plan_of, there


def asked(requests: Sequence[tuple[int, int, int]]) -> Trace:
    """Requests of (milliseconds, tokens of the prompt, tokens of the answer) that share nothing."""
    arrivals, inputs, outputs = np.array(requests, np.int64).T
    offsets = np.concatenate(([0], np.cumsum(-(-inputs // 16))))
    return Trace(
        name="made up",
        trace_block=16,
        arrival=arrivals,
        input_length=inputs,
        output_length=outputs,
        ids=np.arange(offsets[-1]),
        offsets=offsets,
        session=np.zeros(0, np.int64),
    )


def again(trace: Trace) -> Trace:
    """All requests have the first one's prompt."""
    first = trace.ids[: trace.offsets[1]]
    return dataclasses.replace(trace, ids=np.tile(first, len(trace)))


def opened(spec: RunSpec, trace: Trace) -> _Replay:
    """A replay with bytes in this process, about to begin."""
    config = _config(spec)
    memory = LocalMemory(config)
    return _Replay(spec, trace, by.KVCache(agree(config, memory.hello())), memory)


def right(result: Run) -> Verified:
    """What was verified, with no wrong byte and no wrong answer."""
    verified = there(result.verified)
    assert (verified.wrong, verified.wrong_answers) == (0, 0)
    return verified


@pytest.fixture(scope="module")
def trace() -> Trace:
    return workload.generate(3, requests=150)


@pytest.fixture(scope="module")
def plain(trace: Trace) -> Run:
    return run(spec_of(trace), trace, quiet)


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
    overhead = 1e3 * spec_of(trace).roofline.overhead
    assert there(plain.itl_ms).quantiles[0] > overhead
    assert there(plain.ttft_ms).quantiles[0] > overhead
    assert there(plain.ttft_ms).mean > there(plain.waits).queue_ms.mean
    assert plain.engine_seconds >= (trace.arrival[-1] - trace.arrival[0]) / 1e3


def test_budgets_hold_throughout(plain: Run) -> None:
    assert plain.peak["device"] <= plain.device_blocks
    assert plain.peak["host"] <= plain.host_blocks
    assert max(there(plain.series).device_pinned) <= plain.peak["pinned"] <= plain.peak["device"]
    assert max(there(plain.series).host_used) == plain.peak["host"]


@pytest.mark.parametrize("write", ["on-evict", "through", "second-touch"])
@pytest.mark.parametrize("policy", ["recency", "heap"])
def test_the_same_replay_is_the_same_every_time_with_bytes_or_without(
    policy: Any, write: Any
) -> None:
    trace = workload.generate(3, requests=60)
    sizes = {"device_blocks": 1_000, "host_blocks": 2_000}
    spec = spec_of(trace, policy=policy, write_policy=write, **sizes)
    first = run(spec, trace, quiet)
    second = run(dataclasses.replace(spec, verify="memory"), trace, quiet)
    assert modelled(first) == modelled(second)
    assert right(second).checked > right(second).written > 1_000


def test_two_cranes_in_two_processes_move_every_byte_right() -> None:
    trace = workload.generate(4, requests=60)
    spec = spec_of(trace, ranks=2, device_blocks=1_000, host_blocks=2_000)
    without = run(spec, trace, quiet)
    real = run(dataclasses.replace(spec, verify="memory"), trace, quiet)
    assert modelled(without) == modelled(real)
    right(real)
    assert real.moved.blocks_up > 0


def test_another_seed_changes_tokens_and_nothing_else(trace: Trace, plain: Run) -> None:
    other = run(spec_of(trace, seed=9), trace, quiet)
    assert modelled(other) == modelled(plain)


def test_ctrl_c_ends_it_with_what_is_known(trace: Trace) -> None:
    pressed = iter([True])

    def stop(_progress: Progress) -> None:
        if next(pressed, False):
            raise KeyboardInterrupt

    partial = run(spec_of(trace), trace, stop)
    assert not partial.complete
    assert partial.audit == "ok"
    assert partial.requests < 150


def test_a_request_that_never_fits_is_refused_and_the_others_run(trace: Trace) -> None:
    large = int(((trace.input_length + trace.output_length).max() - 1) // 16) + 1
    result = run(spec_of(trace, device_blocks=large - 1), trace, quiet)
    assert result.refused >= 1
    assert result.requests + result.refused == 150


def test_a_request_behind_a_whole_queue_of_too_large_ones_is_served() -> None:
    trace = asked([(0, 3_200, 4)] * 256 + [(0, 64, 4)] * 44)
    result = run(spec_of(trace, device_blocks=100), trace, quiet)
    assert (result.requests, result.refused, result.complete) == (44, 256, True)


def test_what_a_refused_request_would_have_held_is_not_kept() -> None:
    trace = asked([(0, 3_200, 4), (0, 64, 4)])
    spec = spec_of(trace, device_blocks=100, verify="memory")
    replay = opened(spec, trace)
    assert replay.run(quiet).refused == 1
    replay.memory.close()
    assert not there(replay.verifier).keys


def test_prompts_are_computed_in_the_order_in_which_they_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served: list[int] = []
    submit = VirtualEngine.submit

    def watched(engine: VirtualEngine, step: Step) -> None:
        submit(engine, step)
        served.extend(engine.request(chunk.seat) for chunk in step.chunks)

    monkeypatch.setattr(VirtualEngine, "submit", watched)
    # The first two end at once, and others sit in their seats.
    trace = asked([(0, 64, 1)] * 2 + [(0, 2_048, 2)] * 3)
    run(spec_of(trace, max_num_batched_tokens=256), trace, quiet)
    assert served == sorted(served)
    assert set(served) == set(range(5))


def test_copies_that_trail_the_last_request_take_none_of_its_time() -> None:
    slow = hardware.preset("llama-3-8b/h100").with_({"link_bytes_per_second": 1e7})
    trace = asked([(0, 1_600, 10)])
    ends = run(spec_of(trace), trace, quiet)
    spec = spec_of(trace, roofline=slow, write_policy="through")
    replay = opened(dataclasses.replace(spec, verify="memory"), trace)
    trails = replay.run(quiet)
    replay.memory.close()
    assert trails.engine_seconds == ends.engine_seconds
    assert trails.tokens_per_second == ends.tokens_per_second
    assert there(trails.series).seconds[-1] < 1
    # They are carried out all the same.
    assert (trails.moved.blocks_down, trails.peak["host"], trails.audit) == (100, 100, "ok")
    assert replay.cache.stats()["flights"] == 0


def test_time_is_counted_from_the_first_arrival() -> None:
    trace = asked([(1_000 * second, 160, 20) for second in range(120)])
    late = dataclasses.replace(trace, arrival=trace.arrival + 1_700_000_000_000)
    told: list[Progress] = []
    first, second = run(spec_of(trace), trace, quiet), run(spec_of(late), late, told.append)
    assert modelled(first) == modelled(second)
    assert 119 < there(first.series).seconds[-1] < 121
    assert told[-1].engine_seconds < 121


def test_the_most_that_requests_hold_is_seen_before_they_let_go() -> None:
    # Five at once, each with 100 blocks of prompt and a last one for its answer.
    trace = asked([(0, 1_600, 3)] * 5)
    result = run(spec_of(trace), trace, quiet)
    assert (result.peak["pinned"], result.peak["device"]) == (505, 505)
    assert max(there(result.series).device_pinned) == 505
    assert max(there(result.series).running) == 5


def test_what_a_jump_costs_is_counted_in_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    # The second prompt is loaded first, and no other request runs, so a jump follows its begin.
    trace = again(asked([(0, 64, 1), (5_000, 64, 1)]))
    begin = by.KVCache.begin

    def slow(*given: Any, **keywords: Any) -> Any:
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            pass
        return begin(*given, **keywords)

    monkeypatch.setattr(by.KVCache, "begin", slow)
    result = run(spec_of(trace), trace, quiet)
    assert result.moved.blocks_across == 1
    assert result.bookkeeping is not None
    assert result.bookkeeping.steps == 2
    assert result.bookkeeping.us_per_step.quantiles[0] > 50_000
    assert result.bookkeeping.us_per_request < 50_000


def test_the_bookkeeping_is_cpu_time_so_that_what_waits_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace = asked([(0, 64, 2), (5_000, 64, 2)])
    waits: list[str] = []

    def waiting(name: str) -> Callable[..., Any]:
        act = getattr(by.KVCache, name)

        def wait(*given: Any, **keywords: Any) -> Any:
            waits.append(name)
            time.sleep(0.2)
            return act(*given, **keywords)

        return wait

    for name in ("begin", "dispatch", "grow", "seal", "finish", "block_tables"):
        monkeypatch.setattr(by.KVCache, name, waiting(name))
    result = run(spec_of(trace), trace, quiet)
    assert set(waits) >= {"begin", "dispatch", "grow", "seal", "finish", "block_tables"}
    assert result.wall_seconds > 0.2 * len(waits)
    assert there(result.bookkeeping).us_per_step.max < 200_000


def test_prompts_without_an_answer_are_computed_and_end() -> None:
    trace = dataclasses.replace(
        workload.generate(1, requests=20), output_length=np.zeros(20, np.int64)
    )
    result = run(spec_of(trace), trace, quiet)
    assert (result.requests, result.output_tokens, result.tokens_per_second) == (20, 0, 0)


def test_prefetch_brings_prefixes_up_before_their_turn(trace: Trace) -> None:
    late = run(spec_of(trace, max_num_seqs=2), trace, quiet)
    early = run(spec_of(trace, max_num_seqs=2, prefetch=4), trace, quiet)
    assert there(early.waits).loading < there(late.waits).loading
    assert early.requests == 150


def test_a_slow_link_is_not_used(trace: Trace, plain: Run) -> None:
    slow = hardware.preset("llama-3-8b/h100").with_({"link_bytes_per_second": 1e9})
    gated = run(spec_of(trace, roofline=slow), trace, quiet)
    forced = run(spec_of(trace, roofline=slow, gate=False), trace, quiet)
    assert gated.moved.blocks_up == 0
    assert gated.skipped_slow > plain.skipped_slow
    assert forced.moved.blocks_up > 0
    assert there(gated.ttft_ms).mean < there(forced.ttft_ms).mean


@pytest.mark.parametrize("on", [NUMPY, simulated.elsewhere()], ids=["memory", "simulated"])
def test_a_wrong_byte_is_seen(on: Device) -> None:
    config = by.Config(device=8, host=4, layout=scaled(16, 1))
    memory = LocalMemory(config, on=on)
    slots, keys = np.array([3, 5], np.int32), np.array([11, 12], np.uint64)
    memory.write(slots, keys)
    assert memory.wrong(slots, keys) == 0
    assert memory.wrong(slots[::-1].copy(), keys) == 2
    memory._device.planes[0][5, 1, 7] ^= 1
    assert memory.wrong(slots, keys) == 1
    memory.close()


def test_a_replay_moves_real_bytes_of_a_gpu(
    trace: Trace, plain: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated.installed(monkeypatch)
    simulated.waits.clear()
    result = run(spec_of(trace, verify="cuda"), trace, quiet)
    assert simulated.waits["get"] > 100
    assert modelled(result) == modelled(plain)
    assert right(result).checked > 1000


@pytest.mark.gpu
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_replay_moves_real_bytes_of_a_real_gpu(trace: Trace, ranks: int) -> None:
    gpu()
    result = run(spec_of(trace, verify="cuda", ranks=ranks), trace, quiet)
    assert modelled(result) == modelled(run(spec_of(trace, ranks=ranks), trace, quiet))
    assert right(result).checked > 1000


def spoiled(
    monkeypatch: pytest.MonkeyPatch, spoils: Callable[[LocalMemory, by.Plan], None]
) -> None:
    """Does something to every plan that has been carried out."""
    land = LocalMemory.land

    def landed(memory: LocalMemory, plans: Sequence[by.Plan]) -> list[by.Outcome]:
        outcomes = land(memory, plans)
        for plan in plans:
            spoils(memory, plan)
        return outcomes

    monkeypatch.setattr(LocalMemory, "land", landed)


@pytest.mark.parametrize("spoil", [False, True])
def test_the_private_copy_of_a_full_hit_is_checked(
    monkeypatch: pytest.MonkeyPatch, *, spoil: bool
) -> None:
    def spoils(memory: LocalMemory, plan: by.Plan) -> None:
        if spoil and plan.source_tier == plan.destination_tier:
            memory._device.planes[0][plan.destinations] ^= 1

    spoiled(monkeypatch, spoils)
    # Four blocks, whole: their last token is computed again, in a copy of the last block.
    trace = again(asked([(5_000 * request, 64, 2) for request in range(3)]))
    result = run(spec_of(trace, verify="memory"), trace, quiet)
    assert result.moved.blocks_across == 2
    # Once, when the copy has landed: the engine hears of the request only then.
    assert there(result.verified).checked == 2 * 4
    assert there(result.verified).wrong == (2 if spoil else 0)


def test_half_of_the_copies_are_made_as_late_as_they_may_be() -> None:
    config = by.Config(device=65, host=64, layout=scaled(16, 1))
    slots, keys = np.arange(64, dtype=np.int32), np.arange(64, dtype=np.uint64)

    def late(seed: int) -> list[int]:
        memory = LocalMemory(config, seed=seed)
        memory.write(slots, keys)
        down = [plan_of([slot], flight=slot + 1 << 32) for slot in range(64)]
        memory.submit(down)
        patience = time.monotonic() + 10
        while memory._crane.in_flight and time.monotonic() < patience:
            memory._early |= {outcome.flight: outcome for outcome in memory._crane.poll()}
        # Early plans have copied the old bytes, late ones the new bytes.
        memory.write(slots, keys + np.uint64(64))
        assert [outcome.good for outcome in memory.land(down)] == [1] * 64
        up = plan_of(64, flight=1 << 40, way="host device")
        memory.submit([up])
        memory.land([up])
        seen = [memory.wrong(slots[at : at + 1], keys[at : at + 1]) for at in range(64)]
        memory.close()
        return seen

    assert late(1) == late(1) != late(2)
    assert 16 < sum(late(1)) < 48


def test_a_slot_given_away_before_its_copy_has_landed_is_noticed(
    monkeypatch: pytest.MonkeyPatch, trace: Trace
) -> None:
    dispatch = by.KVCache.dispatch

    def hasty(cache: by.KVCache) -> list[by.Plan]:
        plans = dispatch(cache)
        cache.commit([plan for plan in plans if plan.source_tier == "host"])
        return plans

    # From now on the next copy down may go where a copy up still has to read.
    monkeypatch.setattr(by.KVCache, "dispatch", hasty)
    slow = hardware.preset("llama-3-8b/h100").with_({"link_bytes_per_second": 1e9})
    spec = spec_of(trace, roofline=slow, gate=False, host_blocks=900, verify="memory")
    result = run(spec, trace, quiet)
    assert there(result.verified).wrong > 10


def test_a_rank_whose_process_is_gone_is_named() -> None:
    memory = ProcessMemory(by.Config(device=8, host=4, layout=scaled(16, 2)))
    try:
        assert [hello.rank for hello in memory.hello()] == [0, 1]
        process = memory._ranks[1][0]
        process.kill()
        process.join()
        with pytest.raises(by.Unavailable, match="rank 1 is gone"):
            memory.hello()
    finally:
        memory.close()


def test_a_rank_does_not_hear_ctrl_c() -> None:
    memory = ProcessMemory(by.Config(device=8, host=4, layout=scaled(16, 2)))
    try:
        for _ in range(5):
            for process, _pipe in memory._ranks:
                os.kill(process.pid, signal.SIGINT)
            time.sleep(0.02)
        assert len(memory.hello()) == 2
    finally:
        memory.close()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_what_goes_wrong_in_a_rank_is_raised_here() -> None:
    config = by.Config(device=8, host=4, layout=scaled(16, 2))
    memory = ProcessMemory(config)
    try:
        plans = [plan_of([1], [99], flight=1 << 32)]
        memory.submit(plans)
        with pytest.raises(by.Misuse, match="host slot 99"):
            memory.land(plans)
    finally:
        memory.close()


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
        line.close(float(second), [second, 0, 0, 0, 0, 0])
    series = line.series([7, 0, 0, 0, 0, 0])
    assert sum(series.missed) == 5_000 * 5_001 // 2
    assert len(series.seconds) <= 401
    assert np.allclose(np.diff(series.seconds), series.seconds[0])
    assert series.device_used[0] == series.seconds[0]
    assert series.device_used[-1] == 5_000


# -- preemption, reservation and roles -----------------------------------------------------------


def decoding(requests: int = 24) -> Trace:
    """Short prompts and long answers: a batch that outgrows a small device."""
    return asked([(20 * at, 64 + 16 * (at % 5), 300 + 7 * at) for at in range(requests)])


def squeezed(trace: Trace, **changes: Any) -> RunSpec:
    return spec_of(trace, **{"device_blocks": 220, "host_blocks": 0} | changes)


HEADROOMS = ("none", "watermark", "adaptive", "full-length")


@pytest.mark.parametrize("host", [0, 300])
@pytest.mark.parametrize("victims", ["newest", "least-computed"])
@pytest.mark.parametrize("headroom", HEADROOMS)
def test_a_preempted_request_gives_all_its_tokens_and_finds_its_own_bytes(
    headroom: Any, victims: Any, host: int
) -> None:
    trace = decoding()
    spec = squeezed(trace, headroom=headroom, victims=victims, host_blocks=host, verify="memory")
    result = run(spec, trace, quiet)
    assert (result.requests, result.complete, result.audit) == (24, True, "ok")
    assert result.output_tokens == trace.output_length.sum()
    assert result.input_tokens == trace.input_length.sum()
    right(result)
    gone = there(result.preempted)
    assert (gone.count > 0) == (headroom != "full-length")
    assert sum(there(result.series).preempted) == gone.count
    assert gone.requests <= gone.count
    assert (gone.parked, gone.lost) == ((gone.count, 0) if host else (0, gone.lost))
    assert host or gone.relieved == 0
    # What was lost is found again, computed again, or both in part.
    assert gone.lost <= gone.found + gone.recomputed + 16 * gone.count
    if host:
        assert gone.recomputed == 0
        assert headroom == "full-length" or 0 < gone.relieved <= gone.kept
        # Where few are preempted, all that is kept may have to go.
        assert headroom in {"adaptive", "full-length"} or gone.relieved < gone.kept
    assert 0 <= gone.share < 1
    assert (gone.away_ms.max > 0) == (gone.count > 0)
    assert modelled(result) == modelled(run(dataclasses.replace(spec, verify=None), trace, quiet))


def test_the_more_is_reserved_the_less_is_preempted_and_computed_again() -> None:
    trace = decoding()
    gone = {}
    for headroom in HEADROOMS:
        result = run(squeezed(trace, headroom=headroom), trace, quiet)
        gone[headroom] = there(result.preempted)
        assert (result.headroom, result.role, result.victims) == (headroom, "mixed", "newest")
    assert gone["none"].count >= gone["watermark"].count > gone["full-length"].count == 0
    assert (
        gone["none"].recomputed > gone["adaptive"].recomputed > gone["full-length"].recomputed == 0
    )


def test_what_is_promised_is_what_the_policy_promises() -> None:
    trace = decoding(20)
    kept = {}
    for headroom in HEADROOMS:
        found = there(run(squeezed(trace, headroom=headroom), trace, quiet).reservations)
        assert found.tickets is None
        kept[headroom] = found
    assert kept["none"].promised_peak == 0
    assert (kept["watermark"].headroom_peak, kept["watermark"].promised_peak) == (2, 2)
    assert kept["adaptive"].headroom_peak == kept["adaptive"].promised_peak > 2
    assert kept["adaptive"].headroom == pytest.approx(kept["adaptive"].promised)
    assert kept["full-length"].headroom_peak == 0
    assert 0 < kept["full-length"].promised < kept["full-length"].promised_peak <= 220


def test_two_that_need_the_whole_device_and_are_preempted_both_end() -> None:
    # Each fits alone, with its last token.
    trace = asked([(0, 64, 1_536), (0, 64, 1_536), (0, 1_500, 100)])
    result = run(squeezed(trace, device_blocks=100, headroom="none", verify="memory"), trace, quiet)
    assert (result.requests, result.output_tokens) == (3, 2 * 1_536 + 100)
    right(result)


def test_a_gap_between_tokens_spans_the_time_that_a_request_was_away() -> None:
    trace = decoding()
    result = run(squeezed(trace, headroom="none"), trace, quiet)
    calm = run(squeezed(trace, headroom="full-length"), trace, quiet)
    away = there(result.preempted).away_ms.max
    assert there(result.itl_ms).max >= away > 10 * there(calm.itl_ms).max
    # Every token except each first one has a gap, also after a preemption.
    replay = opened(squeezed(trace, headroom="none", verify="memory"), trace)
    replay.run(quiet)
    replay.memory.close()
    assert sum(rows for _, rows in replay.counts.gaps) == trace.output_length.sum() - len(trace)
    assert len(replay.counts.ttft) == len(trace)


def test_a_prefill_engine_gives_first_tokens_and_no_others(trace: Trace) -> None:
    result = run(spec_of(trace, role="prefill", headroom="none", verify="memory"), trace, quiet)
    assert (result.requests, result.output_tokens, result.role) == (150, 150, "prefill")
    assert result.input_tokens == trace.input_length.sum()
    assert there(result.itl_ms).max == 0
    assert there(result.preempted).count == 0
    right(result)
    mixed = run(spec_of(trace), trace, quiet)
    assert there(result.ttft_ms).mean < there(mixed.ttft_ms).mean


def test_a_decode_engine_computes_no_prompt_and_waits_for_room_and_for_the_link() -> None:
    trace = asked([(0, 3_200, 50)] * 3)
    spec = squeezed(
        trace, device_blocks=450, role="decode", headroom="full-length", verify="memory"
    )
    result = run(spec, trace, quiet)
    assert (result.requests, result.output_tokens) == (3, 150)
    right(result)
    tickets = there(there(result.reservations).tickets)
    # 200 blocks of prompt and four of answer each: two fit, and the third asks at every step.
    assert (tickets.granted, tickets.expired, tickets.blocks) == (3, 0, 600)
    assert tickets.refused > 40
    # Two prompts and their growth, while both are on their way.
    assert max(there(result.series).device_promised) == 408
    link = 1e3 * spec.roofline.copy_seconds(3_200)
    step = 1e3 * spec.roofline.step_seconds(0, 0.0, 0, 1, 3_200)
    assert there(result.waits).queue_ms.quantiles[0] == pytest.approx(link, rel=0.01)
    assert there(result.ttft_ms).quantiles[0] == pytest.approx(link + step, rel=0.01)
    assert there(result.ttft_ms).max > link + 50 * step
    assert there(result.itl_ms).max < 2 * step


def test_what_a_decode_engine_has_already_is_not_sent_again() -> None:
    trace = again(asked([(10_000 * at, 3_200, 20) for at in range(3)]))
    result = run(squeezed(trace, device_blocks=450, role="decode"), trace, quiet)
    assert there(there(result.reservations).tickets).blocks == 200
    assert result.hit_ratio > 0.6


@pytest.mark.parametrize("headroom", HEADROOMS)
def test_a_squeezed_decode_engine_ends_every_request(headroom: Any) -> None:
    trace = decoding()
    result = run(squeezed(trace, role="decode", headroom=headroom, verify="memory"), trace, quiet)
    assert (result.requests, result.output_tokens) == (24, trace.output_length.sum())
    right(result)
    assert (there(result.preempted).count > 0) == (headroom != "full-length")
    assert result.audit == "ok"


def test_a_decode_engine_refuses_what_never_fits() -> None:
    trace = asked([(0, 8_000, 10), (0, 64, 10)])
    result = run(squeezed(trace, role="decode"), trace, quiet)
    assert (result.requests, result.refused, result.complete) == (1, 1, True)


def test_an_answer_that_is_not_the_trace_s_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = decoding(3)
    sampled = Tokens.sampled

    def forgetful(tokens: Tokens, requests: Any, places: Any) -> Any:
        return sampled(tokens, requests, np.minimum(places, 5))

    monkeypatch.setattr(Tokens, "sampled", forgetful)
    result = run(squeezed(trace, verify="memory"), trace, quiet)
    assert there(result.verified).wrong_answers == 3


def test_a_byte_that_spoils_while_a_request_is_away_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    starts = Verifier.starts

    def spoiled(verifier: Verifier, request: int, slots: Any) -> None:
        if request in verifier.keys and len(slots):
            assert isinstance(verifier._memory, LocalMemory)
            verifier._memory._device.planes[0][slots[0]] ^= 1
        starts(verifier, request, slots)

    monkeypatch.setattr(Verifier, "starts", spoiled)
    trace = decoding()
    result = run(squeezed(trace, headroom="none", verify="memory"), trace, quiet)
    assert there(result.verified).wrong > 0


def test_a_run_that_is_stuck_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Admission, "admit", lambda _: Admitted([], [], [], [], []))
    trace = decoding(3)
    with pytest.raises(by.Unavailable, match=r"no request runs, .* and 3 requests wait"):
        run(squeezed(trace), trace, quiet)


@given(st.integers(0, 2**64 - 1), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 29))))
def test_one_token_of_an_answer_is_what_the_whole_answer_has(
    seed: int, places: list[tuple[int, int]]
) -> None:
    tokens = Tokens(asked([(0, 16, 30)] * 3), seed)
    whole = np.array([tokens.output(request) for request in range(3)])
    requests, at = np.array(places, np.int64).reshape(-1, 2).T
    assert np.array_equal(tokens.sampled(requests, at), whole[requests, at])
