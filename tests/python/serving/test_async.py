"""The asyncio front: requests from any thread, tokens to coroutines, one result each."""

import asyncio
import gc
from typing import Any

import pytest

import blockyard as by
from blockyard.scheduling.cached_tokens import CachedTokens
from blockyard.scheduling.headroom import NoHeadroom
from blockyard.scheduling.request import RequestState
from fronts import (
    Served,
    Silent,
    Threaded,
    check_empty,
    parked,
    play,
    together,
    tokens_of,
)
from loop import continuation
from yard import text


@pytest.mark.parametrize("engine", [Threaded, Silent])
def test_many_clients_in_little_memory_each_get_the_tokens_that_they_get_alone(
    engine: type,
) -> None:
    async def act(served: Served) -> None:
        async def client(name: int) -> None:
            stream = served.front.add(by.NewRequest(name, text(name, 9 + name % 7), max_tokens=12))
            tokens = await tokens_of(stream)
            assert tokens == continuation(name, 9 + name % 7, 12)
            result = await stream.result()
            assert (result.state, result.tokens.tolist()) == (RequestState.FINISHED, tokens)

        await asyncio.gather(*map(client, range(50)))

    served = play(act, device=17, engine=engine)
    assert served.scheduler.stats()["preempted"] > 0
    assert served.scheduler.stats()["lost"] == 0


def test_a_stream_says_what_was_cached_from_its_first_token_on() -> None:
    async def act(served: Served) -> None:
        for found in (0, 8):
            stream = served.front.add(by.NewRequest(f"found {found}", text(1, 10), max_tokens=12))
            told = [stream.cached_tokens]
            await anext(stream)
            told.append(stream.cached_tokens)
            told += [(await stream.result()).cached_tokens, stream.cached_tokens]
            assert told == [None, *[CachedTokens(device=found)] * 3]

    play(act)


def test_requests_come_and_go_from_many_threads_at_once() -> None:
    async def act(served: Served) -> None:
        streams: dict[Any, Any] = {}

        def feed(thread: int) -> None:
            for at in range(25):
                name = thread, at
                streams[name] = served.front.add(
                    by.NewRequest(name, text(thread, 5 + at % 9), max_tokens=6)
                )
                if at % 5 == 4:
                    served.front.abort((thread, at - 2))

        await asyncio.gather(*(asyncio.to_thread(feed, thread) for thread in range(8)))
        results = [await stream.result() for stream in streams.values()]
        assert len({result.request for result in results}) == 200
        for result in results:
            assert isinstance(result.request, tuple)
            _, at = result.request
            whole = continuation(result.request, 5 + at % 9, 6)
            assert result.tokens.tolist() == whole[: len(result.tokens)]
            assert result.state is RequestState.FINISHED or at % 5 == 2

    play(act)


def test_a_request_that_nobody_reads_is_held_and_no_other_waits_for_it() -> None:
    async def act(served: Served) -> None:
        slow = served.add("slow", 5, 60)
        assert len(await tokens_of(served.add("quick", 9, 60))) == 60
        await served.front.ask(str)
        unread = len(slow._channel.unread)
        # Those of two steps in flight come on top of what may wait.
        assert 8 < unread <= 8 + 3
        said = await served.front.ask(lambda scheduler: str(scheduler.explain("slow")))
        assert "is held" in said
        assert await tokens_of(slow) == continuation("slow", 5, 60)

    play(act, max_unread=8)


def test_a_held_request_makes_room_for_others_and_comes_back_at_the_same_token() -> None:
    async def act(served: Served) -> None:
        slow = served.add("slow", 5, 25)
        for name in range(12):
            stream = served.front.add(by.NewRequest(name, text(3 + name, 20), max_tokens=8))
            assert await tokens_of(stream) == continuation(name, 20, 8)
        assert await tokens_of(slow) == continuation("slow", 5, 25)

    served = play(act, device=9, max_unread=4)
    assert served.scheduler.stats()["parkings"] > 0
    assert served.scheduler.stats()["lost"] == 0


@pytest.mark.parametrize("host", [0, 64])
def test_as_many_unread_streams_as_there_are_seats_stop_nobody(host: int) -> None:
    async def act(served: Served) -> None:
        unread = [served.add(name, 5, 40) for name in range(2)]
        for name in range(2, 5):
            assert await tokens_of(served.add(name, 9, 20)) == continuation(name, 9, 20)
        for stream in unread:
            assert await tokens_of(stream) == continuation(stream.request, 5, 40)

    play(act, host=host, max_num_seqs=2, max_unread=4)


async def rests(served: Served, polls: int) -> None:
    """Waits until it polls so seldom in a fifth of a second: a busy machine takes its time."""
    seen: list[int] = []
    while not seen or seen[-1] > polls:
        assert len(seen) < 20, seen
        before = served.engine.polls
        await asyncio.sleep(0.2)
        seen.append(served.engine.polls - before)


