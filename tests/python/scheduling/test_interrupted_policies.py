"""What a signal handler raises while something of the program's is asked: the program gets that."""

import logging
from collections.abc import Callable, Iterator

import pytest

import blockyard as by
from blockyard._typing import override
from blockyard.metrics import exported
from blockyard.scheduling.headroom import Asked, NoHeadroom, checked_headroom
from blockyard.scheduling.victims import Candidate, Newest, checked_policy, rank_of
from blockyard.shared.log import Limited, described
from blockyard.shared.validate import shown
from interrupted import alarm


@pytest.fixture
def ring() -> Iterator[Callable[[], None]]:
    with alarm() as ring:
        yield ring


class Slow(NoHeadroom, Newest):
    """A policy during which a signal comes, and its text, too."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self.ring: Callable[[], object] = ring

    @override
    def reserve(self, max_tokens: int) -> int:
        self.ring()
        return 0 * max_tokens

    @override
    def headroom(self, running: int) -> int:
        self.ring()
        return 0 * running

    @override
    def stepped(self) -> None:
        self.ring()

    @override
    def preempted(self) -> None:
        self.ring()

    @override
    def rank(self, candidate: Candidate) -> tuple[int, ...]:
        self.ring()
        return (candidate.order,)

    @override
    def __repr__(self) -> str:
        self.ring()
        return "slow"


class Unwritable(Exception):
    def __init__(self, ring: Callable[[], None]) -> None:
        self.ring = ring

    @override
    def __str__(self) -> str:
        self.ring()
        return ""


class Writing(logging.Handler):
    def __init__(self, ring: Callable[[], None]) -> None:
        super().__init__()
        self.ring = ring

    @override
    def emit(self, record: logging.LogRecord) -> None:
        del record
        self.ring()


def test_a_timeout_of_the_programs_is_blamed_on_no_policy_and_swallowed_by_nothing(
    ring: Callable[[], None],
) -> None:
    policy = Slow(ring)
    asked = Asked(policy)
    one = Candidate(0, 0, 0, 1, 1)
    logger, writing = logging.getLogger("blockyard.tests"), Writing(ring)
    logger.addHandler(writing)
    calls: list[Callable[[], object]] = [
        lambda: asked.reserve(1),
        lambda: asked.headroom(1),
        asked.stepped,
        asked.preempted,
        lambda: rank_of("victim_policy", policy, one),
        lambda: checked_policy("victim_policy", policy),
        lambda: checked_headroom("headroom", policy),
        lambda: shown(policy),
        lambda: described(Unwritable(ring)),
        lambda: exported._sentences(policy.__repr__),
        lambda: Limited("blockyard.tests", 0).warning("a line"),
    ]
    try:
        for call in calls:
            with pytest.raises(TimeoutError, match="alarm"):
                call()
    finally:
        logger.removeHandler(writing)
    asked.check()


def test_a_timeout_in_a_step_is_named_by_the_next_one_with_the_remedy(
    ring: Callable[[], None],
) -> None:
    policy = Slow(lambda: None)
    scheduler = by.Scheduler(by.KVCache(device=9), by.SchedulerOptions(headroom=policy))
    scheduler.add(by.NewRequest("one", list(range(5)), max_tokens=3))
    policy.ring = ring
    with pytest.raises(TimeoutError, match="alarm"):
        scheduler.schedule()
    policy.ring = lambda: None
    with pytest.raises(by.Misuse, match=r"call reset\(\)"):
        scheduler.schedule()
    scheduler.reset()
    assert [start.request for start in scheduler.schedule().starts] == ["one"]
