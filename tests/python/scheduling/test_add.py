"""What a request may bring along: media, keys, no prefix, retention."""

import hashlib
import pickle
import threading
from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard.scheduling.engine import Chunk, Output, Start, Step, Stop
from loop import Loop, continuation, squeezed
from yard import free_for_all, publish, text


def engine_keys(tokens: list[int], size: int = 4) -> bytes:
    """Keys as an engine might make them."""
    keys, parent = b"", b""
    for start in range(0, len(tokens) - size + 1, size):
        parent = hashlib.sha256(parent + str(tokens[start : start + size]).encode()).digest()
        keys += parent
    return keys


def cached(loop: Loop, name: str, prompt: list[int], **keywords: Any) -> int:
    """How much of a prompt a request finds."""
    loop.scheduler.add(by.NewRequest(name, prompt, max_tokens=2, **keywords))
    (start,) = loop.schedule().starts
    loop.finish()
    return start.cached


def test_media_separates_prompts_and_is_found_again() -> None:
    loop = Loop()
    cat, dog = [(2, 6, "cat")], [(2, 6, "dog")]
    assert cached(loop, "1", text(1, 14), media=cat) == 0
    assert cached(loop, "2", text(1, 14), media=dog) == 0
    assert cached(loop, "3", text(1, 14)) == 0
    assert cached(loop, "4", text(1, 14), media=cat) == 12


def test_a_preempted_request_with_media_and_salt_finds_its_own_blocks() -> None:
    """It is recomputed: the keys go on from those of its prompt."""
    loop = squeezed()
    loop.scheduler.add(
        by.NewRequest("media", text(3, 14), max_tokens=12, media=[(3, 9, b"x")], salt="s")
    )
    loop.finish()
    assert loop.told("preempted") > 0
    whole = [*text(3, 14), *continuation("media", 14, 12)]
    keys = loop.cache.keys(whole, media=[(3, 9, b"x")], salt="s")
    assert loop.cache.probe(keys).device > 0
    assert loop.cache.probe(whole).device == 0


def test_keys_made_in_another_thread_are_used() -> None:
    loop = Loop()
    publish(loop.cache, text(1, 12))
    made: list[by.Keys] = []
    thread = threading.Thread(target=lambda: made.append(loop.cache.keys(text(1, 14))))
    thread.start()
    thread.join()
    assert cached(loop, "1", text(1, 14), keys=made[0]) == 12


def test_keys_of_the_engine_go_on_with_what_is_sampled() -> None:
    loop = Loop(device=17)
    prompt = text(1, 14)
    keys = loop.cache.ready_keys(engine_keys(prompt), 14)
    assert cached(loop, "1", prompt, keys=keys) == 0
    loop.add("2", prompt, 9, keys=keys)
    (start,) = loop.schedule().starts
    assert start.cached == 12
    loop.finish()
    # A second turn of the conversation finds the first by the prompt's keys, and by what follows.
    whole = [*prompt, *continuation("2", 14, 9)]
    later = loop.cache.keys(whole[12:], after=keys)
    assert loop.cache.probe(later).device == 5
    assert loop.cache.probe(whole).device == 0


