"""Stack distances: one pass tells what a simulation of every size finds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from blockyard.tools.replay.sequential import sequential
from blockyard.tools.traces.distances import NEVER, stack_distances
from blockyard.tools.traces.future import full_blocks, next_users, previous_users
from blockyard.tools.traces.trace import Trace, read
from traces import AGENTIC, CONVERSATION, made, real
from yard import profile


def paths_of(trace: Trace) -> NDArray[np.int64]:
    first = trace.offsets[:-1]
    return np.stack((first, first + full_blocks(trace)), 1)


def walks(prompts: list[list[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Paths in a tree: each prompt is a list of branches, and equal beginnings have equal ids."""
    known: dict[tuple[int, ...], int] = {}
    ids = [
        known.setdefault(tuple(prompt[: at + 1]), len(known))
        for prompt in prompts
        for at in range(len(prompt))
    ]
    ends = np.cumsum([0, *map(len, prompts)])
    return np.array(ids, np.int64), np.stack((ends[:-1], ends[1:]), 1)


def listed(ids: list[int], paths: list[list[int]]) -> list[int]:
    """The same distances from the order of the cache, kept as a plain list."""
    order: list[int] = []
    distances = [NEVER] * len(ids)
    for first, end in paths:
        path = ids[first:end]
        for place, block in enumerate(path, first):
            if block in order:
                distances[place] = order.index(block) + 1
        order = path + [block for block in order if block not in path]
    return distances


PROMPTS = st.lists(st.lists(st.integers(0, 2), max_size=6), min_size=1, max_size=25)


@given(PROMPTS)
@profile(200)
def test_a_distance_is_the_place_in_the_order_of_the_cache(prompts: list[list[int]]) -> None:
    ids, paths = walks(prompts)
    assert stack_distances(ids, paths).tolist() == listed(ids.tolist(), paths.tolist())


@given(PROMPTS)
@profile(100)
def test_the_previous_user_is_the_one_whose_next_user_this_is(prompts: list[list[int]]) -> None:
    ids, paths = walks(prompts)
    before, after = previous_users(ids, paths), next_users(ids, paths)
    request = np.repeat(np.arange(len(paths)), paths[:, 1] - paths[:, 0])
    pairs = {(int(a), int(b)) for a, b in zip(before, request, strict=True) if a >= 0}
    assert pairs == {
        (int(a), int(b)) for a, b in zip(request, after, strict=True) if b < len(paths)
    }
    assert (before >= 0).sum() == (after < len(paths)).sum()


def test_what_is_on_no_path_has_no_distance() -> None:
    ids = np.array([1, 2, 3, 1, 2, 3], np.int64)
    paths = np.array([[0, 3], [3, 4]], np.int64)
    assert stack_distances(ids, paths).tolist() == [NEVER, NEVER, NEVER, 1, NEVER, NEVER]
    assert stack_distances(ids[:0], np.zeros((0, 2), np.int64)).tolist() == []


@pytest.mark.parametrize(
    ("name", "block", "requests", "sizes"),
    [(CONVERSATION, 512, 2_000, (300, 2_000, 10_000)), (AGENTIC, 16, 500, (40, 247, 3_000))],
)
def test_every_request_hits_what_the_replay_of_each_size_finds(
    name: str, block: int, requests: int, sizes: tuple[int, ...]
) -> None:
    trace = read(real(name), trace_block=block, requests=requests)
    distances = stack_distances(trace.ids, paths_of(trace))
    of_request = np.repeat(np.arange(len(trace)), np.diff(trace.offsets))
    for size in sizes:
        replayed = sequential(trace, device_blocks=size).hits[:, 0]
        found = np.bincount(of_request[distances <= size], minlength=len(trace))
        assert replayed.sum() > 0
        assert found.tolist() == replayed.tolist()


def test_distances_rise_along_a_path_and_an_endless_cache_finds_every_second_use() -> None:
    trace = read(real(CONVERSATION))
    paths = paths_of(trace)
    distances = stack_distances(trace.ids, paths)
    for first, end in paths[:500].tolist():
        known = distances[first:end][distances[first:end] != NEVER]
        assert (np.diff(known) > 0).all()
    uses = np.concatenate([trace.ids[first:end] for first, end in paths.tolist()])
    again = len(uses) - len(np.unique(uses))
    assert (distances != NEVER).sum() == again
    # What an infinite cache hits of the tokens; shared/traces/README.md says 37.3 %.
    assert again * 512 / trace.input_length.sum() == pytest.approx(0.373, abs=5e-4)


def test_one_prompt_again_and_again_costs_its_length() -> None:
    trace = made([(32, [0, 1, 2, 3])] * 3, 8)
    assert stack_distances(trace.ids, paths_of(trace)).tolist() == [NEVER] * 4 + [1, 2, 3, 4] * 2
