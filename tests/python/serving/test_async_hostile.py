"""Questions and log handlers of the program that raise: they fail alone, and hang nobody."""

import asyncio
import concurrent.futures
import logging
from collections.abc import Iterator

import pytest

import blockyard as by
from blockyard._typing import override
from blockyard.scheduling.request import RequestState
from fronts import Served, check_empty, play
from loop import continuation


class Raising(logging.Handler):
    """A handler that lets its errors out, as one with a closed connection does."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        raise ZeroDivisionError(record.msg)


@pytest.fixture
def raising() -> Iterator[None]:
    logger = logging.getLogger("blockyard")
    level, handler = logger.level, Raising()
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)
    logger.setLevel(level)


class Unspeakable(Exception):
    """An error that cannot be written as text."""

    @override
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        StopIteration(1),
        StopAsyncIteration(),
        asyncio.CancelledError(),
        concurrent.futures.CancelledError(),
    ],
    ids=lambda error: type(error).__module__ + "." + type(error).__name__,
)
def test_a_question_that_raises_what_ends_loops_fails_alone(error: BaseException) -> None:
    def question(_: by.Scheduler) -> None:
        raise error

    async def act(served: Served) -> None:
        stream = served.add("one", 5, 20)
        for _ in range(2):
            with pytest.raises(by.Misuse, match=type(error).__name__) as caught:
                await served.front.ask(question)
            assert caught.value.__cause__ is error
        assert await served.front.ask(lambda scheduler: scheduler.state("none")) is None
        assert (await stream.result()).tokens.tolist() == continuation("one", 5, 20)

    play(act)


def test_a_question_raises_where_it_was_asked() -> None:
    async def act(served: Served) -> None:
        with pytest.raises(ZeroDivisionError):
            await served.front.ask(lambda _: 1 // 0)
        with pytest.raises(Unspeakable):
            await served.front.ask(lambda _: fail(Unspeakable()))

    play(act)


def fail(error: BaseException) -> None:
    raise error


@pytest.mark.usefixtures("raising")
@pytest.mark.parametrize("fault", [OSError("the device is gone"), Unspeakable()])
def test_if_the_engine_fails_every_request_is_told_whatever_the_log_does(fault: Exception) -> None:
    served = Served(max_num_seqs=2)

    async def scene() -> None:
        async with asyncio.timeout(60), served.front:
            served.engine.pause.clear()
            streams = [served.add(name, 9, 40) for name in range(5)]
            await asyncio.sleep(0.02)
            served.engine.fault = fault
            served.engine.pause.set()
            for stream in streams:
                result = await stream.result()
                assert result.state is RequestState.FAILED
                assert type(fault).__name__ in result.reason

    with pytest.raises(by.Unavailable, match="the engine failed"):
        asyncio.run(scene())
    served.scheduler.reset()
    check_empty(served)
