"""Requests of engines that are killed go on in others, and no store changes a token."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from handed_over import Ask, Router, Setup, asks, play
from store_servers import Server, mooncake, redis_server

TEN = 10
KINDS = ("folder", "redis", "mooncake")


@pytest.fixture(scope="module", params=KINDS)
def url(request: Any, tmp_path_factory: Any) -> Iterator[str]:
    """A store that runs for the whole module."""
    folder = tmp_path_factory.mktemp("store")
    with ExitStack() as stack:
        if request.param == "folder":
            yield folder.as_uri()
        elif request.param == "redis":
            yield stack.enter_context(redis_server(folder)).url
        else:
            yield stack.enter_context(mooncake()).url


@pytest.mark.parametrize(("seed", "host", "engines"), [(1, 0, 2), (2, 24, 1)])
def test_requests_of_killed_engines_go_on_elsewhere(
    url: str, seed: int, host: int, engines: int
) -> None:
    setup = Setup(url, seed, device=24, host=host)
    seen = play(setup, asks(seed, TEN), kills=4, engines=engines)
    # Each token was compared, and each block that was acknowledged was found.
    assert seen["kills"] == 4
    assert seen["handed over"] >= TEN - 2
    assert seen["blocks loaded from the store"] > 10
    assert seen["blocks found"] >= seen["blocks promised"] > 10
    assert not seen["remote_corrupt"]


def test_a_store_that_lies_changes_no_token(tmp_path: Path) -> None:
    setup = Setup(tmp_path.as_uri(), 3, lies=0.4, faulty=True)
    seen = play(setup, asks(3, TEN), kills=3)
    told = {what for what in seen if what.startswith("lies: ")}
    assert len(told) >= 7, told
    assert seen["remote_corrupt"] > 5
    assert seen["blocks loaded from the store"] > 0


Fault = Callable[[Server], object]


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts a Redis, again too."""
    with ExitStack() as stack:
        yield lambda **more: stack.enter_context(redis_server(tmp_path, **more))


def disturbed(server: Server, given: list[Ask], faults: Mapping[int, Callable[[], object]]) -> Any:
    """Has requests answered, and things happen after so many tokens."""
    router = Router(Setup(f"{server.url}?timeout=0.2", 4, faulty=True), given)
    due = sorted(faults)

    def disturb(router: Router) -> None:
        while due and router.streamed >= due[0]:
            faults[due.pop(0)]()

    seen = router.run(disturb)
    assert not due, "they ended too soon"
    return seen


def test_a_store_that_stops_keeps_no_request(redis: Callable[..., Server]) -> None:
    server = redis()
    disturbed(server, asks(4, 6), {10: server.stop})


def test_a_store_that_goes_on_after_a_stop(redis: Callable[..., Server]) -> None:
    server = redis()
    disturbed(server, asks(5, 6), {5: server.stop, 30: server.go_on, 60: server.stop})


def test_a_store_that_is_killed_and_started_again(redis: Callable[..., Server]) -> None:
    server = redis()
    again = {10: server.kill, 50: lambda: redis(port=server.port)}
    disturbed(server, asks(6, 6), again)


@pytest.mark.parametrize("policy", ["noeviction", "allkeys-random"])
def test_a_store_that_is_full(redis: Callable[..., Server], policy: str) -> None:
    server = redis(memory="1mb", policy=policy)
    seen = disturbed(server, asks(7, 8), {})
    assert seen["remote_failed"] > 0
