"""What a scheduler records: each request once, from its arrival, whatever it goes through."""

import time
from pathlib import Path

import pytest

import blockyard as by
from blockyard.tools.traces.recording import Recorded, recorded
from loop import Loop
from yard import text


def looped(path: Path, *, device: int = 33, host: int = 0) -> Loop:
    cache = by.KVCache(block_size=4, device=device, host=host, record=path)
    return Loop(cache=cache, preempt_mode="park" if host else "recompute")


def ended(loop: Loop, path: Path) -> list[Recorded]:
    loop.cache.stop_recording()
    return list(recorded(path))


def test_a_request_is_recorded_from_its_arrival_though_it_waits(tmp_path: Path) -> None:
    path = tmp_path / "traffic.rec"
    loop = looped(path)
    before = time.time_ns()
    loop.add("one", text(1, 14), 6)
    after = time.time_ns()
    time.sleep(0.02)
    loop.finish()
    (one,) = ended(loop, path)
    assert one[1:3] == (14, 6)
    assert len(one.keys) == 8 * 3
    assert before - 2e6 <= one.nanoseconds < after + 2e6


@pytest.mark.law("INV-38")
def test_one_that_is_preempted_again_and_again_is_one_request(tmp_path: Path) -> None:
    for host in (0, 32):
        path = tmp_path / f"traffic {host}"
        loop = looped(path, device=9, host=host)
        for name in range(4):
            loop.add(name, text(name, 14), 12)
        loop.finish()
        assert loop.told("preempted") > 1
        assert [one[1:3] for one in ended(loop, path)] == [(14, 12)] * 4
        assert len({one.keys for one in recorded(path)}) == 4
        assert all(len(one.keys) == 8 * 3 for one in recorded(path))


@pytest.mark.law("INV-38")
def test_samples_are_one_request_also_where_the_first_never_began(tmp_path: Path) -> None:
    path = tmp_path / "traffic.rec"
    loop = looped(path)
    loop.scheduler.add(by.NewRequest("a", text(1, 14), max_tokens=6, n=3))
    loop.finish()
    loop.scheduler.add(by.NewRequest("b", text(2, 10), max_tokens=5, n=3))
    loop.scheduler.abort(("b", 0))
    loop.finish()
    assert [one[1:3] for one in ended(loop, path)] == [(14, 6), (10, 5)]


def test_what_never_began_is_not_recorded_and_what_was_aborted_is_as_far_as_it_came(
    tmp_path: Path,
) -> None:
    path = tmp_path / "traffic.rec"
    loop = looped(path)
    loop.add("never", text(1, 14), 6)
    loop.scheduler.abort("never")
    loop.add("half", text(2, 9), 6)
    loop.turn(3)
    loop.scheduler.abort("half")
    loop.finish()
    loop.add("dead", text(3, 9), 6)
    loop.turn(2)
    loop.scheduler.fail("a fault")
    (half, dead) = ended(loop, path)
    assert half[1:3] == (9, 3)
    assert dead[1:3] == (9, 2)


def test_without_a_recording_no_request_has_a_time() -> None:
    loop = Loop()
    loop.add("one", text(1, 14), 6)
    assert loop.scheduler._lifecycle.get("one").recorded is None
    loop.finish()
