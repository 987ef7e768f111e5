"""How an asyncio front ends: drained, closed, or with its engine or its event loop."""

import asyncio
import re
import threading
from typing import Any

import pytest

import blockyard as by
from blockyard._typing import override
from blockyard.scheduling.engine import Ack, Output
from blockyard.scheduling.request import RequestState
from blockyard.serving import async_engine, step_loop
from blockyard.shared.log import Limited
from fronts import (
    InOrder,
    OutputIsAck,
    Served,
    Silent,
    Threaded,
    WithOutput,
    check_empty,
    parked,
    play,
    tokens_of,
)
from loop import continuation
from yard import text, there


def test_closing_aborts_what_runs_and_waits_and_each_has_its_result() -> None:
    async def act(served: Served) -> None:
        streams = [served.add(name, 9, 1000 // 9) for name in range(9)]
        await anext(streams[0])
        await served.front.close()
        results = [await stream.result() for stream in streams]
        assert {result.state for result in results} == {RequestState.ABORTED}
        with pytest.raises(by.Unavailable, match="closed"):
            served.add("late", 5, 3)
        served.front.abort(3)
        await served.front.close()

    play(act, max_num_seqs=4)


@pytest.mark.parametrize("ending", ["drain", "close"])
def test_it_ends_with_the_last_step_also_where_that_has_no_rows(ending: str) -> None:
    async def scene(served: Served) -> None:
        stream = served.add("A", 4, 200)
        await anext(stream)
        await getattr(served.front, ending)()
        assert (await stream.result()).reason == {"drain": "length", "close": "aborted"}[ending]

    play(scene, engine=OutputIsAck, stops="in-order", device=128)


def test_leaving_it_waits_for_requests_that_nobody_reads() -> None:
    streams: list[Any] = []

    async def act(served: Served) -> None:
        streams.extend(served.add(name, 9, 40) for name in range(6))

    play(act, max_unread=4)
    for stream in streams:
        assert there(stream._channel.result).state is RequestState.FINISHED
        assert stream._channel.unread == continuation(stream.request, 9, 40)


def test_after_an_error_in_its_block_requests_are_aborted() -> None:
    served = Served()
    streams: list[Any] = []

    async def scene() -> None:
        async with served.front:
            streams.append(served.add("one", 5, 100))
            await anext(streams[0])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(scene())
    check_empty(served)
    result = there(streams[0]._channel.result)
    assert result.state is RequestState.ABORTED


def test_the_scheduler_can_go_to_another_front_and_be_called_by_hand() -> None:
    async def act(served: Served) -> None:
        assert (await served.add("one", 5, 3).result()).reason == "length"
        await served.front.close()
        with pytest.raises(by.Misuse, match="started before"):
            await served.front.start()
        async with by.AsyncEngine(served.scheduler, served.engine) as again:
            result = await again.add(by.NewRequest("two", text(2, 5), max_tokens=3)).result()
            assert result.tokens.tolist() == continuation("two", 5, 3)

    play(act)


def test_if_the_engine_fails_every_request_is_told_once() -> None:
    served = Served(max_num_seqs=2)

    async def scene() -> None:
        async with served.front as front:
            served.engine.pause.clear()
            streams = [served.add(name, 9, 40) for name in range(5)]
            await asyncio.sleep(0.02)
            served.engine.fault = OSError("the device is gone")
            served.engine.pause.set()
            for stream in streams:
                result = await stream.result()
                assert (result.state, result.reason) == (
                    RequestState.FAILED,
                    "OSError: the device is gone",
                )
            with pytest.raises(by.Unavailable, match="the device is gone"):
                served.add("late", 5, 3)
            with pytest.raises(by.Unavailable, match="the device is gone"):
                await front.ask(lambda scheduler: scheduler.idle)
            front.abort(3)

    with pytest.raises(by.Unavailable, match="the device is gone"):
        asyncio.run(scene())
    assert served.scheduler.monitor.failed == "OSError: the device is gone"
    served.scheduler.reset()
    assert not served.scheduler.monitor.failed
    check_empty(served)


def test_generate_raises_when_its_request_fails() -> None:
    served = Served()

    async def scene() -> None:
        async with served.front as front:
            served.engine.fault = OSError("gone")
            with pytest.raises(by.Unavailable, match="request 'one' has failed: OSError: gone"):
                async for _ in front.generate(by.NewRequest("one", text(1, 5), max_tokens=3)):
                    pass

    with pytest.raises(by.Unavailable):
        asyncio.run(scene())
    served.scheduler.reset()
    check_empty(served)


def test_if_the_event_loop_is_gone_everything_is_aborted_and_the_thread_ends() -> None:
    served = Served()
    streams: list[Any] = []

    async def scene() -> None:
        await served.front.start()
        served.engine.pause.clear()
        streams.append(served.add("one", 5, 100))
        await asyncio.sleep(0.01)

    asyncio.run(scene())
    served.engine.pause.set()
    for thread in threading.enumerate():
        if thread.name == "blockyard-scheduler":
            thread.join(30)
            assert not thread.is_alive()
    check_empty(served)


def test_a_front_whose_scheduler_another_thread_has_is_not_started() -> None:
    served = Served()
    served.scheduler.release_thread()
    go, taken = threading.Event(), threading.Event()

    def take() -> None:
        served.scheduler.results()
        taken.set()
        go.wait(30)
        served.scheduler.release_thread()

    async def scene() -> None:
        with pytest.raises(by.Misuse, match="another thread's"):
            await served.front.start()
        go.set()
        other.join(30)
        await served.front.start()
        assert (await served.add("one", 5, 3).result()).state is RequestState.FINISHED
        await served.front.close()

    other = threading.Thread(target=take)
    other.start()
    assert taken.wait(30)
    asyncio.run(scene())
    check_empty(served)


def test_if_the_engine_fails_what_a_parked_request_had_sampled_is_in_its_result() -> None:
    served = Served(device=9, max_unread=4)

    async def scene() -> None:
        async with served.front:
            slow = await parked(served)
            served.engine.fault = OSError("gone")
            served.front._steps.wake()
            tokens = await tokens_of(slow)
            result = await slow.result()
            assert (result.state, result.tokens.tolist()) == (RequestState.FAILED, tokens)
            assert tokens == continuation("slow", 5, len(tokens))
            assert len(tokens) > 4

    with pytest.raises(by.Unavailable, match="gone"):
        asyncio.run(scene())
    served.scheduler.reset()
    check_empty(served)


def test_what_is_refused_when_the_event_loop_is_closed_is_no_failure_of_the_engine() -> None:
    served = Served()
    loop = asyncio.new_event_loop()
    loop.run_until_complete(served.front.start())
    loop.close()
    served.add("one", 5, 5000)
    for thread in threading.enumerate():
        thread.join(30) if thread.name == "blockyard-scheduler" else None
    served.front._steps.check_failure()
    check_empty(served)


@pytest.mark.parametrize("engine", [InOrder, WithOutput])
def test_a_front_ends_where_the_last_ack_is_the_output_of_a_step_without_rows(engine: type) -> None:
    async def act(served: Served) -> None:
        stream = served.add("one", 5, 3)
        await served.front.drain()
        assert (await stream.result()).state is RequestState.FINISHED

    play(act, host=0, engine=engine, stops=engine.stops)  # type: ignore[attr-defined]


def test_in_a_second_front_each_output_counts_for_its_own_step() -> None:
    """A step without rows may be in flight from before, as the engine keeps its newest."""

    class Keeps(InOrder):
        @override
        def poll(self) -> tuple[list[Output], list[Ack]]:
            outputs = []
            while self.work.qsize() > 1:
                step = there(self.work.get())
                outputs.append(self.answer(step))
            return outputs, []

    async def act(served: Served) -> None:
        await served.add("one", 5, 3).result()
        await served.front.drain()
        assert served.scheduler.steps_in_flight == 1
        async with by.AsyncEngine(served.scheduler, served.engine) as again:
            await again.add(by.NewRequest("two", text(1, 5), max_tokens=9)).result()
        assert served.scheduler.steps_in_flight == len(again._steps._telling) == 1

    play(act, engine=Keeps, stops="in-order")


@pytest.mark.parametrize("engine", [Threaded, Silent])
def test_an_engine_that_answers_nothing_is_named_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, engine: Any
) -> None:
    """Whether it has `notify`, or is asked every millisecond."""
    monkeypatch.setattr(step_loop, "_MUTE", 0.02)
    monkeypatch.setattr(step_loop, "_mute", Limited(step_loop.__name__, 60.0))

    async def act(served: Served) -> None:
        await asyncio.sleep(0.1)
        assert caplog.text == ""
        served.engine.pause.clear()
        stream = served.add("one", 5, 3)
        for _ in range(3000):
            await asyncio.sleep(0 if caplog.text else 0.01)
        served.engine.pause.set()
        await stream.result()

    play(act, engine=engine)
    assert len(caplog.records) == 1
    # A busy machine may look before the second is submitted.
    assert re.search("the engine has answered none of its [12] steps", caplog.text)


def test_closing_ends_what_came_before_it_and_what_was_held_by_hand() -> None:
    served = Served()
    served.scheduler.add(by.NewRequest("before", text(1, 5), max_tokens=50))
    served.scheduler.pause_decoding("before")

    async def scene() -> None:
        async with served.front as front:
            held = served.add("held", 9, 20)
            await front.ask(lambda scheduler: scheduler.pause_decoding("held"))
            front.abort("before")
            await front.drain()
            assert await tokens_of(held) == continuation("held", 9, 20)

    asyncio.run(scene())
    check_empty(served)

    served = Served()
    served.scheduler.add(by.NewRequest("before", text(1, 5), max_tokens=50))

    async def close() -> None:
        async with served.front as front:
            await front.close()

    asyncio.run(close())
    assert served.scheduler.requests == ()
    check_empty(served)


@pytest.mark.parametrize("verb", ["drain", "close"])
def test_a_drain_that_is_cut_by_a_limit_says_what_still_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, verb: str
) -> None:
    monkeypatch.setattr(async_engine, "_log", Limited(async_engine.__name__))

    async def act(served: Served) -> None:
        served.engine.pause.clear()
        streams = [served.add(("long", at), 9, 40) for at in range(10)]
        while not served.scheduler.steps_in_flight:  # noqa: ASYNC110 - nothing else tells
            await asyncio.sleep(0.001)
        with pytest.raises(TimeoutError) as cut:
            async with asyncio.timeout(0.05):
                await getattr(served.front, verb)()
        (note,) = cut.value.__cause__.__notes__  # type: ignore[union-attr]
        for said in (note, caplog.text):
            assert f"{verb} was cut off" in said
            assert "requests: ('long', 0)" in said
            assert re.search("steps with the engine: [12]; flights: none, of 0 blocks down", said)
            assert verb == "close" or "('long', 7), … (10); steps" in said
        served.engine.pause.set()
        await served.front.close()
        assert (await streams[0].result()).reason == "aborted"

    play(act)
