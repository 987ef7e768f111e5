"""The sweep: exact where it says so, near where it samples, and a true sentence at the end."""

import itertools
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from msgspec.structs import replace as replaced

from blockyard import Misuse
from blockyard._typing import override
from blockyard.shared.sizes import parse_blocks
from blockyard.tools.replay.hardware import preset
from blockyard.tools.replay.sequential import sequential
from blockyard.tools.sweep.jobs import head
from blockyard.tools.sweep.optimum import Future
from blockyard.tools.sweep.options import Plan
from blockyard.tools.sweep.recency import Curve
from blockyard.tools.sweep.result import SweepResult
from blockyard.tools.sweep.run import sweep
from blockyard.tools.sweep.sampling import Sample, suitable
from blockyard.tools.sweep.sizes import Split, SplitText, geometric
from blockyard.tools.sweep.summary import Setting, _better
from blockyard.tools.sweep.terminal import Display
from blockyard.tools.traces.adversaries import ADVERSARIES
from blockyard.tools.traces.future import full_blocks
from blockyard.tools.traces.trace import Trace, read
from blockyard.tools.traces.workload import Workload, generate
from traces import AGENTIC, CLAUDE_CODE, CONVERSATION, made, real

GIB = 2**30
BLOCK = 131_072
"""Bytes of a token of llama-3-8b: 2 * 32 layers * 8 heads * 128 * 2 bytes."""


def tree(seed: int) -> Trace:
    """Random prompts that share prefixes; some are longer than most caches."""
    draw = np.random.default_rng(seed)
    paths: list[list[int]] = [[]]
    prompts = []
    for _ in range(60):
        base = paths[draw.integers(len(paths))]
        path = base[: draw.integers(len(base) + 1)] + [
            int(i) for i in draw.integers(10**6, size=draw.integers(0, 9))
        ]
        paths.append(path)
        # Some end in a part of a block, and some before their last id.
        prompts.append((max(1, 4 * len(path) - int(draw.integers(0, 3))), path))
    return made(prompts, 4)


def plan(trace: Trace, **wanted: Any) -> Plan:
    block = BLOCK * trace.trace_block
    roofline = preset("llama-3-8b/h100")
    usual: dict[str, Any] = {
        "roofline": roofline,
        "preset": "llama-3-8b/h100",
        "block_bytes": block,
        "device_blocks": roofline.device_blocks(trace.trace_block),
        "sizes": (),
        "first": None,
        "last": None,
        "points": 6,
        "orders": ("learned",),
        "optimum": True,
        "splits": (),
        "model_sizes": (),
        "model_requests": 0,
        "sample": None,
        "seed": 0,
    }
    return Plan(trace=trace, **usual | wanted)


def swept(trace: Trace, **wanted: Any) -> SweepResult:
    return sweep(plan(trace, **wanted), "blockyard sweep", Display(None), 1)


@pytest.mark.parametrize("seed", range(6))
def test_recency_is_that_of_the_replay_at_every_size(seed: int) -> None:
    trace = tree(seed)
    curve = Curve.of(trace)
    distinct = len(np.unique(trace.ids))
    longest = int(full_blocks(trace).max())
    assert longest > 8  # so at many sizes a prompt is cut to what fits
    for size in range(1, distinct + 2):
        assert curve.hits(size) == sequential(trace, device_blocks=size).hits.sum()
    assert curve.most == curve.hits(distinct)
    assert curve.hits(curve.enough) == curve.most > curve.hits(curve.enough - 1)


@pytest.mark.parametrize("seed", range(6))
def test_the_bound_is_that_of_the_replay_at_every_size(seed: int) -> None:
    trace = tree(seed)
    future = Future(trace)
    for size in range(1, len(np.unique(trace.ids)) + 2):
        bound = sequential(trace, device_blocks=size, policy="optimum").hits.sum()
        assert future.hits(size) == bound


@pytest.mark.parametrize(
    ("name", "block"), [(CONVERSATION, 512), (CLAUDE_CODE, 512), (AGENTIC, 16)]
)
def test_real_traces_agree_with_the_replay_to_the_last_block(name: str, block: int) -> None:
    trace = read(real(name), trace_block=block, requests=800)
    curve, future = Curve.of(trace), Future(trace)
    for size in (40, 700, 6000):
        assert curve.hits(size) == sequential(trace, device_blocks=size).hits.sum()
    bound = sequential(trace, device_blocks=700, policy="optimum").hits.sum()
    assert curve.hits(700) <= future.hits(700) == bound


