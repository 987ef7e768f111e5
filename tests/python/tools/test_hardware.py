"""The roofline: published figures in, plausible times out, and every figure can be replaced."""

import dataclasses
import re
from typing import Any

import pytest

import blockyard as by
from blockyard.tools.replay.hardware import MACHINES, MODELS, preset


# Llama-3-8B on an H200, 50 GB/s: what recomputing costs, as a multiple of copying out and in again.
@pytest.mark.parametrize(
    ("tokens", "ratio"), [(1 << 10, 5.9), (1 << 13, 7.0), (1 << 15, 9.5), (1 << 17, 19.0)]
)
def test_recomputing_costs_as_many_times_a_round_trip_as_simulated(
    tokens: int, ratio: float
) -> None:
    roofline = preset("llama-3-8b/h200").with_({"link_bytes_per_second": 50e9})
    modelled = roofline.prefill_seconds(tokens) / (2 * roofline.copy_seconds(tokens))
    assert modelled == pytest.approx(ratio, rel=0.03)


def test_a_slow_link_eats_the_advantage() -> None:
    slow = preset("llama-3-8b/h200").with_({"link_bytes_per_second": "10e9"})
    assert 1.2 < slow.prefill_seconds(1024) / (2 * slow.copy_seconds(1024)) < 1.4


def test_a_llama_takes_the_bytes_that_are_published() -> None:
    assert preset("llama-3-8b/h100").kv_bytes_per_token == 128 * 1024
    assert preset("llama-3-70b/h100x4").kv_bytes_per_token == 320 * 1024
    # Beyond one rank per KV head, heads are there several times.
    assert preset("qwen2.5-7b/h100x8").kv_bytes_per_token == 2 * 28 * 8 * 128 * 2


@pytest.mark.parametrize("model", MODELS)
def test_a_block_takes_the_bytes_of_the_layout_of_the_same_name(model: str) -> None:
    roofline = dataclasses.replace(preset(f"{model}/h100"), ranks=2)
    layout = by.KVLayout.preset(model, ranks=2)
    assert 16 * roofline.kv_bytes_per_token == layout.host_block_bytes


def test_the_device_holds_what_the_weights_leave() -> None:
    one = preset("llama-3-8b/h100")
    assert one.device_blocks(16) == (72_000_000_000 - 16_060_000_000) // (16 * 131_072)
    assert one.device_blocks(32) == one.device_blocks(16) // 2
    with pytest.raises(by.Misuse, match=r"llama-3-70b has 141 GB .* like h100x2"):
        preset("llama-3-70b/h100").device_blocks(16)


def test_decode_is_bound_by_memory_and_prefill_by_arithmetic() -> None:
    roofline = preset("llama-3-8b/h100")
    step, overhead = roofline.step_seconds, roofline.overhead
    weights = 16.06e9 / (3.35e12 * 0.8)
    assert step(0, 0, 0, 1, 0) == pytest.approx(weights + overhead, rel=1e-3)
    assert step(0, 0, 0, 64, 64 * 4000) > step(0, 0, 0, 64, 64 * 2000) > step(0, 0, 0, 64, 0)
    assert step(4096, 4096 * 2048, 4096, 0, 0) == pytest.approx(
        roofline.prefill_seconds(4096) + overhead, rel=1e-6
    )
    assert step(4096, 4096 * 2048, 4096, 64, 64 * 4000) > step(4096, 4096 * 2048, 4096, 0, 0)


def test_every_chunk_reads_what_is_before_it() -> None:
    step = preset("llama-3-8b/h100").step_seconds
    context = 64 * 30_000
    assert step(64, context, context, 0, 0) == step(0, 0, 0, 64, context)
    assert step(64, context, context, 0, 0) > 10 * step(1, 30_000, 30_000, 0, 0)


def test_more_ranks_and_faster_gpus_take_less_time() -> None:
    work = (2048, 2048 * 1024, 2048, 32, 32 * 2000)
    names = ["llama-3-70b/a100x4", "llama-3-70b/h100x4", "llama-3-70b/h100x8", "llama-3-70b/b200x8"]
    seconds = [preset(name).step_seconds(*work) for name in names]
    assert seconds == sorted(seconds, reverse=True)
    assert len(set(seconds)) == len(seconds)


