"""Engines that are stopped for a deploy: their requests go on at others, with the same tokens."""

import asyncio
import random
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import blockyard as by
from blockyard.reference.model import Model
from blockyard.reference.reference import ReferenceEngine, alone
from blockyard.scheduling.request import RequestState, Result
from handed_over import BLOCK, MODEL, PATIENCE, Ask, Setup, advance, asks, options, undisturbed
from memory_stores import MemoryStore
from store_servers import redis_server

pytestmark = pytest.mark.law("INV-36h")
S = RequestState


class Counted:
    """An engine that counts the tokens that it computes, by request."""

    def __init__(self, engine: ReferenceEngine) -> None:
        self.engine, self.stops = engine, engine.stops
        self.computed: dict[Any, int] = {}
        self._seats: dict[int, Any] = {}
        self.poll = engine.poll

    def submit(self, step: Any) -> None:
        for start in step.starts:
            self._seats[start.seat] = start.request
            self.computed[start.request] = max(self.computed.get(start.request, 0), start.cached)
        seats = [*step.decode.tolist(), *(chunk.seat for chunk in step.chunks)]
        ends = (step.positions + step.counts).tolist()
        for seat, end in zip(seats, ends, strict=True):
            name = self._seats[seat]
            self.computed[name] = max(self.computed[name], end)
        self.engine.submit(step)


def served(
    setup: Setup, store: Any, stack: ExitStack, *, disk: int = 0, **more: Any
) -> tuple[Any, Any, by.Scheduler]:
    """An engine that writes nothing to the store by itself but what it evicts."""
    config = replace(setup.config, write="on-evict", ahead=0, disk=disk)
    cache, engine = alone(Model(MODEL), config, sampling=setup.sampling, stores=[store], **more)
    stack.enter_context(cache)
    return cache, Counted(engine), by.Scheduler(cache, options(engine), lookup=cache.lookup)


def play(setup: Setup, store: Any, given: list[Ask], after: int, **more: Any) -> list[int]:
    """Has one engine after the other stopped behind so many tokens, until all is answered.

    Returns:
        Of each request that moved, the tokens that were computed again.
    """
    wanted = undisturbed(setup, given)
    left = {ask.name: ask for ask in given}
    done: dict[str, list[int]] = {ask.name: [] for ask in given}
    had: dict[str, int] = {}
    again = []
    while left:
        with ExitStack() as stack:
            cache, engine, scheduler = served(setup, store, stack, **more)
            for ask in left.values():
                tokens = done[ask.name]
                most = ask.tokens - len(tokens)
                scheduler.add(by.NewRequest(ask.name, ask.prompt + tokens, max_tokens=most))
            results: list[Result] = []
            heard_of: dict[Any, list[int]] = {}
            while not scheduler.idle:
                advance(cache, engine, scheduler)
                heard = sum(len(scheduler.sampled(name)) for name in scheduler.requests)
                if (
                    scheduler.takes_requests
                    and heard + sum(len(it.tokens) for it in results) > after
                ):
                    heard_of = {name: scheduler.sampled(name) for name in scheduler.requests}
                    scheduler.evacuate_all(patience=PATIENCE)
                results += scheduler.results()
            assert cache.audit() is None
        for one in results:
            name = str(one.request)
            if name in had and len(one.tokens):
                again.append(had.pop(name) - one.cached_tokens.total)
            if one.state is S.MOVED:
                assert one.tokens.tolist()[: len(heard_of[name])] == heard_of[name]
                assert one.reason == "moved", one
                # All but the newest token, which its engine has never computed.
                known = len(left[name].prompt) + len(done[name]) + len(one.tokens) - 1
                had[name] = min(engine.computed.get(name, 0), known)
            done[name] += one.tokens.tolist()
            assert done[name] == wanted[name][: len(done[name])]
            if one.state is S.FINISHED:
                assert done[name] == wanted[name]
                del left[name]
    return again


@pytest.mark.parametrize("lag", [0, 2])
@pytest.mark.parametrize(
    ("seed", "device", "host", "disk"), [(1, 40, 0, 0), (2, 24, 24, 0), (3, 24, 6, 48)]
)
def test_inv_36h_every_answer_is_that_of_one_engine_and_less_than_a_block_is_computed_again(
    seed: int, device: int, host: int, disk: int, lag: int, tmp_path: Path
) -> None:
    setup = Setup(tmp_path.as_uri(), seed, device=device, host=host)
    again = play(setup, tmp_path.as_uri(), asks(seed, 8), 50, lag=lag, disk=disk)
    assert len(again) >= 6
    # Of those that begin alike one finds what another has computed.
    assert max(again) < BLOCK


