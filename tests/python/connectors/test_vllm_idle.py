"""An idle vLLM finishes its copies: it goes on stepping while any are due, and no longer."""

from pathlib import Path
from typing import Any

from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.testing import ScriptedCopier, delay
from disks import dies
from vllm_disk import Engine
from vllm_front import Front, Pool, ended, front, idle, no_torch

__all__ = ["front", "no_torch"]


def on_disk(engine: Engine) -> int:
    cache = engine.scheduler.front.cache
    assert not len(cache.unwritten("disk"))
    return cache.stats()["disk_idle"]


def test_an_engine_that_has_nothing_to_do_sleeps(front: Front) -> None:
    # One step tells its sizes to vLLM's metrics.
    assert idle(front) == 1
    front.step()
    assert idle(front) == 0


def test_one_request_and_a_quiet_hour_leave_all_on_the_disk(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    ended(engine, "one", list(range(27)), list(range(1, 8)))
    assert engine.scheduler.has_pending_push_work()
    # It offloads, the copy to the host lands, it plans the write, that lands, and nothing is left.
    assert idle(engine) >= 3
    assert on_disk(engine) == 6
    engine.step()
    assert idle(engine) == 0
    engine.worker.shutdown()


def test_what_does_not_fit_into_the_air_at_once_follows(tmp_path: Path) -> None:
    engine = Engine(tmp_path, ahead={"host": 1})
    for at in range(4):
        ended(engine, f"r{at}", [at, *range(10)], [1 + 2 * at, 2 + 2 * at])
    idle(engine)
    assert on_disk(engine) == 8
    engine.worker.shutdown()


def test_after_an_answer_without_full_blocks_it_sleeps(front: Front) -> None:
    ended(front, "one", [1, 2], [1])
    # In the first it offloads, and the second tells.
    assert idle(front) <= 2


def test_blocks_that_are_copied_ahead_are_waited_for(front: Front) -> None:
    ended(front, "one", list(range(11)), [1, 2, 3])
    front.scheduler.bind_gpu_block_pool(Pool(1, 2, 3))
    idle(front)
    assert front.scheduler.front.cache.stats()["host_idle"] == 2


class Clock:
    """Seconds, as a test says."""

    def __init__(self, engine: Any) -> None:
        self.now = 0.0
        engine.scheduler.front.clock = lambda: self.now


def test_a_copy_that_hangs_is_waited_for_until_its_deadline() -> None:
    engine = Front(ScriptedCopier(ThreadCopier(workers=0), [delay(1 << 40)]), deadline=9_000)
    clock = Clock(engine)
    ended(engine, "one", list(range(11)), [1, 2, 3])
    for clock.now in (0.0, 1.0, 8.9):
        engine.step()
        assert engine.scheduler.has_pending_push_work()
    clock.now = 9.1
    for _ in range(3):
        engine.step()
    assert idle(engine) <= 1
    # The next request wakes it, as before.
    ended(engine, "two", list(range(20, 31)), [4, 5, 6])
    assert engine.scheduler.has_pending_push_work()
    idle(engine)


def test_a_disk_that_fails_every_copy_is_tried_until_the_deadline_at_most(tmp_path: Path) -> None:
    engine = Engine(tmp_path, deadline=9_000)
    clock = Clock(engine)
    dies(tmp_path)
    ended(engine, "one", list(range(27)), list(range(1, 8)))
    reported = engine.scheduler.front._reported
    steps, news = 0, [reported.active]
    while engine.scheduler.has_pending_push_work():
        clock.now += 0.01
        steps += 1
        engine.step()
        if reported.active != news[-1]:
            # Copies to the host end when they end, and give it as much time again.
            news.append(reported.active)
            steps = 0
    assert len(news) <= 8
    assert 3 <= steps <= 1000
    assert engine.scheduler.front.cache.stats()["disk_idle"] == 0
    engine.worker.shutdown()