def test_few_tokens_of_a_mixture_read_few_of_its_experts() -> None:
    mixture = preset("mixtral-8x7b/h100x2")
    assert mixture.step_seconds(0, 0, 0, 1, 0) < 0.5 * mixture.step_seconds(0, 0, 0, 64, 0)
    same = mixture.with_({"active": mixture.model.params})
    assert mixture.prefill_seconds(1000) < 0.3 * same.prefill_seconds(1000)


def test_speeds_are_those_of_one_block_among_many() -> None:
    roofline = preset("llama-3-8b/h200")
    load, compute, attend = roofline.block_costs(16)
    assert load == pytest.approx(16 * 131_072 / 50, rel=1e-3)
    # A prompt is its blocks, one after another.
    blocks = 500
    whole = blocks * compute + attend * blocks * (blocks - 1) // 2
    assert whole == pytest.approx(1e9 * roofline.prefill_seconds(16 * blocks), rel=1e-2)
    assert roofline.block_costs(32)[0] == pytest.approx(2 * load, abs=1)
    # Each rank loads its share over its own link.
    assert preset("llama-3-8b/h200x2").block_costs(16)[0] == pytest.approx(load / 2, abs=1)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("machine", MACHINES)
def test_every_preset_gives_times_and_sizes(model: str, machine: str) -> None:
    roofline = preset(f"{model}/{machine}x8")
    if model != "llama-3.1-405b" or machine in {"h200", "b200"}:
        assert roofline.device_blocks(16) > 1000
    assert 1e-3 < roofline.step_seconds(0, 0, 0, 1, 1000) < 0.2
    assert min(roofline.block_costs(16)) > 0


def test_every_figure_can_be_given() -> None:
    roofline = preset("llama-3-8b/h100x2")
    for name, value in roofline.figures().items():
        other = roofline.with_({name: str(value * 0.5)}) if name != "active" else roofline
        if name not in {"active", "params"}:
            changed = {n for n, v in other.figures().items() if v != roofline.figures()[n]}
            assert changed == {name}
    assert roofline.with_({}) == roofline
    # Of a dense model all parameters stay active.
    assert roofline.with_({"params": "4e9"}).model.active == 4e9


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("llama3-8b/h100", "unknown model 'llama3-8b': did you mean 'llama-3-8b'?"),
        ("llama-3-8b/h1000", "unknown GPU 'h1000': did you mean 'h100'?"),
        ("llama-3-8b/h100x0", "unknown GPU 'h100x0': did you mean 'h100'?"),
        ("llama-3-8b/", "unknown GPU ''"),
        ("llama-3-8b", "must be a model and a GPU, like 'llama-3-8b/h100'"),
    ],
)
def test_an_unknown_preset_is_answered_with_the_nearest(name: str, says: str) -> None:
    with pytest.raises(by.Misuse, match=re.escape(says)):
        preset(name)


@pytest.mark.parametrize(
    ("figures", "says"),
    [
        ({"flps": 1}, "unknown figure 'flps': did you mean 'flops'?"),
        ({"flops": "fast"}, "flops = 'fast': must be a number"),
        ({"flops": "nan"}, "flops = 'nan': must be a number"),
        ({"flops": "inf"}, "flops = inf: must be a number"),
        ({"flops": 0}, "flops = 0: must be a number"),
        ({"layers": 2.5}, "layers = 2.5: must be an integer, like 32"),
        ({"layers": "inf"}, "layers = 'inf': must be a number"),
        ({"ranks": "0"}, "ranks = 0: must be a number from 1"),
        ({"hbm_share": 1.5}, "hbm_share = 1.5: must be a number from 1e-12 to 1"),
        ({"link_latency": -1}, "link_latency = -1: must be a number from 0"),
        ({"active": 9e9}, "active = 9e+09: must be at most params = 8.03e+09"),
    ],
)
def test_a_figure_that_cannot_be_is_refused(figures: dict[str, Any], says: str) -> None:
    with pytest.raises(by.Misuse, match=re.escape(says)):
        preset("llama-3-8b/h100").with_(figures)
