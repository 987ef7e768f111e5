"""The tokens that requests have sampled: in rows of their seats, and read by any thread."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard.scheduling import seats
from blockyard.scheduling.engine import Output
from blockyard.scheduling.request import RequestState
from blockyard.scheduling.sampled import SampledTokens, TokenRows
from loop import Loop, continuation, squeezed
from yard import text


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of seats are emptied every few steps."""
    monkeypatch.setattr(seats, "EMPTIED", 3)


def check(loop: Loop, prompts: dict[Any, int]) -> None:
    """Each request has sampled what it samples alone, and says so from any number on."""
    for name, prompt in prompts.items():
        tokens = loop.scheduler.sampled(name)
        whole = continuation(name, prompt, len(tokens) + 1)
        assert tokens == whole[:-1]
        for first in (0, 1, len(tokens) // 2, len(tokens) - 1, len(tokens), len(tokens) + 1, -2):
            assert loop.scheduler.sampled(name, first) == tokens[first:], first
        entry = loop.scheduler._lifecycle.find(name)
        if entry is not None:
            assert len(entry.outputs) == len(tokens)
            assert entry.outputs.as_array().tolist() == tokens
            assert loop.scheduler.sampled(name) == tokens


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("drafts", [0, 2])
def test_tokens_are_there_while_steps_are_in_flight(drafts: int) -> None:
    loop = Loop(num_speculative_tokens=drafts, accept=1 + drafts)
    prompts = {"one": 5, "two": 6, "three": 9}
    for name, prompt in prompts.items():
        loop.add(name, prompt, 30)
    loop.schedule()
    loop.schedule()
    for _ in range(26):
        before = {name: len(loop.scheduler.sampled(name)) for name in prompts}
        loop.schedule()
        assert {name: len(loop.scheduler.sampled(name)) for name in prompts} == before
        loop.output()
        check(loop, prompts)
    loop.finish()


@pytest.mark.usefixtures("often")
def test_tokens_of_a_victim_are_there_before_and_after_its_ack() -> None:
    loop = squeezed()
    prompts = {"old": 14, "new": 14}
    while loop.state("new") is not RequestState.STOPPING:
        loop.schedule()
        loop.output()
        check(loop, prompts)
    before = loop.scheduler.sampled("new")
    loop.ack()
    assert (loop.state("new"), loop.scheduler.sampled("new")) == (RequestState.RECOMPUTE, before)
    for _ in range(30):
        loop.turn()
        check(loop, {name: 14 for name in prompts if loop.state(name) is not None})
    loop.finish()


@pytest.mark.usefixtures("often")
def test_a_request_that_ended_keeps_its_tokens_when_another_has_its_seat() -> None:
    loop = Loop(max_num_seqs=1)
    loop.add("first", 5, 7)
    loop.add("second", 6, 30)
    loop.turn()
    entry = loop.scheduler._lifecycle.get("first")
    seat = entry.seat
    loop.turn(12)
    assert loop.scheduler._lifecycle.get("second").seat == seat
    assert entry.outputs.since() == continuation("first", 5, 7)
    assert len(entry.outputs) == 7
    loop.finish()


@pytest.mark.usefixtures("often")
def test_samples_of_a_prompt_and_a_stop_among_them_each_keep_their_own() -> None:
    loop = Loop()
    loop.add("many", 9, 14, n=3)
    prompts = {("many", at): 9 for at in range(3)}
    for _ in range(6):
        loop.turn()
        check(loop, prompts)
    loop.scheduler.abort(("many", 1))
    loop.schedule()
    loop.output()
    loop.ack()
    aborted = loop.results["many", 1]
    assert aborted.tokens.tolist() == continuation(("many", 1), 9, len(aborted.tokens))
    assert len(aborted.tokens) > 4
    loop.finish()


@pytest.mark.usefixtures("often")
def test_another_thread_reads_tokens_that_follow_each_other() -> None:
    loop = Loop(max_num_seqs=2, device=300)
    loop.add("one", 5, 400)
    loop.add("two", 5, 400)
    whole = continuation("one", 5, 400)
    wrong, ended = list[object](), threading.Event()

    def read() -> None:
        seen = 0
        while not ended.is_set():
            tokens = loop.scheduler.sampled("one", seen)
            if tokens != whole[seen : seen + len(tokens)]:
                wrong.append((seen, tokens))
                return
            seen += len(tokens)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        loop.turn(300)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert loop.scheduler.sampled("one") == whole[:300]


class Between:
    """A count that another thread changes after it was read."""

    def __init__(self, known: memoryview, act: Callable[[], None]) -> None:
        self.known = known
        self.act: Callable[[], None] | None = act

    def __getitem__(self, at: int) -> int:
        known = self.known[at]
        if self.act is not None:
            act, self.act = self.act, None
            act()
        return known


@pytest.mark.parametrize("first", [0, 2, 4])
@pytest.mark.parametrize("then", ["emptied", "reused", "accepted"])
def test_a_row_that_changes_while_it_is_read_is_read_again(first: int, then: str) -> None:
    known = np.array([7], np.int64)
    rows, tokens, other = TokenRows(known), SampledTokens(), SampledTokens()
    numbers, once = np.zeros(1, np.int64), np.ones(1, np.int64)
    rows.sit(0, tokens)
    for at in range(5):
        rows.add(numbers, np.array([at], np.uint32), once)

    def act() -> None:
        if then == "accepted":
            tokens.leave()
            tokens.extend(np.array([5, 6], np.uint32))
            known[0] += 2
            rows.sit(0, tokens)
        elif then == "emptied":
            rows.sit(0, tokens)
            rows.add(numbers, np.array([5], np.uint32), once)
        else:
            tokens.leave()
            known[0] = 3
            rows.sit(0, other)
            rows.add(numbers, np.array([99], np.uint32), once)

    count = {"emptied": 6, "reused": 5, "accepted": 7}[then]
    row = tokens._row
    assert row is not None
    between: Any = Between(row.known, act)
    tokens._row = row._replace(known=between)
    assert tokens.since(first) == list(range(first, count))
    assert len(tokens) == count


def test_an_output_that_is_refused_leaves_no_token() -> None:
    loop, size = Loop(), 12
    loop.add("one", 5, size)
    loop.add("two", 6, size)
    loop.turn(3)
    loop.schedule()
    loop.schedule()
    digest, before = loop.cache.digest(), loop.scheduler.sampled("one")
    step = loop.air[0]
    tokens = np.zeros(2, np.uint32)
    for wrong in (
        Output(step.number, step.decode, tokens.astype(np.int64)),
        Output(step.number, step.decode, tokens[:1]),
        Output(step.number, step.decode + 1, tokens),
        Output(step.number, step.decode[:1], tokens[:1]),
        Output(step.number, step.decode, tokens, ended=np.zeros(1, np.bool_)),
        Output(step.number + 1, step.decode, tokens),
    ):
        with pytest.raises(by.Misuse):
            loop.scheduler.on_output(wrong)
        assert (loop.cache.digest(), loop.scheduler.sampled("one")) == (digest, before)
    loop.finish()


def test_a_plain_step_does_what_the_same_step_with_counts_does() -> None:
    """Counts of one each take the long way."""
    loops = [Loop(cache=by.KVCache(block_size=4, device=40, yard=1)) for _ in range(2)]
    for at in range(40):
        for counted, loop in enumerate(loops):
            if at in {0, 5, 11}:
                loop.add(at, text(at, 5 + at), 30 - at)
            loop.schedule()
            output = loop.compute()
            counts = np.ones(len(output.seats), np.int64) if counted else None
            loop.scheduler.on_output(
                Output(output.step, output.seats, output.tokens, counts, output.ended)
            )
            loop.ack()
        one, other = loops
        assert one.cache.digest() == other.cache.digest()
        names = one.scheduler.requests
        assert names == other.scheduler.requests
        sampled = [[loop.scheduler.sampled(name) for name in names] for loop in loops]
        assert sampled[0] == sampled[1]
    for loop in loops:
        loop.finish()
        assert len(loop.results) == 3
