"""vLLM is told to end: what the host has goes to the disk before its workers end."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockyard.connectors.vllm import Blockyard
from blockyard.connectors.vllm.stopping import Stopping
from vllm_front import BLOCKS, LAYERS, PAGE, SIZE, Front, Tensor, kv_config, no_torch, vllm_config

__all__ = ["no_torch"]

PROMPT, IDS = list(range(4 * SIZE)), [3, 4, 5, 6]
heard: list[int] = []


def engines(number: int, _frame: object) -> None:
    heard.append(number)


engines.__module__ = "vllm.v1.engine.core"


@pytest.fixture
def engine_process() -> Iterator[None]:
    """Has the handlers of a process of vLLM's scheduler."""
    before = {one: signal.signal(one, engines) for one in (signal.SIGTERM, signal.SIGINT)}
    heard.clear()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Ranks(Front):
    """A scheduler's half and two workers, as in processes of their own."""

    def __init__(self, path: Path, timeout: int = 60, **extra: Any) -> None:
        roles = Blockyard.__init__.__globals__["KVConnectorRole"]
        given = {"host": 16, "disk": 64, "disk_path": str(path), "write": "on-evict", "ahead": 0}
        changes = {
            "tensor_parallel_size": 2,
            "shutdown_timeout": timeout,
            "kv_connector_extra_config": given | {"namespace": {"weights": "v1"}} | extra,
        }
        self.scheduler = Blockyard(vllm_config(**changes), roles.SCHEDULER, kv_config())
        self.workers = [
            Blockyard(vllm_config(**changes, rank=rank), roles.WORKER, kv_config())
            for rank in range(2)
        ]
        for worker in self.workers:
            kv = {
                f"layer {at}": np.full((BLOCKS, PAGE), 7, np.uint8).view(Tensor)
                for at in range(LAYERS)
            }
            worker.register_kv_caches(kv)
        self.scheduler.set_xfer_handshake_metadata_pp_aware(
            {(0, rank): one.get_handshake_metadata() for rank, one in enumerate(self.workers)}
        )

    @property
    def restored(self) -> int:
        return self.scheduler.front.restored

    def stepped(self, new: dict[Any, Any] | None = None) -> None:
        """A step of both, whose reports vLLM joins."""
        meta = self.scheduler.build_connector_meta(self.output(new or {}))
        reports = []
        for worker in self.workers:
            worker.handle_preemptions(meta)
            worker.bind_connector_metadata(meta)
            worker.start_load_kv(None)
            reports.append(worker.build_connector_worker_meta())
        there = [one for one in reports if one is not None]
        self.scheduler.front.reported(
            None if not there else there[0] if len(there) < 2 else there[0].aggregate(there[1])
        )
        self._tell(*(one.get_kv_connector_stats() for one in (*self.workers, self.scheduler)))

    def answer(self, name: str, tokens: list[int], ids: list[int]) -> None:
        """A request that ends: vLLM has a step behind it, in which its blocks go to the host."""
        request = self.request(name, [*tokens, 1])
        assert self.begin(request, [*ids, 9]) == 0
        self.stepped({request: ([*ids, 9], len(tokens) + 1)})
        self.scheduler.request_finished(request, [*ids, 9])
        self.stepped()

    def end(self) -> int:
        """The loop of a scheduler that is told to end; returns its steps."""
        steps, until = 0, time.monotonic() + 30
        while self.scheduler.has_pending_push_work():
            assert time.monotonic() < until
            self.stepped()
            steps += 1
            time.sleep(1e-3)
        return steps

    def close(self) -> None:
        for worker in self.workers:
            worker.shutdown()
        self.scheduler.shutdown()