@pytest.mark.parametrize("mode", ["park", "recompute"])
def test_a_preempted_request_with_the_engines_keys_comes_back(mode: Any) -> None:
    loop = Loop(device=9, host=32, preempt_mode=mode)
    for name in ("old", "new"):
        prompt = text(len(name) + (name == "new"), 14)
        loop.add(name, prompt, 12, keys=loop.cache.ready_keys(engine_keys(prompt), 14))
    loop.finish()
    assert loop.told("preempted") > 0


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({"keys": b"no"}, "keys = b'no'"),
        ({"keys": 13}, "keys of 13 tokens, and the prompt has 14"),
        ({"keys": 14, "salt": "s"}, "in the keys already"),
        ({"keys": 14, "media": [(0, 1, "x")]}, "in the keys already"),
        ({"media": [(0, 15, "x")]}, "14 tokens"),
        ({"media": [(3, 2, "x")]}, "media"),
        ({"media": 5}, "media"),
        ({"read_prefix": 1}, "read_prefix = 1"),
        ({"hints": by.Hints(ttl=-1)}, "hints.ttl = -1"),
        ({"hints": {"ttl": 1}}, "hints = {'ttl': 1}: must be Hints"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_added(
    keywords: dict[str, Any], says: str
) -> None:
    loop = Loop()
    if isinstance(keywords.get("keys"), int):
        keywords = keywords | {"keys": loop.cache.keys(text(1, keywords["keys"]))}
    with pytest.raises(by.Misuse, match=says):
        loop.scheduler.add(by.NewRequest("one", text(1, 14), max_tokens=2, **keywords))
    assert loop.scheduler.idle


def test_engine_keys_of_less_than_a_block_say_nothing_and_are_refused() -> None:
    """A LoRA's prompt would share keys with a plain one."""
    loop = Loop()
    with pytest.raises(by.Misuse, match="make keys of all their tokens"):
        loop.add("one", text(1, 3), 2, keys=loop.cache.ready_keys(b"", 3))
    assert loop.scheduler.idle


def test_a_request_that_reads_no_prefix_computes_every_token_and_publishes_them() -> None:
    loop = Loop()
    publish(loop.cache, text(1, 12))
    loop.scheduler.add(by.NewRequest("one", text(1, 14), max_tokens=2, read_prefix=False))
    step = loop.schedule()
    assert (step.starts[0].cached, step.chunks) == (0, ((0, 0, 14),))
    loop.finish()
    assert cached(loop, "two", text(2, 14), read_prefix=False) == 0
    assert cached(loop, "three", text(2, 14)) == 12


def test_a_request_that_reads_no_prefix_waits_for_no_other_that_computes_it() -> None:
    loop = Loop(max_num_batched_tokens=40)
    loop.add("one", text(1, 14), 2)
    loop.add("two", text(1, 14), 2, read_prefix=False)
    assert [start.request for start in loop.schedule().starts] == ["one", "two"]
    loop.finish()


def test_a_preempted_request_that_reads_no_prefix_may_read_its_own_work() -> None:
    loop = Loop(device=9)
    for name in ("old", "new"):
        loop.add(name, text(len(name) + (name == "new"), 14), 12, read_prefix=False)
    again = []
    while not loop.scheduler.idle:
        again += [start for start in loop.turn().starts if len(start.tokens) > 14]
    assert [start.cached > 0 for start in again] == [True] * len(again) != []
    loop.finish()


@pytest.mark.parametrize(("retention", "stays"), [("session-ended", False), ("retain", True)])
def test_retention_says_whose_blocks_go_first(retention: Any, stays: bool) -> None:
    loop = Loop(device=13)
    for name, number in (("this", 1), ("other", 2)):
        loop.add(
            name, text(number, 13), 2, hints=by.Hints(retention if number == 1 else "ordinary")
        )
        loop.finish()
    # What "other" left is newer: in its turn, the older goes first.
    publish(loop.cache, text(9, 4 * (free_for_all(loop.cache) - 3)))
    assert (loop.cache.probe(text(1, 12)).device == 3) is stays
    assert (loop.cache.probe(text(2, 12)).device == 3) is not stays


def test_a_preempted_request_is_not_over() -> None:
    """Its blocks are released in their turn, and those of an abort as it was said."""
    loop = Loop(device=9)
    told: list[str] = []

    class Spy:
        def __getattr__(self, name: str) -> Any:
            return getattr(loop.cache, name)

        def finish(self, lease: by.Lease, **said: Any) -> None:
            told.append(said["retention"])
            loop.cache.finish(lease, **said)

    loop.scheduler._lifecycle._cache = Spy()  # type: ignore[assignment]
    for number, name in enumerate(("old", "new"), 1):
        loop.add(name, text(number, 14), 12, hints=by.Hints("session-ended"))
    loop.finish()
    assert loop.told("preempted") > 0
    assert sorted(told) == ["ordinary"] * loop.told("preempted") + ["session-ended"] * 2


# -- one thread ------------------------------------------------------------------------------------


def in_thread(act: Any) -> BaseException | None:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except by.BlockyardError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return raised[0] if raised else None


def test_verbs_of_another_thread_are_refused_and_change_nothing() -> None:
    loop = Loop()
    loop.add("one", text(1, 9), 3)
    scheduler = loop.scheduler
    verbs: list[Any] = [
        lambda: scheduler.add(by.NewRequest("two", [1], max_tokens=1)),
        lambda: scheduler.abort("one"),
        lambda: scheduler.pause_decoding("one"),
        lambda: scheduler.resume_decoding("one"),
        scheduler.schedule,
        lambda: scheduler.on_output(Output.nothing(1)),
        lambda: scheduler.on_acks([]),
        lambda: scheduler.reconcile([], 0),
        scheduler.results,
        scheduler.fail,
        scheduler.reset,
        scheduler.update_weights,
        scheduler.release_thread,
    ]
    before = scheduler.stats()
    for verb in verbs:
        error = in_thread(verb)
        assert isinstance(error, by.Misuse)
        assert "another thread's" in str(error)
    asked: list[Any] = []
    assert in_thread(lambda: asked.extend((scheduler.stats(), scheduler.state("one")))) is None
    assert asked == [before, "waiting"]
    loop.finish()


def test_a_scheduler_is_that_of_its_first_verb_and_can_be_handed_over() -> None:
    loop = Loop()
    assert in_thread(lambda: loop.add("one", text(1, 9), 3)) is None
    with pytest.raises(by.Misuse, match="release_thread"):
        loop.schedule()
    loop = Loop()
    loop.add("one", text(1, 9), 3)
    loop.scheduler.release_thread()
    assert in_thread(loop.turn) is None


# -- for engines in other processes ----------------------------------------------------------------


def test_a_step_and_an_output_can_be_pickled() -> None:
    loop = Loop(max_num_batched_tokens=12)
    loop.add("a", text(1, 5), 4)
    loop.turn(2)
    loop.add("b", text(2, 20), 4)
    loop.scheduler.abort("a")
    loop.add("c", text(3, 2), 4)
    step = loop.schedule()
    again = pickle.loads(pickle.dumps(step))
    assert isinstance(again, Step)
    assert (again.number, again.stops, again.chunks) == (step.number, step.stops, step.chunks)
    assert {type(stop) for stop in again.stops} == {Stop}
    assert {type(chunk) for chunk in again.chunks} == {Chunk}
    (start, *_), (before, *_) = again.starts, step.starts
    assert isinstance(start, Start)
    assert start.tokens.tolist() == before.tokens.tolist()
    assert (start.request, start.cached) == (before.request, before.cached)
    for name in ("decode", "positions", "counts", "samples", "seats", "sampling"):
        assert np.array_equal(getattr(again, name), getattr(step, name))
    assert len(again) == len(step) > 0
    assert (again.leases, len(step.leases)) == ([], len(step))
    output = loop.compute()
    assert pickle.loads(pickle.dumps(output)).tokens.tolist() == output.tokens.tolist()
    loop.scheduler.on_output(pickle.loads(pickle.dumps(output)))
    loop.finish()


def test_a_step_says_which_seats_sample() -> None:
    loop = Loop(max_num_batched_tokens=12)
    loop.add("a", text(1, 5), 4)
    loop.turn(2)
    loop.add("b", text(2, 20), 4)
    step = loop.schedule()
    assert (step.seats.tolist(), step.sampling.tolist()) == ([0, 1], [0])
    output = loop.compute()
    assert output.seats.tolist() == step.sampling.tolist()
    loop.scheduler.on_output(output)
    step = loop.schedule()
    assert (step.seats.tolist(), step.sampling.tolist()) == ([0, 1], [0, 1])
    loop.finish()
