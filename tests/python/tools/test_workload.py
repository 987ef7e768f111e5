"""Generated traffic and tokens: the same for the same seed, and equal where ids say so."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import blockyard as by
from blockyard.tools.replay.tokens import Tokens
from blockyard.tools.traces.trace import Trace, read
from blockyard.tools.traces.workload import Workload, generate
from traces import CONVERSATION, made, real
from yard import profile

M64 = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15

WORKLOADS = st.builds(
    Workload,
    trace_block=st.sampled_from([1, 7, 16, 64]),
    context=st.sampled_from([512, 3000]),
    agents=st.sampled_from([0.0, 0.4, 1.0]),
    chat_prompts=st.integers(1, 3),
    chat_prompt_tokens=st.sampled_from([5.0, 100.0]),
    agent_prompts=st.just(1),
    agent_prompt_tokens=st.just(200.0),
    chat_turns=st.sampled_from([1.0, 5.0]),
    agent_turns=st.just(6.0),
    agent_forks=st.sampled_from([0.0, 0.5]),
    agent_fork_turns=st.just(2.0),
    zipf=st.sampled_from([0.0, 1.2]),
)


def small(seed: int, workload: Workload | None = None, requests: int = 25) -> Trace:
    return generate(seed, requests=requests, rate=2.0, workload=workload)


def test_the_same_seed_gives_the_same_trace_on_every_machine() -> None:
    assert generate(7, requests=200) == generate(7, requests=200)
    assert generate(7, requests=200) != generate(8, requests=200)
    assert (
        generate(7, requests=200).digest()
        == "a677841ae2f563bb71df6a0a239fe2ca10ee5677d5cf038037b551964a56bbe9"
    )


def test_fewer_requests_are_the_first_of_more() -> None:
    many, few = small(3, requests=60), small(3, requests=20)
    assert few.input_length.tolist() == many.input_length[:20].tolist()
    assert few.ids.tolist() == many.ids[: len(few.ids)].tolist()
    assert few.arrival.tolist() == many.arrival[:20].tolist()


@given(st.integers(0, 2**64), WORKLOADS)
@profile(25)
def test_a_generated_trace_is_one_that_can_be_read(
    tmp_path_factory: pytest.TempPathFactory, seed: int, workload: Workload
) -> None:
    trace = small(seed, workload)
    path = tmp_path_factory.mktemp("w") / "w.jsonl"
    trace.write(path)
    assert read(path, trace_block=workload.trace_block) == trace
    assert len(trace) == 25
    assert (trace.input_length + trace.output_length <= workload.context).all()
    assert (np.diff(trace.offsets) == -(-trace.input_length // workload.trace_block)).all()


def test_the_block_of_a_saved_workload_is_found_again(tmp_path: Path) -> None:
    trace = generate(1, requests=50)
    trace.write(tmp_path / "w.jsonl")
    assert read(tmp_path / "w.jsonl").trace_block == Workload().trace_block


def test_a_next_turn_begins_with_the_last_ones_full_blocks() -> None:
    trace = generate(5, requests=300)
    before: dict[int, Any] = {}
    later = 0
    for request, session in enumerate(trace.session.tolist()):
        ids = trace.ids_of(request)
        full = ids[: trace.input_length[request] // trace.trace_block].tolist()
        if session in before:
            last, turn = before[session]
            assert full[: len(last)] == last
            grown = trace.input_length[request] - trace.input_length[turn]
            assert grown > trace.output_length[turn]
            # The blocks after it, with the answer, are new.
            assert min(ids[len(last) :], default=10**9) > max(last, default=-1)
            later += 1
        before[session] = (full, request)
    assert later > 100


def test_system_prompts_are_shared_the_first_most() -> None:
    trace = small(2, Workload(agents=0.0, chat_turns=1.0, zipf=1.5), requests=300)
    _, counts = np.unique(trace.ids[trace.offsets[:-1]], return_counts=True)
    assert len(counts) == Workload().chat_prompts
    assert counts.max() > 100


def test_sub_agents_go_on_from_the_prefix_of_their_session() -> None:
    trace = small(4, Workload(agents=1.0, agent_prompts=1, agent_forks=0.5), requests=200)
    names = [trace.sessions[session] for session in trace.session]
    subs = [i for i, name in enumerate(names) if name.startswith("sub-agent")]
    firsts = [i for i in subs if names.index(names[i]) == i]
    agents = [set(trace.ids_of(i).tolist()) for i in range(len(trace)) if i not in subs]
    system = min(len(ids) for ids in agents)
    assert len(firsts) > 5
    for first in firsts:
        # More than the system prompt alone.
        common = max(len(ids & set(trace.ids_of(first).tolist())) for ids in agents)
        assert common > system // 2


def test_requests_come_at_the_rate_asked_for() -> None:
    trace = generate(9, requests=4_000, rate=10.0)
    # Over the later half, when as many sessions end as begin.
    seconds = (trace.arrival[-1] - trace.arrival[2_000]) / 1000
    assert 2_000 / seconds == pytest.approx(10.0, rel=0.15)


@pytest.mark.parametrize(
    "knob",
    [
        {"agents": 1.5},
        {"agents": float("nan")},
        {"trace_block": 0},
        {"trace_block": 1.5},
        {"context": 100},
        {"chat_prompts": 0},
        {"chat_turns": 0.5},
        {"zipf": -1},
        {"agent_think": -1},
    ],
)
def test_a_knob_out_of_range_is_named(knob: dict[str, Any]) -> None:
    ((name, value),) = knob.items()
    with pytest.raises(by.Misuse, match=f"{name} = {value}: must be"):
        Workload(**knob)


@pytest.mark.parametrize(
    "wrong", [{"seed": -1}, {"requests": 0}, {"rate": 0.0}, {"rate": float("inf")}]
)
def test_an_argument_out_of_range_is_named(wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(by.Misuse, match=f"{name} = {value}: must be"):
        generate(**({"seed": 1} | wrong))


# Tokens.


def mixed(word: int) -> int:
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & M64
    word = (word ^ word >> 27) * 0x94D049BB133111EB & M64
    return word ^ word >> 31


def run(kind: int, number: int, length: int, seed: int, vocab: int) -> list[int]:
    """What `Tokens` gives, token by token."""
    start = mixed((number * GOLDEN + mixed((seed + kind * GOLDEN) & M64)) & M64)
    words = (mixed((start + at * GOLDEN) & M64) for at in range(1, length + 1))
    return [(word >> 32) * vocab >> 32 for word in words]


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 9)), min_size=1, max_size=4),
    st.integers(1, 20),
    st.integers(0, M64),
    st.sampled_from([1, 100, 128_256, 2**32]),
)
@profile(50)
def test_tokens_are_those_of_a_naive_loop(
    prompts: list[tuple[int, int]], block: int, seed: int, vocab: int
) -> None:
    trace = made(
        [(length, list(range(min(ids, -(-length // block))))) for length, ids in prompts], block, 5
    )
    tokens = Tokens(trace, seed, vocab=vocab)
    for request, (length, _) in enumerate(prompts):
        want = [t for i in trace.ids_of(request).tolist() for t in run(1, i, block, seed, vocab)]
        want = (want + run(2, request, length, seed, vocab))[:length]
        prompt = tokens.prompt(request)
        assert prompt.dtype == np.uint32
        assert prompt.tolist() == want
        assert tokens.output(request).tolist() == run(3, request, 5, seed, vocab)


@given(st.integers(0, 1000), WORKLOADS)
@profile(15)
def test_equal_ids_have_equal_prefixes_and_other_ids_other_tokens(
    seed: int, workload: Workload
) -> None:
    trace = small(seed, workload)
    tokens = Tokens(trace, seed)
    prefixes: dict[int, bytes] = {}
    for request in range(len(trace)):
        prompt = tokens.prompt(request)
        assert len(prompt) == trace.input_length[request]
        for depth, block in enumerate(trace.ids_of(request).tolist()):
            prefix = prompt[: (depth + 1) * workload.trace_block].tobytes()
            assert prefixes.setdefault(block, prefix) == prefix
        assert len(tokens.output(request)) == trace.output_length[request]
    if workload.trace_block > 1:
        assert len(set(prefixes.values())) == len(prefixes)


def test_another_seed_gives_other_tokens_and_all_are_below_the_vocabulary() -> None:
    trace = made([(10_000, range(20))], 512)
    first, second = (Tokens(trace, seed, vocab=1000).prompt(0) for seed in (1, 2))
    assert first.max() == 999
    assert first.min() == 0
    assert np.mean(first == second) < 0.01


def test_answers_and_uncovered_ends_of_equal_prompts_differ() -> None:
    trace = made([(100, [0]), (100, [0])], 32, answer=40)
    tokens = Tokens(trace)
    assert tokens.prompt(0)[:32].tolist() == tokens.prompt(1)[:32].tolist()
    assert tokens.prompt(0)[32:].tolist() != tokens.prompt(1)[32:].tolist()
    assert tokens.output(0).tolist() != tokens.output(1).tolist()


@pytest.mark.parametrize("wrong", [{"seed": -1}, {"seed": 2**64}, {"vocab": 0}, {"vocab": 2**33}])
def test_tokens_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(by.Misuse, match=f"{name} = {value}: must be"):
        Tokens(made([(1, [0])], 16), **wrong)


def test_all_tokens_of_a_real_trace_take_a_few_seconds() -> None:
    trace = read(real(CONVERSATION))
    tokens = Tokens(trace)
    start = time.thread_time()
    assert sum(len(tokens.prompt(request)) for request in range(len(trace))) == 144_793_823
    # 0.6 when nothing else runs.
    assert time.thread_time() - start < 6