def test_an_idle_front_sleeps_until_a_request_comes() -> None:
    async def act(served: Served) -> None:
        await served.add("one", 5, 3).result()
        await rests(served, polls=1)
        assert (await served.add("two", 5, 3).result()).state is RequestState.FINISHED

    play(act)


def test_while_the_engine_computes_it_sleeps_too() -> None:
    async def act(served: Served) -> None:
        served.engine.pause.clear()
        stream = served.add("one", 5, 30)
        await rests(served, polls=12)
        served.engine.pause.set()
        await stream.result()

    play(act)


def test_a_client_that_is_cancelled_aborts_its_request() -> None:
    async def act(served: Served) -> None:
        got: list[int] = []

        async def client() -> None:
            async for tokens in served.front.generate(
                by.NewRequest("one", text(1, 5), max_tokens=40)
            ):
                got.extend(tokens)

        served.engine.pause.clear()
        task = asyncio.create_task(client())
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        served.engine.pause.set()
        assert (await served.add("two", 9, 3).result()).state is RequestState.FINISHED

    served = play(act)
    assert served.scheduler.stats()["steps"] < 40


def test_a_stream_that_is_dropped_aborts_its_request() -> None:
    async def act(served: Served) -> None:
        served.engine.pause.clear()
        stream = served.add("one", 5, 50)
        del stream
        gc.collect()
        served.engine.pause.set()
        assert (await served.add("two", 9, 3).result()).state is RequestState.FINISHED

    served = play(act)
    assert served.scheduler.stats()["steps"] < 40


def test_leaving_a_loop_early_aborts_the_request() -> None:
    async def act(served: Served) -> None:
        async with served.add("one", 5, 50) as stream:
            async for _ in stream:
                break
        assert (await stream.result()).state is RequestState.ABORTED

    play(act)


def test_add_is_for_one_sample_and_takes_nothing_but_a_request() -> None:
    async def act(served: Served) -> None:
        with pytest.raises(by.Misuse, match="n = 2: call add_samples"):
            served.front.add(by.NewRequest("one", [1], max_tokens=3, n=2))
        wrong: Any = "one"
        for add in (served.front.add, served.front.add_samples):
            with pytest.raises(by.Misuse, match="must be NewRequest"):
                add(wrong)

    play(act)


def test_what_the_scheduler_refuses_is_raised_by_the_stream_and_harms_no_other() -> None:
    async def act(served: Served) -> None:
        with pytest.raises(by.Misuse, match="prompt"):
            served.front.add(by.NewRequest("one", ["a"], max_tokens=3))
        with pytest.raises(by.TooLarge, match="may need"):
            await served.add("one", 5, 5000).result()
        served.engine.pause.clear()
        first = served.add("one", 5, 30)
        with pytest.raises(by.Misuse, match="'one' is there already"):
            await tokens_of(served.add("one", 5, 3))
        with pytest.raises(by.Misuse, match="max_tokens = 0"):
            await served.add("two", 5, 0).result()
        with pytest.raises(TypeError, match="retentoin"):
            await served.add("two", 5, 1, retentoin="ordinary").result()
        with pytest.raises(by.Misuse, match="n = 0"):
            served.front.add_samples(by.NewRequest("three", [1], n=0, max_tokens=1))
        served.engine.pause.set()
        assert await tokens_of(first) == continuation("one", 5, 30)
        served.front.abort("nobody")

    play(act)


def test_samples_have_a_stream_each() -> None:
    async def act(served: Served) -> None:
        streams = served.front.add_samples(by.NewRequest("a", text(1, 13), n=3, max_tokens=6))
        assert [stream.request for stream in streams] == [("a", 0), ("a", 1), ("a", 2)]
        for stream in streams:
            assert await tokens_of(stream) == continuation(stream.request, 13, 6)

    served = play(act)
    assert served.scheduler.stats()["forked"] == 2


def test_one_coroutine_reads_a_stream() -> None:
    async def act(served: Served) -> None:
        served.engine.pause.clear()
        stream = served.add("one", 5, 9)
        reader = asyncio.create_task(tokens_of(stream))
        await asyncio.sleep(0.01)
        with pytest.raises(by.Misuse, match="another coroutine"):
            await stream.result()
        served.engine.pause.set()
        assert len(await reader) == 9

    play(act)


