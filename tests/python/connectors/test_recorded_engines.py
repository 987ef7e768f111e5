"""What is recorded of an engine that gives out its blocks itself, and of vLLM."""

from pathlib import Path
from typing import Any

import pytest

import blockyard as by
from blockyard.connectors.connector import Connector
from blockyard.tools.traces.recording import Recorded, block_size, recorded
from vllm_front import SIZE, Front, ended, no_torch

__all__ = ["no_torch"]


def read(cache: by.KVCache, path: Path) -> list[Recorded]:
    cache.stop_recording()
    return list(recorded(path))


def lengths(found: list[Recorded]) -> list[tuple[int, int, int]]:
    return [(one.prompt, one.answer, len(one.keys) // 8) for one in found]


def test_a_connector_records_what_has_run_by_the_keys_that_it_came_with(tmp_path: Path) -> None:
    path = tmp_path / "traffic.rec"
    cache = by.KVCache(engine=64, host=64, block_size=4, record=path)
    ask = Connector(cache)
    keys = [cache.keys(range(tokens)) for tokens in range(31)]

    def carry(*written: int) -> None:
        for plan in (orders := ask.step(written)).down + orders.up:
            ask.commit([by.Outcome(plan.flight, 0, len(plan), None)])

    ask.added("one")
    assert ask.matched("other", keys[9]) == 0
    ask.allocated("other")
    ask.finished("other", keys[9], [8, 9])
    assert ask.matched("one", cache.keys(range(100, 111))) == 0
    ask.allocated("one")
    carry(1, 2, 3)
    # It is preempted when it has four tokens more, and comes back with them.
    more = cache.keys(range(100, 115))
    assert ask.preempted("one", more, [1, 2, 3, 4], 14)
    carry()
    assert ask.matched("one", more) == 14
    ask.allocated("one", [5, 6, 7, 10])
    carry()
    assert ask.arrived() == {"one": 14}
    for _ in range(2):
        ask.finished("one", cache.keys(range(100, 122)), [5, 6, 7, 10])
    ask.matched("waits", keys[30])
    ask.finished("waits")
    assert ask.matched("told", keys[8]) == 8
    ask.allocated("told", [11, 12])
    ask.finished("told", prompt=10, answer=3)
    found = read(cache, path)
    assert lengths(found) == [(9, 0, 2), (11, 11, 2), (10, 3, 2)]
    # It came first, though it ended later.
    assert found[1].nanoseconds < found[0].nanoseconds


@pytest.mark.law("INV-38")
def test_a_number_that_is_refused_loses_no_record(tmp_path: Path) -> None:
    path = tmp_path / "traffic.rec"
    cache = by.KVCache(engine=64, host=64, block_size=4, record=path)
    ask = Connector(cache)
    keys = cache.keys(range(9))
    ask.matched("one", keys)
    ask.allocated("one")
    refused: list[dict[str, Any]] = [{"prompt": -1}, {"answer": 1 << 70}]
    for wrong in refused:
        with pytest.raises(by.Misuse, match=r"(prompt|answer) = "):
            ask.finished("one", keys, [8, 9], **wrong)
    ask.finished("one", keys, [8, 9])
    assert lengths(read(cache, path)) == [(9, 0, 2)]


@pytest.mark.law("INV-38")
def test_inside_vllm_requests_are_recorded_by_its_own_lengths(tmp_path: Path) -> None:
    path = tmp_path / "traffic.rec"
    front = Front(record=str(path))
    # The worker has the option too, and opens nothing.
    waits = front.request("waits", list(range(50, 61)))
    front.scheduler.on_new_request(waits)
    tokens = list(range(11))
    ended(front, "one", tokens, [1, 2, 3])
    front.step()
    again = front.request("two", [*tokens[:8], 77, 78, 79])
    assert front.begin(again, [4, 5, 6]) == 8
    front.until("two")
    front.step({again: ([4, 5, 6], 3)})
    again.num_tokens += 5
    front.scheduler.request_finished(again, [4, 5, 6])
    front.scheduler.request_finished(waits, [])
    front.scheduler.request_finished(front.request("unheard of", tokens), [])
    # Before that a thread of its own may have written nothing yet.
    one, two = read(front.scheduler.front.cache, path)
    assert block_size(path) == SIZE
    assert (one[1:3], two[1:3]) == ((11, 1), (11, 5))
    assert len(one.keys) == len(two.keys) == 2 * 8
    assert one.keys == two.keys
    assert path.stat().st_mode & 0o777 == 0o600
    front.worker.shutdown()
    front.scheduler.shutdown()


def test_inside_vllm_a_path_that_cannot_be_used_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(by.Misuse, match=r"record = '.*': it cannot be written"):
        Front(record=str(tmp_path))
    with pytest.raises(by.Misuse, match="record = 7: give the path of a file"):
        Front(record=7)
    with pytest.raises(by.Misuse, match=r"there is no 'recrod'.*did you mean 'record'"):
        Front(recrod="x")