def test_a_curve_tells_the_size_for_so_many_hits() -> None:
    curve = Curve(np.array([3, 10]), np.array([5, 9]))
    assert [curve.hits(size) for size in (1, 2, 3, 9, 10, 99)] == [0, 0, 5, 5, 9, 9]
    assert [curve.size_of(hits) for hits in (0, 1, 5, 5.5, 9)] == [0, 3, 3, 10, 10]
    assert curve.size_of(10) is None


def sessions(*shared: int, count: int = 100, turns: int = 3, own: int = 8) -> Trace:
    """Sessions that take turns; each begins with as many shared blocks, and has some of its own."""
    names = itertools.count(10**6)
    each = {s: [next(names) for _ in range(own)] for s in range(count)}
    paths = [
        [*range(1000 * (s % len(shared)), 1000 * (s % len(shared)) + shared[s % len(shared)])]
        + each[s]
        for _ in range(turns)
        for s in range(count)
    ]
    return made([(4 * len(path), path) for path in paths], 4)


def test_behind_the_knee_no_doubling_is_worth_it() -> None:
    for trace in (tree(3), tree(4), sessions(12), sessions(3, 30, count=20)):
        curve = Curve.of(trace)
        for least in (0.5, 1, 3, 9, 40):
            worth = [
                size
                for size in range(curve.enough + 1)
                if curve.hits(2 * size) - curve.hits(size) >= least
            ]
            half = next(n for n in range(curve.enough + 1) if 2 * curve.hits(n) >= curve.most)
            assert curve.knee(least) == max([half, *(size + 1 for size in worth)])
    assert Curve(np.zeros(0, np.int64), np.zeros(0, np.int64)).knee(1) == 0


def test_what_all_sessions_share_is_not_all_that_is_worth_buying() -> None:
    trace = sessions(12)
    assert Curve.of(trace).hits(12) * 4 / int(trace.input_length.sum()) == pytest.approx(0.598)
    result = swept(trace, device_blocks=100)
    assert (result.advice.blocks, result.advice.next_gain) == (12 + 100 * 8, 0)
    assert result.advice.hit_ratio == pytest.approx(0.865, abs=0.001)
    assert first(result).startswith("Buy 406 MiB: it finds 86.5 % of the prompt tokens")
    assert "50.0 MiB that llama-3-8b/h100 has beside its weights find 59.8 %" in result.answer[1]


def test_a_long_slope_without_a_worthy_doubling_has_its_knee_at_half() -> None:
    slope = Curve(2 ** np.arange(12), np.arange(1, 13))
    assert slope.knee(2) == slope.size_of(6) == 32


@pytest.mark.parametrize("device", [10, 812, 10**5])
def test_what_the_device_finds_by_itself_is_always_said(device: int) -> None:
    prompts = [(4 * 20, list(range(20 * i, 20 * i + 20))) for i in range(20)]
    for trace in (sessions(12), made([*prompts, (8, [0, 1])], 4)):
        result = swept(trace, device_blocks=device, orders=(), splits=None)
        share = f"{result.device_hit_ratio:.1%}".replace("%", " %")
        assert f"beside its weights find {share} by themselves." in result.answer[1]


