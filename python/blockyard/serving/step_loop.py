"""The loop around a scheduler and its engine, in a thread that sleeps while nothing can be done."""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from blockyard._core import Misuse, Unavailable
from blockyard._typing import NDArray
from blockyard.scheduling.cached_tokens import CachedTokens
from blockyard.scheduling.engine import Engine
from blockyard.scheduling.request import RequestState, Result
from blockyard.scheduling.scheduler import Scheduler
from blockyard.serving.stream import Channel
from blockyard.shared.log import Limited, described
from blockyard.shared.single import Single
from blockyard.shared.validate import integer, shown

__all__ = ["Call", "Reader", "StepLoop"]

Call: TypeAlias = tuple[Callable[..., None], tuple[Any, ...]]
"""A function to call in the reader's thread, and its arguments."""

_COPIES: Final = 0.001
"""Seconds between two polls of copies in flight, or of a store's answer, while nothing else
happens."""
_QUIET: Final = 0.02
"""Seconds after which a scheduler that had nothing to run is asked again, in any case."""

_LOOK: Final = 1.0
"""Seconds after which a sleeping thread checks for a reader."""
_MUTE: Final = 10.0
"""Seconds without an output after which the log reports a silent engine."""

_NAMED: Final = 8
"""Most requests, or flights, named in a line."""

_log = Limited(__name__)
_mute = Limited(__name__, 60.0)


class Reader(NamedTuple):
    """The thread that reads tokens."""

    tell: Callable[[list[Call]], None]
    """Makes calls in it, and raises RuntimeError where it is gone."""
    gone: Callable[[], bool]
    """Tells whether it is gone: then all is aborted, and the loop ends."""


