"""Policies that raise, call back or answer nonsense: a Misuse names them, and nothing is lost."""

from typing import Any

import pytest

import blockyard as by
from blockyard._typing import override
from blockyard.scheduling.headroom import Watermark
from blockyard.scheduling.request import RequestState
from blockyard.scheduling.victims import Candidate, Newest
from loop import Loop
from yard import text

WRONG: list[Any] = [ZeroDivisionError("by design"), "many", 1.5, None, True, "schedule"]


class Wrong:
    """What answers wrongly once it is told to."""

    def __init__(self, wrong: Any) -> None:
        self.wrong, self.is_wrong = wrong, False
        self.loop: Loop | None = None

    def answer(self, good: Any) -> Any:
        if not self.is_wrong:
            return good
        self.is_wrong = False
        if isinstance(self.wrong, Exception):
            raise self.wrong
        if self.wrong == "schedule" and self.loop is not None:
            self.loop.scheduler.schedule()
        return self.wrong


class Victims(Newest):
    def __init__(self, wrong: Wrong) -> None:
        self.inner = wrong

    @override
    def rank(self, candidate: Candidate) -> tuple[int, ...]:
        return self.inner.answer(super().rank(candidate))  # type: ignore[no-any-return]


class Room(Watermark):
    def __init__(self, wrong: Wrong, verb: str) -> None:
        super().__init__(1)
        self.inner, self.verb = wrong, verb

    @override
    def headroom(self, running: int) -> int:
        good = super().headroom(running)
        return self.inner.answer(good) if self.verb == "headroom" else good

    @override
    def stepped(self) -> None:
        if self.verb == "stepped":
            self.inner.answer(None)

    @override
    def preempted(self) -> None:
        if self.verb == "preempted":
            self.inner.answer(None)


@pytest.mark.parametrize("verb", ["rank", "headroom", "stepped", "preempted"])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_policy_that_does_wrong_is_named_and_loses_no_request(wrong: Any, verb: str) -> None:
    policy = Wrong(wrong)
    keywords: dict[str, Any] = (
        {"victim_policy": Victims(policy)} if verb == "rank" else {"headroom": Room(policy, verb)}
    )
    loop = Loop(device=9, **keywords)
    policy.loop = loop
    for name in ("one", "two", "three"):
        loop.add(name, text(len(name), 8), 12)
    errors: list[str] = []
    policy.is_wrong = True
    for _ in range(200):
        try:
            loop.schedule()
        except by.Misuse as error:
            errors.append(str(error))
            continue
        loop.land()
        if loop.air:
            loop.output()
        loop.ack()
        if loop.scheduler.idle:
            break
    silent = verb in {"stepped", "preempted"} and not isinstance(wrong, Exception)
    if wrong == "schedule" or not silent:
        assert errors
        name = "victim_policy" if verb == "rank" else "headroom policy"
        assert all(name in error for error in errors), errors
    assert {result.state for result in loop.results.values()} == {RequestState.FINISHED}
    assert len(loop.results) == 3
    assert loop.cache.audit() is None
