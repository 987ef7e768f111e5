"""The asyncio front: requests from any thread, tokens to coroutines, one result each."""

import asyncio
import dataclasses
import gc
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Hashable
from queue import SimpleQueue
from typing import Any, Literal

import numpy as np
import pytest

import blockyard as by
from blockyard._typing import override
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.scheduling import step_loop
from blockyard.scheduling.engine import Ack, Output, Step
from blockyard.scheduling.headroom import NoHeadroom
from blockyard.scheduling.request import RequestState
from blockyard.scheduling.stream import Stream
from loop import continuation
from yard import text

LAYOUT = by.KVLayout.llama(layers=1, kv_heads=1, head_dim=8, block_size=4)


class Threaded:
    """An engine that computes in a thread of its own, and says when it has."""

    stops: Literal["in-order", "acked"] = "acked"

    def __init__(self) -> None:
        self.work: SimpleQueue[Step | None] = SimpleQueue()
        self.done: deque[tuple[Output, list[Ack]]] = deque()
        self.seats: dict[int, tuple[Hashable, int]] = {}
        self.polls = 0
        self.fault: Exception | None = None
        self.pause = threading.Event()
        self.pause.set()
        self.wake: Callable[[], None] = lambda: None
        threading.Thread(target=self.run, daemon=True).start()

    def notify(self, wake: Callable[[], None]) -> None:
        self.wake = wake

    def submit(self, step: Step) -> None:
        self.work.put(step)

    def poll(self) -> tuple[list[Output], list[Ack]]:
        self.polls += 1
        if self.fault is not None:
            raise self.fault
        outputs, acks = [], []
        while self.done:
            output, acked = self.done.popleft()
            outputs.append(output)
            acks += acked
        return outputs, acks

    def run(self) -> None:
        while (step := self.work.get()) is not None:
            self.pause.wait()
            self.done.append((self.compute(step), [Ack(*stop) for stop in step.stops]))
            self.wake()

    def compute(self, step: Step) -> Output:
        for stop in step.stops:
            self.seats.pop(stop.seat, None)
        for start in step.starts:
            self.seats[start.seat] = start.request, len(start.tokens)
        tokens = []
        for seat in step.sampling.tolist():
            request, known = self.seats[seat]
            tokens += continuation(request, known, 1)
            self.seats[seat] = request, known + 1
        return Output(step.number, step.sampling, np.array(tokens, np.uint32))


class OutputIsAck(Threaded):
    """The same without acks: the output of a stop's step, which may have no rows, is the ack."""

    stops = "in-order"

    @override
    def poll(self) -> tuple[list[Output], list[Ack]]:
        return super().poll()[0], []


class Silent(Threaded):
    """The same without a word when it has computed."""

    notify = None  # type: ignore[assignment]


class Served:
    """A front with its cache and engine."""

    def __init__(
        self, device: int = 33, host: int = 64, *, engine: Any = Threaded, **keywords: Any
    ) -> None:
        front = {name: keywords.pop(name) for name in ("max_unread",) if name in keywords}
        copier = ThreadCopier(workers=0)
        self.cache = by.local(LAYOUT, device=device, host=host, copier=copier)
        self.engine = engine()
        options = {"headroom": NoHeadroom(), "max_num_batched_tokens": 64, **keywords}
        self.scheduler = by.Scheduler(self.cache, by.SchedulerOptions(**options))
        self.front = by.AsyncEngine(self.scheduler, self.engine, **front)

    def add(self, name: Hashable, prompt: int, most: int, **keywords: Any) -> Stream:
        return self.front.add(name, text(1, prompt), max_tokens=most, **keywords)


def play(act: Callable[[Served], Coroutine[Any, Any, None]], **keywords: Any) -> Served:
    """Runs a scene, and checks that nothing is left of it."""
    served = Served(**keywords)

    async def scene() -> None:
        async with asyncio.timeout(60):
            async with served.front:
                await act(served)

    asyncio.run(scene())
    check_empty(served)
    return served


def check_empty(served: Served) -> None:
    # A request that is aborted while it loads leaves its loads to the next steps.
    while served.cache.blocks_in_flight() != (0, 0):
        served.cache.step()
    assert served.scheduler.idle
    assert served.scheduler.results() == []
    assert served.cache.audit() is None
    stats = served.cache.stats()
    assert (stats["leases"], stats["device_promised"], stats["leaked"]) == (0, 0, 0)
    assert not served.front._steps._channels
    served.engine.work.put(None)
    served.cache.close()


async def tokens_of(stream: Stream) -> list[int]:
    return [token async for tokens in stream for token in tokens]