class StepLoop(Single):
    """Schedules, submits, polls and moves copies, and passes tokens to their readers.

    `run` is the thread's. `do`, `resume`, `abort`, `drop`, `drain`, `close` and `wake` are for any
    thread.

    Args:
        scheduler: The scheduler.
        engine: The engine; its `notify`, if it has one, is given `wake`.
        reader: The thread that reads.
        move: Moves copies, once a turn; None for the cache's own `step`.
        steps_in_flight: Most steps that the engine has at a time.

    Raises:
        Misuse: A value is out of range, the engine's `stops` differ from the scheduler's, or there
            is no `move` and the cache has no `step`.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        engine: Engine,
        reader: Reader,
        move: Callable[[], object] | None,
        steps_in_flight: int,
    ) -> None:
        scheduler.check(engine)
        self._reader = reader
        self._scheduler = scheduler
        self._engine = engine
        step = getattr(scheduler.cache, "step", None) if move is None else move
        if not callable(step):
            raise Misuse(
                f"move = {move!r:.60}: give a function that moves copies once a turn, as this "
                "cache has no `step`"
            )
        self._move = step
        self._most_steps = integer("steps_in_flight", steps_in_flight)
        self._channels: dict[Hashable, Channel] = {}
        self._seats: dict[int, Hashable] = {}
        self._telling: dict[int, bool] = {}
        self._resting_since: float | None = None
        self._heard = time.monotonic()
        """When the engine last answered a step, or had none to answer."""
        self._copies = (0, 0)
        self._commands: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._event = threading.Event()
        self._taken = False
        self._closing = False
        self._over = False
        self._failure: BaseException | None = None
        notify = getattr(engine, "notify", None)
        self._notified = notify is not None
        if notify is not None:
            notify(self.wake)

    # -- for any thread --------------------------------------------------------------------------

    def wake(self) -> None:
        """Wakes the thread."""
        self._event.set()

    def take(self) -> None:
        """Takes commands from now on."""
        self._taken = True

    def do(self, act: Callable[[], None]) -> None:
        """Has the thread do something.

        Raises:
            Misuse: It was not started.
            Unavailable: It takes nothing more.
        """
        with self._lock:
            if not self._taken:
                raise Misuse("this AsyncEngine is not started: use `async with`, or await `start`")
            self.check_failure()
            if self._closing or self._over:
                raise Unavailable("this AsyncEngine is closed: make another one")
            self._commands.append(act)
        self.wake()

    def check_failure(self) -> None:
        """Raises the error that has ended it.

        Raises:
            Unavailable: The engine, or a turn, has failed.
        """
        if self._failure is not None:
            raise Unavailable(f"the engine failed: {described(self._failure)}") from self._failure

    def drain(self) -> None:
        """Takes nothing more, and ends when all requests have ended by themselves."""
        self._end_with(self._unhold_all)

    def close(self) -> None:
        """Takes nothing more, aborts all requests, and ends when they have ended."""
        self._end_with(self._abort_all)

    def evacuate(self, patience: float) -> None:
        """Takes nothing more, moves all requests, and ends when they have ended."""
        self._end_with(lambda: self._evacuate_all(patience))

    def _end_with(self, act: Callable[[], None]) -> None:
        with self._lock:
            self._closing = True
            self._commands.append(act)
        self.wake()

    def left(self) -> str:
        """Names the remaining requests, steps of the engine and flights of the cache."""
        cache, steps = self._scheduler.cache, self._scheduler.steps_in_flight
        down, up = cache.blocks_in_flight()
        return (
            f"requests: {_named(self._scheduler.requests)}; steps with the engine: {steps}; "
            f"flights: {_named(cache.dispatched())}, of {down} blocks down and {up} up"
        )

    def resume(self, channel: Channel) -> None:
        """Resumes a request after enough of its tokens were read."""
        self._commands.append(lambda: self._unhold(channel))
        self.wake()

    def abort(self, channel: Channel) -> None:
        """Aborts a request, unless it has ended."""
        self.drop(channel)
        self.wake()

    def drop(self, channel: Channel) -> None:
        """The same for a destructor: it takes no lock, and wakes no thread."""
        self._commands.append(lambda: self._abort_one(channel))

    # -- commands, in the thread -----------------------------------------------------------------

    def open(self, channels: Iterable[Channel]) -> None:
        """Sends tokens and results of these added requests to their readers from now on."""
        # One that has just ended may have had the same id.
        self._finish()
        self._channels |= {channel.request: channel for channel in channels}

    def refuse(self, channels: Iterable[Channel], error: Exception) -> None:
        """Raises an error in the readers of these requests, which were not added."""
        self._tell([(channel.end, (None, error)) for channel in channels])

    def _is_there(self, channel: Channel) -> bool:
        """Whether its request has not ended."""
        there = self._channels.get(channel.request) is channel
        return there and self._scheduler.state(channel.request) is not None

    def _unhold(self, channel: Channel) -> None:
        if channel.held:
            channel.held = False
            if self._is_there(channel):
                self._scheduler.resume_decoding(channel.request)

    def _unhold_all(self) -> None:
        for channel in self._channels.values():
            channel.held = False
        for request in self._scheduler.requests:
            self._scheduler.resume_decoding(request)

    def _abort_one(self, channel: Channel) -> None:
        if self._is_there(channel):
            self._scheduler.abort(channel.request)

    def _evacuate_all(self, patience: float) -> None:
        self._scheduler.evacuate_all(patience=patience)

    def _abort_all(self) -> None:
        for request in self._scheduler.requests:
            self._scheduler.abort(request)

    # -- the loop --------------------------------------------------------------------------------

    def run(self) -> None:
        """Runs until it is closed and all requests have ended, or something fails."""
        try:
            while not self._is_done():
                wait = self._turn()
                if wait is None or wait:
                    self._event.wait(_LOOK if wait is None else wait)
                self._warn_mute()
                if self._reader.gone() and not self._closing:
                    self.close()
        except BaseException as error:  # noqa: BLE001 - each reader gets it
            self._fail(error)
        with contextlib.suppress(Misuse):
            self._scheduler.release_thread()

    def _is_done(self) -> bool:
        """Whether it was closed, and nothing is left to do; from then on it takes nothing more."""
        if not self._closing or not self._scheduler.idle:
            return False
        with self._lock:
            self._over = not self._commands
        return self._over

    def _turn(self) -> float | None:
        """Does all there is to do; returns for how long to sleep after it, 0 for not at all."""
        self._event.clear()
        news = bool(self._commands)
        while self._commands:
            self._commands.popleft()()
        outputs, acks = self._engine.poll()
        if outputs or not self._scheduler.steps_in_flight:
            self._heard = time.monotonic()
        for output in outputs:
            self._scheduler.on_output(output)
            self._send(output.seats)
            news |= self._telling.pop(output.step, True) or bool(output.acks)
        if acks:
            self._scheduler.on_acks(acks)
        moved, copies = self._move(), self._scheduler.cache.blocks_in_flight()
        news = news or bool(acks) or bool(moved) or copies != self._copies
        self._copies = copies
        if news or self._has_rested():
            self._resting_since = None
        ran = self._schedule()
        self._finish()
        return 0 if news or ran else self._rest()

    def _schedule(self) -> bool:
        """Schedules steps for the engine, until one has no rows: then nothing can run now."""
        ran = False
        while (
            self._resting_since is None
            and self._scheduler.steps_in_flight < self._most_steps
            and not self._scheduler.idle
        ):
            step = self._scheduler.schedule()
            self._seats |= {start.seat: start.request for start in step.starts}
            self._engine.submit(step)
            self._telling[step.number] = bool(len(step) or step.stops)
            if len(step):
                ran = True
            else:
                self._resting_since = time.monotonic()
        return ran

    def _has_rested(self) -> bool:
        since = self._resting_since
        return since is not None and time.monotonic() - since >= self._quiet

    @property
    def _quiet(self) -> float:
        return _COPIES if self._scheduler.asks_stores or self._scheduler.moves else _QUIET

    def _rest(self) -> float | None:
        """Seconds to sleep where nothing could be done; None until something comes."""
        in_flight = self._scheduler.steps_in_flight
        if self._scheduler.idle and self._copies == (0, 0):
            # The output of the last step may have ended it all, without a token.
            return 0 if self._closing else None
        moves = self._copies != (0, 0) or self._scheduler.moves
        if moves or (in_flight and not self._notified):
            return _COPIES
        return None if in_flight >= self._most_steps else self._quiet

    def _warn_mute(self) -> None:
        """Logs that the engine has not answered, which no rule of `stalled` detects."""
        in_flight = self._scheduler.steps_in_flight
        if in_flight and time.monotonic() - self._heard >= _MUTE:
            _mute.warning(
                "the engine has answered none of its %d steps for %.0f s", in_flight, _MUTE
            )

    # -- to the readers --------------------------------------------------------------------------

    def _send(self, seats: NDArray[np.integer[Any]]) -> None:
        """Sends the new tokens of the requests that were in these seats."""
        calls: list[Call] = []
        for seat in seats.tolist():
            channel = self._channels.get(self._seats.get(seat))
            if channel is None:
                continue
            tokens = self._scheduler.sampled(channel.request, channel.sent)
            if not tokens:
                continue
            if channel.cached_tokens is None:
                channel.cached_tokens = self._scheduler.cached_tokens(channel.request)
            channel.sent += len(tokens)
            calls.append((channel.put, (tokens,)))
            if channel.is_full() and not channel.held and not self._closing:
                channel.held = True
                self._scheduler.pause_decoding(channel.request)
                if not channel.is_full():
                    # It was read in between, and its reader saw no hold.
                    self._unhold(channel)
        self._tell(calls)

    def _finish(self, failed: str | None = None) -> None:
        """Sends the results of the requests that have ended, or have all failed of this."""
        calls: list[Call] = []
        for ended in self._scheduler.results():
            result = ended
            if failed is not None:
                result = ended._replace(state=RequestState.FAILED, reason=failed)
            channel = self._channels.pop(result.request, None)
            if channel is not None:
                rest = result.tokens[channel.sent :].tolist()
                calls += [(channel.put, (rest,))] if rest else []
                calls.append((channel.end, (result,)))
        self._tell(calls)

    def _tell(self, calls: list[Call]) -> None:
        if not calls:
            return
        try:
            self._reader.tell(calls)
        except RuntimeError:
            # The readers' event loop is closed.
            self._closing = True
            self._commands.append(self._abort_all)

    def _fail(self, error: BaseException) -> None:
        """Ends every request, as the engine or a turn has failed."""
        with self._lock:
            self._failure, self._over = error, True
        while self._commands:
            # Readers of requests that are still to be added get the error, too.
            with contextlib.suppress(BaseException):
                self._commands.popleft()()
        reason = described(error)
        with contextlib.suppress(BaseException):
            self._scheduler.fail(reason)
            self._finish()
            self._abort_all()
            self._finish(failed=reason)
        none, failed = np.zeros(0, np.uint32), RequestState.FAILED
        calls: list[Call] = []
        for channel in self._channels.values():
            cached = channel.cached_tokens or CachedTokens()
            calls.append((channel.end, (Result(channel.request, failed, none, reason, cached),)))
        self._tell(calls)
        self._channels.clear()
        # Last: a log handler may raise.
        _log.warning("the engine failed, and all its requests with it: %s", reason)


def _named(ids: Sequence[object]) -> str:
    """Some of them, and how many there are where that is more."""
    names = ", ".join(map(shown, ids[:_NAMED])) or "none"
    return names if len(ids) <= _NAMED else f"{names}, … ({len(ids)})"