@pytest.mark.law("INV-28", "INV-39")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.usefixtures("engine_process")
def test_workers_in_processes_write_before_they_are_ended(tmp_path: Path, number: int) -> None:
    first = Ranks(tmp_path)
    first.answer("one", PROMPT, IDS)
    # While vLLM runs the copy to the host is waited for, and no write is due.
    assert first.end() > 0
    assert len(first.scheduler.front.cache.unwritten("disk")) > 0
    os.kill(os.getpid(), number)
    assert heard == [number], "vLLM's own handler has it, too"
    assert first.end() > 0
    assert len(first.scheduler.front.cache.unwritten("disk")) == 0
    assert not first.scheduler.has_pending_push_work()
    # Its process is killed here: the order is noted already.
    assert list(tmp_path.glob("*/order"))
    for worker in first.workers:
        worker.shutdown()
    again = Ranks(tmp_path)
    assert again.restored == len(PROMPT) // SIZE
    request = again.request("again", [*PROMPT, 1])
    assert again.begin(request, IDS) == len(PROMPT)
    again.close()


@pytest.mark.parametrize(
    ("timeout", "flush", "says"), [(0, 20, True), (1, 20, True), (2, 20, False), (0, 0, False)]
)
def test_the_line_at_the_start_says_what_gives_the_end_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, timeout: int, flush: int, says: bool
) -> None:
    with caplog.at_level("INFO", "blockyard"):
        Ranks(tmp_path, timeout=timeout, flush=flush).close()
    (line,) = [one for one in caplog.messages if one.startswith("Blockyard keeps preempted")]
    assert ("write --shutdown-timeout 60" in line) is says
    assert (f"--shutdown-timeout {timeout} leaves" in line) is says


@pytest.mark.parametrize("more", [{"flush": 0}, {"flush": 20, "timeout": 1}], ids=["0", "no time"])
@pytest.mark.usefixtures("engine_process")
def test_where_no_time_is_given_nothing_more_is_written(
    tmp_path: Path, more: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    first = Ranks(tmp_path, **more)
    first.answer("one", PROMPT, IDS)
    os.kill(os.getpid(), signal.SIGTERM)
    first.end()  # What is in the air ends.
    with caplog.at_level("WARNING", "blockyard"):
        first.close()
    assert "blocks are not on the disk" in caplog.text
    again = Ranks(tmp_path)
    assert again.restored == 0
    again.close()


@pytest.mark.usefixtures("engine_process")
def test_workers_that_do_not_answer_are_waited_for_within_the_bound(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, timeout=10)
    ranks.answer("one", PROMPT, IDS)
    ticks = iter(range(1000))
    ranks.scheduler.front.clock = lambda: float(next(ticks))
    os.kill(os.getpid(), signal.SIGTERM)
    while ranks.scheduler.has_pending_push_work():
        ranks.scheduler.build_connector_meta(ranks.output({}))
    assert next(ticks) < 40, "it asks the time, and has no other end"
    ranks.close()


def test_a_stop_is_counted_from_the_signal_and_leaves_time_to_end() -> None:
    now = [100.0]
    before = signal.signal(signal.SIGTERM, engines)
    try:
        stops = [Stopping(timeout, lambda: now[0]) for timeout in (20, 0)]
        assert [one.left() for one in stops] == [None, None]
        os.kill(os.getpid(), signal.SIGTERM)
        now[0] += 3
        assert [one.left() for one in stops] == [16.0, 1.0]
        os.kill(os.getpid(), signal.SIGTERM)
        now[0] += 30
        assert [one.left() for one in stops] == [0.0, 0.0]
    finally:
        signal.signal(signal.SIGTERM, before)


def users(_number: int, _frame: object) -> None:
    pass


@pytest.mark.parametrize("handler", [users, signal.SIG_IGN, signal.default_int_handler])
def test_a_users_handlers_stay_as_they_are(handler: Callable[..., Any]) -> None:
    before = signal.signal(signal.SIGTERM, handler)
    try:
        assert Stopping(20).left() is None
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("engine_process")
def test_a_thread_that_gets_no_signals_hears_nothing() -> None:
    made: list[Stopping] = []
    thread = threading.Thread(target=lambda: made.append(Stopping(20)))
    thread.start()
    thread.join()
    assert made[0].left() is None
    assert signal.getsignal(signal.SIGTERM) is engines
