"""Hints of a request: taken as it is added or later, checked then, told as it ends."""

import threading
from typing import Any

import pytest

import blockyard as by
from fronts import Served, play, tokens_of
from loop import Loop
from yard import text

NOTHING = {"retention": "ordinary", "next_use": None, "priority": None, "ttl": None}
BAD = [
    ({"retention": "for ever"}, "retention = 'for ever': did you mean"),
    ({"next_use": -1}, "next_use = -1: give seconds"),
    ({"next_use": float("nan")}, "next_use = nan: give seconds"),
    ({"next_use": float("inf")}, "next_use = inf: give seconds"),
    ({"next_use": "soon"}, "next_use = 'soon': give seconds"),
    ({"next_use": True}, "next_use = True: give seconds"),
    ({"priority": -1}, "hints\\.priority = -1: must be an integer from 0 to 100"),
    ({"priority": 101}, "hints\\.priority = 101: must be an integer from 0 to 100"),
    ({"priority": "high"}, "hints\\.priority = 'high'"),
    ({"priority": True}, "hints\\.priority = True"),
    ({"ttl": -1}, "hints\\.ttl = -1: must be an integer"),
    ({"ttl": 1.5}, "hints\\.ttl = 1.5: must be an integer"),
    ({"ttl": False}, "hints\\.ttl = False: must be an integer"),
]


class Spied(Loop):
    """A loop that notes what the cache is told of each end."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.said: list[dict[str, Any]] = []
        loop = self

        class Spy:
            def __getattr__(self, name: str) -> Any:
                return getattr(loop.cache, name)

            def finish(self, lease: by.Lease, *, after: int | None, **hints: Any) -> None:
                loop.said.append(hints)
                loop.cache.finish(lease, after=after, **hints)

        self.scheduler._lifecycle._cache = Spy()  # type: ignore[assignment]


def test_what_a_request_says_is_told_as_it_ends() -> None:
    loop = Spied()
    said: Any = {"next_use": 2.5, "priority": 80, "ttl": 9}
    loop.add("one", text(1, 14), 3, hints=by.Hints("session-ended", **said))
    loop.turn(2)
    assert loop.said == []
    loop.finish()
    told = {"retention": "session-ended", "next_use": 2.5, "priority": 80, "ttl": 9}
    assert loop.said == [told]
    loop.add("two", text(2, 14), 3)
    loop.finish()
    assert loop.said == [told, NOTHING]


def test_a_priority_of_the_queue_is_none_of_what_is_left() -> None:
    loop = Spied()
    loop.add("one", text(1, 14), 3, priority=7)
    loop.finish()
    assert loop.said == [NOTHING]


def test_what_is_hinted_later_stands_for_all_that_was_said() -> None:
    loop = Spied()
    loop.add("one", text(1, 14), 6, hints=by.Hints("session-ended", ttl=4))
    loop.scheduler.hint("one", by.Hints(next_use=1))
    loop.turn(3)
    loop.scheduler.hint("one", by.Hints(next_use=30, priority=60))
    loop.finish()
    assert loop.said == [NOTHING | {"next_use": 30, "priority": 60}]


def test_one_that_is_preempted_says_nothing_before_its_end() -> None:
    loop = Spied(device=9)
    for number, name in enumerate(("old", "new"), 1):
        loop.add(name, text(number, 14), 12, hints=by.Hints(next_use=5))
    loop.finish()
    assert loop.told("preempted") > 0
    ends = [hints["next_use"] for hints in loop.said]
    assert sorted(map(bool, ends)) == [False] * loop.told("preempted") + [True] * 2


def test_an_abort_says_what_was_said() -> None:
    loop = Spied()
    loop.add("one", text(1, 14), 9, hints=by.Hints(next_use=5))
    loop.turn(2)
    loop.scheduler.abort("one")
    loop.scheduler.hint("one", by.Hints(retention="session-ended"))
    loop.finish()
    assert loop.said == [NOTHING | {"retention": "session-ended"}]


def test_samples_share_what_was_said_and_each_may_be_hinted() -> None:
    loop = Spied()
    loop.scheduler.add(
        by.NewRequest("one", text(1, 14), max_tokens=3, n=2, hints=by.Hints(next_use=5))
    )
    loop.scheduler.hint(("one", 1), by.Hints(next_use=7))
    loop.finish()
    assert sorted(hints["next_use"] for hints in loop.said) == [5, 7]


@pytest.mark.parametrize(("hints", "says"), BAD)
def test_a_hint_that_cannot_be_is_refused_and_changes_nothing(
    hints: dict[str, Any], says: str
) -> None:
    loop = Spied()
    before = loop.scheduler.stats()
    with pytest.raises(by.Misuse, match=says):
        loop.add("one", text(1, 14), 2, hints=by.Hints(**hints))
    assert loop.scheduler.idle
    assert loop.scheduler.stats() == before
    loop.add("one", text(1, 14), 2, hints=by.Hints(next_use=3))
    with pytest.raises(by.Misuse, match=says):
        loop.scheduler.hint("one", by.Hints(**hints))
    loop.finish()
    assert loop.said == [NOTHING | {"next_use": 3}]


def test_a_hint_for_no_request_is_refused() -> None:
    loop = Loop()
    no_id: Any = [1]
    for request in ("none", no_id):
        with pytest.raises(by.Misuse, match="request"):
            loop.scheduler.hint(request, by.Hints(next_use=3))
    loop.add("one", text(1, 14), 2)
    raised: list[by.Misuse] = []

    def other() -> None:
        try:
            loop.scheduler.hint("one", by.Hints(next_use=3))
        except by.Misuse as error:
            raised.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert "another thread's" in str(raised[0])
    loop.finish()
    with pytest.raises(by.Misuse, match="has ended"):
        loop.scheduler.hint("one", by.Hints(next_use=3))


def test_a_front_passes_hints_on_and_its_streams_refuse_them() -> None:
    async def act(served: Served) -> None:
        stream = served.front.add(
            by.NewRequest("one", text(1, 9), max_tokens=60, hints=by.Hints(next_use=5))
        )
        lifecycle = served.scheduler._lifecycle
        assert await served.front.ask(lambda _: lifecycle.get("one").hints.next_use) == 5
        await served.front.ask(lambda scheduler: scheduler.hint("one", by.Hints(next_use=9)))
        assert await served.front.ask(lambda _: lifecycle.get("one").hints.next_use) == 9
        assert len(await tokens_of(stream)) == 60
        with pytest.raises(by.Misuse, match="hints\\.priority = 101"):
            await served.front.add(
                by.NewRequest("two", [1], max_tokens=1, hints=by.Hints(priority=101))
            ).result()

    play(act, max_unread=8)  # it waits to be read, and has not ended
