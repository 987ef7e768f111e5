"""n samples of a prompt: it is computed once, and forked."""

from typing import Any

import pytest

import blockyard as by
from blockyard.scheduling.request import RequestState
from loop import Loop, continuation
from yard import publish, text


def sampled(loop: Loop, name: str, prompt: int, n: int, most: int) -> None:
    """Checks that each sample has ended with the tokens that it has alone."""
    for at in range(n):
        result = loop.results[name, at]
        assert result.state is RequestState.FINISHED
        assert result.tokens.tolist() == continuation((name, at), prompt, most)


@pytest.mark.parametrize("prompt", [1, 2, 3, 4, 5, 8, 9, 11, 12, 13])
def test_a_prompt_is_computed_once_and_its_last_block_once_for_each_sample(prompt: int) -> None:
    loop = Loop()
    assert loop.scheduler.add(by.NewRequest("a", text(1, prompt), max_tokens=6, n=3)) == (
        ("a", 0),
        ("a", 1),
        ("a", 2),
    )
    computed = 0
    while not loop.scheduler.idle:
        step = loop.schedule()
        computed += sum(chunk.tokens for chunk in step.chunks)
        assert loop.plans == []
        loop.output()
        loop.ack()
    assert computed == prompt + 2 * (prompt - (prompt - 1) // 4 * 4)
    assert loop.told("forked") == 2
    sampled(loop, "a", prompt, 3, 6)
    loop.finish()


def test_samples_share_the_full_blocks_and_have_the_others_for_themselves() -> None:
    loop = Loop()
    loop.scheduler.add(by.NewRequest("a", text(1, 14), max_tokens=6, n=3))
    loop.turn()
    leases = [loop.scheduler.lease(("a", at)) for at in range(3)]
    tables = [loop.cache.block_tables(lease)[0].tolist() for lease in leases if lease is not None]
    assert tables[0][:3] == tables[1][:3] == tables[2][:3]
    assert len({table[3] for table in tables}) == 3
    starts = loop.turn().starts
    assert [(start.request, start.cached) for start in starts] == [(("a", 1), 12), (("a", 2), 12)]
    loop.finish()


def test_samples_of_a_prompt_that_was_found_whole_find_it_too() -> None:
    """The first computes its last token in a copy, which it writes on in: none reads that."""
    loop = Loop()
    publish(loop.cache, text(1, 16))
    loop.scheduler.add(by.NewRequest("a", text(1, 16), max_tokens=6, n=3))
    late = []
    while not loop.scheduler.idle:
        late += [start.cached for start in loop.turn().starts]
    assert (late, loop.told("forked")) == ([15, 15, 15], 0)
    sampled(loop, "a", 16, 3, 6)
    loop.finish()


def test_a_sample_without_a_seat_waits_and_finds_the_prompt_published() -> None:
    loop = Loop(max_num_seqs=2)
    loop.scheduler.add(by.NewRequest("a", text(1, 13), max_tokens=6, n=4))
    assert loop.told("waiting") == 4
    loop.turn()
    assert (loop.told("forked"), loop.told("waiting"), loop.told("seats")) == (1, 2, 2)
    late: dict[Any, int] = {}
    while not loop.scheduler.idle:
        late |= {start.request: start.cached for start in loop.turn().starts}
    assert late == {("a", 1): 12, ("a", 2): 12, ("a", 3): 12}
    sampled(loop, "a", 13, 4, 6)
    loop.finish()


def test_a_sample_without_room_waits_for_it() -> None:
    loop = Loop(device=5, host=16)
    loop.scheduler.add(by.NewRequest("a", text(1, 11), max_tokens=5, n=3))
    loop.finish()
    assert loop.told("forked") < 2
    sampled(loop, "a", 11, 3, 5)


def test_a_sample_overtakes_no_request_that_was_there_before() -> None:
    loop = Loop(device=9, max_num_seqs=4)
    loop.add("large", text(9, 20), 9, priority=1)
    loop.turn()
    loop.add("first", text(2, 16), 9, priority=1)
    loop.scheduler.add(by.NewRequest("a", text(1, 3), max_tokens=2, n=2))
    while loop.state(("a", 0)) is not RequestState.DECODE:
        loop.turn()
    assert (loop.state("first"), loop.told("forked")) == (RequestState.WAITING, 0)
    assert loop.state(("a", 1)) is RequestState.WAITING
    loop.finish()


@pytest.mark.parametrize("when", ["waiting", "prefill"])
def test_if_the_first_sample_is_aborted_the_next_computes_the_prompt(when: str) -> None:
    loop = Loop(max_num_batched_tokens=8)
    loop.scheduler.add(by.NewRequest("a", text(1, 13), max_tokens=3, n=3))
    if when == "prefill":
        loop.turn()
    assert loop.state(("a", 0)) == when
    loop.scheduler.abort(("a", 0))
    loop.finish()
    assert loop.results["a", 0].state is RequestState.ABORTED
    assert loop.told("forked") == 1
    for at in (1, 2):
        assert loop.results["a", at].tokens.tolist() == continuation(("a", at), 13, 3)


def test_a_sample_that_waits_for_the_prompt_says_so_and_can_be_aborted() -> None:
    loop = Loop(max_num_batched_tokens=8)
    loop.scheduler.add(by.NewRequest("a", text(1, 13), max_tokens=3, n=3))
    loop.turn()
    assert "forked of request ('a', 0)" in str(loop.scheduler.explain(("a", 1)))
    loop.scheduler.abort(("a", 1))
    loop.look()
    assert loop.results["a", 1].state is RequestState.ABORTED
    loop.finish()
    assert [loop.results["a", at].state.value for at in (0, 2)] == ["finished", "finished"]


def test_samples_of_a_request_that_is_too_large_for_now_all_wait() -> None:
    """The device was made smaller."""
    loop = Loop(device=17)
    loop.scheduler.add(by.NewRequest("a", text(1, 40), max_tokens=3, n=3))
    loop.cache.resize("device", 6)
    loop.turn(5)
    assert {loop.state(("a", at)) for at in range(3)} == {RequestState.WAITING}
    loop.cache.resize("device", 17)
    loop.finish()
    sampled(loop, "a", 40, 3, 3)


def test_where_nothing_can_be_recomputed_samples_are_admitted_one_by_one() -> None:
    """`safety` counts the claims of what begins in a step; a fork would pass it by."""
    loop = Loop(device=9, host=32, recompute=False)
    loop.scheduler.add(by.NewRequest("a", text(1, 11), max_tokens=9, n=3))
    loop.finish()
    assert loop.told("forked") == 0
    sampled(loop, "a", 11, 3, 9)


def test_a_dead_engine_fails_the_first_sample_and_the_others_wait_on() -> None:
    loop = Loop(max_num_batched_tokens=8)
    loop.scheduler.add(by.NewRequest("a", text(1, 13), max_tokens=3, n=3))
    loop.schedule()
    loop.scheduler.fail("gone")
    assert [str(loop.state(("a", at))) for at in (1, 2)] == ["waiting", "waiting"]
    loop.air.clear()
    loop.scheduler.reset()
    loop.finish(failed=[("a", 0)])
    assert [loop.results["a", at].state.value for at in range(3)] == [
        "failed",
        "finished",
        "finished",
    ]


@pytest.mark.parametrize("n", [0, -1, 16_385, 1.5, True, "2"])
def test_a_number_of_samples_that_makes_no_sense_is_refused(n: Any) -> None:
    loop = Loop()
    with pytest.raises(by.Misuse, match="n = "):
        loop.scheduler.add(by.NewRequest("a", [1], max_tokens=1, n=n))
    assert loop.scheduler.idle


def test_the_id_of_a_sample_is_taken_like_any_other() -> None:
    loop = Loop()
    loop.scheduler.add(by.NewRequest(("a", 1), [1, 2], max_tokens=1))
    with pytest.raises(by.Misuse, match=r"request \('a', 1\) is there already"):
        loop.scheduler.add(by.NewRequest("a", [1], max_tokens=1, n=2))
    assert loop.told("waiting") == 1
    loop.finish()


def test_no_sample_is_forked_of_what_old_weights_have_computed() -> None:
    """The prompt was in flight when the weights changed (seed 633 of the simulator)."""
    loop = Loop()
    loop.scheduler.add(by.NewRequest("a", text(1, 14), max_tokens=6, n=2))
    loop.schedule()
    loop.scheduler.update_weights()
    loop.output()
    assert (loop.told("forked"), str(loop.state(("a", 1)))) == (0, "waiting")
    starts = []
    loop.ack()
    while not loop.scheduler.idle:
        starts += [(start.request, start.cached) for start in loop.turn().starts]
    assert starts[0] in {(("a", 0), 0), (("a", 1), 0)}
    sampled(loop, "a", 14, 2, 6)
    loop.finish()