def test_over_a_redis(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        setup = Setup(server.url, 4, device=40)
        again = play(setup, server.url, asks(4, 8), 60)
    assert len(again) >= 4
    assert max(again) < BLOCK


@pytest.mark.law("INV-35b")
def test_a_store_that_stands_still_ends_at_the_limit_and_leaves_every_token() -> None:
    store = MemoryStore()
    store.hangs = {"put"}
    setup, given = Setup("", 5, device=40), asks(5, 5)
    wanted = undisturbed(setup, given)
    with ExitStack() as stack:
        stack.callback(store.go.set)
        cache, engine, scheduler = served(setup, store, stack)
        for ask in given:
            scheduler.add(by.NewRequest(ask.name, ask.prompt, max_tokens=ask.tokens))
        for _ in range(12):
            advance(cache, engine, scheduler)
        scheduler.evacuate_all(patience=0.3)
        results: list[Result] = []
        while not scheduler.idle:
            advance(cache, engine, scheduler)
            results += scheduler.results()
        assert store.reached.acquire(timeout=60)
    assert {one.state for one in results} == {S.MOVED}
    assert any("are in no store after 0.3 s" in one.reason for one in results)
    for one in results:
        tokens = one.tokens.tolist()
        assert tokens
        assert tokens == wanted[str(one.request)][: len(tokens)]


def test_a_cache_that_is_closed_meanwhile_leaves_the_tokens(tmp_path: Path) -> None:
    setup, results = Setup(tmp_path.as_uri(), 8, device=40), list[Result]()
    with ExitStack() as stack:
        cache, engine, scheduler = served(setup, tmp_path.as_uri(), stack)
        for ask in asks(8, 3):
            scheduler.add(by.NewRequest(ask.name, ask.prompt, max_tokens=ask.tokens))
        for _ in range(6):
            advance(cache, engine, scheduler)
        scheduler.evacuate_all()
        while any(scheduler.state(name) is not S.MOVING for name in scheduler.requests):
            advance(cache, engine, scheduler)
    results += scheduler.results()
    assert {one.state for one in results} == {S.MOVED}
    assert all(len(one.tokens) for one in results)


# -- streams ---------------------------------------------------------------------------------------


async def read(stream: Any, into: list[int]) -> Result:
    async for tokens in stream:
        into += tokens
    result: Result = await stream.result()
    return result


def test_streams_end_as_moved_and_no_token_is_read_twice(tmp_path: Path) -> None:
    url, given = tmp_path.as_uri(), asks(6, 6)
    setup = Setup(url, 6, device=40)
    wanted, chance = undisturbed(setup, given), random.Random(6)
    got: dict[str, list[int]] = {ask.name: [] for ask in given}

    async def stopped(left: list[Ask], after: int | None) -> list[Ask]:
        with ExitStack() as stack:
            _, engine, scheduler = served(setup, url, stack)
            front = by.AsyncEngine(scheduler, engine)
            async with asyncio.timeout(60), front:
                streams = [
                    front.add(
                        by.NewRequest(
                            ask.name,
                            ask.prompt + got[ask.name],
                            max_tokens=ask.tokens - len(got[ask.name]),
                        )
                    )
                    for ask in left
                ]
                reading = asyncio.gather(
                    *(read(stream, got[str(stream.request)]) for stream in streams)
                )
                if after is not None:
                    while sum(map(len, got.values())) < after:  # noqa: ASYNC110 - of several streams
                        await asyncio.sleep(1e-3)
                    front.evacuate(left[0].name, patience=PATIENCE)
                    front.evacuate("nobody")
                    await front.evacuate_all(patience=PATIENCE)
                    with pytest.raises(by.Unavailable, match="closed"):
                        front.add(by.NewRequest("late", [1], max_tokens=1))
                    front.evacuate(left[0].name)
                results = await reading
        moved = {one.request for one in results if one.state is S.MOVED}
        for one in results:
            assert one.tokens.tolist() == got[str(one.request)][-len(one.tokens) or 10**6 :]
        return [ask for ask in left if ask.name in moved]

    left = asyncio.run(stopped(given, chance.randrange(20, 60)))
    assert left, "they ended too soon"
    assert asyncio.run(stopped(left, None)) == []
    assert got == wanted


def test_a_generator_says_that_its_request_was_moved(tmp_path: Path) -> None:
    setup = Setup(tmp_path.as_uri(), 7, device=40)
    tokens: list[int] = []

    async def act() -> None:
        with ExitStack() as stack:
            _, engine, scheduler = served(setup, tmp_path.as_uri(), stack)
            async with asyncio.timeout(60), by.AsyncEngine(scheduler, engine) as front:
                with pytest.raises(by.Misuse, match="patience = -1"):
                    front.evacuate("one", patience=-1)
                with pytest.raises(by.Misuse, match="patience = 'soon'"):
                    await front.evacuate_all(patience="soon")  # type: ignore[arg-type]
                with pytest.raises(by.Misuse, match="id that can be hashed"):
                    front.evacuate([])  # type: ignore[arg-type]
                async for some in front.generate(by.NewRequest("one", [1, 2, 3], max_tokens=90)):
                    tokens.extend(some)
                    front.evacuate("one")

    with pytest.raises(by.Unavailable, match=r"'one' was moved after \d+ tokens: add its prompt"):
        asyncio.run(act())
    assert tokens
