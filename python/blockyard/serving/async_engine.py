"""An asyncio front of a scheduler and its engine, for servers."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Hashable
from concurrent.futures import CancelledError, Future
from typing import Self, TypeVar

from blockyard._core import Misuse, Unavailable
from blockyard.scheduling.engine import Engine
from blockyard.scheduling.evacuation import PATIENCE
from blockyard.scheduling.new_request import NewRequest, check_id, checked
from blockyard.scheduling.request import RequestState
from blockyard.scheduling.scheduler import Scheduler
from blockyard.serving.step_loop import Call, Reader, StepLoop
from blockyard.serving.stream import Channel, Front, Stream
from blockyard.shared.log import Limited, unclosed
from blockyard.shared.owner import thread_name
from blockyard.shared.single import Single
from blockyard.shared.validate import integer, seconds

__all__ = ["AsyncEngine"]

_T = TypeVar("_T")
_log = Limited(__name__)


class AsyncEngine(Single):
    """Runs a scheduler and its engine in a thread of its own, and streams tokens to coroutines.

    `add`, `abort` and `evacuate` may be called from any thread; streams are read in the event loop
    that entered it. The thread sleeps until a request comes, the engine has computed, or a copy has
    landed.

    An engine that computes in the background should have a method `notify(wake)`: it is called
    once, and the engine then calls `wake()`, from any thread, whenever `poll` has something new.
    One without it is polled every millisecond while a step is in flight.

    Args:
        scheduler: The scheduler, which only this front calls from now on.
        engine: The engine that computes its steps.
        move: Called once a turn to move copies; it returns whether a flight has ended. None for the
            cache's own `step`, which a cache of `blockyard.local` has.
        steps_in_flight: Most steps that the engine has at a time.
        max_unread: Tokens of a request that may wait to be read before it is held.

    Raises:
        Misuse: A value is out of range, the engine's `stops` differ from the scheduler's, or there
            is no `move` and the cache has no `step`.

    Example:
        >>> import asyncio
        >>> import blockyard as by
        >>> from blockyard.reference.model import Model
        >>> from blockyard.reference.reference import alone
        >>> from blockyard.reference.weights import ModelConfig
        >>> async def main() -> int:
        ...     model = Model(ModelConfig())
        ...     config = by.Config(layout=model.config.layout(), device=16)
        ...     cache, engine = alone(model, config)
        ...     scheduler = by.Scheduler(cache, by.SchedulerOptions(stops=engine.stops))
        ...     with cache:
        ...         async with by.AsyncEngine(scheduler, engine) as front:
        ...             stream = front.add(by.NewRequest("one", [1, 2, 3], max_tokens=4))
        ...             return len((await stream.result()).tokens)
        >>> asyncio.run(main())
        4
    """

    def __init__(
        self,
        scheduler: Scheduler,
        engine: Engine,
        *,
        move: Callable[[], object] | None = None,
        steps_in_flight: int = 2,
        max_unread: int = 256,
    ) -> None:
        self._scheduler = scheduler
        self._max_unread = integer("max_unread", max_unread)
        reader = Reader(self._tell, self._is_over)
        self._steps = StepLoop(scheduler, engine, reader, move, steps_in_flight)
        self._closed = False
        """Whether `drain` or `close` was called."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        """The thread of that event loop."""
        self._ended: asyncio.Future[None] | None = None
        self._front = Front(self._steps.resume, self._steps.abort, self._drop, self._check_loop)

    # -- calls from any thread -------------------------------------------------------------------

    def add(self, request: NewRequest) -> Stream:
        """Adds a request; any thread may call it.

        Args:
            request: The request, of one sample: see `add_samples`.

        Returns:
            The stream of its tokens. It raises the errors of `Scheduler.add`.

        Raises:
            Misuse: It is no `NewRequest`, has several samples, or the front is not entered.
            Unavailable: It is closed, or its engine has failed.
        """
        if checked(request).n > 1:
            raise Misuse(f"n = {request.n}: call add_samples, which returns a stream for each")
        return self.add_samples(request)[0]

    def add_samples(self, request: NewRequest) -> tuple[Stream, ...]:
        """Adds the `n` samples of a prompt, which is computed once; any thread may call it.

        Args:
            request: The request.

        Returns:
            A stream for each sample.

        Raises:
            Misuse: It is no `NewRequest`, or the front is not entered.
            Unavailable: As `add`.
        """
        if not isinstance(request, NewRequest):
            raise Misuse(
                f"request = {request!r:.60}: must be NewRequest(id, prompt, max_tokens=...)"
            )
        channels = [Channel(sample, self._max_unread) for sample in request.samples]

        def act() -> None:
            try:
                self._scheduler.add(request)
            except Exception as error:  # noqa: BLE001 - the stream raises it
                self._steps.refuse(channels, error)
            else:
                self._steps.open(channels)

        self._steps.do(act)
        return tuple(Stream(channel, self._front) for channel in channels)

    async def generate(self, request: NewRequest) -> AsyncIterator[list[int]]:
        """Adds a request, and yields its tokens as they come; leaving the loop early aborts it.

        Args:
            request: As in `add`.

        Raises:
            BlockyardError: As `add`; or Unavailable, if the request has failed, or was moved.
        """
        async with self.add(request) as stream:
            async for tokens in stream:
                yield tokens
            result = await stream.result()
            if result.state is RequestState.FAILED:
                raise Unavailable(f"request {request.id!r} has failed: {result.reason}")
            if result.state is RequestState.MOVED:
                raise Unavailable(
                    f"request {request.id!r} was moved after {len(result.tokens)} tokens: add its "
                    "prompt and these to another engine"
                )

    def abort(self, request: Hashable) -> None:
        """Aborts a request; any thread may call it.

        A request that has ended, or never was, is ignored.

        Args:
            request: Its id; if it has several samples, the id of one.

        Raises:
            Misuse: The id cannot be hashed, or the front is not entered.
        """
        self._tell_of(request, lambda: self._scheduler.abort(request))

    def evacuate(self, request: Hashable, *, patience: float = PATIENCE) -> None:
        """Moves a request to another engine, as `Scheduler.evacuate`; any thread may call it.

        Its stream ends as if it had finished, with a result of the state MOVED. A request that has
        ended, or never was, is ignored.

        Args:
            request: Its id; if it has several samples, the id of one.
            patience: Seconds after which the stream ends, whatever is written.

        Raises:
            Misuse: The id cannot be hashed, `patience` is no such number, or the front is not
                entered.
        """
        limit = seconds("patience", patience)
        self._tell_of(request, lambda: self._scheduler.evacuate(request, patience=limit))

    def _tell_of(self, request: Hashable, verb: Callable[[], None]) -> None:
        """Has the scheduler do something with a request that has not ended."""
        check_id(request)

        def act() -> None:
            if self._scheduler.state(request) is not None:
                verb()

        with contextlib.suppress(Unavailable):
            self._steps.do(act)

    async def ask(self, question: Callable[[Scheduler], _T]) -> _T:
        """Asks the scheduler something in its own thread, between two turns.

        Args:
            question: Called with the scheduler, such as `lambda it: it.explain(7)`.

        Raises:
            Exception: The error of the question.
            Misuse: It raised an exception that would end a thread, a loop or a task, such as
                SystemExit or StopIteration.
            Unavailable: It is closed, or its engine has failed.
        """
        answer: Future[_T] = Future()

        def act() -> None:
            if not answer.set_running_or_notify_cancel():
                return  # its caller was cancelled
            try:
                answer.set_result(question(self._scheduler))
            except BaseException as error:  # noqa: BLE001 - it is raised where the question was asked
                answer.set_exception(_raised_by_question(error))

        self._steps.do(act)
        return await asyncio.wrap_future(answer)

    # -- entering and closing --------------------------------------------------------------------

    async def start(self) -> None:
        """Starts the thread; streams are read in the event loop that calls this.

        Raises:
            Misuse: It was started before, or another thread has the scheduler.
        """
        if self._loop is not None:
            raise Misuse("this AsyncEngine was started before: make another one")
        self._scheduler.release_thread()
        self._loop, self._thread = asyncio.get_running_loop(), threading.current_thread()
        self._ended = self._loop.create_future()
        self._steps.take()
        threading.Thread(target=self._run, name="blockyard-scheduler", daemon=True).start()

    async def drain(self) -> None:
        """Takes no more requests, and waits until the others have ended, and all acks have come.

        No request is held from now on, because its reader may wait here. If it is cancelled, as by
        `asyncio.timeout`, a note on the error and the log name the remaining requests, steps and
        flights. They go on until they end or `close` aborts them.

        Raises:
            CancelledError: It was cancelled; its note names the remaining work.
            Misuse: This is not the event loop that entered it; nothing is done.
            Unavailable: The engine has failed.
        """
        self._check_loop()
        self._closed = True
        self._steps.drain()
        await self._wait("drain")

    async def evacuate_all(self, *, patience: float = PATIENCE) -> None:
        """Takes no more requests, moves the others to other engines, and waits for their ends.

        It is for a server that is to stop: see `Scheduler.evacuate_all`. Each stream has its result
        then, whose state is MOVED where the request is to go on elsewhere; and the engine has acked
        all stops.

        Args:
            patience: Seconds after which the streams end, whatever is written.

        Raises:
            CancelledError: As `drain`.
            Misuse: As `drain`; or `patience` is no such number.
            Unavailable: The engine has failed.
        """
        limit = seconds("patience", patience)
        self._check_loop()
        self._closed = True
        self._steps.evacuate(limit)
        await self._wait("evacuate_all")

    async def close(self) -> None:
        """Aborts all requests, waits until the engine has released them, and ends the thread.

        Each stream has its result then. The scheduler is free for another `AsyncEngine`.

        Raises:
            CancelledError: As `drain`.
            Misuse: As `drain`.
            Unavailable: The engine has failed.
        """
        self._check_loop()
        self._closed = True
        self._steps.close()
        await self._wait("close")

    def _check_loop(self) -> None:
        """Refuses a call in another event loop, which nothing would wake.

        Raises:
            Misuse: It is another one.
        """
        if self._thread is not None and asyncio.get_running_loop() is not self._loop:
            raise Misuse(
                f"this AsyncEngine was started in an event loop of {thread_name(self._thread)}: "
                "await its streams, drain and close there, as by asyncio.run_coroutine_threadsafe"
            )

    async def _wait(self, verb: str) -> None:
        if self._ended is not None:
            try:
                await asyncio.shield(self._ended)
            except asyncio.CancelledError as error:
                left = self._steps.left()
                error.add_note(f"{verb} was cut off, and these go on until close() ends: {left}")
                _log.warning("%s was cut off; still running: %s", verb, left)
                raise
        self._steps.check_failure()

    async def __aenter__(self) -> Self:
        """Starts it."""
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Waits for all requests; after an error it aborts them."""
        if kind is None:
            await self.drain()
            return
        with contextlib.suppress(Unavailable):
            await self.close()

    # -- between the thread and the event loop ---------------------------------------------------

    def _run(self) -> None:
        self._steps.run()
        loop, ended = self._loop, self._ended
        if loop is not None and ended is not None:

            def end() -> None:
                if not ended.done():
                    ended.set_result(None)

            with contextlib.suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(end)

    def _tell(self, calls: list[Call]) -> None:
        """Calls back in the event loop, with one wake-up for all.

        Raises:
            RuntimeError: The event loop is closed.
        """
        if self._loop is None:
            return

        def deliver() -> None:
            for act, values in calls:
                act(*values)

        self._loop.call_soon_threadsafe(deliver)

    def _is_over(self) -> bool:
        """Whether the event loop is closed, so that no reader is left."""
        return self._loop is not None and self._loop.is_closed()

    def __del__(self) -> None:
        """Warns if it was not closed: its thread has ended with its event loop."""
        if getattr(self, "_loop", None) is not None and not self._closed:
            unclosed("an AsyncEngine", "use it in `async with`, or await close()", self)

    def _drop(self, channel: Channel) -> None:
        # A destructor may run while this very thread holds the lock of an event.
        self._steps.drop(channel)
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._steps.wake)


def _raised_by_question(error: BaseException) -> Exception:
    """The error for `ask` to raise: a future cannot pass on what ends loops and tasks."""
    ends = StopIteration | StopAsyncIteration | CancelledError
    if isinstance(error, Exception) and not isinstance(error, ends):
        return error
    refused = Misuse(f"the question raised {type(error).__name__}: it must raise an Exception")
    refused.__cause__ = error
    return refused