@pytest.mark.parametrize("engine", [Threaded, Silent])
def test_many_clients_in_little_memory_each_get_the_tokens_that_they_get_alone(
    engine: type,
) -> None:
    async def act(served: Served) -> None:
        async def client(name: int) -> None:
            stream = served.front.add(name, text(name, 9 + name % 7), max_tokens=12)
            tokens = await tokens_of(stream)
            assert tokens == continuation(name, 9 + name % 7, 12)
            result = await stream.result()
            assert (result.state, result.tokens.tolist()) == (RequestState.FINISHED, tokens)

        await asyncio.gather(*map(client, range(50)))

    served = play(act, device=17, engine=engine)
    assert served.scheduler.stats()["preempted"] > 0
    assert served.scheduler.stats()["lost"] == 0


def test_requests_come_and_go_from_many_threads_at_once() -> None:
    async def act(served: Served) -> None:
        streams: dict[Hashable, Stream] = {}

        def feed(thread: int) -> None:
            for at in range(25):
                name = thread, at
                streams[name] = served.front.add(name, text(thread, 5 + at % 9), max_tokens=6)
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
            stream = served.front.add(name, text(3 + name, 20), max_tokens=8)
            assert await tokens_of(stream) == continuation(name, 20, 8)
        assert await tokens_of(slow) == continuation("slow", 5, 25)

    served = play(act, device=9, max_unread=4)
    assert served.scheduler.stats()["parkings"] > 0
    assert served.scheduler.stats()["lost"] == 0


def test_an_idle_front_sleeps_until_a_request_comes() -> None:
    async def act(served: Served) -> None:
        await served.add("one", 5, 3).result()
        await asyncio.sleep(0.05)
        polls = served.engine.polls
        await asyncio.sleep(0.2)
        assert served.engine.polls - polls <= 1
        assert (await served.add("two", 5, 3).result()).state is RequestState.FINISHED

    play(act)


def test_while_the_engine_computes_it_sleeps_too() -> None:
    async def act(served: Served) -> None:
        served.engine.pause.clear()
        stream = served.add("one", 5, 30)
        await asyncio.sleep(0.05)
        polls = served.engine.polls
        await asyncio.sleep(0.2)
        assert served.engine.polls - polls <= 12
        served.engine.pause.set()
        await stream.result()

    play(act)


def test_a_client_that_is_cancelled_aborts_its_request() -> None:
    async def act(served: Served) -> None:
        got: list[int] = []

        async def client() -> None:
            async for tokens in served.front.generate("one", text(1, 5), max_tokens=40):
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


def test_what_the_scheduler_refuses_is_raised_by_the_stream_and_harms_no_other() -> None:
    async def act(served: Served) -> None:
        with pytest.raises(by.Misuse, match="prompt"):
            served.front.add("one", ["a"], max_tokens=3)
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
            served.front.add_samples("three", [1], n=0, max_tokens=1)
        served.engine.pause.set()
        assert await tokens_of(first) == continuation("one", 5, 30)
        served.front.abort("nobody")

    play(act)


def test_samples_have_a_stream_each() -> None:
    async def act(served: Served) -> None:
        streams = served.front.add_samples("a", text(1, 13), n=3, max_tokens=6)
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
    streams: list[Stream] = []

    async def act(served: Served) -> None:
        streams.extend(served.add(name, 9, 40) for name in range(6))

    play(act, max_unread=4)
    for stream in streams:
        assert stream._channel.result is not None
        assert stream._channel.result.state is RequestState.FINISHED
        assert stream._channel.unread == continuation(stream.request, 9, 40)


def test_after_an_error_in_its_block_requests_are_aborted() -> None:
    served = Served()
    streams: list[Stream] = []

    async def scene() -> None:
        async with served.front:
            streams.append(served.add("one", 5, 100))
            await anext(streams[0])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(scene())
    check_empty(served)
    result = streams[0]._channel.result
    assert result is not None
    assert result.state is RequestState.ABORTED


def test_the_scheduler_can_go_to_another_front_and_be_called_by_hand() -> None:
    async def act(served: Served) -> None:
        assert (await served.add("one", 5, 3).result()).reason == "length"
        await served.front.close()
        with pytest.raises(by.Misuse, match="started before"):
            await served.front.start()
        async with by.AsyncEngine(served.scheduler, served.engine) as again:
            result = await again.add("two", text(2, 5), max_tokens=3).result()
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
    served.scheduler.reset()
    check_empty(served)


def test_generate_raises_when_its_request_fails() -> None:
    served = Served()

    async def scene() -> None:
        async with served.front as front:
            served.engine.fault = OSError("gone")
            with pytest.raises(by.Unavailable, match="request 'one' has failed: OSError: gone"):
                async for _ in front.generate("one", text(1, 5), max_tokens=3):
                    pass

    with pytest.raises(by.Unavailable):
        asyncio.run(scene())
    served.scheduler.reset()
    check_empty(served)


