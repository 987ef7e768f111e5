"""The traces that defeat an order: what each is made of, and that a seed makes it again."""

from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard.tools.replay.sequential import sequential
from blockyard.tools.traces.adversaries import ADVERSARIES, AdversaryName, flood, loop, shift
from blockyard.tools.traces.trace import Trace


def prompts(trace: Trace) -> list[tuple[int, ...]]:
    return [tuple(trace.ids_of(request).tolist()) for request in range(len(trace))]


@pytest.mark.parametrize("name", ADVERSARIES)
def test_prompts_share_nothing_and_come_at_the_rate(name: AdversaryName) -> None:
    trace = ADVERSARIES[name](3, requests=500, rate=4)
    assert trace == ADVERSARIES[name](3, requests=500, rate=4)
    assert trace != ADVERSARIES[name](4, requests=500, rate=4)
    assert (len(trace), trace.arrival[-1]) == (500, 124_750)
    distinct = set(prompts(trace))
    assert sum(map(len, distinct)) == len(np.unique(trace.ids))
    assert {16 <= len(prompt) <= 64 for prompt in distinct} == {True}
    assert (trace.input_length == np.diff(trace.offsets) * trace.trace_block).all()


def test_a_loop_repeats_in_turn_and_recency_finds_nothing() -> None:
    trace = loop(0)
    each = prompts(trace)
    assert each == each[:500] * 8
    distinct = len(np.unique(trace.ids))
    size = round(0.3 * distinct)
    assert sequential(trace, device_blocks=size).hit_ratio == 0
    assert sequential(trace, device_blocks=distinct).hit_ratio == pytest.approx(7 / 8)
    best = sequential(trace, device_blocks=size, policy="optimum")
    assert best.hit_ratio == pytest.approx(0.2625, abs=0.001)


def test_a_flood_is_a_steady_set_beside_prompts_that_come_once() -> None:
    names, counts = np.unique(flood(1).ids, return_counts=True)
    once = counts == 1
    assert once.mean() > 0.95
    # 6,000 requests, of which 30 % are of 50 prompts.
    assert counts[~once].mean() == pytest.approx(36, abs=2)
    assert names[~once].max() < 50 * 64


def test_a_shift_makes_other_prompts_popular_half_way() -> None:
    trace = shift(2)
    each = prompts(trace)
    popular = [max(half, key=half.count) for half in (each[:3_000], each[3_000:])]
    assert popular[0] != popular[1]
    assert each[:3_000].count(popular[0]) > 200
    assert each[3_000:].count(popular[0]) < 20


@pytest.mark.parametrize("wrong", [{"seed": -1}, {"requests": 0}, {"rate": 0.0}])
@pytest.mark.parametrize("name", ADVERSARIES)
def test_what_cannot_be_is_refused(name: AdversaryName, wrong: dict[str, Any]) -> None:
    with pytest.raises(by.Misuse, match=f"{next(iter(wrong))} = "):
        ADVERSARIES[name](**{"seed": 0} | wrong)
