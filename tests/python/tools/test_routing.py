"""How requests are sent to engines side by side, and how fast they come."""

import numpy as np
import pytest

import blockyard as by
import traces
from blockyard.tools.replay.routing import faster, routed
from blockyard.tools.traces.trace import Trace, read
from blockyard.tools.traces.workload import generate


def whole(parts: list[Trace]) -> list[tuple[int, int, tuple[int, ...]]]:
    """All requests: arrival, length, ids."""
    return sorted(
        (
            int(part.arrival[request]),
            int(part.input_length[request]),
            tuple(part.ids_of(request).tolist()),
        )
        for part in parts
        for request in range(len(part))
    )


@pytest.mark.parametrize("router", ["prefix", "random"])
@pytest.mark.parametrize("replicas", [1, 2, 5])
def test_every_request_goes_to_one_engine(router: str, replicas: int) -> None:
    trace = generate(3, requests=200, rate=4.0)
    parts = routed(trace, replicas, router, 7)  # type: ignore[arg-type]
    assert len(parts) == replicas
    assert whole(parts) == whole([trace])
    for part in parts:
        assert (np.diff(part.arrival) >= 0).all()
        assert len(part.session) == len(part)
        assert part.trace_block == trace.trace_block


def test_by_prefix_what_is_continued_stays_where_it_began() -> None:
    """Chats of four turns, each of which has the whole of the one before it."""
    prompts = [
        (16 * 4 * turn, [1000 * chat + place for place in range(4 * turn)])
        for turn in range(1, 5)
        for chat in range(40)
    ]
    trace = traces.made(prompts, block=16)
    parts = routed(trace, 4, "prefix")
    homes = [{int(block) // 1000 for block in part.ids} for part in parts]
    assert sum(map(len, homes)) == 40
    assert max(map(len, parts)) <= 1.25 * len(trace) / 4


def test_by_prefix_a_real_trace_keeps_its_prefixes_and_its_balance() -> None:
    trace = read(traces.real(traces.CONVERSATION))
    parts = routed(trace, 4, "prefix")
    tokens = np.array([int((part.input_length + part.output_length).sum()) for part in parts])
    assert tokens.max() <= 1.1 * tokens.mean()
    blocks = len(np.unique(trace.ids))
    # By chance a third more blocks are on several engines.
    assert sum(len(np.unique(part.ids)) for part in parts) <= 1.01 * blocks
    parts = routed(trace, 4, "random")
    assert sum(len(np.unique(part.ids)) for part in parts) >= 1.2 * blocks


def test_by_prefix_one_prompt_of_all_does_not_go_to_one_engine() -> None:
    shared = list(range(64))
    prompts = [(16 * 96, [*shared, *range(100 * n, 100 * n + 32)]) for n in range(1, 401)]
    trace = traces.made(prompts, block=16, answer=4000)
    at_once = faster(trace, 1000.0)
    sizes = [len(part) for part in routed(at_once, 4, "prefix")]
    assert max(sizes) <= 1.4 * 100
    assert min(sizes) >= 50


def test_a_short_match_does_not_choose_the_engine() -> None:
    # A tenth of each prompt is the same: below 0.3 of it, as with the routers of engines.
    prompts = [(160, [0, *range(100 * n, 100 * n + 9)]) for n in range(1, 101)]
    sizes = [len(part) for part in routed(traces.made(prompts, block=16), 2, "prefix")]
    assert sizes == [50, 50]


def test_by_chance_is_drawn_by_seed() -> None:
    trace = generate(3, requests=200, rate=4.0)
    first, again, other = (routed(trace, 3, "random", seed) for seed in (1, 1, 2))
    assert [part.digest() for part in first] == [part.digest() for part in again]
    assert [part.digest() for part in first] != [part.digest() for part in other]


def test_time_runs_faster_from_the_first_arrival() -> None:
    trace = traces.made([(16, [1])] * 5, block=16)
    late = faster(trace, 0.5)
    assert late.arrival.tolist() == [0, 2000, 4000, 6000, 8000]
    assert faster(late, 4).arrival.tolist() == [0, 500, 1000, 1500, 2000]
    assert faster(trace, 1.0) is trace
    assert faster(trace, 1e12).arrival.tolist() == [0] * 5


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan"), float("inf"), 1e-12])
def test_a_speed_that_makes_no_sense_is_refused(speed: float) -> None:
    with pytest.raises(by.Misuse, match=rf"--speed {speed:g}: "):
        faster(traces.made([(16, [1])] * 5, block=16), speed)


def test_more_engines_than_requests_are_refused() -> None:
    with pytest.raises(by.Misuse, match="--replicas 6: the trace has 5 requests"):
        routed(traces.made([(16, [1])] * 5, block=16), 6, "prefix")
