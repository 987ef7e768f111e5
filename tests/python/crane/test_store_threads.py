"""The threads that ask shared stores: no client ends one, and none outlives its interpreter."""

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import blockyard as by
from blockyard.crane.copiers import Landed
from blockyard.shared.plan import Cause
from cranes import landed, until
from memory_stores import MemoryStore, Turned
from store_rig import Rig

pytestmark = pytest.mark.law("INV-35a", "INV-35b")


def test_a_store_that_dies_is_said_once_and_is_asked_again_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Turned()
    rig = Rig(MemoryStore("memory://dies"), clock=clock)
    assert landed(rig.down(0)) == Landed(1)
    rig.store.down = "it is down"
    for _ in range(3):
        assert landed(rig.down(1)) == Landed(0, Cause.FAILED)
    asked = len(rig.store.calls)
    for _ in range(10):
        assert landed(rig.down(1)) == Landed(0, Cause.FAILED)
    assert len(rig.store.calls) == asked, "it rests"
    sessions = rig.store.sessions
    rig.store.down = ""
    clock.now += 0.6
    assert landed(rig.down(1)) == Landed(1)
    assert rig.store.sessions == sessions + 1, "a session that failed is made anew"
    clock.now += 1.1
    rig.copier.collect()
    said = [line.getMessage() for line in caplog.records if "dies" in line.getMessage()]
    assert said == [
        "memory://dies: puts fail, and are retried later: it is down",
        "memory://dies: puts work again",
    ]
    rig.close()


def test_an_error_of_a_client_ends_a_call_and_no_thread_and_its_text_is_not_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig()

    class Exits:
        def put(self, *_: Any) -> None:
            raise SystemExit("password=secret")

        def close(self) -> None:
            raise OSError("secret")

    with monkeypatch.context() as patched:
        patched.setattr(rig.store, "connect", Exits)
        assert landed(rig.down(0)) == Landed(0, Cause.FAILED)
        assert landed(rig.down(0)) == Landed(0, Cause.FAILED)
    assert rig.tier.lane.why() == ["SystemExit"]
    assert landed(rig.down(0)) == Landed(1)
    rig.close()


def test_the_text_of_an_identity_is_put_again_where_a_store_has_lost_it() -> None:
    clock = Turned()
    rig = Rig(clock=clock)
    assert landed(rig.down(*range(12))) == Landed(12)
    for number in range(12):
        assert landed(rig.down(number)) == Landed(1)
    rig.store.values.clear()
    clock.now += 100
    assert landed(rig.down(0)) == Landed(1)
    assert len(rig.store.values) == 2
    rig.close()


def test_a_client_whose_close_breaks_out_ends_no_thread() -> None:
    clock = Turned()
    rig = Rig(clock=clock)
    assert landed(rig.down(0)) == Landed(1)
    rig.store.broken = True
    rig.store.down = "it is down\n" * 1000
    assert landed(rig.down(1)) == Landed(0, Cause.FAILED)
    assert landed(rig.up(0, to=(8,))) == Landed(0, Cause.FAILED)
    (why,) = rig.tier.lane.why()
    assert why.startswith("it is down it is down")
    assert len(why) <= 400
    rig.store.down, rig.store.broken = "", False
    assert landed(rig.down(1)) == Landed(1)
    assert landed(rig.up(0, to=(8,))) == Landed(1)
    rig.close()


def test_a_thread_that_cannot_start_fails_a_copy_and_no_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig()

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(by.Unavailable, match="thread"):
            rig.down(0)
    assert landed(rig.down(0)) == Landed(1)
    rig.close()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        other = Rig()
        with pytest.raises(by.Unavailable, match="thread"):
            other.down(0)
        other.close()


@pytest.mark.law("INV-29")
def test_a_process_that_was_forked_asks_no_store_and_hangs_nowhere() -> None:
    rig = Rig()
    assert landed(rig.down(0)) == Landed(1)
    child = os.fork()
    if not child:
        try:
            rig.down(1)
        except by.Misuse as error:
            rig.copier.close()
            rig.tier.close()
            os._exit(0 if "must make its own" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert landed(rig.down(1)) == Landed(1)
    rig.close()


EXITS = """
import threading, time
from store_rig import Rig

rig = Rig()
if {hangs}:
    rig.store.hangs = {{"put", "get"}}
    rig.store.go.wait = lambda _: time.sleep(3600)
    copies = [rig.down(0), rig.down(1), rig.up(0, to=(8,))]
    for _ in copies:
        assert rig.store.reached.acquire(timeout=30)
else:
    rig.down(0)
print("ends", flush=True)
"""


@pytest.mark.parametrize("hangs", [False, True])
def test_the_interpreter_ends_whatever_a_client_does(hangs: bool) -> None:
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "support")}
    command = [sys.executable, "-c", EXITS.format(hangs=hangs)]
    done = subprocess.run(  # noqa: S603 - our own Python
        command, env=env, capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, b"ends"), done.stderr


def test_what_is_dropped_and_not_closed_leaves_no_thread() -> None:
    others = set(threading.enumerate())
    rig = Rig()
    assert landed(rig.down(0)) == Landed(1)
    assert set(threading.enumerate()) > others
    del rig
    gc.collect()
    until(lambda: not set(threading.enumerate()) - others, "the end of the threads")
