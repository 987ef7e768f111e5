"""What an interrupt leaves of an owner: whoever comes next has it, and never two at once."""

import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import lru_cache, partial
from types import FrameType
from typing import Any

import pytest

import blockyard as by
from blockyard.shared import owner
from blockyard.shared.owner import Owner, is_foreign, owned
from interrupted import Places, alarm


class Counted:
    """Counts its calls in two steps, between which others may come where they may."""

    def __init__(self) -> None:
        self._owner = Owner()
        self.count = 0

    @owned
    def add(self) -> None:
        count = self.count
        time.sleep(0)
        self.count = count + 1

    @owned
    def wait(self) -> None:
        raise TimeoutError


@pytest.mark.parametrize("again", [1, 2, 3])
def test_however_often_calls_are_interrupted_the_next_one_is_made(again: int) -> None:
    places = Places(owner.__file__)
    places.during(Counted().add, None)
    tried = 0
    for place in places.each():
        for second in [place, *places.found]:
            one = Counted()
            places.during(one.add, place)
            for _ in range(again):
                places.during(one.add, second)
            before = one.count
            one.add()
            assert one.count == before + 1, (place, second)
            tried += 1
    assert tried > 50


def test_what_a_signal_handler_raises_has_cut_a_call_short_and_what_the_call_raises_has_not() -> (
    None
):
    one = Counted()
    with pytest.raises(TimeoutError):
        one.wait()
    assert one._owner.interrupted == []
    with alarm() as ring:
        places = Places(__file__)
        places.during(one.add, None)
        for place in places.each():
            assert places.during(one.add, place, ring)
            assert [name for _, name in one._owner.interrupted] == ["Counted.add"]
            one._owner.interrupted.clear()
    one.add()


class _Called:
    def __call__(self, *_: object) -> None:
        raise TimeoutError


class _Inherited(_Called):
    pass


def _once(_number: int, _frame: object) -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    raise TimeoutError


def _replaces() -> None:
    try:
        signal.raise_signal(signal.SIGUSR1)
    finally:
        dict[str, int]()["lost"]


HANDLERS: dict[str, Any] = {
    "once": _once,
    "an object": _Called(),
    "inherited": _Inherited(),
    "a cache": lru_cache(_once),
    "partial": partial(_once),
}


@pytest.mark.parametrize(
    "verb", [lambda: signal.raise_signal(signal.SIGUSR1), _replaces], ids=["plain", "replaced"]
)
@pytest.mark.parametrize("handler", HANDLERS.values(), ids=HANDLERS)
def test_whatever_handles_a_signal_is_known_by_what_it_was_called_with(
    handler: Any, verb: Callable[[], None]
) -> None:
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises((TimeoutError, KeyError)) as raised:
            verb()
        assert is_foreign(raised.value)
        # Who handles it, and fails at something else meanwhile, has failed.
        try:
            raise raised.value
        except (TimeoutError, KeyError):
            with pytest.raises(ValueError) as own:  # noqa: PT011
                int("x")
            assert own.value.__context__ is raised.value
            assert not is_foreign(own.value)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_of_threads_that_are_interrupted_anywhere_two_are_never_inside_at_once() -> None:
    one, calls, cuts = Counted(), list[int](), list[int]()
    interval = sys.getswitchinterval()

    def drive(seed: int) -> None:
        chance, called, cut = random.Random(seed), 0, 0

        def trace(frame: FrameType, event: str, _: object) -> Any:
            if frame.f_code.co_filename != owner.__file__:
                return None
            if event == "line" and chance.random() < 0.02:
                raise KeyboardInterrupt
            return trace

        until = time.monotonic() + 60
        while called < 150 and time.monotonic() < until:
            before = one.count
            sys.settrace(trace)
            try:
                one.add()
            except by.Misuse:
                continue
            except KeyboardInterrupt:
                cut += 1
                sys.settrace(None)
                continue
            finally:
                sys.settrace(None)
            assert one.count > before
            called += 1
        calls.append(called)
        cuts.append(cut)

    threads = [threading.Thread(target=drive, args=(seed,)) for seed in range(4)]
    try:
        sys.setswitchinterval(1e-5)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(90)
    finally:
        sys.setswitchinterval(interval)
    assert calls == [150] * 4
    assert sum(calls) <= one.count <= sum(calls) + sum(cuts), "two were inside at once"
    assert sum(cuts) > 20
