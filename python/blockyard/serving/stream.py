"""The tokens of one request, from the thread that schedules to the coroutine that reads them."""

import asyncio
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple, Self

from blockyard._core import Misuse
from blockyard.scheduling.cached_tokens import CachedTokens
from blockyard.scheduling.request import Result
from blockyard.shared.single import Single

__all__ = ["Channel", "Front", "Stream"]


class Front(NamedTuple):
    """Calls of a stream into the scheduler's thread."""

    resume: "Callable[[Channel], None]"
    """Goes on with a request that is held."""
    abort: "Callable[[Channel], None]"
    """Aborts a request, unless it has ended."""
    drop: "Callable[[Channel], None]"
    """The same from a destructor, which may run anywhere and must take no lock."""
    check: Callable[[], None]
    """Refuses any event loop but the streams' own."""


class Channel(Single):
    """The tokens of one request that were not read yet.

    The scheduler's thread writes `sent`, `held` and `cached_tokens`, the event loop the rest. Each
    reads the other's.

    Args:
        request: The request's id.
        most: Tokens that may wait to be read before the request is held.
    """

    __slots__ = (
        "_waiter",
        "cached_tokens",
        "error",
        "held",
        "most",
        "read",
        "request",
        "result",
        "sent",
        "unread",
    )

    def __init__(self, request: Hashable, most: int) -> None:
        self.request = request
        self.most = most
        self.sent = 0
        """Tokens that were sent to the event loop."""
        self.read = 0
        """Tokens that were read."""
        self.held = False
        """Whether the request is held until more is read."""
        self.cached_tokens: CachedTokens | None = None
        """The prompt tokens that were found; None before the first token."""
        self.unread: list[int] = []
        self.result: Result | None = None
        self.error: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None

    def is_full(self) -> bool:
        """Whether more tokens wait to be read than may."""
        return self.sent - self.read > self.most

    @property
    def ended(self) -> bool:
        """Whether nothing more comes."""
        return self.result is not None or self.error is not None

    def put(self, tokens: list[int]) -> None:
        """Takes tokens that were sampled."""
        self.unread += tokens
        self._wake()

    def end(self, result: Result | None, error: BaseException | None = None) -> None:
        """Takes the request's one result, or the error that refused it; a second one is ignored."""
        if not self.ended:
            self.result, self.error = result, error
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Waits until something has come.

        Raises:
            Misuse: Another coroutine waits already.
        """
        if self._waiter is not None:
            raise Misuse(
                f"request {self.request!r} is read by another coroutine: one reads a stream"
            )
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


class Stream(Single):
    """The tokens of one request as they come, and its one result.

    `async for` gives lists of tokens: all that have come since the last one, at least one. It ends
    when the request does; `result` then returns how. Read it in the event loop of its
    `AsyncEngine`, in one coroutine at a time.

    Closing or dropping a stream aborts its request, unless that has ended. A request with too many
    unread tokens is held: it decodes nothing until they are read.
    """

    __slots__ = ("_channel", "_front")

    def __init__(self, channel: Channel, front: Front) -> None:
        self._channel: Final = channel
        self._front: Final = front

    @property
    def request(self) -> Hashable:
        """The id of its request."""
        return self._channel.request

    @property
    def cached_tokens(self) -> CachedTokens | None:
        """The prompt tokens that were found when its request first began, by tier.

        They are there from the first token on, and None before; the result has them, too.
        """
        channel = self._channel
        return channel.cached_tokens if channel.result is None else channel.result.cached_tokens

    def __aiter__(self) -> Self:
        """Returns itself."""
        return self

    async def __anext__(self) -> list[int]:
        """Waits for tokens, and returns all that were not read yet.

        Raises:
            BlockyardError: The request was refused, as by `Scheduler.add`.
            Misuse: Another coroutine reads it, or this is not the event loop of its `AsyncEngine`.
        """
        self._front.check()
        channel = self._channel
        while not channel.unread:
            if channel.error is not None:
                raise channel.error
            if channel.result is not None:
                raise StopAsyncIteration
            await channel.wait()
        tokens, channel.unread = channel.unread, []
        channel.read += len(tokens)
        if channel.held and not channel.is_full():
            self._front.resume(channel)
        return tokens

    async def result(self) -> Result:
        """Reads to the end, and returns how the request has ended, with all its tokens.

        Raises:
            BlockyardError: The request was refused, as by `Scheduler.add`.
        """
        async for _ in self:
            pass
        result = self._channel.result
        if result is None:
            raise Misuse(f"request {self.request!r} has no result")
        return result

    async def aclose(self) -> None:
        """Aborts the request, if it has not ended."""
        if not self._channel.ended:
            self._front.abort(self._channel)

    async def __aenter__(self) -> Self:
        """Returns itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes it."""
        await self.aclose()

    def __del__(self) -> None:
        """Aborts a request whose tokens can no longer be read."""
        channel = getattr(self, "_channel", None)
        if channel is not None and not channel.ended:
            self._front.drop(channel)
