"""A scheduler whose requests wait for offers: with room, without holding up others, and once."""

from typing import Any

import pytest

from blockyard.scheduling.request import RequestState
from fake_peers import Rig, offer
from loop import Loop
from yard import text

PROMPT = text(1, 13)


class Rigged(Rig):
    """A decode side, and the scheduler that asks it."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.loop = Loop(cache=self.cache, lookup=self.side)

    def add(self, name: str = "one", prompt: list[int] = PROMPT, **more: Any) -> None:
        ticket = self.side.reserve(name, len(prompt), 2, **more)
        assert ticket is not None
        self.loop.add(name, prompt, 2, ticket=ticket)

    def brings(self, name: str = "one", blocks: int = 3) -> None:
        """Has an offer come and be taken."""
        assert self.side.offered(name, offer())
        self.loop.schedule()
        assert self.loop.state(name) is RequestState.WAITING
        self.peer.answer(blocks, self.cache.keys(PROMPT))
        self.loop.output()
        self.loop.schedule()

    @property
    def promised(self) -> int:
        return self.cache.room().promised


@pytest.mark.law("INV-36e")
def test_inv_36e_it_waits_with_room_and_holds_up_no_other() -> None:
    rig = Rigged(patience=30.0)
    rig.add()
    rig.loop.add("short", text(2, 3), 2)
    rig.loop.schedule()
    assert rig.loop.begun == ["short"]
    rig.loop.now = 29.0
    rig.loop.output()
    rig.loop.schedule()
    assert rig.loop.state("one") is RequestState.WAITING, "the patience for stores is shorter"
    assert "It waits for an offer, for 30.0 s at most." in str(rig.loop.scheduler.explain("one"))
    assert rig.promised == 4
    rig.loop.output()
    rig.brings()
    assert rig.loop.state("one") is RequestState.LOADING
    rig.loop.land()
    assert rig.peer.said == [("take", b"\1" * 16, 9, 3)]
    rig.loop.output()
    rig.loop.schedule()
    assert rig.peer.said[1:] == [("done", b"\1" * 16)], "as soon as it begins"
    rig.loop.finish()
    assert rig.loop.results["one"].cached_tokens.remote == 12, "one token is computed"
    assert rig.promised == 0


@pytest.mark.law("INV-36f", "T34")
def test_inv_36f_a_load_that_fails_is_computed() -> None:
    rig = Rigged()
    rig.add()
    rig.brings()
    (plan,) = rig.loop.plans
    rig.loop.plans.clear()
    rig.loop.cache.commit(plan, 1, corrupt=True)
    rig.loop.finish()
    assert rig.loop.results["one"].cached_tokens.remote == 4
    assert rig.peer.said[-1] == ("done", b"\1" * 16)
    assert rig.cache.probe(rig.cache.keys(PROMPT)).remote == 0
    assert rig.cache.audit() is None


def test_without_an_offer_it_computes() -> None:
    rig = Rigged(patience=2.0)
    rig.add()
    rig.loop.schedule()
    rig.now = 2.0
    rig.loop.finish()
    assert rig.loop.results["one"].cached_tokens.total == 0
    assert not rig.peer.said


@pytest.mark.law("INV-6")
def test_inv_6_it_waits_for_a_prefix_that_another_one_computes_and_no_longer() -> None:
    rig = Rigged(patience=5.0)
    loop = rig.loop = Loop(cache=rig.cache, lookup=rig.side, max_num_batched_tokens=4)
    rig.add()
    loop.turn()
    loop.add("other", PROMPT, 2)
    loop.turn()
    assert loop.state("other") is RequestState.PREFILL
    # No offer comes, while the other one has not computed all of its prompt.
    rig.now = 6.0
    rig.side.sweep()
    loop.turn()
    assert loop.state("one") is RequestState.WAITING
    loop.finish()
    assert rig.side.stats()["handover_late"] == 1


@pytest.mark.parametrize("when", ["waiting", "taking", "loading"])
def test_an_abort_refuses_the_offer_and_gives_the_room_back(when: str) -> None:
    rig = Rigged()
    rig.add()
    rig.loop.schedule()
    if when == "taking":
        rig.side.offered("one", offer())
        rig.loop.output()
        rig.loop.schedule()
    elif when == "loading":
        rig.loop.output()
        rig.brings()
        assert rig.loop.state("one") is RequestState.LOADING
    rig.loop.scheduler.abort("one")
    # At once: no step comes after it where nothing else is there.
    assert rig.side.stats()["handover_waiting"] == rig.side.stats()["handover_open"] == 0
    if when == "waiting":
        assert not rig.side.offered("one", offer())
    ends = {"waiting": "late", "taking": "aborted"}
    wanted = ("refuse", b"\1" * 16, ends[when]) if when in ends else ("done", b"\1" * 16)
    assert rig.peer.said[-1] == wanted
    assert rig.promised == 0
    rig.loop.land()
    assert rig.cache.audit() is None


def test_what_the_cache_has_already_is_not_taken() -> None:
    rig = Rigged()
    rig.loop.add("before", PROMPT, 2)
    rig.loop.finish()
    rig.add()
    rig.side.offered("one", offer())
    rig.loop.schedule()
    assert rig.loop.begun[-1] == "one"
    assert rig.peer.said == [("refuse", b"\1" * 16, "unused")]
    rig.loop.finish()


def test_what_names_alone_say_is_taken_by_its_own_offer() -> None:
    """An offer that has ended may have left them, and another may end before this one loads."""
    rig = Rigged()
    rig.cache.adopt(rig.cache.keys(PROMPT), 3)
    rig.add()
    rig.brings()
    assert rig.peer.said == [("take", b"\1" * 16, 9, 3)]
    assert rig.loop.state("one") is RequestState.LOADING
    rig.loop.finish()


def test_new_weights_end_what_is_open() -> None:
    rig = Rigged()
    rig.add()
    rig.brings()
    rig.loop.scheduler.update_weights()
    assert rig.peer.said[-1] == ("done", b"\1" * 16)
    rig.loop.land()
    rig.loop.finish()
    rig.add("two", text(1, 13))
    rig.loop.schedule()
    assert rig.loop.begun[-1] == "two", "it asks nobody any more"
    rig.loop.finish()


def test_a_reset_ends_what_is_open() -> None:
    rig = Rigged()
    rig.add()
    rig.brings()
    rig.loop.scheduler.fail()
    rig.loop.scheduler.reset()
    assert rig.peer.said[-1] == ("done", b"\1" * 16)
    assert rig.side.stats()["handover_open"] == 0


@pytest.mark.law("INV-36f")
@pytest.mark.parametrize("requests", ["recompute", "abort"])
@pytest.mark.parametrize("asked", [False, True])
def test_inv_36f_who_waits_for_an_offer_waits_on_after_a_reset(requests: Any, asked: bool) -> None:
    rig = Rigged(patience=30.0)
    rig.loop.add("runs", text(2, 5), 9)
    rig.loop.schedule()
    rig.add()
    if asked:
        rig.loop.output()
        rig.loop.schedule()
    rig.loop.air.clear()
    rig.loop.scheduler.reset(requests=requests)
    assert rig.loop.state("one") is RequestState.WAITING
    assert rig.promised == 4
    rig.loop.schedule()
    rig.brings()
    assert rig.loop.state("one") is RequestState.LOADING
    assert rig.peer.said == [("take", b"\1" * 16, 9, 3)]


def test_an_abort_of_one_that_was_never_asked_about_ends_what_it_reserved() -> None:
    rig = Rigged(patience=30.0)
    rig.add()
    rig.loop.scheduler.abort("one")
    assert rig.side.stats()["handover_waiting"] == 0
    assert not rig.side.offered("one", offer())
    assert rig.peer.said[-1] == ("refuse", b"\1" * 16, "late")


def test_where_no_name_is_free_what_was_taken_is_given_back() -> None:
    rig = Rigged()
    rig.cache.resize("remote", 1)
    rig.cache.adopt(rig.cache.keys(text(9, 5)))
    lease = rig.cache.begin(text(9, 5))
    rig.add()
    rig.brings()
    assert rig.side.stats()["handover_blocks"] == 3
    assert rig.side.stats()["handover_open"] == 0
    rig.cache.finish(lease)
    rig.loop.finish()


def test_after_new_weights_a_request_is_over_at_once() -> None:
    rig = Rigged(patience=30.0)
    rig.loop.scheduler.update_weights()
    rig.add()
    rig.loop.schedule()
    assert rig.side.stats()["handover_waiting"] == 0
    rig.loop.finish()


def test_names_for_copies_that_go_on_after_an_abort_are_dropped_when_these_have_ended() -> None:
    rig = Rigged()
    rig.add()
    rig.brings()
    rig.loop.scheduler.abort("one")
    assert rig.cache.stats()["remote_free"] == 61, "the copy has them"
    rig.loop.land()
    rig.loop.schedule()
    assert rig.cache.stats()["remote_free"] == 61
    rig.now = 29.0
    rig.side.sweep()
    assert rig.cache.stats()["remote_free"] == 61, "not before each copy has ended"
    rig.now = 30.0
    rig.side.sweep()
    assert rig.cache.stats()["remote_free"] == 64


def test_beside_many_that_load_a_request_that_has_ended_leaves_its_id_to_another() -> None:
    rig = Rigged(device=65)
    rig.loop = Loop(cache=rig.cache, lookup=rig.side, max_num_seqs=16)
    for number in range(12):
        prompt = text(number + 1, 13)
        ticket = rig.side.reserve(number, 13, 1)
        rig.loop.add(number, prompt, 1, ticket=ticket)
        assert rig.side.offered(number, offer(number + 1))
        rig.loop.schedule()
        rig.peer.answer(3, rig.cache.keys(prompt))
        rig.loop.output()
        rig.loop.schedule()
        rig.loop.output()
        assert rig.loop.state(number) is RequestState.LOADING
    # Of the last one alone: it begins and ends in one step.
    rig.cache.commit(rig.loop.plans.pop())
    rig.loop.schedule()
    rig.loop.output()
    assert rig.loop.results[11].state is RequestState.FINISHED
    assert rig.peer.said[-1] == ("done", b"\14" * 16)
    assert rig.side.reserve(11, 13, 1) is not None