def test_it_is_entered_before_it_is_used_and_needs_something_that_moves_copies() -> None:
    served = Served()
    with pytest.raises(by.Misuse, match="async with"):
        served.add("one", 5, 3)
    cache = by.KVCache(device=9)
    with pytest.raises(by.Misuse, match="move = None"):
        by.AsyncEngine(by.Scheduler(cache), served.engine)
    with pytest.raises(by.Misuse, match="steps_in_flight = 0"):
        by.AsyncEngine(served.scheduler, served.engine, steps_in_flight=0)
    with pytest.raises(by.Misuse, match="max_unread = 0"):
        by.AsyncEngine(served.scheduler, served.engine, max_unread=0)
    other = by.Scheduler(cache, by.SchedulerOptions(stops="in-order"))
    with pytest.raises(by.Misuse, match="stops are 'acked'"):
        by.AsyncEngine(other, served.engine, move=lambda: None)
    with pytest.raises(by.Misuse, match="stops of the engine = None: must be"):
        by.AsyncEngine(other, object(), move=lambda: None)  # type: ignore[arg-type]
    check_empty(served)


def test_a_cache_without_step_moves_copies_as_it_is_told() -> None:
    engine = Threaded()
    cache = by.KVCache(block_size=4, device=17, host=32)
    scheduler = by.Scheduler(cache, by.SchedulerOptions(headroom=NoHeadroom()))

    async def scene() -> None:
        def move() -> None:
            cache.commit(cache.dispatch())

        async with by.AsyncEngine(scheduler, engine, move=move) as front:
            streams = [
                front.add(by.NewRequest(name, text(name, 9), max_tokens=12)) for name in range(20)
            ]
            for name, stream in enumerate(streams):
                assert await tokens_of(stream) == continuation(name, 9, 12)

    asyncio.run(scene())
    engine.work.put(None)
    assert scheduler.stats()["preempted"] > 0
    assert cache.audit() is None


@pytest.mark.parametrize("after", ["read", "drain", "drop"])
def test_an_abort_of_a_parked_request_harms_no_other_whatever_follows_at_once(after: str) -> None:
    async def act(served: Served) -> None:
        slow = await parked(served)
        go = together(served)
        served.front.abort("slow")
        if after == "read":
            await anext(slow)
        elif after == "drop":
            served.front._steps.drop(slow._channel)
        drained = asyncio.create_task(served.front.drain()) if after == "drain" else None
        await asyncio.sleep(0)
        go.set()
        result = await slow.result()
        assert result.state is RequestState.ABORTED
        assert result.tokens.tolist() == continuation("slow", 5, len(result.tokens))
        if drained is not None:
            await drained

    play(act, device=9, max_unread=4)


def test_what_is_said_of_an_old_stream_concerns_no_new_request_of_its_id() -> None:
    """A stream that is dropped, or read, after its request has ended and another has its id."""

    async def act(served: Served) -> None:
        old = served.add("x", 5, 3)
        await old.result()
        new = served.add("x", 5, 40)
        while not new._channel.held:
            await served.front.ask(str)
        channel, steps = old._channel, served.front._steps
        channel.held = True
        for say in (steps.resume, steps.abort, steps.drop):
            say(channel)
        unread = await served.front.ask(lambda scheduler: scheduler.stats()["in_decode"])
        held = await served.front.ask(lambda scheduler: "is held" in str(scheduler.explain("x")))
        assert (unread, held) == (1, True)
        assert await tokens_of(new) == continuation("x", 5, 40)
        assert (await new.result()).state is RequestState.FINISHED

    play(act, max_unread=4)


def test_an_id_that_is_used_again_in_the_turn_of_its_abort_is_another_request() -> None:
    async def act(served: Served) -> None:
        served.engine.pause.clear()
        served.add("first", 5, 9)
        old = served.add("x", 5, 3)
        go = together(served)
        served.front.abort("x")
        new = served.add("x", 6, 3)
        go.set()
        served.engine.pause.set()
        assert (await old.result()).state is RequestState.ABORTED
        assert await tokens_of(new) == continuation("x", 6, 3)

    play(act, max_num_seqs=1)


def test_a_question_that_nobody_waits_for_any_more_is_not_asked() -> None:
    async def act(served: Served) -> None:
        asked: list[by.Scheduler] = []
        go = together(served)
        question = asyncio.create_task(served.front.ask(asked.append))
        await asyncio.sleep(0)
        question.cancel()
        with pytest.raises(asyncio.CancelledError):
            await question
        go.set()
        assert (await served.add("one", 5, 3).result()).state is RequestState.FINISHED
        assert asked == []

    play(act)


def test_an_id_that_cannot_be_hashed_is_refused_where_it_is_given() -> None:
    async def act(served: Served) -> None:
        with pytest.raises(by.Misuse, match=r"request \[1\]: must be an id that can be hashed"):
            served.front.add(by.NewRequest([1], text(1, 5), max_tokens=3))  # type: ignore[arg-type]
        with pytest.raises(by.Misuse, match=r"request \[1\]: must be an id that can be hashed"):
            served.front.abort([1])  # type: ignore[arg-type]
        assert (await served.add("one", 5, 3).result()).state is RequestState.FINISHED

    play(act)
