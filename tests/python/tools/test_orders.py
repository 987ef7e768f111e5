"""The eviction orders reach on real traces what was simulated, and lose little anywhere."""

import functools
from typing import Literal

import pytest

from blockyard.tools.replay.sequential import sequential
from blockyard.tools.replay.spec import Policy
from blockyard.tools.traces.adversaries import ADVERSARIES
from blockyard.tools.traces.trace import Trace, read
from order_cells import (
    ADVERSARY_SHARES,
    CELLS,
    LOOP_LEAST,
    TOLERANCE,
    TRACES,
    WORSE,
    Cell,
    distinct,
    sizes,
)
from traces import real


@functools.cache
def opened(name: str) -> Trace:
    file, block = TRACES[name]
    return read(real(file), trace_block=block)


def percent(trace: Trace, device: int, policy: Policy) -> float:
    result = sequential(trace, device_blocks=device, policy=policy)
    assert result.audit in {"ok", "none"}
    return 100 * result.hit_ratio


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.recency is not None], ids=str)
def test_recency_finds_what_was_simulated(cell: Cell) -> None:
    found = percent(opened(cell.trace), cell.device, "recency")
    assert found == pytest.approx(cell.recency, abs=0.1)


@pytest.mark.law("INV-20i")
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_the_learned_order_reaches_what_was_simulated(cell: Cell) -> None:
    result = cell.run(opened(cell.trace))
    assert result.audit == "ok"
    assert 100 * result.hit_ratio >= cell.least - TOLERANCE


@pytest.mark.law("INV-20i")
@pytest.mark.parametrize("name", TRACES)
def test_the_learned_order_loses_little_to_recency_at_any_size(name: str) -> None:
    # `make bench-orders` has all sizes.
    trace = opened(name)
    lost = {
        size: percent(trace, size, "recency") - percent(trace, size, "learned")
        for size in sizes(trace)[1::4]
    }
    assert {size: points for size, points in lost.items() if points > WORSE[name]} == {}


@pytest.mark.law("INV-20i")
@pytest.mark.parametrize("seed", range(3))
def test_a_loop_larger_than_the_cache_is_found_in_part(seed: int) -> None:
    trace = ADVERSARIES["loop"](seed)
    size = round(ADVERSARY_SHARES["loop"] * distinct(trace))
    assert percent(trace, size, "recency") == 0
    assert percent(trace, size, "learned") >= LOOP_LEAST


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["flood", "shift"])
def test_an_adversary_gains_nothing_against_recency(
    name: Literal["flood", "shift"], seed: int
) -> None:
    trace = ADVERSARIES[name](seed)
    size = round(ADVERSARY_SHARES[name] * distinct(trace))
    assert percent(trace, size, "learned") >= percent(trace, size, "recency")


#: What the shadow of recency with a bonus found there alone, by seed.
BY_BONUS = [12.15, 12.09]


@pytest.mark.law("INV-20i")
@pytest.mark.parametrize("seed", range(2))
def test_what_comes_back_is_told_from_a_flood_of_what_does_not(seed: int) -> None:
    trace = ADVERSARIES["flood"](seed)
    size = round(ADVERSARY_SHARES["flood"] * distinct(trace))
    assert percent(trace, size, "learned") >= BY_BONUS[seed] + 10
