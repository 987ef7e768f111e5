"""An asyncio front, its cache, and engines that compute in threads or when they are polled."""

import asyncio
import dataclasses
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Hashable
from queue import SimpleQueue
from typing import Any, Literal

import numpy as np

import blockyard as by
from blockyard._typing import override
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.scheduling.engine import Ack, Output, Step
from blockyard.scheduling.headroom import NoHeadroom
from blockyard.scheduling.request import RequestState
from blockyard.serving.stream import Stream
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
        return self.front.add(by.NewRequest(name, text(1, prompt), max_tokens=most, **keywords))


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


async def parked(served: Served) -> Stream:
    """A request that is held and parked, as others needed its room."""
    slow = served.add("slow", 5, 25)
    for name in range(4):
        await tokens_of(served.front.add(by.NewRequest(name, text(3 + name, 20), max_tokens=8)))
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