def test_nothing_below_a_cliff_is_a_knee() -> None:
    loop = ADVERSARIES["loop"](0, requests=300)
    curve = Curve.of(loop)
    tokens = int(loop.input_length.sum())
    assert curve.hits(curve.enough // 4) == 0
    assert curve.knee(0.01 * tokens / loop.trace_block) > curve.enough // 2


def test_a_sample_is_corrected_by_what_it_gets_wrong_under_recency() -> None:
    trace = generate(4, requests=2500, workload=Workload(trace_block=64))
    curve = Curve.of(trace)
    sample = Sample.of(trace, curve, 4)
    assert 0.2 < len(sample.trace.ids) / sample.uses < 0.3
    tokens = int(trace.input_length.sum()) / trace.trace_block
    for size in (400, 2000):
        thin = sequential(
            sample.trace, device_blocks=sample.size(size), policy="learned"
        ).hits.sum()
        whole = sequential(trace, device_blocks=size, policy="learned").hits.sum()
        assert abs(sample.corrected(size, int(thin)) - whole) / tokens < 0.01
        # Of recency the correction leaves the truth.
        thin = sequential(sample.trace, device_blocks=sample.size(size)).hits.sum()
        assert sample.corrected(size, int(thin)) == pytest.approx(curve.hits(size))


def test_only_what_is_large_is_sampled() -> None:
    small = generate(0, requests=50)
    assert suitable(small, 10**6) == 1
    large = replace(
        small,
        arrival=small.arrival.copy(),
        input_length=np.full(50, 2**31 - 1),
        output_length=small.output_length.copy(),
        ids=np.arange(3_000_000),
        offsets=np.linspace(0, 3_000_000, 51).astype(np.int64),
        session=np.zeros(0, np.int64),
    )
    assert suitable(large, 3_000_000) == 8
    assert suitable(large, 60_000) == 2  # a sample of few blocks says little


def test_a_sweep_has_the_figures_of_the_replay() -> None:
    trace = generate(1, requests=120)
    result = swept(trace)
    assert len(result.points) >= 6
    tokens = int(trace.input_length.sum())
    for point in result.points[::2]:
        assert max(point.hit_ratio.values()) == point.hit_ratio["optimum"]
        assert point.bytes == point.blocks * result.block_bytes == point.blocks * 16 * BLOCK
        for order, ratio in point.hit_ratio.items():
            got = sequential(trace, device_blocks=point.blocks, policy=order)  # type: ignore[arg-type]
            assert ratio == pytest.approx(got.hits.sum() * 16 / tokens)
    assert result.complete
    assert result.sampled == 1
    advice = result.advice
    there = next(point for point in result.points if point.blocks == advice.blocks)
    assert (advice.hit_ratio, advice.bound) == (
        there.hit_ratio["recency"],
        there.hit_ratio["optimum"],
    )
    assert advice.next_gain < 0.01
    assert advice.better_hit_ratio == there.hit_ratio["learned"]


def test_splits_are_simulated_by_tier() -> None:
    trace = generate(2, requests=120)
    texts = [SplitText.parse(text, BLOCK * 16) for text in ("25%+75%", "1GiB+1GiB+1GiB")]
    result = swept(trace, splits=tuple(texts), optimum=False, points=2)
    assert [(one.split, one.order) for one in result.splits] == [
        (text, order) for text in ("25%+75%", "1GiB+1GiB+1GiB") for order in ("recency", "learned")
    ]
    for one in result.splits:
        got = sequential(
            trace,
            device_blocks=one.device_blocks,
            host_blocks=one.host_blocks,
            disk_blocks=one.disk_blocks,
            policy=one.order,  # type: ignore[arg-type]
        )
        assert one.hit_ratio == pytest.approx(got.hit_ratio)
        assert one.hit_ratio_by_tier["disk"] == pytest.approx(got.disk_hit_ratio)
        assert one.bytes_up == (got.blocks_up + got.disk_up) * result.block_bytes
    assert result.splits[0].device_blocks + result.splits[0].host_blocks == result.advice.blocks


def test_an_engine_is_modelled_at_the_knee_and_its_double() -> None:
    result = swept(generate(3, requests=40), model_requests=30, points=2, orders=())
    knee, double = result.modelled
    assert (knee.blocks, double.blocks) == (result.advice.blocks, 2 * result.advice.blocks)
    assert knee.requests == double.requests == 30
    assert knee.ttft_ms_p50 is not None
    assert 0 < knee.hit_ratio <= double.hit_ratio
    assert not knee.overloaded
    assert knee.device_bytes == knee.bytes  # it fits on the device


def test_beside_what_the_engine_finds_stands_what_copies_in_no_time_would_find() -> None:
    trace = generate(3, requests=40)
    (one,) = swept(trace, model_sizes=(300,), model_requests=30, device_blocks=100).modelled
    got = sequential(head(trace, 30), device_blocks=100, host_blocks=200)
    assert one.sequential_hit_ratio == got.hit_ratio > got.hit_ratio_by_tier["device"]


def first(result: SweepResult) -> str:
    return result.answer[0]


def test_the_answer_says_what_to_buy_and_what_the_next_doubling_gives() -> None:
    trace = generate(1, requests=200)
    result = swept(trace, device_blocks=100)
    answer, advice = first(result), result.advice
    assert advice.kind == "knee"
    assert answer.startswith("Buy ")
    assert f"{advice.hit_ratio:.1%}".replace("%", " %") in answer
    assert "twice as much would find 0.9" in answer
    assert "the learned order" in answer
    assert "beside its weights find" in result.answer[1]
    # What recency needs for as much is the least size that finds it.
    equal = advice.better_equals
    if equal is not None and advice.better_hit_ratio is not None:
        share = advice.better_hit_ratio * int(trace.input_length.sum()) / 16
        assert Curve.of(trace).hits(equal) >= round(share) > Curve.of(trace).hits(equal - 1)


def test_what_the_device_holds_need_not_be_bought() -> None:
    assert first(swept(generate(1, requests=60))).startswith("Buy no memory below the device: ")


def test_where_no_size_of_the_sweep_is_enough_it_says_so() -> None:
    result = swept(generate(1, requests=200), sizes=(50, 100), device_blocks=10)
    assert result.advice.kind == "beyond"
    assert first(result).startswith("None of these sizes is enough: 200 MiB, the largest, finds ")
    assert result.advice.blocks > 100


def test_where_nothing_comes_again_nothing_is_to_be_bought() -> None:
    result = swept(made([(8, [i, i + 1]) for i in range(0, 40, 2)], 4), splits=None)
    assert result.advice.kind == "nothing"
    assert "no size and no order finds anything" in first(result)
    assert {ratio for point in result.points for ratio in point.hit_ratio.values()} == {0.0}


def test_where_almost_nothing_comes_again_it_says_how_little() -> None:
    prompts = [(4 * 20, list(range(20 * i, 20 * i + 20))) for i in range(20)]
    result = swept(made([*prompts, (8, [0, 1])], 4))
    assert result.advice.kind == "little"
    assert "only 0.49 points of 100" in first(result)


def test_a_worse_order_is_called_worse() -> None:
    result = swept(generate(7, requests=200), orders=("learned",), sizes=(150, 300))
    assert "the learned order finds" in first(result)
    assert "less there" in first(result)


def test_an_order_that_wins_is_told_where_it_is_worth_most() -> None:
    result = swept(ADVERSARIES["loop"](0, requests=600))
    assert any("instead of 0.0 %" in sentence for sentence in result.answer)


def test_a_sample_is_named() -> None:
    result = swept(generate(1, requests=200), sample=2)
    assert result.sampled == 2
    assert "One block in 2 was simulated" in result.answer[-1]
    exact = swept(generate(1, requests=200), orders=())
    for one, other in zip(result.points, exact.points, strict=True):
        assert one.hit_ratio["recency"] == other.hit_ratio["recency"]
        assert one.hit_ratio["optimum"] == other.hit_ratio["optimum"]


class Interrupts(Display):
    """Presses Ctrl-C when so many jobs have begun."""

    def __init__(self, after: int) -> None:
        super().__init__(None)
        self.after = after

    @override
    def began(self, job: int) -> None:
        if job == self.after:
            signal.raise_signal(signal.SIGINT)


@pytest.fixture
def heard() -> Iterator[None]:
    """Hears Ctrl-C, also where the tests run in a background that ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard")
def test_ctrl_c_leaves_what_was_done() -> None:
    trace = generate(1, requests=60)
    result = sweep(plan(trace), "", Interrupts(2), 1)
    assert not result.complete
    learned = [point.blocks for point in result.points if "learned" in point.hit_ratio]
    # What the answer needs comes first, then the largest.
    assert learned == [result.advice.blocks, result.points[-1].blocks]
    assert all("optimum" in point.hit_ratio for point in result.points)
    assert result.answer


def test_processes_find_what_one_finds() -> None:
    trace = generate(1, requests=60)
    two = sweep(plan(trace, points=3), "blockyard sweep", Display(None), 2)
    assert two == swept(trace, points=3)


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("4096", 4096),
        ("1GiB", 512),
        ("1.5 gib", 768),
        (".5GiB", 256),
        ("2TiB", 2**20),
        ("1GB", 476),
    ],
)
def test_sizes_are_blocks_or_bytes(text: str, blocks: int) -> None:
    assert parse_blocks("--from", text, 2 * 2**20) == blocks


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "give blocks, or memory"),
        ("-1GiB", "give blocks, or memory"),
        ("nan", "give blocks, or memory"),
        ("1.5", "give blocks, or memory"),
        ("20g", "in KiB, MiB, GiB, TiB, MB, GB"),
        ("0", "less than one block"),
        ("1MiB", "less than one block of 2,097,152 bytes"),
        ("3 apples", "give blocks, or memory"),
        ("9999999999999TiB", "more than 1,000,000,000 blocks"),
    ],
)
def test_a_size_that_makes_no_sense_is_refused(text: str, said: str) -> None:
    with pytest.raises(Misuse, match=said) as caught:
        parse_blocks("--from", text, 2 * 2**20)
    assert str(caught.value).startswith("--from ")


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("100%", Split(1000, 0, 0)),
        ("20%+80%", Split(200, 800, 0)),
        ("1+1+2", Split(250, 250, 500)),
        ("33.3%+33.3%+33.4%", Split(333, 333, 334)),
        ("2MiB+4MiB", Split(1, 2, 0)),
        ("2MiB+0GiB+4MiB", Split(1, 0, 2)),
    ],
)
def test_a_split_is_of_shares_or_sizes(text: str, split: Split) -> None:
    assert SplitText.parse(text, 2 * 2**20).of(1000) == split


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1+1+1+1", "4 parts"),
        ("20%+1GiB", "one kind"),
        ("20%+20%", "40 % in all"),
        ("0%+100%", "a device of nothing"),
        ("1GiB+", "give blocks, or memory"),
        ("0GiB+1GiB", "less than one block"),
    ],
)
def test_a_split_that_makes_no_sense_is_refused(text: str, said: str) -> None:
    with pytest.raises(Misuse, match=said):
        SplitText.parse(text, 2 * 2**20)


def test_sizes_grow_by_one_factor() -> None:
    sizes = geometric(10, 10_000, 20)
    assert (len(sizes), sizes[0], sizes[-1]) == (20, 10, 10_000)
    assert max(b / a for a, b in itertools.pairwise(sizes)) < 1.5
    assert geometric(1, 4, 20) == [1, 2, 3, 4]
    assert len(geometric(1, 10_000, 20)) == 20


def test_progress_is_told_now_and_then() -> None:
    seen: list[float] = []

    class Told(Display):
        @override
        def told(self, job: int, progress: float) -> None:
            seen.append(progress)
            super().told(job, progress)

    sweep(plan(generate(1, requests=1100), points=2, optimum=False), "", Told(None), 1)
    assert seen
    assert all(0 < share <= 1 for share in seen)


def test_an_order_that_loses_in_a_split_is_not_praised() -> None:
    result = swept(tree(1), splits=(SplitText.parse("20%+80%", BLOCK),), points=2, sample=1)
    recency, learned = (
        next(each for each in result.splits if each.order == order)
        for order in ("recency", "learned")
    )
    found = result.advice.hit_ratio
    advice = replaced(
        result.advice, better="learned", better_hit_ratio=found + 0.05, better_equals=None
    )
    # Its setting is asked only for how much memory recency needs, which no size is here.
    setting = cast("Setting", None)
    for lost, said in ((0.021, "2.1 points less than recency in 20%+80%"), (0.0, "for nothing")):
        worse = replaced(learned, hit_ratio=recency.hit_ratio - lost)
        (sentence,) = _better(setting, advice, [recency, worse])
        assert said in sentence
        assert ("for nothing" in sentence) == (lost == 0.0)


def test_a_size_that_serves_nothing_has_no_times() -> None:
    trace = made([(40, [0, 1, 2]), (40, [0, 1, 3]), (40, [0, 1, 2])], 16)
    small, large = swept(trace, model_sizes=(1, 8), model_requests=3).modelled
    assert (small.requests, small.ttft_ms_p50, small.ttft_ms_p99) == (0, None, None)
    assert large.requests == 3
    assert large.ttft_ms_p50 is not None