def test_if_the_event_loop_is_gone_everything_is_aborted_and_the_thread_ends() -> None:
    served = Served()
    streams: list[Stream] = []

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
            streams = [front.add(name, text(name, 9), max_tokens=12) for name in range(20)]
            for name, stream in enumerate(streams):
                assert await tokens_of(stream) == continuation(name, 9, 12)

    asyncio.run(scene())
    engine.work.put(None)
    assert scheduler.stats()["preempted"] > 0
    assert cache.audit() is None


# -- what comes together in one turn -------------------------------------------------------------


async def parked(served: Served) -> Stream:
    """A request that is held and parked, as others needed its room."""
    slow = served.add("slow", 5, 25)
    for name in range(4):
        await tokens_of(served.front.add(name, text(3 + name, 20), max_tokens=8))
    state = await served.front.ask(lambda scheduler: scheduler.state("slow"))
    assert state is RequestState.PARKED
    return slow


def together(served: Served) -> threading.Event:
    """What is asked until the event is set comes in one turn."""
    go = threading.Event()
    served.front._steps.do(lambda: assert_true(go.wait(30)))
    return go


def assert_true(holds: bool) -> None:
    assert holds


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
            served.front.add([1], text(1, 5), max_tokens=3)  # type: ignore[arg-type]
        with pytest.raises(by.Misuse, match=r"request \[1\]: must be an id that can be hashed"):
            served.front.abort([1])  # type: ignore[arg-type]
        assert (await served.add("one", 5, 3).result()).state is RequestState.FINISHED

    play(act)


def test_a_front_whose_scheduler_another_thread_has_is_not_started() -> None:
    served = Served()
    served.scheduler.hand_over()
    go, taken = threading.Event(), threading.Event()

    def take() -> None:
        served.scheduler.results()
        taken.set()
        go.wait(30)
        served.scheduler.hand_over()

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


class InOrder(Threaded):
    """An engine without a thread, whose output of a stop's step is the ack."""

    stops: Literal["in-order", "acked"] = "in-order"
    notify = None  # type: ignore[assignment]

    @override
    def poll(self) -> tuple[list[Output], list[Ack]]:
        outputs = []
        while not self.work.empty():
            step = self.work.get()
            assert step is not None
            outputs.append(self.answer(step))
        return outputs, []

    @override
    def run(self) -> None:
        """Computes in `poll` instead."""

    def answer(self, step: Step) -> Output:
        return self.compute(step)


class WithOutput(InOrder):
    """The same, whose acks travel with the output."""

    stops = "acked"

    @override
    def answer(self, step: Step) -> Output:
        acks = tuple(Ack(*stop) for stop in step.stops)
        return dataclasses.replace(self.compute(step), acks=acks)


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
                step = self.work.get()
                assert step is not None
                outputs.append(self.answer(step))
            return outputs, []

    async def act(served: Served) -> None:
        await served.add("one", 5, 3).result()
        await served.front.drain()
        assert served.scheduler.steps_in_flight == 1
        async with by.AsyncEngine(served.scheduler, served.engine) as again:
            await again.add("two", text(1, 5), max_tokens=9).result()
        assert served.scheduler.steps_in_flight == len(again._steps._telling) == 1

    play(act, engine=Keeps, stops="in-order")


def test_an_engine_that_answers_nothing_is_named_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(step_loop, "_MUTE", 0.02)

    async def act(served: Served) -> None:
        await asyncio.sleep(0.1)
        assert caplog.text == ""
        served.engine.pause.clear()
        stream = served.add("one", 5, 3)
        for _ in range(3000):
            await asyncio.sleep(0 if caplog.text else 0.01)
        served.engine.pause.set()
        await stream.result()

    play(act)
    assert len(caplog.records) == 1
    assert "the engine has answered none of its 2 steps" in caplog.text


def test_closing_ends_what_came_before_it_and_what_was_held_by_hand() -> None:
    served = Served()
    served.scheduler.add("before", text(1, 5), max_tokens=50)
    served.scheduler.hold("before")

    async def scene() -> None:
        async with served.front as front:
            held = served.add("held", 9, 20)
            await front.ask(lambda scheduler: scheduler.hold("held"))
            front.abort("before")
            await front.drain()
            assert await tokens_of(held) == continuation("held", 9, 20)

    asyncio.run(scene())
    check_empty(served)

    served = Served()
    served.scheduler.add("before", text(1, 5), max_tokens=50)

    async def close() -> None:
        async with served.front as front:
            await front.close()

    asyncio.run(close())
    assert served.scheduler.requests == ()
    check_empty(served)
