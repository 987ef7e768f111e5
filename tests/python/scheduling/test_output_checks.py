"""What a step computes, and outputs that contradict it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard.scheduling.engine import Output
from blockyard.scheduling.request import RequestState
from loop import U32, Loop, column, continuation
from yard import text

# -- what a step computes -------------------------------------------------------------------------


@pytest.mark.law("T6")
@pytest.mark.parametrize("drafts", [0, 3])
def test_chunks_have_of_the_budget_what_rows_that_decode_leave(drafts: int) -> None:
    """Of a row with drafts, every position counts (T6)."""
    loop = Loop(max_num_batched_tokens=8, num_speculative_tokens=drafts)
    loop.add("decodes", text(1, 4), 12)
    loop.turn()
    loop.add("computes", text(2, 20), 2)
    step = loop.schedule()
    assert step.counts.tolist() == [1 + drafts, 7 - drafts]
    loop.finish()


@pytest.mark.law("4.5-30")
@pytest.mark.parametrize("accept", [1, 3])
def test_a_row_that_decodes_samples_whatever_room_it_has_for_drafts(accept: int) -> None:
    loop = Loop(num_speculative_tokens=3, accept=accept)
    loop.add("one", 10, 12)
    loop.turn()
    step = loop.schedule()
    assert (step.counts.tolist(), step.samples.tolist()) == ([4], [True])
    loop.finish()


@pytest.mark.law("T35")
def test_a_request_with_its_last_token_in_flight_computes_nothing_more() -> None:
    """The row has no position left, and asks for no room (T35)."""
    loop = Loop()
    loop.add("one", 8, 5)
    loop.turn()
    for _ in range(4):
        assert len(loop.schedule()) == 1
    lease = loop.scheduler.lease("one")
    assert lease is not None
    assert (len(loop.schedule()), lease.tokens, lease.blocks) == (0, 12, 3)
    loop.finish()


# -- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"id": "there"}, "'there' is there already"),
        ({"id": ["list"]}, "hashed"),
        ({"prompt": []}, "one token id or more"),
        ({"prompt": [[1], [2]]}, "one-dimensional"),
        ({"prompt": [[1], [2, 3]]}, "one-dimensional"),
        ({"prompt": 5}, "one-dimensional"),
        ({"prompt": None}, "prompt"),
        ({"prompt": "text"}, "prompt"),
        ({"prompt": [1.5]}, "integers"),
        ({"prompt": [True]}, "integers"),
        ({"prompt": [-1]}, "token -1"),
        ({"prompt": [2**32]}, "token 4294967296"),
        ({"prompt": [2**70]}, "prompt"),
        ({"max_tokens": 0}, "max_tokens = 0"),
        ({"max_tokens": True}, "max_tokens = True"),
        ({"priority": "high"}, "priority = 'high'"),
    ],
)
def test_a_bad_request_is_named_and_none_is_added(wrong: dict[str, Any], says: str) -> None:
    loop = Loop()
    loop.add("there", text(2, 6), 2)
    given: dict[str, Any] = {"id": "new", "prompt": [1, 2], "max_tokens": 2, **wrong}
    with pytest.raises(by.Misuse, match=says):
        loop.scheduler.add(by.NewRequest(**given))
    assert loop.told("waiting") == 1
    loop.finish()


@pytest.mark.parametrize("wrong", [{"salt": 5}, {"lora": 1.5}])
def test_a_bad_salt_or_adapter_is_refused_when_it_is_given(wrong: dict[str, Any]) -> None:
    loop = Loop()
    with pytest.raises((by.Misuse, TypeError)):
        loop.scheduler.add(by.NewRequest("one", [1, 2], max_tokens=1, **wrong))
    assert loop.told("waiting") == 0


def test_what_the_device_can_never_hold_is_refused_at_once_and_what_it_just_can_is_served() -> None:
    loop = Loop(device=9)
    with pytest.raises(by.TooLarge, match="9 blocks and the device has 8"):
        loop.add("one", 20, 14)
    loop.add("one", 20, 13)
    loop.finish()
    assert len(loop.results["one"].tokens) == 13


def test_a_request_waits_until_a_device_that_was_made_smaller_is_large_again() -> None:
    """It holds up no other meanwhile, and says what it waits for."""
    loop = Loop(device=33, max_overtakes=0, metrics=True)
    loop.add("large", text(1, 90), 8)
    loop.cache.resize("device", 17)
    for name in range(3):
        loop.add(name, text(name + 2, 20), 4)
    for _ in range(90):
        loop.now += 1.0
        loop.turn()
    assert {loop.results[name].state for name in range(3)} == {RequestState.FINISHED}
    assert loop.state("large") is RequestState.WAITING
    assert loop.scheduler.stats()["waiting_room"] == loop.scheduler.stats()["waiting"] == 1
    said = str(loop.scheduler.explain("large"))
    assert "It may need 25 blocks, and the device has 16 since it was made smaller" in said
    (sentence,) = loop.scheduler.stalled()
    assert "it has 16 blocks since it was made smaller, and 'large' may need up to 25" in sentence
    loop.cache.resize("device", 25)  # one too few, as one is never given out
    loop.turn(2)
    assert loop.state("large") is RequestState.WAITING
    loop.cache.resize("device", 26)
    loop.finish()


def test_a_request_that_was_refused_stands_aside_when_the_device_is_made_smaller() -> None:
    """It had found no room before; what is behind it fits."""
    loop = Loop(device=33, max_overtakes=0)
    loop.add("runs", text(1, 20), 20)
    loop.turn()
    loop.add("large", text(2, 110), 8)
    loop.add("small", text(3, 9), 2)
    loop.turn(3)
    assert loop.state("small") is RequestState.WAITING
    loop.cache.resize("device", 20)
    loop.turn(3)
    assert loop.results["small"].state is RequestState.FINISHED
    loop.scheduler.abort("large")
    loop.finish()


def test_one_too_large_for_now_gives_the_room_of_its_ticket_to_others() -> None:
    loop = Loop(device=33)
    loop.add("large", text(2, 110), 8, ticket=loop.cache.promise(10))
    loop.cache.resize("device", 13)
    loop.add("small", text(3, 20), 2)
    loop.turn(6)
    assert loop.results["small"].state is RequestState.FINISHED
    loop.cache.resize("device", 33)
    loop.finish()


@pytest.mark.law("INV-25")
@pytest.mark.parametrize("host", [0, 32])
@pytest.mark.parametrize("stops", ["acked", "in-order"])
def test_a_running_request_that_fills_a_device_made_smaller_waits_and_loses_no_token(
    stops: Any, host: int
) -> None:
    loop = Loop(device=9, host=host, stops=stops)
    loop.add("one", 6, 20)
    loop.turn(3)
    loop.cache.resize("device", 5)
    loop.add("two", text(2, 6), 4)
    loop.turn(24)
    assert loop.results["two"].state is RequestState.FINISHED
    assert loop.state("one") is (RequestState.PARKED if host else RequestState.RECOMPUTE)
    # It held all 4 blocks, and has sampled the token that would be the first of a fifth.
    assert loop.scheduler.sampled("one") == continuation("one", 6, 20)[:11]
    loop.cache.resize("device", 9)
    loop.finish()


def test_rows_that_cannot_leave_a_device_made_smaller_wait_in_their_seats() -> None:
    """This engine cannot recompute, and has no host."""
    loop = Loop(device=17, recompute=False)
    for name in (1, 2):
        loop.add(name, text(name, 6), 20)
    loop.turn(3)
    loop.cache.resize("device", 9)
    for _ in range(120):
        loop.now += 1.0
        loop.turn()
    assert loop.results == {}
    (sentence,) = loop.scheduler.stalled()
    assert "it has 8 blocks since it was made smaller, and 1, 2 may need up to 7" in sentence
    loop.cache.resize("device", 17)
    loop.finish()
    for name in (1, 2):
        assert loop.results[name].tokens.tolist() == continuation(name, 6, 20)


@pytest.mark.law("4.5-33")
def test_a_request_that_is_not_there_is_refused_by_name() -> None:
    loop = Loop()
    for verb in (loop.scheduler.abort, loop.scheduler.explain):
        with pytest.raises(by.Misuse, match="no request 'x'"):
            verb("x")


BAD: dict[str, tuple[Any, str]] = {
    "of a step that is not the oldest": (
        lambda step: Output(step + 1, column(0), column(5, kind=U32)),
        "the oldest in flight is",
    ),
    "of a seat that is not in it": (
        lambda step: Output(step, column(0, 3), column(5, 5, kind=U32)),
        "seat 3",
    ),
    "of a seat that does not exist": (
        lambda step: Output(step, column(0, -1), column(5, 5, kind=U32)),
        "seat -1",
    ),
    "of a seat twice": (lambda step: Output(step, column(0, 0), column(5, 5, kind=U32)), "seat 0"),
    "of a prompt that is not computed": (
        lambda step: Output(step, column(0, 1), column(5, 5, kind=U32)),
        "seat 1 samples nothing",
    ),
    "without a row": (
        lambda step: Output(step, column(), column(kind=U32)),
        "seat 0 samples in it, and is missing",
    ),
    "with too many tokens": (
        lambda step: Output(step, column(0), column(5, 6, kind=U32)),
        "2 tokens, but 1",
    ),
    "with more tokens than drafts": (
        lambda step: Output(step, column(0), column(5, 6, kind=U32), column(2)),
        "from 1 to 1",
    ),
    "with no token": (
        lambda step: Output(step, column(0), column(kind=U32), column(0)),
        "from 1 to 1",
    ),
    "with tokens that are no token ids": (
        lambda step: Output(step, column(0), column(-9, kind=np.int64)),
        "must be uint32",
    ),
    "with too few ends": (
        lambda step: Output(step, column(0), column(5, kind=U32), None, column(kind=np.bool_)),
        "0 ends",
    ),
}


@pytest.mark.law("4.6-39")
@pytest.mark.parametrize("what", BAD)
def test_a_bad_output_is_named_and_nothing_of_it_is_taken(what: str) -> None:
    loop = Loop(max_num_batched_tokens=6)
    loop.add("decodes", text(1, 4), 9)
    loop.turn()
    loop.add("computes", text(2, 12), 9)
    step = loop.schedule()
    assert loop.rows(step) == [0, 1]
    wrong, says = BAD[what]
    before = loop.cache.digest(), loop.scheduler.stats(), len(loop.scheduler._batch._in_flight)
    with pytest.raises(by.Misuse, match=says):
        loop.scheduler.on_output(wrong(step.number))
    assert (
        loop.cache.digest(),
        loop.scheduler.stats(),
        len(loop.scheduler._batch._in_flight),
    ) == before
    loop.finish()


@pytest.mark.law("4.6-39")
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"counts": column(2, 0)}, "from 1 to 1"),
        ({"ended": np.zeros(3, np.bool_)}, "3 ends, but 2 rows"),
    ],
)
def test_what_does_not_fit_its_rows_is_refused_also_where_all_decode(
    wrong: dict[str, Any], says: str
) -> None:
    loop = Loop()
    for name in range(2):
        loop.add(name, text(name + 1, 6), 9)
    loop.turn(2)
    loop.schedule()
    said = loop.compute()
    with pytest.raises(by.Misuse, match=says):
        loop.scheduler.on_output(replace(said, **wrong))
    loop.scheduler.on_output(said)
    loop.finish()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs = 0"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens = 0"),
        ({"preempt_cooldown": -1}, "preempt_cooldown = -1"),
        ({"max_overtakes": -1}, "max_overtakes = -1"),
        ({"num_speculative_tokens": -1}, "num_speculative_tokens = -1"),
        ({"stops": "perhaps"}, "'perhaps'"),
    ],
)
def test_a_bad_scheduler_is_named(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(by.Misuse, match=says):
        Loop(**wrong)


def test_a_reset_by_another_policy_is_refused() -> None:
    loop = Loop()
    with pytest.raises(by.Misuse, match="'forget'"):
        loop.scheduler.reset(requests="forget")  # type: ignore[arg-type]
